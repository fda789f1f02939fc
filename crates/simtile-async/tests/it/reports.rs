//! Public bug reports of other runtimes, areas A, C, I, J, L and M, each with the right behaviour. The names are the reports'; those
//! that are not here are beside the feature that they are about.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{
    AsyncKernelLaunchBuilder, CudaGraph, copy, download, external, fill, load_function, load_module, upload,
    zeros,
};
use simtile_core::{
    Context, DeviceBuffer, Error, LaunchArgs, LaunchError, ModuleCache, PinnedHostBuffer, PreparedLaunch,
    Stream, drain_background,
};
use simtile_driver::sys::*;
use simtile_driver::{Entry, call};
use simtile_types::contract::LaunchContractError as E;
use simtile_types::contract::{
    BlockRequirement, DynamicSharedMemoryRequirement as Shared, KernelLaunchContract, LaunchContractSpec,
};
use simtile_types::{LaunchConfig, LaunchConfig1D};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const CLUSTER: &str = include_str!("../../../../artifacts/ptx/cluster.ptx");
const DYN_SHARED: &str = include_str!("../../../../artifacts/ptx/dyn_shared.ptx");
static VADD: &[u8] = include_bytes!("../../../../artifacts/tile_rs/rs_vadd_f32.tileirbc");

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

/// A kernel of a module of its own.
fn kernel(context: &Arc<Context>, text: &str, name: &str) -> simtile_core::Function {
    context.load_module_from_ptx_src(text).unwrap().load_function(name).unwrap()
}

/// fr_A7: a closure for a host function that cannot be queued is dropped unrun; one that was queued runs once.
#[test]
fn fr_a7_a_host_closure_runs_at_most_once_and_is_never_leaked() {
    let rig = rig();
    let (dropped, called) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let closure = || {
        let (token, called) = (Counted(dropped.clone()), called.clone());
        move || {
            let _token = &token;
            called.fetch_add(1, Ordering::SeqCst);
        }
    };
    rig.sim.fail(Entry::cuLaunchHostFunc, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(rig.stream.launch_host_function(closure()).is_err());
    assert_eq!((count(&dropped), count(&called)), (1, 0));
    rig.stream.launch_host_function(closure()).unwrap();
    rig.stream.synchronize().unwrap();
    until("the drop", || count(&dropped) == 2);
    assert_eq!(count(&called), 1);
    rig.clean();
}

/// fr_A9: wakers and host functions that take a lock which submitters hold stop nobody: nothing of ours is held when they run.
#[test]
fn fr_a9_wakers_may_take_locks_that_submitters_hold() {
    struct Locks(Arc<simtile_sync::Mutex<u64>>);
    impl std::task::Wake for Locks {
        fn wake(self: Arc<Self>) {
            *self.0.lock() += 1;
        }
    }
    let rig = rig();
    let lock = Arc::<simtile_sync::Mutex<u64>>::default();
    let done = simtile_sync::thread::scope(|scope| {
        let submitter = scope.spawn(|| {
            for n in 0..few(2000, 200) as u32 {
                let held = lock.lock();
                value(n).enqueue_on(&rig.stream).unwrap();
                if n % 50 == 0 {
                    let inner = lock.clone();
                    rig.stream.launch_host_function(move || drop(inner.try_lock())).unwrap();
                }
                drop(held);
            }
        });
        let waiter = scope.spawn(|| {
            let waker = std::task::Waker::from(Arc::new(Locks(lock.clone())));
            let mut cx = std::task::Context::from_waker(&waker);
            for n in 0..200 {
                let mut future = value(n).on(&rig.stream).spin(Duration::ZERO);
                while std::pin::Pin::new(&mut future).poll(&mut cx).is_pending() {
                    simtile_sync::time::sleep(Duration::from_micros(50));
                }
            }
        });
        until("both threads", || submitter.is_finished() && waiter.is_finished());
        submitter.join().is_ok() && waiter.join().is_ok()
    });
    assert!(done);
    rig.clean();
}

/// fr_A10: asking a stream never waits, "not yet" is no error, and it kills no capture of another thread.
#[test]
fn fr_a10_a_stream_can_be_asked() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let other = rig.context.new_stream().unwrap();
    let graph = simtile_sync::thread::scope(|scope| {
        let capture = CudaGraph::scope(&other, |graph| {
            let asked = scope.spawn(|| (0..1000).all(|_| rig.stream.is_complete().is_ok_and(|done| !done)));
            assert!(asked.join().unwrap(), "pending, a thousand times");
            graph.record(zeros::<u32>(4).then(|b| fill(b, 3)))
        });
        capture.unwrap()
    });
    assert!(rig.context.take_errors().is_empty());
    gate.open();
    until("the gate", || rig.stream.is_complete().unwrap());
    graph.launch().sync_on(&other).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&other).unwrap(), [3; 4]);
    rig.clean();
}

