//! Completion without a thread per waiter.
//!
//! A future that is not done after its spin leaves a [`Ticket`] here. One thread polls the oldest event of each waiting stream for
//! 100 µs after the last thing that happened, which is when completions come fast. Then each stream that still waits is
//! handed to a *parked* thread (`parked.rs`), which looks ever more seldom until the event fires. Later waiters of that stream join
//! it; an earlier one gets a thread of its own. One observation wakes everybody up to its position. Nothing pending, nothing wakes.
//!
//! # Why no wake-up is lost
//! A ticket is a flag and a waker under one lock. The reactor sets the flag and takes the waker in one go; a poll looks at the flag
//! and leaves its waker in one go. So either the poll sees the flag, or the reactor sees the waker. The ticket is in its line before
//! the poll returns, and leaves it only when its flag is set. A failed query or wait sets the flags as well: the future asks for
//! itself and gets the error. The hand-off itself is [`Ticket`], which has a loom model.
//!
//! Wakers run with no lock held. Nothing of the driver is called under a lock.

mod parked;

pub use simtile_sync::Ticket;

use crate::worlds::Worlds;
use core::task::Waker;
use core::time::Duration;
use simtile_core::{Room, StreamId, Submission};
use simtile_sync::{Condvar, Mutex, hook, time};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How long the reactor polls after the last thing that happened.
const ACTIVE: Duration = Duration::from_micros(100);
/// Pause between looks at full queues, and between polls where time is virtual.
const PAUSE: Duration = Duration::from_micros(20);
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Reactor {
    state: Mutex<State>,
    bell: Condvar,
    parked: parked::Parked,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<StreamId, Line>,
    rooms: Vec<(Room, Waker)>,
    running: bool,
    /// Counts registrations, so that the thread sees one that came while it looked.
    arrived: u64,
}

/// Who waits for one stream, by position.
#[derive(Default)]
struct Line {
    waiting: Vec<(Submission, Arc<Ticket>)>,
    /// Positions that parked threads wait for.
    parked: SmallVec<[u64; 2]>,
}

impl Line {
    /// The oldest, unless a parked thread will see to it.
    fn head(&self) -> Option<&Submission> {
        let (done, _) = self.waiting.first()?;
        let covered = self.parked.iter().any(|&position| position <= done.position());
        (!covered).then_some(done)
    }

    /// Takes out everybody up to a position.
    fn take(&mut self, position: u64) -> Vec<(Submission, Arc<Ticket>)> {
        let end = self.waiting.partition_point(|(done, _)| done.position() <= position);
        self.waiting.drain(..end).collect()
    }
}

static REACTORS: Worlds<Reactor> = Worlds::new();

/// Wakes the ticket's waker when the work has finished, or cannot finish.
pub(crate) fn watch(done: &Submission, ticket: &Arc<Ticket>) {
    let reactor = REACTORS.mine();
    let mut state = reactor.state.lock();
    let line = state.lines.entry(done.stream_id()).or_default();
    let at = line.waiting.partition_point(|(other, _)| other.position() <= done.position());
    line.waiting.insert(at, (done.clone(), ticket.clone()));
    reactor.ring(state);
}

/// Wakes the waker when a refused submission is worth trying again.
pub(crate) fn watch_room(room: Room, waker: Waker) {
    let reactor = REACTORS.mine();
    let mut state = reactor.state.lock();
    state.rooms.push((room, waker));
    reactor.ring(state);
}

impl Reactor {
    /// Tells the thread that something arrived, or starts it. Without a thread everybody is woken: a future that is polled
    /// again asks for itself.
    fn ring(self: &Arc<Self>, mut state: simtile_sync::MutexGuard<'_, State>) {
        state.arrived += 1;
        if state.running {
            drop(state);
            self.bell.notify_one();
            return;
        }
        state.running = true;
        drop(state);
        let mine = self.clone();
        if simtile_sync::thread::spawn("simtile-reactor", move || mine.run()).is_err() {
            let mut state = self.state.lock();
            state.running = false;
            let lines = core::mem::take(&mut state.lines);
            let rooms = core::mem::take(&mut state.rooms);
            drop(state);
            for (_, ticket) in lines.into_values().flat_map(|line| line.waiting) {
                ticket.fire();
            }
            for (_, waker) in rooms {
                wake(waker);
            }
        }
    }

