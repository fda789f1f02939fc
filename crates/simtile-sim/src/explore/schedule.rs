//! Turns and time.

use super::choices::{Choices, Recording};
use super::{Strategy, Trace, watch};
use parking_lot::{Condvar, Mutex, MutexGuard};
use simtile_sync::hook::{self, Hook};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Virtual time of one step, so that loops over the clock make progress.
const STEP: Duration = Duration::from_micros(1);
/// Names of device workers start with this.
pub(crate) const WORKER_NAME: &str = "device";
/// So many times in a row time moves on and only the device's workers look whether something has changed.
const MOST_JUMPS: u32 = 50_000;
/// How long a lock may be held by somebody outside, in real time, while nobody inside can go on.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// How long those that were held up by a participant that blocked outside may still wait, in real time.
const GRACE: Duration = Duration::from_secs(2);
/// So many times in a row participants only take locks, wait for a moment and ask whether something is over, while no
/// kernel runs.
const MOST_QUIET: u32 = if cfg!(test) { 200_000 } else { 3_000_000 };
/// How many turns the others get after the program has ended.
const MOST_AFTERWARDS: u32 = 500_000;

/// Turns are given.
const ON: u8 = 0;
/// Nobody could go on: host threads leave what they wait for by a panic, device workers go on without turns.
const STUCK: u8 = 1;
/// The program has ended: whoever is left goes on without turns.
const OVER: u8 = 2;

/// The owner of turns and time of one exploration.
pub struct Schedule {
    id: usize,
    phase: AtomicU8,
    state: Mutex<State>,
}

struct State {
    choices: Choices,
    now: Duration,
    participants: Vec<Participant>,
    /// Those that have not ended, in order: a program may start thousands of threads one after the other, and each turn
    /// looks at all that may want it.
    live: Vec<usize>,
    /// Who has the turn, and how often one was given.
    turn: usize,
    turns: u64,
    /// How often somebody did something other than to find a lock taken.
    progress: u64,
    /// Consecutive moves of time that only device workers waited for.
    jumps: u32,
    /// Consecutive steps by which nothing came about, see `polls`.
    quiet: u32,
    /// Since when nobody can go on but for a lock that is held outside.
    retries: Option<Instant>,
    trace: Trace,
    stuck: Option<Stuck>,
    /// The program has ended, and so has the trace.
    ended: bool,
    afterwards: u32,
}

/// Why nobody can go on.
struct Stuck {
    text: String,
    /// Until when waiting may still help, because somebody goes on after all.
    until: Instant,
    /// Nobody waits for ever, but somebody asks for ever: it leaves where it asks.
    asks: bool,
}

struct Participant {
    name: String,
    device: bool,
    standing: Standing,
    woken: bool,
    turn: Arc<Turn>,
    /// What it last did.
    step: &'static str,
    /// The system's name of the thread.
    thread: Option<String>,
    /// It computes, however long it takes.
    busy: bool,
}

