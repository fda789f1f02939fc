//! Background work of a context: what a drop may not do itself.
//!
//! A drop hands work over when doing it at once would wait for the device (memory whose uses are still running, a module,
//! a context) or is not allowed where the drop happens (inside a host function). Each *lane* has a queue without a limit
//! and a thread of its own, which starts with the first work and ends when none is left: nothing pending, nothing
//! wakes. A lane looks at its entries out of order: what has finished goes, whatever stands before it. Lanes do
//! not wait for each other, so a module that takes long to unload, or somebody else's destructor, holds up no memory.
//!
//! Panics of user values are caught.

use super::Context;
use super::backend::Tracker;
use super::end::Remains;
use crate::memory::{Left, Memory};
use core::time::Duration;
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{AxisId, Epoch, Region, Settled, Stamp};
use simtile_sync::{Arc, Condvar, Global, Mutex, hook};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Pauses between looks while nothing finishes: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Memory, ends of contexts, and drops that could not be done where they happened.
    Memory,
    /// Module unloads, which wait for the device.
    Module,
    /// Foreign owners, whose destructors take what time they take.
    Foreign,
    /// Unmapping, which may wait for the device.
    Mapped,
}

/// What a lane does.
pub(crate) enum Work {
    /// To be given back when all stamps have completed.
    Memory(Memory, SmallVec<[Stamp; 4]>),
    /// Memory that was dropped where no call could be made: to be given back as in any drop.
    Retire(Box<(Region, Memory)>),
    /// A context without handles.
    End(Remains),
    /// Runs at once.
    Job(Box<dyn FnOnce() + Send>),
}

struct Entry {
    /// Its place in the order of arrival.
    serial: u64,
    work: Work,
}

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    /// What has arrived and is not done, also while it is looked at.
    pending: BTreeSet<u64>,
    next: u64,
    running: bool,
}

#[derive(Default)]
struct Inner {
    queue: Mutex<Queue>,
    /// Held while memory is looked at, so that whoever needs memory finds all of it. No user code runs under it.
    looking: Mutex<()>,
    wake: Condvar,
}

/// The lanes of one CUDA context.
#[derive(Default)]
pub(crate) struct Lanes([Arc<Inner>; LANES]);

const LANES: usize = 4;

/// Lanes whose threads run, for [`drain_background`]. An explored program (`simtile_sync::hook`) has a count of its own:
/// no exploration waits for another.
#[derive(Default)]
struct World {
    running: Mutex<usize>,
    idle: Condvar,
}

/// The calling thread's world. It is kept while anybody uses it.
fn world() -> Arc<World> {
    static WORLDS: Global<BTreeMap<usize, Arc<World>>> = Global::new(BTreeMap::new());
    let (mut worlds, mine) = (WORLDS.lock(), hook::world());
    worlds.retain(|&of, world| of == mine || Arc::strong_count(world) > 1);
    worlds.entry(mine).or_default().clone()
}

impl Lanes {
    /// Hands work over. Never waits.
    pub(crate) fn push(&self, lane: Lane, work: Work) {
        let inner = &self.0[lane as usize];
        let mut queue = inner.queue.lock();
        let serial = queue.next;
        queue.next += 1;
        queue.pending.insert(serial);
        queue.entries.push(Entry { serial, work });
        start(inner, queue);
    }

    /// Gives back on this thread the memory that can be given back now. Never waits for the device.
    pub(crate) fn collect(&self) {
        let inner = &self.0[Lane::Memory as usize];
        let looking = inner.looking.lock();
        let contexts = retire_all(inner);
        let mut queue = inner.queue.lock();
        let is_memory = |entry: &mut Entry| matches!(entry.work, Work::Memory(..));
        let entries: Vec<Entry> = queue.entries.extract_if(.., is_memory).collect();
        drop(queue);
        let handles = look(inner, entries);
        drop(looking);
        drop(contexts);
        let queue = inner.queue.lock();
        if !queue.entries.is_empty() {
            // Its thread may have found nothing meanwhile and gone.
            start(inner, queue);
        }
        drop_each(handles);
    }

