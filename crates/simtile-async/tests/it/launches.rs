//! L1, L2, L5: launches as operations, and external calls.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{AsyncKernelLaunchBuilder, download, external, upload};
use simtile_core::{DeviceBuffer, Error, LaunchArgs, LaunchError};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_types::LaunchConfig;
use std::sync::Arc;

#[test]
fn a_launch_needs_a_geometry() {
    let rig = rig();
    // SAFETY: it is refused.
    let refused = unsafe { AsyncKernelLaunchBuilder::new(&rig.saxpy).finalize_unchecked(None) }.unwrap_err();
    assert!(refused.to_string().contains("missing launch configuration"), "{refused}");
    let builder = AsyncKernelLaunchBuilder::new(&rig.saxpy).set_launch_config(LaunchConfig::for_num_elems(0));
    // SAFETY: it launches nothing.
    let nothing =
        unsafe { builder.arg(0u32).arg(1f32).arg(0u64).arg(0u64).finalize_unchecked(None) }.unwrap();
    let before = rig.sim.counts();
    nothing.enqueue_on(&rig.stream).unwrap();
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuLaunchKernel), 0, "L5: no elements, no launch");
}

#[test]
fn wrong_arguments_are_told_before_the_driver_sees_them() {
    let rig = rig();
    let builder = AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(1u32);
    // SAFETY: it is refused.
    let launch = unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(1)) }.unwrap();
    let error = launch.sync_on(&rig.stream).unwrap_err();
    let count = matches!(
        error.core(),
        Some(Error::Launch(LaunchError::ArgumentCount { expected: 4, actual: 1, .. }))
    );
    assert!(count, "{error}");
}

#[test]
fn programmatic_launches_have_their_limits() {
    let rig = rig();
    let builder = || AsyncKernelLaunchBuilder::new(&rig.saxpy).set_cooperative(true);
    // SAFETY: it is refused.
    let refused = unsafe {
        builder().programmatic_dependent_launch().finalize_unchecked(LaunchConfig::for_num_elems(1))
    };
    assert!(refused.unwrap_err().to_string().contains("exclude each other"));
}

#[test]
fn an_owned_launch_gives_its_buffers_back() {
    let rig = rig();
    let op = zip!(upload(vec![1.0f32; 40]), upload(vec![2.0f32; 40]));
    let kernel = rig.saxpy.clone();
    let (x, y) = op.then(move |pair| saxpy_owned(&kernel, 4.0, pair)).sync_on(&rig.stream).unwrap();
    assert_eq!(x.to_vec(&rig.stream).unwrap(), [1.0; 40]);
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [6.0; 40]);
    rig.clean();
}

/// What the builder was given before, values, geometry and attributes, is part of an owned launch as of any other.
#[test]
fn an_owned_launch_has_what_the_builder_was_given() {
    fn buffers<'r>(pair: &'r mut Pair) -> LaunchArgs<'r> {
        LaunchArgs::new().buffer(&pair.0).buffer_mut(&mut pair.1)
    }
    let rig = rig();
    let pair = || {
        let of = |value| DeviceBuffer::from_slice(&rig.stream, &[value; 40]).unwrap();
        (of(1f32), of(2f32))
    };
    let config = LaunchConfig::for_num_elems(40);
    let builder = || AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(40u32).boxed(Box::new(4f32));
    // SAFETY: as `saxpy_owned`.
    let op = unsafe { builder().finalize_owned_unchecked(config, pair(), buffers) }.unwrap();
    assert_eq!(op.sync_on(&rig.stream).unwrap().1.to_vec(&rig.stream).unwrap(), [6.0; 40]);
    // SAFETY: as `saxpy_owned`.
    let op = unsafe { builder().finalize_owned_with(config, pair(), buffers) };
    assert_eq!(op.sync_on(&rig.stream).unwrap().1.to_vec(&rig.stream).unwrap(), [6.0; 40]);
    // SAFETY: as `saxpy_owned`.
    let op = unsafe { builder().set_launch_config(config).finalize_owned_unchecked(None, pair(), buffers) };
    assert_eq!(op.unwrap().sync_on(&rig.stream).unwrap().1.to_vec(&rig.stream).unwrap(), [6.0; 40]);
    // Attributes: the driver is asked for a cooperative launch, with the same values.
    let before = rig.sim.counts();
    // SAFETY: as `saxpy_owned`.
    let op = unsafe { builder().set_cooperative(true).finalize_owned_with(config, pair(), buffers) };
    assert_eq!(op.sync_on(&rig.stream).unwrap().1.to_vec(&rig.stream).unwrap(), [6.0; 40]);
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuLaunchKernelEx), 1);
    // What cannot be is refused, at once or when it is run.
    let both = || {
        let builder = builder().set_cooperative(true);
        // SAFETY: it is refused.
        unsafe { builder.programmatic_dependent_launch() }
    };
    // SAFETY: it is refused.
    let refused = unsafe { both().finalize_owned_unchecked(config, pair(), buffers) }.map(drop);
    assert!(refused.unwrap_err().to_string().contains("exclude each other"));
    // SAFETY: it is refused.
    let refused = unsafe { both().finalize_owned_with(config, pair(), buffers) }.sync_on(&rig.stream);
    assert!(refused.map(drop).unwrap_err().to_string().contains("exclude each other"));
    let x = pair().0;
    // SAFETY: it is refused.
    let borrows = unsafe { builder().read(&x).finalize_owned_with(config, pair(), buffers) };
    let error = borrows.sync_on(&rig.stream).map(drop).unwrap_err();
    assert!(error.to_string().contains("memory was added outside"), "{error}");
    rig.clean();
}

