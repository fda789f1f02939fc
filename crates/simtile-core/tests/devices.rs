//! H1, A1, A2: buffers used from two devices, peer access, copies between devices, frees with stamps on both. The checker looks
//! for races.

mod common;

use common::{context, on_fresh_thread};
use simtile_core::{
    Context, ContextError, DeviceBuffer, Function, LaunchArgs, LaunchError, MemPool, PinnedHostBuffer,
    Policy, Stream, StreamError,
};
use simtile_driver::Entry;
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const SOON: Duration = Duration::from_secs(20);

struct Rig {
    sim: Simulator,
    zero: Arc<Context>,
    one: Arc<Context>,
    a: Arc<Stream>,
    b: Arc<Stream>,
}

/// Two devices with a stream each, and the race checker on.
fn rig() -> Rig {
    let sim = Simulator::builder().devices(2).checks(Checks::ALL).quiet().build();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    Rig { sim, zero, one, a, b }
}

impl Rig {
    fn end(self) {
        let reports = self.sim.reports();
        assert!(reports.is_empty(), "{reports:?}");
    }
}

fn saxpy(context: &Arc<Context>) -> Function {
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap()
}

/// `y += 2 x`, on any stream of the kernel's context.
fn launch(
    stream: &Arc<Stream>,
    kernel: &Function,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<(), LaunchError> {
    let n = x.len() as u32;
    let args = LaunchArgs::new().arg(n).arg(2.0f32).buffer(x).buffer_mut(y);
    // SAFETY: both buffers have so many elements.
    unsafe { stream.launch(kernel, LaunchConfig::for_num_elems(n), args) }
}

#[test]
fn host_copies_and_fills_follow_across_devices() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.a, &[1u32; 1000]).unwrap();
    rig.a.synchronize().unwrap();
    let gate = rig.sim.gate(rig.a.cu_stream()).unwrap();
    buffer.fill(&rig.a, 2).unwrap();
    // Behind a gate on the other device's stream.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| buffer.to_vec(&rig.b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [2; 1000]);
    });
    // The other way: a fill from afar, behind a gate there, and a read at home.
    let gate = rig.sim.gate(rig.b.cu_stream()).unwrap();
    buffer.fill(&rig.b, 3).unwrap();
    buffer.copy_from_slice_at(&rig.b, 10, &[4; 5]).unwrap();
    assert!(!rig.b.is_complete().unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| buffer.to_vec(&rig.a).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        let values = reader.join().unwrap();
        assert!(values.iter().enumerate().all(|(i, &v)| v == if (10..15).contains(&i) { 4 } else { 3 }));
    });
    // Waiting for the stream that was named waits for the work.
    buffer.zero(&rig.b).unwrap();
    rig.b.synchronize().unwrap();
    let driver = rig.sim.driver();
    let mut word = 7u32;
    // SAFETY: the word is writable, the buffer alive, and everything on it is over.
    unsafe { simtile_driver::call!(driver, cuMemcpyDtoH((&raw mut word).cast(), buffer.cu_deviceptr(), 4)) }
        .unwrap();
    assert_eq!(word, 0);
    // A pattern that no memset can write, over memory of the other device.
    let mut wide = DeviceBuffer::<f64>::zeroed(&rig.a, 5000).unwrap();
    wide.fill(&rig.b, 1.25).unwrap();
    assert_eq!(wide.to_vec(&rig.a).unwrap(), [1.25; 5000]);
    rig.end();
}

