//! What can be queued on a stream, as descriptions that can be queued again (graphs replay them).

use super::graph_launch::Branch;
use super::launch::Launch;
use crate::check::VectorClock;
use crate::heap::MemoryWork;
use simtile_driver::sys::CUhostFn;
use simtile_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use simtile_sync::{Arc, Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    /// A kernel launch, everything resolved and checked.
    Launch(Arc<Launch>),
    /// A copy, a memset, or an allocation's or free's place in stream order.
    Memory(MemoryWork),
    /// A host function.
    Host(HostCall),
    /// A record of the event with this uid.
    Record(u64),
    /// A wait for what the event with this uid has last recorded when this is queued.
    Wait(u64),
    /// A wait for the free of memory that this stream is about to use again.
    After(Arc<Record>),
    /// A wait until a value in memory satisfies a condition.
    WaitValue(WaitValue),
    /// A write of 4 or 8 bytes.
    WriteValue { address: u64, value: u64, wide: bool },
    /// A stop until the control handle opens it.
    Gate(Arc<GateState>),
    /// Conditions of a graph's launch get their defaults.
    Conditions(Arc<[(u64, Option<u32>)]>),
    /// A conditional node of a graph, and how many rounds of a loop it has done.
    Branch(Arc<Branch>, u64),
}

impl Work {
    /// Whether it takes a place in the driver's bounded queues.
    pub(crate) fn counts(&self) -> bool {
        match self {
            Self::Launch(_) | Self::WriteValue { .. } => true,
            Self::Memory(work) => work.counts(),
            Self::Host(_)
            | Self::Record(_)
            | Self::Wait(_)
            | Self::After(_)
            | Self::WaitValue(_)
            | Self::Conditions(_)
            | Self::Branch(..)
            | Self::Gate(_) => false,
        }
    }

    /// What it is, for traces.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Launch(launch) => launch.name(),
            Self::Memory(work) => work.name(),
            Self::Host(_) => "host function",
            Self::Record(_) => "event record",
            Self::Wait(_) => "event wait",
            Self::After(_) => "memory wait",
            Self::WaitValue(_) => "wait value",
            Self::WriteValue { .. } => "write value",
            Self::Gate(_) => "gate",
            Self::Conditions(_) => "defaults of conditions",
            Self::Branch(..) => "conditional node",
        }
    }

    /// What it is, for reports.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Launch(launch) => format!("kernel {}", launch.name()),
            other => other.name().to_owned(),
        }
    }

    /// Whether it is done in no time, under the engine's lock.
    pub(crate) fn is_instant(&self) -> bool {
        match self {
            Self::Record(_)
            | Self::Wait(_)
            | Self::After(_)
            | Self::WaitValue(_)
            | Self::WriteValue { .. }
            | Self::Conditions(_)
            | Self::Branch(..)
            | Self::Gate(_) => true,
            Self::Memory(work) => work.is_instant(),
            Self::Launch(_) | Self::Host(_) => false,
        }
    }
}

/// A host function with its argument.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: CUhostFn,
    /// Address of the user's data.
    pub(crate) data: usize,
}

/// How a wait-value compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Geq,
    Eq,
    And,
    Nor,
}

/// A wait for a value in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitValue {
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) wide: bool,
    pub(crate) compare: Compare,
}

impl WaitValue {
    /// Whether `found` satisfies the condition.
    pub(crate) fn holds(&self, found: u64) -> bool {
        let (found, value) =
            if self.wide { (found, self.value) } else { (found & 0xffff_ffff, self.value & 0xffff_ffff) };
        match self.compare {
            // Cyclic, as CUDA defines it: (int)(found - value) >= 0.
            Compare::Geq if self.wide => found.wrapping_sub(value) as i64 >= 0,
            Compare::Geq => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
            Compare::Eq => found == value,
            Compare::And => found & value != 0,
            Compare::Nor if self.wide => !(found | value) != 0,
            Compare::Nor => !(found as u32 | value as u32) != 0,
        }
    }
}

/// What a stream is ordered after by events: for other streams, by uid, the number of the last such work.
pub(crate) type Frontier = Arc<BTreeMap<u64, u64>>;

/// One record of an event: what queries and waits refer to. A later record makes a new one.
pub(crate) struct Record {
    /// Uid of its stream and number of the work that it follows there.
    pub(crate) origin: (u64, u64),
    /// What that stream is ordered after.
    pub(crate) frontier: Frontier,
    /// 0 pending, 1 done, 2 given up because its context was lost.
    state: AtomicU32,
    nanos: AtomicU64,
    /// What the stream knew when this completed.
    known: OnceLock<VectorClock>,
}

impl Record {
    pub(crate) fn pending(origin: (u64, u64), frontier: Frontier) -> Arc<Self> {
        let (state, nanos) = (AtomicU32::new(0), AtomicU64::new(0));
        Arc::new(Self { origin, frontier, state, nanos, known: OnceLock::new() })
    }

    pub(crate) fn complete(&self, now: Duration, known: VectorClock) {
        let _ = self.known.set(known);
        self.nanos.store(now.as_nanos() as u64, Ordering::Relaxed);
        self.state.store(1, Ordering::Release);
    }

    pub(crate) fn abandon(&self) {
        self.state.store(2, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    /// What was ordered before it, once it completed.
    pub(crate) fn known(&self) -> Option<&VectorClock> {
        self.known.get()
    }

    /// When it completed.
    pub(crate) fn time(&self) -> Option<Duration> {
        (self.state.load(Ordering::Acquire) == 1)
            .then(|| Duration::from_nanos(self.nanos.load(Ordering::Relaxed)))
    }
}

/// Shared by a gate in a stream and its control handle.
#[derive(Default)]
pub(crate) struct GateState {
    open: AtomicBool,
    reached: Mutex<bool>,
    changed: Condvar,
}

impl GateState {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// The stream has got here.
    pub(crate) fn reach(&self) {
        let mut reached = self.reached.lock();
        if !*reached {
            *reached = true;
            self.changed.notify_all();
        }
    }

    pub(crate) fn wait_reached(&self, limit: Duration) -> bool {
        let end = simtile_sync::time::now() + limit;
        let mut reached = self.reached.lock();
        while !*reached {
            let left = end.saturating_sub(simtile_sync::time::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut reached, left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_cudas() {
        let wait = |compare, value, wide| WaitValue { address: 0, value, wide, compare };
        assert!(wait(Compare::Geq, 5, false).holds(5));
        assert!(!wait(Compare::Geq, 5, false).holds(4));
        // Cyclic: 1 comes after 2^32-1.
        assert!(wait(Compare::Geq, 0xffff_ffff, false).holds(1));
        assert!(!wait(Compare::Geq, 0xffff_ffff, true).holds(1));
        assert!(wait(Compare::Eq, 7, true).holds(7));
        assert!(wait(Compare::And, 6, false).holds(2));
        assert!(!wait(Compare::And, 6, false).holds(1));
        assert!(wait(Compare::Nor, 0xffff_fff0, false).holds(0));
        assert!(!wait(Compare::Nor, 0xffff_fff0, false).holds(0xf));
    }
}
