//! Operations that submit nothing themselves.

use crate::{DeviceOp, DeviceOutput, ExecutionContext, OpError, SubmitContext, into_future};
use core::task::Poll;

/// See [`value`].
#[must_use = "operations are lazy"]
#[derive(Debug)]
pub struct Value<T>(Option<T>);

/// An operation that gives `value` and does nothing.
pub fn value<T: DeviceOutput + Send>(value: T) -> Value<T> {
    Value(Some(value))
}

impl<T: DeviceOutput + Send> DeviceOp for Value<T> {
    type Output = T;

    fn poll_submit(&mut self, _: &mut SubmitContext<'_>) -> Poll<Result<T, OpError>> {
        Poll::Ready(self.0.take().ok_or(OpError::Finished))
    }
}

into_future!([T] Value<T>);

enum State<F, B> {
    First(F),
    Second(B),
    Done,
}

impl<F, B: DeviceOp> State<F, B> {
    fn poll(
        &mut self,
        cx: &mut SubmitContext<'_>,
        make: impl FnOnce(F) -> B,
    ) -> Poll<Result<B::Output, OpError>> {
        match core::mem::replace(self, Self::Done) {
            Self::First(f) => *self = Self::Second(make(f)),
            other => *self = other,
        }
        let Self::Second(op) = self else { return Poll::Ready(Err(OpError::Finished)) };
        let polled = op.poll_submit(cx);
        if polled.is_ready() {
            *self = Self::Done;
        }
        polled
    }
}

/// See [`empty`].
#[must_use = "operations are lazy"]
pub struct Empty<F, B>(State<F, B>);

/// The operation that `make` makes when it is time to submit.
pub fn empty<F, B>(make: F) -> Empty<F, B>
where
    F: FnOnce() -> B + Send,
    B: DeviceOp,
{
    Empty(State::First(make))
}

impl<F: FnOnce() -> B + Send, B: DeviceOp> DeviceOp for Empty<F, B> {
    type Output = B::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<B::Output, OpError>> {
        self.0.poll(cx, |make| make())
    }
}

into_future!([F, B] Empty<F, B>);

/// See [`with_context`].
#[must_use = "operations are lazy"]
pub struct WithContext<F, B>(State<F, B>);

/// The operation that `make` makes when it is time to submit, told where it runs.
pub fn with_context<F, B>(make: F) -> WithContext<F, B>
where
    F: FnOnce(&ExecutionContext) -> B + Send,
    B: DeviceOp,
{
    WithContext(State::First(make))
}

impl<F: FnOnce(&ExecutionContext) -> B + Send, B: DeviceOp> DeviceOp for WithContext<F, B> {
    type Output = B::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<B::Output, OpError>> {
        let execution = cx.execution();
        self.0.poll(cx, |make| make(execution))
    }
}

into_future!([F, B] WithContext<F, B>);
