//! An operation that runs once and is asked for by many.
//!
//! It is in nobody's hands, in those of one thread that submits it, or done. Whoever finds it in its own hands needs its own result.
//! Every task that asks leaves its waker. The operation itself is given one waker for all of them, so that whatever it waits for wakes all:
//! the task that asked last may be given up, and another one goes on. Whoever is done, or has waited in place, wakes all, too. The operation,
//! and what its output is made into, are other people's code: no lock is held meanwhile, and wakers are woken with none held.

use crate::{DeviceOp, OpError, SubmitContext};
use core::task::{Poll, Waker};
use simtile_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Wake;
use std::thread::ThreadId;

enum State<A, R> {
    /// Not wholly submitted, and in nobody's hands.
    Waiting(Option<A>),
    /// A thread is submitting it.
    Polled(ThreadId),
    Done(R),
}

/// Those who are to be woken, as one waker.
#[derive(Default)]
struct Askers(Mutex<(Vec<Waker>, u64)>);

impl Askers {
    /// Adds one, once. (Wakers are other people's code: cloned and dropped without the lock.)
    fn add(&self, waker: &Waker) {
        let mut one = Some(waker.clone());
        let list = &mut self.0.lock().0;
        if !list.iter().any(|known| known.will_wake(waker)) {
            list.extend(one.take());
        }
    }

    /// Takes one out who has an answer.
    fn remove(&self, waker: &Waker) {
        let _gone: Vec<Waker> = self.0.lock().0.extract_if(.., |known| known.will_wake(waker)).collect();
    }

    /// How often they have been woken.
    fn woken(&self) -> u64 {
        self.0.lock().1
    }

    fn wake_all(&self) {
        let wakers = {
            let mut guard = self.0.lock();
            guard.1 += 1;
            core::mem::take(&mut guard.0)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Askers {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

/// See the module. `R` is what is kept of the outcome.
pub(crate) struct Once<A, R> {
    state: Mutex<State<A, R>>,
    askers: Arc<Askers>,
}

impl<A, R> Once<A, R> {
    pub(crate) fn new(op: A) -> Self {
        Self { state: Mutex::new(State::Waiting(Some(op))), askers: Arc::default() }
    }

    /// One that has run.
    pub(crate) fn done(result: R) -> Self {
        Self { state: Mutex::new(State::Done(result)), askers: Arc::default() }
    }
}

impl<A: DeviceOp, R> Once<A, R> {
    /// Runs the operation if nobody has, makes its outcome what is kept, and takes an answer from that. `answer` runs under the
    /// lock: it only moves and clones what is ours.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut SubmitContext<'_>,
        keep: impl FnOnce(Result<A::Output, OpError>) -> R,
        answer: impl FnOnce(&mut R) -> Result<T, OpError>,
    ) -> Poll<Result<T, OpError>> {
        let me = std::thread::current().id();
        let mut op = {
            let mut state = self.state.lock();
            match &mut *state {
                State::Done(result) => return Poll::Ready(answer(result)),
                State::Polled(thread) if *thread == me => return Poll::Ready(Err(OpError::Reentrant)),
                State::Polled(_) => {
                    // A thread that may wait in place comes again with a waker.
                    if let Some(waker) = cx.waker() {
                        self.askers.add(waker);
                    }
                    return Poll::Pending;
                }
                State::Waiting(op) => match op.take() {
                    Some(op) => {
                        *state = State::Polled(me);
                        op
                    }
                    None => return Poll::Ready(Err(OpError::Finished)),
                },
            }
        };
        let before = self.askers.woken();
        if let Some(waker) = cx.waker() {
            self.askers.add(waker);
        }
        let all = Waker::from(self.askers.clone());
        let polled = match catch_unwind(AssertUnwindSafe(|| op.poll_submit(&mut cx.woken_by(&all)))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(OpError::panicked(&*payload))),
        };
        match polled {
            Poll::Pending => {
                // Without a task nothing will wake the others; and who was woken meanwhile may have come too early.
                self.let_go(State::Waiting(Some(op)), cx.waker().map(|_| before), |_| ());
                Poll::Pending
            }
            Poll::Ready(outcome) => {
                drop(op);
                if let Some(waker) = cx.waker() {
                    self.askers.remove(waker);
                }
                let next = State::Done(keep(outcome));
                Poll::Ready(self.let_go(next, None, |state| match state {
                    State::Done(result) => answer(result),
                    State::Waiting(_) | State::Polled(_) => Err(OpError::Finished),
                }))
            }
        }
    }

    /// Puts it out of this thread's hands. Those who are woken try again: if it only got so far, one of them may go on. `unless`: nobody is,
    /// if they have not been woken since they had been so often.
    fn let_go<T>(
        &self,
        next: State<A, R>,
        unless: Option<u64>,
        answer: impl FnOnce(&mut State<A, R>) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let old = core::mem::replace(&mut *state, next);
        let answer = answer(&mut state);
        drop(state);
        drop(old);
        // Asked after others can take it: who is woken from here on finds it.
        if unless.is_none_or(|before| self.askers.woken() != before) {
            self.askers.wake_all();
        }
        answer
    }
}