impl Participant {
    fn new(name: &str, thread: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            device: name.starts_with(WORKER_NAME),
            standing: Standing::Runnable,
            woken: false,
            turn: Arc::default(),
            step: "starts",
            thread,
            busy: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Runnable,
    Blocked {
        key: usize,
        until: Option<Duration>,
    },
    /// It found a lock taken when progress was this, and needs not look before there is more.
    Contends {
        seen: u64,
    },
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

/// Whose turn it is, as `watch` sees it.
pub(super) struct Turns {
    pub(super) turns: u64,
    pub(super) thread: Option<String>,
    pub(super) busy: bool,
}

/// A participant of an exploration.
#[derive(Clone)]
struct Place {
    schedule: Arc<Schedule>,
    me: usize,
    device: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<Place>> = const { RefCell::new(None) };
    /// How many frames below catch the panic by which a stuck participant leaves, also while the thread unwinds.
    static CATCHES: Cell<u32> = const { Cell::new(0) };
}

/// Explorations that are on, so that threads outside look for none in vain.
static ON_NOW: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's exploration.
pub fn current() -> Option<Arc<Schedule>> {
    with_current(|schedule, _| schedule.clone())
}

fn with_current<R>(f: impl FnOnce(&Arc<Schedule>, usize) -> R) -> Option<R> {
    // A thread whose locals are being destroyed takes part in nothing any more.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok()??;
    Some(f(&current.schedule, current.me))
}

/// Adds a line to the trace of the calling thread's exploration.
pub fn note(what: fmt::Arguments<'_>) {
    with_current(|schedule, me| schedule.state.lock().step(me, what));
}

/// Why nobody can go on in the calling thread's exploration, if so.
pub(crate) fn stuck() -> Option<String> {
    with_current(|schedule, _| schedule.state.lock().stuck.as_ref().map(|stuck| stuck.text.clone()))?
}

/// Until the result is dropped, the calling thread computes and waits for nothing outside.
pub(crate) fn busy() -> impl Drop {
    struct Idle;
    impl Drop for Idle {
        fn drop(&mut self) {
            set(false);
        }
    }
    fn set(busy: bool) {
        with_current(|schedule, me| schedule.state.lock().participants[me].busy = busy);
    }
    set(true);
    Idle
}

/// Until the result is dropped, a frame below catches panics, so a stuck participant may leave by one even while
/// its thread unwinds.
pub(crate) fn catching() -> impl Drop {
    struct Less;
    impl Drop for Less {
        fn drop(&mut self) {
            CATCHES.set(CATCHES.get() - 1);
        }
    }
    CATCHES.set(CATCHES.get() + 1);
    Less
}

/// Result of [`explore`].
#[derive(Debug)]
pub struct Outcome<T> {
    /// What the closure returned, or the payload of its panic.
    pub result: std::thread::Result<T>,
    /// What happened.
    pub trace: Trace,
    /// The decisions, for [`replay`] and [`shrink`](super::shrink()).
    pub recording: Recording,
    /// Who waited for what, if nobody could go on.
    pub deadlock: Option<String>,
}

/// Runs `program` as the first participant of a new exploration.
///
/// The threads it starts through `simtile_sync`, and the simulated drivers it builds in explore mode, take part
/// in it. Participants that still run when it returns go on until they end or wait for ever; then the exploration
/// is over, and what is left of it is an ordinary part of the process.
pub fn explore<T>(seed: u64, strategy: Strategy, program: impl FnOnce() -> T) -> Outcome<T> {
    run(Choices::of_seed(seed, strategy), program)
}

/// Runs `program` with the decisions of a recording; where it has none, or they do not fit, with plain ones. The
/// same program takes the same course as when it was recorded.
pub fn replay<T>(recording: &Recording, program: impl FnOnce() -> T) -> Outcome<T> {
    run(Choices::of_recording(recording), program)
}

fn run<T>(choices: Choices, program: impl FnOnce() -> T) -> Outcome<T> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    hook::install(&HOOK);
    let state = State {
        choices,
        now: Duration::ZERO,
        participants: vec![Participant::new("main", watch::this_thread())],
        live: vec![0],
        turn: 0,
        turns: 0,
        progress: 0,
        jumps: 0,
        quiet: 0,
        retries: None,
        trace: Trace::default(),
        stuck: None,
        ended: false,
        afterwards: 0,
    };
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let schedule = Arc::new(Schedule { id, phase: AtomicU8::new(ON), state: Mutex::new(state) });
    ON_NOW.fetch_add(1, Ordering::SeqCst);
    watch::add(&schedule);
    let outer = CURRENT.replace(Some(Place { schedule: schedule.clone(), me: 0, device: false }));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
    let (trace, recording, deadlock) = schedule.finish();
    CURRENT.replace(outer);
    ON_NOW.fetch_sub(1, Ordering::SeqCst);
    Outcome { result, trace, recording, deadlock }
}

impl Schedule {
    /// A number that no other exploration of the process has.
    pub fn id(&self) -> usize {
        self.id
    }

