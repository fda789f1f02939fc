//! M2, M3, M4, M7: views, casts, uniqueness.

mod common;

use common::*;
use simtile_core::{DeviceBuffer, MemoryError, RawDeviceBuffer};
use simtile_driver::Entry;
use std::num::Wrapping;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn m2_views_are_parts_with_the_rules_of_slices() {
    let (_sim, _context, stream) = start();
    let values: Vec<u16> = (0..100).collect();
    let mut buffer = DeviceBuffer::from_slice(&stream, &values).unwrap();
    assert_eq!(buffer.slice(10..20).unwrap().to_vec(&stream).unwrap(), &values[10..20]);
    let (left, right) = buffer.view().split_at(70).unwrap();
    assert_eq!((left.len(), right.len(), right.num_bytes()), (70, 30, 60));
    assert_eq!(right.slice(5..8).unwrap().to_vec(&stream).unwrap(), [75, 76, 77]);
    assert_eq!(right.cu_deviceptr(), buffer.cu_deviceptr() + 140);
    {
        let (mut left, mut right) = buffer.split_at_mut(50).unwrap();
        left.fill(&stream, 1).unwrap();
        right.slice_mut(0..10).unwrap().copy_from_slice(&stream, &[7; 10]).unwrap();
        left.slice_mut(0..10)
            .unwrap()
            .copy_from(&stream, right.slice_mut(0..10).unwrap().into_view())
            .unwrap();
    }
    let found = buffer.to_vec(&stream).unwrap();
    assert!(found[..10].iter().all(|&v| v == 7) && found[10..50].iter().all(|&v| v == 1));
    assert!(found[50..60].iter().all(|&v| v == 7) && found[60..] == values[60..]);
    for (i, mut chunk) in buffer.chunks_mut(30).unwrap().enumerate() {
        assert_eq!(chunk.len(), if i == 3 { 10 } else { 30 });
        chunk.fill(&stream, i as u16).unwrap();
    }
    assert_eq!(buffer.range_to_vec(&stream, 29..31).unwrap(), [0, 1]);
    assert_eq!(buffer.chunks_mut(30).unwrap().len(), 4);
}

