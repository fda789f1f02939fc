//! The operation: lazy, composable, run once.

use crate::combine::{
    AndThenWithContext, Arced, Boxed, BoxedDeviceOp, Inspect, Labelled, Map, MapReady, SharedDeviceOp, Then,
    TryMap, UnwrapArc,
};
use crate::drive;
use crate::{
    CudaGraph, DeviceFuture, DeviceOutput, ExecutionContext, OpError, SchedulingPolicy, SubmitContext,
};
use core::task::Poll;
use simtile_core::Stream;
use std::sync::Arc;

/// Work for a device that has not been submitted: nothing happens until it is run.
///
/// It runs once, on one stream, in the order in which it was put together. [`sync`](DeviceOp::sync) and
/// [`sync_on`](DeviceOp::sync_on) wait for it, [`enqueue_on`](DeviceOp::enqueue_on) does not, `.await` and
/// [`schedule`](DeviceOp::schedule) wait without holding a thread. Whatever becomes of whoever waits, the work owns what it touches
/// until it has finished.
///
/// # Closures
/// They run when the work before them has been submitted, on the thread that submits. Device values may be used at once;
/// host values are [`Pending`](crate::Pending). Closures may run other operations; there is no lock.
///
/// # An operation of your own
/// ```
/// use simtile_async::{DeviceOp, OpError, SubmitContext, into_future};
/// use simtile_core::{DeviceBuffer, DeviceBufferViewMut};
/// use core::task::Poll;
///
/// struct Fill<'a>(&'a mut DeviceBuffer<f32>, f32);
///
/// impl DeviceOp for Fill<'_> {
///     type Output = ();
///     fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
///         let done = cx.submit().fill(self.0.view_mut(), self.1);
///         cx.settle(done).map_ok(drop)
///     }
/// }
/// into_future!(['a] Fill<'a>);
/// ```
#[must_use = "operations are lazy: run it with .await, .sync(), .enqueue_on() or .schedule()"]
pub trait DeviceOp: Send + Sized {
    /// What closures behind it are given, and, opened, whoever waits.
    type Output: DeviceOutput + Send;

    /// Submits the work, as far as it goes without waiting. Called until it is ready, and then no more.
    ///
    /// # Errors
    /// The first failure; what was submitted before it stays submitted.
    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>>;

    /// Then the operation that `f` makes of the output, on the same stream.
    fn then<F, B>(self, f: F) -> Then<Self, F, B>
    where
        F: FnOnce(Self::Output) -> B + Send,
        B: DeviceOp,
    {
        Then::new(self, f)
    }

    /// The same as [`DeviceOp::then`].
    fn and_then<F, B>(self, f: F) -> Then<Self, F, B>
    where
        F: FnOnce(Self::Output) -> B + Send,
        B: DeviceOp,
    {
        self.then(f)
    }

    /// The same as [`DeviceOp::then`].
    fn apply<F, B>(self, f: F) -> Then<Self, F, B>
    where
        F: FnOnce(Self::Output) -> B + Send,
        B: DeviceOp,
    {
        self.then(f)
    }

    /// As [`DeviceOp::then`]; `f` is also told where it runs.
    fn and_then_with_context<F, B>(self, f: F) -> AndThenWithContext<Self, F, B>
    where
        F: FnOnce(&ExecutionContext, Self::Output) -> B + Send,
        B: DeviceOp,
    {
        AndThenWithContext::new(self, f)
    }

    /// Something else of the output, at submission.
    fn map<F, U>(self, f: F) -> Map<Self, F>
    where
        F: FnOnce(Self::Output) -> U + Send,
        U: DeviceOutput + Send,
    {
        Map::new(self, f)
    }

    /// As [`DeviceOp::map`]; `f` may fail. What was submitted stays submitted.
    fn try_map<F, U, E>(self, f: F) -> TryMap<Self, F>
    where
        F: FnOnce(Self::Output) -> Result<U, E> + Send,
        U: DeviceOutput + Send,
        E: Into<OpError>,
    {
        TryMap::new(self, f)
    }

    /// Looks at the output, at submission.
    fn inspect<F>(self, f: F) -> Inspect<Self, F>
    where
        F: FnOnce(&Self::Output) + Send,
    {
        Inspect::new(self, f)
    }

    /// Something else of the opened output, after the work has finished, on the thread that waits. Nobody waits: it does not
    /// run.
    fn map_ready<'a, F, U>(self, f: F) -> MapReady<'a, Self, F>
    where
        Self::Output: 'a,
        F: FnOnce(<Self::Output as DeviceOutput>::Ready) -> U + Send + 'a,
        U: Send + 'a,
    {
        MapReady::new(self, f)
    }

    /// The output in an `Arc`.
    fn arc(self) -> Arced<Self>
    where
        Self::Output: Sync,
    {
        Arced::new(self)
    }

    /// What is in the output's `Arc`.
    ///
    /// Run, it fails with [`OpError::SharedArc`] if others hold the value, too.
    fn unwrap_arc<T>(self) -> UnwrapArc<Self>
    where
        Self: DeviceOp<Output = Arc<T>>,
        T: DeviceOutput + Send + Sync,
    {
        UnwrapArc::new(self)
    }

    /// Behind one box, so that different operations have one type.
    fn boxed<'a>(self) -> BoxedDeviceOp<'a, Self::Output>
    where
        Self: 'a,
    {
        BoxedDeviceOp::new(Boxed::new(self))
    }