#[test]
fn a_failed_launch_names_itself_and_leaves_the_rest() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    rig.sim.fail(Entry::cuLaunchKernel, 1, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    let error = saxpy(&rig.saxpy, 1.0, &x, &mut y).sync_on(&rig.stream).unwrap_err();
    assert!(error.to_string().contains("saxpy"), "{error}");
    saxpy(&rig.saxpy, 1.0, &x, &mut y).sync_on(&rig.stream).unwrap();
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [2.0; 8]);
}

/// Launches that borrow can be chained, and the chain can be sent to another thread and run there.
#[test]
fn chained_borrowed_launches_run_on_another_thread() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[2.0f32; 8]).unwrap();
    let mut z = DeviceBuffer::from_slice(&rig.stream, &[3.0f32; 8]).unwrap();
    let (kernel, stream) = (&rig.saxpy, &rig.stream);
    let first = saxpy(kernel, 2.0, &x, &mut y);
    let chain = first.then(|()| saxpy(kernel, 4.0, &x, &mut z)).then(|()| value(5));
    let ran = simtile_sync::thread::scope(|scope| scope.spawn(move || chain.sync_on(stream)).join().unwrap());
    assert_eq!(ran.unwrap(), 5);
    assert_eq!(y.to_vec(stream).unwrap(), [4.0; 8]);
    assert_eq!(z.to_vec(stream).unwrap(), [7.0; 8]);
    rig.clean();
}

/// L6: a library call is ordered like a launch, whoever's code it is.
#[test]
fn an_external_call_is_ordered_and_gives_its_resources_back() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut pair = (
        DeviceBuffer::from_slice(&rig.stream, &[1u8; 64]).unwrap(),
        DeviceBuffer::from_slice(&rig.stream, &[2u8; 64]).unwrap(),
    );
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let (from, to) = (pair.0.cu_deviceptr(), pair.1.cu_deviceptr());
    // The same work may be queued again and again: each call makes a new operation.
    let call = |pair: (DeviceBuffer<u8>, DeviceBuffer<u8>), fail: bool| {
        // SAFETY: the copy reads the first buffer and writes the second, both of 64 bytes.
        unsafe {
            external(
                "a copy by others",
                pair,
                |pair, touches| touches.read(&pair.0).write(&mut pair.1),
                move |at| {
                    // SAFETY: as above; a library would make such calls.
                    let code = at.driver.cuMemcpyDtoDAsync(to, from, 64, at.stream);
                    assert_eq!(code, CUresult::CUDA_SUCCESS);
                    if fail { Err(OpError::user("status 7")) } else { Ok(()) }
                },
            )
        }
    };
    pair = call(pair, false).enqueue_on(&rig.stream).unwrap();
    let values = simtile_sync::thread::scope(|scope| {
        let reader = scope.spawn(|| pair.1.to_vec(&other).unwrap());
        simtile_sync::time::sleep(std::time::Duration::from_millis(20));
        assert!(!reader.is_finished(), "a reader on another stream follows");
        gate.open();
        reader.join().unwrap()
    });
    assert_eq!(values, [1; 64]);
    let error = call(pair, true).waits_outside().sync_on(&rig.stream).unwrap_err();
    assert_eq!(error.to_string(), "a copy by others: status 7");
    rig.clean();
}

#[test]
fn an_external_call_cannot_use_the_runtime_inside() {
    let rig = rig();
    let stream = rig.stream.clone();
    let inside: Arc<std::sync::Mutex<Option<String>>> = Arc::default();
    let seen = inside.clone();
    // SAFETY: it queues nothing.
    let op = unsafe {
        external(
            "nothing",
            (),
            |(), touches| touches,
            move |_| {
                let tried = upload(vec![1u8]).then(download).enqueue_on(&stream);
                *seen.lock().unwrap() = tried.err().map(|error| error.to_string());
                Ok::<(), OpError>(())
            },
        )
    };
    op.sync_on(&rig.stream).unwrap();
    assert!(inside.lock().unwrap().as_ref().is_some_and(|text| text.contains("host function")));
}

