//! The future of an operation.

use crate::error::forked;
use crate::output::HostBudget;
use crate::reactor::{self, Ticket};
use crate::{
    DeviceOp, DeviceOutput, ExecutionContext, OpError, Runtime, SchedulingPolicy, SubmitContext, drive,
    runtime, worker,
};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use simtile_core::Submission;
use std::sync::Arc;

/// An operation that runs when it is polled: the first poll submits, later ones look whether the work has finished.
///
/// It needs no particular executor. Dropping or forgetting it waits for nothing: before the first poll nothing was submitted, and
/// after it the work owns what it touches until it has finished. A future that has given its result gives
/// [`OpError::Finished`] when it is polled again.
#[must_use = "futures do nothing unless polled"]
pub struct DeviceFuture<Op: DeviceOp> {
    execution: Option<ExecutionContext>,
    /// Finds out where, if that takes long.
    placing: Option<Placing>,
    state: State<Op>,
    spin: Option<Duration>,
}

/// The search for a stream on a runtime that has made nothing yet: retaining a context is nothing that a poll may do.
enum Placing {
    Asked(Runtime),
    Found(worker::Job<Result<ExecutionContext, OpError>>),
}

impl Placing {
    fn poll(&mut self, waker: &core::task::Waker) -> Poll<Result<ExecutionContext, OpError>> {
        loop {
            match self {
                Self::Found(job) => return job.poll(waker).map(|outcome| outcome?),
                Self::Asked(runtime) => {
                    let runtime = runtime.clone();
                    match worker::start(move || runtime.next_execution()) {
                        Ok(job) => *self = Self::Found(job),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
        }
    }
}

enum State<Op: DeviceOp> {
    /// Not, or not wholly, submitted.
    Submitting(Op),
    /// Submitted, with no event behind it yet.
    Marking(Op::Output),
    /// Submitted.
    Running {
        output: Op::Output,
        done: Submission,
        ticket: Option<Arc<Ticket>>,
    },
    /// The work has finished, host data is being moved.
    Opening(Op::Output),
    Failed(OpError),
    Finished,
}

// The operation and its output are moved, never pinned.
impl<Op: DeviceOp> Unpin for DeviceFuture<Op> {}

impl<Op: DeviceOp> DeviceFuture<Op> {
    /// A future that runs `op` where `execution` says.
    pub fn scheduled(op: Op, execution: ExecutionContext) -> Self {
        Self { execution: Some(execution), placing: None, state: State::Submitting(op), spin: None }
    }

    /// A future that runs `op` where this runtime says: on a stream chosen now if the runtime has made its streams, else on
    /// one chosen after the first poll, by a thread that may wait for the context.
    pub fn placed_by(op: Op, runtime: &Runtime) -> Self {
        if runtime.is_prepared() {
            return match runtime.next_execution() {
                Ok(execution) => Self::scheduled(op, execution),
                Err(error) => Self::failed(error),
            };
        }
        let placing = Some(Placing::Asked(runtime.clone()));
        Self { execution: None, placing, state: State::Submitting(op), spin: None }
    }

    /// A future that gives this error.
    pub fn failed(error: OpError) -> Self {
        Self { execution: None, placing: None, state: State::Failed(error), spin: None }
    }

    /// How long the first poll asks for completion before it gives its thread back. The default is the runtime's.
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = Some(budget);
        self
    }

    /// Where it will run; `None` once it has been submitted, if it failed before that was known, and as long as that is not
    /// known (the first operation of a runtime that was not [prepared](Runtime::prepare)).
    pub fn execution(&self) -> Option<&ExecutionContext> {
        self.execution.as_ref()
    }

    /// Whether the work has been submitted.
    pub fn is_submitted(&self) -> bool {
        !matches!(self.state, State::Submitting(_))
    }

    /// Submits now what goes without waiting, so that the device has work while other things are prepared. What is left is
    /// submitted by polls.
    ///
    /// # Errors
    /// Of the submission. The future gives it, too.
    pub fn start(&mut self) -> Result<(), OpError> {
        let noop = core::task::Waker::noop();
        let _ = simtile_core::with_drops_elsewhere(|| self.submit(noop));
        match &self.state {
            State::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn submit(&mut self, waker: &core::task::Waker) -> Poll<()> {
        if !matches!(self.state, State::Submitting(_) | State::Marking(_)) {
            return Poll::Ready(());
        }
        if let Some(placing) = &mut self.placing {
            let placed = match placing.poll(waker) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(placed) => placed,
            };
            self.placing = None;
            match placed {
                Ok(execution) => self.execution = Some(execution),
                Err(error) => {
                    self.state = State::Failed(error);
                    return Poll::Ready(());
                }
            }
        }
        let Some(execution) = &self.execution else {
            self.state = State::Failed(OpError::NoRuntime);
            return Poll::Ready(());
        };
        if let State::Submitting(op) = &mut self.state {
            match drive::poll(op, &mut SubmitContext::task(execution, waker)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(output)) => self.state = State::Marking(output),
                Poll::Ready(Err(error)) => {
                    self.state = State::Failed(error);
                    return Poll::Ready(());
                }
            }
        }
        // The event behind the work: whoever waits for an epoch seals it. It takes no room, so a poll that has submitted its
        // work waits for nothing.
        let done = match drive::poll_mark(execution, waker) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(done) => done,
        };
        self.state = match (core::mem::replace(&mut self.state, State::Finished), done) {
            (State::Marking(output), Ok(done)) => {
                // From here on the work alone needs the stream. A future that is forgotten does not keep it open.
                self.execution = None;
                State::Running { output, done, ticket: None }
            }
            (_, Err(error)) => State::Failed(error),
            (other, Ok(_)) => other,
        };
        Poll::Ready(())
    }

    /// Whether the work has finished; spins for a while on the first call.
    fn finished(&mut self, cx: &Context<'_>) -> Poll<Result<(), OpError>> {
        let spin = self.spin;
        let State::Running { done, ticket, .. } = &mut self.state else { return Poll::Ready(Ok(())) };
        match ticket {
            Some(ticket) => {
                if !ticket.poll(cx.waker()) {
                    return Poll::Pending;
                }
            }
            None => {
                if spin_for(done, spin.unwrap_or_else(runtime::spin_budget))? {
                    return Poll::Ready(Ok(()));
                }
                let new = Ticket::new(cx.waker());
                reactor::watch(done, &new);
                *ticket = Some(new);
                return Poll::Pending;
            }
        }
        if done.is_complete()? {
            return Poll::Ready(Ok(()));
        }
        // The reactor could not have a thread, and woke everybody.
        let new = Ticket::new(cx.waker());
        reactor::watch(done, &new);
        *ticket = Some(new);
        Poll::Pending
    }
}

/// Asks until it is done or the budget is used up; at least once.
fn spin_for(done: &Submission, budget: Duration) -> Result<bool, OpError> {
    if done.is_complete()? {
        return Ok(true);
    }
    if budget.is_zero() || simtile_sync::hook::current().is_some() {
        // Where threads take turns, spinning only passes them on.
        return Ok(false);
    }
    let start = simtile_sync::time::now();
    while simtile_sync::time::now().saturating_sub(start) < budget {
        core::hint::spin_loop();
        if done.is_complete()? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl<Op: DeviceOp> Future for DeviceFuture<Op> {
    type Output = Result<<Op::Output as DeviceOutput>::Ready, OpError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A poll holds its thread for nothing, also not for a free.
        simtile_core::with_drops_elsewhere(|| self.poll_here(cx))
    }
}

impl<Op: DeviceOp> DeviceFuture<Op> {
    fn poll_here(&mut self, cx: &mut Context<'_>) -> Poll<<Self as Future>::Output> {
        let this = self;
        // Nobody wakes it in a forked child.
        let pending = || match forked("a future that another thread was to wake") {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        };
        if this.submit(cx.waker()).is_pending() {
            return pending();
        }
        match this.finished(cx) {
            Poll::Pending => return pending(),
            Poll::Ready(Err(error)) => this.state = State::Failed(error),
            Poll::Ready(Ok(())) => {}
        }
        let mut output = match core::mem::replace(&mut this.state, State::Finished) {
            State::Failed(error) => return Poll::Ready(Err(error)),
            State::Running { output, .. } | State::Opening(output) => output,
            // `submit` leaves no such state.
            State::Submitting(_) | State::Marking(_) | State::Finished => {
                return Poll::Ready(Err(OpError::Finished));
            }
        };
        match output.poll_ready(&mut HostBudget::new(HostBudget::POLL)) {
            Poll::Pending => {
                this.state = State::Opening(output);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(output.open()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl<Op: DeviceOp> Drop for DeviceFuture<Op> {
    fn drop(&mut self) {
        if let State::Running { ticket: Some(ticket), .. } = &self.state {
            ticket.forget();
        }
    }
}

impl<Op: DeviceOp> core::fmt::Debug for DeviceFuture<Op> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = match &self.state {
            State::Submitting(_) => "not submitted",
            State::Marking(_) => "submitted",
            State::Running { .. } => "running",
            State::Opening(_) => "opening",
            State::Failed(_) => "failed",
            State::Finished => "finished",
        };
        f.debug_struct("DeviceFuture").field("state", &state).field("execution", &self.execution).finish()
    }
}
