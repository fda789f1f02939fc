//! Boxes of device memory: the buffers that they are, and back, without a copy.

mod common;

use common::start;
use simtile_core::{
    AtomicScope, DeviceBox, DeviceBuffer, DevicePointer, LaunchArgs, MemoryError, Stream, drain_background,
};
use simtile_driver::{Driver, Entry, call};
use simtile_types::{DeviceAtomicU32, LaunchConfig};
use std::sync::Arc;
use std::time::Duration;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const SOON: Duration = Duration::from_secs(10);

#[test]
fn boxes_and_buffers_become_each_other_without_a_copy() {
    let (sim, context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3]).unwrap();
    let (address, id) = (buffer.cu_deviceptr(), buffer.allocation_id());
    let before = sim.counts();
    let mut boxed: DeviceBox<[u32]> = buffer.into();
    assert_eq!((boxed.cu_deviceptr(), boxed.allocation_id(), boxed.len()), (address, id, 3));
    assert_eq!((boxed.device_id(), boxed.num_bytes(), boxed.is_empty()), (0, 12, false));
    assert_eq!(boxed.device_pointer().cu_deviceptr(), address);
    assert!(boxed.is_unique() && !boxed.shared_access_writes());
    let refused = boxed.into_value().unwrap_err();
    assert!(matches!(refused.error, MemoryError::LengthMismatch { expected: 1, actual: 3, .. }));
    let boxed = refused.handle;
    let lease = boxed.lease();
    let refused = boxed.into_raw().unwrap_err();
    assert!(matches!(refused.error, MemoryError::NotUnique { handles: 2, .. }), "{}", refused.error);
    drop(lease);
    let raw = refused.handle.into_raw().unwrap();
    let buffer = raw.into_typed::<u32>().unwrap();
    let refused = DeviceBox::<u32>::try_from(buffer).unwrap_err();
    let buffer: DeviceBuffer<u32> = DeviceBox::<[u32]>::from_buffer(refused.handle).into_buffer();
    assert_eq!((buffer.cu_deviceptr(), buffer.allocation_id()), (address, id));
    assert_eq!(sim.counts().since(&before).total(), 0, "no copy, no call");
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1, 2, 3]);
    drop(buffer);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(context.stats().live_allocations, 0);
}

#[test]
fn a_box_of_one_value() {
    let (_sim, _context, stream) = start();
    let mut boxed = DeviceBox::new(&stream, (1u32, 2.5f32)).unwrap().with_label("pair");
    assert_eq!(boxed.get(&stream).unwrap(), (1, 2.5));
    boxed.set(&stream, (7, 0.5)).unwrap();
    assert_eq!(boxed.get(&stream).unwrap(), (7, 0.5));
    let slice = boxed.into_slice();
    assert_eq!(slice.to_vec(&stream).unwrap(), [(7, 0.5)]);
    assert_eq!(slice.into_value().unwrap().get(&stream).unwrap(), (7, 0.5));
    let empty = DeviceBox::<[u64]>::from_slice(&stream, &[]).unwrap();
    assert!(empty.is_empty() && empty.device_pointer().is_null());
    assert_eq!(size_of::<DevicePointer<[u8; 100]>>(), 8);
}

/// Launches that read one box on two streams do not wait for each other; a write follows both.
#[test]
fn shared_boxes_are_read() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let saxpy = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let mut x = DeviceBox::from_slice(&stream, &[1f32; 64]).unwrap();
    let mut a = DeviceBox::from_slice(&stream, &[1f32; 64]).unwrap();
    let mut b = DeviceBox::<[f32]>::from(DeviceBuffer::zeroed(&other, 64).unwrap());
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
    let waits = || sim.counts().of(Entry::cuStreamWaitEvent);
    let before = waits();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let config = LaunchConfig::for_num_elems(64);
    let launch = |stream: &Arc<Stream>, x: &DeviceBox<[f32]>, y: &mut DeviceBox<[f32]>| {
        let args = LaunchArgs::new().arg(64u32).arg(2f32).arg(x).arg(y);
        // SAFETY: the kernel reads 64 floats of the first and updates as many of the second.
        unsafe { stream.launch(&saxpy, config, args) }.unwrap();
    };
    launch(&stream, &x, &mut a);
    launch(&other, &x, &mut b);
    assert_eq!(b.to_vec(&other).unwrap(), [2.0; 64], "not behind the gate");
    assert_eq!(waits(), before);
    x.as_buffer_mut().fill(&other, 5.0).unwrap();
    assert_eq!(waits(), before + 1, "a write follows the reader");
    gate.open();
    assert_eq!(a.to_vec(&stream).unwrap(), [3.0; 64]);
    let counters: DeviceBox<[DeviceAtomicU32]> = DeviceBuffer::zeroed(&stream, 4).unwrap().into();
    assert!(counters.shared_access_writes());
    stream.submit().accumulate(&counters, AtomicScope::Device).order_only().unwrap();
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn memory_of_others_is_taken_over_and_freed_once() {
    let (sim, context, stream) = start();
    let allocate = |driver: Driver, bytes: usize| {
        let mut address = 0;
        // SAFETY: the out-pointer is valid for the call; the stream is alive.
        unsafe { call!(driver, cuMemAllocAsync(&mut address, bytes, stream.cu_stream())) }.unwrap();
        // SAFETY: the memory was allocated on this stream.
        unsafe { call!(driver, cuMemsetD32Async(address, 9, bytes / 4, stream.cu_stream())) }.unwrap();
        address
    };
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let address = allocate(sim.driver(), 256);
    // SAFETY: the allocation is ours alone; what was done with it was queued on the stream.
    let taken = unsafe { DeviceBox::<[u32]>::from_raw_parts(address, 64, &stream) }.unwrap();
    assert_eq!((taken.cu_deviceptr(), context.stats().live_allocations), (address, 1));
    // SAFETY: refused.
    let twice = unsafe { DeviceBox::<[u32]>::from_raw_parts(address, 64, &stream) }.unwrap_err();
    assert!(twice.to_string().contains("live allocation"), "{twice}");
    // SAFETY: refused.
    let odd = unsafe { DeviceBox::<[u32]>::from_raw_parts(address + 2, 4, &stream) }.unwrap_err();
    assert!(odd.to_string().contains("not a multiple of 4"), "{odd}");
    let other = context.new_stream().unwrap();
    let copied = std::thread::scope(|scope| {
        let copied = scope.spawn(|| taken.to_vec(&other).unwrap());
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
        copied.join().unwrap()
    });
    assert_eq!(copied, [9; 64], "behind what was queued before");
    let before = sim.counts();
    drop(taken);
    assert!(context.drain(SOON).is_complete() && drain_background(SOON));
    assert_eq!(sim.counts().since(&before).of(Entry::cuMemFreeAsync), 1);
    assert_eq!(context.stats().live_allocations, 0);
    // SAFETY: there is nothing.
    let empty = unsafe { DeviceBox::<[u32]>::from_raw_parts(0, 0, &stream) }.unwrap();
    assert!(empty.is_empty());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
