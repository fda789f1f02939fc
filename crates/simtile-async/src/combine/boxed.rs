//! Operations of one type, whatever they are.

use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::Poll;

/// What a box needs of an operation.
trait Submit<T>: Send {
    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<T, OpError>>;
}

impl<A: DeviceOp> Submit<A::Output> for A {
    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<A::Output, OpError>> {
        DeviceOp::poll_submit(self, cx)
    }
}

/// The inside of a [`BoxedDeviceOp`].
pub(crate) struct Boxed<'a, T>(Box<dyn Submit<T> + 'a>);

impl<'a, T> Boxed<'a, T> {
    pub(crate) fn new<A: DeviceOp<Output = T> + 'a>(op: A) -> Self {
        Self(Box::new(op))
    }
}

/// See [`DeviceOp::boxed`].
#[must_use = "operations are lazy"]
pub struct BoxedDeviceOp<'a, T>(Boxed<'a, T>);

impl<'a, T> BoxedDeviceOp<'a, T> {
    pub(crate) fn new(op: Boxed<'a, T>) -> Self {
        Self(op)
    }
}

impl<T: DeviceOutput + Send> DeviceOp for BoxedDeviceOp<'_, T> {
    type Output = T;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<T, OpError>> {
        self.0.0.poll_submit(cx)
    }

    fn boxed<'b>(self) -> BoxedDeviceOp<'b, T>
    where
        Self: 'b,
    {
        BoxedDeviceOp::new(Boxed::new(self))
    }
}

into_future!(['a, T] BoxedDeviceOp<'a, T>);
