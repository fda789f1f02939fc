//! Handles that own an allocation, counted exactly.
//!
//! Uniqueness counts every handle that can still reach the memory later, and nothing else: neither work in flight nor a
//! picture that is being taken. It is asked with `&mut`, so nobody can make another handle meanwhile.

use super::Allocation;
use crate::error::MemoryError;
use core::ops::Deref;
use simtile_sync::Arc;
use simtile_sync::atomic::Ordering;

/// One handle.
pub(crate) struct Owner(Arc<Allocation>);

impl Owner {
    /// The first handle of a new allocation.
    pub(crate) fn first(allocation: Arc<Allocation>) -> Self {
        allocation.owners().store(1, Ordering::Relaxed);
        Self(allocation)
    }

    /// One more handle of an allocation that has some.
    pub(super) fn another(allocation: Arc<Allocation>) -> Self {
        allocation.owners().fetch_add(1, Ordering::Relaxed);
        Self(allocation)
    }

    /// One more handle of a living allocation; `None` if its last one is gone.
    pub(super) fn of_living(allocation: &Arc<Allocation>) -> Option<Self> {
        let more = |handles: usize| (handles > 0).then_some(handles + 1);
        let counted = allocation.owners().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| Self(allocation.clone()))
    }

    /// How many handles there are.
    pub(crate) fn count(&mut self) -> usize {
        self.0.owners().load(Ordering::Acquire)
    }

    /// Refuses if there are other handles.
    pub(crate) fn require_unique(&mut self, what: &'static str) -> Result<(), MemoryError> {
        match self.count() {
            1 => Ok(()),
            handles => Err(MemoryError::NotUnique { buffer: self.0.name(), what, handles }),
        }
    }
}

impl Clone for Owner {
    fn clone(&self) -> Self {
        self.0.owners().fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.owners().fetch_sub(1, Ordering::Release);
    }
}

impl Deref for Owner {
    type Target = Allocation;

    fn deref(&self) -> &Allocation {
        &self.0
    }
}
