//! What may start, and the threads that run it.

use super::launch::{Place, fault_code};
use super::order::{Prior, Stamp};
use super::policy::{Candidate, Choice, Running};
use super::state::{State, StreamState};
use super::work::Work;
use crate::check::{AccessLog, Declared, TouchMap, VectorClock, Who, misused, undeclared};
use crate::core::Core;
use crate::exec::FaultReason;
use crate::explore::{self, WORKER_NAME};
use crate::heap::MemoryWork;
use crate::memory::{DeviceView, FaultKind, MemoryFault, MemoryKind};
use crate::report::{Report, ReportKind};
use simtile_driver::sys::CUresult;
use simtile_sync::{Arc, thread, time};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Most worker threads of one driver.
const MOST_WORKERS: usize = 192;
/// How long a worker waits for work before it ends.
const LINGER: Duration = Duration::from_secs(2);
/// How often wait-values are looked at while the host may write to them.
const POLL: Duration = Duration::from_micros(200);
/// From so many streams of a context sitting in a wait-value on, half of its other streams stop.
const SITTING_HALF: usize = 5;
/// From so many on, all others stop.
const SITTING_ALL: usize = 8;

/// What a look at all streams found.
#[derive(Default)]
struct Scan {
    ready: Vec<Candidate>,
    /// Some stream sits in a wait-value.
    sitting: bool,
}

/// What a worker needs to run one item outside of the lock.
struct Job {
    stream: u64,
    context: u64,
    device: i32,
    seq: u64,
    work: Work,
    label: String,
    stamp: Stamp,
    /// Its place among the nodes of a graph's launch.
    node: Option<usize>,
    cancel: Arc<simtile_sync::atomic::AtomicBool>,
}

/// Whether a context was lost. What was queued in it is dropped then, frees among it, while its kernels still run: what they find
/// from there on says nothing about the program.
pub(crate) fn is_lost(state: &State, context: u64) -> bool {
    state.contexts.get(&context).is_none_or(|context| context.lost.is_some())
}

impl Job {
    /// A log of what it touches.
    fn log(&self) -> AccessLog {
        match &self.work {
            Work::Launch(launch) if self.stamp.early.is_some() => {
                AccessLog::with_early(launch.dependency().early)
            }
            _ => AccessLog::new(),
        }
    }

    /// What a launch declared, if it did.
    fn declared(&self) -> Option<&Declared> {
        match &self.work {
            Work::Launch(launch) => launch.declared.as_ref(),
            _ => None,
        }
    }
}

/// How a piece of work ended.
enum Outcome {
    Done,
    /// The context is lost, with this code.
    Lost(CUresult, Box<Report>),
}

impl Core {
    /// The value at an address, as a wait-value sees it.
    fn peek(&self, device: i32, address: u64, wide: bool) -> Result<u64, MemoryFault> {
        let bytes = if wide { 8 } else { 4 };
        let view = DeviceView::new(&self.space, device);
        let allocation = view.locate(address, bytes)?;
        let (backing, _) = allocation.backing();
        let offset = allocation.offset_of(address, bytes).unwrap_or_default();
        Ok(if wide {
            u64::from_ne_bytes(backing.load::<8>(offset))
        } else {
            u64::from(u32::from_ne_bytes(backing.load::<4>(offset)))
        })
    }

    fn poke(&self, device: i32, address: u64, value: u64, wide: bool) -> Result<(), MemoryFault> {
        let bytes = if wide { 8 } else { 4 };
        let view = DeviceView::new(&self.space, device);
        let allocation = view.locate(address, bytes)?;
        let (backing, _) = allocation.backing();
        let offset = allocation.offset_of(address, bytes).unwrap_or_default();
        if wide {
            backing.store::<8>(offset, value.to_ne_bytes());
        } else {
            backing.store::<4>(offset, (value as u32).to_ne_bytes());
        }
        backing.mark_written(offset, bytes);
        Ok(())
    }

