//! M6: managed memory, with guards and the platform's rules.

mod common;

use common::*;
use simtile_core::{
    Advice, DeviceBuffer, LaunchArgs, ManagedBuffer, MemoryError, PinnedHostBuffer, Residence, StreamError,
};
use simtile_driver::Entry;
use simtile_sim::{Checks, Lacks, Simulator};
use simtile_types::LaunchConfig;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn managed_memory_is_used_from_both_sides_through_guards() {
    let sim = Simulator::builder().checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let module = context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    let x = ManagedBuffer::from_slice(&context, &[2.0f32; 64]).unwrap();
    let mut y = ManagedBuffer::<f32>::zeroed(&context, 64).unwrap();
    y.write().unwrap().fill(1.0);
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let args = LaunchArgs::new().arg(64u32).arg(3.0f32).view(&x).view_mut(&mut y);
    // SAFETY: both have 64 elements.
    unsafe { stream.launch(&kernel, LaunchConfig::for_num_elems(64), args) }.unwrap();
    // What the kernel reads may be read, what it writes has to be waited for.
    assert_eq!(x.read().unwrap()[..2], [2.0; 2]);
    assert!(matches!(y.try_read(), Err(MemoryError::Stream(StreamError::Conflict { .. }))));
    assert!(y.try_write().is_err());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| y.read().unwrap().to_vec());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [7.0; 64]);
    });
    // While a guard lives, work that conflicts is refused.
    let guard = x.read().unwrap();
    let mut copy = DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap();
    copy.view_mut().copy_from(&stream, x.view()).unwrap();
    assert_eq!(copy.to_vec(&stream).unwrap(), [2.0; 64]);
    drop(guard);
    let address = y.cu_deviceptr();
    let guard = y.write().unwrap();
    assert_eq!(guard.as_ptr().addr() as u64, address);
    std::mem::forget(guard);
    let error = y.view_mut().zero(&stream).unwrap_err();
    assert!(matches!(error, MemoryError::Stream(StreamError::Conflict { host: true, .. })), "{error:?}");
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn prefetches_are_ordered_and_advice_is_taken() {
    let (sim, context, stream) = start();
    let mut buffer = ManagedBuffer::from_slice(&context, &[1u32; 1000]).unwrap();
    buffer.set_label("weights");
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.view_mut().fill(&stream, 5).unwrap();
    let other = context.new_stream().unwrap();
    let moved = buffer.prefetch(&other, Residence::Device(context.device())).unwrap();
    let back = buffer.prefetch(&other, Residence::Host).unwrap();
    assert!(!moved.is_complete().unwrap());
    gate.open();
    back.wait().unwrap();
    assert_eq!(buffer.read().unwrap()[..3], [5; 3]);
    for advice in [
        Advice::ReadMostly(true),
        Advice::ReadMostly(false),
        Advice::PreferredLocation(Some(Residence::Host)),
        Advice::PreferredLocation(None),
        Advice::AccessedBy(Residence::Device(context.device()), true),
        Advice::AccessedBy(Residence::Device(context.device()), false),
    ] {
        buffer.advise(advice).unwrap();
    }
    assert_eq!(sim.counts().of(Entry::cuMemAdvise), 6);
    assert!(format!("{buffer:?}").contains("weights"));
    let nothing = ManagedBuffer::<u32>::zeroed(&context, 0).unwrap();
    nothing.prefetch(&stream, Residence::Host).unwrap().wait().unwrap();
    nothing.advise(Advice::ReadMostly(true)).unwrap();
    assert!(nothing.read().unwrap().is_empty() && nothing.is_empty());
    assert!(matches!(
        ManagedBuffer::<u64>::zeroed(&context, usize::MAX / 2),
        Err(MemoryError::SizeOverflow { .. })
    ));
}

