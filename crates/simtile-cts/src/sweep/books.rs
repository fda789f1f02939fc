//! Comparing what contexts count with what the simulator holds.

use simtile_core::{ContextMonitor, ContextStats};
use simtile_sim::Holdings;

/// The counts of all contexts of a run, summed.
pub(crate) struct Books {
    stats: Vec<ContextStats>,
    lost: bool,
}

impl Books {
    /// `lost`: a context may be lost that nobody has a handle of.
    pub(crate) fn of(monitors: &[ContextMonitor], lost: bool) -> Self {
        Self {
            stats: monitors.iter().map(ContextMonitor::stats).collect(),
            lost: lost || monitors.iter().any(|monitor| monitor.loss().is_some()),
        }
    }

    fn sum(&self, of: impl Fn(&ContextStats) -> u64) -> u64 {
        self.stats.iter().map(of).sum()
    }

    fn differs(&self, what: &str, books: u64, there: u64, held: Holdings) -> Result<(), String> {
        Err(format!("{what}: the books say {books}, the driver holds {there}: {held:?}, {:?}", self.stats))
    }

    /// Bytes that are somewhere by these books.
    fn bytes(&self) -> u64 {
        self.sum(|s| {
            s.live_bytes
                + s.parked_bytes
                + s.pinned_bytes
                + s.staging_bytes
                + s.managed_bytes
                + s.mapped_bytes
                + s.reclaiming_bytes
                + s.quarantined_bytes
                + s.leaked_bytes
        })
    }

    /// Bytes, while the contexts live and nobody holds anything.
    pub(crate) fn compare_bytes(&self, held: Holdings, foreign: u64) -> Result<(), String> {
        let differs = |what: &str, books: u64, there: u64| self.differs(what, books, there, held);
        if self.sum(|s| s.live_allocations + s.reclaiming_bytes + s.foreign_allocations) != 0 {
            return Err(format!("something is alive still: {:?}", self.stats));
        }
        // Foreign code that was told of a failed free may have given the memory back all the same, and so may a free have that
        // found the context lost while it waited for it.
        let unsure = if self.lost { self.sum(|s| s.leaked_bytes) } else { 0 };
        if !(self.bytes() - unsure..=self.bytes() + foreign).contains(&held.bytes()) {
            return differs("bytes", self.bytes() + foreign, held.bytes());
        }
        Ok(())
    }

    /// Bytes and objects, while the contexts live and nobody holds anything.
    pub(super) fn compare(&self, held: Holdings, foreign: u64) -> Result<(), String> {
        self.compare_bytes(held, foreign)?;
        let differs = |what: &str, books: u64, there: u64| self.differs(what, books, there, held);
        let objects = (held.streams + held.events + held.pools + held.graphs + held.executables) as u64;
        // Objects of a lost context are not ended any more; only its memory is counted.
        if !self.lost && self.sum(|s| s.own_handles + s.failed_destroys) != objects {
            return differs("objects", self.sum(|s| s.own_handles + s.failed_destroys), objects);
        }
        if !self.lost && self.sum(|s| s.retained_modules) != held.modules as u64 {
            return differs("modules", self.sum(|s| s.retained_modules), held.modules as u64);
        }
        if !self.lost && held.captures > 0 {
            return differs("captures", 0, held.captures as u64);
        }
        let virtual_memory = (held.reservations + held.physical + held.mappings) as u64;
        if virtual_memory > 0 && self.sum(|s| s.failed_frees) == 0 {
            return differs("virtual memory", 0, virtual_memory);
        }
        Ok(())
    }

    /// After the contexts' end, of which `kept` could not be ended.
    pub(super) fn compare_ended(&self, held: Holdings, kept: usize, foreign: u64) -> Result<(), String> {
        let ended = held.contexts == 0;
        if !self.lost && held.contexts != kept {
            return Err(format!("{} contexts are left, {kept} counted: {held:?}", held.contexts));
        }
        // What a context owned goes with it, so there may be less than was counted, but never more.
        if held.bytes() > self.bytes() + foreign {
            return Err(format!("after the end {} bytes: {held:?}, {:?}", held.bytes(), self.stats));
        }
        let objects = (held.streams + held.events + held.pools + held.graphs + held.executables) as u64;
        let counted = self.sum(|s| s.own_handles + s.failed_destroys);
        if !self.lost && objects > counted {
            return Err(format!(
                "after the end {objects} objects, {counted} counted: {held:?}, {:?}",
                self.stats
            ));
        }
        if ended && held.streams + held.events + held.modules > 0 {
            return Err(format!("objects without a context: {held:?}"));
        }
        Ok(())
    }
}
