//! Who goes on: decisions from a seed, or from a recording of an earlier run.
//!
//! A decision has a *plain* answer that needs no record: the participant that runs goes on if it can, else the first
//! that can; of several pieces of device work the oldest stream's. A [`Recording`] holds only the decisions that differ, by
//! their number, so it stays short, and leaving some of them out gives a calmer schedule of the same program.

use super::{Random, Strategy};
use std::collections::BTreeMap;
use std::fmt;

/// After so many decisions that it could have won a participant is given its turn, whatever the strategy: a host thread
/// that asks again and again whether the device has finished must not keep the device from it.
const PATIENCE: u32 = 2000;
use std::str::FromStr;

/// The decisions of one exploration, enough to repeat it.
///
/// As text: `7:late:12.1+40.0` (seed, strategy, decision number and answer where it is not the plain one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The seed of the run, for what else a program derives from it.
    pub seed: u64,
    /// The strategy that found it.
    pub strategy: Strategy,
    /// Decisions that are not the plain ones: number, answer.
    pub(super) switches: BTreeMap<u32, u32>,
}

impl Recording {
    /// A recording with plain decisions only.
    pub const fn plain(seed: u64, strategy: Strategy) -> Self {
        Self { seed, strategy, switches: BTreeMap::new() }
    }

    /// How many decisions are not the plain ones.
    pub fn switches(&self) -> usize {
        self.switches.len()
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.seed, self.strategy)?;
        for (i, (number, answer)) in self.switches.iter().enumerate() {
            let plus = if i == 0 { "" } else { "+" };
            write!(f, "{plus}{number}.{answer}")?;
        }
        Ok(())
    }
}

/// Text that is no [`Recording`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecording {
    /// The part that is not understood.
    pub part: String,
}

impl fmt::Display for BadRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no part of a schedule such as 7:late:12.1+40.0", self.part)
    }
}

impl std::error::Error for BadRecording {}

/// How a trace marks its recording.
pub(super) const MARK: &str = "schedule ";

impl FromStr for Recording {
    type Err = BadRecording;

    /// Reads a recording, or the line of one in the text of a [`Trace`](super::Trace).
    fn from_str(text: &str) -> Result<Self, BadRecording> {
        let line = text.lines().find_map(|line| line.strip_prefix(MARK)).unwrap_or(text).trim();
        let bad = |part: &str| BadRecording { part: part.chars().take(80).collect() };
        let mut parts = line.splitn(3, ':');
        let mut part = || parts.next().ok_or_else(|| bad(line));
        let (seed, strategy, switches) = (part()?, part()?, part()?);
        let seed = seed.parse().map_err(|_| bad(seed))?;
        let strategy = Strategy::by_name(strategy).ok_or_else(|| bad(strategy))?;
        let switch = |text: &str| {
            let (number, answer) = text.split_once('.')?;
            Some((number.parse().ok()?, answer.parse().ok()?))
        };
        let switches = switches.split('+').filter(|text| !text.is_empty());
        let switches = switches.map(|text| switch(text).ok_or_else(|| bad(text)));
        Ok(Self { seed, strategy, switches: switches.collect::<Result<_, _>>()? })
    }
}

/// Where answers come from.
enum Source {
    Seed { random: Random, starved: usize },
    Recording(BTreeMap<u32, u32>),
}

/// Answers decisions and records them.
pub(crate) struct Choices {
    source: Source,
    recorded: Recording,
    /// Decisions so far.
    count: u32,
    /// How many decisions in a row each participant could have won and did not.
    waits: Vec<u32>,
}

impl Choices {
    pub(super) fn of_seed(seed: u64, strategy: Strategy) -> Self {
        let source = Source::Seed { random: Random::new(seed), starved: usize::MAX };
        Self { source, recorded: Recording::plain(seed, strategy), count: 0, waits: Vec::new() }
    }

    pub(super) fn of_recording(recording: &Recording) -> Self {
        let source = Source::Recording(recording.switches.clone());
        Self {
            source,
            recorded: Recording::plain(recording.seed, recording.strategy),
            count: 0,
            waits: Vec::new(),
        }
    }

    /// Those of a recording if there is one, else of a seed.
    pub(crate) fn of(seed: u64, replay: Option<&Recording>) -> Self {
        let seeded = || Self::of_seed(seed, Strategy::Interleaved);
        replay.map_or_else(seeded, Self::of_recording)
    }

