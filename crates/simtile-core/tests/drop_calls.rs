//! H4: the calls that a dropping thread makes, with work in flight: by the call log, none that waits for the device.

#[path = "common/calls.rs"]
mod calls;
mod common;

use calls::{CallLog, may_wait};
use common::*;
use simtile_core::{
    Arena, AtomicScope, Context, Device, DeviceAllocation, DeviceBox, DeviceBuffer, Function, GrowableBuffer,
    LaunchArgs, ManagedBuffer, Module, PinnedHostBuffer, Stream, StreamError, drain_background,
};
use simtile_driver::sys::{CUcontext, CUdeviceptr, CUstream};
use simtile_driver::{Entry, call};
use simtile_sim::explore::{Strategy, explore};
use simtile_sim::{Checks, Gate, Lacks, Mode, Simulator};
use simtile_types::LaunchConfig;
use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const N: usize = 64;
const TEXT: &str = "
.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 total;
.visible .entry add(.param .u64 p, .param .u32 v)
{
    .reg .b64 %p, %t;
    .reg .b32 %v, %w;
    ld.param.u64 %p, [p];
    ld.param.u32 %v, [v];
    cvta.to.global.u64 %p, %p;
    mov.u64 %t, total;
    atom.global.add.u32 %w, [%p], %v;
    atom.global.add.u32 %w, [%t], %v;
    ret;
}
";

/// A context with two streams, which are held from [`Rig::hold`] on.
struct Rig {
    sim: Simulator,
    log: &'static CallLog,
    context: Arc<Context>,
    a: Arc<Stream>,
    b: Arc<Stream>,
    held: RefCell<Vec<Gate>>,
}

impl Rig {
    fn new(sim: Simulator, log: &'static CallLog, context: Arc<Context>) -> Self {
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        Self { sim, log, context, a, b, held: RefCell::default() }
    }

    fn created(sim: Simulator) -> Self {
        let log = CallLog::over(sim.driver());
        let context = Device::new(log.driver(), 0).unwrap().create_context().unwrap();
        Self::new(sim, log, context)
    }

    /// Nothing that is queued from here on runs.
    fn hold(&self) {
        for stream in [&self.a, &self.b] {
            self.hold_too(stream);
        }
    }

    fn hold_too(&self, stream: &Stream) {
        self.held.borrow_mut().push(self.sim.gate(stream.cu_stream()).unwrap());
    }

    fn buffer(&self) -> DeviceBuffer<u32> {
        DeviceBuffer::from_slice(&self.a, &[1; N]).unwrap()
    }

    /// Makes both streams use it, neither of which follows the other then.
    fn use_twice(&self, buffer: &mut DeviceBuffer<u32>) {
        buffer.fill(&self.a, 2).unwrap();
        let [mut x, mut y] = [&self.a, &self.b].map(|s| DeviceBuffer::<u32>::zeroed(s, N).unwrap());
        x.copy_from(&self.a, buffer).unwrap();
        y.copy_from(&self.b, buffer).unwrap();
    }

    fn kernel(&self) -> (Arc<Module>, Function) {
        let module = self.context.load_module_from_ptx_src(TEXT).unwrap();
        let kernel = module.load_function("add").unwrap();
        (module, kernel)
    }
}

fn simulator(lacks: &str) -> Simulator {
    let builder = Simulator::builder().checks(Checks::ALL).quiet();
    match lacks {
        "" => builder.build(),
        lacks => builder.without(Lacks::by_names(lacks).unwrap()).build(),
    }
}

fn add(stream: &Arc<Stream>, kernel: &Function, target: &DeviceBuffer<u32>) {
    let args = LaunchArgs::new().accumulated(target, AtomicScope::Device).arg(1u32);
    let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel adds to the first word of its buffer, and to a variable of its module.
    unsafe { stream.submit().launch(kernel, one, args) }.unwrap();
}