    fn run(self: Arc<Self>) {
        let mut last = time::now();
        let mut state = self.state.lock();
        loop {
            let arrived = state.arrived;
            let heads: SmallVec<[Submission; 8]> =
                state.lines.values().filter_map(Line::head).cloned().collect();
            let rooms = core::mem::take(&mut state.rooms);
            if heads.is_empty() && rooms.is_empty() {
                let timed_out = self.bell.wait_for(&mut state, IDLE);
                if state.arrived == arrived {
                    if timed_out {
                        state.running = false;
                        return;
                    }
                    continue;
                }
                last = time::now();
                continue;
            }
            drop(state);
            let happened = self.look(&heads) | self.look_at_rooms(rooms);
            if happened {
                last = time::now();
            } else if time::now().saturating_sub(last) > ACTIVE {
                self.park(&heads);
            } else if hook::current().is_some() {
                // Where time is virtual, only sleeping makes it go by.
                time::sleep(PAUSE);
            } else {
                simtile_sync::thread::yield_now();
            }
            state = self.state.lock();
            if state.arrived != arrived {
                last = time::now();
            } else if !state.rooms.is_empty() && state.lines.values().all(|line| line.head().is_none()) {
                self.bell.wait_for(&mut state, PAUSE);
            }
        }
    }

    /// Asks about the oldest of each line, and wakes whoever is done.
    fn look(&self, heads: &[Submission]) -> bool {
        let mut happened = false;
        for done in heads {
            // An error is everybody's: they ask for themselves.
            if !matches!(done.is_complete(), Ok(false)) {
                self.finished(done, None);
                happened = true;
            }
        }
        happened
    }

    /// Wakes everybody on this stream up to this position. `parked`: a parked thread waited for it.
    fn finished(&self, done: &Submission, parked: Option<u64>) {
        let mut state = self.state.lock();
        let mut tickets = Vec::new();
        if let Some(line) = state.lines.get_mut(&done.stream_id()) {
            tickets = line.take(done.position());
            if let Some(position) = parked {
                line.parked.retain(|other| *other != position);
            }
            if line.waiting.is_empty() && line.parked.is_empty() {
                let line = state.lines.remove(&done.stream_id());
                drop(state);
                drop(line);
            } else {
                drop(state);
            }
        } else {
            drop(state);
        }
        for (_, ticket) in tickets {
            ticket.fire();
        }
    }

    fn look_at_rooms(&self, rooms: Vec<(Room, Waker)>) -> bool {
        let mut happened = false;
        let mut left = Vec::new();
        for (room, waker) in rooms {
            if matches!(room.is_there(), Ok(false)) {
                left.push((room, waker));
            } else {
                wake(waker);
                happened = true;
            }
        }
        self.state.lock().rooms.append(&mut left);
        happened
    }

    /// Hands what still waits to parked threads. Without a thread it stays here.
    fn park(self: &Arc<Self>, heads: &[Submission]) {
        for done in heads {
            let mut state = self.state.lock();
            let position = match state.lines.get_mut(&done.stream_id()) {
                Some(line) if line.head().is_some_and(|head| head.position() == done.position()) => {
                    line.parked.push(done.position());
                    done.position()
                }
                _ => continue,
            };
            drop(state);
            if !self.parked.take(self, done.clone()) {
                let mut state = self.state.lock();
                if let Some(line) = state.lines.get_mut(&done.stream_id()) {
                    line.parked.retain(|other| *other != position);
                }
                drop(state);
                time::sleep(PAUSE);
            }
        }
    }

    /// What a parked thread of this stream waits for next.
    fn next(&self, done: &Submission) -> Option<Submission> {
        let mut state = self.state.lock();
        let line = state.lines.get_mut(&done.stream_id())?;
        let next = line.head()?.clone();
        line.parked.push(next.position());
        Some(next)
    }
}

/// Wakers are other people's code: a panic of one is not the others' business.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}
