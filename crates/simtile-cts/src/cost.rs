//! What the runtime itself costs, measured on the null driver.
//!
//! Each path runs twice: once over a counting driver for calls, events and heap allocations, once plainly for
//! nanoseconds. Locks are counted in a build of their own (feature `count`), which is too slow to time;
//! [`add_locks`] brings the two together. `completion withheld` means that no event ever fires, so everything stays in flight; what is in flight then
//! must not change what a submission costs.

mod ops;

use serde::{Deserialize, Serialize};
use simtile_async::OpError as Error;
use simtile_core::{Context, DeviceBuffer, Function, LaunchArgs, Stream};
use simtile_driver::count::Counted;
use simtile_driver::sys::{CUevent, CUresult};
use simtile_driver::{Driver, Entry, State, Table};
use simtile_types::LaunchConfig;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Heap allocations of the process, counted by the binary's allocator.
pub static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

static WITHHELD: AtomicBool = AtomicBool::new(false);

/// One row: averages of one operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was done.
    pub path: String,
    /// Driver calls, context checks included.
    pub driver_calls: f64,
    /// Events recorded and waits queued.
    pub events: f64,
    /// Heap allocations of all threads.
    pub heap_allocs: f64,
    /// Lock acquisitions of the threads that do it; `None` without the feature `count`.
    pub locks: Option<f64>,
    /// Nanoseconds, the least of several rounds; `None` with the feature `count`.
    pub ns: Option<f64>,
}

/// The calling thread's lock acquisitions since the last call.
#[cfg(feature = "count")]
fn take_locks() -> u64 {
    simtile_sync::count::take().locks
}

/// Nothing counts.
#[cfg(not(feature = "count"))]
fn take_locks() -> u64 {
    0
}

/// What was counted, per operation; `None` if nothing counts.
fn locks_of(total: u64, operations: f64) -> Option<f64> {
    cfg!(feature = "count").then(|| total as f64 / operations)
}

/// What was timed; `None` in a build that counts.
fn timed(ns: f64) -> Option<f64> {
    (!cfg!(feature = "count")).then_some(ns)
}

/// Takes over the locks from the rows of a build that counts them.
///
/// # Errors
/// A path that the other rows lack, or whose locks were not counted.
pub fn add_locks(rows: &mut [Row], counted: &[Row]) -> Result<(), String> {
    for row in rows {
        let other = counted.iter().find(|other| other.path == row.path);
        let locks = other.and_then(|other| other.locks);
        row.locks = Some(locks.ok_or_else(|| format!("no locks were counted for {}", row.path))?);
    }
    Ok(())
}

/// A null driver on which events fire only while they are not withheld.
fn driver() -> Driver {
    unsafe fn query(_: State, _: CUevent) -> CUresult {
        match WITHHELD.load(Ordering::Relaxed) {
            true => CUresult::CUDA_ERROR_NOT_READY,
            false => CUresult::CUDA_SUCCESS,
        }
    }
    let null = simtile_sim::null();
    let table = Box::leak(Box::new(Table { cuEventQuery: query, ..*null.table() }));
    // SAFETY: the same state under a table that differs in one function, which does not use it.
    unsafe { Driver::from_parts(table, null.state()) }
}

/// Everything that a path needs.
struct Bench {
    counted: Option<Counted>,
    context: Arc<Context>,
    stream: Arc<Stream>,
    functions: Vec<(usize, Function)>,
    buffers: Vec<DeviceBuffer<f32>>,
    ops: ops::Kept,
}

/// A kernel of so many addresses.
fn kernel(n: usize) -> String {
    let params: Vec<String> = (0..n).map(|i| format!(".param .u64 p{i}")).collect();
    let mut text = String::from(".version 8.0\n.target sm_90\n.address_size 64\n");
    // Writing to a string cannot fail.
    let _ = write!(text, ".visible .entry k({})\n{{\nret;\n}}\n", params.join(", "));
    text
}

const SIZES: [usize; 5] = [0, 1, 4, 16, 64];

impl Bench {
    fn new(count: bool) -> Result<Self, Error> {
        let counted = count.then(|| Counted::new(driver()));
        let driver = counted.as_ref().map_or_else(driver, |counted| counted.driver());
        let context = Context::new(driver, 0)?;
        let stream = context.new_stream()?;
        let mut functions = Vec::new();
        for n in SIZES {
            functions.push((n, context.load_module_from_ptx_src(&kernel(n))?.load_function("k")?));
        }
        let buffers = (0..64).map(|_| DeviceBuffer::zeroed(&stream, 1024)).collect::<Result<_, _>>()?;
        Ok(Self { counted, context, stream, functions, buffers, ops: ops::Kept::default() })
    }

    fn function(&self, n: usize) -> &Function {
        // All sizes were made.
        self.functions.iter().find(|entry| entry.0 == n).map_or(&self.functions[0].1, |entry| &entry.1)
    }

