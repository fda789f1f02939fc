//! Random programs over the whole tracker, judged by the oracle.
//!
//! One OS thread plays several: at every driver call another logical thread may run whole operations of its own, with whatever
//! the interrupted one holds still held. It uses the forms that never wait, as a thread that finds locks taken would
//! have to. So every interleaving at the grain of driver calls can come up, and a seed replays it.

mod capture;
mod device;
mod memory;
mod work;

use super::clock::Clock;
use super::{Context, Failed, Fault, Mock, Rng, Touch, Use};
use simtile_hazard::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Which operations there are. A seed means the same program for ever, so what is added later is another space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// The first one; seeds that once found something belong to it.
    First,
    /// Also synchronisations that take a while, both halves of a region in one submission, and failing queries, host
    /// waits and ends of captures.
    Wide,
    /// As the wide one, and marks.
    Marked,
    /// One stream, several threads, nobody waits for anything.
    Single,
}

/// What a program may contain.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub space: Space,
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
    pub fn of(rng: &mut Rng, space: Space) -> Self {
        let single = space == Space::Single;
        let strict = rng.chance(30) || single;
        // On one stream a checkpoint has to come before its permits run out, or whoever waits for one seals.
        let config = Config {
            stream_permits: [if single { 64 } else { 4 }, 64, 512][rng.below(3)],
            context_permits: [if single { 64 } else { 8 }, 64, 4096][rng.below(3)],
            max_ranges: if strict { 64 } else { [3, 8, 64][rng.below(3)] },
            max_readers: [2, 16][rng.below(2)],
            max_wait_values: [1, 4][rng.below(2)],
            max_marks: 2,
            event_reserve: [0, 4, 16][rng.below(3)],
            checkpoint: [3, 32][rng.below(2)],
        };
        Self {
            space,
            streams: if single { 1 } else { 2 + rng.below(5) },
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
    /// Synchronisations that have begun, each with what was queued then.
    marks: RefCell<Vec<(SyncMark, Clock)>>,
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
    pub fn new(space: Space, seed: u64) -> Rc<Self> {
        let mut rng = Rng(seed);
        let profile = Profile::of(&mut rng, space);
        let tracker = Tracker::new(Mock::new(at_call), profile.config);
        tracker.backend().world.lock().strict = profile.strict;
        tracker.backend().world.lock().all_calls_fail = matches!(space, Space::Wide | Space::Marked);
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
            marks: RefCell::default(),
            depth: Cell::new(0),
            next_claim: Cell::new(1),
            inexact: Cell::new(!profile.strict),
            unknown: Cell::new(false),
        })
    }

    /// Runs the program of a seed. What went wrong, if anything.
    pub fn run(space: Space, seed: u64, traced: bool) -> (Rc<Self>, Vec<String>) {
        let program = Self::new(space, seed);
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
        if space == Space::Single {
            program.judge_single();
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
        match self.profile.space {
            Space::Marked if self.chance(10) => self.mark(),
            Space::Wide | Space::Marked if self.chance(6) => self.step_wide(),
            Space::First | Space::Wide | Space::Marked => self.step_first(),
            Space::Single => match self.below(20) {
                0..=13 => self.submit(),
                14..=15 => self.advance(),
                16..=17 => self.observe_event(),
                18 => self.add_region(),
                _ => self.drop_region(),
            },
        }
    }

    fn step_wide(&self) {
        let free = self.depth.get() == 0;
        match self.below(4) {
            0 if free => self.begin_sync(),
            0 | 1 => self.end_sync(),
            _ => self.submit_halves(),
        }
    }

    fn step_first(&self) {
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

    /// On one stream: no wait, no event besides checkpoints, nothing for the reclaimer.
    fn judge_single(&self) {
        let count = |rule| self.tracker.stats().get(rule);
        let records = self.world().records;
        let waits = self.world().waits;
        let launches = self.stamps.borrow().len() as u64;
        if records != count(Rule::SealCheckpoint) || records > launches / self.profile.config.checkpoint {
            self.violation(format!("{records} events for {launches} launches on one stream"));
        }
        // What nothing has touched goes to the reclaimer, which has nothing to wait for.
        let reclaimed = self.world().reclaim.iter().filter(|(_, stamps)| !stamps.is_empty()).count();
        if waits != 0 || reclaimed != 0 {
            self.violation(format!("{waits} waits, {reclaimed} reclaimed on one stream"));
        }
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
