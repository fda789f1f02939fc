//! Work of other libraries, as operations.
//!
//! A library call that takes a stream (cuBLAS, cuDNN, NCCL, anyone's `fn(CUstream)`) is an operation like any other: it says what it
//! reads and writes, and is ordered and kept alive like a launch.

use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::Poll;
use simtile_core::SubmitBuilder;
use simtile_driver::Driver;
use simtile_driver::sys::CUstream;
use std::sync::Arc;

/// What an external call touches, said on a submission.
pub struct Accesses<'a>(SubmitBuilder<'a>);

impl<'a> Accesses<'a> {
    /// The work reads this.
    pub fn read<M: simtile_core::DeviceMemory + ?Sized>(self, memory: &'a M) -> Self {
        Self(self.0.read(memory))
    }

    /// The work writes this (and may read it).
    pub fn write<M: simtile_core::DeviceMemoryMut + ?Sized>(self, memory: &'a mut M) -> Self {
        Self(self.0.write(memory))
    }

    /// The work updates this with device atomics.
    pub fn accumulate<M: simtile_core::DeviceMemory + ?Sized>(
        self,
        memory: &'a M,
        scope: simtile_core::AtomicScope,
    ) -> Self {
        Self(self.0.accumulate(memory, scope))
    }
}

/// Where an external call puts its work.
#[derive(Clone, Copy, Debug)]
pub struct ExternalStream {
    /// The driver.
    pub driver: Driver,
    /// The stream.
    pub stream: CUstream,
}

/// See [`external`].
#[must_use = "operations are lazy"]
pub struct External<R, A, F> {
    label: Arc<str>,
    resources: Option<R>,
    accesses: A,
    queue: Option<F>,
    waits_outside: bool,
}

/// A call of another library that puts work into a stream.
///
/// `resources` is what it uses: buffers, its handle, a workspace. `accesses` says of each run what of it the work reads and writes.
/// `queue` makes the call; it runs while the stream and those buffers are locked for others, and only queues: operations of this
/// runtime refuse inside it. The operation gives `resources` back.
///
/// # Safety
/// `queue` puts work into the given stream alone (or joins what it forks). The work accesses what `accesses` says, in that mode, and
/// memory that nobody else knows. What else it needs (its handle, a workspace of its own) is kept until the work has finished: by the
/// caller, or because `resources` holds it and is dropped through the runtime.
pub unsafe fn external<R, A, F, E>(label: &str, resources: R, accesses: A, queue: F) -> External<R, A, F>
where
    R: DeviceOutput + Send,
    A: for<'r> Fn(&'r mut R, Accesses<'r>) -> Accesses<'r> + Send,
    F: FnOnce(ExternalStream) -> Result<(), E> + Send,
    E: Into<OpError>,
{
    External {
        label: label.into(),
        resources: Some(resources),
        accesses,
        queue: Some(queue),
        waits_outside: false,
    }
}

impl<R, A, F> External<R, A, F> {
    /// The work may wait for more than work of streams: other devices in a collective, the host, another process.
    pub fn waits_outside(mut self) -> Self {
        self.waits_outside = true;
        self
    }
}

impl<R, A, F, E> DeviceOp for External<R, A, F>
where
    R: DeviceOutput + Send,
    A: for<'r> Fn(&'r mut R, Accesses<'r>) -> Accesses<'r> + Send,
    F: FnOnce(ExternalStream) -> Result<(), E> + Send,
    E: Into<OpError>,
{
    type Output = R;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<R, OpError>> {
        let (Some(resources), queue) = (&mut self.resources, &mut self.queue) else {
            return Poll::Ready(Err(OpError::Finished));
        };
        let mut builder = cx.submit();
        if self.waits_outside {
            builder = builder.waits_outside();
        }
        let builder = (self.accesses)(resources, Accesses(builder)).0;
        // SAFETY: whoever made the operation says so.
        let done = unsafe {
            builder.foreign(|driver, stream| match queue.take() {
                Some(queue) => queue(ExternalStream { driver, stream }).map_err(Into::into),
                None => Err(OpError::Finished),
            })
        };
        match cx.settle(done) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok((_, Err(error)))) => {
                Poll::Ready(Err(OpError::External { what: self.label.clone(), source: Arc::new(error) }))
            }
            Poll::Ready(Ok((_, Ok(())))) => Poll::Ready(self.resources.take().ok_or(OpError::Finished)),
        }
    }
}

into_future!([R, A, F] External<R, A, F>);
