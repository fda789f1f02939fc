//! Any number of operations of one output, in order.

use super::BoxedDeviceOp;
use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::Poll;

/// Operations that run one after the other on one stream, and give all their outputs in order.
#[must_use = "operations are lazy"]
pub struct DeviceOpVec<'a, T> {
    ops: Vec<Option<BoxedDeviceOp<'a, T>>>,
    outputs: Vec<T>,
}

impl<'a, T: DeviceOutput + Send + 'a> DeviceOpVec<'a, T> {
    /// None yet.
    pub fn empty() -> Self {
        Self { ops: Vec::new(), outputs: Vec::new() }
    }

    /// None yet, with room for so many.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { ops: Vec::with_capacity(capacity), outputs: Vec::new() }
    }

    /// These.
    pub fn new(ops: impl IntoIterator<Item = BoxedDeviceOp<'a, T>>) -> Self {
        Self { ops: ops.into_iter().map(Some).collect(), outputs: Vec::new() }
    }

    /// Adds one behind the others.
    pub fn push(&mut self, op: impl DeviceOp<Output = T> + 'a) {
        self.ops.push(Some(op.boxed()));
    }

    /// Takes one out; `None` if there are not so many.
    pub fn remove(&mut self, index: usize) -> Option<BoxedDeviceOp<'a, T>> {
        if index < self.ops.len() { self.ops.remove(index) } else { None }
    }

    /// Takes the last one out.
    pub fn pop(&mut self) -> Option<BoxedDeviceOp<'a, T>> {
        self.ops.pop().flatten()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

impl<T: DeviceOutput + Send> DeviceOp for DeviceOpVec<'_, T> {
    type Output = Vec<T>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Vec<T>, OpError>> {
        while let Some(next) = self.ops.get_mut(self.outputs.len()) {
            let Some(op) = next else { return Poll::Ready(Err(OpError::Finished)) };
            let polled = op.poll_submit(cx);
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => {
                    *next = None;
                    match outcome {
                        Ok(output) => self.outputs.push(output),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
        }
        Poll::Ready(Ok(core::mem::take(&mut self.outputs)))
    }
}

into_future!(['a, T] DeviceOpVec<'a, T>);