#[test]
fn copies_between_devices_need_no_grant_and_are_ordered_on_both() {
    let rig = rig();
    let source = DeviceBuffer::from_slice(&rig.a, &[1u32, 2, 3, 4]).unwrap();
    let mut target = DeviceBuffer::<u32>::zeroed(&rig.b, 4).unwrap();
    rig.a.synchronize().unwrap();
    rig.b.synchronize().unwrap();
    let gate = rig.sim.gate(rig.a.cu_stream()).unwrap();
    // On either side's stream, behind a gate on the source's device.
    let mut source = source;
    source.fill(&rig.a, 9).unwrap();
    target.copy_from(&rig.b, &source).unwrap();
    assert!(!rig.b.is_complete().unwrap());
    // The source is overwritten only after it was read.
    source.fill(&rig.a, 10).unwrap();
    gate.open();
    assert_eq!(target.to_vec(&rig.b).unwrap(), [9; 4]);
    assert_eq!(source.to_vec(&rig.a).unwrap(), [10; 4]);
    target.copy_from(&rig.a, &source).unwrap();
    assert_eq!(target.to_vec(&rig.b).unwrap(), [10; 4]);
    source.copy_range_from(&rig.b, 1, &target, 0..2).unwrap();
    assert_eq!(rig.sim.counts().of(Entry::cuMemcpyPeerAsync), 3);
    assert_eq!(rig.sim.counts().of(Entry::cuCtxEnablePeerAccess), 0);
    // Pinned memory of one, device memory of the other.
    let pinned = PinnedHostBuffer::from_slice(&rig.zero, &[5u32; 4]).unwrap();
    pinned.copy_to(&rig.a, &mut target).unwrap();
    assert_eq!(target.to_vec(&rig.b).unwrap(), [5; 4]);
    let mut back = PinnedHostBuffer::<u32>::zeroed(&rig.one, 4).unwrap();
    back.copy_from(&rig.b, &source).unwrap();
    assert_eq!(back.read().unwrap()[..], [10, 10, 10, 10]);
    rig.end();
}

#[test]
fn kernels_reach_what_was_granted_and_nothing_else() {
    let rig = rig();
    let kernel = saxpy(&rig.one);
    let x = DeviceBuffer::from_slice(&rig.a, &[3.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.b, &[1.0f32; 64]).unwrap();
    let before = rig.sim.counts().of(Entry::cuLaunchKernel);
    let error = launch(&rig.b, &kernel, &x, &mut y).unwrap_err();
    assert!(matches!(error, LaunchError::OtherContext { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&rig.zero.to_string()) && text.contains(&rig.one.to_string()), "{text}");
    assert_eq!(rig.sim.counts().of(Entry::cuLaunchKernel), before);
    assert!(!rig.one.has_peer_access(&rig.zero));
    for _ in 0..2 {
        rig.one.enable_peer_access(&rig.zero).unwrap();
    }
    assert!(rig.one.has_peer_access(&rig.zero) && !rig.zero.has_peer_access(&rig.one));
    assert_eq!(rig.sim.counts().of(Entry::cuCtxEnablePeerAccess), 1);
    // Behind a gate at home, the kernel on the other device follows; and the writer at home follows the kernel.
    rig.a.synchronize().unwrap();
    let mut x = x;
    let gate = rig.sim.gate(rig.a.cu_stream()).unwrap();
    x.fill(&rig.a, 5.0).unwrap();
    launch(&rig.b, &kernel, &x, &mut y).unwrap();
    x.fill(&rig.a, 0.0).unwrap();
    gate.open();
    assert_eq!(y.to_vec(&rig.b).unwrap(), [11.0; 64]);
    assert_eq!(x.to_vec(&rig.a).unwrap(), [0.0; 64]);
    // Taken away, it is refused again.
    for _ in 0..2 {
        rig.one.disable_peer_access(&rig.zero).unwrap();
    }
    assert!(launch(&rig.b, &kernel, &x, &mut y).is_err());
    assert_eq!(rig.sim.counts().of(Entry::cuCtxDisablePeerAccess), 1);
    rig.end();
}

#[test]
fn a_grant_and_its_end_wait_for_what_uses_the_memory() {
    let rig = rig();
    let kernel = saxpy(&rig.one);
    let x = DeviceBuffer::from_slice(&rig.a, &[3.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.b, &[1.0f32; 64]).unwrap();
    rig.one.enable_peer_access(&rig.zero).unwrap();
    let gate = rig.sim.gate(rig.b.cu_stream()).unwrap();
    launch(&rig.b, &kernel, &x, &mut y).unwrap();
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| rig.one.disable_peer_access(&rig.zero).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!taking.is_finished(), "memory is taken from a kernel that is in flight");
        assert_eq!(rig.sim.counts().of(Entry::cuCtxDisablePeerAccess), 0);
        // Refused from the moment that it was asked for.
        assert!(!rig.one.has_peer_access(&rig.zero));
        gate.open();
        taking.join().unwrap();
    });
    assert_eq!(y.to_vec(&rig.b).unwrap(), [7.0; 64]);
    let gate = rig.sim.gate(rig.a.cu_stream()).unwrap();
    let mut x = x;
    x.fill(&rig.a, 1.0).unwrap();
    std::thread::scope(|scope| {
        let granting = scope.spawn(|| rig.one.enable_peer_access(&rig.zero).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!granting.is_finished(), "a grant is a write to the memory");
        gate.open();
        granting.join().unwrap();
    });
    launch(&rig.b, &kernel, &x, &mut y).unwrap();
    assert_eq!(y.to_vec(&rig.b).unwrap(), [9.0; 64]);
    rig.end();
}

