//! What holds streams up, in words, and when nobody can ever let them go on.
//!
//! In an exploration the schedule knows that nobody can go on. In the other modes a host thread that waits looks now and
//! then whether what it waits for can still come. It cannot if nothing runs, nothing is ready, and the first
//! work of every stream is
//!
//! * at a wait-value on memory that only devices and driver calls reach, while every thread that has ever called this driver
//!   and still lives waits inside a call, for [`PATIENCE`] already, or
//! * behind one that is.
//!
//! Whatever else may still come (a host function that runs, a value in host memory, a gate that somebody holds, a thread that
//! makes no calls) is waited for longer: until nothing at all has happened for [`SimConfig::patience`](crate::SimConfig), no call
//! of any thread and no work that started or ended, and no kernel or copy runs. Kernels end by their step limit.
//!
//! Then the contexts are lost with `CUDA_ERROR_LAUNCH_TIMEOUT`, as for a kernel that does not end, and a report says what
//! holds which stream up. A host function that never comes back keeps its thread; nobody waits for it any more.

use super::run::stream_name;
use super::state::{State, StreamState};
use super::work::{Compare, WaitValue, Work};
use crate::core::{Core, Res};
use crate::explore;
use crate::memory::View;
use crate::report::{Report, ReportKind};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sync::MutexGuard;
use simtile_sync::atomic::Ordering;
use std::time::Duration;

/// Most streams that a report tells of.
const MOST_TOLD: usize = 8;
/// How often a waiting host thread looks.
const PERIOD: Duration = Duration::from_millis(500);
/// How long all threads must have been waiting for a value before nobody is expected to write it.
const PATIENCE: u32 = 6;

/// What a host thread that waits has seen of the driver.
#[derive(Default)]
pub(crate) struct Looks {
    /// How often in a row there could be no progress if no new thread came.
    certain: u32,
    /// How often in a row nothing had happened, and at what.
    quiet: u32,
    seen: (u64, u64),
}

/// Whether somebody can let the streams go on.
enum Hope {
    /// Somebody will.
    Good,
    /// Only somebody that the driver does not know of.
    Little,
    /// Nobody.
    None,
}

impl Core {
    /// What each stream that has work stands at, for reports; empty if there is none.
    pub(crate) fn held_up(&self) -> String {
        // Whoever holds the lock for ever must not hide the report.
        self.state.try_lock().map_or_else(String::new, |state| held_up(&state))
    }