/// fr_A11, the part without times: streams that sixteen threads make, use and drop.
#[test]
fn fr_a11_streams_of_many_threads_come_and_go() {
    let rig = rig();
    simtile_sync::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for n in 0..40u32 {
                    let stream = rig.context.new_stream().unwrap();
                    assert_eq!(upload(vec![n; 4]).then(download).sync_on(&stream).unwrap(), [n; 4]);
                }
            });
        }
    });
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().failed_destroys, 0);
    rig.clean();
}

/// fr_A13: a panic in a callback, of a host function or of a library call, unwinds into nobody, is told, and the stream goes on.
#[test]
fn fr_a13_a_panic_in_a_callback_is_told_and_the_stream_goes_on() {
    let rig = rig();
    rig.stream.launch_host_function(|| panic!("in a host function")).unwrap();
    rig.stream.synchronize().unwrap();
    assert_eq!(rig.context.stats().host_function_panics, 1);
    let dropped = Arc::<AtomicUsize>::default();
    let token = Counted(dropped.clone());
    // SAFETY: it queues nothing.
    let call = unsafe {
        external("panics", (), |(), touches| touches, |_| -> Result<(), OpError> { panic!("in a call") })
    };
    let error = call.holding(token).sync_on(&rig.stream).unwrap_err();
    assert!(matches!(&error, OpError::Panicked { message } if message == "in a call"), "{error}");
    assert_eq!(upload(vec![1u8; 3]).then(download).sync_on(&rig.stream).unwrap(), [1; 3]);
    until("the token", || count(&dropped) == 1);
    rig.clean();
}

/// fr_C3: what others wait for is recorded behind the launch, not when a guard is dropped: there is none.
#[test]
fn fr_c3_a_reader_waits_for_the_launch_itself() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0f32; 64]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    // Whatever is looked at before the launch orders nothing.
    let _address = y.cu_deviceptr();
    saxpy(&rig.saxpy, 5.0, &x, &mut y).enqueue_on(&rig.stream).unwrap();
    let read = simtile_sync::thread::scope(|scope| {
        let read = scope.spawn(|| y.to_vec(&other).unwrap());
        simtile_sync::time::sleep(Duration::from_millis(20));
        assert!(!read.is_finished());
        gate.open();
        read.join().unwrap()
    });
    assert_eq!(read, [5.0; 64]);
    rig.clean();
}

