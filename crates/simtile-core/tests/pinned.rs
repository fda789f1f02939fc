//! M6, M8: pinned memory: sizes, and when it may be used again.

mod common;

use common::start;
use simtile_core::{DeviceBuffer, MemoryError, PinnedHostBuffer, StreamError};
use simtile_driver::Entry;

#[test]
fn sizes_that_no_allocation_has_are_refused_by_name() {
    let (sim, context, _) = start();
    let before = sim.counts().of(Entry::cuMemHostAlloc);
    let refused = [
        PinnedHostBuffer::<u8>::zeroed(&context, usize::MAX).map(drop),
        PinnedHostBuffer::<u8>::zeroed(&context, isize::MAX as usize + 1).map(drop),
        PinnedHostBuffer::<u64>::zeroed(&context, usize::MAX / 4).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(matches!(error, MemoryError::SizeOverflow { .. }), "{error:?}");
    }
    assert_eq!(sim.counts().of(Entry::cuMemHostAlloc), before, "refused before the driver is asked");
}

#[test]
fn the_source_of_a_copy_is_written_again_after_the_copy() {
    let (sim, context, stream) = start();
    let mut pinned = PinnedHostBuffer::from_slice(&context, &[1u32; 64]).unwrap();
    let mut device = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    pinned.copy_to(&stream, &mut device).unwrap();
    let busy = pinned.try_write().map(drop).unwrap_err();
    assert!(matches!(busy, MemoryError::Stream(StreamError::Conflict { .. })), "{busy:?}");
    // Reading it does not disturb the copy.
    assert_eq!(pinned.try_read().unwrap()[0], 1);
    gate.open();
    pinned.write().unwrap().fill(2);
    assert_eq!(device.to_vec(&stream).unwrap(), [1; 64]);
    pinned.copy_to(&stream, &mut device).unwrap();
    assert_eq!(device.to_vec(&stream).unwrap(), [2; 64]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
