//! An operation that runs once and is asked for by many.
//!
//! It is in nobody's hands, in those of one thread that submits it, or done. Whoever finds it in another thread's hands is woken when
//! that thread lets go, done or not; whoever finds it in its own hands needs its own result. The operation, and what its output is
//! made into, are other people's code: no lock is held meanwhile, and wakers are woken with none held.

use crate::{DeviceOp, OpError, SubmitContext};
use core::task::{Poll, Waker};
use simtile_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::ThreadId;

enum State<A, R> {
    /// Not wholly submitted, and in nobody's hands.
    Waiting(Option<A>),
    /// A thread is submitting it.
    Polled(ThreadId),
    Done(R),
}

/// See the module. `R` is what is kept of the outcome.
pub(crate) struct Once<A, R> {
    state: Mutex<(State<A, R>, Vec<Waker>)>,
}

impl<A, R> Once<A, R> {
    pub(crate) fn new(op: A) -> Self {
        Self { state: Mutex::new((State::Waiting(Some(op)), Vec::new())) }
    }

    /// One that has run.
    pub(crate) fn done(result: R) -> Self {
        Self { state: Mutex::new((State::Done(result), Vec::new())) }
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
            let mut guard = self.state.lock();
            let (state, wakers) = &mut *guard;
            match state {
                State::Done(result) => return Poll::Ready(answer(result)),
                State::Polled(thread) if *thread == me => return Poll::Ready(Err(OpError::Reentrant)),
                State::Polled(_) => {
                    // A thread that may wait in place comes again with a waker.
                    if let Some(waker) = cx.waker() {
                        wakers.push(waker.clone());
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
        let polled = match catch_unwind(AssertUnwindSafe(|| op.poll_submit(cx))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(OpError::panicked(&*payload))),
        };
        match polled {
            Poll::Pending => {
                self.let_go(State::Waiting(Some(op)), |_| ());
                Poll::Pending
            }
            Poll::Ready(outcome) => {
                drop(op);
                let next = State::Done(keep(outcome));
                Poll::Ready(self.let_go(next, |state| match state {
                    State::Done(result) => answer(result),
                    State::Waiting(_) | State::Polled(_) => Err(OpError::Finished),
                }))
            }
        }
    }

    /// Puts it out of this thread's hands. Those who found it there try again: if it only got so far, one of them may go on.
    fn let_go<T>(&self, next: State<A, R>, answer: impl FnOnce(&mut State<A, R>) -> T) -> T {
        let mut guard = self.state.lock();
        let old = core::mem::replace(&mut guard.0, next);
        let answer = answer(&mut guard.0);
        let wakers = core::mem::take(&mut guard.1);
        drop(guard);
        drop(old);
        for waker in wakers {
            waker.wake();
        }
        answer
    }
}