/// Contracts: checked once; then the builder takes arguments alone.
#[test]
fn a_prepared_launch_is_launched_as_it_was_checked() {
    use simtile_core::PreparedLaunch;
    use simtile_types::contract::*;
    struct Saxpy;
    impl KernelLaunchContract for Saxpy {
        type Config = simtile_types::LaunchConfig1D;
        const SPEC: LaunchContractSpec = LaunchContractSpec::new(
            "saxpy",
            BlockRequirement::MaxThreads(256),
            DynamicSharedMemoryRequirement::NONE,
        );
    }
    let rig = rig();
    let config = simtile_types::LaunchConfig1D::new(1, 64, 0);
    let prepared = PreparedLaunch::<Saxpy>::prepare(&rig.saxpy, config).unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[2.0f32; 64]).unwrap();
    let before = rig.sim.counts();
    for _ in 0..3 {
        let builder =
            AsyncKernelLaunchBuilder::prepared(&prepared).arg(64u32).arg(2f32).read(&x).write(&mut y);
        // SAFETY: the kernel reads 64 floats of `x` and updates as many of `y`.
        unsafe { builder.finalize_unchecked(None) }.unwrap().enqueue_on(&rig.stream).unwrap();
    }
    assert_eq!(rig.sim.counts().since(&before).total(), 3, "launches alone");
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [8.0; 64]);
    let changed = [
        AsyncKernelLaunchBuilder::prepared(&prepared).set_launch_config(LaunchConfig::for_num_elems(65)),
        AsyncKernelLaunchBuilder::prepared(&prepared).set_cooperative(true),
        AsyncKernelLaunchBuilder::prepared(&prepared).set_cluster_dim(2, 1, 1),
    ];
    for builder in changed {
        // SAFETY: it is refused.
        let refused = unsafe { builder.finalize_unchecked(None) }.unwrap_err();
        assert!(refused.to_string().contains("it was prepared for"), "{refused}");
    }
    rig.clean();
}

/// L1: attributes in every combination that CUDA allows, all in one launch call each.
#[test]
fn attributes_combine() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 256]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 256]).unwrap();
    let config = LaunchConfig { grid_dim: (4, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    let mut launches = 0;
    for bits in 0..16u32 {
        let [cluster, cooperative, programmatic, priority] = core::array::from_fn(|bit| bits >> bit & 1 == 1);
        let builder = AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(256u32).arg(1f32).read(&x).write(&mut y);
        let builder = if cluster { builder.set_cluster_dim(2, 1, 1) } else { builder };
        let builder = builder.set_cooperative(cooperative);
        let builder = if priority { builder.set_priority(-1) } else { builder };
        // SAFETY: nothing before it in the stream is still running when it touches memory: each is waited for.
        let builder = if programmatic { unsafe { builder.programmatic_dependent_launch() } } else { builder };
        // SAFETY: the kernel reads 256 floats of `x` and updates as many of `y`.
        let launch = unsafe { builder.finalize_unchecked(config) };
        if cooperative && programmatic {
            assert!(launch.unwrap_err().to_string().contains("exclude each other"));
            continue;
        }
        launch.unwrap().sync_on(&rig.stream).unwrap_or_else(|error| panic!("{bits:04b}: {error}"));
        launches += 1;
    }
    assert_eq!(launches, 12);
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [12.0; 256]);
    rig.clean();
}

/// Boxes are buffers to operations, and give themselves back.
#[test]
fn boxes_go_through_operations() {
    use simtile_async::{DeviceBox, fill};
    let rig = rig();
    let boxed = upload(vec![1.0f32; 64]).map(DeviceBox::<[f32]>::from);
    let filled = boxed.then(|b| fill(b, 4.0)).then(value).sync_on(&rig.stream).unwrap();
    assert_eq!(download(&filled).sync_on(&rig.stream).unwrap(), [4.0; 64]);
    let mut y = DeviceBox::from_slice(&rig.stream, &[1.0f32; 64]).unwrap();
    let builder = AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(64u32).arg(2f32).read(&filled).write(&mut y);
    // SAFETY: the kernel reads 64 floats of the first and updates as many of the second.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(64)) }
        .unwrap()
        .sync_on(&rig.stream)
        .unwrap();
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [9.0; 64]);
    // An address is a value.
    let pointer = value(y.device_pointer()).sync_on(&rig.stream).unwrap();
    assert_eq!(pointer.cu_deviceptr(), y.cu_deviceptr());
    rig.clean();
}

crate::schedules::explored!(
    a_launch_needs_a_geometry
    wrong_arguments_are_told_before_the_driver_sees_them
    programmatic_launches_have_their_limits
    an_owned_launch_gives_its_buffers_back
    an_owned_launch_has_what_the_builder_was_given
    a_failed_launch_names_itself_and_leaves_the_rest
    chained_borrowed_launches_run_on_another_thread
    an_external_call_is_ordered_and_gives_its_resources_back
    an_external_call_cannot_use_the_runtime_inside
    a_prepared_launch_is_launched_as_it_was_checked
    attributes_combine
    boxes_go_through_operations
);
