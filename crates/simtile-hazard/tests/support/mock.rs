//! The mock driver: streams as queues that the test advances, events as positions, captures, faults.

use super::clock::{Clock, STREAMS};
use super::judge::{Memory, Touch, unordered};
use super::plain::Mutex;
use simtile_hazard::{Backend, EventRef, Quarantine, Stamp};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What a stream has queued.
#[derive(Clone, Copy, Debug)]
enum Op {
    Work,
    /// Work that ends when the outside says so.
    Gated(usize),
    Record,
    /// Waits for a position of another stream.
    Wait(usize, u32),
    Free(usize),
}

#[derive(Debug)]
pub struct SimStream {
    queue: VecDeque<Op>,
    /// Positions queued and done.
    pub queued: u32,
    pub done: u32,
    pub clock: Clock,
    /// Its owner captures it behind the tracker's back.
    pub foreign_capture: bool,
    /// Our capture that it takes part in.
    capture: Option<usize>,
    /// Never moves again; queries of its events fail.
    pub dead: bool,
    pub closed: bool,
    pub tainted: bool,
    /// The only thread that may use it.
    pub thread: Option<u64>,
    pub device: u16,
}

#[derive(Clone, Debug, Default)]
struct SimEvent {
    recorded: Option<(usize, u32, Clock)>,
    /// Recorded inside this capture, at this clock.
    captured: Option<(usize, Clock)>,
}

/// A capture as the driver sees it: clocks of its own, and what was captured.
#[derive(Debug)]
pub struct SimCapture {
    pub members: Vec<usize>,
    clocks: Vec<Clock>,
    counts: Vec<u32>,
    nodes: Vec<(usize, u32, Touch)>,
    pub touches: Vec<Touch>,
    ended: bool,
}

/// A failure to come.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Fallible calls until then.
    pub after: u32,
    /// Whether the failing call does its work all the same.
    pub done_anyway: bool,
}

/// The submission that is running, for judging its waits.
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub stream: usize,
    pub touches: Vec<Touch>,
    /// Waits that no touch asks for.
    pub needless: u32,
    pub unchecked: bool,
}

#[derive(Debug, Default)]
pub struct World {
    pub streams: Vec<SimStream>,
    events: Vec<SimEvent>,
    pub captures: Vec<SimCapture>,
    pub memory: Vec<Memory>,
    /// What the host knows to have finished.
    pub host: Option<Clock>,
    pub contexts: Vec<Context>,
    pub thread: u64,
    pub fault: Option<Fault>,
    /// Gates that are open.
    pub gates: Vec<bool>,
    pub violations: Vec<String>,
    pub reclaim: Vec<(usize, SmallVec<[Stamp; 4]>)>,
    pub quarantined: Vec<(usize, Quarantine)>,
    pub records: u64,
    pub waits: u64,
    pub queries: u64,
    pub freed: u64,
    pub faults: u64,
    /// Whether needless waits are judged.
    pub strict: bool,
    pub traced: bool,
    /// Every record fails.
    pub dead_records: bool,
    /// A fault may also hit queries, host waits and ends of captures.
    pub all_calls_fail: bool,
}

