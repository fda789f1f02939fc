//! Buffers and copies: sizes, ranges, order, and what the host sees.

mod common;

use common::*;
use simtile_core::{Context, DeviceBuffer, MemoryError, Stream};
use simtile_driver::sys::CUresult;
use simtile_driver::{Entry, call};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn values_of_every_kind_come_back() {
    let (_sim, _context, stream) = start();
    fn round_trip<T: simtile_types::DeviceCopy + PartialEq + std::fmt::Debug>(
        stream: &Arc<Stream>,
        values: &[T],
    ) {
        assert_eq!(DeviceBuffer::from_slice(stream, values).unwrap().to_vec(stream).unwrap(), values);
    }
    round_trip(&stream, &[1u8, 2, 255]);
    round_trip(&stream, &[-1i16; 33]);
    round_trip(&stream, &[u128::MAX, 5]);
    round_trip(&stream, &[true, false, true]);
    round_trip(&stream, &[(1u8, 2.5f64, [3u16; 3]), (4, 5.5, [6; 3])]);
    round_trip(&stream, &[std::num::Wrapping(7u32)]);
    round_trip(&stream, &[simtile_types::f8e4m3fn::from_bits(0x38)]);
    // Larger than a block of staging, and not a multiple of it.
    let large: Vec<u32> = (0..1_500_001).collect();
    round_trip(&stream, &large);
}

#[test]
fn nothing_is_fine_everywhere_and_makes_no_driver_call() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let before = sim.counts();
    let mut empty = DeviceBuffer::<f32>::from_slice(&stream, &[]).unwrap();
    let mut units = DeviceBuffer::<()>::from_slice(&stream, &[(); 5]).unwrap();
    let zeroed = DeviceBuffer::<u64>::zeroed(&stream, 0).unwrap();
    assert!(empty.is_empty() && zeroed.is_empty() && !units.is_empty());
    assert_eq!((empty.num_bytes(), empty.cu_deviceptr(), units.num_bytes()), (0, 0, 0));
    empty.copy_from_slice(&other, &[]).unwrap();
    empty.copy_to_slice(&other, &mut []).unwrap();
    empty.fill(&other, 1.0).unwrap();
    empty.zero(&other).unwrap();
    units.fill(&other, ()).unwrap();
    assert_eq!(units.to_vec(&other).unwrap(), [(); 5]);
    assert!(empty.to_vec(&stream).unwrap().is_empty());
    let copy = DeviceBuffer::<f32>::zeroed(&other, 0).unwrap();
    empty.copy_from(&stream, &copy).unwrap();
    empty.set_label("nothing");
    drop((empty, units, zeroed, copy));
    assert_eq!(sim.counts().since(&before).total(), 0);
    // Of a buffer that is not empty.
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3]).unwrap();
    let before = sim.counts();
    for place in [0, 1, 3] {
        buffer.copy_from_slice_at(&other, place, &[]).unwrap();
        buffer.copy_to_slice_at(&other, place, &mut []).unwrap();
        assert!(buffer.range_to_vec(&other, place..place).unwrap().is_empty());
    }
    assert_eq!(sim.counts().since(&before).total(), 0);
}

#[test]
fn f2_sizes_that_overflow_are_refused_without_a_driver_call() {
    let (sim, _context, stream) = start();
    let before = sim.counts();
    for len in [usize::MAX, usize::MAX / 2, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
        match DeviceBuffer::<u64>::zeroed(&stream, len) {
            Err(MemoryError::SizeOverflow { count, element_bytes: 8, .. }) => assert_eq!(count, len),
            other => panic!("{other:?}"),
        }
    }
    assert!(DeviceBuffer::<u8>::zeroed(&stream, isize::MAX as usize).is_err());
    assert_eq!(sim.counts().since(&before).total(), 0);
}

