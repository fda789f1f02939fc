//! The table of axes.
//!
//! An axis outlives its stream: its place in the table is given to another only when the stream has been closed and its tail
//! has completed. From then on every stamp on it is complete, and a stamp whose axis is not in its place says just
//! that. A failed axis keeps its place for ever. So stamps need no reference count.

use crate::backend::Backend;
use crate::event::EventRef;
use crate::ids::{AxisId, Epoch, SLOT_BITS, Stamp};
use crate::mutate::site;
use crate::ranges::Knowledge;
use crate::stream::StreamInner;
use crate::tracker::Settled;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

#[cfg(loom)]
const CHUNK: usize = 4;
#[cfg(not(loom))]
const CHUNK: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / CHUNK;

/// The stream is gone and its tail is sealed.
pub(crate) const CLOSED: u32 = 1;
/// Completion cannot be known any more.
pub(crate) const FAILED: u32 = 2;
/// The stream carries work that is not ours.
pub(crate) const TAINTED: u32 = 4;

/// A recorded event, with what is asked most often beside it.
struct Record<B: Backend> {
    epoch: Epoch,
    issued: u64,
    event: EventRef<B>,
}

pub(crate) struct AxisSlot<B: Backend> {
    /// Who lives here; 0: nobody.
    id: AtomicU64,
    completed: AtomicU64,
    /// The newest epoch that has an event.
    recorded: AtomicU64,
    /// The newest epoch that a synchronisation of everything closed: it may complete without an event.
    marked: AtomicU64,
    /// Submissions known to have finished.
    retired: AtomicU64,
    /// The last epoch with work; set before `CLOSED`.
    tail: AtomicU64,
    flags: AtomicU32,
    /// Recorded events that may not have fired, oldest first.
    records: Mutex<VecDeque<Record<B>>>,
    stream: Mutex<Option<Arc<StreamInner<B>>>>,
}

impl<B: Backend> AxisSlot<B> {
    fn new() -> Self {
        Self {
            id: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            records: Mutex::new(VecDeque::new()),
            stream: Mutex::new(None),
        }
    }