#[test]
fn m2_out_of_range_is_an_error_that_says_what() {
    let (sim, _context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap().with_label("ten");
    let before = sim.counts().total();
    for (start, end) in [(0, 11), (11, 11), (5, 4), (usize::MAX, usize::MAX), (0, usize::MAX)] {
        #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
        let errors = [buffer.slice(start..end).map(drop), buffer.slice_mut(start..end).map(drop)];
        for error in errors {
            let error = error.unwrap_err();
            assert!(
                error.to_string().contains("ten") && error.to_string().contains(&end.to_string()),
                "{error}"
            );
        }
    }
    assert!(matches!(buffer.split_at_mut(11), Err(MemoryError::OutOfRange { .. })));
    assert!(matches!(buffer.chunks_mut(0), Err(MemoryError::Shape { .. })));
    assert!(buffer.slice(10..10).unwrap().is_empty());
    assert_eq!(sim.counts().total(), before);
}

#[test]
fn m2_disjoint_ranges_never_wait_also_after_the_views_have_ended() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let before = sim.counts();
    {
        let (mut left, mut right) = buffer.split_at_mut(500).unwrap();
        left.fill(&a, 1).unwrap();
        right.fill(&b, 2).unwrap();
    }
    // Forgotten views lose nothing.
    let _ = std::mem::ManuallyDrop::new(buffer.slice_mut(0..500).unwrap());
    b.submit().fill(buffer.slice_mut(600..700).unwrap(), 3).unwrap().wait().unwrap();
    assert_eq!(sim.counts().since(&before).of(Entry::cuStreamWaitEvent), 0);
    // Overlapping ones do wait.
    let over = b.submit().fill(buffer.slice_mut(499..501).unwrap(), 4).unwrap();
    assert!(!over.is_complete().unwrap());
    gate.open();
    over.wait().unwrap();
    let found = buffer.to_vec(&a).unwrap();
    assert_eq!((found[0], found[499], found[500], found[501], found[650]), (1, 4, 4, 2, 3));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn m2_columns_are_compared_by_element_in_one_submission_and_by_span_between() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let values: Vec<u32> = (0..60).collect();
    let mut matrix = DeviceBuffer::from_slice(&a, &values).unwrap();
    let columns = matrix.view().columns(6, 2..4).unwrap();
    assert_eq!((columns.rows(), columns.width(), columns.pitch()), (10, 2, 6));
    assert_eq!(columns.to_vec(&a).unwrap()[..6], [2, 3, 8, 9, 14, 15]);
    {
        let (mut left, mut right) = matrix.view_mut().into_split_columns(6, 3).unwrap();
        // Both halves in one submission.
        a.submit().write(&mut left).write(&mut right).order_only().unwrap();
        right.copy_from(&a, left.as_columns()).unwrap();
    }
    let found = matrix.to_vec(&a).unwrap();
    assert!(found.chunks(6).zip(values.chunks(6)).all(|(f, v)| f[..3] == v[..3] && f[3..] == v[..3]));
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let (mut left, mut right) = matrix.view_mut().into_split_columns(6, 3).unwrap();
    a.submit().write(&mut left).order_only().unwrap();
    let later = b.submit().write(&mut right).awaited().order_only().unwrap();
    assert!(!later.is_complete().unwrap(), "a strided view counts as its span");
    gate.open();
    later.wait().unwrap();
    for (pitch, range) in [(0, 0..0), (7, 0..1), (6, 4..7)] {
        assert!(matches!(matrix.view().columns(pitch, range), Err(MemoryError::Shape { .. })));
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn m7_casts_follow_the_rules_of_bytes() {
    let (_sim, _context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1.0f32, -2.0, 0.5, 4.0]).unwrap();
    assert_eq!(buffer.view().as_bytes().unwrap().to_vec(&stream).unwrap()[..4], 1.0f32.to_ne_bytes());
    assert_eq!(buffer.view().cast_elem::<u32>().unwrap().to_vec(&stream).unwrap()[1], (-2.0f32).to_bits());
    assert_eq!(buffer.view().cast_chunks::<[u16; 4]>().unwrap().len(), 2);
    assert!(matches!(buffer.view().cast_elem::<u64>(), Err(MemoryError::Cast { size: 8, .. })));
    assert!(matches!(buffer.view().cast_chunks::<[u8; 5]>(), Err(MemoryError::Cast { bytes: 16, .. })));
    let misaligned = buffer.slice(1..3).unwrap().cast_chunks::<u64>().unwrap_err();
    assert!(misaligned.to_string().contains("alignment 8"), "{misaligned}");
    let words = buffer.cast_elem::<u32>().unwrap().wrap_elem::<Wrapping<u32>>().unwrap();
    let mut back = words.peel_elem::<u32>().unwrap().cast_elem::<f32>().unwrap();
    back.view_mut().cast_elem_mut::<u32>().unwrap().slice_mut(0..1).unwrap().fill(&stream, 0).unwrap();
    assert_eq!(back.to_vec(&stream).unwrap(), [0.0, -2.0, 0.5, 4.0]);
    let raw = back.into_raw().unwrap();
    assert_eq!(raw.num_bytes(), 16);
    let refused = raw.into_typed::<[u8; 3]>().unwrap_err();
    let typed = refused.handle.into_typed::<bool>().unwrap();
    assert!(matches!(typed.to_vec(&stream), Err(MemoryError::InvalidElement { type_name: "bool", .. })));
    let mut bytes = RawDeviceBuffer::zeroed(&stream, 8).unwrap();
    bytes.view_mut().fill(&stream, 1).unwrap();
    assert_eq!(bytes.into_typed::<bool>().unwrap().to_vec(&stream).unwrap(), [true; 8]);
}

#[test]
fn m3_m4_an_aliased_buffer_is_taken_over_by_nobody() {
    let (_sim, _context, stream) = start();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32; 4]).unwrap().with_label("mine");
    assert!(buffer.is_unique());
    let lease = buffer.lease();
    assert_eq!(lease.allocation_id(), buffer.allocation_id());
    for _ in 0..1000 {
        let refused = buffer.cast_elem::<f32>().unwrap_err();
        assert!(matches!(&refused.error, MemoryError::NotUnique { handles: 2, .. }), "{refused}");
        let refused = refused.handle.into_raw().unwrap_err();
        assert!(refused.to_string().contains("mine"), "{refused}");
        buffer = refused.handle;
    }
    assert!(!buffer.is_unique());
    let more = lease.clone();
    drop(lease);
    assert!(!buffer.is_unique());
    drop(more);
    assert!(buffer.is_unique());
    assert_eq!(buffer.cast_elem::<f32>().unwrap().len(), 4);
}