    /// Looks at the head of every stream that has work.
    fn scan(&self, state: &State) -> Scan {
        let mut scan = Scan::default();
        let mut sitting: BTreeMap<u64, usize> = BTreeMap::new();
        let mut held: Vec<(Candidate, &StreamState)> = Vec::new();
        for &uid in &state.active {
            let Some(stream) = state.streams.get(&uid) else { continue };
            let Some(item) = stream.items.front() else { continue };
            let Some(context) = state.contexts.get(&stream.context) else { continue };
            if stream.running || !in_legacy_order(state, stream, item.seq) {
                continue;
            }
            let candidate = Candidate {
                stream: uid,
                seq: item.seq,
                priority: match &item.work {
                    Work::Launch(launch) => launch.priority.unwrap_or(stream.priority),
                    _ => stream.priority,
                },
                instant: item.work.is_instant(),
            };
            match &item.work {
                Work::Wait(_) | Work::After(_)
                    if item.record.as_ref().is_some_and(|record| !record.is_over()) => {}
                Work::Gate(gate) if !gate.is_open() => gate.reach(),
                Work::WaitValue(wait) => match self.peek(context.device, wait.address, wait.wide) {
                    Ok(found) if !wait.holds(found) => {
                        *sitting.entry(stream.context).or_default() += 1;
                        scan.sitting = true;
                    }
                    // A fault is found again, and told, when the item runs.
                    _ => scan.ready.push(candidate),
                },
                _ => held.push((candidate, stream)),
            }
        }
        for (candidate, stream) in held {
            let sitting = sitting.get(&stream.context).copied().unwrap_or(0);
            let stopped = sitting >= SITTING_ALL || sitting >= SITTING_HALF && stream.index % 2 == 1;
            if !stopped {
                scan.ready.push(candidate);
            }
        }
        scan
    }

    /// Whether some work may start.
    pub(super) fn has_ready(&self, state: &State) -> bool {
        !self.scan(state).ready.is_empty()
    }

    /// Completes instant work that is ready, in order of submission, until there is none. Host threads
    /// are told if there was any. Gives what is left.
    fn pump(&self, state: &mut State) -> Scan {
        let mut any = false;
        let rest = loop {
            let scan = self.scan(state);
            let first = scan.ready.iter().filter(|c| c.instant).min_by_key(|c| c.seq);
            let Some(first) = first else { break scan };
            any = true;
            self.complete_instant(state, first.stream);
        };
        if any {
            self.changed.notify_all();
        }
        rest
    }