/// fr_F10: tasks move between the threads of an executor, on which other contexts are current, and every call is made in its own context,
/// which leaves the thread as it was. Work that is awaited holds no thread: with more of it than threads the others go on.
#[test]
fn fr_f10_tasks_that_move_between_threads_need_nothing_of_them() {
    let sim = simtile_sim::Simulator::builder().devices(2).quiet().build();
    let contexts = [0, 1].map(|ordinal| Context::new(sim.driver(), ordinal).unwrap());
    let kernels = [0, 1].map(|at| kernel(&contexts[at], SAXPY, "saxpy"));
    let streams = [0, 1].map(|at| [(); 4].map(|()| contexts[at].new_stream().unwrap()));
    // What was current on a thread when it began: nothing, the first device, the second.
    let driver = sim.driver();
    let stale = [CUcontext::NULL, contexts[0].cu_ctx(), contexts[1].cu_ctx()];
    let (started, wrong) = (AtomicUsize::new(0), Arc::<AtomicUsize>::default());
    let changed = wrong.clone();
    thread_local! {
        static MINE: std::cell::Cell<CUcontext> = const { std::cell::Cell::new(CUcontext::NULL) };
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .on_thread_start(move || {
            let mine = stale[started.fetch_add(1, Ordering::SeqCst) % 3];
            MINE.set(mine);
            // SAFETY: the contexts live longer than the executor.
            unsafe { call!(driver, cuCtxSetCurrent(mine)) }.unwrap();
        })
        .on_thread_park(move || {
            let mut current = CUcontext::NULL;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuCtxGetCurrent(&mut current)) }.unwrap();
            // A thread that had none may keep ours.
            if !MINE.get().is_null() && current != MINE.get() {
                changed.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    let task = |number: usize| {
        let (kernel, stream) = (kernels[number % 2].clone(), streams[number % 2][number / 2 % 4].clone());
        async move {
            let mut pair =
                simtile_async::zip!(upload(vec![number as f32; 64]), zeros::<f32>(64)).on(&stream).await?;
            for round in 1..=6 {
                tokio::task::yield_now().await;
                pair = saxpy_owned(&kernel, 1.0, pair).on(&stream).await?;
                tokio::task::yield_now().await;
                let found = download(&pair.1).on(&stream).await?;
                assert_eq!(found, [(round * number) as f32; 64]);
                assert_eq!(pair.1.context().ordinal(), number % 2);
            }
            Ok::<_, simtile_async::OpError>(())
        }
    };
    tokio.block_on(async {
        let all: Vec<_> = (0..64).map(|number| tokio::spawn(task(number))).collect();
        for task in all {
            task.await.unwrap().unwrap();
        }
    });
    // Twice as much held work as there are threads.
    let gates: Vec<_> = streams.iter().flatten().map(|on| sim.gate(on.cu_stream()).unwrap()).collect();
    let held: Vec<_> =
        streams.iter().flatten().map(|on| tokio.spawn(value(7).on(on).into_future())).collect();
    let beats = Arc::<AtomicUsize>::default();
    let counter = beats.clone();
    let heart = tokio.spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    until("the heart beats", || count(&beats) >= 50);
    assert!(held.iter().all(|task| !task.is_finished()), "behind its gate");
    drop(gates);
    tokio.block_on(async {
        for task in held {
            assert_eq!(task.await.unwrap().unwrap(), 7);
        }
    });
    heart.abort();
    drop(tokio);
    assert_eq!(count(&wrong), 0, "threads on which another context was left");
    for context in contexts {
        assert!(context.drain(SOON).is_complete());
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// fr_I1: arguments that are too few, too many or of a wrong size are refused before the driver sees them.
#[test]
fn fr_i1_arguments_are_counted_and_measured() {
    let rig = rig();
    let before = rig.sim.counts();
    let refused = |args: LaunchArgs<'_>| {
        // SAFETY: refused.
        let launched = unsafe { rig.stream.launch(&rig.saxpy, LaunchConfig::for_num_elems(1), args) };
        launched.unwrap_err()
    };
    let few = refused(LaunchArgs::new().arg(1u32).arg(1f32).arg(0u64));
    assert!(matches!(few, LaunchError::ArgumentCount { expected: 4, actual: 3, .. }), "{few}");
    let many = refused(LaunchArgs::new().arg(1u32).arg(1f32).arg(0u64).arg(0u64).arg(0u8));
    assert!(matches!(many, LaunchError::ArgumentCount { expected: 4, actual: 5, .. }), "{many}");
    let wide = refused(LaunchArgs::new().arg(1u64).arg(1f32).arg(0u64).arg(0u64));
    assert!(matches!(wide, LaunchError::ArgumentSize { index: 0, expected: 4, actual: 8, .. }), "{wide}");
    assert_eq!(rig.sim.counts().since(&before).total(), 0);
}

/// A kernel that writes its small parameters, one after the other, to the words behind an address.
fn echo(params: &[(&str, u32)]) -> String {
    let mut text =
        String::from(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry echo(.param .u64 out");
    for (at, (ty, _)) in params.iter().enumerate() {
        text += &format!(", .param .{ty} p{at}");
    }
    text += ") {\n.reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n.reg .b16 %h<2>;\n.reg .b64 %w<2>;\nld.param.u64 %rd1, [out];\n";
    for (at, (ty, bytes)) in params.iter().enumerate() {
        let offset = 4 * at;
        text += &match bytes {
            8 => format!("ld.param.{ty} %w1, [p{at}];\ncvt.u32.u64 %r1, %w1;\n"),
            4 => format!("ld.param.{ty} %r1, [p{at}];\n"),
            _ => format!("ld.param.{ty} %h1, [p{at}];\ncvt.u32.u16 %r1, %h1;\n"),
        };
        text += &format!("st.global.u32 [%rd1+{offset}], %r1;\n");
    }
    text + "ret;\n}\n"
}

/// fr_I2: parameters lie where their alignment puts them, without padding at the end; a driver that cannot be asked for them is no
/// obstacle.
#[test]
fn fr_i2_parameters_lie_by_their_alignment() {
    let rig = rig();
    for masked in [false, true] {
        rig.sim.mask(if masked { &[Entry::cuFuncGetParamInfo] } else { &[] });
        let out = DeviceBuffer::<u32>::zeroed(&rig.stream, 4).unwrap();
        let launch = |signature: &[(&str, u32)], add: fn(LaunchArgs<'_>) -> LaunchArgs<'_>| {
            let echo = kernel(&rig.context, &echo(signature), "echo");
            let args = add(LaunchArgs::new().arg(out.cu_deviceptr()));
            // SAFETY: the kernel writes at most four words at the address, which nobody else uses now.
            unsafe { rig.stream.launch(&echo, LaunchConfig::for_num_elems(1), args) }.unwrap();
            out.to_vec(&rig.stream).unwrap()
        };
        assert_eq!(launch(&[("u16", 2)], |args| args.arg(0xabcdu16))[0], 0xabcd);
        let mixed =
            launch(&[("u8", 1), ("u64", 8), ("u8", 1)], |args| args.arg(7u8).arg(1u64 << 31).arg(9u8));
        assert_eq!(mixed[..3], [7, 1 << 31, 9]);
        let three = launch(&[("u16", 2); 3], |args| args.arg(1u16).arg(2u16).arg(3u16));
        assert_eq!(three[..3], [1, 2, 3]);
    }
    rig.clean();
}

/// fr_I3: counts beyond 32 bits give the exact grid or an error, never a grid that covers less.
#[test]
fn fr_i3_counts_are_never_cut_off() {
    for n in [0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 1 << 40, u64::MAX] {
        for threads in [1, 32, 256, 1024] {
            match LaunchConfig::covering(n, threads) {
                Ok(config) => {
                    let covered = config.num_blocks() * config.threads_per_block();
                    assert!(covered >= u128::from(n) && covered < u128::from(n) + u128::from(threads));
                }
                Err(error) => {
                    assert!(n.div_ceil(u64::from(threads)) > i32::MAX as u64, "{n} by {threads}: {error}");
                }
            }
        }
    }
}

/// fr_I4: each axis is compared with its own limit before anything is multiplied, and named.
#[test]
fn fr_i4_axes_are_checked_one_by_one() {
    let rig = rig();
    let refused = |grid_dim, block_dim| {
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
        let args = LaunchArgs::new().arg(0u32).arg(1f32).arg(0u64).arg(0u64);
        // SAFETY: refused.
        let launched = unsafe { rig.stream.launch(&rig.saxpy, config, args) };
        launched.unwrap_err().to_string()
    };
    let one = (1, 1, 1);
    let most = u32::MAX;
    for (grid, block, text) in [
        ((1, 65_536, 1), one, "grid y = 65536 exceeds the device's 65535"),
        ((1, 1, 65_536), one, "grid z = 65536 exceeds the device's 65535"),
        (one, (most, most, most), "the block shape"),
        (one, (1024, 2, 1), "2048 threads a block exceed the device's 1024"),
        (one, (1, 1, 65), "block z = 65 exceeds the device's 64"),
        ((1, 0, 1), one, "grid y is 0"),
        (one, (1, 1, 0), "block z is 0"),
    ] {
        let error = refused(grid, block);
        assert!(error.contains(text), "{error}");
    }
    let limits = rig.context.capabilities().unwrap().launch_limits;
    let whole =
        LaunchConfig { grid_dim: (i32::MAX as u32, 65_535, 65_535), block_dim: one, shared_mem_bytes: 0 };
    limits.check("k", &whole).unwrap();
}

struct Both;
impl KernelLaunchContract for Both {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec =
        LaunchContractSpec::new("cluster_dsm", BlockRequirement::MaxThreads(128), Shared::NONE)
            .with_cluster((2, 1, 1))
            .with_cooperative();
}

struct Room;
impl KernelLaunchContract for Room {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec = LaunchContractSpec::new(
        "dyn_shared",
        BlockRequirement::MaxThreads(1024),
        Shared::Range { min: 0, max: 96 << 10, alignment: 4 },
    );
}

struct Greedy;
impl KernelLaunchContract for Greedy {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec = LaunchContractSpec::new(
        "dyn_shared",
        BlockRequirement::MaxThreads(1024),
        Shared::Range { min: 0, max: (227 << 10) + 1, alignment: 4 },
    );
}

/// fr_I5: a cooperative grid of clusters fits if it has at most the active clusters times their blocks.
#[test]
fn fr_i5_residency_counts_blocks_of_clusters() {
    let rig = rig();
    let dsm = kernel(&rig.context, CLUSTER, "cluster_dsm");
    let config = |blocks| LaunchConfig1D::new(blocks, 128, 0);
    let limit = match PreparedLaunch::<Both>::prepare(&dsm, config(1 << 20)) {
        Err(LaunchError::Contract(E::CooperativeGridTooLarge { blocks, limit, .. })) => {
            assert_eq!(blocks, 1 << 20);
            limit
        }
        other => panic!("{other:?}"),
    };
    let mut options = simtile_core::LaunchOptions::new(config(2).into());
    options.cluster = Some((2, 1, 1));
    assert_eq!(limit, 2 * u64::from(dsm.max_active_clusters(options).unwrap()));
    let limit = limit as u32;
    PreparedLaunch::<Both>::prepare(&dsm, config(limit)).unwrap();
    assert!(PreparedLaunch::<Both>::prepare(&dsm, config(limit + 2)).is_err());
    let odd = PreparedLaunch::<Both>::prepare(&dsm, config(3)).unwrap_err();
    assert!(odd.to_string().contains("not a multiple of cluster x = 2"), "{odd}");
}

/// fr_I7: preparing opts in to large shared memory, once; what the device does not have is refused with both numbers.
#[test]
fn fr_i7_large_shared_memory_is_opted_in_once() {
    let rig = rig();
    let function = kernel(&rig.context, DYN_SHARED, "dyn_shared");
    let calls = || rig.sim.counts().of(Entry::cuFuncSetAttribute);
    let before = calls();
    for _ in 0..3 {
        PreparedLaunch::<Room>::prepare(&function, LaunchConfig1D::new(1, 32, 96 << 10)).unwrap();
    }
    assert_eq!(calls() - before, 1);
    let error = PreparedLaunch::<Greedy>::prepare(&function, LaunchConfig1D::new(1, 32, 0)).unwrap_err();
    let (total, limit) = ((227 << 10) + 1, 227 << 10);
    assert!(error.to_string().contains(&format!("{total} bytes")), "{error}");
    assert!(error.to_string().contains(&format!("{limit} ")), "{error}");
    assert_eq!(calls() - before, 1);
}

/// fr_I8: a launch of nothing is none: it succeeds, its future is ready, order is kept. An explicit 0 is an error.
#[test]
fn fr_i8_a_launch_of_nothing_is_none() {
    let rig = rig();
    let nothing = |config| {
        let builder = AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(0u32).arg(1f32).arg(0u64).arg(0u64);
        // SAFETY: it launches nothing, or is refused.
        unsafe { builder.finalize_unchecked(config) }.unwrap()
    };
    let before = rig.sim.counts();
    let launch = nothing(LaunchConfig::for_num_elems(0));
    block_on(launch.on(&rig.stream)).unwrap();
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuLaunchKernel), 0);
    let zero = LaunchConfig { grid_dim: (0, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    let error = nothing(zero).sync_on(&rig.stream).unwrap_err();
    assert!(error.to_string().contains("grid x is 0"), "{error}");
}

/// fr_I9: arguments are kept by value until the launch, whatever they were made from; a literal of a wrong width is refused.
#[test]
fn fr_i9_arguments_are_kept_by_value() {
    fn churn(depth: u32) -> u64 {
        let noise = [u64::from(depth) ^ 0xdead_beef; 32];
        if depth == 0 {
            noise.iter().sum()
        } else {
            noise[depth as usize % 32].wrapping_add(churn(depth - 1))
        }
    }
    let rig = rig();
    let mut out = DeviceBuffer::<u32>::zeroed(&rig.stream, 4).unwrap();
    let echo = kernel(&rig.context, &echo(&[("u32", 4), ("u32", 4), ("u64", 8), ("u16", 2)]), "echo");
    let moved = String::from("seven");
    let builder = AsyncKernelLaunchBuilder::new(&echo)
        .write(&mut out)
        .arg(1u32)
        .arg(moved.len() as u32 + 1)
        .arg(u64::from(u32::MAX))
        .arg([40u16, 41][1]);
    drop(moved);
    assert!(std::hint::black_box(churn(100)) > 0);
    // SAFETY: the kernel writes the four words of its buffer.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(1)) }
        .unwrap()
        .sync_on(&rig.stream)
        .unwrap();
    assert_eq!(out.to_vec(&rig.stream).unwrap(), [1, 6, u32::MAX, 41]);
    let narrow =
        AsyncKernelLaunchBuilder::new(&echo).arg(out.cu_deviceptr()).arg(1u32).arg(2u32).arg(3i32).arg(4u16);
    // SAFETY: refused.
    let launch = unsafe { narrow.finalize_unchecked(LaunchConfig::for_num_elems(1)) }.unwrap();
    let error = launch.sync_on(&rig.stream).unwrap_err();
    let width = matches!(
        error.core(),
        Some(Error::Launch(LaunchError::ArgumentSize { index: 3, expected: 8, actual: 4, .. }))
    );
    assert!(width, "{error}");
    rig.clean();
}

/// fr_I10: as many arguments as the kernel has.
#[test]
fn fr_i10_sixty_four_arguments() {
    let rig = rig();
    let echo = kernel(&rig.context, &echo(&[("u32", 4); 64]), "echo");
    let out = DeviceBuffer::<u32>::zeroed(&rig.stream, 64).unwrap();
    let mut args = LaunchArgs::new().arg(out.cu_deviceptr());
    for n in 0..64u32 {
        args.push(n * n);
    }
    // SAFETY: the kernel writes 64 words at the address, which nobody else uses now.
    unsafe { rig.stream.launch(&echo, LaunchConfig::for_num_elems(1), args) }.unwrap();
    let squares: Vec<u32> = (0..64).map(|n| n * n).collect();
    assert_eq!(out.to_vec(&rig.stream).unwrap(), squares);
    rig.clean();
}

/// fr_J2: a graph keeps what its nodes need, values of others too, until the last replay has ended, also after it was dropped.
#[test]
fn fr_j2_a_graph_keeps_what_its_nodes_need() {
    let rig = rig();
    let dropped = Arc::<AtomicUsize>::default();
    let graph = {
        let pair = (
            DeviceBuffer::from_slice(&rig.stream, &[1f32; 8]).unwrap(),
            DeviceBuffer::from_slice(&rig.stream, &[0f32; 8]).unwrap(),
        );
        let saxpy = kernel(&rig.context, SAXPY, "saxpy");
        // SAFETY: it queues nothing.
        let holds = unsafe { external("holds", (), |(), touches| touches, |_| Ok::<(), OpError>(())) };
        let holds = holds.holding(Counted(dropped.clone()));
        holds.then(move |()| saxpy_owned(&saxpy, 2.0, pair)).map(drop).graph_on(&rig.stream).unwrap()
    };
    for _ in 0..2 {
        graph.launch().sync_on(&rig.stream).unwrap();
    }
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    drop(graph);
    simtile_sync::time::sleep(Duration::from_millis(20));
    assert_eq!(count(&dropped), 0, "the last replay is under way");
    gate.open();
    assert!(rig.context.drain(SOON).is_complete() && drain_background(SOON));
    until("the held value", || count(&dropped) == 1);
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_J4: an input that is written while a replay is under way is written after it.
#[test]
fn fr_j4_inputs_are_not_written_under_a_replay() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut x = DeviceBuffer::from_slice(&rig.stream, &[1f32; 16]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0f32; 16]).unwrap();
    let graph = saxpy(&rig.saxpy, 1.0, &x, &mut y).graph_on(&rig.stream).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    x.fill(&other, 100.0).unwrap();
    assert!(!other.is_complete().unwrap(), "the fill follows the replay");
    gate.open();
    assert_eq!(y.to_vec(&other).unwrap(), [1.0; 16]);
    assert_eq!(x.to_vec(&other).unwrap(), [100.0; 16]);
    rig.clean();
}

/// fr_J9: a module that is dropped during a capture, and one that is loaded, break nothing.
#[test]
fn fr_j9_modules_come_and_go_during_a_capture() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(DYN_SHARED).unwrap();
    let graph = CudaGraph::scope(&rig.stream, |graph| {
        let buffer = graph.record(zeros::<u32>(4))?;
        drop(module);
        let loaded = graph.outside(load_module(SAXPY.as_bytes()).then(|m| load_function(m, "saxpy")))?;
        assert_eq!(loaded.name(), "saxpy");
        drop(loaded);
        graph.record(fill(buffer, 6))
    })
    .unwrap();
    graph.launch().sync_on(&rig.stream).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [6; 4]);
    assert!(rig.context.drain(SOON).is_complete() && drain_background(SOON));
    assert_eq!(rig.context.stats().retained_modules, 0);
    rig.clean();
}

/// fr_J10, fr_J12: memory whose last use is in a capture and that is dropped meanwhile is not asked for through the capture, is given to
/// nobody, and leaves no error behind.
#[test]
fn fr_j10_j12_memory_dropped_during_a_capture() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let outside = DeviceBuffer::from_slice(&rig.stream, &[4u32; 100]).unwrap();
    rig.stream.synchronize().unwrap();
    let address = outside.cu_deviceptr();
    let graph = CudaGraph::scope(&rig.stream, |graph| {
        let made = graph.record(zeros::<u32>(100))?;
        let (_, made) = graph.record(copy(outside, made).map(|made| (1u32, made)))?;
        for _ in 0..10 {
            let next = upload(vec![9u32; 100]).sync_on(&other)?;
            assert_ne!(next.cu_deviceptr(), address, "the graph reads it with every replay");
        }
        Ok(made)
    })
    .unwrap();
    assert!(rig.context.take_errors().is_empty());
    graph.launch().sync_on(&other).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&other).unwrap(), [4; 100]);
    drop(graph);
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_J13: frees and questions of another thread, exactly while the driver begins or ends a capture.
#[test]
fn fr_j13_frees_at_the_edges_of_a_capture() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    for entry in [Entry::cuStreamBeginCapture, Entry::cuStreamEndCapture] {
        let buffers: Vec<_> = (0..8).map(|_| DeviceBuffer::<u32>::zeroed(&other, 64).unwrap()).collect();
        let pause = rig.sim.pause_at(entry, 1);
        let graph = simtile_sync::thread::scope(|scope| {
            let capture = scope.spawn(|| zeros::<u32>(4).then(|b| fill(b, 2)).graph_on(&rig.stream).unwrap());
            assert!(pause.wait_reached(SOON), "{entry:?}");
            drop(buffers);
            assert!(other.is_complete().is_ok());
            assert_eq!(upload(vec![5u8; 7]).then(download).sync_on(&other).unwrap(), [5; 7]);
            pause.release();
            capture.join().unwrap()
        });
        graph.launch().sync_on(&rig.stream).unwrap();
        assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [2; 4]);
    }
    rig.sim.fail(Entry::cuStreamBeginCapture, 1, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(value(1).graph_on(&rig.stream).is_err());
    // An end that fails is tried again; if it fails again, too, that is told. Neither leaves the stream capturing.
    rig.sim.fail(Entry::cuStreamEndCapture, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let _ = value(1).graph_on(&rig.stream);
    assert_eq!(upload(vec![6u8; 7]).then(download).sync_on(&rig.stream).unwrap(), [6; 7]);
    let fresh = rig.context.new_stream().unwrap();
    assert_eq!(upload(vec![5u8; 7]).then(download).sync_on(&fresh).unwrap(), [5; 7]);
    rig.clean();
}

/// fr_J16: default streams are refused with advice; side streams of a capture are ordered as they are eagerly.
#[test]
fn fr_j16_default_streams_are_not_captured() {
    let rig = rig();
    for stream in [rig.context.legacy_default_stream(), rig.context.per_thread_default_stream()] {
        let error = value(1).graph_on(&stream).unwrap_err();
        assert!(error.to_string().contains("use a stream of your own"), "{error}");
    }
    let sides: Vec<Arc<Stream>> = (0..2).map(|_| rig.context.new_stream().unwrap()).collect();
    let graph = CudaGraph::scope(&rig.stream, |graph| {
        let buffer = graph.record(zeros::<u32>(8))?;
        for side in &sides {
            graph.fork(side)?;
        }
        let buffer = graph.record_on(&sides[0], fill(buffer, 1))?;
        let buffer = graph.record_on(&sides[1], fill(buffer, 2))?;
        graph.record(fill(buffer, 3))
    })
    .unwrap();
    graph.launch().sync_on(&sides[0]).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [3; 8]);
    rig.clean();
}

