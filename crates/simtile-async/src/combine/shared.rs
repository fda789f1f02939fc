//! One run, many results.
//!
//! The first clone that is submitted runs the operation, on its stream; everybody else gets the same `Arc`. Work on other streams
//! that uses the result follows it as it follows any work: by the bytes that it touches. Whoever comes while the operation is being
//! submitted is told when it has been; an operation that needs its own result gets [`OpError::Reentrant`].

use super::BoxedDeviceOp;
use super::once::Once;
use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::Poll;
use std::sync::Arc;

/// In which world it ran (`None`: in none), and what it gave.
struct Ran<T>(Option<u64>, Result<Arc<T>, OpError>);

/// See [`DeviceOp::shared`].
#[must_use = "operations are lazy"]
pub struct SharedDeviceOp<T> {
    once: Arc<Once<BoxedDeviceOp<'static, T>, Ran<T>>>,
}

/// A shared operation that has run already, and gave `value`.
pub fn shared<T>(value: Arc<T>) -> SharedDeviceOp<T> {
    SharedDeviceOp { once: Arc::new(Once::done(Ran(None, Ok(value)))) }
}

impl<T> SharedDeviceOp<T> {
    pub(crate) fn new(op: BoxedDeviceOp<'static, T>) -> Self {
        Self { once: Arc::new(Once::new(op)) }
    }
}

impl<T> Clone for SharedDeviceOp<T> {
    fn clone(&self) -> Self {
        Self { once: self.once.clone() }
    }
}

impl<T: DeviceOutput + Send + Sync> DeviceOp for SharedDeviceOp<T> {
    type Output = Arc<T>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Arc<T>, OpError>> {
        let here = cx.execution().world();
        let keep = |outcome: Result<T, OpError>| Ran(Some(here), outcome.map(Arc::new));
        self.once.poll(cx, keep, |Ran(world, outcome)| match world {
            Some(world) if *world != here && outcome.is_ok() => {
                let name = |world: u64| if world == 0 { "outside of captures" } else { "in a capture" };
                Err(OpError::OtherWorld { ran: name(*world), wanted: name(here) })
            }
            _ => outcome.clone(),
        })
    }
}

into_future!([T] SharedDeviceOp<T>);