    #[inline]
    pub(crate) fn completed(&self) -> Epoch {
        self.completed.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn recorded(&self) -> Epoch {
        self.recorded.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// A synchronisation that has begun will complete everything up to `epoch`, which the stream's lock keeps closed.
    pub(crate) fn mark(&self, epoch: Epoch) {
        self.marked.fetch_max(epoch, Ordering::Relaxed);
    }

    pub(crate) fn tail(&self) -> Epoch {
        self.tail.load(Ordering::Acquire)
    }

    /// Publishes an event that has been recorded and filled. Not on a failed axis: whoever failed it has taken its
    /// events away, and a later one would stand for epochs that it must not.
    pub(crate) fn publish(&self, event: EventRef<B>, epoch: Epoch, issued: u64) -> bool {
        let mut records = self.records.lock();
        if self.has(FAILED) {
            drop(records);
            return false;
        }
        records.push_back(Record { epoch, issued, event });
        self.recorded.store(epoch, Ordering::Release);
        true
    }

    /// The oldest event that covers `epoch`.
    pub(crate) fn covering(&self, epoch: Epoch) -> Option<EventRef<B>> {
        let records = self.records.lock();
        let at = records.partition_point(|record| record.epoch < epoch);
        records.get(at).map(|record| record.event.clone())
    }

    /// Where a stamp stands.
    pub(crate) fn settled(&self, stamp: Stamp) -> Settled<B> {
        // Completion, failure and reuse of the place happen under this lock, so this is one moment's answer.
        let records = self.records.lock();
        if self.id.load(Ordering::Acquire) != stamp.axis.0 || self.completed() >= stamp.epoch {
            return Settled::Complete;
        }
        if self.has(FAILED) {
            return Settled::Failed;
        }
        let at = records.partition_point(|record| record.epoch < stamp.epoch);
        records.get(at).map_or(Settled::Unsealed, |record| Settled::Pending(record.event.clone()))
    }

    /// The oldest event that has not been seen to fire.
    pub(crate) fn oldest(&self) -> Option<EventRef<B>> {
        self.records.lock().front().map(|record| record.event.clone())
    }

    /// The newest event: when it has fired, all of them have.
    pub(crate) fn newest(&self) -> Option<EventRef<B>> {
        self.records.lock().back().map(|record| record.event.clone())
    }

    pub(crate) fn set_stream(&self, stream: Option<Arc<StreamInner<B>>>) -> Option<Arc<StreamInner<B>>> {
        core::mem::replace(&mut *self.stream.lock(), stream)
    }
}

/// Places that are made together, on first use.
type Chunk<B> = OnceLock<Box<[AxisSlot<B>]>>;

/// All axes of one tracker.
pub(crate) struct AxisTable<B: Backend> {
    chunks: Box<[Chunk<B>]>,
    free: Mutex<Free>,
}

struct Free {
    places: Vec<usize>,
    next_place: usize,
    next_serial: u64,
}

impl<B: Backend> AxisTable<B> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free { places: Vec::new(), next_place: 0, next_serial: 1 }),
        }
    }

    /// A new axis; `None` when 65 536 are alive.
    pub(crate) fn create(&self, flags: u32) -> Option<AxisId> {
        let mut free = self.free.lock();
        let place = match free.places.pop() {
            Some(place) => place,
            None if free.next_place < CHUNK * CHUNKS => {
                free.next_place += 1;
                free.next_place - 1
            }
            None => return None,
        };
        let id = AxisId::new(free.next_serial, place);
        free.next_serial += 1;
        let chunk = self.chunks[place / CHUNK].get_or_init(|| (0..CHUNK).map(|_| AxisSlot::new()).collect());
        let slot = &chunk[place % CHUNK];
        let records = slot.records.lock();
        slot.completed.store(0, Ordering::Relaxed);
        slot.recorded.store(0, Ordering::Relaxed);
        slot.marked.store(0, Ordering::Relaxed);
        slot.retired.store(0, Ordering::Relaxed);
        slot.tail.store(0, Ordering::Relaxed);
        slot.flags.store(flags, Ordering::Relaxed);
        slot.id.store(id.0, Ordering::Release);
        drop(records);
        Some(id)
    }

    /// The place of a living axis. `None`: the axis has ended and all its work is complete.
    #[inline]
    pub(crate) fn get(&self, axis: AxisId) -> Option<&AxisSlot<B>> {
        let place = axis.slot();
        let slot = &self.chunks.get(place / CHUNK)?.get()?[place % CHUNK];
        (slot.id.load(Ordering::Acquire) == axis.0).then_some(slot)
    }

    #[inline]
    pub(crate) fn is_complete(&self, axis: AxisId, epoch: Epoch) -> bool {
        // If the place changes hands between the two loads, the second reads an epoch of the successor: either too
        // small (the answer is merely late) or large enough, and then it is right, since all of this axis is complete.
        self.get(axis).is_none_or(|slot| slot.completed() >= epoch)
    }

    pub(crate) fn is_failed(&self, axis: AxisId) -> bool {
        // Asked twice: if the place is still this axis's after the flag was read, the flag was this axis's.
        self.get(axis).is_some_and(|slot| slot.has(FAILED)) && self.get(axis).is_some()
    }

    /// Marks an axis as failed. Whether this was the first time.
    pub(crate) fn fail(&self, axis: AxisId) -> bool {
        let Some(slot) = self.get(axis) else { return false };
        let mut records = slot.records.lock();
        if slot.id.load(Ordering::Acquire) != axis.0 {
            return false;
        }
        let first = slot.flags.fetch_or(FAILED, Ordering::AcqRel) & FAILED == 0;
        // Nobody queues a wait on a failed axis; its events go back to the pool.
        let dropped = core::mem::take(&mut *records);
        drop(records);
        drop(dropped);
        first
    }

    /// Notes that everything of `axis` up to `epoch` has finished. Whether the axis ended with that.
    pub(crate) fn complete(&self, axis: AxisId, epoch: Epoch) -> bool {
        let Some(slot) = self.get(axis) else { return false };
        if slot.completed() >= epoch {
            return false;
        }
        // As many as the checkpoints of a stream that has used up its permits: one answer often completes all of them.
        let mut fired: smallvec::SmallVec<[Record<B>; 16]> = smallvec::SmallVec::new();
        // The place changes hands under this lock only, so the epoch lands on the right axis.
        let mut records = slot.records.lock();
        if slot.id.load(Ordering::Acquire) != axis.0 || slot.has(FAILED) {
            return false;
        }
        slot.completed.fetch_max(epoch, Ordering::AcqRel);
        while let Some(first) = records.front() {
            if first.epoch > epoch {
                break;
            }
            slot.retired.fetch_max(first.issued, Ordering::Relaxed);
            if !site!(PruneRecords) {
                break;
            }
            fired.extend(records.pop_front());
        }
        drop(records);
        drop(fired);
        self.end_if_done(axis)
    }

    /// The stream is closed and `tail` is its last epoch with work. Whether the axis ended with that.
    pub(crate) fn close(&self, axis: AxisId, tail: Epoch) -> bool {
        let Some(slot) = self.get(axis) else { return false };
        slot.tail.store(tail, Ordering::Release);
        slot.flags.fetch_or(CLOSED, Ordering::AcqRel);
        self.end_if_done(axis)
    }

    fn end_if_done(&self, axis: AxisId) -> bool {
        let Some(slot) = self.get(axis) else { return false };
        if !slot.has(CLOSED) {
            return false;
        }
        let mut records = slot.records.lock();
        // Again under the lock: one of several observers ends the axis. (A closed axis stays closed.)
        if slot.id.load(Ordering::Acquire) != axis.0
            || slot.has(FAILED)
            || slot.completed() < slot.tail.load(Ordering::Acquire)
        {
            return false;
        }
        slot.id.store(0, Ordering::Release);
        let dropped = core::mem::take(&mut *records);
        drop(records);
        drop(dropped);
        self.free.lock().places.push(axis.slot());
        true
    }

    /// The stream behind a living, open axis.
    pub(crate) fn stream(&self, axis: AxisId) -> Option<Arc<StreamInner<B>>> {
        let stream = self.get(axis)?.stream.lock().clone()?;
        (stream.axis == axis).then_some(stream)
    }

    /// Calls `each` for every living axis.
    pub(crate) fn each(&self, mut each: impl FnMut(AxisId, &AxisSlot<B>)) {
        let places = self.free.lock().next_place;
        for place in 0..places {
            if let Some(chunk) = self.chunks[place / CHUNK].get() {
                let slot = &chunk[place % CHUNK];
                let id = slot.id.load(Ordering::Acquire);
                if id != 0 {
                    each(AxisId(id), slot);
                }
            }
        }
    }

    /// Whether a stamp is known to have finished.
    pub(crate) fn done(&self, stamp: Stamp) -> bool {
        self.is_complete(stamp.axis, stamp.epoch)
    }
}

impl<B: Backend> Knowledge for AxisTable<B> {
    #[inline]
    fn complete(&self, axis: AxisId, epoch: Epoch) -> bool {
        self.is_complete(axis, epoch)
    }

    fn same_cover(&self, axis: AxisId, a: Epoch, b: Epoch) -> bool {
        // Both after the newest event: the next one covers both. And both after the newest synchronisation, which may
        // complete the earlier one alone.
        self.get(axis).is_none_or(|slot| slot.recorded().max(slot.marked.load(Ordering::Relaxed)) < a.min(b))
    }
}
