//! Whom to let run.

use super::Random;
use std::fmt;

/// How device work relates to host threads and to other device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Device work runs only when no host thread can: everything is in flight as long as possible.
    Late,
    /// Device work runs as soon as it can.
    Early,
    /// Anybody who can run may run next.
    Interleaved,
    /// As `Interleaved`, but one participant, chosen by the seed anew from time to time, gets no turn while
    /// another can run.
    Starving,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "late",
            Self::Early => "early",
            Self::Interleaved => "interleaved",
            Self::Starving => "starving",
        })
    }
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Interleaved, Self::Late, Self::Starving, Self::Early];

    /// The strategy that is displayed so.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.to_string() == name)
    }

    /// The strategy of a seed, so that a range of seeds covers all.
    pub const fn of_seed(seed: u64) -> Self {
        match seed % 4 {
            0 => Self::Interleaved,
            1 => Self::Late,
            2 => Self::Starving,
            _ => Self::Early,
        }
    }

    /// Chooses among runnable participants, given as (index, whether it is a device worker).
    pub(super) fn choose(self, runnable: &[(usize, bool)], starved: usize, random: &mut Random) -> usize {
        let among: Vec<usize> = match self {
            Self::Late => prefer(runnable, |device| !device),
            Self::Early => prefer(runnable, |device| device),
            Self::Interleaved => runnable.iter().map(|&(index, _)| index).collect(),
            Self::Starving => {
                let fed: Vec<usize> =
                    runnable.iter().map(|&(index, _)| index).filter(|&index| index != starved).collect();
                if fed.is_empty() { vec![starved] } else { fed }
            }
        };
        among[random.below(among.len())]
    }
}

/// Those of the preferred class, or all if there is none.
fn prefer(runnable: &[(usize, bool)], preferred: impl Fn(bool) -> bool) -> Vec<usize> {
    let chosen: Vec<usize> =
        runnable.iter().filter(|&&(_, device)| preferred(device)).map(|&(index, _)| index).collect();
    if chosen.is_empty() { runnable.iter().map(|&(index, _)| index).collect() } else { chosen }
}
