//! What one submission touched.

use super::Bitmap;
use crate::memory::{Allocation, Backing};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How an access touches bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic read-modify-write or a store or load with atomic semantics.
    Atomic,
}

/// The bytes of one backing that a submission touched. Offsets are the backing's, so that two mappings of
/// the same memory meet here.
pub struct TouchMap {
    backing: Arc<Backing>,
    allocation: Arc<Allocation>,
    reads: Bitmap,
    writes: Bitmap,
    atomics: Bitmap,
}

impl TouchMap {
    fn new(backing: Arc<Backing>, allocation: Arc<Allocation>) -> Self {
        let set = || Bitmap::new(backing.len());
        Self { reads: set(), writes: set(), atomics: set(), backing, allocation }
    }

    /// The whole allocation, as written: what its beginning and its end do to it.
    pub fn whole(allocation: Arc<Allocation>) -> Self {
        let (backing, offset) = allocation.backing();
        let writes = Bitmap::range(backing.len(), offset, allocation.bytes);
        Self { writes, ..Self::new(backing.clone(), allocation.clone()) }
    }

    /// Notes an access.
    #[inline]
    pub fn note(&self, offset: u64, bytes: u64, touch: Touch) {
        match touch {
            Touch::Read => self.reads.set(offset, bytes),
            Touch::Write => self.writes.set(offset, bytes),
            Touch::Atomic => self.atomics.set(offset, bytes),
        }
    }

    /// The memory.
    pub fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    /// The mapping through which the memory was touched first.
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// The bytes touched in one way.
    pub fn set(&self, touch: Touch) -> &Bitmap {
        match touch {
            Touch::Read => &self.reads,
            Touch::Write => &self.writes,
            Touch::Atomic => &self.atomics,
        }
    }
}

/// Everything one submission touched, by backing.
#[derive(Default)]
pub struct AccessLog {
    maps: Mutex<BTreeMap<usize, Arc<TouchMap>>>,
}

impl AccessLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// The map of memory that is reached through a mapping. Callers keep it as long as they stay there.
    pub fn map(&self, backing: &Arc<Backing>, allocation: &Arc<Allocation>) -> Arc<TouchMap> {
        let new = || Arc::new(TouchMap::new(backing.clone(), allocation.clone()));
        self.maps.lock().entry(Arc::as_ptr(backing).addr()).or_insert_with(new).clone()
    }

    /// The maps, once the submission has ended.
    pub fn into_maps(self) -> Vec<Arc<TouchMap>> {
        self.maps.into_inner().into_values().collect()
    }
}