/// Runs drops with work in flight: no call that this thread makes may wait.
fn drops(sim: &Simulator, log: &CallLog, what: &str, run: impl FnOnce()) {
    assert!(sim.pending() > 0, "{what}: nothing is in flight");
    let ((), calls) = log.during(run);
    // Streams without work may end at once.
    let ends = |call| call == Entry::cuStreamDestroy && what.ends_with("idle streams");
    assert!(!calls.iter().any(|&call| may_wait(call) && !ends(call)), "{what}: {calls:?}");
    assert!(sim.pending() > 0, "{what}: it waited for all of it");
}

/// Foreign memory without bytes to free, and a stream of foreign code.
struct Lent(Arc<Context>, CUdeviceptr);

// SAFETY: the simulator's memory lives as long as the test.
unsafe impl DeviceAllocation for Lent {
    fn device_ptr(&self) -> CUdeviceptr {
        self.1
    }

    fn len_bytes(&self) -> usize {
        4 * N
    }

    fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

/// Prepares, holds the streams, queues work, and gives what is to be dropped.
type Case = (&'static str, fn(&Rig) -> Vec<Box<dyn Any>>, &'static [Entry]);

/// With each the calls that have to be made for it once the work is over, by whomever.
const CASES: &[Case] = &[
    (
        "a buffer that two streams use",
        |rig| {
            let mut buffer = rig.buffer();
            rig.hold();
            rig.use_twice(&mut buffer);
            vec![Box::new(buffer)]
        },
        &[Entry::cuMemFreeAsync],
    ),
    (
        "views",
        |rig| {
            let mut buffer = rig.buffer();
            rig.hold();
            rig.use_twice(&mut buffer);
            let (mut left, mut right) = buffer.split_at_mut(N / 2).unwrap();
            left.fill(&rig.a, 3).unwrap();
            right.fill(&rig.b, 4).unwrap();
            let _ = buffer.slice(1..5).unwrap();
            vec![Box::new(buffer.lease()), Box::new(buffer)]
        },
        &[Entry::cuMemFreeAsync],
    ),
    (
        "a raw buffer and a box",
        |rig| {
            let mut raw = rig.buffer().into_raw().unwrap();
            let mut boxed = DeviceBox::from_slice(&rig.a, &[1u32; N]).unwrap();
            rig.hold();
            raw.view_mut().fill(&rig.a, 1).unwrap();
            raw.view_mut().fill(&rig.b, 2).unwrap();
            boxed.view_mut().fill(&rig.b, 3).unwrap();
            vec![Box::new(raw), Box::new(boxed)]
        },
        &[Entry::cuMemFreeAsync],
    ),
    (
        "streams and events",
        |rig| {
            let own = rig.context.new_stream().unwrap();
            rig.hold();
            rig.hold_too(&own);
            own.launch_host_function(|| ()).unwrap();
            let event = own.record_event().unwrap();
            let timed = own.record_timed_event().unwrap();
            rig.a.wait(&event).unwrap();
            vec![Box::new(own), Box::new(event), Box::new(timed)]
        },
        &[Entry::cuStreamDestroy, Entry::cuEventDestroy],
    ),
    (
        "a borrowed stream",
        |rig| {
            let (driver, mut raw) = (rig.sim.driver(), CUstream::NULL);
            set_current(driver, rig.context.cu_ctx());
            // SAFETY: the out-pointer is valid for the call; nobody destroys the stream.
            unsafe { call!(driver, cuStreamCreate(&mut raw, 1)) }.unwrap();
            // SAFETY: as above.
            let borrowed = unsafe { Stream::borrow_with_owner(raw, &rig.context, Arc::new(())) }.unwrap();
            let mut buffer = rig.buffer();
            rig.hold();
            rig.hold_too(&borrowed);
            buffer.fill(&borrowed, 2).unwrap();
            vec![Box::new(borrowed), Box::new(buffer)]
        },
        &[Entry::cuMemFreeAsync],
    ),
    (
        "a module, its kernel and its variable",
        |rig| {
            let (buffer, (module, kernel)) = (rig.buffer(), rig.kernel());
            let total = module.global::<u32>("total").unwrap();
            rig.hold();
            add(&rig.a, &kernel, &buffer);
            total.copy_from_slice(&rig.b, &[5]).unwrap();
            vec![Box::new(total), Box::new(module), Box::new(kernel), Box::new(buffer)]
        },
        &[Entry::cuModuleUnload, Entry::cuMemFreeAsync],
    ),
    (
        "graphs, executables and captures, and idle streams",
        |rig| {
            let (mut buffer, (module, kernel)) = (rig.buffer(), rig.kernel());
            let other = rig.context.new_stream().unwrap();
            let record = |buffer: &mut DeviceBuffer<u32>| {
                let capture = other.begin_capture().unwrap();
                capture.submit(&other).fill(buffer.view_mut(), 7).unwrap();
                let args = LaunchArgs::new().accumulated(&*buffer, AtomicScope::Device).arg(1u32);
                // SAFETY: as in `add`.
                unsafe { capture.submit(&other).launch(&kernel, LaunchConfig::for_num_elems(1), args) }
                    .unwrap();
                capture
            };
            let exec = record(&mut buffer).finish().unwrap().instantiate().unwrap();
            let graph = record(&mut buffer).finish().unwrap();
            rig.hold();
            rig.a.submit().graph(&exec).unwrap();
            rig.b.submit().graph(&exec).unwrap();
            let open = record(&mut buffer);
            vec![Box::new(exec), Box::new(graph), Box::new(open), Box::new((buffer, kernel, module, other))]
        },
        &[Entry::cuGraphExecDestroy, Entry::cuGraphDestroy, Entry::cuModuleUnload, Entry::cuMemFreeAsync],
    ),
    (
        "pinned memory",
        |rig| {
            let pinned = PinnedHostBuffer::from_slice(&rig.context, &[5u32; N]).unwrap();
            let mut buffer = rig.buffer();
            rig.hold();
            pinned.copy_to(&rig.a, &mut buffer).unwrap();
            pinned.copy_to(&rig.b, &mut buffer).unwrap();
            vec![Box::new(pinned), Box::new(buffer)]
        },
        &[],
    ),
    (
        "managed memory",
        |rig| {
            let mut managed = ManagedBuffer::from_slice(&rig.context, &[5u32; N]).unwrap();
            rig.hold();
            managed.view_mut().fill(&rig.a, 1).unwrap();
            managed.view_mut().fill(&rig.b, 2).unwrap();
            vec![Box::new(managed)]
        },
        &[],
    ),
    (
        "growable and mapped memory",
        |rig| {
            let mut grown = GrowableBuffer::<u32>::new(&rig.context, 1 << 20).unwrap();
            grown.resize(&rig.a, N).unwrap();
            let (memory, range) =
                (rig.context.physical_memory(1).unwrap(), rig.context.reserve(4 << 20).unwrap());
            let mut mapped = range.map(0, &memory, &[]).unwrap();
            rig.hold();
            grown.view_mut().fill(&rig.a, 1).unwrap();
            mapped.view_mut().fill(&rig.b, 1).unwrap();
            vec![Box::new(grown), Box::new(mapped), Box::new(range), Box::new(memory)]
        },
        &[Entry::cuMemUnmap, Entry::cuMemRelease, Entry::cuMemAddressFree],
    ),
    (
        "a pool and its memory",
        |rig| {
            let pool = rig.context.new_mem_pool().unwrap();
            let mut buffer = pool.zeroed::<u32>(&rig.a, N).unwrap();
            rig.hold();
            rig.use_twice(&mut buffer);
            vec![Box::new(pool), Box::new(buffer)]
        },
        &[Entry::cuMemFreeAsync, Entry::cuMemPoolDestroy],
    ),
    (
        "memory of others, and memory that others have",
        |rig| {
            let (driver, mut address) = (rig.sim.driver(), 0);
            set_current(driver, rig.context.cu_ctx());
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuMemAlloc(&mut address, 4 * N)) }.unwrap();
            let mut theirs = DeviceBuffer::<u32>::from_foreign(Lent(rig.context.clone(), address)).unwrap();
            let (mut back, exported) = (rig.buffer(), rig.buffer().export().unwrap());
            rig.hold();
            rig.use_twice(&mut theirs);
            back.fill(&rig.a, 1).unwrap();
            // SAFETY: nobody uses it outside.
            let back = unsafe { back.export().unwrap().take_back_unknown() };
            let kept = rig.context.keepalive(Box::new(7u32));
            vec![Box::new(theirs), Box::new(back), Box::new(exported), Box::new(kept)]
        },
        &[],
    ),
    (
        "submissions, and an arena",
        |rig| {
            let mut buffer = rig.buffer();
            let arena = Arena::with_capacity(&rig.a, 1 << 20).unwrap();
            rig.hold();
            let first = rig.a.submit().write(&mut buffer).awaited().order_only().unwrap();
            let second = rig.b.submit().read(&buffer).waits_outside().order_only().unwrap();
            rig.a.launch_host_function(|| ()).unwrap();
            vec![Box::new(first), Box::new(second), Box::new(arena), Box::new(buffer)]
        },
        &[Entry::cuMemFreeAsync],
    ),
    (
        "what an upload and a download leave",
        |rig| {
            let mut buffer = DeviceBuffer::<u8>::zeroed(&rig.a, 3 << 20).unwrap();
            rig.hold();
            buffer.copy_from_slice(&rig.a, &vec![3; 3 << 20]).unwrap();
            vec![Box::new(buffer)]
        },
        &[],
    ),
];

