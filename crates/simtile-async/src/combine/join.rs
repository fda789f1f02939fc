//! Several operations side by side, each on a stream of its own.

use crate::{DeviceFuture, DeviceOp, DeviceOutput, ExecutionContext, OpError, Runtime, SchedulingPolicy};
use core::future::{Future, IntoFuture};
use core::pin::Pin;
use core::task::{Context, Poll};

/// See [`join!`](crate::join).
#[must_use = "operations are lazy: run it with .await, .sync() or .schedule()"]
pub struct Join<J>(J);

/// Tuples of 2 to 12 operations.
pub trait Joinable: Sized {
    /// All opened outputs.
    type Output;
    /// The futures.
    type Future: Future<Output = Result<Self::Output, OpError>> + Send + Unpin;

    /// Operations that run side by side.
    fn join(self) -> Join<Self> {
        Join(self)
    }

    #[doc(hidden)]
    fn futures(self, place: &mut dyn FnMut() -> Spot) -> Self::Future;
}

/// Where one of them runs.
#[doc(hidden)]
pub enum Spot {
    Here(Result<ExecutionContext, OpError>),
    Of(Runtime),
}

impl<J: Joinable> Join<J> {
    /// A future; every operation gets the stream that the policy chooses next.
    ///
    /// # Errors
    /// None now: the policy's come with the future.
    pub fn schedule<P: SchedulingPolicy + ?Sized>(self, policy: &P) -> Result<J::Future, OpError> {
        Ok(self.0.futures(&mut || Spot::Here(policy.next_execution())))
    }

    /// Runs them and waits.
    ///
    /// # Errors
    /// The first failure. The others go on, and own what they touch until they have finished.
    pub fn sync(self) -> Result<J::Output, OpError> {
        crate::drive::block_on(self.into_future())
    }

    /// Runs them on streams of this policy and waits.
    ///
    /// # Errors
    /// As [`Join::sync`].
    pub fn sync_with<P: SchedulingPolicy + ?Sized>(self, policy: &P) -> Result<J::Output, OpError> {
        crate::drive::block_on(self.schedule(policy)?)
    }
}

impl<J: Joinable> IntoFuture for Join<J> {
    type Output = Result<J::Output, OpError>;
    type IntoFuture = J::Future;

    fn into_future(self) -> J::Future {
        let runtime = Runtime::current();
        self.0.futures(&mut || match &runtime {
            Some(runtime) => Spot::Of(runtime.clone()),
            None => Spot::Here(Err(OpError::NoRuntime)),
        })
    }
}

/// A future, or what it gave.
enum Slot<A: DeviceOp> {
    Future(DeviceFuture<A>),
    Ready(<A::Output as DeviceOutput>::Ready),
    Taken,
}

impl<A: DeviceOp> Slot<A> {
    fn new(op: A, place: Spot) -> Self {
        Self::Future(match place {
            Spot::Here(Ok(place)) => DeviceFuture::scheduled(op, place),
            Spot::Here(Err(error)) => DeviceFuture::failed(error),
            Spot::Of(runtime) => DeviceFuture::placed_by(op, &runtime),
        })
    }

    /// Whether it has its output.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), OpError>> {
        let Self::Future(future) = self else { return Poll::Ready(Ok(())) };
        match Pin::new(future).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(output)) => {
                *self = Self::Ready(output);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                *self = Self::Taken;
                Poll::Ready(Err(error))
            }
        }
    }

    fn take(&mut self) -> Result<<A::Output as DeviceOutput>::Ready, OpError> {
        match core::mem::replace(self, Self::Taken) {
            Self::Ready(output) => Ok(output),
            _ => Err(OpError::Finished),
        }
    }
}

macro_rules! joinable {
    ($future:ident: $($name:ident)+) => {
        /// The future of operations side by side.
        pub struct $future<$($name: DeviceOp),+>($(Slot<$name>),+);

        // Operations and outputs are moved, never pinned.
        impl<$($name: DeviceOp),+> Unpin for $future<$($name),+> {}

        impl<$($name: DeviceOp),+> Joinable for ($($name,)+)
        where
            $(<$name::Output as DeviceOutput>::Ready: Send,)+
        {
            type Output = ($(<$name::Output as DeviceOutput>::Ready,)+);
            type Future = $future<$($name),+>;

            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn futures(self, place: &mut dyn FnMut() -> Spot) -> Self::Future {
                let ($($name,)+) = self;
                $future($(Slot::new($name, place())),+)
            }
        }

        impl<$($name: DeviceOp),+> Future for $future<$($name),+> {
            type Output = Result<($(<$name::Output as DeviceOutput>::Ready,)+), OpError>;

            #[allow(non_snake_case, reason = "as above")]
            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let $future($($name),+) = &mut *self;
                let mut pending = false;
                $(match $name.poll(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => pending = true,
                })+
                if pending {
                    return Poll::Pending;
                }
                Poll::Ready(Ok(($($name.take()?,)+)))
            }
        }
    };
}

joinable!(Join2: A B);
joinable!(Join3: A B C);
joinable!(Join4: A B C D);
joinable!(Join5: A B C D E);
joinable!(Join6: A B C D E F);
joinable!(Join7: A B C D E F G);
joinable!(Join8: A B C D E F G H);
joinable!(Join9: A B C D E F G H I);
joinable!(Join10: A B C D E F G H I J);
joinable!(Join11: A B C D E F G H I J K);
joinable!(Join12: A B C D E F G H I J K L);

/// Operations side by side, each on a stream of its own; gives all their outputs.
///
/// The first failure is the outcome. The others go on, and own what they touch until they have finished.
/// [`zip!`](crate::zip) runs them one after the other on one stream.
#[macro_export]
macro_rules! join {
    ($($op:expr),+ $(,)?) => {
        $crate::Joinable::join(($($op,)+))
    };
}
