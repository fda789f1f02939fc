//! Operations with a name.

use crate::{DeviceOp, OpError, SubmitContext, into_future};
use core::task::Poll;
use std::sync::Arc;

/// See [`DeviceOp::labelled`].
#[must_use = "operations are lazy"]
pub struct Labelled<A> {
    op: A,
    label: Arc<str>,
}

impl<A> Labelled<A> {
    pub(crate) fn new(op: A, label: Arc<str>) -> Self {
        Self { op, label }
    }

    /// The label.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }
}

impl<A: DeviceOp> DeviceOp for Labelled<A> {
    type Output = A::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<A::Output, OpError>> {
        let label = &self.label;
        let polled = self.op.poll_submit(&mut cx.labelled(label));
        polled.map_err(|error| error.labelled(label))
    }
}

into_future!([A: DeviceOp] Labelled<A>);
