//! What a context holds: pictures for people, and waiting for what was given back.

use super::Context;
use core::fmt;
use core::time::Duration;
use simtile_driver::sys::CUdeviceptr;

/// Pause between looks of a drain.
const PAUSE: Duration = Duration::from_micros(200);

/// One allocation in a [`Snapshot`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AllocationInfo {
    /// Number and label.
    pub name: String,
    /// First byte.
    pub address: CUdeviceptr,
    /// Bytes allocated.
    pub bytes: usize,
    /// Time since it was made.
    pub age: Duration,
    /// Streams whose work on it is not known to have finished.
    pub streams: Vec<String>,
}

/// What a context holds at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Allocations that handles own, oldest first.
    pub allocations: Vec<AllocationInfo>,
    /// Bytes that were dropped and wait for their last use.
    pub reclaiming_bytes: u64,
    /// Bytes that are kept for ever.
    pub quarantined_bytes: u64,
}

/// What [`Context::drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Things retired before the call that still wait: memory, modules, handles.
    pub waiting: usize,
    /// Allocations that can never be given back.
    pub quarantined: u64,
}

impl Drained {
    /// Whether everything was given back that can be.
    pub fn is_complete(self) -> bool {
        self.waiting == 0
    }
}

impl Context {
    /// Lists what the handles of this CUDA context hold.
    pub fn snapshot(&self) -> Snapshot {
        let (shared, now) = (self.shared(), simtile_sync::time::now());
        let all = shared.memory.live.all();
        let allocations = all.iter().map(|allocation| {
            let mut streams = Vec::new();
            for (_, _, stamp) in allocation.region().map(|region| region.stamps()).unwrap_or_default() {
                let name = shared.names.of(stamp.axis);
                if !self.tracker().is_complete(stamp) && !streams.contains(&name) {
                    streams.push(name);
                }
            }
            AllocationInfo {
                name: allocation.name(),
                address: allocation.address(),
                bytes: allocation.size(),
                age: now.saturating_sub(allocation.made()),
                streams,
            }
        });
        let allocations = allocations.collect();
        let stats = self.stats();
        let (reclaiming_bytes, quarantined_bytes) = (stats.reclaiming_bytes, stats.quarantined_bytes);
        Snapshot { allocations, reclaiming_bytes, quarantined_bytes }
    }

    /// Waits until everything that was dropped before the call has been given back, as far as it can complete, at most
    /// `deadline`. Waits for nothing that is dropped later.
    pub fn drain(&self, deadline: Duration) -> Drained {
        let shared = self.shared();
        let end = simtile_sync::time::now().saturating_add(deadline);
        if self.usable().is_ok() {
            // Before the mark: what was dropped in a poll becomes an entry of its own then.
            shared.lanes.collect();
        } else if self.loss().is_some() {
            shared.leave_limbo();
        }
        let mark = shared.lanes.mark();
        loop {
            let waiting = shared.lanes.left_of(mark);
            if waiting == 0 || simtile_sync::time::now() >= end {
                return Drained { waiting, quarantined: self.stats().quarantined };
            }
            simtile_sync::time::sleep(PAUSE);
        }
    }
}

impl fmt::Display for Snapshot {
    /// One line an allocation, then the sums.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for allocation in &self.allocations {
            let AllocationInfo { name, bytes, age, streams, .. } = allocation;
            write!(f, "{name}: {bytes} bytes, {:.3} s old", age.as_secs_f64())?;
            if !streams.is_empty() {
                write!(f, ", in use by {}", streams.join(", "))?;
            }
            writeln!(f)?;
        }
        write!(f, "{} bytes wait for their last use, ", self.reclaiming_bytes)?;
        write!(f, "{} bytes are kept for ever", self.quarantined_bytes)
    }
}
