//! Turns and time.

use super::{Random, Strategy, Trace};
use parking_lot::{Condvar, Mutex};
use simtile_sync::hook::{self, Hook};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Virtual time of one step, so that loops over the clock make progress.
const STEP: Duration = Duration::from_micros(1);
/// Names of device workers start with this.
pub(crate) const WORKER_NAME: &str = "device";

/// The owner of turns and time of one exploration.
pub struct Schedule {
    state: Mutex<State>,
}

struct State {
    random: Random,
    strategy: Strategy,
    starved: usize,
    now: Duration,
    participants: Vec<Participant>,
    /// Who has the turn.
    turn: usize,
    trace: Trace,
    deadlock: Option<String>,
}

struct Participant {
    name: String,
    state: Standing,
    woken: bool,
    turn: Arc<Turn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Runnable,
    Blocked { key: usize, until: Option<Duration> },
    Ended,
}

/// Where a participant waits for its turn.
#[derive(Default)]
struct Turn {
    mine: Mutex<bool>,
    changed: Condvar,
}

impl Turn {
    fn give(&self) {
        *self.mine.lock() = true;
        self.changed.notify_one();
    }

    fn take(&self) {
        let mut mine = self.mine.lock();
        while !*mine {
            self.changed.wait(&mut mine);
        }
        *mine = false;
    }
}

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Schedule>, usize)>> = const { RefCell::new(None) };
}

/// The calling thread's exploration.
pub fn current() -> Option<Arc<Schedule>> {
    with_current(|schedule, _| schedule.clone())
}

fn with_current<R>(f: impl FnOnce(&Arc<Schedule>, usize) -> R) -> Option<R> {
    // A thread whose locals are being destroyed takes part in nothing any more.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok()??;
    Some(f(&current.0, current.1))
}

/// Adds a line to the trace of the calling thread's exploration.
pub fn note(what: fmt::Arguments<'_>) {
    with_current(|schedule, me| {
        let mut state = schedule.state.lock();
        let (now, name) = (state.now, state.participants[me].name.clone());
        state.trace.step(now, &name, what);
    });
}

/// Result of [`explore`].
#[derive(Debug)]
pub struct Outcome<T> {
    /// What the closure returned, or the payload of its panic.
    pub result: std::thread::Result<T>,
    /// What happened.
    pub trace: Trace,
    /// Who waited for what, if nobody could go on.
    pub deadlock: Option<String>,
}

/// Runs `program` as the first participant of a new exploration.
///
/// The threads it starts through `simtile_sync`, and the simulated drivers it builds in explore mode, take part
/// in it. Participants that still run when it returns go on among themselves.
pub fn explore<T>(seed: u64, strategy: Strategy, program: impl FnOnce() -> T) -> Outcome<T> {
    hook::install(&HOOK);
    let state = State {
        random: Random::new(seed),
        strategy,
        starved: usize::MAX,
        now: Duration::ZERO,
        participants: vec![Participant {
            name: "main".into(),
            state: Standing::Runnable,
            woken: false,
            turn: Arc::default(),
        }],
        turn: 0,
        trace: Trace::default(),
        deadlock: None,
    };
    let schedule = Arc::new(Schedule { state: Mutex::new(state) });
    let outer = CURRENT.replace(Some((schedule.clone(), 0)));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
    CURRENT.replace(outer);
    // The trace as it is when the program ends: what the rest still does has no place in the result.
    let (trace, deadlock) = schedule.end(0);
    Outcome { result, trace, deadlock }
}

impl Schedule {
    /// A random choice among `n`, from the seed, for device-side decisions.
    pub fn choose(&self, n: usize) -> usize {
        self.state.lock().random.below(n)
    }

    /// The strategy.
    pub fn strategy(&self) -> Strategy {
        self.state.lock().strategy
    }

    /// Whether a deadlock dissolved it.
    pub fn is_dissolved(&self) -> bool {
        self.state.lock().deadlock.is_some()
    }

    fn switch_point(&self, me: usize, what: &'static str) {
        let mut state = self.state.lock();
        if state.deadlock.is_some() {
            return;
        }
        state.now += STEP;
        let (now, name) = (state.now, state.participants[me].name.clone());
        state.trace.step(now, &name, format_args!("{what}"));
        self.pass_turn(state, me);
    }

    fn block(&self, me: usize, key: usize, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if state.deadlock.is_some() {
            drop(state);
            // Dissolved: keep loops that wait for a condition from burning a core.
            std::thread::sleep(timeout.unwrap_or(STEP).min(Duration::from_millis(1)));
            return false;
        }
        state.now += STEP;
        let until = timeout.map(|timeout| state.now + timeout);
        state.participants[me].woken = false;
        state.participants[me].state = Standing::Blocked { key, until };
        self.pass_turn(state, me);
        let mut state = self.state.lock();
        if me == 0
            && let Some(text) = &state.deadlock
            && !state.participants[me].woken
        {
            let text = text.clone();
            drop(state);
            std::panic::panic_any(text);
        }
        state.participants[me].state = Standing::Runnable;
        state.participants[me].woken
    }

