//! A4, A5: pools that users make, and the context's own.

mod common;

use common::*;
use simtile_core::{DeviceBuffer, MemPool, MemoryError};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::{Checks, Lacks, Simulator};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn the_context_allocates_from_a_pool_of_its_own() {
    let (sim, context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 100]).unwrap();
    let counts = sim.counts();
    assert_eq!((counts.of(Entry::cuMemPoolCreate), counts.of(Entry::cuDeviceGetDefaultMemPool)), (1, 0));
    // A second handle of the context uses the same one.
    let again = common::context(&sim, 0);
    let other = DeviceBuffer::from_slice(&again.new_stream().unwrap(), &[2u32; 100]).unwrap();
    assert_eq!(sim.counts().of(Entry::cuMemPoolCreate), 1);
    drop((buffer, other, stream, again, context));
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(sim.counts().of(Entry::cuMemPoolDestroy), 1);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn threads_that_start_together_make_one_pool() {
    let sim = sim(1);
    let context = context(&sim, 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = context.new_stream().unwrap();
                DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap().to_vec(&stream).unwrap();
            });
        }
    });
    drop(context);
    assert!(simtile_core::drain_background(SOON));
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuMemPoolCreate), counts.of(Entry::cuMemPoolDestroy));
}

#[test]
fn a_pool_counts_what_it_holds() {
    let (sim, context, stream) = start();
    let pool = MemPool::builder(&context).label("scratch").build().unwrap();
    assert_eq!(context.stats().pools, 1);
    let a = pool.from_slice(&stream, &[7u8; 1000]).unwrap();
    let b = pool.zeroed::<u64>(&stream, 1000).unwrap();
    // SAFETY: it is written before it is read.
    let mut c = unsafe { pool.uninit::<u32>(&stream, 256) }.unwrap();
    c.fill(&stream, 3).unwrap();
    assert_eq!(c.to_vec(&stream).unwrap(), [3; 256]);
    let stats = pool.stats().unwrap();
    assert_eq!(stats.live, 1000 + 8000 + 1024);
    assert!(stats.used >= stats.live && stats.reserved >= stats.used, "{stats:?}");
    assert_eq!(a.to_vec(&stream).unwrap(), [7; 1000]);
    drop((a, b, c));
    let stats = pool.stats().unwrap();
    assert_eq!((stats.live, stats.live_high), (0, 10024));
    assert!(stats.used_high >= 10024);
    // Kept for reuse until it is trimmed.
    stream.synchronize().unwrap();
    assert!(pool.stats().unwrap().reserved > 0);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().unwrap().reserved, 0);
    pool.reset_high_marks().unwrap();
    let stats = pool.stats().unwrap();
    assert_eq!((stats.live_high, stats.used_high, stats.reserved_high), (0, 0, 0));
    assert!(pool.to_string().contains("scratch"));
    drop(pool);
    assert_eq!(context.stats().pools, 0);
    assert_eq!(sim.counts().of(Entry::cuMemPoolDestroy), 1);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_threshold_of_nothing_gives_memory_back_at_each_synchronisation() {
    let (_sim, context, stream) = start();
    let pool = MemPool::builder(&context).release_threshold(0).build().unwrap();
    drop(pool.zeroed::<u8>(&stream, 1 << 20).unwrap());
    context.synchronize_all().unwrap();
    assert_eq!(pool.stats().unwrap().reserved, 0);
    pool.set_release_threshold(u64::MAX).unwrap();
    drop(pool.zeroed::<u8>(&stream, 1 << 20).unwrap());
    context.synchronize_all().unwrap();
    assert!(pool.stats().unwrap().reserved > 0);
}

#[test]
fn fr_k8_a_limit_is_about_live_bytes() {
    for lacks in [Lacks::NOTHING, Lacks::by_names("pools").unwrap()] {
        let sim = Simulator::builder().without(lacks).quiet().build();
        let context = context(&sim, 0);
        let stream = context.new_stream().unwrap();
        let pool = MemPool::builder(&context).limit(1000 << 10).label("small").build().unwrap();
        let first = pool.zeroed::<u8>(&stream, 500 << 10).unwrap();
        drop(first);
        let _second = pool.zeroed::<u8>(&stream, 800 << 10).unwrap();
        let error = pool.zeroed::<u8>(&stream, 300 << 10).unwrap_err();
        let (live, limit) = (800 << 10, 1000 << 10);
        match &error {
            MemoryError::PoolLimit { live: l, limit: m, bytes, .. } => {
                assert_eq!((*l, *m, *bytes), (live, limit, 300 << 10));
            }
            other => panic!("{other:?}"),
        }
        assert!(error.to_string().contains("small"), "{error}");
        // More than the pool ever has is refused without waiting.
        let start = std::time::Instant::now();
        context.set_oom_wait(Duration::from_secs(30));
        assert!(pool.zeroed::<u8>(&stream, 2000 << 10).is_err());
        assert!(start.elapsed() < Duration::from_secs(10));
        // The context itself has room.
        DeviceBuffer::<u8>::zeroed(&stream, 2000 << 10).unwrap();
    }
}

