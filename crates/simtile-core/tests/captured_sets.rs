//! G1, G2: submissions inside a capture name what they access as all submissions do, and every replay is a submission with those sets.

mod common;

use common::*;
use simtile_core::{
    AtomicScope, Capture, Context, DeviceBuffer, Function, GraphExec, LaunchArgs, LaunchError, Policy,
    Stream, StreamError, Submission,
};
use simtile_driver::Entry;
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const COUNT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 p)
{
    .reg .b64 %p;
    .reg .b32 %w;
    ld.param.u64 %p, [p];
    cvta.to.global.u64 %p, %p;
    atom.global.add.u32 %w, [%p], 1;
    ret;
}
";

struct Rig {
    sim: Simulator,
    context: Arc<Context>,
    /// For captures, and three for replays.
    origin: Arc<Stream>,
    streams: [Arc<Stream>; 3],
}

fn rig() -> Rig {
    let sim = Simulator::builder().checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let [origin, a, b, c] = [0; 4].map(|_| context.new_stream().unwrap());
    Rig { sim, context, origin, streams: [a, b, c] }
}

impl Rig {
    fn kernel(&self, text: &str, name: &str) -> Function {
        self.context.load_module_from_ptx_src(text).unwrap().load_function(name).unwrap()
    }

    fn captured(&self, record: impl FnOnce(&Capture)) -> GraphExec {
        let capture = self.origin.begin_capture().unwrap();
        record(&capture);
        capture.finish().unwrap().instantiate().unwrap()
    }

    /// Waits between streams that were queued meanwhile.
    fn waits(&self, run: impl FnOnce()) -> u64 {
        let before = self.sim.counts();
        run();
        self.sim.counts().since(&before).of(Entry::cuStreamWaitEvent)
    }

    fn settled(&self) {
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }

    fn clean(&self) {
        assert!(self.context.drain(SOON).is_complete());
        assert!(self.sim.reports().is_empty(), "{:?}", self.sim.reports());
    }
}

fn one() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

