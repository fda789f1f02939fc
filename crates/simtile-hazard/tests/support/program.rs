//! Random programs over the whole tracker, judged by the oracle.
//!
//! One OS thread plays several: at every driver call another logical thread may run whole operations of its own, with whatever
//! the interrupted one holds still held. It uses the forms that never wait, as a thread that finds locks taken would
//! have to. So every interleaving at the grain of driver calls can come up, and a seed replays it.

use super::{Context, Failed, Fault, Mock, Rng, Touch, Use};
use simtile_hazard::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What a program may contain.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub streams: usize,
    pub regions: usize,
    pub ops: usize,
    pub threads: u64,
    pub policy: Option<Policy>,
    /// Judge needless waits: only what makes waits exact.
    pub strict: bool,
    pub faults: bool,
    pub config: Config,
}

impl Profile {
    /// The profile of a seed.
    pub fn of(rng: &mut Rng) -> Self {
        let strict = rng.chance(30);
        let config = Config {
            stream_permits: [4, 64, 512][rng.below(3)],
            context_permits: [8, 64, 4096][rng.below(3)],
            max_ranges: if strict { 64 } else { [3, 8, 64][rng.below(3)] },
            max_readers: [2, 16][rng.below(2)],
            max_wait_values: [1, 4][rng.below(2)],
            event_reserve: [0, 4, 16][rng.below(3)],
            checkpoint: [3, 32][rng.below(2)],
        };
        Self {
            streams: 2 + rng.below(5),
            regions: 4 + rng.below(17),
            ops: 30 + rng.below(171),
            threads: 2 + rng.below(3) as u64,
            policy: [None, None, Some(Policy::Order), Some(Policy::Reject)][rng.below(4)],
            strict,
            faults: !strict && rng.chance(50),
            config,
        }
    }
}

pub struct TestStream {
    pub stream: Stream<Mock>,
    pub sim: usize,
}

pub struct TestRegion {
    pub region: Region,
    pub memory: usize,
}

struct Graph {
    executable: TestRegion,
    set: CaptureSet,
    regions: Vec<Rc<TestRegion>>,
}

pub struct Program {
    pub tracker: Tracker<Mock>,
    profile: Profile,
    rng: RefCell<Rng>,
    streams: RefCell<Vec<Option<Rc<TestStream>>>>,
    regions: RefCell<Vec<Rc<TestRegion>>>,
    claims: RefCell<Vec<(Rc<TestRegion>, HostClaim, u64)>>,
    exports: RefCell<Vec<(Rc<TestRegion>, bool)>>,
    stamps: RefCell<Vec<Stamp>>,
    events: RefCell<Vec<EventRef<Mock>>>,
    graphs: RefCell<Vec<Graph>>,
    depth: Cell<u32>,
    next_claim: Cell<u64>,
    /// Whether something happened that makes waits inexact.
    inexact: Cell<bool>,
    unknown: Cell<bool>,
}

thread_local! {
    static RUNNING: RefCell<Option<Rc<Program>>> = const { RefCell::new(None) };
}

/// The mock's hook: now and then, another logical thread runs.
pub fn at_call() {
    let program = RUNNING.with(|running| running.borrow().clone());
    if let Some(program) = program {
        program.interrupt();
    }
}

impl Program {
    pub fn new(seed: u64) -> Rc<Self> {
        let mut rng = Rng(seed);
        let profile = Profile::of(&mut rng);
        let tracker = Tracker::new(Mock::new(at_call), profile.config);
        tracker.backend().world.lock().strict = profile.strict;
        Rc::new(Self {
            tracker,
            profile,
            rng: RefCell::new(rng),
            streams: RefCell::default(),
            regions: RefCell::default(),
            claims: RefCell::default(),
            exports: RefCell::default(),
            stamps: RefCell::default(),
            events: RefCell::default(),
            graphs: RefCell::default(),
            depth: Cell::new(0),
            next_claim: Cell::new(1),
            inexact: Cell::new(!profile.strict),
            unknown: Cell::new(false),
        })
    }

