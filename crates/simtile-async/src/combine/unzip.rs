//! Parts of one operation's output, as operations.
//!
//! The input runs once, with whichever part is submitted first; the parts may be submitted in any order, on any thread and stream.
//! A failure is everybody's.

use super::once::Once;
use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::Poll;
use std::sync::Arc;

/// The input, and what nobody has taken yet of its output.
type Split<A, P> = Once<A, Result<P, OpError>>;

/// One part of an unzipped operation; `N` is its place in the tuple.
#[must_use = "operations are lazy"]
pub struct Part<A: DeviceOp, P, const N: usize> {
    split: Arc<Split<A, P>>,
}

/// Operations that give tuples of 1 to 12.
pub trait Unzippable: DeviceOp {
    /// An operation for each part.
    type Parts;

    /// The parts, as operations.
    fn unzip(self) -> Self::Parts;

    /// The first part alone.
    fn first(self) -> First<Self>
    where
        Self::Output: Ends,
    {
        First::new(self)
    }

    /// The last part alone.
    fn last(self) -> Last<Self>
    where
        Self::Output: Ends,
    {
        Last::new(self)
    }
}

/// The parts of an operation that gives a tuple: the same as [`Unzippable::unzip`], by the peers' name.
#[macro_export]
macro_rules! unzip {
    ($op:expr) => {
        $crate::Unzippable::unzip($op)
    };
}

/// The tuples themselves: what an operation's output must be to be unzipped.
#[doc(hidden)]
pub trait Tuple<A: DeviceOp> {
    type Parts;
    fn parts(op: A) -> Self::Parts;
}

impl<A: DeviceOp> Unzippable for A
where
    A::Output: Tuple<A>,
{
    type Parts = <A::Output as Tuple<A>>::Parts;

    fn unzip(self) -> Self::Parts {
        <A::Output as Tuple<A>>::parts(self)
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<Op, $($name),+> Tuple<Op> for ($($name,)+)
        where
            Op: DeviceOp<Output = ($($name,)+)>,
            $($name: DeviceOutput + Send,)+
        {
            type Parts = tuples!(@parts Op ($(Option<$name>,)+) $($index)+);

            fn parts(op: Op) -> Self::Parts {
                let split = Arc::new(Split::new(op));
                ($(Part::<Op, _, $index> { split: split.clone() },)+)
            }
        }

        tuples!(@each [$($name $index),+] $($name $index),+);
    };
    (@parts $op:ident $parts:tt $($index:tt)+) => { ($(Part<$op, tuples!(@same $parts), $index>,)+) };
    (@same $parts:ty) => { $parts };
    (@each $all:tt $($name:ident $index:tt),+) => {
        $(tuples!(@one $all $name $index);)+
    };
    (@one [$($name:ident $i:tt),+] $mine:ident $index:tt) => {
        impl<Op, $($name),+> DeviceOp for Part<Op, ($(Option<$name>,)+), $index>
        where
            Op: DeviceOp<Output = ($($name,)+)>,
            $($name: DeviceOutput + Send,)+
        {
            type Output = $mine;

            fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<$mine, OpError>> {
                let keep = |outcome: Result<Op::Output, OpError>| outcome.map(|all| ($(Some(all.$i),)+));
                self.split.poll(cx, keep, |parts| match parts {
                    Ok(parts) => parts.$index.take().ok_or(OpError::Finished),
                    Err(error) => Err(error.clone()),
                })
            }
        }
    };
}

into_future!([A: DeviceOp, P, const N: usize] Part<A, P, N>);

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);

/// An end of an operation's output; the other parts are dropped when it has been submitted.
macro_rules! end {
    ($(#[$meta:meta])* $name:ident, $method:ident) => {
        $(#[$meta])*
        #[must_use = "operations are lazy"]
        pub struct $name<A>(A);

        impl<A: Unzippable> $name<A>
        where
            A::Output: Ends,
        {
            pub(crate) fn new(op: A) -> Self {
                Self(op)
            }
        }

        impl<A: DeviceOp> DeviceOp for $name<A>
        where
            A::Output: Ends,
        {
            type Output = <A::Output as Ends>::$name;

            fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>> {
                self.0.poll_submit(cx).map_ok(Ends::$method)
            }
        }

        into_future!([A: DeviceOp] $name<A>);
    };
}

end! {
    /// See [`Unzippable::first`].
    First, first
}
end! {
    /// See [`Unzippable::last`].
    Last, last
}

/// Tuples, for their ends.
#[doc(hidden)]
pub trait Ends {
    type First: DeviceOutput + Send;
    type Last: DeviceOutput + Send;
    fn first(self) -> Self::First;
    fn last(self) -> Self::Last;
}

macro_rules! ends {
    ($first:ident $($name:ident)* ; $last:ident $index:tt) => {
        impl<$first, $($name),*> Ends for ($first, $($name),*)
        where
            $first: DeviceOutput + Send,
            $last: DeviceOutput + Send,
        {
            type First = $first;
            type Last = $last;

            fn first(self) -> $first {
                self.0
            }

            fn last(self) -> $last {
                self.$index
            }
        }
    };
}

ends!(A B; B 1);
ends!(A B C; C 2);
ends!(A B C D; D 3);
ends!(A B C D E; E 4);
ends!(A B C D E F; F 5);
ends!(A B C D E F G; G 6);
ends!(A B C D E F G H; H 7);
ends!(A B C D E F G H I; I 8);
ends!(A B C D E F G H I J; J 9);
ends!(A B C D E F G H I J K; K 10);
ends!(A B C D E F G H I J K L; L 11);
