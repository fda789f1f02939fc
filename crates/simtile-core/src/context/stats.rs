//! What went wrong where nobody could be told, and what is kept.

use simtile_driver::DriverError;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

/// How many background errors are kept.
const RING: usize = 256;

/// Counts of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextStats {
    /// Allocations that handles own now.
    pub live_allocations: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Device memory that was dropped and waits for reuse (only where the device has no pools), bytes.
    pub parked_bytes: u64,
    /// Pinned memory of [`PinnedHostBuffer`](crate::PinnedHostBuffer)s, in use or kept for reuse, bytes.
    pub pinned_bytes: u64,
    /// Pinned staging memory, bytes.
    pub staging_bytes: u64,
    /// Device memory that was dropped and waits in the background for its last use, bytes.
    pub reclaiming_bytes: u64,
    /// Allocations that are kept for ever, because their last use cannot be known to end.
    pub quarantined: u64,
    /// Their bytes.
    pub quarantined_bytes: u64,
    /// Frees that failed or could not be made. The memory is kept and never reused.
    pub failed_frees: u64,
    /// Device and pinned memory in them, bytes.
    pub leaked_bytes: u64,
    /// Streams, events, pools, graphs and executables whose destruction failed. They are kept by the driver.
    pub failed_destroys: u64,
    /// Events, streams and pools that the context keeps for its own use.
    pub own_handles: u64,
    /// Times that the context current before could not be put back.
    pub failed_restores: u64,
    /// Pools that users made and hold.
    pub pools: u64,
    /// Allocations of foreign owners that handles own now, or that wait for their last use.
    pub foreign_allocations: u64,
    /// Foreign owners that panicked in their drop; the panic was caught.
    pub owner_panics: u64,
    /// Managed memory of [`ManagedBuffer`](crate::ManagedBuffer)s, in use or kept for reuse, bytes.
    pub managed_bytes: u64,
    /// Physical memory behind mapped addresses, bytes.
    pub mapped_bytes: u64,
    /// Dropped modules that are not unloaded yet.
    pub retained_modules: u64,
    /// Host functions that panicked; the panic was caught.
    pub host_function_panics: u64,
    /// Background errors that the ring had no room for.
    pub lost_errors: u64,
}

/// An error that happened in a drop or on a background thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackgroundError {
    /// What was being done, such as `drop of buffer 12`.
    pub during: String,
    /// The driver call that failed.
    pub source: DriverError,
}

impl core::fmt::Display for BackgroundError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.during, self.source)
    }
}

impl core::error::Error for BackgroundError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.source)
    }
}

macro_rules! counters {
    ($($name:ident)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            errors: Mutex<VecDeque<BackgroundError>>,
        }

        impl Counters {
            pub(crate) fn read(&self) -> ContextStats {
                ContextStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    live_allocations live_bytes parked_bytes pinned_bytes staging_bytes reclaiming_bytes quarantined quarantined_bytes failed_frees leaked_bytes failed_destroys own_handles
    failed_restores pools foreign_allocations owner_panics managed_bytes mapped_bytes retained_modules host_function_panics lost_errors
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Takes from a counter.
pub(crate) fn sub(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Ordering::Relaxed);
}

impl Counters {
    /// Keeps an error for [`Counters::take_errors`]. The oldest goes when there is no room.
    pub(crate) fn push_error(&self, during: String, source: DriverError) {
        let mut errors = self.errors.lock();
        if errors.len() == RING {
            errors.pop_front();
            add(&self.lost_errors, 1);
        }
        errors.push_back(BackgroundError { during, source });
    }

    pub(crate) fn take_errors(&self) -> Vec<BackgroundError> {
        self.errors.lock().drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simtile_driver::{Entry, sys::CUresult};

    #[test]
    fn the_ring_keeps_the_newest_and_counts_the_rest() {
        let counters = Counters::default();
        let error = DriverError::new(Entry::cuMemFree, CUresult::CUDA_ERROR_INVALID_VALUE);
        for i in 0..RING + 5 {
            counters.push_error(format!("drop {i}"), error);
        }
        assert_eq!(counters.read().lost_errors, 5);
        let kept = counters.take_errors();
        assert_eq!(kept.len(), RING);
        assert_eq!(kept[0].during, "drop 5");
        assert!(counters.take_errors().is_empty());
    }
}