/// fr_L1: code is loaded, and the stack raised, before the first launch, which is then one call like any other.
#[test]
fn fr_l1_a_first_launch_loads_nothing() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[1f32; 8]).unwrap();
    let load = load_module(SAXPY.as_bytes()).then(|module| load_function(module, "saxpy"));
    let fresh = load.sync_on(&rig.stream).unwrap();
    let before = rig.sim.counts();
    saxpy(&fresh, 1.0, &x, &mut y).enqueue_on(&rig.stream).unwrap();
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuLaunchKernel), calls.total()), (1, 1), "{calls:?}");
}

/// fr_L6: tasks and threads that want the same code at once load it once, and one that waits for nothing finds it then.
#[test]
fn fr_l6_code_is_loaded_once() {
    let rig = rig();
    let cache = Arc::new(ModuleCache::new());
    let before = rig.sim.counts();
    let load = || load_module(SAXPY.as_bytes()).cached_in(&cache);
    simtile_sync::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| drop(block_on(load().on(&rig.stream)).unwrap()));
            scope.spawn(|| drop(load().sync_on(&rig.stream).unwrap()));
        }
    });
    load().try_enqueue_on(&rig.stream).unwrap();
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuModuleLoadDataEx), 1);
    assert_eq!(cache.len(), 1);
    // An error is not kept.
    let broken = || load_module(b"no image".as_slice()).cached_in(&cache).sync_on(&rig.stream);
    assert!(matches!(broken(), Err(OpError::Core(_))));
    assert!(broken().is_err());
    assert_eq!(cache.len(), 1);
}

