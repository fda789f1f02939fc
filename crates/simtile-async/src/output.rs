//! What operations give: device values at submission, host values after completion.
//!
//! A closure in a chain runs when the work before it has been *submitted*. Device values are as good then as later: what is
//! done with them follows in stream order. Host values are not there yet, so in a closure they are [`Pending`]. Whoever waits for
//! the operation gets them opened: an operation of output `(DeviceBuffer<f32>, Pending<Vec<f32>>)` gives `(DeviceBuffer<f32>,
//! Vec<f32>)`.

use crate::OpError;
use core::fmt;
use core::task::Poll;

/// What an operation may give.
///
/// Types without host data inside are their own [`DeviceOutput::Ready`]; [`plain_output!`] says so of types
/// of your own. References, smart pointers, containers and tuples are outputs already.
///
/// [`plain_output!`]: crate::plain_output
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of an operation",
    note = "say that it holds no pending host data: `simtile::plain_output!(MyType);`, or wrap it in `simtile::Plain`"
)]
pub trait DeviceOutput: Sized {
    /// What whoever waits gets.
    type Ready;

    /// Moves host data to where it belongs, after the work has finished; a piece at a time. `Pending`: call again, `budget` is
    /// used up.
    ///
    /// # Errors
    /// The device wrote what is no value of its type.
    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        let _ = budget;
        Poll::Ready(Ok(()))
    }

    /// The opened value. Only called after [`DeviceOutput::poll_ready`] was ready.
    ///
    /// # Errors
    /// [`OpError::NotReady`] if it was not.
    fn open(self) -> Result<Self::Ready, OpError>;
}

/// How many more bytes this call may copy on the host. A poll may not hold its thread for long.
#[derive(Debug)]
pub struct HostBudget {
    bytes: usize,
}

impl HostBudget {
    /// Bytes that one poll copies: 4 MiB, a few hundred microseconds.
    pub const POLL: usize = 4 << 20;

    /// A budget of so many bytes.
    pub const fn new(bytes: usize) -> Self {
        Self { bytes }
    }

    /// Takes so many bytes out. `false`: it is used up; the first piece always fits.
    pub fn take(&mut self, bytes: usize) -> bool {
        if self.bytes == 0 {
            return false;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }
}

/// A value without pending host data, of whatever type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plain<T>(pub T);

impl<T> DeviceOutput for Plain<T> {
    type Ready = T;