    pub(crate) fn recording(&self) -> &Recording {
        &self.recorded
    }

    /// Whose turn it is: one of the runnable participants, given as (index, whether it is a device worker). `current`
    /// has had it so far, and `live` are all that have not ended, in order.
    pub(super) fn turn(&mut self, runnable: &[(usize, bool)], current: usize, live: &[usize]) -> usize {
        let can = |wanted: usize| runnable.iter().any(|&(index, _)| index == wanted);
        let most = live.last().map_or(0, |last| last + 1);
        self.waits.resize(self.waits.len().max(most), 0);
        let longest =
            runnable.iter().map(|&(index, _)| index).max_by_key(|&index| (self.waits[index], !index));
        if let Some(longest) = longest.filter(|&index| self.waits[index] >= PATIENCE) {
            self.won(runnable, longest);
            return longest;
        }
        let plain = if can(current) { current } else { runnable.first().map_or(current, |first| first.0) };
        let strategy = self.recorded.strategy;
        let answer = match &mut self.source {
            Source::Seed { random, starved } => {
                if strategy == Strategy::Starving && random.one_in(16) {
                    *starved = live[random.below(live.len())];
                }
                strategy.choose(runnable, *starved, random)
            }
            Source::Recording(_) if runnable.len() < 2 => plain,
            Source::Recording(switches) => {
                let wanted = switches.get(&self.count).map(|&wanted| wanted as usize);
                wanted.filter(|&wanted| can(wanted)).unwrap_or(plain)
            }
        };
        if runnable.len() > 1 {
            self.record(plain, answer);
        }
        self.won(runnable, answer);
        answer
    }

    fn won(&mut self, runnable: &[(usize, bool)], winner: usize) {
        for &(index, _) in runnable {
            self.waits[index] = if index == winner { 0 } else { self.waits[index] + 1 };
        }
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn pick(&mut self, n: usize) -> usize {
        let answer = match &mut self.source {
            Source::Seed { random, .. } => random.below(n),
            Source::Recording(switches) if n > 1 => {
                switches.get(&self.count).map_or(0, |&wanted| wanted as usize).min(n - 1)
            }
            Source::Recording(_) => 0,
        };
        if n > 1 {
            self.record(0, answer);
        }
        answer
    }

    fn record(&mut self, plain: usize, answer: usize) {
        if plain != answer {
            self.recorded.switches.insert(self.count, answer as u32);
        }
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_and_bad_text_is_named() {
        let recording =
            Recording { switches: [(3, 1), (40, 0)].into(), ..Recording::plain(7, Strategy::Late) };
        assert_eq!(recording.to_string(), "7:late:3.1+40.0");
        assert_eq!(recording.to_string().parse(), Ok(recording.clone()));
        assert_eq!(format!("schedule {recording}\n    12 main: lock\n").parse(), Ok(recording));
        assert_eq!("1:early:".parse(), Ok(Recording::plain(1, Strategy::Early)));
        for (text, part) in [("7", "7"), ("x:late:", "x"), ("7:slow:", "slow"), ("7:late:1.2+3", "3")] {
            assert_eq!(text.parse::<Recording>().unwrap_err().part, part, "{text}");
        }
    }

    #[test]
    fn a_recording_answers_as_the_seed_did() {
        for strategy in Strategy::ALL {
            let (mut first, sizes) = (Choices::of_seed(11, strategy), [2, 3, 1, 5, 4, 2, 2, 3]);
            let ask = |choices: &mut Choices| -> Vec<usize> {
                let mut current = 0;
                let mut answers = Vec::new();
                for n in sizes.iter().cycle().take(200) {
                    let runnable: Vec<_> = (0..*n).map(|i| (i, i % 2 == 1)).collect();
                    current = choices.turn(&runnable, current, &[0, 1, 2, 3, 4, 5]);
                    answers.extend([current, choices.pick(*n)]);
                }
                answers
            };
            let answers = ask(&mut first);
            let mut again = Choices::of_recording(first.recording());
            assert_eq!(ask(&mut again), answers, "{strategy}");
            assert_eq!(again.recording(), first.recording());
        }
    }
}