/// fr_M1: a launch is one call, with however many arguments. Allocations and locks: `cost` of the core and of the conformance suite.
#[test]
fn fr_m1_a_launch_is_one_call() {
    let rig = rig();
    let out = DeviceBuffer::<u32>::zeroed(&rig.stream, 64).unwrap();
    // Unloading a module asks where the streams stand, in the background.
    let mut kept = Vec::new();
    for n in [0usize, 4, 16] {
        let echo = kernel(&rig.context, &echo(&vec![("u32", 4); n]), "echo");
        kept.push(echo.clone());
        let mut args = LaunchArgs::new().arg(out.cu_deviceptr());
        for n in 0..n as u32 {
            args.push(n);
        }
        let before = rig.sim.counts();
        // SAFETY: the kernel writes `n` words at the address, which nobody else uses now.
        unsafe { rig.stream.launch(&echo, LaunchConfig::for_num_elems(1), &args) }.unwrap();
        assert_eq!(rig.sim.counts().since(&before).total(), 1, "{n} arguments");
    }
    rig.stream.synchronize().unwrap();
}

/// fr_M2: two hundred launches of both kernel models in one graph are replayed by one call, with the same results.
#[test]
fn fr_m2_two_hundred_launches_are_replayed_by_one_call() {
    let rig = rig();
    let module = rig.context.load_module(VADD).unwrap();
    let vadd = module.load_function("rs_vadd_f32").unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1f32; 128]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0f32; 128]).unwrap();
    let graph = CudaGraph::scope(&rig.stream, |graph| {
        for _ in 0..100 {
            graph.record(saxpy(&rig.saxpy, 1.0, &x, &mut y))?;
            let address = y.cu_deviceptr();
            let builder = AsyncKernelLaunchBuilder::new(&vadd);
            let builder = builder.read(&x).arg(128i32).arg(1i32).arg(address).arg(128i32).arg(1i32);
            let builder = builder.write(&mut y).arg(128i32).arg(1i32);
            // SAFETY: the kernel adds 128 floats of `x` to those of `y`, which is named as written.
            graph.record(unsafe { builder.finalize_unchecked(LaunchConfig::tiles(1, 1, 1)) }?)?;
        }
        Ok(())
    })
    .unwrap();
    let before = rig.sim.counts();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    assert_eq!(rig.sim.counts().since(&before).total(), 1);
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [200.0; 128]);
    rig.clean();
}

