//! What a stream was given lately, so that a lost context can say whose fault it was.
//!
//! A device fault shows itself in whatever call comes next, which is a neighbour's as often as not. What can have done it is the
//! work that was queued and not known to have finished. Each stream keeps the last [`KEPT`] pieces of work that run code of
//! others (kernels, graphs, library calls, host functions) or have a label. There are never more in flight: a stream has as many
//! permits. Keeping one costs two stores; a label of an operation costs a lock.

use core::cell::Cell;
use simtile_hazard::{AxisId, Stamp};
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// How much is kept; as many as can be in flight on a stream.
const KEPT: usize = 512;

/// The epoch of work that is being queued: it is in flight.
const QUEUED: u64 = u64::MAX;

thread_local! {
    /// What this thread is queueing: the address of its trail, and its place there.
    static QUEUEING: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// What was queued, as a number: a kind, or a kernel by its number in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What(u32);

impl What {
    /// Nothing that is worth keeping.
    pub(crate) const NONE: Self = Self(0);
    /// A copy or another call of ours; kept if it has a label.
    pub(crate) const OURS: Self = Self(1);
    pub(crate) const GRAPH: Self = Self(2);
    pub(crate) const FOREIGN: Self = Self(3);
    pub(crate) const HOST: Self = Self(4);
    const KERNELS: u32 = 16;

    /// A kernel, by its number in the context.
    pub(crate) fn kernel(number: u32) -> Self {
        Self(Self::KERNELS.saturating_add(number))
    }

    /// In words; `kernel` names kernels by number.
    pub(crate) fn describe(self, kernel: impl FnOnce(u32) -> Option<Arc<str>>) -> String {
        match self {
            Self::NONE | Self::OURS => "a transfer".into(),
            Self::GRAPH => "the replay of a graph".into(),
            Self::FOREIGN => "work of another library".into(),
            Self::HOST => "a host function".into(),
            Self(number) => match kernel(number - Self::KERNELS) {
                Some(name) => format!("launch of {name}"),
                None => "a launch".into(),
            },
        }
    }
}

struct Slot {
    /// A [`What`]; 0: nothing.
    what: AtomicU64,
    epoch: AtomicU64,
}

/// See the module. Written with the stream's lock held, read by whoever finds the context lost.
#[derive(Default)]
pub(crate) struct Trail {
    /// Made with the first entry.
    slots: OnceLock<Box<[Slot]>>,
    next: AtomicU64,
    /// Labels of entries, oldest first.
    labels: Mutex<VecDeque<(u64, Arc<str>)>>,
}

/// Work that may have lost the context.
pub(crate) struct Suspect {
    pub what: What,
    pub label: Option<Arc<str>>,
    /// This very thread is in the call that queues it.
    pub queueing: bool,
}

impl Trail {
    fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// The work is about to be queued. Called with the stream's lock held.
    pub(crate) fn enter(&self, what: What, label: Option<&Arc<str>>) -> u64 {
        let slots = self.slots.get_or_init(|| {
            (0..KEPT).map(|_| Slot { what: AtomicU64::new(0), epoch: AtomicU64::new(0) }).collect()
        });
        let place = self.next.load(Ordering::Relaxed);
        let slot = &slots[place as usize % KEPT];
        slot.epoch.store(QUEUED, Ordering::Relaxed);
        slot.what.store(u64::from(what.0), Ordering::Relaxed);
        self.next.store(place + 1, Ordering::Release);
        if let Some(label) = label {
            let mut labels = self.labels.lock();
            while labels.front().is_some_and(|(old, _)| old + KEPT as u64 <= place) {
                labels.pop_front();
            }
            labels.push_back((place, label.clone()));
        }
        QUEUEING.set((self.key(), place));
        place
    }

    /// The call that queues it has returned.
    pub(crate) fn left(&self, place: u64, queued: bool) {
        QUEUEING.set((0, 0));
        if !queued && let Some(slot) = self.slot(place) {
            slot.what.store(0, Ordering::Relaxed);
        }
    }

    /// When it is over. Without the stream's lock: after as many later entries the place is another's, whose epoch is
    /// then too early at worst, and it may be missing in a report.
    pub(crate) fn stamped(&self, place: u64, epoch: u64) {
        if let Some(slot) = self.slot(place) {
            slot.epoch.store(epoch, Ordering::Relaxed);
        }
    }

    fn slot(&self, place: u64) -> Option<&Slot> {
        Some(&self.slots.get()?[place as usize % KEPT])
    }

    /// What was queued and is not known to have finished, oldest first.
    pub(crate) fn suspects(&self, axis: AxisId, finished: impl Fn(Stamp) -> bool) -> Vec<Suspect> {
        let end = self.next.load(Ordering::Acquire);
        let start = end.saturating_sub(KEPT as u64);
        let mine = QUEUEING.get();
        let mut found = Vec::new();
        for place in start..end {
            let Some(slot) = self.slot(place) else { continue };
            let what = What(slot.what.load(Ordering::Relaxed) as u32);
            let epoch = slot.epoch.load(Ordering::Relaxed);
            if what == What::NONE || (epoch != QUEUED && finished(Stamp { axis, epoch })) {
                continue;
            }
            let labels = self.labels.lock();
            let label = labels.iter().find(|(of, _)| *of == place).map(|(_, label)| label.clone());
            found.push(Suspect { what, label, queueing: mine == (self.key(), place) });
        }
        found
    }
}

/// The trail of one submission: entered when it is queued, if it is worth keeping.
pub(crate) struct Trace<'a> {
    trail: &'a Trail,
    what: What,
    label: Option<&'a Arc<str>>,
    place: Cell<Option<u64>>,
}

impl<'a> Trace<'a> {
    #[inline]
    pub(crate) fn new(trail: &'a Trail, submit: &super::Submit<'a>) -> Self {
        let what = match submit.what {
            What::NONE if submit.label.is_some() => What::OURS,
            what => what,
        };
        Self { trail, what, label: submit.label, place: Cell::new(None) }
    }

    /// Queues, with the stream's lock held.
    #[inline]
    pub(crate) fn queue<R, E>(&self, calls: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        if self.what == What::NONE {
            return calls();
        }
        let place = self.trail.enter(self.what, self.label);
        self.place.set(Some(place));
        let done = calls();
        self.trail.left(place, done.is_ok());
        done
    }

    /// When it is over.
    #[inline]
    pub(crate) fn stamped(&self, epoch: u64) {
        if let Some(place) = self.place.get() {
            self.trail.stamped(place, epoch);
        }
    }
}
