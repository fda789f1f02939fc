//! What one submission touched.

use super::Bitmap;
use crate::memory::Backing;
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
    reads: Bitmap,
    writes: Bitmap,
    atomics: Bitmap,
}

impl TouchMap {
    fn new(backing: Arc<Backing>) -> Self {
        let set = || Bitmap::new(backing.len());
        Self { reads: set(), writes: set(), atomics: set(), backing }
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

    /// The map of one backing. Callers keep it as long as they stay on that backing.
    pub fn map(&self, backing: &Arc<Backing>) -> Arc<TouchMap> {
        let key = Arc::as_ptr(backing).addr();
        self.maps.lock().entry(key).or_insert_with(|| Arc::new(TouchMap::new(backing.clone()))).clone()
    }

    /// The maps, once the submission has ended.
    pub fn into_maps(self) -> Vec<Arc<TouchMap>> {
        self.maps.into_inner().into_values().collect()
    }
}