#[test]
fn a_full_pool_waits_for_memory_in_flight() {
    let (sim, context, stream) = start();
    let pool = MemPool::builder(&context).limit(1 << 20).build().unwrap();
    let other = context.new_stream().unwrap();
    let buffer = pool.zeroed::<u8>(&stream, 1 << 20).unwrap();
    // Read on two streams, so that neither of both can free it alone.
    let mut copy = DeviceBuffer::<u8>::zeroed(&other, 1 << 20).unwrap();
    other.synchronize().unwrap();
    let gates = [sim.gate(stream.cu_stream()).unwrap(), sim.gate(other.cu_stream()).unwrap()];
    copy.copy_from(&other, &buffer).unwrap();
    let mut second = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap();
    second.copy_from(&stream, &buffer).unwrap();
    drop(buffer);
    assert_eq!(pool.stats().unwrap().live, 1 << 20);
    context.set_oom_wait(SOON);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.zeroed::<u8>(&context.new_stream().unwrap(), 1 << 20).map(drop));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        gates.iter().for_each(|gate| gate.open());
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn fr_b18_a_pool_outlives_its_handle_as_long_as_its_buffers() {
    let (sim, context, stream) = start();
    let pool = context.new_mem_pool().unwrap();
    let buffers: Vec<_> = (0..3).map(|i| pool.from_slice(&stream, &[i as u32; 64]).unwrap()).collect();
    let clone = pool.clone();
    let error = clone.close_now().unwrap_err();
    assert!(matches!(error, MemoryError::PoolInUse { bytes: 768, .. }), "{error:?}");
    drop(pool);
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.to_vec(&stream).unwrap(), [i as u32; 64]);
    }
    assert_eq!(sim.counts().of(Entry::cuMemPoolDestroy), 0);
    let gate = sim.gate(stream.cu_stream()).unwrap();
    drop(buffers);
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(sim.counts().of(Entry::cuMemPoolDestroy), 1);
    gate.open();
    stream.synchronize().unwrap();
    // Without buffers it ends at once.
    context.new_mem_pool().unwrap().close_now().unwrap();
    assert_eq!(sim.counts().of(Entry::cuMemPoolDestroy), 2);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn without_pools_in_the_driver_memory_comes_from_the_context() {
    let sim = Simulator::builder().without(Lacks::by_names("pools").unwrap()).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let pool = context.new_mem_pool().unwrap();
    assert!(pool.cu_pool().is_none());
    let buffer = pool.from_slice(&stream, &[1u32; 64]).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 64]);
    assert_eq!(pool.stats().unwrap().used, 256);
    drop(buffer);
    assert_eq!(pool.stats().unwrap().live_high, 256);
    pool.trim(0).unwrap();
}

#[test]
fn a_pool_serves_streams_of_its_context_alone() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let pool = zero.new_mem_pool().unwrap();
    let error = pool.zeroed::<u32>(&one.new_stream().unwrap(), 4).unwrap_err();
    assert!(matches!(error, MemoryError::OtherContext { .. }), "{error:?}");
}

#[test]
fn fr_k6_k7_an_allocation_that_fails_trims_what_is_over_and_waits_once() {
    let sim = Simulator::builder().memory(96 << 20).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let pool = context.new_mem_pool().unwrap();
    // What one pool keeps for reuse is in the way of the others.
    drop(pool.zeroed::<u8>(&stream, 60 << 20).unwrap());
    stream.synchronize().unwrap();
    let mut big = DeviceBuffer::<u8>::zeroed(&stream, 60 << 20).unwrap();
    assert_eq!(pool.stats().unwrap().reserved, 0);
    // In use behind a gate: never given away, and waited for.
    stream.synchronize().unwrap();
    let gate = sim.gate(other.cu_stream()).unwrap();
    big.fill(&other, 1).unwrap();
    drop(big);
    context.set_oom_wait(Duration::from_millis(20));
    let error = pool.zeroed::<u8>(&stream, 60 << 20).unwrap_err();
    assert!(
        matches!(&error, MemoryError::OutOfMemory { source, .. }
        if source.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        "{error:?}"
    );
    context.set_oom_wait(SOON);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.zeroed::<u8>(&stream, 60 << 20).map(drop));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().unwrap().unwrap();
    });
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn fr_b16_trims_and_allocations_of_many_threads() {
    let sim = sim(1);
    let context = context(&sim, 0);
    let pool = context.new_mem_pool().unwrap();
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let (context, pool, failures, sim) = (&context, &pool, &failures, &sim);
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let mut held: Vec<DeviceBuffer<u32>> = Vec::new();
                for i in 0..200u32 {
                    if i % 10 == thread {
                        sim.fail(Entry::cuMemAllocFromPoolAsync, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
                    }
                    match pool.from_slice(&stream, &[i; 32]) {
                        Ok(buffer) => held.push(buffer),
                        Err(_) => drop(failures.fetch_add(1, Ordering::Relaxed)),
                    }
                    if i % 7 == 0 {
                        pool.trim(0).unwrap();
                    }
                    if held.len() > 5 {
                        let buffer = held.remove(0);
                        let values = buffer.to_vec(&stream).unwrap();
                        assert!(values.iter().all(|&v| v == values[0]));
                    }
                }
            });
        }
    });
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(pool.stats().unwrap().live, 0);
    assert_eq!(Arc::strong_count(&pool), 1);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
