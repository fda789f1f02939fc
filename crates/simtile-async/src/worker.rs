//! Threads for what may take long: a module load, an allocation. A poll hands such work over and is told when it has been done.
//!
//! At most [`MOST`] threads; they start with work and end after [`IDLE`] without any. Nothing pending, nothing wakes.

use crate::OpError;
use crate::error::forked;
use crate::worlds::Worlds;
use core::task::{Poll, Waker};
use core::time::Duration;
use simtile_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const MOST: usize = 8;
const IDLE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Workers {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    idle: usize,
}

static WORKERS: Worlds<Workers> = Worlds::new();

/// Work that was handed over. Dropping it does not stop the work.
pub struct Job<T> {
    slot: Arc<(Mutex<Slot<T>>, Condvar)>,
}

struct Slot<T> {
    outcome: Option<Result<T, OpError>>,
    waker: Option<Waker>,
}

impl<T> Job<T> {
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<T, OpError>> {
        if let Some(error) = forked("work that was handed to another thread") {
            return Poll::Ready(Err(error));
        }
        let mut slot = self.slot.0.lock();
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                let old = slot.waker.replace(waker.clone());
                drop(slot);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl<T> Job<T> {
    /// Waits until it has been done, on this thread.
    pub(crate) fn wait(&mut self) -> Result<T, OpError> {
        if let Some(error) = forked("work that was handed to another thread") {
            return Err(error);
        }
        let (slot, done) = &*self.slot;
        let mut slot = slot.lock();
        loop {
            match slot.outcome.take() {
                Some(outcome) => return outcome,
                None => done.wait(&mut slot),
            }
        }
    }

    /// What came of it, if it has been done.
    pub(crate) fn done(&mut self) -> Option<Result<T, OpError>> {
        self.slot.0.lock().outcome.take()
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        // Nobody is to be woken any more.
        let old = self.slot.0.lock().waker.take();
        drop(old);
    }
}

impl<T> core::fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Job")
    }
}

/// Hands work over.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<Job<T>, OpError> {
    let slot = Arc::new((Mutex::new(Slot { outcome: None, waker: None }), Condvar::new()));
    let job = Job { slot: slot.clone() };
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(work)).map_err(|payload| OpError::panicked(&*payload));
        let (slot, done) = &*slot;
        let mut slot = slot.lock();
        slot.outcome = Some(outcome);
        let waker = slot.waker.take();
        drop(slot);
        done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    hand_over(Box::new(run))?;
    Ok(job)
}

fn hand_over(run: Box<dyn FnOnce() + Send>) -> Result<(), OpError> {
    let workers = WORKERS.mine();
    let mut state = workers.state.lock();
    state.queue.push_back(run);
    if state.idle >= state.queue.len() || state.threads >= MOST {
        drop(state);
        workers.bell.notify_one();
        return Ok(());
    }
    state.threads += 1;
    drop(state);
    let mine = workers.clone();
    match simtile_sync::thread::spawn("simtile-worker", move || serve(&mine)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let mut state = workers.state.lock();
            state.threads -= 1;
            if state.threads > 0 {
                // Those that there are will come to it.
                return Ok(());
            }
            let run = state.queue.pop_back();
            drop(state);
            drop(run);
            Err(OpError::NoThread { what: "work that may take long", why: error.to_string() })
        }
    }
}

fn serve(workers: &Workers) {
    let mut state = workers.state.lock();
    loop {
        if let Some(run) = state.queue.pop_front() {
            drop(state);
            // Wakers are other people's code.
            let _ = catch_unwind(AssertUnwindSafe(run));
            state = workers.state.lock();
            continue;
        }
        state.idle += 1;
        let timed_out = workers.bell.wait_for(&mut state, IDLE);
        state.idle -= 1;
        if timed_out && state.queue.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}
