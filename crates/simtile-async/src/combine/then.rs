//! One after the other.

use crate::{DeviceOp, ExecutionContext, OpError, SubmitContext, into_future};
use core::task::Poll;

enum State<A, F, B> {
    First(A, F),
    Second(B),
    Done,
}

impl<A: DeviceOp, F, B: DeviceOp> State<A, F, B> {
    fn poll(
        &mut self,
        cx: &mut SubmitContext<'_>,
        next: impl FnOnce(F, A::Output) -> B,
    ) -> Poll<Result<B::Output, OpError>> {
        if let Self::First(first, _) = self {
            let output = match first.poll_submit(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(output) => output,
            };
            // Taken out first: a panic of the closure leaves an operation that has finished.
            let Self::First(first, f) = core::mem::replace(self, Self::Done) else {
                return Poll::Ready(Err(OpError::Finished));
            };
            drop(first);
            match output {
                Ok(output) => *self = Self::Second(next(f, output)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let Self::Second(second) = self else { return Poll::Ready(Err(OpError::Finished)) };
        let polled = second.poll_submit(cx);
        if polled.is_ready() {
            *self = Self::Done;
        }
        polled
    }
}

/// See [`DeviceOp::then`].
#[must_use = "operations are lazy"]
pub struct Then<A, F, B>(State<A, F, B>);

impl<A, F, B> Then<A, F, B> {
    pub(crate) fn new(first: A, f: F) -> Self {
        Self(State::First(first, f))
    }
}

impl<A, F, B> DeviceOp for Then<A, F, B>
where
    A: DeviceOp,
    F: FnOnce(A::Output) -> B + Send,
    B: DeviceOp,
{
    type Output = B::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<B::Output, OpError>> {
        self.0.poll(cx, |f, output| f(output))
    }
}

into_future!([A, F, B] Then<A, F, B>);

/// See [`DeviceOp::and_then_with_context`].
#[must_use = "operations are lazy"]
pub struct AndThenWithContext<A, F, B>(State<A, F, B>);

impl<A, F, B> AndThenWithContext<A, F, B> {
    pub(crate) fn new(first: A, f: F) -> Self {
        Self(State::First(first, f))
    }
}

impl<A, F, B> DeviceOp for AndThenWithContext<A, F, B>
where
    A: DeviceOp,
    F: FnOnce(&ExecutionContext, A::Output) -> B + Send,
    B: DeviceOp,
{
    type Output = B::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<B::Output, OpError>> {
        let execution = cx.execution();
        self.0.poll(cx, |f, output| f(execution, output))
    }
}

into_future!([A, F, B] AndThenWithContext<A, F, B>);