#[test]
fn h4_no_drop_makes_a_call_that_waits() {
    for lacks in ["", "pools"] {
        for &(what, case, after) in CASES {
            if !lacks.is_empty() && what.starts_with("a pool") {
                continue;
            }
            let rig = Rig::created(simulator(lacks));
            let things = case(&rig);
            let before = rig.sim.counts();
            drops(&rig.sim, rig.log, what, || drop(things));
            rig.held.take();
            rig.context.synchronize_all().unwrap();
            assert!(rig.context.drain(SOON).is_complete(), "{what}");
            assert!(drain_background(SOON), "{what}");
            let made = rig.sim.counts().since(&before);
            for &entry in after.iter().filter(|&&entry| lacks.is_empty() || entry != Entry::cuMemFreeAsync) {
                assert!(made.of(entry) > 0, "{what}: {entry:?} was never called");
            }
            let stats = rig.context.stats();
            assert_eq!(
                (stats.live_allocations, stats.reclaiming_bytes, stats.quarantined),
                (0, 0, 0),
                "{what}"
            );
            assert_eq!((stats.retained_modules, stats.mapped_bytes), (0, 0), "{what}");
            assert_eq!(stats.failed_frees + stats.failed_destroys, 0, "{what}");
            assert!(rig.sim.reports().is_empty(), "{what}: {:?}", rig.sim.reports());
        }
    }
}