fn saxpy(
    capture: &Capture,
    on: &Arc<Stream>,
    kernel: &Function,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<Submission, LaunchError> {
    let n = x.len() as u32;
    let args = LaunchArgs::new().arg(n).arg(1.0f32).arg(x).arg(y);
    // SAFETY: both buffers have so many elements.
    unsafe { capture.submit(on).launch(kernel, LaunchConfig::for_num_elems(n), args) }
}

#[test]
fn g2_what_a_captured_launch_reads_and_writes_orders_every_replay() {
    let rig = rig();
    let kernel = rig.kernel(SAXPY, "saxpy");
    let [a, b, c] = &rig.streams;
    let mut x = DeviceBuffer::from_slice(a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(a, &[0.0f32; 64]).unwrap();
    let exec = rig.captured(|capture| {
        saxpy(capture, &rig.origin, &kernel, &x, &mut y).unwrap();
    });
    rig.settled();
    // The write outside comes before the replay, which reads it; reads outside beside it wait for nothing.
    let gate = rig.sim.gate(b.cu_stream()).unwrap();
    x.fill(b, 5.0).unwrap();
    let done = a.submit().graph(&exec).unwrap();
    assert!(!done.is_complete().unwrap(), "the replay follows what it reads");
    let behind = c.submit().read(&y).awaited().order_only().unwrap();
    assert!(!behind.is_complete().unwrap(), "a reader follows what the replay writes");
    gate.open();
    behind.wait().unwrap();
    assert_eq!(y.to_vec(c).unwrap(), [5.0; 64]);
    rig.settled();
    // What it only reads may be read at the same time.
    let gate = rig.sim.gate(a.cu_stream()).unwrap();
    a.submit().graph(&exec).unwrap();
    assert_eq!(x.to_vec(b).unwrap(), [5.0; 64]);
    let write = b.submit().write(&mut x).awaited().order_only().unwrap();
    assert!(!write.is_complete().unwrap(), "a writer follows the readers of a replay");
    gate.open();
    write.wait().unwrap();
    rig.clean();
}

#[test]
fn g2_accumulations_in_captures_commute_across_replays_and_with_others() {
    let rig = rig();
    let count = rig.kernel(COUNT, "count");
    let [a, b, c] = &rig.streams;
    let total = DeviceBuffer::<u32>::zeroed(a, 1).unwrap();
    let args = || LaunchArgs::new().accumulated(&total, AtomicScope::Device);
    let execs: Vec<_> = (0..2)
        .map(|_| {
            rig.captured(|capture| {
                for _ in 0..3 {
                    // SAFETY: the kernel adds to the one word with an atomic of its size.
                    unsafe { capture.submit(&rig.origin).launch(&count, one(), args()) }.unwrap();
                }
            })
        })
        .collect();
    rig.settled();
    let waits = rig.waits(|| {
        a.submit().graph(&execs[0]).unwrap();
        b.submit().graph(&execs[1]).unwrap();
        // SAFETY: as above.
        unsafe { c.submit().launch(&count, one(), args()) }.unwrap();
    });
    assert_eq!(waits, 0, "they commute");
    assert_eq!(total.to_vec(c).unwrap(), [7]);
    // Two replays of one executable do not: it is a region that each of them writes.
    rig.settled();
    let waits = rig.waits(|| {
        a.submit().graph(&execs[0]).unwrap();
        b.submit().graph(&execs[0]).unwrap();
    });
    assert_eq!(waits, 1);
    assert_eq!(total.to_vec(c).unwrap(), [13]);
    rig.clean();
}

#[test]
fn g2_the_bytes_that_count_are_those_that_were_named() {
    let rig = rig();
    let [a, b, c] = &rig.streams;
    let mut x = DeviceBuffer::<u32>::zeroed(a, 64).unwrap();
    let [left, right] = [0..32, 32..64].map(|half| {
        rig.captured(|capture| {
            capture.submit(&rig.origin).fill(x.slice_mut(half.clone()).unwrap(), half.end as u32).unwrap();
        })
    });
    rig.settled();
    let waits = rig.waits(|| {
        a.submit().graph(&left).unwrap();
        b.submit().graph(&right).unwrap();
    });
    assert_eq!(waits, 0, "disjoint halves");
    let waits = rig.waits(|| {
        c.submit().read(&x.slice(0..32).unwrap()).order_only().unwrap();
    });
    assert_eq!(waits, 1, "the left half alone");
    let found = x.to_vec(c).unwrap();
    assert_eq!((&found[..32], &found[32..]), (&[32; 32][..], &[64; 32][..]));
    rig.clean();
}

#[test]
fn g1_several_sets_on_several_streams_of_a_capture_are_ordered_among_themselves() {
    let rig = rig();
    let kernel = rig.kernel(SAXPY, "saxpy");
    let [a, b, c] = &rig.streams;
    let mut x = DeviceBuffer::<f32>::zeroed(a, 64).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(a, 64).unwrap();
    let (mut z, mut w) =
        (DeviceBuffer::<f32>::zeroed(a, 64).unwrap(), DeviceBuffer::<f32>::zeroed(a, 64).unwrap());
    let exec = rig.captured(|capture| {
        let origin = &rig.origin;
        capture.submit(origin).fill(y.view_mut(), 1.0).unwrap();
        capture.add_stream(b).unwrap();
        capture.add_stream(c).unwrap();
        // Both read what the origin wrote; then one of them reads what both wrote.
        saxpy(capture, b, &kernel, &x, &mut y).unwrap();
        capture.submit(c).copy(&x, &mut z).unwrap();
        capture.submit(b).copy(&y, &mut w).unwrap();
        saxpy(capture, c, &kernel, &y, &mut z).unwrap();
        saxpy(capture, origin, &kernel, &z, &mut w).unwrap();
        // Order without work is recorded as order.
        capture.submit(b).read(&w).order_only().unwrap();
    });
    // Work between the replays is seen by the next one.
    for round in 1..4 {
        let from = round as f32;
        x.fill(b, from).unwrap();
        a.submit().graph(&exec).unwrap();
        // y = 1 + x, z = x + y, w = y + z.
        let found = [&y, &z, &w].map(|buffer| buffer.to_vec(c).unwrap());
        assert_eq!(found, [1.0 + from, 1.0 + 2.0 * from, 2.0 + 3.0 * from].map(|value| vec![value; 64]));
    }
    rig.clean();
}

#[test]
fn g1_sets_in_a_capture_are_checked_as_they_are_outside() {
    let rig = rig();
    let kernel = rig.kernel(SAXPY, "saxpy");
    let [a, ..] = &rig.streams;
    let mut x = DeviceBuffer::from_slice(a, &[1.0f32; 64]).unwrap();
    // SAFETY: the second handle joins the first, and both are used through the runtime alone.
    let alias = unsafe { DeviceBuffer::<f32>::borrow_raw_parts(&rig.context, x.cu_deviceptr(), 64, None) };
    let alias = alias.unwrap();
    let capture = rig.origin.begin_capture().unwrap();
    let both = saxpy(&capture, &rig.origin, &kernel, &alias, &mut x);
    assert!(matches!(both, Err(LaunchError::Stream(StreamError::Aliased { .. }))), "{both:?}");
    // The policy is about work outside, and nothing inside a capture follows that.
    let gate = rig.sim.gate(a.cu_stream()).unwrap();
    x.fill(a, 2.0).unwrap();
    capture.submit(&rig.origin).policy(Policy::Reject).fill(x.view_mut(), 3.0).unwrap();
    // Beside it, the stream takes nothing.
    let beside = rig.origin.submit().read(&x).order_only();
    assert!(matches!(beside, Err(StreamError::Capturing { .. })), "{beside:?}");
    let exec = capture.finish().unwrap().instantiate().unwrap();
    // The replay is where the policy of its stream looks.
    let refused = rig.origin.submit().policy(Policy::Reject).graph(&exec);
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(refused.contains("conflict"), "{refused}");
    rig.origin.submit().graph(&exec).unwrap();
    gate.open();
    assert_eq!(x.to_vec(a).unwrap(), [3.0; 64]);
    // A guard of the host keeps replays away.
    let mut pinned = simtile_core::PinnedHostBuffer::<f32>::zeroed(&rig.context, 64).unwrap();
    let exec = rig.captured(|capture| {
        capture.submit(&rig.origin).copy_pinned(&pinned, &mut x).unwrap();
    });
    let guard = pinned.write().unwrap();
    let refused = rig.origin.submit().graph(&exec).map(drop).unwrap_err().to_string();
    assert!(refused.contains("conflict") || refused.contains("host"), "{refused}");
    drop(guard);
    rig.origin.submit().graph(&exec).unwrap();
    rig.origin.synchronize().unwrap();
    rig.clean();
}