    /// A choice among `n`, for device-side decisions. 0 if `n` is.
    pub fn choose(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.state.lock().choices.pick(n) }
    }

    /// The strategy.
    pub fn strategy(&self) -> Strategy {
        self.state.lock().choices.recording().strategy
    }

    /// Whether turns are given.
    pub fn is_on(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ON
    }

    /// Whether a thread takes part, as the hook means it.
    fn governs(&self, device: bool) -> bool {
        match self.phase.load(Ordering::Acquire) {
            ON => true,
            STUCK => !device,
            _ => false,
        }
    }

    pub(super) fn turns(&self) -> Option<Turns> {
        let state = self.state.try_lock().filter(|_| self.is_on())?;
        let holder = state.participants.get(state.turn)?;
        // Whoever decides without being able to go on itself is not blocked outside.
        let busy = holder.busy || state.retries.is_some();
        Some(Turns { turns: state.turns, thread: holder.thread.clone(), busy })
    }

    /// The participant with the turn sleeps in something that the schedule does not see.
    pub(super) fn blocked_outside(&self, since: Duration, runs: bool) {
        let mut state = self.state.lock();
        if !self.is_on() {
            return;
        }
        let Some(holder) = state.participants.get(state.turn) else { return };
        let why = if runs {
            "it runs, and may wait in a loop for something that another thread does, which has no turn"
        } else {
            "it waits for a lock, channel or thread that the schedule does not see (use those of simtile_sync)"
        };
        let text = format!(
            "blocked outside the exploration: {} has not come back for {} s after '{}': {why}",
            holder.name,
            since.as_secs(),
            holder.step
        );
        self.stick(&mut state, text, GRACE);
    }

    fn switch_point(&self, me: usize, what: &'static str) {
        let mut state = self.state.lock();
        if !self.is_on() {
            return self.leave_if_asking(state, me);
        }
        state.now += STEP;
        state.step(me, format_args!("{what}"));
        state.acts(me, what);
        self.pass_turn(state, me);
    }

    fn block(&self, me: usize, key: usize, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if self.is_on() {
            state.now += STEP;
            let until = timeout.map(|timeout| state.now.saturating_add(timeout));
            let what = if key == 0 { "sleep" } else { "wait" };
            state.acts(me, what);
            let mine = &mut state.participants[me];
            mine.woken = false;
            mine.standing = Standing::Blocked { key, until };
            self.pass_turn(state, me);
            state = self.state.lock();
            let mine = &mut state.participants[me];
            mine.standing = Standing::Runnable;
            if self.is_on() || mine.woken {
                return mine.woken;
            }
        }
        self.block_without_turns(state, me, timeout)
    }

    /// A wait after turns have ended: the caller looks again, or leaves by a panic if that cannot help.
    fn block_without_turns(
        &self,
        mut state: MutexGuard<'_, State>,
        me: usize,
        timeout: Option<Duration>,
    ) -> bool {
        if !self.governs(state.participants[me].device) {
            return false;
        }
        if let Some(timeout) = timeout {
            // Loops over the clock end.
            state.now = state.now.saturating_add(timeout.max(STEP));
            MutexGuard::unlocked(&mut state, || std::thread::sleep(timeout.min(Duration::from_millis(1))));
            self.leave_if_asking(state, me);
            return false;
        }
        self.leave_if_stuck(state, Duration::ZERO);
        false
    }

    /// After turns have ended because somebody asked for ever: leaves by a panic, once there was time for all else.
    fn leave_if_asking(&self, state: MutexGuard<'_, State>, me: usize) {
        if state.stuck.as_ref().is_some_and(|stuck| stuck.asks) && self.governs(state.participants[me].device)
        {
            self.leave_if_stuck(state, Duration::ZERO);
        }
    }

