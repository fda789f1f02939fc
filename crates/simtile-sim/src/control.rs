//! What a test can do to a driver from outside: fail, pause, slow down or hide entries.
//!
//! Rules are looked at before an entry does anything. While there are none the cost is one relaxed load.

use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sync::atomic::{AtomicBool, Ordering};
use simtile_sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The rules in force.
#[derive(Default)]
pub(crate) struct Control {
    active: AtomicBool,
    rules: Mutex<Rules>,
}

#[derive(Default)]
struct Rules {
    masked: Vec<Entry>,
    fails: Vec<FailRule>,
    pauses: Vec<PauseRule>,
    slow: Vec<(Option<Entry>, Duration)>,
}

struct FailRule {
    /// `None`: any entry.
    entry: Option<Entry>,
    /// Matching calls left until the one that fails, which is number 1.
    left: u64,
    code: CUresult,
    lose_contexts: bool,
}

struct PauseRule {
    entry: Entry,
    left: u64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<PauseState>,
    changed: Condvar,
}

#[derive(Default)]
struct PauseState {
    reached: bool,
    released: bool,
}

/// What a call must do before it starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Fail(CUresult),
    /// Fail, and from now on every call on every context fails so.
    Lose(CUresult),
}

impl Control {
    #[inline]
    pub(crate) fn before(&self, entry: Entry) -> Verdict {
        if self.active.load(Ordering::Relaxed) { self.consult(entry) } else { Verdict::Go }
    }

    #[cold]
    fn consult(&self, entry: Entry) -> Verdict {
        let mut verdict = Verdict::Go;
        let mut delay = Duration::ZERO;
        let mut pause = None;
        {
            let mut rules = self.rules.lock();
            if rules.masked.contains(&entry) {
                return Verdict::Fail(CUresult::SIMTILE_MISSING_ENTRY);
            }
            rules.fails.retain_mut(|rule| {
                if rule.entry.is_some_and(|e| e != entry) {
                    return true;
                }
                rule.left -= 1;
                if rule.left > 0 {
                    return true;
                }
                if verdict == Verdict::Go {
                    verdict =
                        if rule.lose_contexts { Verdict::Lose(rule.code) } else { Verdict::Fail(rule.code) };
                }
                false
            });
            for (slow, by) in &rules.slow {
                if slow.is_none_or(|e| e == entry) {
                    delay += *by;
                }
            }
            rules.pauses.retain_mut(|rule| {
                if rule.entry != entry {
                    return true;
                }
                rule.left -= 1;
                if rule.left > 0 {
                    return true;
                }
                pause = Some(rule.shared.clone());
                false
            });
            self.update(&rules);
        }
        if !delay.is_zero() {
            simtile_sync::time::sleep(delay);
        }
        if let Some(pause) = pause {
            let mut state = pause.state.lock();
            state.reached = true;
            pause.changed.notify_all();
            while !state.released {
                pause.changed.wait(&mut state);
            }
        }
        verdict
    }

    fn update(&self, rules: &Rules) {
        let any = !(rules.masked.is_empty()
            && rules.fails.is_empty()
            && rules.pauses.is_empty()
            && rules.slow.is_empty());
        self.active.store(any, Ordering::Relaxed);
    }

    pub(crate) fn mask(&self, entries: &[Entry]) {
        let mut rules = self.rules.lock();
        rules.masked = entries.to_vec();
        self.update(&rules);
    }

    pub(crate) fn fail(&self, entry: Option<Entry>, nth: u64, code: CUresult, lose_contexts: bool) {
        let mut rules = self.rules.lock();
        rules.fails.push(FailRule { entry, left: nth.max(1), code, lose_contexts });
        self.update(&rules);
    }

    pub(crate) fn slow(&self, entry: Option<Entry>, by: Duration) {
        let mut rules = self.rules.lock();
        rules.slow.push((entry, by));
        self.update(&rules);
    }

    pub(crate) fn pause(&self, entry: Entry, nth: u64) -> Pause {
        let shared = Arc::new(Shared::default());
        let mut rules = self.rules.lock();
        rules.pauses.push(PauseRule { entry, left: nth.max(1), shared: shared.clone() });
        self.update(&rules);
        Pause { shared }
    }

    /// Takes every rule away and lets paused threads go.
    pub(crate) fn clear(&self) {
        let mut rules = self.rules.lock();
        for rule in rules.pauses.drain(..) {
            rule.shared.release();
        }
        *rules = Rules::default();
        self.update(&rules);
    }
}

impl Shared {
    fn release(&self) {
        self.state.lock().released = true;
        self.changed.notify_all();
    }
}

/// A pause point: one call of an entry stops before it does anything, until released.
///
/// Dropping it releases the thread, or takes the point away if no thread came.
pub struct Pause {
    shared: Arc<Shared>,
}

impl Pause {
    /// Waits until a thread has stopped here, at most `limit`. Returns whether one has.
    pub fn wait_reached(&self, limit: Duration) -> bool {
        let end = simtile_sync::time::now() + limit;
        let mut state = self.shared.state.lock();
        while !state.reached {
            let left = end.saturating_sub(simtile_sync::time::now());
            if left.is_zero() {
                return false;
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Whether a thread has stopped here.
    pub fn is_reached(&self) -> bool {
        self.shared.state.lock().reached
    }

    /// Lets the thread go on.
    pub fn release(&self) {
        self.shared.release();
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.shared.release();
    }
}
