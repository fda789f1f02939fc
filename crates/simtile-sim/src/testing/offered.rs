//! What a test can ask of the driver beyond CUDA: each of the tools shows its effect.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::explore::{Strategy, explore};
use crate::report::ReportKind;
use crate::{Mode, Simulator};
use simtile_driver::Entry;
use simtile_driver::sys::*;
use simtile_sync::{Arc, Mutex, thread, time};
use std::time::Duration;

fn allocate(rig: &Rig, bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(rig, cuMemAlloc(&mut pointer, bytes));
    pointer
}

#[test]
fn slow_calls_take_virtual_time_and_others_go_on_meanwhile() {
    let outcome = explore(3, Strategy::Interleaved, || {
        let rig = Arc::new(Rig::with(Simulator::builder().mode(Mode::Explore)));
        rig.sim.slow(Some(Entry::cuMemAlloc), Duration::from_secs(3000));
        let order = Arc::new(Mutex::new(Vec::new()));
        let (theirs, seen) = (rig.clone(), order.clone());
        let slow = thread::spawn("slow", move || {
            ok!(theirs, cuCtxSetCurrent(theirs.context));
            allocate(&theirs, 64);
            seen.lock().push("slow");
        });
        let before = time::now();
        time::sleep(Duration::from_secs(1));
        let stream = rig.stream();
        ok!(rig, cuStreamSynchronize(stream));
        order.lock().push("quick");
        slow.unwrap().join().unwrap();
        let order = order.lock().clone();
        (order, time::now() - before)
    });
    let (order, took) = outcome.result.unwrap();
    assert_eq!(order, ["quick", "slow"]);
    assert!(took >= Duration::from_secs(3000) && took < Duration::from_secs(3010), "{took:?}");
}

#[test]
fn from_the_nth_operation_on_every_call_fails_alike() {
    let rig = Rig::new();
    let stream = rig.stream();
    rig.sim.lose_at(Some(Entry::cuMemAlloc), 3, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    let pointers = [allocate(&rig, 64), allocate(&rig, 64)];
    ok!(rig, cuMemsetD8Async(pointers[1], 1, 64, stream));
    let mut pointer = 0;
    let lost = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;
    for _ in 0..3 {
        assert_eq!(code!(rig, cuMemAlloc(&mut pointer, 64)), lost);
        assert_eq!(code!(rig, cuMemsetD8Async(pointers[1], 1, 64, stream)), lost);
        assert_eq!(code!(rig, cuStreamSynchronize(stream)), lost);
        assert_eq!(code!(rig, cuCtxSynchronize()), lost);
    }
}

/// Freed memory is poison twice: its addresses fault, and when they are somebody else's, its bytes are nobody's.
#[test]
fn freed_memory_is_poison() {
    for rig in
        [Mode::Fast, Mode::Fifo].map(|mode| Rig::with(Simulator::builder().mode(mode).checks(Checks::ALL)))
    {
        let stream = rig.stream();
        let old = allocate(&rig, 4096);
        ok!(rig, cuMemsetD8(old, 7, 4096));
        ok!(rig, cuMemFree(old));
        let mut byte = 0u8;
        let refused = code!(rig, cuMemcpyDtoH((&raw mut byte).cast(), old, 1));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
        let new = allocate(&rig, 4096);
        assert_eq!(new, old, "addresses are used again");
        ok!(rig, cuMemcpyDtoH((&raw mut byte).cast(), new, 1));
        assert_ne!(byte, 7, "the old bytes are still there");
        let reports = rig.sim.take_reports();
        assert_eq!(reports.iter().map(|r| r.kind).collect::<Vec<_>>(), [ReportKind::UninitialisedRead]);
        // The same in stream order.
        let (mut first, mut second) = (0, 0);
        ok!(rig, cuMemAllocAsync(&mut first, 4096, stream));
        ok!(rig, cuMemsetD8Async(first, 7, 4096, stream));
        ok!(rig, cuMemFreeAsync(first, stream));
        ok!(rig, cuMemAllocAsync(&mut second, 4096, stream));
        assert_eq!(first, second, "a pool hands memory out again in stream order");
        ok!(rig, cuMemcpyDtoHAsync((&raw mut byte).cast(), second, 1, stream));
        ok!(rig, cuStreamSynchronize(stream));
        assert_ne!(byte, 7);
        let reports = rig.sim.take_reports();
        assert_eq!(reports.iter().map(|r| r.kind).collect::<Vec<_>>(), [ReportKind::UninitialisedRead]);
    }
}

#[test]
fn every_entry_can_be_missing_fail_and_be_counted() {
    let rig = Rig::new();
    for &entry in
        [Entry::cuMemAlloc, Entry::cuStreamCreate, Entry::cuModuleLoadData, Entry::cuGraphCreate].iter()
    {
        let call = |rig: &Rig| {
            let (mut pointer, mut stream, mut module, mut graph) =
                (0, CUstream::NULL, CUmodule::NULL, CUgraph::NULL);
            match entry {
                Entry::cuMemAlloc => code!(rig, cuMemAlloc(&mut pointer, 64)),
                Entry::cuStreamCreate => code!(rig, cuStreamCreate(&mut stream, 1)),
                Entry::cuModuleLoadData => {
                    code!(rig, cuModuleLoadData(&mut module, super::program::IMAGE.as_ptr().cast()))
                }
                _ => code!(rig, cuGraphCreate(&mut graph, 0)),
            }
        };
        let before = rig.sim.counts().of(entry);
        rig.sim.mask(&[entry]);
        assert_eq!(call(&rig), CUresult::SIMTILE_MISSING_ENTRY, "{entry:?}");
        rig.sim.mask(&[]);
        rig.sim.fail(entry, 2, CUresult::CUDA_ERROR_SYSTEM_NOT_READY);
        let codes = [call(&rig), call(&rig), call(&rig)];
        let ok = CUresult::CUDA_SUCCESS;
        assert_eq!(codes, [ok, CUresult::CUDA_ERROR_SYSTEM_NOT_READY, ok], "{entry:?}");
        assert_eq!(rig.sim.counts().of(entry) - before, 4, "{entry:?}");
    }
}

fn pool(rig: &Rig) -> CUmemoryPool {
    // SAFETY: plain values, for which zero means none.
    let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let mut pool = CUmemoryPool::NULL;
    ok!(rig, cuMemPoolCreate(&mut pool, &props));
    pool
}

fn free_memory(rig: &Rig) -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(rig, cuMemGetInfo(&mut free, &mut total));
    free
}