    fn complete_instant(&self, state: &mut State, uid: u64) {
        let Some(stream) = state.streams.get(&uid) else { return };
        let Some(item) = stream.items.front() else { return };
        let device = state.contexts.get(&stream.context).map_or(0, |context| context.device);
        let (work, record, seq) = (item.work.clone(), item.record.clone(), item.seq);
        let stamp = self.start(state, uid);
        match &work {
            Work::Wait(_) | Work::After(_) => {
                if let Some(known) = record.as_ref().and_then(|record| record.known()) {
                    learn(state, uid, known);
                }
            }
            Work::WaitValue(wait) => {
                let known = state.order.value_seen(wait.address);
                learn(state, uid, &known);
            }
            Work::WriteValue { address, .. } => {
                let known = knows(state, uid);
                state.order.value_written(*address, &known);
            }
            Work::Conditions(all) => {
                for (condition, default) in all.iter() {
                    if let Some(condition) = state.graphs.conditions.get_mut(condition) {
                        condition.value = *default;
                    }
                }
            }
            _ => {}
        }
        let next = match &work {
            Work::Branch(branch, rounds) => self.branch_items(state, uid, branch, *rounds),
            _ => Ok(Vec::new()),
        };
        let next = match next {
            Ok(next) => next,
            Err(report) => {
                return self.retire(state, uid, Outcome::Lost(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, report));
            }
        };
        let run = || match &work {
            Work::WaitValue(wait) => self.peek(device, wait.address, wait.wide).map(drop),
            Work::WriteValue { address, value, wide } => self.poke(device, *address, *value, *wide),
            Work::Memory(work) => work.run(self, &DeviceView::new(&self.space, device)),
            Work::Record(_)
            | Work::Wait(_)
            | Work::After(_)
            | Work::Gate(_)
            | Work::Conditions(_)
            | Work::Branch(..)
            | Work::Launch(_)
            | Work::Host(_) => Ok(()),
        };
        let outcome = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(fault)) => memory_outcome(&fault, state.stream_name(uid)),
            Err(panic) => panic_outcome(&*panic, state.stream_name(uid)),
        };
        if let Work::Memory(MemoryWork::Begin(allocation) | MemoryWork::End(allocation, _)) = &work
            && self.config.checks.races
        {
            // Work on the memory before its beginning or after its end races with them.
            let whole = Arc::new(TouchMap::whole(allocation.clone()));
            let stream = state.stream_name(uid);
            self.compare(state, &stamp, &work, seq, &stream, &[whole]);
        }
        self.host_work_ended(state, seq, &work, &[]);
        self.retire(state, uid, outcome);
        // A conditional node's body, before what was behind the node.
        if let Some(stream) = state.streams.get_mut(&uid).filter(|stream| !stream.items.is_empty()) {
            next.into_iter().rev().for_each(|item| stream.items.push_front(item));
        }
    }

    /// The first item of a stream starts: who it is in the order of things.
    fn start(&self, state: &mut State, uid: u64) -> Stamp {
        state.steps += 1;
        let stream = state.streams.get(&uid);
        let legacy = stream.map_or(0, |stream| state.legacy_of(stream.context, stream.green));
        let State { streams, contexts, order, .. } = state;
        let stream = streams.get(&uid);
        let context = stream.and_then(|stream| contexts.get(&stream.context));
        // The legacy default stream and the blocking streams of its context follow each other.
        let others: Vec<u64> = match (stream, context) {
            (Some(stream), Some(context)) if stream.legacy => {
                let blocking = |uid: &u64| {
                    streams.get(uid).is_some_and(|other| other.is_blocking() && other.green == stream.green)
                };
                context.streams.iter().copied().filter(blocking).collect()
            }
            (Some(stream), Some(_)) if stream.is_blocking() => vec![legacy],
            _ => Vec::new(),
        };
        let Some(item) = stream.and_then(|stream| stream.items.front()) else {
            return order.start(uid, &VectorClock::default(), &others);
        };
        let graph = item.graph.as_ref().and_then(|graph| Some((graph, graph.clocks.as_ref()?)));
        let Some((graph, clocks)) = graph else {
            let (prior, early) = match (&item.work, &stream.and_then(|stream| stream.prior.clone())) {
                (Work::Launch(launch), prior) if self.config.checks.races => {
                    let prior = prior.as_ref().filter(|prior| launch.programmatic && prior.triggers);
                    let before = order.at_start(uid, &item.host, &others, prior.map(|prior| &prior.before));
                    let early = prior.is_some().then(|| before.clone());
                    (Some(Prior { before, triggers: launch.dependency().launches_dependents }), early)
                }
                _ => (None, None),
            };
            let stamp = order.start(uid, &item.host, &others);
            if let Some(stream) = streams.get_mut(&uid) {
                stream.prior = prior;
            }
            return Stamp { early, ..stamp };
        };
        let mut clocks = clocks.lock();
        let Some(node) = graph.node else {
            // The end of the launch follows all of its nodes.
            clocks.ends.iter().flatten().for_each(|known| order.stream_learns(uid, known));
            return order.start(uid, &item.host, &others);
        };
        // A node follows what came before the launch and its own predecessors, not the nodes that
        // happened to run earlier.
        let mut known = match &clocks.base {
            Some(base) => base.clone(),
            None => clocks.base.insert(order.start(uid, &item.host, &others).before).clone(),
        };
        // What it knows before it waits for those that let it start early.
        let mut early = known.clone();
        for before in &graph.before {
            let end = clocks.ends.get(before.node).and_then(Option::as_ref);
            let start = clocks.starts.get(before.node).and_then(Option::as_ref);
            end.into_iter().for_each(|end| known.join(end));
            if before.early { start } else { end }.into_iter().for_each(|at| early.join(at));
        }
        // A node may be several pieces of work.
        clocks.ends.get(node).and_then(Option::as_ref).into_iter().for_each(|end| known.join(end));
        let may_be_early = graph.before.iter().any(|before| before.early);
        if let Some(start) = clocks.starts.get_mut(node) {
            *start = Some(if may_be_early { early.clone() } else { known.clone() });
        }
        if let Some(body) = &graph.joins {
            body.lock().ends.iter().flatten().for_each(|end| known.join(end));
        }
        let stamp = order.start_node(graph.lane, known);
        if let Some(end) = clocks.ends.get_mut(node) {
            *end = Some(stamp.before.clone());
        }
        let early = may_be_early.then_some(early);
        Stamp { early, ..stamp }
    }

    /// Takes the first item of a stream off, which has ended.
    fn retire(&self, state: &mut State, uid: u64, outcome: Outcome) {
        state.steps += 1;
        let known = knows(state, uid);
        let Some(stream) = state.streams.get_mut(&uid) else { return };
        stream.running = false;
        let context = stream.context;
        if let Some(item) = stream.items.pop_front() {
            if item.counted {
                stream.counted -= 1;
                if let Some(context) = state.contexts.get_mut(&context) {
                    context.counted -= 1;
                }
            }
            match (&item.work, &item.record) {
                (Work::Record(_), Some(record)) => record.complete(time::now(), known),
                (Work::Memory(MemoryWork::End(_, record)), _) => record.complete(time::now(), known),
                _ => {}
            }
        }
        self.forget_if_empty(state, uid);
        if let Outcome::Lost(code, report) = outcome {
            if !is_lost(state, context) {
                self.report(*report);
            }
            self.lose(state, context, code);
        }
    }

    fn forget_if_empty(&self, state: &mut State, uid: u64) {
        let Some(stream) = state.streams.get(&uid) else { return };
        if stream.items.is_empty() {
            state.active.remove(&uid);
            if stream.destroyed {
                let context = stream.context;
                state.streams.remove(&uid);
                state.order.stream_gone(uid, context);
                if let Some(context) = state.contexts.get_mut(&context) {
                    context.streams.remove(&uid);
                }
            }
        }
    }

    /// Loses a context: every later call returns `code`, and what is queued never runs.
    pub(crate) fn lose(&self, state: &mut State, context: u64, code: CUresult) {
        if state.contexts.contains_key(&context) {
            for lost in state.contexts.values_mut() {
                lost.lost.get_or_insert(code);
            }
            for primary in &mut state.primaries {
                primary.lost.get_or_insert(code);
            }
        }
        let all: Vec<u64> = state.contexts.keys().copied().collect();
        for context in all {
            self.discard(state, context);
        }
        self.changed.notify_all();
    }

    /// Drops what is queued in a context and has not started.
    pub(crate) fn discard(&self, state: &mut State, context: u64) {
        let streams: Vec<u64> =
            state.contexts.get(&context).map(|c| c.streams.iter().copied().collect()).unwrap_or_default();
        for uid in streams {
            let Some(stream) = state.streams.get_mut(&uid) else { continue };
            let keep = usize::from(stream.running);
            for item in stream.items.drain(keep.min(stream.items.len())..) {
                state.watches.remove(&item.seq);
                state.kernel_watches.remove(&item.seq);
                if item.counted {
                    stream.counted -= 1;
                    if let Some(context) = state.contexts.get_mut(&context) {
                        context.counted -= 1;
                    }
                }
                if let (Work::Record(_), Some(record)) = (&item.work, &item.record) {
                    record.abandon();
                }
                if let Work::Memory(work) = &item.work {
                    work.abandon(self);
                }
            }
            self.forget_if_empty(state, uid);
        }
    }

    /// Sees to it that work which may be ready is looked at.
    pub(crate) fn kick(self: &Arc<Self>, state: &mut State) {
        let left = self.pump(state);
        if state.active.is_empty() {
            return;
        }
        // Whoever starts looks at everything. And work that becomes ready later is looked at by whoever makes it so.
        let nothing = left.ready.is_empty() && (!left.sitting || state.polling);
        if state.workers > 0 && (nothing || state.starting > 0) {
            return;
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.workers < MOST_WORKERS {
            self.spawn_worker(state);
        }
    }

    fn spawn_worker(self: &Arc<Self>, state: &mut State) {
        let core = self.clone();
        state.workers += 1;
        state.starting += 1;
        state.workers_started += 1;
        let name = format!("{WORKER_NAME}-{}", state.workers_started);
        if thread::spawn(&name, move || core.worker()).is_err() {
            state.workers -= 1;
            state.starting -= 1;
        }
    }

    fn worker(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.starting -= 1;
        loop {
            if state.down {
                break;
            }
            self.pump(&mut state);
            let scan = self.scan(&state);
            let choice = if scan.ready.is_empty() {
                Choice::Wait(None)
            } else {
                let State { policy, running, .. } = &mut *state;
                policy.choose(&scan.ready, running, time::now())
            };
            match choice {
                Choice::Start(at) => {
                    let Some(candidate) = scan.ready.get(at) else { continue };
                    let Some(job) = self.begin(&mut state, candidate.stream) else { continue };
                    // Whoever is left looks for more, or at the wait-values.
                    if state.idle > 0 {
                        self.work.notify_one();
                    } else if state.workers < MOST_WORKERS && state.starting == 0 {
                        self.spawn_worker(&mut state);
                    }
                    drop(state);
                    let log = (self.config.checks.races || job.declared().is_some()).then(|| job.log());
                    let outcome = self.execute(&job, log.as_ref());
                    state = self.state.lock();
                    let fault = match &outcome {
                        Outcome::Lost(_, report) => report.address,
                        Outcome::Done => None,
                    };
                    self.judge(&mut state, &job, log, fault);
                    state.running.retain(|running| running.stream != job.stream);
                    self.retire(&mut state, job.stream, outcome);
                    self.changed.notify_all();
                    if state.idle > 0 {
                        self.work.notify_one();
                    }
                }
                Choice::Wait(limit) => {
                    let polls = scan.sitting && !state.polling;
                    let limit = match limit {
                        _ if polls => POLL,
                        Some(limit) => limit,
                        None => LINGER,
                    };
                    state.polling |= polls;
                    state.idle += 1;
                    // In an exploration nothing but time could end a linger, and time stands still there until
                    // nobody can go on: an idle worker would hide that.
                    let explored = explore::current().is_some_and(|schedule| schedule.is_on());
                    let timed_out = if limit == LINGER && explored {
                        self.work.wait(&mut state);
                        false
                    } else {
                        self.work.wait_for(&mut state, limit)
                    };
                    state.idle -= 1;
                    if polls {
                        state.polling = false;
                    }
                    if timed_out && limit == LINGER && state.active.is_empty() {
                        break;
                    }
                }
            }
        }
        state.workers -= 1;
        self.changed.notify_all();
    }

    /// Marks the first item of a stream as running.
    fn begin(&self, state: &mut State, uid: u64) -> Option<Job> {
        let stamp = self.start(state, uid);
        let stream = state.streams.get_mut(&uid)?;
        let item = stream.items.front()?;
        // A graph's kernel may be another context's.
        let owner = match &item.work {
            Work::Launch(launch) if state.contexts.contains_key(&launch.context) => launch.context,
            _ => stream.context,
        };
        let context = state.contexts.get(&owner)?;
        let job = Job {
            stamp,
            node: item.graph.as_ref().and_then(|graph| graph.node),
            stream: uid,
            context: owner,
            device: context.device,
            seq: item.seq,
            work: item.work.clone(),
            label: stream_name(stream, uid),
            cancel: context.cancel.clone(),
        };
        stream.running = true;
        explore::note(format_args!("starts {} #{} on stream {uid}", job.work.name(), job.seq));
        let host = matches!(item.work, Work::Host(_));
        state.running.push(Running { stream: uid, host, since: time::now() });
        self.watched_kernel_starts(state, job.seq);
        self.kernel_starts(state, job.stamp.epoch, uid, &job.work, job.seq);
        self.host_copy_starts(state, job.seq, &job.label);
        Some(job)
    }

    /// Compares what a piece of work touched with what it declared and with what came before. `fault` is the
    /// address that it could not touch.
    fn judge(&self, state: &mut State, job: &Job, log: Option<AccessLog>, fault: Option<u64>) {
        let (early, touched) = log.map(AccessLog::into_maps).unwrap_or_default();
        if self.config.checks.races
            && let Some(before) = &job.stamp.early
        {
            // First, because what comes behind the wait stands for what the kernel before did.
            let stamp = Stamp { epoch: job.stamp.epoch, before: before.clone(), early: None };
            self.compare(state, &stamp, &job.work, job.seq, &job.label, &early);
        }
        let late = touched;
        let touched = [early, late.clone()].concat();
        if let Some(declared) = job.declared()
            && !is_lost(state, job.context)
        {
            self.compare_declared(job, declared, &touched);
        }
        if self.config.checks.races {
            self.compare(state, &job.stamp, &job.work, job.seq, &job.label, &late);
            if let Some(node) = job.node {
                self.check_stale(state, node, &job.work, &job.label, &touched, fault);
            }
        }
        self.watched_kernel_ended(state, job.seq, &job.work, &job.label, &touched);
        self.check_managed_work(state, job.stream, &job.work, job.seq, &touched);
        self.host_work_ended(state, job.seq, &job.work, &touched);
    }

    fn compare_declared(&self, job: &Job, declared: &Declared, touched: &[Arc<TouchMap>]) {
        let Work::Launch(launch) = &job.work else { return };
        let view = DeviceView::new(&self.space, job.device);
        // Ranges by the memory behind them, so that a second mapping of it is covered as well.
        let places: Vec<_> = declared
            .accesses
            .iter()
            .filter_map(|access| {
                let allocation = view.locate(access.address, access.bytes).ok()?;
                let offset = allocation.offset_of(access.address, access.bytes)?;
                Some((Arc::as_ptr(allocation.backing().0), (offset, access.bytes, access.mode)))
            })
            .collect();
        for map in touched {
            let allocation = map.allocation();
            // A kernel's own variables and the driver's workspace are declared by nobody.
            let own = |&address: &u64| allocation.offset_of(address, 1).is_some();
            if allocation.kind == MemoryKind::Internal || launch.loaded.globals.iter().any(own) {
                continue;
            }
            let memory = Arc::as_ptr(map.backing());
            let here: Vec<_> = places.iter().filter(|place| place.0 == memory).map(|place| place.1).collect();
            let found = match declared.all {
                true => undeclared(map, &here),
                false => misused(map, &here),
            };
            for found in found {
                let place = launch.locate()(found.site);
                let report = Report::undeclared(launch.name(), allocation, &found, place.as_deref());
                self.report(report.on_stream(Some(job.label.clone())));
            }
        }
    }

    fn compare(
        &self,
        state: &mut State,
        stamp: &Stamp,
        work: &Work,
        id: u64,
        stream: &str,
        touched: &[Arc<TouchMap>],
    ) {
        let code = match work {
            Work::Launch(launch) => Some(launch.locate()),
            _ => None,
        };
        let who = Who { what: work.describe(), place: format!("stream {stream}"), id, code };
        for race in state.order.ended(stamp, &who, touched) {
            self.report(Report::race(&race).on_stream(Some(stream.to_owned())));
        }
    }

    /// Runs one item, outside of the lock.
    fn execute(&self, job: &Job, log: Option<&AccessLog>) -> Outcome {
        let run = || match &job.work {
            Work::Launch(launch) => {
                let _busy = explore::busy();
                match launch.run(
                    self,
                    &Place {
                        device: job.device,
                        context: job.context,
                        id: job.seq,
                        stream: &job.label,
                        cancel: &job.cancel,
                        log,
                    },
                ) {
                    Ok(()) => Outcome::Done,
                    // We asked for it, because the context or the driver ends.
                    Err(fault) if fault.reason == FaultReason::Cancelled => Outcome::Done,
                    Err(fault) => Outcome::Lost(
                        fault_code(&fault.reason),
                        Box::new(Report::fault(&fault).on_stream(Some(job.label.clone()))),
                    ),
                }
            }
            Work::Memory(work) => {
                let _busy = explore::busy();
                let device = work.device().unwrap_or(job.device);
                match work.run(self, &DeviceView { log, ..DeviceView::new(&self.space, device) }) {
                    Ok(()) => Outcome::Done,
                    Err(fault) => memory_outcome(&fault, job.label.clone()),
                }
            }
            Work::Host(call) => {
                let _inside = crate::entry::enter_host_function(self.id);
                if let Some(function) = call.function {
                    // SAFETY: `cuLaunchHostFunc`'s caller said that this function may be called once
                    // with this argument when the stream gets here.
                    unsafe { function(std::ptr::with_exposed_provenance_mut(call.data)) };
                }
                Outcome::Done
            }
            Work::Record(_)
            | Work::Wait(_)
            | Work::After(_)
            | Work::WaitValue(_)
            | Work::WriteValue { .. }
            | Work::Conditions(_)
            | Work::Branch(..)
            | Work::Gate(_) => Outcome::Done,
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| panic_outcome(&*panic, job.label.clone()))
    }
}

