//! What holds streams up, in words, and when nobody can ever let them go on.
//!
//! In an exploration the schedule knows that nobody can go on. In the other modes a host thread that waits looks now and
//! then whether what it waits for can still come. It cannot if nothing runs, nothing is ready, and the first
//! work of every stream is
//!
//! * at a gate whose handle is gone without having been opened (it was leaked), or
//! * at a wait-value on memory that only devices and driver calls reach, while every thread that has ever called this driver
//!   and still lives waits inside a call, for [`PATIENCE`] already, or
//! * behind one of those.
//!
//! Then the contexts are lost with `CUDA_ERROR_LAUNCH_TIMEOUT`, as for a kernel that does not end, and a report says what
//! holds which stream up. Whatever else may still come (a host function that runs, a value in host memory, a gate that somebody
//! holds) is waited for without an end, as on the real driver.

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

impl Core {
    /// What each stream that has work stands at, for reports; empty if there is none.
    pub(crate) fn held_up(&self) -> String {
        // Whoever holds the lock for ever must not hide the report.
        self.state.try_lock().map_or_else(String::new, |state| held_up(&state))
    }

    /// Waits for progress, and looks now and then whether there can be any. `looks` counts how often there could be
    /// none if no new thread came.
    pub(super) fn await_progress(&self, state: &mut MutexGuard<'_, State>, looks: &mut u32) -> Res {
        if explore::current().is_some() {
            // The schedule looks.
            self.changed.wait(state);
            return Ok(());
        }
        state.waiting += 1;
        let timed_out = self.changed.wait_for(state, PERIOD);
        state.waiting -= 1;
        *looks = if timed_out && self.is_stuck(state) { *looks + 1 } else { 0 };
        if *looks >= PATIENCE {
            let text = format!("deadlock: nobody can let the streams go on{}", held_up(state));
            self.report(Report::new(ReportKind::Deadlock, text));
            let contexts: Vec<u64> = state.contexts.keys().copied().collect();
            contexts
                .into_iter()
                .for_each(|context| self.lose(state, context, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
            return Err(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
        }
        Ok(())
    }

    /// Whether no thread that has called this driver can let a stream go on.
    fn is_stuck(&self, state: &State) -> bool {
        if state.active.is_empty() || !state.running.is_empty() || self.has_ready(state) {
            return false;
        }
        let mut values = 0;
        for uid in &state.active {
            let Some(item) = state.streams.get(uid).and_then(|stream| stream.items.front()) else { continue };
            match &item.work {
                // Whoever has its handle may open it.
                Work::Gate(_) => return false,
                Work::WaitValue(wait) => {
                    let found = self.space.locate_in(View::Execution, wait.address, 4);
                    if found.map_or(true, |allocation| allocation.kind.is_host()) {
                        return false;
                    }
                    values += 1;
                }
                // Behind one of those, or not started for another reason that will pass.
                _ => {}
            }
        }
        // The caller waits too, and is not counted while it looks.
        values > 0 && state.waiting + 1 >= self.callers.lock().len()
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
        text += &format!("{separator}stream {} {}", stream_name(stream, uid), standing(state, stream));
    }
    text
}

fn standing(state: &State, stream: &StreamState) -> String {
    let Some(item) = stream.items.front() else { return "is empty".to_owned() };
    let what = item.work.describe();
    if stream.running {
        return format!("runs {what}");
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