/// fr_M3: nothing waits but whoever reads values back.
#[test]
fn fr_m3_copies_and_launches_wait_for_nothing() {
    let rig = rig();
    let stream = &rig.stream;
    let mut a = DeviceBuffer::<f32>::zeroed(stream, 64).unwrap();
    let mut b = DeviceBuffer::<f32>::zeroed(stream, 64).unwrap();
    let pinned = PinnedHostBuffer::from_slice(&rig.context, &[2f32; 64]).unwrap();
    let values = vec![3f32; 64];
    a.copy_from_slice(stream, &values).unwrap();
    let gate = rig.sim.gate(stream.cu_stream()).unwrap();
    let before = rig.sim.counts();
    stream.submit().copy_pinned(&pinned, &mut a).unwrap();
    b.copy_from(stream, &a).unwrap();
    b.fill(stream, 1.0).unwrap();
    b.zero(stream).unwrap();
    saxpy(&rig.saxpy, 1.0, &a, &mut b).enqueue_on(stream).unwrap();
    // A borrowed slice is copied at once, into staging.
    a.copy_from_slice(stream, &values).unwrap();
    drop(values);
    let calls = rig.sim.counts().since(&before);
    for entry in
        [Entry::cuStreamSynchronize, Entry::cuCtxSynchronize, Entry::cuEventSynchronize, Entry::cuStreamQuery]
    {
        assert_eq!(calls.of(entry), 0, "{entry:?}");
    }
    gate.open();
    assert_eq!((a.to_vec(stream).unwrap(), b.to_vec(stream).unwrap()), (vec![3.0; 64], vec![2.0; 64]));
    rig.clean();
}