/// What the first item of a stream knows: of a graph's node, what that node knows.
fn knows(state: &State, uid: u64) -> VectorClock {
    let front = state.streams.get(&uid).and_then(|stream| stream.items.front());
    let node = front.and_then(|item| item.graph.as_ref()).and_then(|graph| {
        let clocks = graph.clocks.as_ref()?.lock();
        clocks.ends.get(graph.node?)?.clone()
    });
    node.unwrap_or_else(|| state.order.of_stream(uid))
}

/// The first item of a stream has waited for something.
fn learn(state: &mut State, uid: u64, known: &VectorClock) {
    let front = state.streams.get(&uid).and_then(|stream| stream.items.front());
    let node = front.and_then(|item| item.graph.as_ref()).and_then(|graph| {
        let mut clocks = graph.clocks.as_ref()?.lock();
        clocks.ends.get_mut(graph.node?)?.as_mut()?.join(known);
        Some(())
    });
    if node.is_none() {
        state.order.stream_learns(uid, known);
    }
}

fn panic_outcome(panic: &(dyn Any + Send), stream: String) -> Outcome {
    let text = format!("the simulator panicked while it ran work: {}", crate::entry::panic_text(panic));
    let report = Report::new(ReportKind::Internal, text).on_stream(Some(stream));
    Outcome::Lost(CUresult::CUDA_ERROR_UNKNOWN, Box::new(report))
}

