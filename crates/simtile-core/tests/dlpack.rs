//! M5: tensors of other libraries in and out, by DLPack.

mod common;

use common::context;
use simtile_core::dlpack::abi::*;
use simtile_core::dlpack::{self, to_dl};
use simtile_core::{Context, DeviceBuffer, MemoryError, Stream, StreamError};
use simtile_driver::call;
use simtile_sim::{Checks, Simulator};
use simtile_types::DTypeId;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn checked() -> (Simulator, Arc<Context>, Arc<Stream>) {
    let sim = Simulator::builder().devices(2).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    (sim, context, stream)
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a foreign library keeps for a tensor.
struct Producer {
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: `produce` made both boxes.
    unsafe {
        let producer = Box::from_raw((*tensor).manager_ctx.cast::<Producer>());
        drop(Box::from_raw(tensor));
        producer.deleted.fetch_add(1, Ordering::SeqCst);
    }
}

fn produce(
    address: u64,
    device: DLDevice,
    shape: &[i64],
    strides: &[i64],
    deleted: &Arc<AtomicUsize>,
) -> *mut DLManagedTensorVersioned {
    let mut producer =
        Box::new(Producer { shape: shape.to_vec(), strides: strides.to_vec(), deleted: deleted.clone() });
    let (shape_at, strides_at) = (producer.shape.as_mut_ptr(), producer.strides.as_mut_ptr());
    Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: Box::into_raw(producer).cast::<c_void>(),
        deleter: Some(delete),
        flags: DLPACK_FLAG_BITMASK_READ_ONLY,
        dl_tensor: DLTensor {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            device,
            ndim: shape.len() as i32,
            dtype: to_dl(DTypeId::F32).unwrap(),
            shape: shape_at,
            strides: if strides.is_empty() { std::ptr::null_mut() } else { strides_at },
            byte_offset: 0,
        },
    }))
}

const HERE: DLDevice = DLDevice { device_type: DLDeviceType::kDLCUDA, device_id: 0 };

fn foreign_memory(context: &Arc<Context>, bytes: usize) -> u64 {
    let driver = context.driver();
    common::set_current(driver, context.cu_ctx());
    let mut address = 0;
    // SAFETY: the out-pointer is valid for the call; the tests leak the memory to the end of their simulator.
    unsafe { call!(driver, cuMemAlloc(&mut address, bytes)) }.unwrap();
    address
}