    /// Waits for progress, and looks now and then whether there can be any.
    pub(super) fn await_progress(&self, state: &mut MutexGuard<'_, State>, looks: &mut Looks) -> Res {
        if explore::current().is_some() {
            // The schedule looks.
            self.changed.wait(state);
            return Ok(());
        }
        state.waiting += 1;
        let timed_out = self.changed.wait_for(state, PERIOD);
        state.waiting -= 1;
        let hope = if timed_out { self.hope(state) } else { Hope::Good };
        looks.certain = if matches!(hope, Hope::None) { looks.certain + 1 } else { 0 };
        let now = (state.steps, self.calls.load(Ordering::Relaxed));
        let quiet = !matches!(hope, Hope::Good) && looks.seen == now;
        looks.quiet = if quiet { looks.quiet + 1 } else { 0 };
        looks.seen = now;
        let periods = u128::from(self.config.patience) * 1000 / PERIOD.as_millis();
        let given_up = periods > 0 && u128::from(looks.quiet) >= periods;
        if looks.certain >= PATIENCE || given_up {
            let text = format!("deadlock: nobody can let the streams go on{}", held_up(state));
            if std::mem::replace(&mut state.given_up, true) {
                return Err(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
            }
            self.report(Report::new(ReportKind::Deadlock, text));
            let contexts: Vec<u64> = state.contexts.keys().copied().collect();
            contexts
                .into_iter()
                .for_each(|context| self.lose(state, context, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
            return Err(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
        }
        Ok(())
    }

    /// Who may let the streams go on.
    fn hope(&self, state: &State) -> Hope {
        // In `fifo` work may be ready and wait for a host function, which gives way after a moment.
        if state.active.is_empty()
            || state.running.iter().any(|running| !running.host)
            || self.has_ready(state)
        {
            return Hope::Good;
        }
        if !state.running.is_empty() {
            return if state.given_up { Hope::None } else { Hope::Little };
        }
        let mut values = 0;
        for uid in &state.active {
            let Some(item) = state.streams.get(uid).and_then(|stream| stream.items.front()) else { continue };
            match &item.work {
                // Whoever has its handle may open it.
                Work::Gate(_) => return Hope::Little,
                Work::WaitValue(wait) => {
                    let found = self.space.locate_in(View::Execution, wait.address, 4);
                    if found.map_or(true, |allocation| allocation.kind.is_host()) {
                        return Hope::Little;
                    }
                    values += 1;
                }
                // Behind one of those, or not started for another reason that will pass.
                _ => {}
            }
        }
        // The caller waits too, and is not counted while it looks.
        if values > 0 && state.waiting + 1 >= self.callers.lock().len() { Hope::None } else { Hope::Little }
    }

    /// Reports, once, a thread outside of the exploration that this driver belongs to.
    pub(crate) fn tell_outsider(&self, entry: Entry) {
        let Some(home) = self.home.as_ref().and_then(std::sync::Weak::upgrade) else { return };
        let inside = explore::current().is_some_and(|here| here.id() == home.id());
        if inside || !home.is_on() || self.outsider_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let thread = std::thread::current();
        let text = format!(
            "thread {} calls {} of a driver that is explored, but takes no part in the exploration: when it runs is decided by \
             the system, not by the seed",
            thread.name().map_or("without a name".to_owned(), |name| format!("'{name}'")),
            entry.name()
        );
        let hint = "start threads with simtile::testing::spawn (simtile_sync::thread::spawn)";
        self.report(Report::new(ReportKind::Outsider, text).with_hint(hint));
    }
}

fn held_up(state: &State) -> String {
    let mut text = String::new();
    let streams = state.active.iter().filter_map(|uid| Some((*uid, state.streams.get(uid)?)));
    for (uid, stream) in streams.take(MOST_TOLD) {
        let separator = if text.is_empty() { ". Work is left: " } else { "; " };
        text += &format!("{separator}stream {} {}", stream_name(stream, uid), standing(state, uid, stream));
    }
    text
}

fn standing(state: &State, uid: u64, stream: &StreamState) -> String {
    let Some(item) = stream.items.front() else { return "is empty".to_owned() };
    let what = item.work.describe();
    if stream.running {
        // Their times are the engine's: how long it has been so tells a slow one from one that is stuck.
        let since = state.running.iter().find(|running| running.stream == uid).map(|running| running.since);
        let long = since.map(|since| simtile_sync::time::now().saturating_sub(since).as_secs()).unwrap_or(0);
        let long = if long > 0 { format!(" for {long} s") } else { String::new() };
        return format!("runs {what} (#{}){long}", item.seq);
    }
    match &item.work {
        Work::Gate(_) => "is at a closed gate".to_owned(),
        Work::Wait(_) | Work::After(_) => {
            let origin = item.record.as_ref().map(|record| record.origin.0);
            let other = origin.and_then(|uid| Some(stream_name(state.streams.get(&uid)?, uid)));
            format!("is at an {what} for stream {}", other.as_deref().unwrap_or("that is gone"))
        }
        Work::WaitValue(wait) => format!("waits until the value at {:#x} {}", wait.address, condition(wait)),
        _ => format!("is before {what}"),
    }
}

fn condition(wait: &WaitValue) -> String {
    let value = wait.value;
    match wait.compare {
        Compare::Geq => format!("is {value} or more"),
        Compare::Eq => format!("is {value}"),
        Compare::And => format!("has a bit of {value:#x}"),
        Compare::Nor => format!("lacks a bit of both itself and {value:#x}"),
    }
}