fn memory_outcome(fault: &MemoryFault, stream: String) -> Outcome {
    let code = match fault.kind {
        FaultKind::Misaligned => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        _ => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    };
    let mut report = Report::new(ReportKind::MemoryFault, fault.to_string()).on_stream(Some(stream));
    report.address = Some(fault.address);
    report.labels.extend(fault.near.iter().filter_map(|near| near.label.clone()));
    Outcome::Lost(code, Box::new(report))
}

impl State {
    pub(super) fn stream_name(&self, uid: u64) -> String {
        self.streams.get(&uid).map_or_else(|| uid.to_string(), |stream| stream_name(stream, uid))
    }
}

pub(crate) fn stream_name(stream: &StreamState, uid: u64) -> String {
    match &stream.label {
        Some(label) => format!("'{label}'"),
        None if stream.legacy => "legacy default".to_owned(),
        None => uid.to_string(),
    }
}

/// The rule of the legacy default stream: it and the blocking streams of its context follow each other
/// in order of submission.
fn in_legacy_order(state: &State, stream: &StreamState, seq: u64) -> bool {
    let Some(context) = state.contexts.get(&stream.context) else { return false };
    let earlier = |uid: &u64| {
        state.streams.get(uid).is_some_and(|other| {
            let before = other.items.front().is_some_and(|item| item.seq < seq);
            other.is_blocking() && other.green == stream.green && before
        })
    };
    let legacy = state.legacy_of(stream.context, stream.green);
    if stream.legacy {
        !context.streams.iter().filter(|uid| **uid != legacy).any(earlier)
    } else {
        !(stream.is_blocking() && earlier(&legacy))
    }
}