#[test]
fn a_stale_pool_names_the_next_one() {
    let rig = Rig::new();
    let (stream, before) = (rig.stream(), free_memory(&rig));
    let fresh = pool(&rig);
    ok!(rig, cuMemPoolDestroy(fresh));
    assert_ne!(pool(&rig), fresh, "without recycling a value does not come back soon");
    rig.sim.recycle_handles(true);
    let first = pool(&rig);
    let mut pointer = 0;
    ok!(rig, cuMemAllocFromPoolAsync(&mut pointer, 4096, first, stream));
    ok!(rig, cuMemPoolDestroy(first));
    let second = pool(&rig);
    assert_eq!(first, second);
    let used = |pool| {
        let mut bytes = 0u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        ok!(rig, cuMemPoolGetAttribute(pool, attribute, std::ptr::from_mut(&mut bytes).cast()));
        bytes
    };
    assert_eq!(used(first), 0, "the handle is the new pool's");
    // The old pool goes when its memory is back, though another has its handle.
    ok!(rig, cuMemFreeAsync(pointer, stream));
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(free_memory(&rig), before);
    ok!(rig, cuMemAllocFromPoolAsync(&mut pointer, 4096, second, stream));
    assert!(used(second) >= 4096);
}

#[test]
fn a_stale_memory_handle_names_the_next_memory_once_nothing_is_left() {
    const BYTES: usize = 2 << 20;
    let rig = Rig::new();
    // SAFETY: plain values, for which zero means none.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let create = || {
        let mut handle = 0;
        ok!(rig, cuMemCreate(&mut handle, BYTES, &prop, 0));
        handle
    };
    let fresh = create();
    ok!(rig, cuMemRelease(fresh));
    assert_ne!(create(), fresh);
    rig.sim.recycle_handles(true);
    let first = create();
    let mut address = 0;
    ok!(rig, cuMemAddressReserve(&mut address, BYTES, 0, 0, 0));
    ok!(rig, cuMemMap(address, BYTES, 0, first, 0));
    ok!(rig, cuMemRelease(first));
    // The mapping still knows its memory by the old value.
    let second = create();
    assert_ne!(second, first);
    let mut retained = 0;
    ok!(
        rig,
        cuMemRetainAllocationHandle(&mut retained, std::ptr::with_exposed_provenance_mut(address as usize))
    );
    assert_eq!(retained, first);
    ok!(rig, cuMemRelease(first));
    ok!(rig, cuMemUnmap(address, BYTES));
    let third = create();
    assert_eq!(third, first, "nothing is left of the first memory");
    // A second release of the first one takes the third away.
    ok!(rig, cuMemRelease(first));
    assert_eq!(code!(rig, cuMemRelease(third)), CUresult::CUDA_ERROR_INVALID_VALUE);
}