    fn open(self) -> Result<T, OpError> {
        Ok(self.0)
    }
}

/// Says that types hold no pending host data: operations give them as they are.
///
/// ```
/// struct Model { layers: usize }
/// simtile_async::plain_output!(Model);
/// ```
#[macro_export]
macro_rules! plain_output {
    ($($(<$($p:tt),*>)? $name:ty),* $(,)?) => { $(
        impl $(<$($p),*>)? $crate::DeviceOutput for $name {
            type Ready = Self;

            fn open(self) -> ::core::result::Result<Self, $crate::OpError> {
                Ok(self)
            }
        }
    )* };
}

plain_output! {
    (), bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, half::f16, half::bf16, String,
    simtile_core::Device, simtile_core::Function, simtile_core::Event, simtile_core::TimedEvent,
    simtile_core::Submission, simtile_core::RawDeviceBuffer, simtile_core::MemoryLease,
}

macro_rules! generic {
    ($(($($bound:tt)*) $name:ty),* $(,)?) => { $(
        impl<$($bound)*> DeviceOutput for $name {
            type Ready = Self;

            fn open(self) -> Result<Self, OpError> {
                Ok(self)
            }
        }
    )* };
}

use simtile_core::{
    DeviceBox, DeviceBuffer, DeviceBufferView, DeviceBufferViewMut, DeviceColumns, DeviceColumnsMut,
    DevicePointer, OnDevice, PinnedHostBuffer,
};
use simtile_types::DeviceCopy;

generic! {
    ('a, T: ?Sized) &'a T,
    ('a, T: ?Sized) &'a mut T,
    (T: ?Sized) std::sync::Arc<T>,
    (T: ?Sized) core::marker::PhantomData<T>,
    (T: DeviceCopy) DeviceBuffer<T>,
    (T: ?Sized + OnDevice) DeviceBox<T>,
    (T) DevicePointer<T>,
    ('a, T: DeviceCopy) DeviceBufferView<'a, T>,
    ('a, T: DeviceCopy) DeviceBufferViewMut<'a, T>,
    ('a, T: DeviceCopy) DeviceColumns<'a, T>,
    ('a, T: DeviceCopy) DeviceColumnsMut<'a, T>,
    (T: DeviceCopy) PinnedHostBuffer<T>,
}

impl<T: DeviceOutput> DeviceOutput for Box<T> {
    type Ready = Box<T::Ready>;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        (**self).poll_ready(budget)
    }

    fn open(self) -> Result<Self::Ready, OpError> {
        (*self).open().map(Box::new)
    }
}

impl<T: DeviceOutput> DeviceOutput for Option<T> {
    type Ready = Option<T::Ready>;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        self.as_mut().map_or(Poll::Ready(Ok(())), |value| value.poll_ready(budget))
    }

    fn open(self) -> Result<Self::Ready, OpError> {
        self.map(T::open).transpose()
    }
}

impl<T: DeviceOutput, E> DeviceOutput for Result<T, E> {
    type Ready = Result<T::Ready, E>;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        self.as_mut().map_or(Poll::Ready(Ok(())), |value| value.poll_ready(budget))
    }

    fn open(self) -> Result<Self::Ready, OpError> {
        Ok(match self {
            Ok(value) => Ok(value.open()?),
            Err(error) => Err(error),
        })
    }
}

/// One after the other, the first that is not ready ends it.
fn poll_each<T: DeviceOutput>(values: &mut [T], budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
    for value in values {
        match value.poll_ready(budget) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
    }
    Poll::Ready(Ok(()))
}

impl<T: DeviceOutput> DeviceOutput for Vec<T> {
    type Ready = Vec<T::Ready>;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        poll_each(self, budget)
    }

    fn open(self) -> Result<Self::Ready, OpError> {
        self.into_iter().map(T::open).collect()
    }
}

impl<T: DeviceOutput, const N: usize> DeviceOutput for [T; N] {
    type Ready = Vec<T::Ready>;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        poll_each(self, budget)
    }

    fn open(self) -> Result<Self::Ready, OpError> {
        self.into_iter().map(T::open).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: DeviceOutput),+> DeviceOutput for ($($name,)+) {
            type Ready = ($($name::Ready,)+);

            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
                let ($($name,)+) = self;
                $(match $name.poll_ready(budget) {
                    Poll::Ready(Ok(())) => {}
                    other => return other,
                })+
                Poll::Ready(Ok(()))
            }

            #[allow(non_snake_case, reason = "as above")]
            fn open(self) -> Result<Self::Ready, OpError> {
                let ($($name,)+) = self;
                Ok(($($name.open()?,)+))
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);

/// Host data on its way: opens after the work has finished.
pub trait Landing<T>: Send {
    /// See [`DeviceOutput::poll_ready`].
    ///
    /// # Errors
    /// As there.
    fn poll_land(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>>;

    /// The value.
    ///
    /// # Errors
    /// [`OpError::NotReady`], or what making the value gave.
    fn take(self: Box<Self>) -> Result<T, OpError>;
}

/// A host value that is there only after the work behind it has finished. Whoever waits for the operation gets it opened.
pub struct Pending<'a, T> {
    landing: Box<dyn Landing<T> + 'a>,
}

impl<'a, T> Pending<'a, T> {
    /// A value that comes about as `landing` says.
    pub fn new(landing: impl Landing<T> + 'a) -> Self {
        Self { landing: Box::new(landing) }
    }

    /// Does something with the value once it is there, on the thread that waits for it.
    pub fn map_ready<U, F>(self, f: F) -> Pending<'a, U>
    where
        T: Send + 'a,
        U: Send + 'a,
        F: FnOnce(T) -> U + Send + 'a,
    {
        Pending::new(Mapped { inner: self, f })
    }
}

struct Mapped<'a, T, F> {
    inner: Pending<'a, T>,
    f: F,
}

impl<T: Send, U, F: FnOnce(T) -> U + Send> Landing<U> for Mapped<'_, T, F> {
    fn poll_land(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        self.inner.poll_ready(budget)
    }

    fn take(self: Box<Self>) -> Result<U, OpError> {
        let Self { inner, f } = *self;
        inner.open().map(f)
    }
}

impl<T> DeviceOutput for Pending<'_, T> {
    type Ready = T;

    fn poll_ready(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        self.landing.poll_land(budget)
    }

    fn open(self) -> Result<T, OpError> {
        self.landing.take()
    }
}

impl<T> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending<{}>", core::any::type_name::<T>())
    }
}