#[test]
fn m4_uniqueness_is_exact_beside_work_and_pictures() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let own = context.new_stream().unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Pictures hold allocations for a moment; drops and submissions of others go on.
                    let _ = context.snapshot();
                    let _ = DeviceBuffer::from_slice(&own, &[1u8; 16]).unwrap();
                }
            });
        }
        for round in 0..20_000u32 {
            assert!(buffer.is_unique());
            if round % 64 == 0 {
                buffer.fill(&stream, round).unwrap();
                let lease = buffer.lease();
                assert!(!buffer.is_unique());
                drop(lease);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // Work in flight does not count.
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.fill(&stream, 1).unwrap();
    assert!(buffer.is_unique());
    gate.open();
}

#[test]
fn views_of_nothing_and_of_values_without_bytes() {
    let (sim, _context, stream) = start();
    let before = sim.counts().total();
    let mut units = DeviceBuffer::<()>::zeroed(&stream, 10).unwrap();
    let (left, right) = units.split_at_mut(3).unwrap();
    assert_eq!((left.len(), right.len(), right.cu_deviceptr()), (3, 7, 0));
    assert_eq!(units.slice(2..5).unwrap().to_vec(&stream).unwrap(), [(); 3]);
    let mut empty = DeviceBuffer::<f64>::zeroed(&stream, 0).unwrap();
    empty.slice_mut(0..0).unwrap().fill(&stream, 1.0).unwrap();
    assert_eq!(empty.chunks_mut(4).unwrap().count(), 0);
    assert!(empty.view().columns(4, 1..3).unwrap().to_vec(&stream).unwrap().is_empty());
    assert_eq!(empty.view().as_bytes().unwrap().len(), 0);
    assert_eq!(sim.counts().total(), before);
}

#[test]
fn views_work_from_several_threads() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 4096).unwrap();
    std::thread::scope(|scope| {
        for (i, mut chunk) in buffer.chunks_mut(512).unwrap().enumerate() {
            let context = Arc::clone(&context);
            scope.spawn(move || {
                let own = context.new_stream().unwrap();
                for round in 0..20 {
                    chunk.fill(&own, i as u32 * 100 + round).unwrap();
                }
            });
        }
    });
    let found = buffer.to_vec(&stream).unwrap();
    assert!(found.chunks(512).enumerate().all(|(i, c)| c.iter().all(|&v| v == i as u32 * 100 + 19)));
    assert!(context.drain(Duration::from_secs(10)).is_complete());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn m7_a_narrower_type_may_start_where_a_wider_one_may_not() {
    let (_sim, _context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3, 4]).unwrap();
    let part = buffer.slice(1..3).unwrap();
    assert!(matches!(part.cast_chunks::<u64>(), Err(MemoryError::Cast { offset: 4, align: 8, .. })));
    assert_eq!(part.cast_chunks::<[u16; 2]>().unwrap().to_vec(&stream).unwrap(), [[2, 0], [3, 0]]);
    // A fresh allocation suits every alignment up to 256.
    macro_rules! suits {
        ($($align:literal)*) => { $({
            #[derive(Clone, Copy)]
            #[repr(C, align($align))]
            struct Wide([u8; $align]);
            // SAFETY: bytes alone.
            unsafe impl simtile_types::DeviceCopy for Wide {}
            let wide = DeviceBuffer::<Wide>::zeroed(&stream, 2).unwrap();
            assert!(wide.cu_deviceptr().is_multiple_of($align));
            assert_eq!(wide.to_vec(&stream).unwrap()[1].0, [0; $align]);
        })* };
    }
    suits! { 1 2 4 8 16 32 64 128 256 }
    // Types without bytes: only nothing is made of them.
    assert!(matches!(buffer.view().cast_chunks::<()>(), Err(MemoryError::Cast { size: 0, .. })));
    assert_eq!(buffer.slice(2..2).unwrap().cast_chunks::<()>().unwrap().len(), 0);
    let empty = DeviceBuffer::<u32>::zeroed(&stream, 0).unwrap();
    assert!(empty.cast_chunks::<[u64; 4]>().unwrap().is_empty());
}

