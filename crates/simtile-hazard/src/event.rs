//! Events as data, and their pool.
//!
//! A slot holds one driver event for ever. While somebody may wait for it or query it, an [`EventRef`] counts it, and its
//! epoch and frontier do not change. When the last reference goes, the slot returns to the pool, which so has as many as were ever referred
//! to at once, until it is trimmed.

use crate::backend::Backend;
use crate::frontier::Frontier;
use crate::ids::{AxisId, Epoch, Stamp};
use core::fmt;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What an event stands for. Set together, after the record succeeded.
pub(crate) struct Content {
    pub axis: AxisId,
    pub epoch: Epoch,
    /// Whether it may be stuck behind something that waits for the outside.
    pub outside: bool,
    pub frontier: Frontier,
}

struct Slot<B: Backend> {
    event: B::Event,
    users: AtomicUsize,
    content: Mutex<Content>,
    home: Weak<Pool<B>>,
}

struct Pool<B: Backend> {
    free: Mutex<Vec<Arc<Slot<B>>>>,
    count: AtomicUsize,
}

/// The events of one context.
pub(crate) struct EventPool<B: Backend>(Arc<Pool<B>>);

impl<B: Backend> EventPool<B> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Pool { free: Mutex::new(Vec::new()), count: AtomicUsize::new(0) }))
    }

    /// Free events, without locking.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Adds a driver event.
    pub(crate) fn add(&self, event: B::Event) {
        let content = Content { axis: AxisId(0), epoch: 0, outside: false, frontier: Frontier::default() };
        self.0.give(Arc::new(Slot {
            event,
            users: AtomicUsize::new(0),
            content: Mutex::new(content),
            home: Arc::downgrade(&self.0),
        }));
    }

    /// Takes out the free events beyond so many.
    pub(crate) fn surplus(&self, keep: usize) -> Vec<B::Event> {
        let taken = {
            let mut free = self.0.free.lock();
            let keep = keep.min(free.len());
            let taken = free.split_off(keep);
            self.0.count.store(free.len(), Ordering::Relaxed);
            taken
        };
        let mut events = Vec::with_capacity(taken.len());
        for slot in taken {
            match Arc::try_unwrap(slot) {
                Ok(slot) => events.push(slot.event),
                // Whoever gave it back just now still has its own handle for a moment.
                Err(slot) => self.0.give(slot),
            }
        }
        events
    }

    /// An event that nobody else refers to.
    pub(crate) fn take(&self) -> Option<EventRef<B>> {
        let mut free = self.0.free.lock();
        let slot = free.pop()?;
        self.0.count.store(free.len(), Ordering::Relaxed);
        drop(free);
        slot.users.store(1, Ordering::Relaxed);
        Some(EventRef(slot))
    }
}

impl<B: Backend> Pool<B> {
    fn give(&self, slot: Arc<Slot<B>>) {
        let mut free = self.free.lock();
        free.push(slot);
        self.count.store(free.len(), Ordering::Relaxed);
    }
}

/// A recorded event, kept from being recorded again.
pub struct EventRef<B: Backend>(Arc<Slot<B>>);

impl<B: Backend> EventRef<B> {
    /// The driver's event.
    pub fn event(&self) -> &B::Event {
        &self.0.event
    }

    /// The point that it stands for.
    pub fn stamp(&self) -> Stamp {
        let content = self.0.content.lock();
        Stamp { axis: content.axis, epoch: content.epoch }
    }

    /// Whether two references are to one event.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&Content) -> R) -> R {
        look(&self.0.content.lock())
    }

    /// Says what the event stands for. Only by the one who took it from the pool and recorded it.
    pub(crate) fn fill(&self, fill: impl FnOnce(&mut Content)) {
        fill(&mut self.0.content.lock());
    }
}

impl<B: Backend> Clone for EventRef<B> {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Drop for EventRef<B> {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(home) = self.0.home.upgrade()
        {
            home.give(Arc::clone(&self.0));
        }
    }
}

impl<B: Backend> fmt::Debug for EventRef<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventRef").field(&self.stamp()).finish()
    }
}
