//! Work of other libraries, as operations.
//!
//! A library call that takes a stream (cuBLAS, cuDNN, NCCL, anyone's `fn(CUstream)`) is an operation like any other: it says what it
//! reads and writes, and is ordered and kept alive like a launch.

use crate::worker::Job;
use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::any::Any;
use core::task::Poll;
use simtile_core::{DeviceBuffer, Keepalive, MemoryError, SubmitBuilder};
use simtile_driver::Driver;
use simtile_driver::sys::{CUdeviceptr, CUstream};
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
    /// Address of the workspace that [`External::workspace`] asked for; 0 if it has no bytes. Its content is undefined. It is the
    /// call's until its work has finished.
    pub workspace: CUdeviceptr,
    /// Its bytes.
    pub workspace_bytes: usize,
}

/// See [`external`].
#[must_use = "operations are lazy"]
pub struct External<R, A, F> {
    label: Arc<str>,
    resources: Option<R>,
    accesses: A,
    queue: Option<F>,
    waits_outside: bool,
    workspace: usize,
    holds: Option<Box<dyn Any + Send + Sync>>,
    held: Option<Keepalive>,
    scratch: Option<DeviceBuffer<u8>>,
    job: Option<Job<Result<DeviceBuffer<u8>, MemoryError>>>,
}

/// A call of another library that puts work into a stream.
///
/// `resources` is what it uses: buffers, its handle, a workspace. `accesses` says of each run what of it the work reads and writes.
/// `queue` makes the call; it runs while the stream and those buffers are locked for others, and only queues: operations of this
/// runtime refuse inside it. The operation gives `resources` back.
///
/// # Safety
/// `queue` puts work into the given stream alone (or joins what it forks). The work accesses what `accesses` says, in that mode, and
/// memory that nobody else knows, and the workspace. What else it needs (its handle) is kept until the work, or the graph that captured
/// it, is gone: by [`External::holding`], or by the caller.
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
        workspace: 0,
        holds: None,
        held: None,
        scratch: None,
        job: None,
    }
}

impl<R, A, F> External<R, A, F> {
    /// The work may wait for more than work of streams: other devices in a collective, the host, another process.
    pub fn waits_outside(mut self) -> Self {
        self.waits_outside = true;
        self
    }

    /// Device memory for the call alone, made when it is submitted: from the pool of where it runs, else from the context's. It is freed
    /// in stream order behind the call. In a capture it belongs to the graph.
    pub fn workspace(mut self, bytes: usize) -> Self {
        self.workspace = bytes;
        self
    }

    /// Keeps a value until the work has finished: the library's handle, the host memory of a descriptor. In a capture it lives as long as
    /// the graph. It is dropped on a thread of the runtime. Called twice, both are kept.
    pub fn holding(mut self, value: impl Any + Send + Sync) -> Self {
        self.holds = Some(match self.holds.take() {
            Some(other) => Box::new((other, value)),
            None => Box::new(value),
        });
        self
    }

    /// The workspace, if there is none yet.
    fn make_scratch(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        if self.workspace == 0 || self.scratch.is_some() {
            return Poll::Ready(Ok(()));
        }
        let bytes = self.workspace;
        if let Some((_, outside)) = cx.execution().capture() {
            self.scratch = Some(DeviceBuffer::zeroed(outside, bytes)?);
            return Poll::Ready(Ok(()));
        }
        let (stream, pool) = (cx.stream().clone(), cx.execution().pool().cloned());
        let made = cx.offload(&mut self.job, move || match pool {
            // SAFETY: the content of a workspace is undefined, which the call knows.
            Some(pool) => unsafe { pool.uninit(&stream, bytes) },
            // SAFETY: as above.
            None => unsafe { DeviceBuffer::uninit(&stream, bytes) },
        });
        let made = core::task::ready!(made)?;
        self.scratch = Some(core::task::ready!(cx.settle(made))?);
        Poll::Ready(Ok(()))
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
        match self.make_scratch(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let (Some(resources), queue) = (&mut self.resources, &mut self.queue) else {
            return Poll::Ready(Err(OpError::Finished));
        };
        let (workspace, workspace_bytes) =
            self.scratch.as_ref().map_or((0, 0), |scratch| (scratch.cu_deviceptr(), scratch.num_bytes()));
        let held = &mut self.held;
        if let Some(value) = self.holds.take() {
            *held = Some(cx.stream().context().keepalive(value));
        }
        let mut builder = cx.submit();
        if let Some(held) = held {
            builder = builder.read(held);
        }
        if let Some(scratch) = &mut self.scratch {
            builder = builder.write(scratch);
        }
        if self.waits_outside {
            builder = builder.waits_outside();
        }
        let builder = (self.accesses)(resources, Accesses(builder)).0;
        // SAFETY: whoever made the operation says so.
        let done = unsafe {
            builder.foreign(|driver, stream| match queue.take() {
                Some(queue) => {
                    queue(ExternalStream { driver, stream, workspace, workspace_bytes }).map_err(Into::into)
                }
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
