//! What to do about conflicting work on other streams, and the counts of what was done.
//!
//! By default the runtime orders: a submission that conflicts with unfinished work of another stream makes its own
//! stream wait for it. Each such wait is counted by the two streams, so that a program can see where its streams
//! meet ([`Context::inserted_waits`]).

use crate::context::Shared;
use crate::stream::mode_name;
use crate::{Context, Stream};
use core::fmt;
use simtile_hazard::{AxisId, WaitNote};
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU8, Ordering};
use std::collections::{HashMap, VecDeque};

/// What a stream does about conflicting work of other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// Waits for it.
    #[default]
    Order,
    /// Refuses with [`StreamError::Conflict`](crate::StreamError::Conflict). Never for work that has finished.
    Reject,
    /// Waits for it, and keeps a line about it for [`Context::take_wait_reports`].
    OrderAndReport,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicPolicy(AtomicU8);

impl Policy {
    pub(crate) fn hazard(self) -> simtile_hazard::Policy {
        match self {
            Self::Order => simtile_hazard::Policy::Order,
            Self::Reject => simtile_hazard::Policy::Reject,
            Self::OrderAndReport => simtile_hazard::Policy::OrderAndReport,
        }
    }
}

impl AtomicPolicy {
    #[inline]
    fn get(&self) -> Policy {
        match self.0.load(Ordering::Relaxed) {
            1 => Policy::Reject,
            2 => Policy::OrderAndReport,
            _ => Policy::Order,
        }
    }

    fn set(&self, policy: Policy) {
        let number = match policy {
            Policy::Order => 0,
            Policy::Reject => 1,
            Policy::OrderAndReport => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Stream {
    /// What this stream does about conflicting work of other streams.
    pub fn policy(&self) -> Policy {
        self.policy.get()
    }

    /// Sets [`Stream::policy`], for submissions from here on.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.set(policy);
    }

    #[inline]
    pub(crate) fn hazard_policy(&self) -> simtile_hazard::Policy {
        self.policy.get().hazard()
    }
}

/// Waits that were inserted between two streams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InsertedWaits {
    /// The stream that was followed.
    pub leader: String,
    /// The stream that was made to wait.
    pub follower: String,
    /// How often.
    pub count: u64,
}

/// Lines that are kept.
const REPORTS: usize = 256;
/// Pairs that are counted one by one; further ones are counted together.
const PAIRS: usize = 4096;

/// Counts and reports of a context.
#[derive(Default)]
pub(crate) struct WaitLog {
    pairs: Mutex<HashMap<(AxisId, AxisId), u64>>,
    others: simtile_sync::atomic::AtomicU64,
    reports: Mutex<VecDeque<String>>,
}

impl Shared {
    /// Counts the waits of a submission.
    #[cold]
    pub(crate) fn note_waits(
        &self,
        stream: &Stream,
        follower: AxisId,
        waits: &[WaitNote],
        policy: simtile_hazard::Policy,
    ) {
        let mut pairs = self.waits.pairs.lock();
        for wait in waits {
            let full = pairs.len() >= PAIRS;
            match pairs.get_mut(&(wait.after.axis, follower)) {
                Some(count) => *count += 1,
                None if full => {
                    self.waits.others.fetch_add(1, Ordering::Relaxed);
                }
                None => {
                    pairs.insert((wait.after.axis, follower), 1);
                }
            }
        }
        drop(pairs);
        if policy == simtile_hazard::Policy::OrderAndReport {
            for wait in waits {
                let (ours, theirs) = (mode_name(wait.mode), mode_name(wait.their_mode));
                let (region, leader) = (self.region_name(wait.region), self.names.of(wait.after.axis));
                let line = format!("{stream} waits for {leader}: a {ours} of {region} after its {theirs}");
                let mut reports = self.waits.reports.lock();
                if reports.len() == REPORTS {
                    reports.pop_front();
                }
                reports.push_back(line);
            }
        }
    }

    /// The name of the allocation behind a region.
    pub(crate) fn region_name(&self, region: simtile_hazard::RegionId) -> String {
        let all = self.memory.live.all();
        let found = all.iter().find(|a| a.region().is_some_and(|known| known.id() == region));
        found.map_or_else(|| "memory that was dropped".into(), |allocation| allocation.name())
    }
}

impl Context {
    /// The waits that were inserted between streams of this context so far, most frequent first.
    pub fn inserted_waits(&self) -> Vec<InsertedWaits> {
        let shared = self.shared();
        let pairs: Vec<_> = shared.waits.pairs.lock().iter().map(|(&pair, &count)| (pair, count)).collect();
        let mut list: Vec<InsertedWaits> = pairs
            .into_iter()
            .map(|((leader, follower), count)| InsertedWaits {
                leader: shared.names.of(leader),
                follower: shared.names.of(follower),
                count,
            })
            .collect();
        let others = shared.waits.others.load(Ordering::Relaxed);
        if others > 0 {
            let (leader, follower) = ("other streams".into(), "other streams".into());
            list.push(InsertedWaits { leader, follower, count: others });
        }
        list.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.leader.cmp(&b.leader)));
        list
    }

    /// Takes the lines about inserted waits of streams with [`Policy::OrderAndReport`], oldest first. At most 256 are
    /// kept.
    pub fn take_wait_reports(&self) -> Vec<String> {
        self.shared().waits.reports.lock().drain(..).collect()
    }
}

impl fmt::Display for InsertedWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waited for {} {} times", self.follower, self.leader, self.count)
    }
}

impl Context {
    /// How often each rule of access tracking fired in this CUDA context, by name. For tests and pictures.
    pub fn tracking_rules(&self) -> Vec<(String, u64)> {
        let stats = self.tracker().stats();
        simtile_hazard::Rule::ALL.iter().map(|&rule| (format!("{rule:?}"), stats.get(rule))).collect()
    }
}