#[test]
fn a_foreign_tensor_is_used_and_deleted_after_its_last_use() {
    let (sim, context, stream) = checked();
    let deleted = Arc::new(AtomicUsize::new(0));
    let address = foreign_memory(&context, 4096);
    let tensor = produce(address, HERE, &[4, 6], &[8, 1], &deleted);
    // SAFETY: the producer keeps to the protocol, and nobody uses the memory.
    let mut imported = unsafe { dlpack::import::<f32>(&context, tensor) }.unwrap();
    assert!(imported.read_only);
    assert_eq!((imported.layout.shape(), imported.layout.strides()), (&[4, 6][..], &[8, 1][..]));
    // From the first element to the end of the last.
    assert_eq!((imported.buffer.len(), imported.buffer.cu_deviceptr()), (3 * 8 + 6, address));
    imported.buffer.fill(&stream, 1.5).unwrap();
    assert_eq!(imported.buffer.to_vec(&stream).unwrap(), [1.5; 30]);
    let gate = sim.gate(stream.cu_stream()).unwrap();
    imported.buffer.fill(&stream, 2.5).unwrap();
    drop(imported);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    gate.open();
    until(|| deleted.load(Ordering::SeqCst) == 1);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_tensor_that_is_refused_is_deleted_at_once() {
    let (_sim, context, stream) = checked();
    let deleted = Arc::new(AtomicUsize::new(0));
    let address = foreign_memory(&context, 4096);
    let elsewhere = DLDevice { device_id: 1, ..HERE };
    let host = DLDevice { device_type: DLDeviceType::kDLCPU, device_id: 0 };
    let mut count = 0;
    let mut refused = |tensor: *mut DLManagedTensorVersioned, part: &str| {
        // SAFETY: the producer keeps to the protocol.
        let error = unsafe { dlpack::import::<f32>(&context, tensor) }.unwrap_err();
        assert!(matches!(error, MemoryError::Foreign { .. }) && error.to_string().contains(part), "{error}");
        count += 1;
        assert_eq!(deleted.load(Ordering::SeqCst), count, "{part}");
    };
    refused(produce(address, elsewhere, &[4], &[], &deleted), "device 1");
    refused(produce(address, host, &[4], &[], &deleted), "type 1");
    refused(produce(address, HERE, &[-4], &[], &deleted), "-4");
    refused(produce(address + 2, HERE, &[4], &[], &deleted), "multiple of 4");
    refused(produce(0, HERE, &[4], &[], &deleted), "null address");
    let newer = produce(address, HERE, &[4], &[], &deleted);
    // SAFETY: the tensor is ours until it is given up.
    unsafe { (*newer).version.major = 2 };
    refused(newer, "version 2");
    let known = DeviceBuffer::from_slice(&stream, &[1.0f32; 8]).unwrap();
    refused(produce(known.cu_deviceptr() + 16, HERE, &[80], &[], &deleted), "reach into");
    // SAFETY: null is refused.
    assert!(unsafe { dlpack::import::<f32>(&context, std::ptr::null_mut()) }.is_err());
    let other = produce(address, HERE, &[4], &[], &deleted);
    // SAFETY: the producer keeps to the protocol.
    let error = unsafe { dlpack::import::<u32>(&context, other) }.unwrap_err();
    assert!(error.to_string().contains("u32 is wanted"), "{error}");
    // Part of a live buffer joins it; nothing at all is fine.
    let part = produce(known.cu_deviceptr() + 16, HERE, &[2], &[], &deleted);
    // SAFETY: as above.
    let joined = unsafe { dlpack::import::<f32>(&context, part) }.unwrap();
    assert_eq!(joined.buffer.allocation_id(), known.allocation_id());
    assert_eq!(joined.buffer.to_vec(&stream).unwrap(), [1.0; 2]);
    let nothing = produce(0, HERE, &[0, 5], &[], &deleted);
    // SAFETY: as above.
    assert!(unsafe { dlpack::import::<f32>(&context, nothing) }.unwrap().buffer.is_empty());
}

#[test]
fn a_buffer_goes_out_and_comes_back_by_its_consumers_stream() {
    let (sim, context, a) = checked();
    let consumer = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::from_slice(&a, &[1.0f32; 12]).unwrap().with_label("out");
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 2.0).unwrap();
    let address = buffer.cu_deviceptr();
    let exported = buffer.export().unwrap();
    // SAFETY: the test is the consumer, and keeps to the protocol.
    let tensor = unsafe { dlpack::export(exported, &[3, 4], Some(&consumer)) }.unwrap();
    // SAFETY: the tensor is alive until its deleter is called.
    let (inner, flags, deleter) =
        unsafe { (tensor.as_ref().dl_tensor, tensor.as_ref().flags, tensor.as_ref().deleter) };
    assert_eq!((inner.data.addr() as u64, inner.ndim, flags), (address, 2, 0));
    // SAFETY: as above.
    let (shape, strides) =
        unsafe { (std::slice::from_raw_parts(inner.shape, 2), std::slice::from_raw_parts(inner.strides, 2)) };
    assert_eq!((shape, strides), (&[3, 4][..], &[4, 1][..]));
    // The consumer's stream follows what was in flight; its own use is foreign.
    let driver = sim.driver();
    // SAFETY: the memory is alive.
    unsafe { call!(driver, cuMemsetD32Async(address, 0, 12, consumer.cu_stream())) }.unwrap();
    assert!(!consumer.is_complete().unwrap());
    // SAFETY: called once.
    unsafe { deleter.unwrap()(tensor.as_ptr()) };
    // Nobody has a handle any more: freed behind the consumer's work, not before.
    assert_eq!(context.stats().quarantined, 0);
    gate.open();
    until(|| context.stats().live_allocations == 0);
    assert!(simtile_core::drain_background(Duration::from_secs(20)));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn shared_exports_are_read_only_and_shapes_are_checked() {
    let (sim, context, stream) = checked();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u8; 6]).unwrap();
    // SAFETY: nobody consumes.
    let wrong = unsafe { dlpack::export(buffer.export_shared().unwrap(), &[4], None) }.unwrap_err();
    assert!(matches!(wrong, MemoryError::Shape { .. }), "{wrong:?}");
    // The export that was refused came back from nowhere.
    context.synchronize_all().unwrap();
    // SAFETY: the test is the consumer, and only looks.
    let tensor = unsafe { dlpack::export(buffer.export_shared().unwrap(), &[2, 3], Some(&stream)) }.unwrap();
    // SAFETY: the tensor is alive until its deleter is called.
    assert_eq!(unsafe { tensor.as_ref().flags }, DLPACK_FLAG_BITMASK_READ_ONLY);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 6]);
    let error = buffer.fill(&stream, 2).unwrap_err();
    assert!(matches!(error, MemoryError::Stream(StreamError::Conflict { .. })), "{error:?}");
    // SAFETY: called once.
    unsafe { tensor.as_ref().deleter.unwrap()(tensor.as_ptr()) };
    buffer.fill(&stream, 2).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [2; 6]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