    /// A point in all queues.
    pub(crate) fn mark(&self) -> [u64; LANES] {
        core::array::from_fn(|lane| self.0[lane].queue.lock().next)
    }

    /// How much of what arrived before the mark is not done.
    pub(crate) fn left_of(&self, mark: [u64; LANES]) -> usize {
        mark.iter().zip(&self.0).map(|(&end, inner)| inner.queue.lock().pending.range(..end).count()).sum()
    }
}

/// Wakes the thread of a lane, or starts it.
fn start(inner: &Arc<Inner>, mut queue: simtile_sync::MutexGuard<'_, Queue>) {
    if queue.running {
        drop(queue);
        inner.wake.notify_one();
        return;
    }
    queue.running = true;
    drop(queue);
    let world = world();
    *world.running.lock() += 1;
    let (mine, its) = (inner.clone(), world.clone());
    if simtile_sync::thread::spawn("simtile-reclaim", move || run(&mine, &its)).is_err() {
        // Without a thread nothing may be done here: it stays queued for the next one that starts.
        inner.queue.lock().running = false;
        stopped(&world);
    }
}

fn stopped(world: &World) {
    let mut running = world.running.lock();
    *running -= 1;
    if *running == 0 {
        world.idle.notify_all();
    }
}

fn run(inner: &Inner, world: &World) {
    let mut pause = PAUSES.0;
    loop {
        let mut queue = inner.queue.lock();
        // Once the process exits nothing more is given back: the driver takes everything with it.
        let busy = if queue.entries.is_empty() { None } else { crate::sys::background() };
        if busy.is_none() {
            queue.running = false;
            drop(queue);
            stopped(world);
            return;
        }
        let before = queue.pending.len();
        let arrived = queue.next;
        drop(queue);
        pass(inner);
        drop(busy);
        let mut queue = inner.queue.lock();
        if queue.pending.len() < before || queue.next != arrived {
            pause = PAUSES.0;
        } else {
            inner.wake.wait_for(&mut queue, pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Gives back what was dropped elsewhere: in the order of a stream, or by an entry of its own. With `looking` held, so that
/// whoever had it after a drop finds that entry. The contexts come back, to be dropped when nothing is locked.
fn retire_all(inner: &Inner) -> Vec<Held> {
    let is_retired = |entry: &mut Entry| matches!(entry.work, Work::Retire(..));
    let entries: Vec<Entry> = inner.queue.lock().entries.extract_if(.., is_retired).collect();
    let mut contexts = Vec::new();
    for Entry { serial, work } in entries {
        let Work::Retire(retired) = work else { continue };
        let (region, memory) = *retired;
        let context = Held(Some(memory.context().clone()));
        memory.retire(region);
        contexts.push(context);
        inner.queue.lock().pending.remove(&serial);
    }
    contexts
}

/// A context that may end here, whose owner is a user's value.
struct Held(Option<Arc<Context>>);

impl Drop for Held {
    fn drop(&mut self) {
        drop_user_value(self.0.take());
    }
}

/// Looks at every entry once.
fn pass(inner: &Inner) {
    let looking = inner.looking.lock();
    let contexts = retire_all(inner);
    let entries = core::mem::take(&mut inner.queue.lock().entries);
    let (memory, others): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| matches!(entry.work, Work::Memory(..)));
    let handles = look(inner, memory);
    drop(looking);
    drop_each(handles);
    drop(contexts);
    for Entry { serial, work } in others {
        match work {
            Work::Job(job) => {
                // A job drops user values (owners of borrowed handles), whose destructors may panic.
                let _ = catch_unwind(AssertUnwindSafe(job)).map_err(core::mem::forget);
            }
            Work::End(remains) if remains.ready() => {
                drop_user_value(remains);
            }
            work => {
                inner.queue.lock().entries.push(Entry { serial, work });
                continue;
            }
        }
        inner.queue.lock().pending.remove(&serial);
    }
}

/// Gives back the memory whose uses have finished, and queues the rest again. Handles come back, to be dropped when nothing
/// is locked.
fn look(inner: &Inner, entries: Vec<Entry>) -> Vec<Left> {
    // Where streams are known to stand in this pass, so that each is asked once, not once an entry.
    let mut pending: Pending = SmallVec::new();
    let (mut left, mut handles, mut done) = (Vec::new(), Vec::new(), Vec::new());
    for Entry { serial, work } in entries {
        let Work::Memory(memory, mut stamps) = work else { continue };
        memory.context().shared().fail_lost_agents();
        match settle_all(memory.tracker(), &mut stamps, &mut pending) {
            Outcome::Done => {
                let gone = memory.give_back();
                if gone.is_work() {
                    // Done when that is done.
                    left.push(Entry { serial, work: Work::Job(Box::new(move || drop(gone))) });
                    continue;
                }
                handles.push(gone);
            }
            Outcome::Failed => handles.push(memory.give_up()),
            Outcome::Wait => {
                left.push(Entry { serial, work: Work::Memory(memory, stamps) });
                continue;
            }
        }
        done.push(serial);
    }
    let mut queue = inner.queue.lock();
    queue.entries.extend(left);
    for serial in done {
        queue.pending.remove(&serial);
    }
    drop(queue);
    handles
}

/// Streams that were asked in this pass: the tracker, the axis, and the lowest epoch that is not complete.
type Pending = SmallVec<[(usize, AxisId, Epoch); 8]>;

enum Outcome {
    Done,
    Failed,
    Wait,
}

/// Forgets the stamps that have completed.
fn settle_all(tracker: &Tracker, stamps: &mut SmallVec<[Stamp; 4]>, pending: &mut Pending) -> Outcome {
    let key = core::ptr::from_ref(tracker).addr();
    let (mut failed, before) = (false, stamps.len());
    stamps.retain(|stamp| {
        if tracker.is_complete(*stamp) {
            return false;
        }
        let known = |entry: &&(usize, AxisId, Epoch)| entry.0 == key && entry.1 == stamp.axis;
        if pending.iter().find(known).is_some_and(|entry| entry.2 <= stamp.epoch)
            && !tracker.has_failed(stamp.axis)
        {
            return true;
        }
        match tracker.settle(*stamp) {
            Settled::Complete => return false,
            Settled::Failed => failed = true,
            Settled::Unsealed => {}
            Settled::Pending(event) => match tracker.query(&event) {
                Ok(true) => return false,
                Ok(false) => pending.push((key, stamp.axis, stamp.epoch)),
                Err(_) => failed = true,
            },
        }
        true
    });
    if is_planted(Bug::FreedBeforeSecondStream) && stamps.len() == 1 && before > 1 {
        return Outcome::Done;
    }
    match (failed, stamps.is_empty()) {
        (true, _) => Outcome::Failed,
        (false, true) => Outcome::Done,
        (false, false) => Outcome::Wait,
    }
}

/// Waits until the background threads of all contexts have done what they were given before and during the call, at most
/// `deadline`. Returns whether they have.
///
/// Useful before a process exits, and in tests that count driver calls.
pub fn drain_background(deadline: Duration) -> bool {
    let end = simtile_sync::time::now().saturating_add(deadline);
    let world = world();
    let mut running = world.running.lock();
    while *running > 0 {
        let now = simtile_sync::time::now();
        if now >= end {
            return false;
        }
        world.idle.wait_for(&mut running, end - now);
    }
    true
}

/// Drops a value whose destructor may be a user's: a panic in it, and the payload of that panic, end here. Whether there was
/// none.
pub(crate) fn drop_user_value<T>(value: T) -> bool {
    match catch_unwind(AssertUnwindSafe(|| drop(value))) {
        Ok(()) => true,
        Err(payload) => {
            core::mem::forget(payload);
            false
        }
    }
}

/// Drops the values one by one: a panic in one is no reason to lose the others.
fn drop_each<T>(values: Vec<T>) {
    for value in values {
        drop_user_value(value);
    }
}