    /// Runs the program of a seed. What went wrong, if anything.
    pub fn run(seed: u64, traced: bool) -> (Rc<Self>, Vec<String>) {
        let program = Self::new(seed);
        program.world().traced = traced;
        RUNNING.with(|running| *running.borrow_mut() = Some(Rc::clone(&program)));
        for _ in 0..program.profile.streams {
            program.add_stream();
        }
        for _ in 0..program.profile.regions {
            program.add_region();
        }
        for _ in 0..program.profile.ops {
            program.as_thread(|p| p.step());
        }
        program.finish();
        RUNNING.with(|running| *running.borrow_mut() = None);
        let violations = std::mem::take(&mut program.world().violations);
        (program, violations)
    }

    fn world(&self) -> super::plain::MutexGuard<'_, super::World> {
        self.tracker.backend().world.lock()
    }

    fn below(&self, n: usize) -> usize {
        self.rng.borrow_mut().below(n)
    }

    fn chance(&self, percent: usize) -> bool {
        self.rng.borrow_mut().chance(percent)
    }

    fn violation(&self, text: String) {
        self.world().violation(text);
    }

    /// Runs something as some logical thread.
    fn as_thread(&self, run: impl FnOnce(&Self)) {
        let thread = self.below(self.profile.threads as usize) as u64;
        let before = std::mem::replace(&mut self.world().thread, thread);
        run(self);
        self.world().thread = before;
    }

    fn interrupt(&self) {
        if self.depth.get() >= 2 || !self.chance(8) {
            return;
        }
        self.depth.set(self.depth.get() + 1);
        self.as_thread(|p| p.step());
        self.depth.set(self.depth.get() - 1);
    }

    fn add_stream(&self) {
        let kind = if self.profile.strict {
            StreamKind::Owned
        } else {
            match self.below(10) {
                0 => StreamKind::Borrowed,
                1 => StreamKind::PerThread(self.below(self.profile.threads as usize) as u64),
                2 => StreamKind::Legacy,
                _ => StreamKind::Owned,
            }
        };
        let device = if self.chance(80) { 0 } else { 1 };
        let thread = if let StreamKind::PerThread(thread) = kind { Some(thread) } else { None };
        let sim = {
            let mut world = self.world();
            if world.streams.len() >= super::STREAMS {
                return;
            }
            world.add_stream(kind != StreamKind::Owned, thread, device)
        };
        let stream = self.tracker.stream(sim, kind, device).expect("few streams");
        self.streams.borrow_mut().push(Some(Rc::new(TestStream { stream, sim })));
    }

    fn add_region(&self) {
        let len = 16 + 16 * self.below(8) as u64;
        let memory = self.world().add_memory(len);
        let region = self.tracker.region(len);
        self.regions.borrow_mut().push(Rc::new(TestRegion { region, memory }));
    }

    fn a_stream(&self) -> Option<Rc<TestStream>> {
        let streams = self.streams.borrow();
        let alive: Vec<_> = streams.iter().flatten().collect();
        if alive.is_empty() { None } else { Some(Rc::clone(alive[self.below(alive.len())])) }
    }

    fn a_region(&self) -> Option<Rc<TestRegion>> {
        let regions = self.regions.borrow();
        if regions.is_empty() { None } else { Some(Rc::clone(&regions[self.below(regions.len())])) }
    }

    /// Takes a random element out.
    fn take_one<T>(&self, list: &RefCell<Vec<T>>) -> Option<T> {
        let len = list.borrow().len();
        if len == 0 { None } else { Some(list.borrow_mut().swap_remove(self.below(len))) }
    }

    /// One operation of one logical thread.
    fn step(&self) {
        let free = self.depth.get() == 0;
        match self.below(100) {
            0..=44 => self.submit(),
            45..=56 => self.advance(),
            57..=64 => self.observe(),
            65..=67 => self.add_region(),
            68..=71 => self.drop_region(),
            72 => self.add_stream(),
            73 => self.close_stream(),
            74..=77 => self.claim(),
            78..=80 if free => self.release(),
            81 if free => self.export(),
            82..=83 if free => self.take_back(),
            84..=85 if free => self.capture(),
            86..=88 => self.replay(),
            89..=90 => self.foreign(),
            91 => self.open_gate(),
            92 => self.set_fault(),
            93 => self.disaster(),
            94..=97 => self.reclaim(),
            98 if free => self.synchronize(),
            99 => self.drain(),
            _ => self.submit(),
        }
    }

    fn random_accesses(&self, list: &[Rc<TestRegion>]) -> Vec<(u64, u64, Mode)> {
        list.iter()
            .map(|region| {
                let cells = region.region.len() / 4;
                let (start, end) = match self.below(4) {
                    0 | 1 => (0, cells),
                    2 => {
                        // A fixed half, so that ranges meet again.
                        let half = cells / 2;
                        if self.chance(50) { (0, half) } else { (half, cells) }
                    }
                    _ => {
                        let start = self.below(cells as usize) as u64;
                        (start, start + 1 + self.below((cells - start) as usize) as u64)
                    }
                };
                let mode = match self.below(10) {
                    0..=4 => Mode::Read,
                    5..=7 => Mode::Write,
                    _ => {
                        let size = if self.profile.strict || self.chance(70) { 4 } else { 8 };
                        let scope = if self.chance(50) { Scope::Device } else { Scope::System };
                        let scope = if self.profile.strict { Scope::System } else { scope };
                        Mode::Accumulate { size, scope }
                    }
                };
                (start * 4, end * 4, mode)
            })
            .collect()
    }

    fn submit(&self) {
        let Some(stream) = self.a_stream() else { return };
        let mut list: Vec<Rc<TestRegion>> = Vec::new();
        for _ in 0..1 + self.below(4) {
            if let Some(region) = self.a_region()
                && (self.chance(3) || list.iter().all(|other| !Rc::ptr_eq(other, &region)))
            {
                list.push(region);
            }
        }
        let modes = self.random_accesses(&list);
        let accesses: Vec<_> = list
            .iter()
            .zip(&modes)
            .map(|(region, (start, end, mode))| Access::new(&region.region, *start, *end, *mode))
            .collect();
        let policy = self.profile.policy.unwrap_or_else(|| match self.below(20) {
            0 if !self.profile.strict => Policy::Unchecked,
            1..=3 => Policy::Reject,
            4 => Policy::OrderAndReport,
            _ => Policy::Order,
        });
        let outside = match self.below(30) {
            0 => Outside::Waits,
            1 => Outside::WaitValue,
            _ => Outside::Never,
        };
        let memories: Vec<usize> = list.iter().map(|region| region.memory).collect();
        self.submit_accesses(&stream, &accesses, &memories, policy, outside);
    }

    fn touches(accesses: &[Access<'_>], memories: &[usize], device: u16) -> Vec<Touch> {
        accesses
            .iter()
            .zip(memories)
            .map(|(a, &region)| Touch {
                region,
                start: a.start,
                end: a.end,
                how: Use::of(a.mode, a.start, device),
            })
            .collect()
    }

    fn submit_accesses(
        &self,
        stream: &TestStream,
        accesses: &[Access<'_>],
        memories: &[usize],
        policy: Policy,
        outside: Outside,
    ) {
        let (device, thread) = {
            let world = self.world();
            (world.streams[stream.sim].device, world.thread)
        };
        let touches = Self::touches(accesses, memories, device);
        let unchecked = policy == Policy::Unchecked;
        let options = Options { policy, outside, seal: self.chance(10), thread };
        let gate = if outside == Outside::Never { None } else { Some(self.world().gate()) };
        let context = Context { stream: stream.sim, touches: touches.clone(), needless: 0, unchecked };
        self.world().contexts.push(context);
        let enqueue = |sim: &usize| {
            at_call();
            let mut world = self.world();
            let fault = world.take_fault();
            if fault != Some(false) {
                world.enqueue(*sim, &touches, gate, unchecked);
            }
            if fault.is_some() { Err(Failed("launch")) } else { Ok(()) }
        };
        let patient = self.depth.get() == 0 && self.chance(80);
        self.world().trace(|| format!("submit s{} {policy:?} {touches:?}", stream.sim));
        let result = if patient {
            self.tracker.submit(&stream.stream, accesses, &options, enqueue)
        } else {
            self.tracker.try_submit(&stream.stream, accesses, &options, enqueue)
        };
        let context = self.world().contexts.pop().expect("pushed above");
        self.world().trace(|| match &result {
            Ok(done) => format!("-> {:?}", done.stamp),
            Err(error) => format!("-> {error}"),
        });
        match result {
            Ok(done) => {
                let excused = done.waits.iter().filter(|wait| wait.reader_limit).count() as u32;
                if !self.inexact.get() && context.needless > excused {
                    self.violation(format!("{} needless waits: {:?}", context.needless, done.waits));
                }
                self.stamps.borrow_mut().push(done.stamp);
                self.events.borrow_mut().extend(done.event);
            }
            Err(SubmitError::Conflict(conflict)) => self.judge_conflict(&conflict, &touches, stream.sim),
            Err(SubmitError::Busy(_)) if patient => self.violation("a patient submission was busy".into()),
            Err(SubmitError::Full { .. }) if patient => {
                self.violation("a patient submission was full".into())
            }
            Err(SubmitError::Full { events }) => self.events.borrow_mut().extend(events),
            Err(SubmitError::Driver { .. }) if !self.profile.faults => {
                if !self.inexact.get() {
                    self.violation("a driver error without a fault".into());
                }
            }
            Err(_) => {}
        }
    }

    /// A conflict is reported for somebody who is still there.
    fn judge_conflict(&self, conflict: &Conflict, touches: &[Touch], sim: usize) {
        let world = self.world();
        let real = match conflict.with {
            Party::Host => touches.iter().any(|touch| {
                world.memory[touch.region]
                    .host
                    .iter()
                    .any(|c| c.1 < touch.end && touch.start < c.2 && c.3.clashes(touch.how))
            }),
            Party::Foreign => {
                self.unknown.get()
                    || touches.iter().any(|touch| world.memory[touch.region].exported.is_some())
            }
            // Exact only if everybody seals after each submission.
            Party::Stream(_) if self.profile.policy != Some(Policy::Reject) || self.inexact.get() => true,
            Party::Stream(_) => touches.iter().any(|touch| {
                world.memory[touch.region]
                    .clashes(touch)
                    .any(|past| past.stream != sim && world.streams[past.stream].done < past.position)
            }),
        };
        drop(world);
        if !real {
            self.violation(format!("a conflict with nobody: {conflict}"));
        }
    }

    fn advance(&self) {
        let mut world = self.world();
        if self.chance(10) {
            world.run();
            return;
        }
        let count = world.streams.len();
        for _ in 0..1 + self.below(12) {
            let stream = self.below(count);
            world.advance(stream);
        }
    }

    fn observe(&self) {
        if self.chance(50) {
            let event = self.take_one(&self.events);
            if let Some(event) = event {
                let _ = self.tracker.query(&event);
            }
            return;
        }
        let stamp = self.take_one(&self.stamps);
        if let Some(stamp) = stamp
            && let Settled::Pending(event) = self.tracker.settle(stamp)
        {
            let _ = self.tracker.query(&event);
        }
    }

    fn drop_region(&self) {
        let region = self.take_one(&self.regions);
        match region.map(Rc::try_unwrap) {
            Some(Ok(region)) => {
                self.tracker.retire(region.region, region.memory);
            }
            Some(Err(region)) => self.regions.borrow_mut().push(region),
            None => {}
        }
    }

    fn close_stream(&self) {
        let stream = {
            let mut streams = self.streams.borrow_mut();
            let at = self.below(streams.len());
            streams[at].take()
        };
        // Dropped outside the borrow; if an operation still uses it, it closes with that one's end.
        drop(stream);
    }

    fn claim(&self) {
        let Some(region) = self.a_region() else { return };
        let (start, end, mode) = self.random_accesses(std::slice::from_ref(&region))[0];
        let access = Access::new(&region.region, start, end, mode);
        let result = if self.depth.get() == 0 && self.chance(50) && !self.faulty() {
            self.tracker.host(&access).map_err(|_| ())
        } else {
            match self.tracker.try_host(&access) {
                Ok(claim) => Ok(claim),
                Err(HostBusy::Pending(stamps)) => {
                    self.stamps.borrow_mut().extend(stamps);
                    Err(())
                }
                Err(_) => Err(()),
            }
        };
        let Ok(claim) = result else { return };
        let touch = Touch { region: region.memory, start, end, how: Use::of(mode, start, u16::MAX) };
        let id = self.next_claim.get();
        self.next_claim.set(id + 1);
        let mut world = self.world();
        let pending = world.memory[region.memory]
            .clashes(&touch)
            .find(|past| world.streams[past.stream].done < past.position);
        if let Some(past) = pending {
            world.violation(format!("the host holds {touch:?} while {past:?} is pending"));
        }
        let met = world.memory[region.memory]
            .host
            .iter()
            .any(|c| c.1 < end && start < c.2 && c.3.clashes(touch.how));
        if met {
            world.violation(format!("two claims of the host on {touch:?}"));
        }
        world.memory[region.memory].host.push((id, start, end, touch.how));
        drop(world);
        if self.chance(95) {
            self.claims.borrow_mut().push((region, claim, id));
        }
        // Else forgotten: it refuses for ever.
    }

    fn faulty(&self) -> bool {
        self.profile.faults || self.world().streams.iter().any(|stream| stream.dead)
    }

    fn release(&self) {
        let claim = self.take_one(&self.claims);
        if let Some((region, claim, id)) = claim {
            self.world().memory[region.memory].host.retain(|claim| claim.0 != id);
            self.tracker.host_release(&region.region, claim);
        }
    }

    fn export(&self) {
        if self.profile.strict {
            return;
        }
        let Some(region) = self.a_region() else { return };
        let shared = self.chance(50);
        // Set before: others may run in the driver calls that follow the refusal's start.
        let before = self.world().memory[region.memory].exported.replace(shared);
        match self.tracker.export(&region.region, shared) {
            Ok(stamps) => {
                self.stamps.borrow_mut().extend(stamps);
                self.exports.borrow_mut().push((region, shared));
            }
            Err(_) => self.world().memory[region.memory].exported = before,
        }
    }

    /// Foreign code uses an exported region on a borrowed stream, and gives it back.
    fn take_back(&self) {
        let export = self.take_one(&self.exports);
        let Some((region, shared)) = export else { return };
        let stream = self.a_stream().filter(|stream| {
            let world = self.world();
            let s = &world.streams[stream.sim];
            stream.stream.kind() == StreamKind::Borrowed && !s.foreign_capture && !s.dead
        });
        self.world().trace(|| format!("take back {} shared {shared}", region.memory));
        let mut known = false;
        if let Some(stream) = &stream {
            known = self.foreign_use(stream, &region, shared);
        }
        let consumer = stream.as_ref().filter(|_| known).map(|stream| &stream.stream);
        if self.tracker.return_export(&region.region, consumer).is_err() || consumer.is_none() {
            self.unknown.set(true);
        }
        self.world().memory[region.memory].exported = None;
    }

    fn foreign_use(&self, stream: &TestStream, region: &TestRegion, shared: bool) -> bool {
        for (_, _, stamp) in region.region.stamps() {
            if stamp.axis == stream.stream.axis() {
                continue;
            }
            match self.tracker.event_of(stamp) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    if self.tracker.backend().wait(&stream.sim, event.event()).is_err() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        let how = if shared { Use::Read } else { Use::Write };
        let touch = Touch { region: region.memory, start: 0, end: region.region.len(), how };
        self.world().foreign_work(stream.sim, &[touch]);
        true
    }

    fn capture(&self) {
        let Some(origin) = self.a_stream() else { return };
        let thread = self.world().thread;
        let begin = |sim: &usize| {
            let mut world = self.world();
            if world.take_fault().is_some() {
                return Err(Failed("begin capture"));
            }
            world.begin_capture(*sim);
            Ok(())
        };
        let Ok(capture) = self.tracker.begin_capture(&origin.stream, thread, begin) else { return };
        let mut members = vec![Rc::clone(&origin)];
        let mut kept: Vec<Rc<TestRegion>> = Vec::new();
        for _ in 0..self.below(10) {
            if self.chance(20)
                && let Some(other) = self.a_stream()
                && members.iter().all(|member| member.sim != other.sim)
                && other.stream.kind() == StreamKind::Owned
            {
                match capture.add_stream(&other.stream, thread) {
                    Ok(()) => members.push(other),
                    Err(SubmitError::Driver { .. }) => {
                        // The stream may have joined all the same: only ending the capture tells.
                        capture.abandon(|sim| self.world().end_capture(*sim));
                        return;
                    }
                    Err(_) => {}
                }
                continue;
            }
            if self.chance(15) {
                // Life outside goes on.
                self.depth.set(self.depth.get() + 1);
                self.as_thread(|p| p.step());
                self.depth.set(self.depth.get() - 1);
                continue;
            }
            let member = Rc::clone(&members[self.below(members.len())]);
            let mut list: Vec<Rc<TestRegion>> = Vec::new();
            for _ in 0..1 + self.below(3) {
                if let Some(region) = self.a_region()
                    && list.iter().all(|other| !Rc::ptr_eq(other, &region))
                {
                    list.push(region);
                }
            }
            let modes = self.random_accesses(&list);
            let accesses: Vec<_> = list
                .iter()
                .zip(&modes)
                .map(|(region, m)| Access::new(&region.region, m.0, m.1, m.2))
                .collect();
            let memories: Vec<usize> = list.iter().map(|region| region.memory).collect();
            let device = self.world().streams[member.sim].device;
            let touches = Self::touches(&accesses, &memories, device);
            let _ = capture.submit(&member.stream, &accesses, |sim| {
                let mut world = self.world();
                let fault = world.take_fault();
                if fault != Some(false) {
                    world.enqueue(*sim, &touches, None, false);
                }
                if fault.is_some() { Err(Failed("captured launch")) } else { Ok(()) }
            });
            kept.extend(list);
        }
        if self.chance(15) {
            capture.abandon(|sim| self.world().end_capture(*sim));
            return;
        }
        let ended = capture.finish(|sim| Ok(self.world().end_capture(*sim)));
        let Ok((joined, set)) = ended else { return };
        if joined.is_none() {
            self.violation("a capture ended with a stream that was not joined".into());
        }
        if set.accesses().is_empty() {
            return;
        }
        let memory = self.world().add_memory(16);
        let executable = TestRegion { region: self.tracker.region(16), memory };
        self.graphs.borrow_mut().push(Graph { executable, set, regions: kept });
    }

    fn replay(&self) {
        let Some(stream) = self.a_stream() else { return };
        let graph = self.take_one(&self.graphs);
        let Some(graph) = graph else { return };
        let find =
            |id| graph.regions.iter().find(|region| region.region.id() == id).map(|region| &region.region);
        let accesses = graph.set.replay(&graph.executable.region, find).expect("the graph keeps its regions");
        let memories: Vec<usize> = accesses
            .iter()
            .map(|access| {
                let found = graph.regions.iter().find(|region| region.region.id() == access.region.id());
                found.map_or(graph.executable.memory, |region| region.memory)
            })
            .collect();
        let policy = self.profile.policy.unwrap_or_default();
        self.submit_accesses(&stream, &accesses, &memories, policy, Outside::Never);
        if self.chance(85) {
            self.graphs.borrow_mut().push(graph);
        } else {
            self.tracker.retire(graph.executable.region, graph.executable.memory);
        }
    }

    /// The owner of a borrowed stream does something behind our back.
    fn foreign(&self) {
        let Some(stream) = self.a_stream() else { return };
        if stream.stream.kind() != StreamKind::Borrowed {
            return;
        }
        let mut world = self.world();
        if self.chance(40) && self.depth.get() == 0 {
            let s = &mut world.streams[stream.sim];
            s.foreign_capture = !s.foreign_capture;
        } else if !world.streams[stream.sim].foreign_capture {
            world.foreign_work(stream.sim, &[]);
        }
    }

    fn open_gate(&self) {
        let mut world = self.world();
        if let Some(gate) = world.gates.iter().position(|open| !open) {
            world.gates[gate] = true;
        }
    }

    fn set_fault(&self) {
        if self.profile.faults {
            let fault = Fault { after: self.below(6) as u32, done_anyway: self.chance(50) };
            self.world().fault = Some(fault);
        }
    }

    fn disaster(&self) {
        if !self.profile.faults || !self.chance(20) {
            return;
        }
        let Some(stream) = self.a_stream() else { return };
        if self.chance(50) {
            self.world().streams[stream.sim].dead = true;
        } else {
            self.tracker.fail(stream.stream.axis());
        }
    }

    /// The reclaimer looks at one entry.
    fn reclaim(&self) {
        let entry = {
            let mut world = self.world();
            let count = world.reclaim.len();
            if count == 0 { None } else { Some(world.reclaim.swap_remove(self.below(count))) }
        };
        let Some((memory, stamps)) = entry else { return };
        let mut open = false;
        for &stamp in &stamps {
            match self.tracker.settle(stamp) {
                Settled::Complete => {}
                Settled::Pending(event) => {
                    open |= !matches!(self.tracker.query(&event), Ok(true));
                }
                Settled::Unsealed => open = true,
                Settled::Failed => {
                    self.world().quarantined.push((memory, Quarantine::FailedAxis));
                    return;
                }
            }
        }
        if open {
            self.world().reclaim.push((memory, stamps));
        } else {
            self.world().free_on_host(memory);
        }
    }

    fn synchronize(&self) {
        if self.faulty() {
            return;
        }
        let mark = self.tracker.begin_synchronize_all();
        self.world().synchronize_all();
        self.tracker.end_synchronize_all(mark);
    }

    fn drain(&self) {
        let tails = self.tracker.tails();
        self.stamps.borrow_mut().extend(tails);
    }

    /// Everything ends: nothing may be left over.
    fn finish(&self) {
        self.depth.set(9);
        self.world().fault = None;
        let held = self.profile.faults;
        let retired = {
            let regions = std::mem::take(&mut *self.regions.borrow_mut());
            let claims = std::mem::take(&mut *self.claims.borrow_mut());
            for (region, claim, id) in claims {
                self.world().memory[region.memory].host.retain(|claim| claim.0 != id);
                self.tracker.host_release(&region.region, claim);
            }
            self.exports.borrow_mut().clear();
            let graphs = std::mem::take(&mut *self.graphs.borrow_mut());
            let mut retired = 0;
            for graph in graphs {
                self.tracker.retire(graph.executable.region, graph.executable.memory);
                retired += 1;
            }
            for region in regions {
                match Rc::try_unwrap(region) {
                    Ok(region) => {
                        self.tracker.retire(region.region, region.memory);
                        retired += 1;
                    }
                    Err(_) => self.violation("a region is still held".into()),
                }
            }
            retired
        };
        {
            let mut world = self.world();
            world.streams.iter_mut().for_each(|stream| stream.foreign_capture = false);
            world.gates.fill(true);
            world.run();
        }
        for _ in 0..64 {
            self.world().run();
            let count = self.world().reclaim.len();
            for _ in 0..count {
                self.reclaim();
            }
        }
        // What is left waits for a stream that another thread has to seal, or for one that is lost.
        let left = std::mem::take(&mut self.world().reclaim);
        for (memory, stamps) in left {
            let why: Vec<_> = stamps.iter().map(|stamp| (*stamp, self.tracker.settle(*stamp))).collect();
            if !held {
                self.violation(format!("memory {memory} was never reclaimed: {why:?}"));
            }
        }
        self.events.borrow_mut().clear();
        self.streams.borrow_mut().clear();
        let _ = retired;
    }
}