#[test]
fn memory_with_uses_on_both_devices_is_freed_after_both() {
    let rig = rig();
    let kernel = saxpy(&rig.one);
    rig.one.enable_peer_access(&rig.zero).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.b, &[1.0f32; 4096]).unwrap();
    for round in 0..20 {
        let x = DeviceBuffer::from_slice(&rig.a, &[1.0f32; 4096]).unwrap();
        let address = x.cu_deviceptr();
        rig.a.synchronize().unwrap();
        rig.b.synchronize().unwrap();
        let gate = rig.sim.gate(rig.b.cu_stream()).unwrap();
        launch(&rig.b, &kernel, &x, &mut y).unwrap();
        // Nobody waits here, and nobody gets the memory before the kernel has read it.
        drop(x);
        let other = DeviceBuffer::<f32>::zeroed(&rig.a, 4096).unwrap();
        let same = other.cu_deviceptr() == address;
        if same {
            assert!(!rig.a.is_complete().unwrap(), "round {round}: reused before its last use");
        }
        gate.open();
        assert_eq!(other.to_vec(&rig.a).unwrap(), [0.0; 4096]);
    }
    assert_eq!(y.to_vec(&rig.b).unwrap(), [41.0; 4096]);
    assert_eq!(rig.zero.stats().failed_frees + rig.zero.stats().quarantined, 0);
    drop(y);
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(rig.zero.stats().live_bytes, 0);
    rig.end();
}

#[test]
fn threads_that_go_opposite_ways_do_not_stop_each_other() {
    let rig = rig();
    let (left, right) = (saxpy(&rig.zero), saxpy(&rig.one));
    rig.one.enable_peer_access(&rig.zero).unwrap();
    rig.zero.enable_peer_access(&rig.one).unwrap();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let rig = &rig;
            let kernel = if i % 2 == 0 { &left } else { &right };
            scope.spawn(move || {
                let (home, away) = if i % 2 == 0 { (&rig.zero, &rig.one) } else { (&rig.one, &rig.zero) };
                let (stream, far) = (home.new_stream().unwrap(), away.new_stream().unwrap());
                let x = DeviceBuffer::from_slice(&far, &[1.0f32; 32]).unwrap();
                let mut y = DeviceBuffer::from_slice(&stream, &[0.0f32; 32]).unwrap();
                for _ in 0..50 {
                    launch(&stream, kernel, &x, &mut y).unwrap();
                }
                assert_eq!(y.to_vec(&far).unwrap(), [100.0; 32]);
            });
        }
    });
    rig.end();
}

#[test]
fn a_conflict_across_devices_is_refused_by_name_where_the_policy_says_so() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.a, &[1u32; 16]).unwrap().with_label("shared");
    rig.a.synchronize().unwrap();
    rig.a.set_label("home");
    rig.b.set_policy(Policy::Reject);
    let gate = rig.sim.gate(rig.a.cu_stream()).unwrap();
    buffer.fill(&rig.a, 2).unwrap();
    let error = buffer.fill(&rig.b, 3).unwrap_err().to_string();
    assert!(error.contains("shared") && error.contains("home"), "{error}");
    gate.open();
    rig.a.synchronize().unwrap();
    buffer.fill(&rig.b, 3).unwrap();
    assert_eq!(buffer.to_vec(&rig.a).unwrap(), [3; 16]);
    rig.end();
}

