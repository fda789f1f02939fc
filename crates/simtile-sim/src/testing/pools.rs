//! Pools through the table: order of allocation, use and free, reuse across streams, lifetime.

use super::memory::INVALID;
use super::*;

const MI: usize = 1 << 20;

fn props(most: usize) -> CUmemPoolProps {
    // SAFETY: all-zero is a valid value of this C structure.
    let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    props.maxSize = most;
    props
}

fn pool(rig: &Rig, most: usize) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    ok!(rig, cuMemPoolCreate(&mut pool, &props(most)));
    pool
}

fn take(rig: &Rig, pool: CUmemoryPool, bytes: usize, stream: CUstream) -> u64 {
    let mut p = 0;
    ok!(rig, cuMemAllocFromPoolAsync(&mut p, bytes, pool, stream));
    p
}

fn set(rig: &Rig, pool: CUmemoryPool, attribute: CUmemPool_attribute, on: u32) {
    let mut value = u64::from(on);
    ok!(rig, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()));
}

fn get(rig: &Rig, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(rig, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value
}

#[test]
fn memory_is_named_at_the_call_and_there_when_the_stream_gets_there() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let gate = rig.sim.gate(a).unwrap();
        let mut p = 0;
        ok!(rig, cuMemAllocAsync(&mut p, 64, a));
        let (mut base, mut size) = (0, 0);
        ok!(rig, cuMemGetAddressRange(&mut base, &mut size, p + 3));
        assert_eq!((base, size), (p, 64));
        ok!(rig, cuMemsetD8Async(p, 4, 64, a));
        // Another stream gets there after an event.
        let event = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        let host = rig.pinned(64);
        ok!(rig, cuMemcpyDtoHAsync(host.cast(), p, 64, b));
        drop(gate);
        ok!(rig, cuStreamSynchronize(b));
        // SAFETY: 64 bytes of pinned memory, and the copy is done.
        assert_eq!(unsafe { std::slice::from_raw_parts(host, 64) }, [4; 64]);
        assert_eq!(rig.kinds(), []);
    }
}

#[test]
fn work_before_a_free_keeps_its_memory_although_the_address_is_out_again() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let pool = pool(&rig, 0);
        let p = take(&rig, pool, 1000, stream);
        let gate = rig.sim.gate(stream).unwrap();
        let host = rig.pinned(1000);
        ok!(rig, cuMemsetD8Async(p, 1, 1000, stream));
        ok!(rig, cuMemcpyDtoHAsync(host.cast(), p, 1000, stream));
        ok!(rig, cuMemFreeAsync(p, stream));
        // A smaller one at the same place: calls see it, the queued work does not.
        assert_eq!(take(&rig, pool, 500, stream), p);
        assert_eq!(code!(rig, cuMemsetD8Async(p, 2, 501, stream)), INVALID);
        ok!(rig, cuMemsetD8Async(p, 2, 500, stream));
        drop(gate);
        ok!(rig, cuStreamSynchronize(stream));
        // SAFETY: 1000 bytes of pinned memory, and the copy is done.
        assert_eq!(unsafe { std::slice::from_raw_parts(host, 1000) }, [1; 1000]);
        assert_eq!(rig.download(p, 500), [2; 500]);
    }
}

#[test]
fn another_stream_gets_memory_after_an_event_or_when_the_free_has_run() {
    let rig = Rig::new();
    let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
    let pool = pool(&rig, 0);
    let p = take(&rig, pool, 4096, a);
    let gate = rig.sim.gate(a).unwrap();
    ok!(rig, cuMemFreeAsync(p, a));
    let q = take(&rig, pool, 4096, b);
    assert_ne!(p, q, "nothing orders b after the free");
    let event = rig.mark(a);
    ok!(rig, cuStreamWaitEvent(b, event, 0));
    set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    assert_ne!(take(&rig, pool, 4096, b), p);
    set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
    // Also over a third stream.
    let second = rig.mark(b);
    ok!(rig, cuStreamWaitEvent(c, second, 0));
    assert_eq!(take(&rig, pool, 4096, c), p);
    ok!(rig, cuMemFreeAsync(p, c));
    drop(gate);
    ok!(rig, cuCtxSynchronize());
    set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    let d = rig.stream();
    // A synchronisation has made it free for all.
    assert_eq!(take(&rig, pool, 4096, d), p);
}

#[test]
fn the_legacy_stream_and_blocking_streams_share_without_events() {
    let rig = Rig::new();
    let (blocking, other) = (rig.blocking_stream(), rig.stream());
    let pool = pool(&rig, 0);
    let p = take(&rig, pool, 4096, blocking);
    let gate = rig.sim.gate(blocking).unwrap();
    ok!(rig, cuMemFreeAsync(p, blocking));
    assert_ne!(take(&rig, pool, 4096, other), p);
    assert_eq!(take(&rig, pool, 4096, CUstream::NULL), p);
    drop(gate);
    ok!(rig, cuCtxSynchronize());
}

