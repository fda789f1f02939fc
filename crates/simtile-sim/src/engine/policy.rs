//! The scheduler's choice: which ready piece of work starts next, and when.
//!
//! Everything that differs between modes is behind [`Policy`]. The engine asks it, under its lock,
//! whenever a worker has nothing to do.

use crate::config::{Mode, SimConfig};
use crate::explore::{self, Choices, Recording};
use std::time::Duration;

/// A piece of work at the head of its stream that may start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// The stream's uid.
    pub(crate) stream: u64,
    /// Submission number.
    pub(crate) seq: u64,
    /// Stream priority; lower numbers first.
    pub(crate) priority: i32,
    /// Done in no time, under the lock.
    pub(crate) instant: bool,
}

/// A piece of work that runs now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) stream: u64,
    /// It is a host function.
    pub(crate) host: bool,
    pub(crate) since: Duration,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Start this candidate.
    Start(usize),
    /// Nothing now; ask again when something changed, or after this time.
    Wait(Option<Duration>),
}

/// Decides the order of work.
pub(crate) trait Policy: Send {
    /// Chooses among `ready`, which is not empty.
    fn choose(&mut self, ready: &[Candidate], running: &[Running], now: Duration) -> Choice;

    /// The choices so far, if somebody may want to repeat them.
    fn recording(&self) -> Option<Recording> {
        None
    }
}

/// The policy of a mode.
pub(crate) fn of(config: &SimConfig) -> Box<dyn Policy> {
    match config.mode {
        Mode::Fast => Box::new(Fast),
        Mode::Fifo => Box::new(Fifo),
        Mode::Explore => Box::new(Explore { choices: Choices::of(config.seed, config.replay.as_ref()) }),
    }
}

/// Everything that may run runs; priorities first.
struct Fast;

impl Policy for Fast {
    fn choose(&mut self, ready: &[Candidate], _: &[Running], _: Duration) -> Choice {
        let best = ready.iter().enumerate().min_by_key(|(_, c)| (!c.instant, c.priority, c.seq));
        best.map_or(Choice::Wait(None), |(at, _)| Choice::Start(at))
    }
}

/// One at a time, in the order of submission. Only a host function that takes its time (it may wait for
/// the host) lets others pass, because the device would not stand still for it either.
struct Fifo;

/// How long a host function holds the others back.
const PATIENCE: Duration = Duration::from_millis(20);

impl Policy for Fifo {
    fn choose(&mut self, ready: &[Candidate], running: &[Running], now: Duration) -> Choice {
        for other in running {
            if !other.host {
                return Choice::Wait(None);
            }
            let left = (other.since + PATIENCE).saturating_sub(now);
            if !left.is_zero() {
                return Choice::Wait(Some(left));
            }
        }
        let first = ready.iter().enumerate().min_by_key(|(_, c)| c.seq);
        first.map_or(Choice::Wait(None), |(at, _)| Choice::Start(at))
    }
}

/// Any ready work, as the seed says. When work runs at all is decided by whose turn it is: workers are
/// participants of the exploration.
struct Explore {
    /// For drivers that are used outside of an exploration.
    choices: Choices,
}

impl Policy for Explore {
    fn choose(&mut self, ready: &[Candidate], _: &[Running], _: Duration) -> Choice {
        let at = match explore::current() {
            Some(schedule) => schedule.choose(ready.len()),
            None => self.choices.pick(ready.len()),
        };
        Choice::Start(at)
    }

    fn recording(&self) -> Option<Recording> {
        Some(self.choices.recording().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_starts_in_order_of_submission_and_only_slow_host_functions_are_passed() {
        let ready = [
            Candidate { stream: 1, seq: 9, priority: -5, instant: false },
            Candidate { stream: 2, seq: 4, priority: 0, instant: false },
        ];
        let now = Duration::from_secs(1);
        assert_eq!(Fifo.choose(&ready, &[], now), Choice::Start(1));
        assert_eq!(Fast.choose(&ready, &[], now), Choice::Start(0));
        let kernel = Running { stream: 3, host: false, since: Duration::ZERO };
        assert_eq!(Fifo.choose(&ready, &[kernel], now), Choice::Wait(None));
        let slow = Running { stream: 3, host: true, since: Duration::ZERO };
        assert_eq!(Fifo.choose(&ready, &[slow], now), Choice::Start(1));
        let fresh = Running { since: now, ..slow };
        assert_eq!(Fifo.choose(&ready, &[fresh], now), Choice::Wait(Some(PATIENCE)));
    }

    #[test]
    fn a_recording_repeats_the_choices_of_a_seed() {
        let ready: Vec<_> =
            (0..7).map(|i| Candidate { stream: i, seq: i, priority: 0, instant: false }).collect();
        let run = |config: &SimConfig| {
            let mut policy = of(config);
            let choose = |n: usize| policy.choose(&ready[..n], &[], Duration::ZERO);
            let choices: Vec<Choice> = [7, 3, 1, 5, 2].into_iter().cycle().take(60).map(choose).collect();
            (choices, policy.recording())
        };
        let (choices, recording) = run(&SimConfig { mode: Mode::Explore, seed: 11, ..SimConfig::default() });
        let again = SimConfig { mode: Mode::Explore, replay: recording.clone(), ..SimConfig::default() };
        assert_eq!(run(&again), (choices, recording));
        assert_eq!(of(&SimConfig::default()).recording(), None);
    }
}