    /// Decides who runs next. Returns when it is `me` again, unless `me` has ended.
    fn pass_turn(&self, mut state: parking_lot::MutexGuard<'_, State>, me: usize) {
        let next = state.next();
        state.turn = next.unwrap_or(me);
        let ended = state.participants[me].state == Standing::Ended;
        let mine = state.participants[me].turn.clone();
        match next {
            Some(next) if next == me => return,
            Some(next) => state.participants[next].turn.give(),
            None if ended && state.participants.iter().all(|p| p.state == Standing::Ended) => return,
            None => {
                state.dissolve();
                return;
            }
        }
        drop(state);
        if !ended {
            mine.take();
        }
    }

    /// The participant has ended. Returns the trace up to there, and the deadlock if there was one.
    fn end(&self, me: usize) -> (Trace, Option<String>) {
        let mut state = self.state.lock();
        let dissolved = state.deadlock.is_some();
        state.participants[me].state = Standing::Ended;
        let (now, name) = (state.now, state.participants[me].name.clone());
        state.trace.step(now, &name, format_args!("ends"));
        // Only the program's end is asked for its trace; the others are spared the copy.
        let so_far = if me == 0 { state.trace.clone() } else { Trace::default() };
        let deadlock = state.deadlock.clone();
        // Participants that wait for ever (idle workers of a simulator that lives on) are no deadlock once
        // the program has ended.
        if !dissolved && state.participants.iter().any(|p| p.is_runnable(state.now) || p.deadline().is_some())
        {
            self.pass_turn(state, me);
        }
        (so_far, deadlock)
    }
}

impl Participant {
    fn is_runnable(&self, now: Duration) -> bool {
        match self.state {
            Standing::Runnable => true,
            Standing::Blocked { until, .. } => self.woken || until.is_some_and(|until| until <= now),
            Standing::Ended => false,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self.state {
            Standing::Blocked { until, .. } => until,
            _ => None,
        }
    }

    fn is_device(&self) -> bool {
        self.name.starts_with(WORKER_NAME)
    }
}

impl State {
    /// The next participant; moves time on if everybody waits for it.
    fn next(&mut self) -> Option<usize> {
        let mut runnable = self.runnable();
        if runnable.is_empty() {
            let until = self.participants.iter().filter_map(Participant::deadline).min()?;
            self.now = self.now.max(until);
            runnable = self.runnable();
        }
        if self.strategy == Strategy::Starving && self.random.one_in(16) {
            self.starved = self.random.below(self.participants.len());
        }
        Some(self.strategy.choose(&runnable, self.starved, &mut self.random))
    }

    fn runnable(&self) -> Vec<(usize, bool)> {
        let can_run = |(i, p): (usize, &Participant)| p.is_runnable(self.now).then(|| (i, p.is_device()));
        self.participants.iter().enumerate().filter_map(can_run).collect()
    }

