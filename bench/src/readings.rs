//! Readings that have no counterpart in the raw driver: what a drop costs while the device is busy, what waiting costs the CPU,
//! and how soon everybody knows that a context is lost.
//!
//! `bench readings [drops|idle|fault]`. `fault` ruins the process's contexts, so it comes last.

use crate::ours::CONFIG;
use crate::pairs::Result;
use crate::raw::PTX;
use simtile::core::{GrowableBuffer, ManagedBuffer, MemPool};
use simtile::driver::sys::CUresult;
use simtile::ops::{AsyncKernelLaunchBuilder, CudaGraph};
use simtile::{Context, DeviceBuffer, DeviceOp, Function, LaunchArgs, PinnedHostBuffer, Runtime, Stream};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Work that the drops meet.
const BUSY: Duration = Duration::from_secs(10);
/// Goals of DESIGN.md.
const DROP_GOAL: Duration = Duration::from_micros(100);
const FAULT_GOAL: Duration = Duration::from_millis(100);

fn text<T>(result: core::result::Result<T, impl core::fmt::Display>) -> Result<T> {
    result.map_err(|error| format!("simtile: {error}"))
}

struct Set {
    context: Arc<Context>,
    k4: Function,
    spin: Function,
}

impl Set {
    fn new() -> Result<Self> {
        let context = text(text(text(Runtime::new())?.device(0))?.primary_context())?;
        let module = text(context.load_module_from_ptx_src(PTX))?;
        let (k4, spin) = (text(module.load_function("k4"))?, text(module.load_function("spin"))?);
        Ok(Self { context, k4, spin })
    }

    fn stream(&self) -> Result<Arc<Stream>> {
        text(self.context.new_stream())
    }

    /// A kernel that spins so long, as work that reads `memory`.
    fn busy(&self, stream: &Arc<Stream>, memory: &impl simtile::DeviceMemory, time: Duration) -> Result {
        let args = LaunchArgs::new().arg(time.as_nanos() as u64);
        // SAFETY: `spin` touches no memory.
        text(unsafe { stream.submit().read(memory).launch(&self.spin, CONFIG, args) }).map(drop)
    }
}

/// Runs what is asked for; whether every goal holds.
pub fn run(which: &[String]) -> Result<bool> {
    let wanted = |name: &str| which.is_empty() || which.iter().any(|one| one == name);
    let mut good = true;
    for (name, reading) in [("drops", drops as fn() -> Result<bool>), ("idle", idle), ("fault", fault)] {
        if wanted(name) {
            good &= reading()?;
        }
    }
    Ok(good)
}

/// Times the drop of one thing.
fn timed<T>(what: &str, thing: T, worst: &mut Duration) {
    let start = Instant::now();
    drop(thing);
    let took = start.elapsed();
    println!("readings.drops     {what:<24} {:>8.1} µs", took.as_secs_f64() * 1e6);
    *worst = (*worst).max(took);
}

/// Everything that can be dropped, used by a kernel that runs for ten seconds.
fn drops() -> Result<bool> {
    let set = Set::new()?;
    let (context, stream) = (&set.context, set.stream()?);
    let pool = text(MemPool::builder(context).build())?;
    let pooled = text(DeviceBuffer::<u8>::zeroed(&stream, 1 << 20))?;
    let second = text(DeviceBuffer::<u8>::zeroed(&stream, 1 << 20))?;
    let of_pool = text(pool.zeroed::<u8>(&stream, 1 << 20))?;
    let pinned = text(PinnedHostBuffer::<u8>::zeroed(context, 1 << 20))?;
    let managed = text(ManagedBuffer::<u8>::zeroed(context, 1 << 20))?;
    let mut growable = text(GrowableBuffer::<u8>::new(context, 64 << 20))?;
    text(growable.resize(&stream, 1 << 20))?;
    let exported =
        text(text(DeviceBuffer::<u8>::zeroed(&stream, 4096))?.export().map_err(|refused| refused.error))?;
    let module = text(context.load_module_from_ptx_src(PTX))?;
    let function = text(module.load_function("k0"))?;
    let graph = text(CudaGraph::scope(&stream, |_| Ok(())))?;
    let event = text(stream.record_event())?;
    let aside = set.stream()?;
    text(stream.synchronize())?;
    // A free that was never made on this stream may be its first.
    drop(second);

    let args = LaunchArgs::new().arg(BUSY.as_nanos() as u64);
    let start = Instant::now();
    let submit = stream.submit().read(&pooled).read(&of_pool).read(&pinned).read(&managed).read(&growable);
    // SAFETY: `spin` touches no memory.
    let done = text(unsafe { submit.launch(&set.spin, CONFIG, args) })?;
    // SAFETY: `k0` touches nothing.
    text(unsafe { stream.launch(&function, CONFIG, LaunchArgs::new()) })?;
    text(graph.launch().enqueue_on(&stream))?;
    set.busy(&aside, &pooled, Duration::from_millis(1))?;

    let mut worst = Duration::ZERO;
    timed("Submission", done, &mut worst);
    timed("DeviceBuffer", pooled, &mut worst);
    timed("DeviceBuffer of a MemPool", of_pool, &mut worst);
    timed("MemPool", pool, &mut worst);
    timed("PinnedHostBuffer", pinned, &mut worst);
    timed("ManagedBuffer", managed, &mut worst);
    timed("GrowableBuffer", growable, &mut worst);
    timed("Exported", exported, &mut worst);
    timed("CudaGraph", graph, &mut worst);
    timed("Event", event, &mut worst);
    timed("Function", function, &mut worst);
    timed("Module", module, &mut worst);
    timed("Stream (idle)", aside, &mut worst);
    timed("Stream (busy)", stream, &mut worst);
    let spent = start.elapsed();
    if spent > BUSY {
        return Err(format!("the drops took {spent:?}: the kernel had ended"));
    }
    let drained = context.drain(BUSY * 3);
    let good = worst < DROP_GOAL;
    println!(
        "readings.drops     worst {:.1} µs, goal {} µs: {}; drained: {}",
        worst.as_secs_f64() * 1e6,
        DROP_GOAL.as_micros(),
        verdict(good),
        drained.is_complete()
    );
    Ok(good)
}

