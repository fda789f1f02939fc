//! Running an operation from a thread that may wait.
//!
//! Inside a submission the core waits for permits itself. What is left is what only a poll can say: a shared result that another
//! thread is making. For that the thread parks on a waker of its own, holding nothing.

use crate::context::Refusal;
use crate::error::forked;
use crate::output::HostBudget;
use crate::{DeviceOp, DeviceOutput, ExecutionContext, OpError, SubmitContext};
use core::task::{Poll, Waker};
use simtile_core::Submission;
use simtile_sync::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Wake;

/// Submits what is left of an operation. A panic of its closures is an error.
pub(crate) fn poll<Op: DeviceOp>(
    op: &mut Op,
    cx: &mut SubmitContext<'_>,
) -> Poll<Result<Op::Output, OpError>> {
    match catch_unwind(AssertUnwindSafe(|| op.poll_submit(cx))) {
        Ok(polled) => polled,
        Err(payload) => Poll::Ready(Err(OpError::panicked(&*payload))),
    }
}

/// Submits and waits for nothing but room.
pub(crate) fn enqueue<Op: DeviceOp>(mut op: Op, execution: &ExecutionContext) -> Result<Op::Output, OpError> {
    if let Poll::Ready(outcome) = poll(&mut op, &mut SubmitContext::patient(execution)) {
        return outcome;
    }
    // Somebody else's result is awaited.
    let parked = Parked::new();
    let waker = Waker::from(parked.clone());
    loop {
        if let Some(error) = forked("what another thread submits") {
            return Err(error);
        }
        if let Poll::Ready(outcome) = poll(&mut op, &mut SubmitContext::task(execution, &waker)) {
            return outcome;
        }
        parked.wait();
    }
}

/// Submits without looking for conflicts.
pub(crate) fn unordered<Op: DeviceOp>(
    mut op: Op,
    execution: &ExecutionContext,
) -> Result<Op::Output, OpError> {
    match poll(&mut op, &mut SubmitContext::patient(execution).unordered()) {
        Poll::Ready(outcome) => outcome,
        // Somebody else's result is awaited, which is nothing of this operation.
        Poll::Pending => Err(OpError::NotReady),
    }
}

pub(crate) fn try_enqueue<Op: DeviceOp>(
    mut op: Op,
    execution: &ExecutionContext,
) -> Result<Op::Output, OpError> {
    let refusal = Refusal::default();
    match poll(&mut op, &mut SubmitContext::impatient(execution, &refusal)) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(refusal.into_error(execution.stream())),
    }
}

/// Submits, waits and opens. The error of the submission comes before that of the work.
pub(crate) fn sync<Op: DeviceOp>(
    op: Op,
    execution: &ExecutionContext,
) -> Result<<Op::Output as DeviceOutput>::Ready, OpError> {
    let output = enqueue(op, execution)?;
    mark(execution)?.wait()?;
    open(output)
}

/// The end of everything that the stream was given so far. Takes no room in the queues.
pub(crate) fn mark(execution: &ExecutionContext) -> Result<Submission, OpError> {
    Ok(execution.stream().submit().awaited().order_only()?)
}

/// As [`mark`], in a poll: not now, if another thread is submitting.
pub(crate) fn poll_mark(execution: &ExecutionContext, waker: &Waker) -> Poll<Result<Submission, OpError>> {
    let marked = execution.stream().submit().awaited().no_wait().order_only();
    SubmitContext::task(execution, waker).settle(marked)
}

/// Opens an output whose work has finished, all of it at once.
pub(crate) fn open<T: DeviceOutput>(mut output: T) -> Result<T::Ready, OpError> {
    loop {
        if let Poll::Ready(ready) = output.poll_ready(&mut HostBudget::new(usize::MAX)) {
            ready?;
            return output.open();
        }
    }
}

/// A thread that waits for its waker.
struct Parked {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parked {
    fn new() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::new(false), changed: Condvar::new() })
    }

    fn wait(&self) {
        let mut woken = self.woken.lock();
        while !core::mem::take(&mut *woken) {
            self.changed.wait(&mut woken);
        }
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let parked = Parked::new();
    let waker = Waker::from(parked.clone());
    let mut cx = core::task::Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = core::pin::Pin::new(&mut future).poll(&mut cx) {
            return output;
        }
        parked.wait();
    }
}