    /// Nobody can run: notes why and lets everybody go.
    fn dissolve(&mut self) {
        let mut text = String::from("deadlock: nobody can go on");
        for participant in &self.participants {
            let state = match participant.state {
                Standing::Runnable => "runs",
                Standing::Blocked { .. } => "waits",
                Standing::Ended => "has ended",
            };
            text += &format!("; {} {state}", participant.name);
        }
        self.trace.step(self.now, "schedule", format_args!("{text}"));
        self.deadlock = Some(text);
        for participant in &self.participants {
            participant.turn.give();
        }
    }
}

static HOOK: Hook = Hook {
    participates: || {
        CURRENT
            .try_with(|current| {
                current.try_borrow().is_ok_and(|current| {
                    current.as_ref().is_some_and(|(schedule, _)| !schedule.is_dissolved())
                })
            })
            .unwrap_or(false)
    },
    switch_point: |what| {
        with_current(|schedule, me| schedule.switch_point(me, what));
    },
    block: |key, timeout| with_current(|schedule, me| schedule.block(me, key, timeout)).unwrap_or(false),
    // Threads outside a simulation share no blocking object with its participants.
    wake: |key, count| {
        with_current(|schedule, _| {
            let mut state = schedule.state.lock();
            let blocked = |p: &&mut Participant| {
                !p.woken && matches!(p.state, Standing::Blocked { key: k, .. } if k == key)
            };
            for participant in state.participants.iter_mut().filter(blocked).take(count) {
                participant.woken = true;
            }
        });
    },
    now: || with_current(|schedule, _| schedule.state.lock().now).unwrap_or_default(),
    spawning: |name| {
        with_current(|schedule, _| {
            let mut state = schedule.state.lock();
            state.participants.push(Participant {
                name: name.to_owned(),
                state: Standing::Runnable,
                woken: false,
                turn: Arc::default(),
            });
            let index = state.participants.len() - 1;
            drop(state);
            // The child finds its schedule by this token; it takes it over in `adopt`.
            Box::into_raw(Box::new((schedule.clone(), index))).expose_provenance()
        })
        .unwrap_or(0)
    },
    adopt: |token| {
        if token == 0 {
            return;
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<(Arc<Schedule>, usize)>(token);
        // SAFETY: a token is made by `spawning` and lives until `exiting`.
        let (schedule, me) = unsafe { (*pointer).clone() };
        let turn = schedule.state.lock().participants[me].turn.clone();
        CURRENT.replace(Some((schedule, me)));
        turn.take();
    },
    exiting: |token| {
        if token == 0 {
            return;
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<(Arc<Schedule>, usize)>(token);
        // SAFETY: as in `adopt`; this is the last use of the token.
        let (schedule, me) = *unsafe { Box::from_raw(pointer) };
        schedule.end(me);
        // A thread that could not be started never adopted; then `current` is the starter's.
        CURRENT.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|(_, index)| *index == me) {
                *current = None;
            }
        });
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use simtile_sync::atomic::{AtomicU32, Ordering};
    use simtile_sync::{thread, time};

    /// Three threads that count through a lock, wait for each other and sleep.
    fn program() -> (u32, Vec<u32>) {
        let count = Arc::new(simtile_sync::Mutex::new((0, Vec::new())));
        let changed = Arc::new(simtile_sync::Condvar::new());
        let started = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..3)
            .map(|id| {
                let (count, changed, started) = (count.clone(), changed.clone(), started.clone());
                thread::spawn(&format!("t{id}"), move || {
                    started.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..5 {
                        let mut guard = count.lock();
                        guard.0 += 1;
                        guard.1.push(id);
                        drop(guard);
                        changed.notify_all();
                    }
                    time::sleep(Duration::from_secs(u64::from(id)));
                })
                .unwrap()
            })
            .collect();
        let mut guard = count.lock();
        while guard.0 < 15 {
            changed.wait(&mut guard);
        }
        drop(guard);
        for thread in threads {
            thread.join().unwrap();
        }
        let guard = count.lock();
        (guard.0, guard.1.clone())
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_seeds_differ() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let run = || explore(seed, Strategy::of_seed(seed), program);
            let (a, b) = (run(), run());
            assert_eq!(a.deadlock, None);
            let (count, order) = a.result.unwrap();
            assert_eq!(count, 15);
            assert_eq!(a.trace.text(), b.trace.text(), "seed {seed}");
            assert!(a.trace.steps() > 20);
            orders.insert(order);
        }
        assert!(orders.len() > 20, "only {} different orders in 40 seeds", orders.len());
    }

    #[test]
    fn time_is_virtual() {
        let real = std::time::Instant::now();
        let outcome = explore(1, Strategy::Interleaved, || {
            let before = time::now();
            time::sleep(Duration::from_secs(3600));
            time::now() - before
        });
        assert!(outcome.result.unwrap() >= Duration::from_secs(3600));
        assert!(real.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_deadlock_is_reported_and_ends() {
        let outcome = explore(3, Strategy::Interleaved, || {
            let (lock, never) = (simtile_sync::Mutex::new(()), simtile_sync::Condvar::new());
            never.wait(&mut lock.lock());
        });
        assert!(outcome.result.is_err());
        assert_eq!(outcome.deadlock.as_deref(), Some("deadlock: nobody can go on; main waits"));
    }

    #[test]
    fn threads_outside_are_not_touched() {
        let outcome = explore(5, Strategy::Late, || {
            let outside = std::thread::spawn(|| {
                let lock = simtile_sync::Mutex::new(1);
                assert!(current().is_none());
                *lock.lock() + 1
            });
            outside.join().unwrap()
        });
        assert_eq!(outcome.result.unwrap(), 2);
    }

    /// The one that is woken gets its turn while the lock it waits with is still held.
    #[test]
    fn a_waker_that_gives_up_its_turn_with_the_lock_stops_nobody() {
        for seed in 0..40 {
            let outcome = explore(seed, Strategy::of_seed(seed), || {
                let shared = Arc::new((
                    simtile_sync::Mutex::new(false),
                    simtile_sync::Condvar::new(),
                    AtomicU32::new(0),
                ));
                let waker = {
                    let shared = shared.clone();
                    thread::spawn("waker", move || {
                        let other = simtile_sync::Mutex::new(());
                        let mut ready = shared.0.lock();
                        *ready = true;
                        shared.1.notify_all();
                        for _ in 0..4 {
                            drop(other.lock());
                            shared.2.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                    .unwrap()
                };
                let mut ready = shared.0.lock();
                while !*ready {
                    shared.1.wait(&mut ready);
                }
                drop(ready);
                waker.join().unwrap();
                shared.2.load(Ordering::Relaxed)
            });
            assert_eq!(outcome.result.unwrap(), 4, "seed {seed}");
            assert_eq!(outcome.deadlock, None, "seed {seed}");
        }
    }
}
