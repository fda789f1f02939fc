//! One allocation: its guard, its ranges, and what the host and foreign owners hold of it.

use crate::ids::{AxisId, RegionId, Stamp};
use crate::mode::Kind;
use crate::ranges::Ranges;
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{EXCLUSIVE, GroupGuard, GroupLock, Mutex, MutexGuard};
use smallvec::SmallVec;

/// Everything known about the accesses to one allocation. Whoever owns the memory owns this; views borrow it.
///
/// It also stands for things without bytes that are accessed as a whole: a graph executable, the globals of a module.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    len: u64,
    /// The only stream that has used it since the last write; 0 if there are several. A hint that decides how the
    /// guard is taken (exclusively is always right), never what is ordered.
    home: AtomicU64,
    pub(crate) guard: GroupLock<Mutex<RegionState>>,
}

pub(crate) struct RegionState {
    pub ranges: Ranges,
    pub host: SmallVec<[HostEntry; 1]>,
    pub next_claim: u64,
    pub foreign: Foreign,
}

impl RegionState {
    /// Whether neither the host nor foreign code holds anything of it.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.host.is_empty() && self.foreign == Foreign::None
    }

    /// Whether a touch by `axis` meets nobody else, so that there is nothing to plan. (False may be too careful.)
    #[inline]
    pub(crate) fn quiet_for(&self, axis: AxisId) -> bool {
        self.is_free() && self.ranges.only_of(axis)
    }
}

/// A range that the host holds.
#[derive(Clone, Copy)]
pub(crate) struct HostEntry {
    pub id: u64,
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
}

/// What foreign code holds of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Foreign {
    None,
    /// Read-only on both sides.
    Shared,
    Exclusive,
    /// Returned by an unknown stream at this count of synchronisations.
    Quarantined(u64),
}

pub(crate) type RegionGuard<'a> = GroupGuard<'a, Mutex<RegionState>>;

impl Region {
    pub(crate) fn new(id: u64, len: u64) -> Self {
        let state = RegionState {
            ranges: Ranges::default(),
            host: SmallVec::new(),
            next_claim: 1,
            foreign: Foreign::None,
        };
        Self { id: RegionId(id), len, home: AtomicU64::new(0), guard: GroupLock::new(Mutex::new(state)) }
    }

    /// Its name.
    #[inline]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The group in which `axis` takes the guard for `kind`. A region that one stream alone uses is taken
    /// exclusively also for reading: that saves the list's own lock.
    #[inline]
    pub(crate) fn group(&self, kind: Kind, axis: AxisId) -> u32 {
        if kind == Kind::WRITE {
            return EXCLUSIVE;
        }
        let home = self.home.load(Ordering::Relaxed);
        if home == axis.0 {
            return EXCLUSIVE;
        }
        if home != 0 {
            self.home.store(0, Ordering::Relaxed);
        }
        kind.group()
    }

    #[inline]
    pub(crate) fn written_by(&self, axis: AxisId) {
        if self.home.load(Ordering::Relaxed) != axis.0 {
            self.home.store(axis.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn home(&self) -> Option<AxisId> {
        let home = self.home.load(Ordering::Relaxed);
        (home != 0).then_some(AxisId(home))
    }

    /// The stamps on its ranges, for pictures and tests: (start, end, stamp). Completed ones may be among them.
    pub fn stamps(&self) -> Vec<(u64, u64, Stamp)> {
        // no site: for pictures and tests.
        let guard = self.guard.lock(EXCLUSIVE);
        let state = guard.lock();
        state.ranges.all()
    }

    /// How many ranges it is cut into.
    pub fn range_count(&self) -> usize {
        // no site: for pictures and tests.
        let guard = self.guard.lock(EXCLUSIVE);
        let state = guard.lock();
        state.ranges.len()
    }
}

/// The state behind a guard.
enum Reach<'a> {
    Alone(&'a mut RegionState),
    Shared(MutexGuard<'a, RegionState>),
}

impl<'a> Reach<'a> {
    #[inline]
    fn new(guard: &'a mut RegionGuard<'_>) -> Self {
        if !guard.is_exclusive() {
            return Self::Shared(guard.lock());
        }
        match guard.get_mut() {
            Some(alone) => Self::Alone(alone.get_mut()),
            None => unreachable!("an exclusive guard gives the value"),
        }
    }
}

/// Runs `look` on the state behind a guard, locking it only if others may hold the guard too.
#[inline]
pub(crate) fn with_state<R>(guard: &mut RegionGuard<'_>, look: impl FnOnce(&mut RegionState) -> R) -> R {
    // One call of `look`, so that it is inlined.
    let mut reach = Reach::new(guard);
    look(match &mut reach {
        Reach::Alone(state) => state,
        Reach::Shared(state) => state,
    })
}