#[test]
fn f2_ranges_and_lengths_are_named() {
    let (sim, _context, stream) = start();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[0u16; 10]).unwrap().with_label("ten");
    let source = DeviceBuffer::from_slice(&stream, &[1u16; 4]).unwrap();
    let before = sim.counts();
    let error = buffer.copy_from_slice(&stream, &[0; 11]).unwrap_err();
    assert!(matches!(
        error,
        MemoryError::LengthMismatch { expected: 10, actual: 11, argument: "source", .. }
    ));
    assert!(error.to_string().contains("ten"), "{error}");
    assert!(matches!(
        buffer.copy_to_slice(&stream, &mut [0; 9]),
        Err(MemoryError::LengthMismatch { expected: 10, actual: 9, argument: "target", .. })
    ));
    for (start, len, end) in [(7, 4, 11), (11, 0, 11), (usize::MAX, 2, usize::MAX)] {
        match buffer.copy_from_slice_at(&stream, start, &vec![0; len]) {
            Err(MemoryError::OutOfRange { start: s, end: e, len: 10, .. }) => {
                assert_eq!((s, e), (start, end))
            }
            other => panic!("{other:?}"),
        }
        assert!(buffer.copy_to_slice_at(&stream, start, &mut vec![0; len]).is_err());
    }
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = buffer.range_to_vec(&stream, 5..2);
    assert!(matches!(reversed, Err(MemoryError::OutOfRange { start: 5, end: 2, .. })));
    assert!(buffer.copy_from(&stream, &source).is_err());
    assert!(buffer.copy_range_from(&stream, 8, &source, 0..3).is_err());
    assert!(buffer.copy_range_from(&stream, 0, &source, 2..5).is_err());
    assert_eq!(sim.counts().since(&before).total(), 0);
    buffer.copy_range_from(&stream, 7, &source, 1..4).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
    buffer.copy_from_slice_at(&stream, 2, &[9, 8]).unwrap();
    assert_eq!(buffer.range_to_vec(&stream, 1..5).unwrap(), [0, 9, 8, 0]);
}

#[test]
fn fills_of_every_width() {
    let (_sim, _context, stream) = start();
    fn check<T: simtile_types::DeviceCopy + PartialEq + std::fmt::Debug>(stream: &Arc<Stream>, value: T) {
        for len in [1, 2, 3, 1000, 50_001] {
            let mut buffer = DeviceBuffer::<T>::zeroed(stream, len).unwrap();
            buffer.fill(stream, value).unwrap();
            let found = buffer.to_vec(stream).unwrap();
            assert!(found.len() == len && found.iter().all(|v| *v == value), "{value:?} x {len}");
        }
    }
    check(&stream, 7u8);
    check(&stream, 0x1234u16);
    check(&stream, -1.5f32);
    check(&stream, 1.5f64);
    check(&stream, [1u8, 2, 3]);
    check(&stream, 0x0123_4567_89AB_CDEF_0011_2233_4455_6677u128);
    check(&stream, (true, 3u32));
}

#[test]
fn an_upload_is_copied_at_submission() {
    let (sim, _context, stream) = start();
    let mut source = vec![7u32; 700_000];
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, source.len()).unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.copy_from_slice(&stream, &source).unwrap();
    source.fill(0);
    drop(source);
    gate.open();
    assert!(buffer.to_vec(&stream).unwrap().iter().all(|&v| v == 7));
}

#[test]
fn after_an_error_a_borrowed_slice_is_untouched() {
    let (sim, _context, stream) = start();
    // Three blocks of staging.
    let len = (2 << 20) + 1000;
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, len).unwrap();
    for entry in [Entry::cuMemcpyDtoHAsync, Entry::cuEventRecord, Entry::cuEventSynchronize] {
        for nth in 1..=3 {
            let mut target = vec![9u8; len];
            sim.fail(entry, nth, CUresult::CUDA_ERROR_UNKNOWN);
            let result = buffer.copy_to_slice(&stream, &mut target);
            // A record that fails once is made again, and what has arrived is not waited for; every other failure is told.
            assert!(result.is_err() || entry != Entry::cuMemcpyDtoHAsync, "{entry:?} {nth}");
            assert!(result.is_ok() || entry != Entry::cuEventRecord, "{entry:?} {nth}");
            let expected = if result.is_ok() { 0 } else { 9 };
            assert!(target.iter().all(|&v| v == expected), "{entry:?} {nth}");
            sim.clear_rules();
            buffer.copy_to_slice(&stream, &mut target).unwrap();
            assert!(target.iter().all(|&v| v == 0));
        }
    }
}

