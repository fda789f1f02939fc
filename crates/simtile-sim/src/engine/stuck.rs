//! What holds streams up, in words.

use super::run::stream_name;
use super::state::{State, StreamState};
use super::work::{Compare, WaitValue, Work};
use crate::core::Core;
use crate::explore;
use crate::report::{Report, ReportKind};
use simtile_driver::Entry;
use simtile_sync::atomic::Ordering;

/// Most streams that a report tells of.
const MOST_TOLD: usize = 8;

impl Core {
    /// What each stream that has work stands at, for reports; empty if there is none.
    pub(crate) fn held_up(&self) -> String {
        // Whoever holds the lock for ever must not hide the report.
        self.state.try_lock().map_or_else(String::new, |state| held_up(&state))
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