    /// With a name: errors of its submission begin with it, and if the context is lost while its work is in flight, everybody's error
    /// says so ([`ContextLoss`](simtile_core::ContextLoss)). Of nested labels the work has the innermost.
    fn labelled(self, label: impl Into<Arc<str>>) -> Labelled<Self> {
        Labelled::new(self, label.into())
    }

    /// An operation that may be cloned and runs once: every clone gives the same `Arc`, or the same error.
    fn shared(self) -> SharedDeviceOp<Self::Output>
    where
        Self: 'static,
        Self::Output: Sync + 'static,
    {
        SharedDeviceOp::new(self.boxed())
    }

    /// Runs it on `stream` and waits, holding nothing.
    ///
    /// # Errors
    /// Of the submission, or of the work.
    fn sync_on(self, stream: &Arc<Stream>) -> Result<<Self::Output as DeviceOutput>::Ready, OpError> {
        drive::sync(self, &ExecutionContext::new(stream))
    }

    /// As [`DeviceOp::sync_on`], on a stream that the current runtime's policy chooses.
    ///
    /// # Errors
    /// [`OpError::NoRuntime`], else as [`DeviceOp::sync_on`].
    fn sync(self) -> Result<<Self::Output as DeviceOutput>::Ready, OpError> {
        drive::sync(self, &crate::runtime::next_execution()?)
    }

    /// Submits it to `stream` and does not wait for the work; only for room in the queue. Host values in the output are
    /// [`Pending`](crate::Pending).
    ///
    /// # Errors
    /// Of the submission.
    fn enqueue_on(self, stream: &Arc<Stream>) -> Result<Self::Output, OpError> {
        drive::enqueue(self, &ExecutionContext::new(stream))
    }

    /// As [`DeviceOp::enqueue_on`], without waiting for room, or for anything else.
    ///
    /// # Errors
    /// [`OpError::QueueFull`]; [`OpError::WouldWait`] of one that loads code; what an operation of several parts had submitted by then stays submitted.
    fn try_enqueue_on(self, stream: &Arc<Stream>) -> Result<Self::Output, OpError> {
        drive::try_enqueue(self, &ExecutionContext::new(stream))
    }

    /// Records it on `stream` into a graph, and runs nothing.
    ///
    /// # Errors
    /// As [`CudaGraph::capture`].
    fn graph_on(self, stream: &Arc<Stream>) -> Result<CudaGraph<Self::Output>, OpError> {
        CudaGraph::capture(stream, self)
    }

    /// As [`DeviceOp::graph_on`], on a new stream of the context that the current runtime's policy chooses.
    ///
    /// # Errors
    /// [`OpError::NoRuntime`], else as [`DeviceOp::graph_on`].
    fn graph(self) -> Result<CudaGraph<Self::Output>, OpError> {
        let stream = crate::runtime::next_execution()?.context().new_stream()?;
        self.graph_on(&stream)
    }

    /// Runs it on `stream` without waiting, and waits for nothing on the device either: what the caller handed in by reference or
    /// handle is not looked at for conflicts. What was moved in or made inside is kept until the work has finished. Later work of
    /// others still follows this one where it conflicts.
    ///
    /// # Errors
    /// Of the submission.
    ///
    /// # Safety
    /// The caller orders the work behind everything that conflicts with it.
    unsafe fn async_on(self, stream: &Arc<Stream>) -> Result<Self::Output, OpError> {
        drive::unordered(self, &ExecutionContext::new(stream))
    }

    /// A future on a stream that the policy chooses now. Nothing is submitted before its first poll. If the policy is a runtime
    /// that was not [prepared](crate::Runtime::prepare), the first call retains the context and makes the streams.
    ///
    /// # Errors
    /// The policy's.
    fn schedule<P: SchedulingPolicy + ?Sized>(self, policy: &P) -> Result<DeviceFuture<Self>, OpError> {
        Ok(DeviceFuture::scheduled(self, policy.next_execution()?))
    }

    /// A future on this stream.
    fn on(self, stream: &Arc<Stream>) -> DeviceFuture<Self> {
        DeviceFuture::scheduled(self, ExecutionContext::new(stream))
    }

    /// The future behind `.await`: of the runtime that is in force at this call. See [`DeviceFuture::placed_by`].
    fn future(self) -> DeviceFuture<Self> {
        match crate::Runtime::current() {
            Some(runtime) => DeviceFuture::placed_by(self, &runtime),
            None => DeviceFuture::failed(OpError::NoRuntime),
        }
    }
}

/// The peers' name.
pub use DeviceOp as DeviceOperation;

/// Lets operations be awaited: `into_future!(MyOp)`, with parameters `into_future!(['a, T: Send] MyOp<'a, T>)`.
#[macro_export]
macro_rules! into_future {
    (@impl ($($param:tt)*) $name:ty) => {
        impl<$($param)*> ::core::future::IntoFuture for $name
        where
            Self: $crate::DeviceOp,
        {
            type Output = ::core::result::Result<
                <<Self as $crate::DeviceOp>::Output as $crate::DeviceOutput>::Ready,
                $crate::OpError,
            >;
            type IntoFuture = $crate::DeviceFuture<Self>;

            fn into_future(self) -> Self::IntoFuture {
                $crate::DeviceOp::future(self)
            }
        }
    };
    ([$($param:tt)*] $name:ty) => {
        $crate::into_future!(@impl ($($param)*) $name);
    };
    ($name:ty) => {
        $crate::into_future!(@impl () $name);
    };
}