/// A foreign capture in global mode, for whoever wants to disturb it.
#[test]
fn fr_a10_asking_disturbs_no_foreign_capture() {
    let rig = rig();
    let driver = rig.sim.driver();
    let mut raw = CUstream::NULL;
    let mut graph = CUgraph::NULL;
    // SAFETY: a context is current on this thread (the rig's); the out-pointers are valid.
    unsafe {
        call!(driver, cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)).unwrap();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        call!(driver, cuStreamBeginCapture(raw, mode)).unwrap();
    }
    let done = rig.stream.submit().awaited().order_only().unwrap();
    for _ in 0..100 {
        assert!(done.is_complete().is_ok());
    }
    // SAFETY: the stream is ours; the out-pointer is valid.
    unsafe {
        call!(driver, cuStreamEndCapture(raw, &mut graph)).unwrap();
        call!(driver, cuGraphDestroy(graph)).unwrap();
        call!(driver, cuStreamDestroy(raw)).unwrap();
    }
}

crate::schedules::explored!(
    fr_a7_a_host_closure_runs_at_most_once_and_is_never_leaked
    fr_a9_wakers_may_take_locks_that_submitters_hold
    fr_a10_a_stream_can_be_asked
    fr_a11_streams_of_many_threads_come_and_go
    fr_a13_a_panic_in_a_callback_is_told_and_the_stream_goes_on
    fr_c3_a_reader_waits_for_the_launch_itself
    fr_i1_arguments_are_counted_and_measured
    fr_i2_parameters_lie_by_their_alignment
    fr_i3_counts_are_never_cut_off
    fr_i4_axes_are_checked_one_by_one
    fr_i5_residency_counts_blocks_of_clusters
    fr_i7_large_shared_memory_is_opted_in_once
    fr_i8_a_launch_of_nothing_is_none
    fr_i9_arguments_are_kept_by_value
    fr_i10_sixty_four_arguments
    fr_j2_a_graph_keeps_what_its_nodes_need
    fr_j4_inputs_are_not_written_under_a_replay
    fr_j9_modules_come_and_go_during_a_capture
    fr_j10_j12_memory_dropped_during_a_capture
    fr_j13_frees_at_the_edges_of_a_capture
    fr_j16_default_streams_are_not_captured
    fr_l1_a_first_launch_loads_nothing
    fr_l6_code_is_loaded_once
    fr_m1_a_launch_is_one_call
    fr_m2_two_hundred_launches_are_replayed_by_one_call
    fr_m3_copies_and_launches_wait_for_nothing
    fr_a10_asking_disturbs_no_foreign_capture
);