#[test]
fn fr_f9_pool_access_is_asked_for_by_name_and_checked_first() {
    let rig = rig();
    let kernel = saxpy(&rig.one);
    let pool = MemPool::builder(&rig.zero).label("weights").build().unwrap();
    let x = pool.from_slice(&rig.a, &[3.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.b, &[1.0f32; 64]).unwrap();
    // The owner's device is refused without a driver call.
    let before = rig.sim.counts();
    let error = pool.grant(rig.zero.device()).unwrap_err();
    assert!(matches!(error, ContextError::NoPeerAccess { .. }), "{error:?}");
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuMemPoolSetAccess), 0);
    // A grant to the context is none to its pools.
    rig.one.enable_peer_access(&rig.zero).unwrap();
    assert!(launch(&rig.b, &kernel, &x, &mut y).is_err());
    for _ in 0..2 {
        pool.grant(rig.one.device()).unwrap();
        pool.revoke(rig.one.device()).unwrap();
        pool.grant(rig.one.device()).unwrap();
        pool.grant(rig.one.device()).unwrap();
    }
    launch(&rig.b, &kernel, &x, &mut y).unwrap();
    // New pools do not inherit.
    let other = rig.zero.new_mem_pool().unwrap();
    let z = other.from_slice(&rig.a, &[3.0f32; 64]).unwrap();
    assert!(launch(&rig.b, &kernel, &z, &mut y).is_err());
    pool.revoke(rig.one.device()).unwrap();
    pool.revoke(rig.one.device()).unwrap();
    assert!(launch(&rig.b, &kernel, &x, &mut y).is_err());
    assert_eq!(y.to_vec(&rig.b).unwrap(), [7.0; 64]);
    rig.end();
}

#[test]
fn fr_f8_copies_arrive_whatever_was_granted() {
    let rig = rig();
    let pools = [rig.zero.new_mem_pool().unwrap(), rig.zero.new_mem_pool().unwrap()];
    pools[1].grant(rig.one.device()).unwrap();
    for granted in [false, true] {
        if granted {
            rig.one.enable_peer_access(&rig.zero).unwrap();
        }
        let mut here = vec![DeviceBuffer::<u32>::zeroed(&rig.a, 100).unwrap()];
        here.extend(pools.iter().map(|pool| pool.zeroed(&rig.a, 100).unwrap()));
        for mut buffer in here {
            let there = DeviceBuffer::from_slice(&rig.b, &[7u32; 100]).unwrap();
            buffer.copy_from(&rig.a, &there).unwrap();
            let mut back = DeviceBuffer::<u32>::zeroed(&rig.b, 100).unwrap();
            back.copy_from(&rig.b, &buffer).unwrap();
            assert_eq!(back.to_vec(&rig.b).unwrap(), [7; 100]);
        }
    }
    rig.end();
}

#[test]
fn grants_are_refused_while_the_host_holds_memory() {
    let rig = rig();
    let context = rig.zero.clone();
    let buffer = DeviceBuffer::from_slice(&rig.a, &[1u32; 4]).unwrap().with_label("lent");
    let exported = buffer.export().unwrap();
    let error = rig.one.enable_peer_access(&context).unwrap_err();
    assert!(matches!(error, ContextError::InUse { .. }) && error.to_string().contains("lent"), "{error}");
    // SAFETY: nobody used it.
    let back = unsafe { exported.take_back(&rig.a) }.unwrap();
    rig.one.enable_peer_access(&context).unwrap();
    assert_eq!(back.to_vec(&rig.b).unwrap(), [1; 4]);
    let error = rig.one.enable_peer_access(&rig.one).unwrap_err();
    assert!(error.to_string().contains("one device"), "{error}");
    rig.end();
}

#[test]
fn a_stream_that_is_lost_keeps_what_it_used_elsewhere() {
    let sim = Simulator::builder().devices(2).quiet().build();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    let kernel = saxpy(&one);
    one.enable_peer_access(&zero).unwrap();
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    launch(&b, &kernel, &x, &mut y).unwrap();
    // The next call in the other context says that it is lost.
    sim.fail(Entry::cuMemsetD8Async, 1, simtile_driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let _ = y.zero(&b);
    assert!(one.loss().is_some());
    drop(x);
    let end = std::time::Instant::now() + SOON;
    while zero.stats().quarantined == 0
        && zero.stats().reclaiming_bytes > 0
        && std::time::Instant::now() < end
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats = zero.stats();
    assert!(stats.quarantined == 1 || stats.live_allocations == 0, "{stats:?}");
    gate.open();
    // The other context works on.
    let mut z = DeviceBuffer::from_slice(&a, &[2u32; 4]).unwrap();
    z.fill(&a, 3).unwrap();
    assert_eq!(on_fresh_thread(|| z.to_vec(&a).unwrap()), [3; 4]);
    assert!(matches!(b.synchronize(), Err(StreamError::ContextLost { .. })));
}