    /// Runs `operation` and averages.
    fn measure(
        &mut self,
        rounds: usize,
        each: usize,
        mut operation: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<Row, Error> {
        let mut best = f64::INFINITY;
        for _ in 0..each * 2 {
            operation(self)?;
        }
        let counts = self.counted.as_ref().map(|counted| counted.counts());
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        take_locks();
        for _ in 0..rounds {
            let start = Instant::now();
            for _ in 0..each {
                operation(self)?;
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e9 / each as f64);
        }
        let locks = take_locks();
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
        let n = (rounds * each) as f64;
        let calls = |pick: &dyn Fn(&simtile_driver::count::Counts) -> u64| match (&self.counted, &counts) {
            (Some(now), Some(before)) => (pick(&now.counts()) - pick(before)) as f64 / n,
            _ => 0.0,
        };
        Ok(Row {
            path: String::new(),
            driver_calls: calls(&|counts| counts.total()),
            events: calls(&|counts| counts.of(Entry::cuEventRecord) + counts.of(Entry::cuStreamWaitEvent)),
            heap_allocs: allocated as f64 / n,
            locks: locks_of(locks, n),
            ns: timed(best),
        })
    }

    fn submit(&mut self, n: usize) -> Result<(), Error> {
        let function = self.function(n).clone();
        let (written, read) = self.buffers.split_at_mut(1);
        let mut args = LaunchArgs::new();
        if let (true, Some(first)) = (n > 0, written.first_mut()) {
            args = args.buffer_mut(first);
        }
        for buffer in read.iter().take(n.saturating_sub(1)) {
            args = args.buffer(buffer);
        }
        // SAFETY: the null driver runs nothing.
        unsafe { self.stream.submit().launch(&function, LaunchConfig::for_num_elems(32), args) }?;
        Ok(())
    }
}

/// A path: its name, how often it runs, and one operation.
type Path = (String, usize, fn(&mut Bench) -> Result<(), Error>);

fn paths() -> Vec<Path> {
    vec![
        ("submit_0".into(), 640, |bench| bench.submit(0)),
        ("submit_1".into(), 640, |bench| bench.submit(1)),
        ("submit_4".into(), 640, |bench| bench.submit(4)),
        ("submit_16".into(), 320, |bench| bench.submit(16)),
        ("submit_64".into(), 320, |bench| bench.submit(64)),
        ("alloc_drop".into(), 320, |bench| {
            // SAFETY: nothing reads it.
            drop(unsafe { DeviceBuffer::<u8>::uninit(&bench.stream, 1 << 20) }?);
            Ok(())
        }),
        ("view_clone_drop".into(), 640, |bench| {
            let view = bench.buffers[0].slice(10..100)?;
            std::hint::black_box(&view.clone());
            Ok(())
        }),
        ("upload_4k".into(), 320, |bench| {
            Ok(bench.buffers[0].copy_from_slice(&bench.stream.clone(), &[1.0; 1024])?)
        }),
    ]
}

/// Fills streams with work that does not finish.
fn hold(bench: &mut Bench, in_flight: usize) -> Result<Vec<Arc<Stream>>, Error> {
    let streams = match in_flight {
        0..=500 => vec![bench.stream.clone()],
        _ => (0..8).map(|_| bench.context.new_stream()).collect::<Result<Vec<_>, _>>()?,
    };
    for _ in 0..in_flight / streams.len() {
        for stream in &streams {
            stream.submit().read(&bench.buffers[1]).order_only()?;
        }
    }
    Ok(streams)
}

/// The rows of operations and graphs alone, counted and not timed: what a gate looks at.
///
/// # Errors
/// The runtime's.
pub fn count_ops() -> Result<Vec<Row>, Error> {
    WITHHELD.store(false, Ordering::Relaxed);
    let count = |(name, each, operation): Path| -> Result<Row, Error> {
        Ok(Row { path: name, ..Bench::new(true)?.measure(2, each, operation)? })
    };
    ops::paths().into_iter().map(count).collect()
}

/// All rows.
///
/// # Errors
/// The runtime's.
pub fn measure(rounds: usize) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (name, each, operation) in paths().into_iter().chain(ops::paths()) {
        WITHHELD.store(false, Ordering::Relaxed);
        let counted = Bench::new(true)?.measure(2, each, operation)?;
        let plain = Bench::new(false)?.measure(rounds, each, operation)?;
        rows.push(Row { path: name, ns: plain.ns, ..counted });
    }
    for in_flight in [1, 500, 4000] {
        for (name, _, operation) in paths() {
            // 512 fit into a stream, 4 096 into a context.
            let each = 4;
            let run = |count: bool, rounds: usize| -> Result<Row, Error> {
                WITHHELD.store(false, Ordering::Relaxed);
                let mut bench = Bench::new(count)?;
                bench.measure(1, 64, operation)?;
                bench.stream.synchronize()?;
                WITHHELD.store(true, Ordering::Relaxed);
                let held = hold(&mut bench, usize::saturating_sub(in_flight, 12))?;
                let row = bench.measure(rounds, each, operation);
                WITHHELD.store(false, Ordering::Relaxed);
                drop(held);
                row
            };
            let counted = run(true, 1)?;
            let plain = run(false, 1)?;
            rows.push(Row { path: format!("{name} with {in_flight} in flight"), ns: plain.ns, ..counted });
        }
    }
    for threads in [1, 2, 4, 8] {
        for shared in [false, true] {
            let name = if shared { "shared" } else { "own" };
            let path = format!("submit_4 on {threads} threads, {name} buffers");
            let counted = in_parallel(threads, shared, 1, true)?;
            let plain = in_parallel(threads, shared, rounds, false)?;
            rows.push(Row { path, ns: plain.ns, ..counted });
        }
    }
    Ok(rows)
}