    /// Waits a moment, or panics if the time for that has passed.
    fn leave_if_stuck(&self, state: MutexGuard<'_, State>, more: Duration) {
        let text = state.stuck.as_ref().filter(|stuck| Instant::now() >= stuck.until + more);
        let text = text.map(|stuck| stuck.text.clone());
        drop(state);
        match text {
            // Without the panic hook's message: the outcome says it.
            Some(text) if CATCHES.get() > 0 || !std::thread::panicking() => {
                std::panic::resume_unwind(Box::new(text))
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    fn contended(&self, me: usize, first: bool) {
        let mut state = self.state.lock();
        if !self.is_on() {
            if self.governs(state.participants[me].device) {
                self.leave_if_stuck(state, Duration::from_millis(200));
            }
            return;
        }
        if first {
            state.now += STEP;
            state.acts(me, "finds a lock taken");
        }
        state.participants[me].standing = Standing::Contends { seen: state.progress };
        self.pass_turn(state, me);
        self.state.lock().participants[me].standing = Standing::Runnable;
    }

    /// Decides who runs next. Returns when it is `me` again, unless `me` has ended.
    fn pass_turn(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let gone = state.participants[me].standing == Standing::Ended;
        let mine = state.participants[me].turn.clone();
        let next = loop {
            if !self.is_on() {
                return;
            }
            match state.next(me) {
                Next::Run(next) => break next,
                Next::Retry(next) => {
                    let since = *state.retries.get_or_insert_with(Instant::now);
                    if since.elapsed() > LOCK_PATIENCE {
                        let why = ", and some locks are never given up";
                        self.nobody(&mut state, why);
                        return;
                    }
                    let turns = state.turns;
                    MutexGuard::unlocked(&mut state, || std::thread::sleep(Duration::from_micros(200)));
                    if turns == state.turns {
                        break next;
                    }
                }
                Next::Nobody(why) => {
                    self.nobody(&mut state, why);
                    return;
                }
            }
        };
        state.turn = next;
        state.turns += 1;
        if state.ended {
            state.afterwards += 1;
        }
        if next == me {
            return;
        }
        state.participants[next].turn.give();
        drop(state);
        if !gone {
            mine.take();
        }
    }

    /// Nobody can go on.
    fn nobody(&self, state: &mut State, why: &str) {
        if state.ended {
            self.set_phase(state, OVER);
            return;
        }
        let mut text = format!("deadlock: nobody can go on{why}");
        for participant in &state.participants {
            let standing = match participant.standing {
                Standing::Runnable => "runs",
                Standing::Blocked { .. } => "waits",
                Standing::Contends { .. } => "waits for a lock",
                Standing::Ended => "has ended",
            };
            text += &format!("; {} {standing}", participant.name);
        }
        self.stick(state, text, Duration::ZERO);
    }

    /// Ends the turns because nobody can go on.
    fn stick(&self, state: &mut State, text: String, grace: Duration) {
        if !state.ended {
            state.trace.step(state.now, "schedule", format_args!("{text}"));
            let asks = state.quiet > MOST_QUIET;
            let grace = if asks { GRACE } else { grace };
            state.stuck = Some(Stuck { text, until: Instant::now() + grace, asks });
        }
        let phase = if state.ended { OVER } else { STUCK };
        self.set_phase(state, phase);
    }

    fn set_phase(&self, state: &mut State, phase: u8) {
        self.phase.store(phase, Ordering::Release);
        for participant in &state.participants {
            participant.turn.give();
        }
    }

    /// A participant has ended.
    fn end(&self, me: usize) {
        let mut state = self.state.lock();
        state.step(me, format_args!("ends"));
        state.acts(me, "ends");
        state.ended(me);
        if self.is_on() {
            self.pass_turn(state, me);
        }
    }

    /// The program has ended. Lets the others go on until they have ended or wait for ever; the trace is as it was
    /// before that.
    fn finish(&self) -> (Trace, Recording, Option<String>) {
        let mut state = self.state.lock();
        state.step(0, format_args!("ends"));
        state.acts(0, "ends");
        let recording = state.choices.recording().clone();
        let trace = state.trace.clone().recorded(&recording);
        let stuck = state.stuck.as_ref().map(|stuck| stuck.text.clone());
        state.ended(0);
        if self.is_on() {
            state.ended = true;
            let mine = state.participants[0].turn.clone();
            self.pass_turn(state, 0);
            mine.take();
        } else {
            drop(state);
            let end = Instant::now() + 2 * GRACE;
            let waits = |p: &Participant| !p.device && p.standing != Standing::Ended;
            while Instant::now() < end && self.state.lock().participants.iter().any(waits) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.set_phase(&mut self.state.lock(), OVER);
        (trace, recording, stuck)
    }

    /// Adds a participant. If turns have ended it needs none.
    fn add(&self, name: &str) -> usize {
        let mut state = self.state.lock();
        let participant = Participant::new(name, None);
        if !self.is_on() {
            participant.turn.give();
        }
        state.participants.push(participant);
        let number = state.participants.len() - 1;
        state.live.push(number);
        number
    }
}

/// Who goes on.
enum Next {
    Run(usize),
    /// This one tries its lock again, which somebody outside may have given up.
    Retry(usize),
    /// Nobody, and why in words.
    Nobody(&'static str),
}

impl State {
    /// A line of the trace, which ends with the program.
    fn step(&mut self, me: usize, what: fmt::Arguments<'_>) {
        if !self.ended && self.stuck.is_none() {
            self.trace.step(self.now, &self.participants[me].name, what);
        }
    }

    /// A participant takes no part any more.
    fn ended(&mut self, me: usize) {
        self.participants[me].standing = Standing::Ended;
        self.live.retain(|&live| live != me);
    }

    /// Somebody does something other than to find a lock taken.
    fn acts(&mut self, me: usize, what: &'static str) {
        self.progress += 1;
        self.quiet = if polls(what) { self.quiet.saturating_add(1) } else { 0 };
        self.retries = None;
        self.participants[me].step = what;
    }

    /// The next participant; moves time on if everybody waits for it.
    fn next(&mut self, me: usize) -> Next {
        if self.afterwards > MOST_AFTERWARDS {
            return Next::Nobody("");
        }
        if self.quiet > MOST_QUIET {
            return Next::Nobody(", though some ask again and again whether they can");
        }
        loop {
            let runnable = self.runnable();
            if !runnable.is_empty() {
                let next = self.choices.turn(&runnable, me, &self.live);
                // A kernel that computes takes time as well, and its step limit ends it.
                if !self.participants[next].device || self.participants[next].busy {
                    self.jumps = 0;
                }
                if self.participants[next].busy {
                    self.quiet = 0;
                }
                return Next::Run(next);
            }
            let until = self.live.iter().filter_map(|&i| self.participants[i].deadline()).min();
            if let Some(until) = until {
                self.jumps += 1;
                if self.jumps > MOST_JUMPS {
                    return Next::Nobody(" but the device, which waits for a value in memory");
                }
                self.now = self.now.max(until);
                continue;
            }
            let contends = |&i: &usize| matches!(self.participants[i].standing, Standing::Contends { .. });
            // In turn, starting behind the one that tried last.
            let behind = self.live.partition_point(|&i| i <= self.turn);
            let next = self.live[behind..].iter().chain(&self.live[..behind]).copied().find(contends);
            return next.map_or(Next::Nobody(""), Next::Retry);
        }
    }

    fn runnable(&self) -> Vec<(usize, bool)> {
        let can_run = |&i: &usize| {
            let participant = &self.participants[i];
            participant.is_runnable(self.now, self.progress).then_some((i, participant.device))
        };
        self.live.iter().filter_map(can_run).collect()
    }
}

/// Whether a step brings nothing about by itself: taking a lock, waiting for a moment, asking.
fn polls(what: &str) -> bool {
    matches!(what, "lock" | "wait" | "sleep" | "finds a lock taken")
        || ["Query", "GetCurrent", "SetCurrent", "IsCapturing"].iter().any(|name| what.ends_with(name))
}

impl Participant {
    fn is_runnable(&self, now: Duration, progress: u64) -> bool {
        match self.standing {
            Standing::Runnable => true,
            Standing::Blocked { until, .. } => self.woken || until.is_some_and(|until| until <= now),
            Standing::Contends { seen } => seen != progress,
            Standing::Ended => false,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self.standing {
            Standing::Blocked { until, .. } => until,
            _ => None,
        }
    }
}

fn wake(schedule: &Schedule, key: usize, count: usize) {
    let mut state = schedule.state.lock();
    let State { participants, live, .. } = &mut *state;
    let mut left = count;
    for &i in live.iter() {
        let participant = &mut participants[i];
        let blocks = matches!(participant.standing, Standing::Blocked { key: k, .. } if k == key);
        if left == 0 {
            break;
        }
        if blocks && !participant.woken {
            participant.woken = true;
            left -= 1;
        }
    }
}

static HOOK: Hook = Hook {
    participates: || {
        CURRENT
            .try_with(|current| {
                current.try_borrow().is_ok_and(|current| {
                    current.as_ref().is_some_and(|place| place.schedule.governs(place.device))
                })
            })
            .unwrap_or(false)
    },
    switch_point: |what| {
        with_current(|schedule, me| schedule.switch_point(me, what));
    },
    block: |key, timeout| with_current(|schedule, me| schedule.block(me, key, timeout)).unwrap_or(false),
    wake: |key, count| {
        if with_current(|schedule, _| wake(schedule, key, count)).is_none()
            && ON_NOW.load(Ordering::SeqCst) > 0
        {
            // A thread outside may wake a participant; when that happens is no part of the schedule.
            watch::each(|schedule| wake(schedule, key, count));
        }
    },
    contended: |first| {
        with_current(|schedule, me| schedule.contended(me, first));
    },
    world: || with_current(|schedule, _| schedule.id).unwrap_or(0),
    now: || with_current(|schedule, _| schedule.state.lock().now).unwrap_or_default(),
    spawning: |name| {
        with_current(|schedule, _| {
            let me = schedule.add(name);
            let place = Place { schedule: schedule.clone(), me, device: name.starts_with(WORKER_NAME) };
            // The child finds its schedule by this token; it takes it over in `adopt`.
            Box::into_raw(Box::new(place)).expose_provenance()
        })
        .unwrap_or(0)
    },
    adopt: |token| {
        if token == 0 {
            return;
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<Place>(token);
        // SAFETY: a token is made by `spawning` and lives until `exiting`.
        let place = unsafe { (*pointer).clone() };
        let turn = {
            let mut state = place.schedule.state.lock();
            let mine = &mut state.participants[place.me];
            mine.thread = watch::this_thread();
            mine.turn.clone()
        };
        CURRENT.replace(Some(place));
        turn.take();
    },
    exiting: |token| {
        if token == 0 {
            return;
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<Place>(token);
        // SAFETY: as in `adopt`; this is the last use of the token.
        let place = *unsafe { Box::from_raw(pointer) };
        // A thread that could not be started never adopted; then `current` is the starter's, which keeps its turn: were it
        // given to somebody else as well, two would run at once.
        let started = with_current(|_, me| me == place.me).unwrap_or(false);
        if started {
            place.schedule.end(place.me);
        } else {
            place.schedule.state.lock().ended(place.me);
        }
        CURRENT.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|current| current.me == place.me) {
                *current = None;
            }
        });
    },
};

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
