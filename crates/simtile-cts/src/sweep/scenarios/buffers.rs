//! Buffers from the context's pool: copies, views, casts, two threads, drops with work in flight.

use super::{Outcome, Rig, Stop, all, expect};
use simtile_core::{DeviceBuffer, Error, RawDeviceBuffer};
use simtile_types::DeviceRepr;
use std::sync::Arc;

/// Uploads, fills, copies of ranges, downloads, between streams of several priorities.
pub(super) fn copies(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream_with_priority(-1)?);
    let x = DeviceBuffer::from_slice(&a, &[7u32; 300])?.with_label("x");
    let mut y = DeviceBuffer::<u32>::zeroed(&b, 300)?;
    y.fill(&b, 2)?;
    y.copy_range_from(&b, 100, &x, 0..100)?;
    y.copy_from_slice_at(&a, 290, &[9; 10])?;
    let mut host = vec![0; 300];
    y.copy_to_slice(&a, &mut host)?;
    all("the filled part", &host[..100], 100, 2)?;
    all("the copied part", &host[100..200], 100, 7)?;
    all("the uploaded part", &host[290..], 10, 9)?;
    let mut z = DeviceBuffer::<u32>::zeroed(&a, 300)?;
    z.copy_from(&b, &y)?;
    z.zero(&a)?;
    drop((x, y));
    all("what was zeroed", &z.to_vec(&b)?, 300, 0)?;
    // A pattern that no memset can write.
    let mut wide = DeviceBuffer::<f64>::zeroed(&a, 50)?;
    wide.fill(&b, 1.25)?;
    expect("a wide fill", &wide.to_vec(&a)?, &vec![1.25; 50])
}

/// Views, splits, chunks, columns, on several streams.
pub(super) fn views(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let streams = [context.new_stream()?, context.new_stream()?, context.new_stream()?];
    let mut buffer = DeviceBuffer::<u32>::zeroed(&streams[0], 120)?;
    let (mut left, mut right) = buffer.split_at_mut(50)?;
    left.fill(&streams[1], 1)?;
    right.fill(&streams[2], 2)?;
    right.slice_mut(10..20)?.copy_from_slice(&streams[0], &[3; 10])?;
    for (value, (mut chunk, stream)) in (10..).zip(buffer.chunks_mut(60)?.zip(&streams)) {
        chunk.slice_mut(0..5)?.fill(stream, value)?;
    }
    let found = buffer.to_vec(&streams[1])?;
    all("the first chunk's start", &found[..5], 5, 10)?;
    all("the left side", &found[5..50], 45, 1)?;
    all("the right side", &found[50..60], 10, 2)?;
    all("the second chunk's start", &found[60..65], 5, 11)?;
    all("the middle", &found[65..70], 5, 3)?;
    let view = buffer.view();
    let columns = view.columns(12, 2..4)?;
    expect("rows", &columns.rows(), &10)?;
    let columns = columns.to_vec(&streams[2])?;
    expect("length of the columns", &columns.len(), &20)?;
    expect("columns", &columns[..4], &[10, 10, 1, 1][..])?;
    let mut copy = DeviceBuffer::<u32>::zeroed(&streams[0], 20)?;
    streams[1].submit().copy(buffer.slice(100..120)?, copy.view_mut())?.wait()?;
    all("a copy of a view", &copy.to_vec(&streams[2])?, 20, 2)
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
struct Wrapped(u32);
// SAFETY: plain bytes in one field.
unsafe impl simtile_types::DeviceCopy for Wrapped {}
// SAFETY: transparent.
unsafe impl DeviceRepr<u32> for Wrapped {}

/// Casts, wrapping, raw buffers, leases.
pub(super) fn casts(rig: &Rig) -> Outcome {
    let stream = rig.contexts[0].new_stream()?;
    let buffer = DeviceBuffer::from_slice(&stream, &[0x0101_0101u32; 16])?;
    let buffer = buffer.cast_elem::<i32>().map_err(|refused| refused.error)?;
    let buffer = buffer.cast_chunks::<u8>().map_err(|refused| refused.error)?;
    expect("bytes", &buffer.slice(3..8)?.to_vec(&stream)?, &vec![1u8; 5])?;
    let lease = buffer.lease();
    let buffer = match buffer.into_raw() {
        Ok(_) => return Err(Stop::Wrong("a leased buffer became raw".into())),
        Err(refused) => refused.handle,
    };
    drop(lease);
    let mut raw = buffer.into_raw().map_err(|refused| refused.error)?;
    raw.view_mut().fill(&stream, 2)?;
    let typed = raw.into_typed::<u32>().map_err(|refused| refused.error)?;
    all("a typed buffer", &typed.to_vec(&stream)?, 16, 0x0202_0202)?;
    let typed = typed.wrap_elem::<Wrapped>().map_err(|refused| refused.error)?;
    expect("a wrapped value", &typed.range_to_vec(&stream, 3..4)?, &vec![Wrapped(0x0202_0202)])?;
    let raw = RawDeviceBuffer::zeroed(&stream, 100)?;
    expect("raw zeroes", &raw.view().to_vec(&stream)?, &vec![0u8; 100])
}

/// Two threads share a buffer, each with work of its own on it and beside it.
pub(super) fn threads(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let shared = Arc::new(DeviceBuffer::from_slice(&context.new_stream()?, &[5u32; 64])?);
    let mut handles = Vec::new();
    for value in [1, 2] {
        let (context, shared) = (context.clone(), shared.clone());
        let work = move || -> Outcome {
            let stream = context.new_stream()?;
            let mut own = DeviceBuffer::<u32>::zeroed(&stream, 64)?;
            own.fill(&stream, value)?;
            all("the own buffer", &own.to_vec(&stream)?, 64, value)?;
            own.copy_from(&stream, &shared)?;
            drop(shared);
            all("the copy", &own.to_vec(&stream)?, 64, 5)
        };
        match simtile_sync::thread::spawn("sweep", work) {
            Ok(handle) => handles.push(handle),
            Err(error) => return Err(Stop::Wrong(format!("no thread: {error}"))),
        }
    }
    drop(shared);
    let mut outcome = Ok(());
    for handle in handles {
        // All threads end before the scenario does.
        match handle.join() {
            Ok(Ok(())) => {}
            Ok(Err(stop @ Stop::Wrong(_))) => outcome = Err(stop),
            Ok(Err(stop)) => outcome = outcome.and(Err(stop)),
            Err(_) => outcome = Err(Stop::Wrong("a thread panicked".into())),
        }
    }
    outcome
}

/// Drops with uses on several streams, so that memory goes by the background.
pub(super) fn reclaimed(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    for round in 0..3u32 {
        let mut x = DeviceBuffer::<u32>::zeroed(&a, 40)?;
        x.fill(&a, round)?;
        let mut y = DeviceBuffer::<u32>::zeroed(&b, 40)?;
        y.copy_from(&b, &x)?;
        x.slice_mut(0..10)?.fill(&a, 4)?;
        b.submit().read(&x).order_only()?;
        all("the copy", &y.to_vec(&b)?, 40, round)?;
        b.submit().read(&x).read(&y).order_only()?;
    }
    let other = context.new_stream()?;
    let last = DeviceBuffer::from_slice(&other, &[1u32; 8])?;
    drop((a, b));
    let found: Result<_, Error> = last.to_vec(&other).map_err(Error::from);
    all("the last", &found?, 8, 1)
}
