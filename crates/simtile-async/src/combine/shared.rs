//! One run, many results.
//!
//! The first clone that is submitted runs the operation, on its stream; everybody else gets the same `Arc`. Work on other streams
//! that uses the result follows it as it follows any work: by the bytes that it touches. Whoever comes while the operation is being
//! submitted is told when it has been; an operation that needs its own result gets [`OpError::Reentrant`].

use super::BoxedDeviceOp;
use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::{Poll, Waker};
use simtile_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;

/// Where a shared operation stands.
enum State<T> {
    /// Not wholly submitted, and in nobody's hands.
    Waiting(Option<BoxedDeviceOp<'static, T>>),
    /// A thread is submitting it.
    Polled(ThreadId),
    /// In which world it ran, and what it gave.
    Done(Option<u64>, Result<Arc<T>, OpError>),
}

pub(crate) struct Shared<T> {
    state: Mutex<(State<T>, Vec<Waker>)>,
}

impl<T> Shared<T> {
    pub(crate) fn new(op: BoxedDeviceOp<'static, T>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((State::Waiting(Some(op)), Vec::new())) })
    }
}

/// See [`DeviceOp::shared`].
#[must_use = "operations are lazy"]
pub struct SharedDeviceOp<T> {
    shared: Arc<Shared<T>>,
}

/// A shared operation that has run already, and gave `value`.
pub fn shared<T>(value: Arc<T>) -> SharedDeviceOp<T> {
    let state = Mutex::new((State::Done(None, Ok(value)), Vec::new()));
    SharedDeviceOp { shared: Arc::new(Shared { state }) }
}

impl<T> SharedDeviceOp<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared }
    }
}

impl<T> Clone for SharedDeviceOp<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: DeviceOutput + Send + Sync> DeviceOp for SharedDeviceOp<T> {
    type Output = Arc<T>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Arc<T>, OpError>> {
        let me = std::thread::current().id();
        let mut op = {
            let mut guard = self.shared.state.lock();
            let (state, wakers) = &mut *guard;
            match state {
                State::Done(Some(world), Ok(_)) if *world != cx.execution().world() => {
                    let name = |world: u64| if world == 0 { "outside of captures" } else { "in a capture" };
                    let (ran, wanted) = (name(*world), name(cx.execution().world()));
                    return Poll::Ready(Err(OpError::OtherWorld { ran, wanted }));
                }
                State::Done(_, outcome) => return Poll::Ready(outcome.clone()),
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
        // Closures of the operation are other people's code: no lock is held.
        let polled = match catch_unwind(AssertUnwindSafe(|| op.poll_submit(cx))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(OpError::panicked(&*payload))),
        };
        let (next, answer) = match polled {
            Poll::Pending => (State::Waiting(Some(op)), Poll::Pending),
            Poll::Ready(outcome) => {
                drop(op);
                let outcome = outcome.map(Arc::new);
                (State::Done(Some(cx.execution().world()), outcome.clone()), Poll::Ready(outcome))
            }
        };
        let mut guard = self.shared.state.lock();
        let old = core::mem::replace(&mut guard.0, next);
        // Those who found it in our hands try again: if we only got so far, one of them may go on.
        let wakers = core::mem::take(&mut guard.1);
        drop(guard);
        drop(old);
        for waker in wakers {
            waker.wake();
        }
        answer
    }
}

into_future!([T] SharedDeviceOp<T>);