#[test]
fn m7_wrapping_and_peeling_keep_everything_but_the_type() {
    let (_sim, context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3]).unwrap().with_label("kept");
    let (address, id) = (buffer.cu_deviceptr(), buffer.allocation_id());
    let wrapped = buffer.wrap_elem::<Wrapping<u32>>().unwrap();
    assert_eq!((wrapped.cu_deviceptr(), wrapped.allocation_id(), wrapped.len()), (address, id, 3));
    assert_eq!(wrapped.label().as_deref(), Some("kept"));
    assert_eq!(wrapped.context(), &context);
    let peeled = wrapped.peel_elem::<u32>().unwrap();
    assert_eq!((peeled.cu_deviceptr(), peeled.allocation_id(), peeled.num_bytes()), (address, id, 12));
    assert_eq!(peeled.to_vec(&stream).unwrap(), [1, 2, 3]);
}

#[test]
fn m1_byte_views_have_the_identity_and_the_order_of_their_buffer() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap();
    assert_eq!(buffer.view().as_bytes().unwrap().allocation_id(), buffer.allocation_id());
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.view_mut().into_bytes().unwrap().fill(&stream, 1).unwrap();
    let read = other.submit().read(&buffer.view().as_bytes().unwrap()).awaited().order_only().unwrap();
    assert!(!read.is_complete().unwrap());
    gate.open();
    assert_eq!(buffer.to_vec(&other).unwrap(), [0x0101_0101; 100]);
    // Peeled and empty ones are read from two streams at once.
    let wrapped = buffer.wrap_elem::<Wrapping<u32>>().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let (first, second) = (wrapped.view().peel_elem::<u32>(), wrapped.view().peel_elem::<u32>());
    stream.submit().read(&first).order_only().unwrap();
    other.submit().read(&second).awaited().order_only().unwrap().wait().unwrap();
    gate.open();
}

#[test]
fn m3_a_cast_buffer_is_dropped_in_stream_order_too() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.fill(&stream, 1).unwrap();
    let cast = buffer.cast_chunks::<[u32; 2]>().unwrap();
    let address = cast.cu_deviceptr();
    drop(cast);
    let other = context.new_stream().unwrap();
    let next = DeviceBuffer::from_slice(&other, &[5u32; 1000]).unwrap();
    assert_ne!(next.cu_deviceptr(), address);
    other.synchronize().unwrap();
    gate.open();
    assert_eq!(next.to_vec(&stream).unwrap(), [5; 1000]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn m4_uniqueness_is_exact_while_another_thread_takes_leases() {
    let (_sim, _context, stream) = start();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    let leases = std::sync::Mutex::new(Some(buffer.lease()));
    let mut buffer = buffer;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100_000 {
                let lease = leases.lock().unwrap();
                let more = lease.clone();
                drop(lease);
                drop(more);
            }
        });
        for _ in 0..100_000 {
            // One lease is always there.
            assert!(!buffer.is_unique());
        }
    });
    drop(leases.lock().unwrap().take());
    for _ in 0..100_000 {
        assert!(buffer.is_unique());
    }
}

#[test]
fn uninitialised_memory_is_written_in_stream_order() {
    let (sim, _context, stream) = start();
    // SAFETY: every element is written before it is read.
    let mut buffer = unsafe { DeviceBuffer::<u32>::uninit(&stream, 100) }.unwrap();
    buffer.copy_from_slice(&stream, &[1; 100]).unwrap();
    let source = DeviceBuffer::from_slice(&stream, &[2u32; 100]).unwrap();
    buffer.copy_from(&stream, &source).unwrap();
    assert_eq!(buffer.range_to_vec(&stream, 0..2).unwrap(), [2, 2]);
    buffer.zero(&stream).unwrap();
    drop(source);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 100]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
