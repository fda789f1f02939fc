//! Copies between host and device.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{copy, download, fill, upload, upload_shared, write, zeros};
use simtile_core::{DeviceBuffer, Error, MemoryError};
use std::sync::Arc;

#[test]
fn values_come_back_whatever_their_size() {
    let rig = rig();
    for len in [0usize, 1, 1000, 16 << 10, (64 << 10) + 3, large(3 << 20), large((9 << 20) + 1)] {
        let values: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let back = upload(values.clone()).then(download).sync_on(&rig.stream).unwrap();
        assert!(back == values, "{len} bytes, in place");
        let back = block_on(upload(values.clone()).then(download).on(&rig.stream)).unwrap();
        assert!(back == values, "{len} bytes, polled");
    }
    rig.clean();
}

#[test]
fn values_are_written_over_what_there_is() {
    let rig = rig();
    for len in [0usize, 5, (70 << 10) / 8, large(11 << 20) / 8] {
        let values: Vec<u64> = (0..len as u64).collect();
        let mut buffer = DeviceBuffer::<u64>::zeroed(&rig.stream, len).unwrap();
        write(&mut buffer, &values).sync_on(&rig.stream).unwrap();
        assert!(buffer.to_vec(&rig.stream).unwrap() == values, "{len}");
        let zeroed = fill(buffer, 0u64).enqueue_on(&rig.stream).unwrap();
        let written = block_on(write(zeroed, values.clone()).on(&rig.stream)).unwrap();
        assert!(written.to_vec(&rig.stream).unwrap() == values, "{len}");
    }
    let mut buffer = DeviceBuffer::<u64>::zeroed(&rig.stream, 3).unwrap();
    let error = write(&mut buffer, [1u64; 4]).sync_on(&rig.stream).unwrap_err();
    let error = error.core().map(|error| {
        matches!(error, Error::Memory(MemoryError::LengthMismatch { expected: 3, actual: 4, .. }))
    });
    assert_eq!(error, Some(true));
    rig.clean();
}

#[test]
fn copies_and_shared_sources() {
    let rig = rig();
    let source = Arc::new(upload_shared(Arc::from([1.5f32, 2.5])).sync_on(&rig.stream).unwrap());
    let target = zeros::<f32>(2).then(|target| copy(source.clone(), target)).sync_on(&rig.stream).unwrap();
    assert_eq!(target.to_vec(&rig.stream).unwrap(), [1.5, 2.5]);
    let short = zeros::<f32>(1).then(|target| copy(source, target)).sync_on(&rig.stream);
    assert!(short.is_err());
}

#[test]
fn bytes_that_are_no_value_are_told() {
    let rig = rig();
    let raw = upload(vec![0u8, 1, 2]).sync_on(&rig.stream).unwrap();
    let mut flags = DeviceBuffer::<bool>::zeroed(&rig.stream, 3).unwrap();
    rig.stream.submit().memset(&mut flags, 2).unwrap();
    let error = download(&flags).sync_on(&rig.stream).unwrap_err();
    assert!(error.to_string().contains("element 0"), "{error}");
    drop(raw);
}

#[test]
fn a_download_reads_what_was_there_when_it_was_submitted() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut buffer = upload(vec![1u8; large(4 << 20)]).sync_on(&rig.stream).unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let pending = download(&buffer).enqueue_on(&rig.stream).unwrap();
    // A later write on another stream follows the read.
    buffer.fill(&other, 2).unwrap();
    gate.open();
    let values = simtile_async::value(pending).sync_on(&rig.stream).unwrap();
    assert!(values.iter().all(|&value| value == 1));
    assert!(buffer.to_vec(&other).unwrap().iter().all(|&value| value == 2));
    rig.clean();
}

crate::schedules::explored!(
    values_come_back_whatever_their_size
    values_are_written_over_what_there_is
    copies_and_shared_sources
    bytes_that_are_no_value_are_told
    a_download_reads_what_was_there_when_it_was_submitted
);
