//! Parts of one operation's output, as operations.
//!
//! The input runs once, with whichever part is submitted first; the parts may be submitted in any order, on any thread and stream.
//! A failure is everybody's.

use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::task::{Poll, Waker};
use simtile_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;

enum State<A, P> {
    Waiting(Option<A>),
    Polled(ThreadId),
    /// What nobody has taken yet.
    Done(Result<P, OpError>),
}

struct Split<A, P> {
    state: Mutex<(State<A, P>, Vec<Waker>)>,
}

impl<A: DeviceOp, P> Split<A, P> {
    /// Runs the input if nobody has, and takes a part.
    fn poll<T>(
        &self,
        cx: &mut SubmitContext<'_>,
        split: impl FnOnce(A::Output) -> P,
        take: impl FnOnce(&mut P) -> Option<T>,
    ) -> Poll<Result<T, OpError>> {
        let me = std::thread::current().id();
        let mut op = {
            let mut guard = self.state.lock();
            let (state, wakers) = &mut *guard;
            match state {
                State::Done(Ok(parts)) => return Poll::Ready(take(parts).ok_or(OpError::Finished)),
                State::Done(Err(error)) => return Poll::Ready(Err(error.clone())),
                State::Polled(thread) if *thread == me => return Poll::Ready(Err(OpError::Reentrant)),
                State::Polled(_) => {
                    if let Some(waker) = cx.waker() {
                        wakers.push(waker.clone());
                    }
                    return Poll::Pending;
                }
                State::Waiting(op) => match op.take() {
                    Some(op) => {
                        *state = State::Polled(me);
                        op
                    }
                    None => return Poll::Ready(Err(OpError::Finished)),
                },
            }
        };
        let polled = match catch_unwind(AssertUnwindSafe(|| op.poll_submit(cx))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(OpError::panicked(&*payload))),
        };
        let (next, answer) = match polled {
            Poll::Pending => (State::Waiting(Some(op)), Poll::Pending),
            Poll::Ready(Ok(output)) => {
                drop(op);
                let mut parts = split(output);
                let mine = take(&mut parts).ok_or(OpError::Finished);
                (State::Done(Ok(parts)), Poll::Ready(mine))
            }
            Poll::Ready(Err(error)) => {
                drop(op);
                (State::Done(Err(error.clone())), Poll::Ready(Err(error)))
            }
        };
        let mut guard = self.state.lock();
        let old = core::mem::replace(&mut guard.0, next);
        let wakers = core::mem::take(&mut guard.1);
        drop(guard);
        drop(old);
        for waker in wakers {
            waker.wake();
        }
        answer
    }
}

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
                let split = Arc::new(Split { state: Mutex::new((State::Waiting(Some(op)), Vec::new())) });
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
                self.split.poll(cx, |all| ($(Some(all.$i),)+), |parts| parts.$index.take())
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
