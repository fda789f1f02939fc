//! Other outputs of the same work.

use crate::{
    DeviceOp, DeviceOutput, HostBudget, OpError, Pending, SubmitContext, into_future, output::Landing,
};
use core::marker::PhantomData;
use core::task::Poll;
use std::sync::Arc;

/// Polls the inner operation, and takes the closure when it is ready.
fn poll_with<A: DeviceOp, F, U>(
    op: &mut A,
    f: &mut Option<F>,
    cx: &mut SubmitContext<'_>,
    finish: impl FnOnce(F, A::Output) -> Result<U, OpError>,
) -> Poll<Result<U, OpError>> {
    if f.is_none() {
        return Poll::Ready(Err(OpError::Finished));
    }
    match op.poll_submit(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(output) => {
            let taken = f.take();
            Poll::Ready(output.and_then(|output| match taken {
                Some(f) => finish(f, output),
                None => Err(OpError::Finished),
            }))
        }
    }
}

macro_rules! adaptor {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[must_use = "operations are lazy"]
        pub struct $name<A, F> {
            op: A,
            f: Option<F>,
        }

        impl<A, F> $name<A, F> {
            pub(crate) fn new(op: A, f: F) -> Self {
                Self { op, f: Some(f) }
            }
        }
    };
}

adaptor! {
    /// See [`DeviceOp::map`].
    Map
}

impl<A: DeviceOp, F, U> DeviceOp for Map<A, F>
where
    F: FnOnce(A::Output) -> U + Send,
    U: DeviceOutput + Send,
{
    type Output = U;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<U, OpError>> {
        poll_with(&mut self.op, &mut self.f, cx, |f, output| Ok(f(output)))
    }
}

into_future!([A, F] Map<A, F>);

adaptor! {
    /// See [`DeviceOp::try_map`].
    TryMap
}

impl<A: DeviceOp, F, U, E> DeviceOp for TryMap<A, F>
where
    F: FnOnce(A::Output) -> Result<U, E> + Send,
    U: DeviceOutput + Send,
    E: Into<OpError>,
{
    type Output = U;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<U, OpError>> {
        poll_with(&mut self.op, &mut self.f, cx, |f, output| f(output).map_err(Into::into))
    }
}

into_future!([A, F] TryMap<A, F>);

adaptor! {
    /// See [`DeviceOp::inspect`].
    Inspect
}

impl<A: DeviceOp, F: FnOnce(&A::Output) + Send> DeviceOp for Inspect<A, F> {
    type Output = A::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<A::Output, OpError>> {
        poll_with(&mut self.op, &mut self.f, cx, |f, output| {
            f(&output);
            Ok(output)
        })
    }
}

into_future!([A, F] Inspect<A, F>);

/// See [`DeviceOp::arc`].
#[must_use = "operations are lazy"]
pub struct Arced<A>(A);

impl<A> Arced<A> {
    pub(crate) fn new(op: A) -> Self {
        Self(op)
    }
}

impl<A: DeviceOp> DeviceOp for Arced<A>
where
    A::Output: Sync,
{
    type Output = Arc<A::Output>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>> {
        self.0.poll_submit(cx).map_ok(Arc::new)
    }
}

into_future!([A] Arced<A>);

/// See [`DeviceOp::unwrap_arc`].
#[must_use = "operations are lazy"]
pub struct UnwrapArc<A>(A);

impl<A> UnwrapArc<A> {
    pub(crate) fn new(op: A) -> Self {
        Self(op)
    }
}

impl<A, T> DeviceOp for UnwrapArc<A>
where
    A: DeviceOp<Output = Arc<T>>,
    T: DeviceOutput + Send + Sync,
{
    type Output = T;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<T, OpError>> {
        let shared = |arc: Arc<T>| OpError::SharedArc {
            what: core::any::type_name::<T>(),
            holders: Arc::strong_count(&arc),
        };
        let polled = self.0.poll_submit(cx);
        polled.map(|output| output.and_then(|arc| Arc::try_unwrap(arc).map_err(shared)))
    }
}

into_future!([A] UnwrapArc<A>);

/// See [`DeviceOp::map_ready`].
#[must_use = "operations are lazy"]
pub struct MapReady<'a, A, F> {
    op: A,
    f: Option<F>,
    life: PhantomData<&'a ()>,
}

impl<A, F> MapReady<'_, A, F> {
    pub(crate) fn new(op: A, f: F) -> Self {
        Self { op, f: Some(f), life: PhantomData }
    }
}

/// An output and what is to be made of it.
struct Later<O, F>(O, F);

impl<O, F, U> Landing<U> for Later<O, F>
where
    O: DeviceOutput + Send,
    F: FnOnce(O::Ready) -> U + Send,
{
    fn poll_land(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        self.0.poll_ready(budget)
    }

    fn take(self: Box<Self>) -> Result<U, OpError> {
        let Self(output, f) = *self;
        output.open().map(f)
    }
}

impl<'a, A, F, U> DeviceOp for MapReady<'a, A, F>
where
    A: DeviceOp,
    A::Output: 'a,
    F: FnOnce(<A::Output as DeviceOutput>::Ready) -> U + Send + 'a,
    U: Send + 'a,
{
    type Output = Pending<'a, U>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>> {
        poll_with(&mut self.op, &mut self.f, cx, |f, output| Ok(Pending::new(Later(output, f))))
    }
}

into_future!(['a, A, F] MapReady<'a, A, F>);