/// Whatever a context's last handle leaves, it is given back elsewhere while anything runs, also what is not ours.
#[test]
fn h4_the_last_handle_of_a_context_makes_no_call_that_waits() {
    for kind in ["created", "primary", "green", "borrowed"] {
        let sim = simulator("");
        let log = CallLog::over(sim.driver());
        let device = Device::new(log.driver(), 0).unwrap();
        let context = match kind {
            "created" => device.create_context().unwrap(),
            "primary" => device.primary_context().unwrap(),
            "green" => device.green_contexts(1, 8).unwrap().remove(0),
            // SAFETY: nobody destroys the context.
            _ => unsafe { Context::borrow_with_owner(device, raw_context(&sim), Arc::new(())) }.unwrap(),
        };
        // A stream of somebody else's.
        let foreign = raw_stream(&sim, context.cu_ctx());
        let rig = Rig::new(sim.clone(), log, context);
        let mut buffer = rig.buffer();
        // Blocks that are kept for reuse, the freeing of which waits for everybody.
        drop(PinnedHostBuffer::from_slice(&rig.context, &[1u8; 5000]).unwrap());
        drop(ManagedBuffer::from_slice(&rig.context, &[1u8; 5000]).unwrap());
        rig.context.drain(SOON);
        set_current(sim.driver(), rig.context.cu_ctx());
        let gate = sim.gate(foreign).unwrap();
        // SAFETY: the stream is alive, and the function takes nothing.
        unsafe { call!(sim.driver(), cuLaunchHostFunc(foreign, Some(nothing), std::ptr::null_mut())) }
            .unwrap();
        if kind != "borrowed" {
            rig.hold();
            rig.use_twice(&mut buffer);
        }
        let Rig { context, a, b, held, .. } = rig;
        let before = sim.counts();
        drops(&sim, log, &format!("{kind} and idle streams"), || drop((buffer, a, b, context)));
        held.take();
        gate.open();
        assert!(drain_background(SOON), "{kind}");
        let made = sim.counts().since(&before);
        assert!(made.of(Entry::cuMemFreeHost) > 0, "{kind}: {made:?}");
        assert!(made.of(Entry::cuMemFree) > 0, "{kind}: {made:?}");
        assert!(sim.reports().is_empty(), "{kind}: {:?}", sim.reports());
    }
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

fn raw_context(sim: &Simulator) -> CUcontext {
    let (driver, mut raw) = (sim.driver(), CUcontext::NULL);
    let device = Device::new(driver, 0).unwrap().cu_device();
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuCtxCreate(&mut raw, 0, device)) }.unwrap();
    raw
}

