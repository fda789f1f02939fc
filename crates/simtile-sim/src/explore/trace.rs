//! What happened, in order.

use super::Recording;
use super::choices::MARK;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// The steps of one exploration as text, a line a step. Holds no address and no real time, so two runs
/// of one seed can be compared byte for byte. The first line is the recording that repeats it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    text: String,
    steps: u64,
}

impl Trace {
    pub(super) fn step(&mut self, now: Duration, who: &str, what: fmt::Arguments<'_>) {
        self.steps += 1;
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{:>9} {who}: {what}", now.as_micros());
    }

    /// The finished trace, with its recording.
    pub(super) fn recorded(mut self, recording: &Recording) -> Self {
        self.text.insert_str(0, &format!("{MARK}{recording}\n"));
        self
    }

    /// All lines: the recording (`schedule 7:late:…`), then virtual microseconds, participant, step.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