#[test]
fn a_buffer_follows_its_last_use_on_any_stream() {
    let (sim, context, a) = start();
    let (b, c) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 3).unwrap();
    buffer.copy_from_slice_at(&b, 500, &[4; 500]).unwrap();
    let mut copy = DeviceBuffer::<u32>::zeroed(&c, 1000).unwrap();
    copy.copy_from(&c, &buffer).unwrap();
    assert!(!b.is_complete().unwrap() && !c.is_complete().unwrap(), "both follow the gated fill");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| copy.to_vec(&b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        let found = reader.join().unwrap();
        assert!(found[..500].iter().all(|&v| v == 3) && found[500..].iter().all(|&v| v == 4));
    });
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn one_stream_needs_no_events() {
    let (sim, _context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap();
    let before = sim.counts();
    for i in 0..20 {
        buffer.fill(&stream, i).unwrap();
    }
    let calls = sim.counts().since(&before);
    assert_eq!(calls.of(Entry::cuMemsetD8Async) + calls.of(Entry::cuMemsetD32Async), 20, "{calls:?}");
    assert_eq!(calls.of(Entry::cuEventRecord) + calls.of(Entry::cuStreamWaitEvent), 0);
}

#[test]
fn streams_that_are_not_ours_are_followed_at_once_and_nothing_is_freed_on_them() {
    let (sim, context, stream) = start();
    let lent = context.new_stream().unwrap();
    // SAFETY: `lent` keeps the stream alive.
    let foreign = unsafe { Stream::borrow_raw(lent.cu_stream(), &context) }.unwrap();
    for other in [foreign, context.legacy_default_stream(), context.per_thread_default_stream()] {
        let mut buffer = DeviceBuffer::from_slice(&other, &[1u32; 100]).unwrap();
        buffer.fill(&other, 5).unwrap();
        assert_eq!(buffer.to_vec(&stream).unwrap(), [5; 100]);
        buffer.copy_from_slice_at(&other, 50, &[6; 50]).unwrap();
        // Dropped on a thread that may not even name the stream.
        std::thread::scope(|scope| scope.spawn(move || drop(buffer)).join().unwrap());
    }
    assert_eq!(context.stats().failed_frees, 0);
    assert_eq!(context.stats().live_bytes, 0);
    assert!(context.take_errors().is_empty());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn bytes_that_are_no_value_are_refused() {
    let (sim, _context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[true, false, true]).unwrap();
    let driver = sim.driver();
    // SAFETY: the byte is inside the buffer; the stream is the one that used it last.
    unsafe { call!(driver, cuMemsetD8Async(buffer.cu_deviceptr() + 1, 2, 1, stream.cu_stream())) }.unwrap();
    let mut target = [true; 3];
    for result in [buffer.to_vec(&stream).map(drop), buffer.copy_to_slice(&stream, &mut target)] {
        assert!(matches!(result, Err(MemoryError::InvalidElement { index: 1, type_name: "bool", .. })));
    }
    assert_eq!(target, [true; 3]);
    assert_eq!(buffer.range_to_vec(&stream, 2..3).unwrap(), [true]);
}

#[test]
fn identities_are_stable_and_never_reused() {
    let (_sim, _context, stream) = start();
    let mut ids = HashSet::new();
    let mut addresses = HashSet::new();
    for _ in 0..20 {
        let mut buffer = DeviceBuffer::<u8>::zeroed(&stream, 4096).unwrap();
        let (id, address) = (buffer.allocation_id(), buffer.cu_deviceptr());
        buffer.fill(&stream, 1).unwrap();
        assert_eq!((buffer.allocation_id(), buffer.cu_deviceptr()), (id, address));
        assert!(ids.insert(id));
        addresses.insert(address);
    }
    assert!(addresses.len() < 20, "the pool reuses addresses");
}

#[test]
fn out_of_memory_says_how_much_there_was() {
    let sim = simtile_sim::Simulator::builder().memory(64 << 20).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let held = DeviceBuffer::<u8>::zeroed(&stream, 40 << 20).unwrap();
    match DeviceBuffer::<u8>::zeroed(&stream, 40 << 20) {
        Err(MemoryError::OutOfMemory { bytes, free, total, .. }) => {
            assert_eq!(bytes, 40 << 20);
            assert!(free < 40 << 20 && total >= 64 << 20);
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    let again = DeviceBuffer::<u8>::zeroed(&stream, 40 << 20).unwrap();
    assert_eq!(again.range_to_vec(&stream, 0..100).unwrap(), [0; 100]);
    assert!(context.loss().is_none());
}

const POOLS: &[Entry] = &[Entry::cuMemAllocFromPoolAsync, Entry::cuMemFreeAsync, Entry::cuMemPoolCreate];

fn allocate_and_drop(context: &Arc<Context>, rounds: usize) {
    let stream = context.new_stream().unwrap();
    for i in 0..rounds {
        let buffer = DeviceBuffer::from_slice(&stream, &vec![i as u32; 5000]).unwrap();
        assert_eq!(buffer.to_vec(&stream).unwrap(), vec![i as u32; 5000]);
    }
}

#[test]
fn without_pools_blocks_are_parked_and_reused() {
    for masked in [POOLS, &POOLS[..1], &POOLS[2..]] {
        let sim = sim(1);
        sim.mask(masked);
        let context = context(&sim, 0);
        allocate_and_drop(&context, 20);
        assert!(sim.counts().of(Entry::cuMemAlloc) <= 2, "{:?}", sim.counts());
        assert_eq!(sim.counts().of(Entry::cuMemFree), 0, "a free would stop every launch of the context");
        assert!(context.stats().parked_bytes >= 20_000);
        context.trim().unwrap();
        assert_eq!(context.stats().parked_bytes, 0);
        assert_eq!(sim.counts().of(Entry::cuMemFree), sim.counts().of(Entry::cuMemAlloc));
        assert_eq!(context.stats().failed_frees, 0);
    }
}

#[test]
fn without_pools_a_parked_block_is_not_reused_before_its_last_use() {
    let sim = sim(1);
    sim.mask(POOLS);
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    let address = buffer.cu_deviceptr();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 1).unwrap();
    drop(buffer);
    let other = DeviceBuffer::<u32>::zeroed(&b, 1000).unwrap();
    assert_ne!(other.cu_deviceptr(), address);
    gate.open();
    a.synchronize().unwrap();
    let again = DeviceBuffer::<u32>::zeroed(&b, 1000).unwrap();
    assert_eq!(again.cu_deviceptr(), address);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn pooled_memory_is_kept_between_synchronisations() {
    let (sim, context, _stream) = start();
    allocate_and_drop(&context, 20);
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuMemPoolSetAttribute), 2, "threshold and reuse, once each");
    assert_eq!(counts.of(Entry::cuMemAllocFromPoolAsync), counts.of(Entry::cuMemFreeAsync));
    assert_eq!(context.stats().live_allocations, 0);
    context.trim().unwrap();
}

#[test]
fn staging_is_reused_and_bounded() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap();
    for _ in 0..200 {
        buffer.copy_from_slice_at(&stream, 0, &[1; 1000]).unwrap();
        buffer.range_to_vec(&stream, 0..2000).unwrap();
    }
    for _ in 0..5 {
        buffer.to_vec(&stream).unwrap();
    }
    assert!(sim.counts().of(Entry::cuMemHostAlloc) < 20, "{:?}", sim.counts());
    let gate = sim.gate(stream.cu_stream()).unwrap();
    std::thread::scope(|scope| {
        let uploader = scope.spawn(|| {
            // More than all blocks of its class: waits for the oldest, which the gate holds.
            for _ in 0..300 {
                buffer.copy_from_slice_at(&stream, 0, &[2; 1000]).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        uploader.join().unwrap();
    });
    assert!(context.stats().staging_bytes <= 64 << 20);
    assert_eq!(buffer.range_to_vec(&stream, 998..1002).unwrap(), [2, 2, 0, 0]);
}

/// M8: lengths near the end of the address space are refused, not wrapped.
#[test]
fn a_landing_refuses_lengths_that_no_block_has() {
    let (_sim, context, _stream) = start();
    for lengths in [vec![usize::MAX], vec![8, usize::MAX - 4], vec![usize::MAX / 2 + 1, usize::MAX / 2 + 1]] {
        let mut landing = simtile_core::HostLanding::<u32>::new("a source", 4).unwrap();
        for &bytes in &lengths {
            context.make_staging_block(64).unwrap();
            landing.push(context.try_staging_block(64).unwrap().unwrap(), bytes);
        }
        assert_eq!(landing.queued(), lengths.iter().fold(0usize, |sum, n| sum.saturating_add(*n)));
        let refused = loop {
            match landing.land() {
                Ok(landed) => assert!(landed && landing.pieces() > 0),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, MemoryError::OutOfRange { len: 16, .. }), "{refused}");
        assert!(landing.finish().is_err());
    }
}

/// The most common fault of kernels: a last block that writes behind the end. Nothing rounds a buffer's size up to where it would be hidden.
#[test]
fn a_kernel_that_writes_one_element_too_many_is_told_of() {
    const WRITE: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry write(.param .u64 p)\n{\n .reg .b32 %i;\n .reg .b64 \
                         %p, %o;\n ld.param.u64 %p, [p];\n cvta.to.global.u64 %p, %p;\n mov.u32 %i, %tid.x;\n mul.wide.u32 %o, %i, 4;\n \
                         add.s64 %p, %p, %o;\n st.global.u32 [%p], %i;\n ret;\n}\n";
    for (len, threads) in [(33usize, 33u32), (33, 34), (1000, 1000), (1000, 1001), (1000, 1024)] {
        let (sim, context, stream) = start();
        let write = context.load_module_from_ptx_src(WRITE).unwrap().load_function("write").unwrap();
        let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, len).unwrap();
        buffer.set_label("mine");
        let config = simtile_types::LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: 0,
        };
        let args = simtile_core::LaunchArgs::new().buffer_mut(&mut buffer);
        // SAFETY: on a simulator, a kernel that goes too far does no harm.
        unsafe { stream.launch(&write, config, args) }.unwrap();
        let outcome = stream.synchronize();
        assert_eq!(
            outcome.is_ok(),
            threads as usize == len,
            "{len} elements, {threads} threads: {outcome:?}"
        );
        let reports = sim.reports();
        assert_eq!(reports.is_empty(), outcome.is_ok());
        if let Some(report) = reports.first() {
            assert!(
                report.to_string().contains("mine") && report.to_string().contains("into the allocation"),
                "{report}"
            );
        }
    }
}