#[test]
fn a_full_pool_makes_the_stream_wait_for_another_ones_free() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let pool = pool(&rig, 32 * MI);
        let p = take(&rig, pool, 20 * MI, a);
        let gate = rig.sim.gate(a).unwrap();
        ok!(rig, cuMemFreeAsync(p, a));
        let mut q = 0;
        set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
        let full = code!(rig, cuMemAllocFromPoolAsync(&mut q, 20 * MI, pool, b));
        assert_eq!(full, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
        assert_eq!(take(&rig, pool, 20 * MI, b), p);
        ok!(rig, cuMemsetD8Async(p, 3, 16, b));
        let event = rig.mark(b);
        std::thread::sleep(Duration::from_millis(10));
        assert!(rig.pending(event), "the hidden wait holds b");
        drop(gate);
        ok!(rig, cuEventSynchronize(event));
        assert_eq!(rig.download(p, 16), [3; 16]);
    }
}

#[test]
fn a_loss_ends_the_wait_of_a_stream_for_another_contexts_free() {
    let rig = Rig::new();
    let mut other = CUcontext::NULL;
    ok!(rig, cuCtxCreate(&mut other, 0, 0));
    let (a, faulty, third) = (rig.stream(), rig.stream(), rig.stream());
    ok!(rig, cuCtxSetCurrent(rig.context));
    let b = rig.stream();
    let pool = pool(&rig, 32 * MI);
    let p = take(&rig, pool, 20 * MI, a);
    ok!(rig, cuStreamSynchronize(a));
    let gate = rig.sim.gate(a).unwrap();
    ok!(rig, cuMemFreeAsync(p, a));
    assert_eq!(take(&rig, pool, 20 * MI, b), p);
    let event = rig.mark(b);
    assert!(rig.pending(event));
    // A use after free in the other context.
    let mut q = 0;
    ok!(rig, cuMemAllocAsync(&mut q, 64, faulty));
    ok!(rig, cuStreamSynchronize(faulty));
    let second = rig.sim.gate(faulty).unwrap();
    ok!(rig, cuMemsetD8Async(q, 1, 64, faulty));
    ok!(rig, cuMemFreeAsync(q, third));
    ok!(rig, cuStreamSynchronize(third));
    drop(second);
    assert_eq!(code!(rig, cuStreamSynchronize(faulty)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    // The loss is the whole process's: the waiting stream does not hang, it returns the same code.
    assert_eq!(code!(rig, cuEventSynchronize(event)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    drop(gate);
    assert_eq!(code!(rig, cuMemsetD8(p, 1, 16)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn a_destroyed_pool_goes_with_its_last_memory() {
    let rig = Rig::new();
    let before = rig.free_bytes();
    let stream = rig.stream();
    let pool = pool(&rig, 0);
    ok!(rig, cuDeviceSetMemPool(0, pool));
    let mut p = 0;
    ok!(rig, cuMemAllocAsync(&mut p, 1000, stream));
    ok!(rig, cuMemPoolDestroy(pool));
    assert_eq!(code!(rig, cuMemPoolDestroy(pool)), INVALID);
    assert_eq!(code!(rig, cuMemPoolTrimTo(pool, 0)), INVALID);
    ok!(rig, cuMemsetD8Async(p, 1, 1000, stream));
    assert_eq!(before - rig.free_bytes(), 32 * MI);
    ok!(rig, cuMemFreeAsync(p, stream));
    let event = rig.mark(stream);
    ok!(rig, cuEventSynchronize(event));
    assert_eq!(rig.free_bytes(), before);
    assert_eq!(code!(rig, cuMemFreeAsync(p, stream)), INVALID);
}

#[test]
fn what_stays_reserved_follows_threshold_and_trim() {
    let rig = Rig::new();
    let pool = pool(&rig, 0);
    let reserved =
        || get(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) as usize / MI;
    let p = take(&rig, pool, 100 * MI, CUstream::NULL);
    ok!(rig, cuMemFreeAsync(p, CUstream::NULL));
    set(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 64 << 20);
    assert_eq!(reserved(), 128);
    ok!(rig, cuCtxSynchronize());
    assert_eq!(reserved(), 64);
    ok!(rig, cuMemPoolTrimTo(pool, 40 * MI));
    assert_eq!(reserved(), 64);
    ok!(rig, cuMemPoolTrimTo(pool, 20 * MI));
    assert_eq!(reserved(), 32);
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let rig = Rig::new();
    let mut out = CUmemoryPool::NULL;
    let mut host = props(0);
    host.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
    let mut shared = props(0);
    shared.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    for props in [host, shared] {
        assert_eq!(code!(rig, cuMemPoolCreate(&mut out, &props)), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    assert_eq!(rig.kinds(), [crate::ReportKind::Unsupported; 2]);
    // Handles of other kinds name no pool.
    let stream = rig.stream();
    assert_eq!(code!(rig, cuMemPoolTrimTo(CUmemoryPool(stream.0), 0)), INVALID);
    assert_eq!(code!(rig, cuMemPoolTrimTo(CUmemoryPool(0x1234), 0)), INVALID);
    assert_eq!(code!(rig, cuDeviceSetMemPool(5, out)), CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn labels_and_values_name_memory_that_a_stream_has_not_reached() {
    let rig = Rig::new();
    let stream = rig.stream();
    let gate = rig.sim.gate(stream).unwrap();
    let mut p = 0;
    ok!(rig, cuMemAllocAsync(&mut p, 64, stream));
    let extras = rig.driver.table().extras.unwrap();
    let target = simtile_driver::LabelTarget::Allocation(p);
    // SAFETY: the table and the state belong together.
    let code = unsafe { (extras.label)(rig.driver.state(), target, "early") };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    ok!(rig, cuStreamWriteValue32(stream, p, 7, 0));
    drop(gate);
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(rig.download(p, 4), 7u32.to_ne_bytes());
    rig.download(p, 8);
    assert_eq!(rig.sim.take_reports()[0].labels, ["early"]);
}

/// Threads on own streams take, fill, check and give back memory of one small pool, so that they get each other's
/// memory all the time, by luck and by hidden waits.
#[test]
fn streams_never_see_each_others_bytes() {
    let rig = Rig::new();
    let pool = pool(&rig, 32 * MI);
    std::thread::scope(|scope| {
        for number in 0..4u32 {
            let rig = &rig;
            scope.spawn(move || {
                ok!(rig, cuCtxSetCurrent(rig.context));
                let stream = rig.stream();
                let host = rig.pinned(4096).cast::<u32>();
                for round in 0..60 {
                    let (value, bytes) =
                        (number << 16 | round, 4 * MI + (round as usize * 7919 % MI) / 4 * 4);
                    let mut p = 0;
                    let code = code!(rig, cuMemAllocFromPoolAsync(&mut p, bytes, pool, stream));
                    if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                        // The others have it all just now.
                        ok!(rig, cuStreamSynchronize(stream));
                        continue;
                    }
                    assert_eq!(code, CUresult::CUDA_SUCCESS);
                    ok!(rig, cuMemsetD32Async(p, value, bytes / 4, stream));
                    ok!(rig, cuMemcpyDtoHAsync(host.cast(), p + bytes as u64 - 4096, 4096, stream));
                    ok!(rig, cuMemFreeAsync(p, stream));
                    if round % 4 == 0 {
                        ok!(rig, cuStreamSynchronize(stream));
                        // SAFETY: 4096 bytes of pinned memory, and the copy is done.
                        let seen = unsafe { std::slice::from_raw_parts(host, 1024) };
                        assert!(seen.iter().all(|word| *word == value));
                    }
                }
                ok!(rig, cuStreamSynchronize(stream));
                ok!(rig, cuMemFreeHost(host.cast()));
            });
        }
    });
    ok!(rig, cuCtxSynchronize());
    assert_eq!(get(&rig, pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_eq!(rig.kinds(), []);
}

/// A free that had to wait behind a blocked launch is numbered when it is queued: what was submitted meanwhile comes first.
#[test]
fn a_free_that_waits_is_numbered_when_it_is_queued() {
    let rig = Rig::new();
    let (a, b) = (rig.stream(), rig.stream());
    let pool = pool(&rig, 0);
    let memory = rig.memory(64);
    let p = take(&rig, pool, 4096, a);
    ok!(rig, cuStreamSynchronize(a));
    let gate = rig.sim.gate(a).unwrap();
    let fill = |stream| code!(rig, cuMemsetD8Async(memory.base, 1, 4, stream));
    std::thread::scope(|scope| {
        let state = || rig.sim.core().state.lock();
        let stream_of = |state: &crate::engine::state::State, handle: CUstream| {
            state
                .streams
                .iter()
                .find(|(_, s)| s.handle == handle)
                .map(|(uid, s)| (*uid, s.counted, s.blocked))
                .unwrap()
        };
        while stream_of(&state(), a).1 < crate::engine::state::STREAM_LIMIT {
            assert!(fill(a).is_ok());
        }
        let enter = || ok!(rig, cuCtxSetCurrent(rig.context));
        let blocked = scope.spawn(move || {
            enter();
            fill(a)
        });
        rig.soon(|| stream_of(&state(), a).2 > 0);
        let freed = scope.spawn(move || {
            enter();
            code!(rig, cuMemFreeAsync(p, a))
        });
        // The address is out of use as soon as the free has begun; then it waits.
        rig.soon(|| code!(rig, cuMemsetD8Async(p, 1, 4, b)) == INVALID);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!freed.is_finished(), "a free behind a blocked launch has to wait");
        // What is submitted now is before the free.
        let before = state().next_seq;
        (0..5).for_each(|_| assert!(fill(b).is_ok()));
        gate.open();
        assert!(blocked.join().unwrap().is_ok() && freed.join().unwrap().is_ok());
        let uid = stream_of(&state(), a).0;
        let frees = rig.sim.core().heap.pools.frees_of(uid);
        assert_eq!(frees.len(), 1, "{frees:?}");
        let (position, said) = frees[0];
        assert_eq!(said, (uid, position));
        assert!(position >= before + 6, "free {position}, work before it from {before} on");
    });
    ok!(rig, cuCtxSynchronize());
    assert_eq!(rig.kinds(), []);
}
