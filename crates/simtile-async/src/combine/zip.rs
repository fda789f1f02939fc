//! Several operations one after the other on one stream, all outputs together.

use crate::{DeviceOp, OpError, SubmitContext, into_future};
use core::task::Poll;

/// See [`zip!`](crate::zip).
#[must_use = "operations are lazy"]
pub struct Zip<Z: Zippable>(Z::State);

/// Tuples of 2 to 12 operations.
pub trait Zippable: Sized {
    /// All outputs.
    type Output: crate::DeviceOutput + Send;
    #[doc(hidden)]
    type State: Send;

    /// One operation.
    fn zip(self) -> Zip<Self>;

    #[doc(hidden)]
    fn poll(state: &mut Self::State, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>>;
}

/// An operation, or what it gave.
#[doc(hidden)]
pub enum Slot<A: DeviceOp> {
    Op(A),
    Output(A::Output),
    Taken,
}

impl<A: DeviceOp> Slot<A> {
    fn poll(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        if let Self::Op(op) = self {
            match op.poll_submit(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(output)) => *self = Self::Output(output),
                Poll::Ready(Err(error)) => {
                    *self = Self::Taken;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self) -> Result<A::Output, OpError> {
        match core::mem::replace(self, Self::Taken) {
            Self::Output(output) => Ok(output),
            _ => Err(OpError::Finished),
        }
    }
}

macro_rules! zippable {
    ($($name:ident)+) => {
        impl<$($name: DeviceOp),+> Zippable for ($($name,)+) {
            type Output = ($($name::Output,)+);
            type State = ($(Slot<$name>,)+);

            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn zip(self) -> Zip<Self> {
                let ($($name,)+) = self;
                Zip(($(Slot::Op($name),)+))
            }

            #[allow(non_snake_case, reason = "as above")]
            fn poll(
                state: &mut Self::State,
                cx: &mut SubmitContext<'_>,
            ) -> Poll<Result<Self::Output, OpError>> {
                let ($($name,)+) = state;
                $(match $name.poll(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                })+
                Poll::Ready(Ok(($($name.take()?,)+)))
            }
        }
    };
}

zippable!(A B);
zippable!(A B C);
zippable!(A B C D);
zippable!(A B C D E);
zippable!(A B C D E F);
zippable!(A B C D E F G);
zippable!(A B C D E F G H);
zippable!(A B C D E F G H I);
zippable!(A B C D E F G H I J);
zippable!(A B C D E F G H I J K);
zippable!(A B C D E F G H I J K L);

impl<Z: Zippable> DeviceOp for Zip<Z> {
    type Output = Z::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Z::Output, OpError>> {
        Z::poll(&mut self.0, cx)
    }
}

into_future!([Z: Zippable] Zip<Z>);

/// Operations one after the other on one stream; gives all their outputs.
///
/// The first failure ends it; what was submitted before stays submitted. [`join!`](crate::join) runs them side by side.
#[macro_export]
macro_rules! zip {
    ($($op:expr),+ $(,)?) => {
        $crate::Zippable::zip(($($op,)+))
    };
}