/// Launches of four buffers on streams of their own. Shared buffers are only read.
fn in_parallel(threads: usize, shared: bool, rounds: usize, count: bool) -> Result<Row, Error> {
    const EACH: usize = 640;
    // Until the streams have used all their permits, and the events for that are made.
    const WARM: usize = 2;
    WITHHELD.store(false, Ordering::Relaxed);
    let bench = Bench::new(count)?;
    let function = bench.function(4);
    let common: Vec<_> = bench.buffers.iter().take(3).collect();
    // The main thread takes part, and reads the counters while all stand.
    let barrier = std::sync::Barrier::new(threads + 1);
    let read_counts = || {
        let counts = bench.counted.as_ref().map(|counted| counted.counts());
        let calls = counts.as_ref().map_or(0, simtile_driver::count::Counts::total);
        let events = counts
            .as_ref()
            .map_or(0, |counts| counts.of(Entry::cuEventRecord) + counts.of(Entry::cuStreamWaitEvent));
        [calls, events, ALLOCATIONS.load(Ordering::Relaxed)]
    };
    let mut averages = [0.0; 3];
    let times: Vec<Result<(f64, u64), Error>> = std::thread::scope(|scope| {
        let run = || {
            let stream = bench.context.new_stream()?;
            let mut out = DeviceBuffer::<f32>::zeroed(&stream, 1024)?;
            let own: Vec<DeviceBuffer<f32>> =
                (0..3).map(|_| DeviceBuffer::zeroed(&stream, 1024)).collect::<Result<_, _>>()?;
            let read: Vec<&DeviceBuffer<f32>> = if shared { common.clone() } else { own.iter().collect() };
            let (mut best, mut locks) = (f64::INFINITY, 0);
            for round in 0..WARM + rounds {
                barrier.wait();
                barrier.wait();
                take_locks();
                let start = Instant::now();
                for _ in 0..EACH {
                    let args = LaunchArgs::new()
                        .buffer_mut(&mut out)
                        .buffer(read[0])
                        .buffer(read[1])
                        .buffer(read[2]);
                    // SAFETY: the null driver runs nothing.
                    unsafe { stream.submit().launch(function, LaunchConfig::for_num_elems(32), args) }?;
                }
                best = best.min(start.elapsed().as_secs_f64() * 1e9 / EACH as f64);
                locks += if round >= WARM { take_locks() } else { 0 };
            }
            barrier.wait();
            // What it has is dropped after the counters were read.
            barrier.wait();
            Ok((best, locks))
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let mut before = [0; 3];
        for round in 0..WARM + rounds {
            barrier.wait();
            if round == WARM {
                before = read_counts();
            }
            barrier.wait();
        }
        barrier.wait();
        let n = (threads * rounds * EACH) as f64;
        let after = read_counts();
        averages = std::array::from_fn(|i| (after[i] - before[i]) as f64 / n);
        barrier.wait();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let times = times.into_iter().collect::<Result<Vec<(f64, u64)>, Error>>()?;
    let ns = times.iter().map(|one| one.0).sum::<f64>() / times.len().max(1) as f64;
    let locks = locks_of(times.iter().map(|one| one.1).sum(), (threads * rounds * EACH) as f64);
    let [driver_calls, events, heap_allocs] = averages;
    Ok(Row { path: String::new(), driver_calls, events, heap_allocs, locks, ns: timed(ns) })
}

/// Rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:44} {:>8} {:>8} {:>8} {:>8} {:>10}\n", "path", "calls", "events", "allocs", "locks", "ns");
    let known = |value: Option<f64>, decimals: usize| match value {
        Some(value) => format!("{value:.decimals$}"),
        None => "-".into(),
    };
    for row in rows {
        let Row { path, driver_calls, events, heap_allocs, locks, ns } = row;
        let (locks, ns) = (known(*locks, 3), known(*ns, 1));
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{path:44} {driver_calls:8.3} {events:8.3} {heap_allocs:8.3} {locks:>8} {ns:>10}");
    }
    text
}
