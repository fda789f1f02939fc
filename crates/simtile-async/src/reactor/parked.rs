//! Threads that sleep in the driver until an event fires. They serve one stream until nobody waits for it, and are kept for a while
//! then.

use super::{IDLE, Reactor};
use simtile_core::Submission;
use simtile_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

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

fn serve(reactor: &Reactor, first: Submission) {
    let mut next = Some(first);
    while let Some(done) = next {
        // An error is everybody's: they ask for themselves.
        let _ = done.wait();
        reactor.finished(&done, Some(done.position()));
        next = reactor.next(&done);
        drop(done);
        if next.is_none() {
            next = reactor.parked.next();
        }
    }
}
