//! A look from outside at explorations whose participant with the turn does not come back.
//!
//! A participant that waits for something that the schedule does not see (a lock, channel or thread of std) keeps
//! its turn, and nobody else can go on. One thread looks at all explorations now and then, in real time. It tells
//! waiting from computing by the system's account of the thread: one that sleeps, and has not run at all
//! for [`PATIENCE`], waits. Where the system gives no account, one that keeps its turn for [`BLIND_PATIENCE`] counts as
//! waiting. One that only ever runs, for [`RUN_PATIENCE`], spins. Whatever it finds ends the exploration; it never changes one
//! that goes on, so it cannot be seen in a trace.

use super::schedule::{Schedule, Turns};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a thread sleeps without a break until it counts as waiting outside.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 1500 } else { 5000 });
/// How long a thread may run in one turn: long, because a host may compute.
const RUN_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 15 } else { 300 });
/// The same where only the turn is known.
const BLIND_PATIENCE: Duration = Duration::from_secs(120);

struct Watched {
    schedules: Vec<Weak<Schedule>>,
    runs: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { schedules: Vec::new(), runs: false });

/// The system's name of the calling thread, where it has one.
pub(super) fn this_thread() -> Option<String> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// Looks at this exploration from now on.
pub(super) fn add(schedule: &Arc<Schedule>) {
    let mut watched = WATCHED.lock();
    watched.schedules.push(Arc::downgrade(schedule));
    if !watched.runs {
        watched.runs = std::thread::Builder::new().name("explore-watch".into()).spawn(run).is_ok();
    }
}

/// Calls `f` for every exploration that is going on.
pub(super) fn each(f: impl Fn(&Schedule)) {
    let all: Vec<_> = WATCHED.lock().schedules.iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|schedule| f(schedule));
}

/// What was seen of an exploration, and since when.
#[derive(PartialEq, Eq)]
struct Sight {
    turns: u64,
    /// How often the thread has begun to sleep; `None` if it is not known.
    sleeps: Option<String>,
}

fn run() {
    let mut seen: BTreeMap<usize, (Sight, Instant)> = BTreeMap::new();
    loop {
        std::thread::sleep(PERIOD);
        let mut watched = WATCHED.lock();
        watched.schedules.retain(|schedule| schedule.upgrade().is_some_and(|schedule| schedule.is_on()));
        if watched.schedules.is_empty() {
            watched.runs = false;
            return;
        }
        let all: Vec<_> = watched.schedules.iter().filter_map(Weak::upgrade).collect();
        drop(watched);
        seen.retain(|id, _| all.iter().any(|schedule| schedule.id() == *id));
        for schedule in all {
            look(&schedule, &mut seen);
        }
    }
}

fn look(schedule: &Schedule, seen: &mut BTreeMap<usize, (Sight, Instant)>) {
    let Some(Turns { turns, thread, busy }) = schedule.turns() else { return };
    let account = thread.as_deref().map(account);
    // A kernel may take its time: it has a step limit of its own.
    if busy {
        seen.remove(&schedule.id());
        return;
    }
    let runs = account == Some(Account::Runs);
    let (sleeps, patience) = match account {
        Some(Account::Sleeps(sleeps)) => (Some(sleeps), PATIENCE),
        Some(Account::Runs) => (None, RUN_PATIENCE),
        _ => (None, BLIND_PATIENCE),
    };
    let sight = Sight { turns, sleeps };
    match seen.get(&schedule.id()) {
        Some((before, since)) if *before == sight => {
            if since.elapsed() >= patience {
                schedule.blocked_outside(since.elapsed(), runs);
            }
        }
        _ => {
            seen.insert(schedule.id(), (sight, Instant::now()));
        }
    }
}

#[derive(PartialEq, Eq)]
enum Account {
    Runs,
    /// It sleeps, and this many sleeps ago it was the same one.
    Sleeps(String),
    Unknown,
}

/// What the system says of a thread of this process.
fn account(thread: &str) -> Account {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        return Account::Unknown;
    };
    let value = |key| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    match (value("State:"), value("voluntary_ctxt_switches:")) {
        (Some(state), Some(sleeps)) if state.starts_with(['S', 'D']) => Account::Sleeps(sleeps.to_owned()),
        (Some(_), Some(_)) => Account::Runs,
        _ => Account::Unknown,
    }
}