fn raw_stream(sim: &Simulator, context: CUcontext) -> CUstream {
    let (driver, mut raw) = (sim.driver(), CUstream::NULL);
    set_current(driver, context);
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamCreate(&mut raw, 1)) }.unwrap();
    raw
}

/// Threads that drop streams at the same time look at one list of ends; whoever finds it in another's hands does not take its own
/// stream for idle, nor the context.
#[test]
fn h4_streams_dropped_at_the_same_time_are_not_taken_for_idle() {
    type Parts<'a> = (&'a Simulator, &'a CallLog, &'a Arc<Context>);
    let drop_all = |(sim, log, context): Parts<'_>, gates: &mut Vec<Gate>| {
        let mut waiting = Vec::new();
        for _ in 0..6 {
            let stream = context.new_stream().unwrap();
            gates.push(sim.gate(stream.cu_stream()).unwrap());
            let ((), calls) = log.during(|| drop(stream));
            waiting.extend(calls.into_iter().filter(|&call| may_wait(call)));
        }
        waiting
    };
    for seed in 0..100 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let sim = Simulator::builder().mode(Mode::Explore).seed(seed).quiet().build();
            let log = CallLog::over(sim.driver());
            let context = Device::new(log.driver(), 0).unwrap().create_context().unwrap();
            let (theirs, at) = (context.clone(), sim.clone());
            let run = move |sim: Simulator, context: Arc<Context>| {
                let mut gates = Vec::new();
                let mut waiting = drop_all((&sim, log, &context), &mut gates);
                let ((), calls) = log.during(|| drop(context));
                waiting.extend(calls.into_iter().filter(|&call| may_wait(call)));
                (waiting, gates)
            };
            let other = simtile_sync::thread::spawn("dropper", move || run(at, theirs));
            let (mine, gates) = run(sim.clone(), context);
            let (theirs, their_gates) = other.unwrap().join().unwrap();
            assert_eq!((mine, theirs), Default::default());
            assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 0, "the work still runs");
            drop((gates, their_gates));
            assert!(drain_background(SOON));
            assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 1);
        });
        assert!(outcome.result.is_ok() && outcome.deadlock.is_none(), "seed {seed}: {:?}", outcome.deadlock);
    }
}

/// Work of which nobody can know when it ends is not waited for by whoever drops the last handle.
#[test]
fn h4_a_stream_whose_records_fail_holds_up_no_drop() {
    let rig = Rig::created(simulator(""));
    let mut buffer = rig.buffer();
    rig.hold();
    rig.use_twice(&mut buffer);
    for nth in [1, 2] {
        rig.sim.fail(Entry::cuEventRecord, nth, simtile_driver::sys::CUresult::CUDA_ERROR_UNKNOWN);
    }
    let error = rig.a.record_event().unwrap_err();
    assert!(matches!(error, StreamError::Driver { .. }), "{error}");
    let Rig { sim, log, context, a, b, held } = rig;
    drops(&sim, log, "a failed stream", || drop((buffer, a, b, context)));
    sim.clear_rules();
    held.take();
    assert!(drain_background(SOON));
    assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 1);
}