#[test]
fn blocks_are_kept_for_reuse_and_freed_by_trim() {
    let (sim, context, stream) = start();
    for i in 0..10u32 {
        let mut buffer = ManagedBuffer::from_slice(&context, &[i; 100]).unwrap();
        buffer.view_mut().fill(&stream, i + 1).unwrap();
        assert_eq!(buffer.read().unwrap()[..], [i + 1; 100]);
    }
    assert_eq!(sim.counts().of(Entry::cuMemAllocManaged), 1);
    // Not before its last use.
    let mut buffer = ManagedBuffer::<u32>::zeroed(&context, 100).unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.view_mut().fill(&stream, 1).unwrap();
    drop(buffer);
    let other = ManagedBuffer::<u32>::zeroed(&context, 100).unwrap();
    assert_eq!(sim.counts().of(Entry::cuMemAllocManaged), 2);
    gate.open();
    stream.synchronize().unwrap();
    assert!(context.drain(SOON).is_complete());
    drop(other);
    assert_eq!(sim.counts().of(Entry::cuMemFree), 0, "a free would stop every launch of the context");
    context.trim().unwrap();
    assert_eq!(context.stats().managed_bytes, 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn fr_e9_without_concurrent_access_a_guard_has_the_device_to_itself() {
    let sim = Simulator::builder().without(Lacks::by_names("concurrent").unwrap()).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let buffer = ManagedBuffer::from_slice(&context, &[1u32; 10]).unwrap();
    let mut other = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap();
    stream.synchronize().unwrap();
    // Work on other memory has to end first.
    let gate = sim.gate(stream.cu_stream()).unwrap();
    other.fill(&stream, 1).unwrap();
    assert!(buffer.try_read().is_err());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| buffer.read().unwrap().to_vec());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [1; 10]);
    });
    // And none begins while the guard lives.
    let guard = buffer.read().unwrap();
    let error = other.fill(&stream, 2).unwrap_err();
    assert!(matches!(error, MemoryError::HostHolds { .. }), "{error:?}");
    drop(guard);
    other.fill(&stream, 2).unwrap();
    assert_eq!(other.to_vec(&stream).unwrap(), [2; 10]);
    // Where both sides may, neither happens.
    let (free, context, stream) = start();
    let buffer = ManagedBuffer::from_slice(&context, &[1u32; 10]).unwrap();
    let mut other = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap();
    let guard = buffer.read().unwrap();
    other.fill(&stream, 2).unwrap();
    drop(guard);
    assert_eq!(free.counts().of(Entry::cuCtxSynchronize), 0);
}

#[test]
fn pinned_memory_of_nothing_and_of_wide_values() {
    let (sim, context, stream) = start();
    let before = sim.counts().total();
    let empty = PinnedHostBuffer::<u32>::from_slice(&context, &[]).unwrap();
    let values = PinnedHostBuffer::<()>::zeroed(&context, 1000).unwrap();
    assert_eq!((empty.len(), values.len()), (0, 1000));
    assert!(empty.read().unwrap().is_empty());
    assert_eq!(values.read().unwrap().len(), 1000);
    assert_eq!(sim.counts().total(), before, "nothing needs no memory");
    for (count, refused) in [(isize::MAX as usize + 1, true), (usize::MAX, true)] {
        let made = PinnedHostBuffer::<u8>::zeroed(&context, count);
        assert_eq!(matches!(made, Err(MemoryError::SizeOverflow { .. })), refused);
    }
    #[derive(Clone, Copy, PartialEq, Debug)]
    #[repr(C, align(64))]
    struct Wide([u32; 16]);
    // SAFETY: integers without padding; every pattern is a value.
    unsafe impl simtile_types::DeviceCopy for Wide {
        const NO_PADDING: bool = true;
    }
    let source: Vec<Wide> = (0..33).map(|i| Wide([i; 16])).collect();
    let pinned = PinnedHostBuffer::from_slice(&context, &source).unwrap();
    let guard = pinned.read().unwrap();
    assert!(guard.as_ptr().is_aligned());
    assert_eq!(guard[..], source[..]);
    drop(guard);
    // One device buffer, filled three times from it; dropped with the last copy in flight.
    let mut device = DeviceBuffer::<Wide>::zeroed(&stream, 33).unwrap();
    for _ in 0..2 {
        pinned.copy_to(&stream, &mut device).unwrap();
    }
    assert_eq!(device.to_vec(&stream).unwrap(), source);
    let gate = sim.gate(stream.cu_stream()).unwrap();
    pinned.copy_to(&stream, &mut device).unwrap();
    drop(pinned);
    // The block is not handed out before the copy has read it.
    let mut next = PinnedHostBuffer::<Wide>::zeroed(&context, 33).unwrap();
    next.write().unwrap().fill(Wide([77; 16]));
    gate.open();
    assert_eq!(device.to_vec(&stream).unwrap(), source);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
