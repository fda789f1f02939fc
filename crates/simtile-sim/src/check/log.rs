//! What one submission touched.

use super::Bitmap;
use super::sites::Sites;
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
    /// Which instruction loaded, and which stored or updated.
    loads: Sites,
    stores: Sites,
}

impl TouchMap {
    fn new(backing: Arc<Backing>, allocation: Arc<Allocation>) -> Self {
        let (set, sites) = (|| Bitmap::new(backing.len()), || Sites::new(backing.len()));
        let (loads, stores) = (sites(), sites());
        Self { reads: set(), writes: set(), atomics: set(), loads, stores, backing, allocation }
    }

    /// The whole allocation, as written: what its beginning and its end do to it.
    pub fn whole(allocation: Arc<Allocation>) -> Self {
        let (backing, offset) = allocation.backing();
        let writes = Bitmap::range(backing.len(), offset, allocation.bytes);
        Self { writes, ..Self::new(backing.clone(), allocation.clone()) }
    }

    /// Some bytes of an allocation, by their offset in its backing.
    pub fn part(allocation: Arc<Allocation>, offset: u64, bytes: u64, touch: Touch) -> Self {
        let map = Self::new(allocation.backing().0.clone(), allocation);
        map.note(offset, bytes, touch, 0);
        map
    }

    /// Notes an access by an instruction; 0 if there is none.
    #[inline]
    pub fn note(&self, offset: u64, bytes: u64, touch: Touch, site: u16) {
        let (set, sites) = match touch {
            Touch::Read => (&self.reads, &self.loads),
            Touch::Write => (&self.writes, &self.stores),
            Touch::Atomic => (&self.atomics, &self.stores),
        };
        set.set(offset, bytes);
        sites.note(offset, bytes, site);
    }

    /// The number of the instruction that touched a byte so last; 0 if there is none or it is not known.
    pub fn site(&self, offset: u64, touch: Touch) -> u16 {
        let sites = if touch == Touch::Read { &self.loads } else { &self.stores };
        sites.at(offset)
    }

    /// Memory that it takes, bytes.
    pub fn memory(&self) -> u64 {
        let sets = self.reads.memory() + self.writes.memory() + self.atomics.memory();
        sets + self.loads.memory() + self.stores.memory() + size_of::<Self>() as u64
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
///
/// What a kernel does before it waits for the one before it is kept apart.
#[derive(Default)]
pub struct AccessLog {
    maps: Mutex<Maps>,
    early_maps: Mutex<Maps>,
    /// By number of the instruction: whether it comes before the wait.
    early: Arc<[bool]>,
}

type Maps = BTreeMap<usize, Arc<TouchMap>>;

fn in_order(maps: Mutex<Maps>) -> Vec<Arc<TouchMap>> {
    let mut maps: Vec<_> = maps.into_inner().into_values().collect();
    maps.sort_by_key(|map| map.allocation.id);
    maps
}

impl AccessLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log of a kernel whose instructions of these numbers run before its wait.
    pub fn with_early(early: Arc<[bool]>) -> Self {
        Self { early, ..Self::default() }
    }

    /// The map of memory that an instruction (0: none) reaches through a mapping. Callers keep it as long as they stay there.
    pub fn map(&self, backing: &Arc<Backing>, allocation: &Arc<Allocation>, site: u16) -> Arc<TouchMap> {
        let early = self.early.get(usize::from(site)) == Some(&true);
        let maps = if early { &self.early_maps } else { &self.maps };
        let new = || Arc::new(TouchMap::new(backing.clone(), allocation.clone()));
        maps.lock().entry(Arc::as_ptr(backing).addr()).or_insert_with(new).clone()
    }

    /// The maps, once the submission has ended, in the order in which the memory was made: of what came before the wait, and
    /// of the rest.
    pub fn into_maps(self) -> (Vec<Arc<TouchMap>>, Vec<Arc<TouchMap>>) {
        (in_order(self.early_maps), in_order(self.maps))
    }
}