thread_local! {
    /// Runs when a stream is given back.
    pub static AT_CLOSE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// The error of every failing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed(pub &'static str);

pub struct Mock {
    pub world: Mutex<World>,
    /// Called at each driver call, before it does anything: others may run here.
    pub at_call: fn(),
}

impl World {
    pub fn host_clock(&self) -> Clock {
        self.host.unwrap_or(Clock::ZERO)
    }

    /// How many events were made.
    pub fn made(&self) -> usize {
        self.events.len()
    }

    /// After how much of one member's captured work another member's comes.
    pub fn captured_after(&self, capture: usize, member: usize, other: usize) -> u32 {
        self.captures[capture].clocks[member].0[other]
    }

    /// Prints what happens, for one program at a time.
    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.traced {
            println!("[thread {}] {}", self.thread, text());
        }
    }

    pub fn violation(&mut self, text: String) {
        self.trace(|| format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    pub fn add_stream(&mut self, tainted: bool, thread: Option<u64>, device: u16) -> usize {
        assert!(self.streams.len() < STREAMS);
        self.streams.push(SimStream {
            queue: VecDeque::new(),
            queued: 0,
            done: 0,
            clock: Clock::ZERO,
            foreign_capture: false,
            capture: None,
            dead: false,
            closed: false,
            tainted,
            thread,
            device,
        });
        self.streams.len() - 1
    }

    pub fn add_memory(&mut self, len: u64) -> usize {
        self.memory.push(Memory::new(len));
        self.memory.len() - 1
    }

    /// Whether the next fallible call fails; if so, whether it acts all the same.
    fn failing(&mut self) -> Option<bool> {
        let fault = self.fault.as_mut()?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let anyway = fault.done_anyway;
        self.fault = None;
        self.faults += 1;
        Some(anyway)
    }

    /// As for a fallible call of the driver's: whether this launch fails, and if so, whether it acts.
    pub fn take_fault(&mut self) -> Option<bool> {
        self.failing()
    }

    /// Every call that passes a stream's handle.
    fn uses(&mut self, stream: usize, call: &str) {
        let s = &self.streams[stream];
        let mut wrong = Vec::new();
        if s.foreign_capture {
            wrong.push("a stream that its owner captures");
        }
        if s.closed {
            wrong.push("a closed stream");
        }
        if s.thread.is_some_and(|thread| thread != self.thread) {
            wrong.push("another thread's per-thread stream");
        }
        for wrong in wrong {
            self.violation(format!("{call} on {wrong} ({stream})"));
        }
    }

    fn push(&mut self, stream: usize, op: Op) -> u32 {
        let host = self.host_clock();
        let s = &mut self.streams[stream];
        s.queue.push_back(op);
        s.queued += 1;
        s.clock.0[stream] = s.queued;
        s.clock.join(&host);
        s.queued
    }

    /// Queues work and judges it against everything before.
    pub fn enqueue(&mut self, stream: usize, touches: &[Touch], gate: Option<usize>, unchecked: bool) {
        self.uses(stream, "launch");
        if let Some(capture) = self.streams[stream].capture {
            return self.enqueue_captured(capture, stream, touches);
        }
        let position = self.push(stream, gate.map_or(Op::Work, Op::Gated));
        self.trace(|| format!("work s{stream}@{position} {touches:?} unchecked={unchecked}"));
        self.judge(stream, position, touches, unchecked);
    }

    fn judge(&mut self, stream: usize, position: u32, touches: &[Touch], unchecked: bool) {
        let clock = self.streams[stream].clock;
        for touch in touches {
            let memory = &self.memory[touch.region];
            let mut wrong = Vec::new();
            if memory.freed {
                wrong.push("use after free".to_string());
            }
            if !unchecked && let Some(past) = unordered(memory, touch, stream, &clock) {
                wrong.push(format!("no order after {past:?}"));
            }
            for claim in &memory.host {
                if claim.1 < touch.end && touch.start < claim.2 && claim.3.clashes(touch.how) {
                    wrong.push("the host holds it".to_string());
                }
            }
            if memory.exported.is_some_and(|shared| !(shared && touch.how == super::Use::Read)) {
                wrong.push("foreign code holds it".to_string());
            }
            self.memory[touch.region].note(touch, stream, position);
            for wrong in wrong {
                self.violation(format!("work on stream {stream} at {position}, {touch:?}: {wrong}"));
            }
        }
    }

    /// Foreign work, which the tracker never hears of: it is ordered by its stream alone and judges nobody.
    pub fn foreign_work(&mut self, stream: usize, touches: &[Touch]) {
        let position = self.push(stream, Op::Work);
        for touch in touches {
            let clock = self.streams[stream].clock;
            if let Some(past) = unordered(&self.memory[touch.region], touch, stream, &clock) {
                self.violation(format!("foreign work on {stream}, {touch:?}: no order after {past:?}"));
            }
            self.memory[touch.region].note(touch, stream, position);
        }
    }

    fn enqueue_captured(&mut self, capture: usize, stream: usize, touches: &[Touch]) {
        let c = &mut self.captures[capture];
        let Some(at) = c.members.iter().position(|member| *member == stream) else {
            return self.violation(format!("stream {stream} is not in capture {capture}"));
        };
        c.counts[at] += 1;
        let position = c.counts[at];
        c.clocks[at].0[at] = position;
        let clock = c.clocks[at];
        let mut wrong = Vec::new();
        for touch in touches {
            for (member, past, other) in &c.nodes {
                let meets =
                    other.region == touch.region && other.start < touch.end && touch.start < other.end;
                if *member != at && meets && other.how.clashes(touch.how) && !clock.covers(*member, *past) {
                    wrong.push(format!("captured {touch:?} on member {at}: no order after member {member}"));
                }
            }
        }
        c.nodes.extend(touches.iter().map(|touch| (at, position, *touch)));
        c.touches.extend_from_slice(touches);
        wrong.into_iter().for_each(|wrong| self.violation(wrong));
    }

    pub fn begin_capture(&mut self, stream: usize) -> usize {
        self.uses(stream, "begin capture");
        self.captures.push(SimCapture {
            members: vec![stream],
            clocks: vec![Clock::ZERO],
            counts: vec![0],
            nodes: Vec::new(),
            touches: Vec::new(),
            ended: false,
        });
        self.streams[stream].capture = Some(self.captures.len() - 1);
        self.captures.len() - 1
    }

    /// Ends a capture. What it touched; `None` if a member was not joined.
    pub fn end_capture(&mut self, origin: usize) -> Option<Vec<Touch>> {
        let capture = self.streams[origin].capture?;
        let c = &mut self.captures[capture];
        c.ended = true;
        let joined = (1..c.members.len()).all(|at| c.clocks[0].covers(at, c.counts[at]));
        let members = c.members.clone();
        let touches = c.touches.clone();
        for member in members {
            self.streams[member].capture = None;
        }
        joined.then_some(touches)
    }

    pub fn gate(&mut self) -> usize {
        self.gates.push(false);
        self.gates.len() - 1
    }

    /// Runs one operation of a stream, if it can run.
    pub fn advance(&mut self, stream: usize) -> bool {
        let s = &self.streams[stream];
        if s.dead {
            return false;
        }
        if let Some(Op::Wait(other, position)) = s.queue.front()
            && self.streams[*other].dead
            && self.streams[*other].done < *position
        {
            // What waits for lost work is lost too.
            self.streams[stream].dead = true;
            return true;
        }
        let runs = match s.queue.front() {
            None => false,
            Some(Op::Wait(other, position)) => self.streams[*other].done >= *position,
            Some(Op::Gated(gate)) => self.gates[*gate],
            Some(_) => true,
        };
        if runs {
            let s = &mut self.streams[stream];
            s.done += 1;
            s.queue.pop_front();
            // A record takes no time of its own.
            while let Some(Op::Record) = s.queue.front() {
                s.done += 1;
                s.queue.pop_front();
            }
        }
        runs
    }

    /// Runs all that can run. Whether anything did.
    pub fn run(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut some = false;
            for stream in 0..self.streams.len() {
                while self.advance(stream) {
                    some = true;
                }
            }
            if !some {
                return any;
            }
            any = true;
        }
    }

    fn fired(&mut self, event: usize) -> Result<bool, Failed> {
        if self.events[event].captured.is_some() {
            self.violation(format!("query of event {event}, which was recorded in a capture"));
        }
        let Some((stream, position, clock)) = self.events[event].recorded else { return Ok(true) };
        if self.streams[stream].done >= position {
            let mut host = self.host_clock();
            host.join(&clock);
            self.host = Some(host);
            self.trace(|| format!("e{event} fired"));
            return Ok(true);
        }
        if self.streams[stream].dead { Err(Failed("query")) } else { Ok(false) }
    }

    /// Per stream, what is queued.
    pub fn queued(&self) -> Clock {
        let mut clock = Clock::ZERO;
        clock.0.iter_mut().zip(&self.streams).for_each(|(queued, stream)| *queued = stream.queued);
        clock
    }

    /// A synchronisation that began when `queued` was queued has ended.
    pub fn synchronized(&mut self, queued: &Clock) {
        self.gates.fill(true);
        self.run();
        let mut host = self.host_clock();
        host.join(queued);
        self.host = Some(host);
    }

    /// A synchronisation of everything.
    pub fn synchronize_all(&mut self) {
        self.gates.fill(true);
        self.run();
        let mut host = self.host_clock();
        for stream in 0..self.streams.len() {
            host.0[stream] = host.0[stream].max(self.streams[stream].done);
        }
        self.host = Some(host);
    }

    /// Frees memory whose uses must all be over.
    pub fn free_on_host(&mut self, memory: usize) {
        let pending = self.memory[memory].all().find(|past| self.streams[past.stream].done < past.position);
        if let Some(past) = pending {
            self.violation(format!("memory {memory} freed while {past:?} is pending"));
        }
        self.release(memory);
    }

    fn release(&mut self, memory: usize) {
        if self.memory[memory].freed {
            self.violation(format!("memory {memory} freed twice"));
        }
        if !self.memory[memory].host.is_empty() {
            self.violation(format!("memory {memory} freed under a claim of the host"));
        }
        self.memory[memory].freed = true;
        self.freed += 1;
    }

    /// Whether a wait is asked for by a clash that is not ordered yet and that the event covers.
    fn needed(&self, context: &Context, covered: &Clock, known: &Clock) -> bool {
        let mut now = self.streams[context.stream].clock;
        now.join(known);
        context.touches.iter().any(|touch| {
            self.memory[touch.region].clashes(touch).any(|past| {
                past.stream != context.stream
                    && !now.covers(past.stream, past.position)
                    && covered.covers(past.stream, past.position)
            })
        })
    }
}

impl Mock {
    pub fn new(at_call: fn()) -> Self {
        Self { world: Mutex::new(World::default()), at_call }
    }
}

impl Backend for Mock {
    type Stream = usize;
    type Event = usize;
    type Memory = usize;
    type Error = Failed;

    fn create_event(&self) -> Result<usize, Failed> {
        (self.at_call)();
        let mut world = self.world.lock();
        if world.failing().is_some() {
            return Err(Failed("create event"));
        }
        world.events.push(SimEvent::default());
        Ok(world.events.len() - 1)
    }

    fn is_capturing(&self, stream: &usize) -> Result<bool, Failed> {
        (self.at_call)();
        let mut world = self.world.lock();
        if world.failing().is_some() {
            return Err(Failed("is capturing"));
        }
        Ok(world.streams[*stream].foreign_capture)
    }

    fn record(&self, stream: &usize, event: &usize) -> Result<(), Failed> {
        (self.at_call)();
        let mut world = self.world.lock();
        world.uses(*stream, "record");
        let failing = if world.dead_records { Some(false) } else { world.failing() };
        world.trace(|| format!("record e{event} on s{stream} failing={failing:?}"));
        if failing != Some(false) {
            if let Some(capture) = world.streams[*stream].capture {
                let c = &world.captures[capture];
                let at = c.members.iter().position(|member| member == stream).expect("a member");
                let clock = c.clocks[at];
                world.events[*event] = SimEvent { recorded: None, captured: Some((capture, clock)) };
            } else {
                let position = world.push(*stream, Op::Record);
                let s = &mut world.streams[*stream];
                if s.queue.len() == 1 && !s.dead {
                    // Nothing before it: it has happened.
                    s.queue.clear();
                    s.done = position;
                }
                let clock = s.clock;
                world.events[*event] =
                    SimEvent { recorded: Some((*stream, position, clock)), captured: None };
                world.records += 1;
            }
        }
        if failing.is_some() { Err(Failed("record")) } else { Ok(()) }
    }

    fn wait(&self, stream: &usize, event: &usize) -> Result<(), Failed> {
        // What another thread learns during this call came too late to spare it.
        let known = self.world.lock().host_clock();
        (self.at_call)();
        let mut world = self.world.lock();
        world.uses(*stream, "wait");
        let failing = world.failing();
        world.trace(|| {
            format!("s{stream} waits for e{event}: {:?} failing={failing:?}", world.events[*event])
        });
        if failing != Some(false) {
            match (world.events[*event].clone(), world.streams[*stream].capture) {
                (SimEvent { captured: Some((capture, clock)), .. }, mine) => {
                    // The waiting stream joins the capture, if it is not in it.
                    if mine.is_some_and(|mine| mine != capture) || world.captures[capture].ended {
                        world.violation(format!("stream {stream} waits for an event of another capture"));
                    }
                    world.streams[*stream].capture = Some(capture);
                    let c = &mut world.captures[capture];
                    let at = c.members.iter().position(|member| member == stream).unwrap_or_else(|| {
                        c.members.push(*stream);
                        c.clocks.push(Clock::ZERO);
                        c.counts.push(0);
                        c.members.len() - 1
                    });
                    c.clocks[at].join(&clock);
                }
                (SimEvent { recorded: Some((other, position, clock)), .. }, None) => {
                    if world.strict
                        && let Some(context) = world.contexts.last()
                        && context.stream == *stream
                        && !world.needed(context, &clock, &known)
                    {
                        let context = world.contexts.last_mut().expect("it is there");
                        context.needless += 1;
                    }
                    world.push(*stream, Op::Wait(other, position));
                    world.streams[*stream].clock.join(&clock);
                    world.waits += 1;
                }
                (_, None) => {
                    world.violation(format!("stream {stream} waits for event {event}, never recorded"))
                }
                (_, Some(_)) => world.violation(format!("captured stream {stream} waits for the outside")),
            }
        }
        if failing.is_some() { Err(Failed("wait")) } else { Ok(()) }
    }

    fn query(&self, event: &usize) -> Result<bool, Failed> {
        (self.at_call)();
        let mut world = self.world.lock();
        world.queries += 1;
        if world.all_calls_fail && world.failing().is_some() {
            return Err(Failed("query"));
        }
        world.fired(*event)
    }

    fn wait_any(&self, events: &[EventRef<Self>]) -> Result<(), Failed> {
        assert!(!events.is_empty(), "a wait for nothing never ends");
        let mut world = self.world.lock();
        if world.all_calls_fail && world.failing().is_some() {
            return Err(Failed("wait any"));
        }
        loop {
            for event in events {
                // Which of several has fired only `query` tells the tracker, so only that adds to what the host knows.
                let host = world.host;
                let fired = world.fired(*event.event());
                if events.len() > 1 {
                    world.host = host;
                }
                if fired? {
                    return Ok(());
                }
            }
            if !world.run() {
                // Nothing moves by itself: the outside does.
                let closed = world.gates.iter().position(|open| !open);
                let Some(gate) = closed else {
                    world.violation("a wait that can never end".to_string());
                    return Err(Failed("wait any"));
                };
                world.gates[gate] = true;
            }
        }
    }

    fn free(&self, stream: &usize, memory: usize) -> Result<(), usize> {
        (self.at_call)();
        let mut world = self.world.lock();
        world.uses(*stream, "free");
        if world.streams[*stream].tainted || world.streams[*stream].capture.is_some() {
            world.violation(format!("memory {memory} freed on a tainted or capturing stream {stream}"));
        }
        match world.failing() {
            Some(_) => return Err(memory),
            None => world.push(*stream, Op::Free(memory)),
        };
        let clock = world.streams[*stream].clock;
        let early = world.memory[memory]
            .all()
            .find(|past| past.stream != *stream && !clock.covers(past.stream, past.position));
        if let Some(past) = early {
            world.violation(format!(
                "memory {memory} freed on stream {stream} without an order after {past:?}"
            ));
        }
        world.release(memory);
        Ok(())
    }

    fn reclaim(&self, memory: usize, stamps: SmallVec<[Stamp; 4]>) {
        self.world.lock().reclaim.push((memory, stamps));
    }

    fn quarantine(&self, memory: usize, why: Quarantine) {
        self.world.lock().quarantined.push((memory, why));
    }

    fn closed(&self, stream: usize) {
        if let Some(run) = AT_CLOSE.take() {
            run();
        }
        self.world.lock().streams[stream].closed = true;
    }
}
