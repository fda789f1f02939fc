//! Threads that wait for one stream each until nobody waits for it, and are kept for a while then.
//!
//! The driver's own wait keeps a core busy on events of the usual kind, and events on which threads sleep make every record and wait
//! dearer (docs/measurements). So a thread here asks, and sleeps in between: a sixteenth of the time that it has waited, at least 20 µs, at
//! most 1 ms. That is late by a sixteenth of the wait or a millisecond, whichever is less, and below one per cent of a core.

use super::{IDLE, Reactor};
use core::time::Duration;
use simtile_core::Submission;
use simtile_sync::{Condvar, Mutex, time};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pauses between two looks.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct Parked {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Submission>,
    idle: usize,
}

impl Parked {
    /// Gives a thread something to wait for. `false`: there is none, and none can be started.
    pub(super) fn take(&self, reactor: &Arc<Reactor>, done: Submission) -> bool {
        let mut state = self.state.lock();
        if state.idle > state.queue.len() {
            state.queue.push_back(done);
            drop(state);
            self.bell.notify_one();
            return true;
        }
        drop(state);
        let mine = reactor.clone();
        simtile_sync::thread::spawn("simtile-waiter", move || serve(&mine, done)).is_ok()
    }

    fn next(&self) -> Option<Submission> {
        let mut state = self.state.lock();
        state.idle += 1;
        while state.queue.is_empty() {
            if self.bell.wait_for(&mut state, IDLE) && state.queue.is_empty() {
                break;
            }
        }
        state.idle -= 1;
        state.queue.pop_front()
    }
}

/// Until the work has finished, or cannot: an error is everybody's, they ask for themselves.
fn wait(done: &Submission) {
    let start = time::now();
    while matches!(done.is_complete(), Ok(false)) {
        let waited = time::now().saturating_sub(start);
        time::sleep((waited / 16).clamp(SHORTEST, LONGEST));
    }
}

fn serve(reactor: &Reactor, first: Submission) {
    let mut next = Some(first);
    while let Some(done) = next {
        wait(&done);
        reactor.finished(&done, Some(done.position()));
        next = reactor.next(&done);
        drop(done);
        if next.is_none() {
            next = reactor.parked.next();
        }
    }
}