fn verdict(good: bool) -> &'static str {
    if good { "holds" } else { "missed" }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls to the end on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = std::task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// CPU time of the process: user and system, in hundredths of a second on every Linux that CUDA runs on.
fn cpu_time() -> Result<Duration> {
    let stat =
        std::fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    // The name in parentheses may hold blanks; the fields after it are state (3), …, utime (14), stime (15).
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at - 3).and_then(|field| field.parse::<u64>().ok());
    match (ticks(14), ticks(15)) {
        (Some(user), Some(system)) => Ok(Duration::from_millis(10 * (user + system))),
        _ => Err("/proc/self/stat has no times".into()),
    }
}

/// CPU time while one thread awaits a kernel of four seconds, and while 64 futures on 16 streams are pending.
fn idle() -> Result<bool> {
    let set = Set::new()?;
    let time = Duration::from_secs(4);
    for pending in [1, 64] {
        let streams = (0..pending.min(16)).map(|_| set.stream()).collect::<Result<Vec<_>>>()?;
        let launch = || {
            let builder =
                AsyncKernelLaunchBuilder::new(&set.spin).arg(time.as_nanos() as u64 * 16 / pending.max(16));
            // SAFETY: `spin` touches no memory.
            text(unsafe { builder.finalize_unchecked(CONFIG) })
        };
        let mut futures = Vec::new();
        for i in 0..pending as usize {
            futures.push(launch()?.on(&streams[i % streams.len()]));
        }
        let (cpu, start) = (cpu_time()?, Instant::now());
        let results: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> =
                futures.into_iter().map(|future| scope.spawn(|| text(block_on(future)))).collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or_else(|_| Err("a thread panicked".into())))
                .collect()
        });
        results.into_iter().collect::<Result<Vec<_>>>()?;
        let (cpu, wall) = (cpu_time()? - cpu, start.elapsed());
        println!(
            "readings.idle      {pending:>2} pending: {:.2} s of CPU in {:.2} s: {:.1} % of a core",
            cpu.as_secs_f64(),
            wall.as_secs_f64(),
            100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
        );
    }
    Ok(true)
}

/// A kernel writes to an address that is nobody's while 64 futures are pending. They are on 5 streams: a device has eight queues for all
/// streams unless it is told otherwise, and the kernel must not stand behind those that spin.
fn fault() -> Result<bool> {
    let set = Set::new()?;
    let streams = (0..5).map(|_| set.stream()).collect::<Result<Vec<_>>>()?;
    let mut futures = Vec::new();
    for i in 0..64 {
        let builder = AsyncKernelLaunchBuilder::new(&set.spin).arg(30_000_000_000_u64);
        // SAFETY: `spin` touches no memory.
        futures.push(text(unsafe { builder.finalize_unchecked(CONFIG) })?.on(&streams[i % 5]));
    }
    let bad = set.stream()?;
    let ends: Vec<core::result::Result<Instant, String>> = std::thread::scope(|scope| {
        let handles: Vec<_> = futures
            .into_iter()
            .map(|future| {
                scope.spawn(move || match block_on(future) {
                    Ok(_) => Err("a future gave a value".to_string()),
                    Err(_) => Ok(Instant::now()),
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let args =
            LaunchArgs::new().arg(16_u64).arg(0_u64).arg(0_u64).arg(0_u64).arg(81_985_529_216_486_895_u64);
        let start = Instant::now();
        // SAFETY: this is what the reading is about: the process's contexts are lost, and it ends after this.
        let launched = unsafe { bad.launch(&set.k4, CONFIG, args) };
        // What the driver itself says when, asked as often as can be.
        let raw = scope.spawn(|| driver_tells(&bad));
        let mut ends: Vec<_> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect();
        ends.push(raw.join().map_err(|_| "a thread panicked".to_string()));
        ends.push(launched.map(|()| start).map_err(|error| error.to_string()));
        ends
    });
    let ends = ends.into_iter().collect::<core::result::Result<Vec<_>, _>>()?;
    let (told, start, ends) = (ends[64], ends[65], &ends[..64]);
    let after = |end: Instant| end.saturating_duration_since(start).as_secs_f64() * 1e3;
    let last = ends.iter().max().copied().unwrap_or(start);
    let later = text(bad.synchronize()).err().unwrap_or_default();
    let good = last.saturating_duration_since(told) < FAULT_GOAL;
    println!(
        "readings.fault     the driver tells after {:.2} ms; 64 futures: the first after {:.2} ms, the last after {:.2} ms; goal {} ms \
         behind the driver: {}",
        after(told),
        after(ends.iter().min().copied().unwrap_or(start)),
        after(last),
        FAULT_GOAL.as_millis(),
        verdict(good)
    );
    println!("readings.fault     later: {later}");
    Ok(good)
}

/// When a query of the raw driver says for the first time that the context is lost.
fn driver_tells(stream: &Stream) -> Instant {
    let (driver, raw) = (stream.context().driver(), stream.cu_stream());
    // SAFETY: the context and the stream are alive.
    while matches!(
        unsafe { driver.cuStreamQuery(raw) },
        CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY
    ) {
        std::thread::sleep(Duration::from_micros(20));
    }
    Instant::now()
}
