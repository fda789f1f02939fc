//! Copies between host and device, as operations.
//!
//! Host memory of users never meets the device: bytes go through staging blocks, copied in at submission, copied out after
//! completion. A poll copies at most [`HostBudget::POLL`] bytes and waits for nothing: for a free block or a slow allocation it is
//! called again. The operation keeps its borrow of the device memory until all of it has been queued, so nobody else writes between
//! two pieces; after that the work owns its claim, and the operation may be dropped or forgotten.

use crate::output::{HostBudget, Landing};
use crate::reactor::Ticket;
use crate::worker::Job;
use crate::{DeviceOp, ExecutionContext, OpError, Pending, SubmitContext, into_future};
use core::task::Poll;
use simtile_core::{
    DeviceBox, DeviceBuffer, DeviceBufferView, DeviceBufferViewMut, HostLanding, MemoryError, OnDevice,
    PinnedHostBuffer, Stream,
};
use simtile_types::DeviceCopy;
use std::sync::Arc;

/// Pieces of one download in flight.
const PIECES: usize = 8;

/// `Ready(Ok(value))` goes on, everything else is the answer.
macro_rules! ready {
    ($poll:expr) => {
        match $poll {
            Poll::Ready(Ok(value)) => value,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => return Poll::Pending,
        }
    };
}

/// What making a buffer gives.
type Made<T> = Result<DeviceBuffer<T>, MemoryError>;

/// A new buffer that is filled by an operation.
#[must_use = "operations are lazy"]
pub struct Create<T: DeviceCopy> {
    from: Option<From<T>>,
    job: Option<Job<Made<T>>>,
    filling: Option<Write<T, From<T>, DeviceBuffer<T>>>,
}

enum From<T> {
    Zeros(usize),
    Values(Vec<T>),
    Shared(Arc<[T]>),
}

impl<T> AsRef<[T]> for From<T> {
    /// The values, if it has some.
    fn as_ref(&self) -> &[T] {
        match self {
            Self::Zeros(_) => &[],
            Self::Values(values) => values,
            Self::Shared(values) => values,
        }
    }
}

/// A new buffer of zeros.
pub fn zeros<T: DeviceCopy + Send + 'static>(len: usize) -> Create<T> {
    Create::new(From::Zeros(len))
}

/// A new buffer with these values.
pub fn upload<T: DeviceCopy + Send + Sync + 'static>(values: Vec<T>) -> Create<T> {
    Create::new(From::Values(values))
}

/// A new buffer with these values, which others may go on using.
pub fn upload_shared<T: DeviceCopy + Send + Sync + 'static>(values: Arc<[T]>) -> Create<T> {
    Create::new(From::Shared(values))
}

impl<T: DeviceCopy> Create<T> {
    fn new(from: From<T>) -> Self {
        Self { from: Some(from), job: None, filling: None }
    }
}

impl<T: DeviceCopy + Send + Sync + 'static> DeviceOp for Create<T> {
    type Output = DeviceBuffer<T>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<DeviceBuffer<T>, OpError>> {
        let Self { from, job, filling } = self;
        if let Some(write) = filling {
            return fill_outside(write, cx);
        }
        let Some(source) = &*from else { return Poll::Ready(Err(OpError::Finished)) };
        if let Some((_, outside)) = cx.execution().capture() {
            let made = match source {
                From::Zeros(len) => DeviceBuffer::zeroed(outside, *len).and_then(|mut buffer| {
                    cx.submit().memset(&mut buffer, 0)?;
                    Ok(buffer)
                }),
                values => replayed(cx, outside, values.as_ref()),
            };
            *from = None;
            return Poll::Ready(made.map_err(Into::into));
        }
        let (stream, pool) = (cx.stream().clone(), cx.execution().pool().cloned());
        let (zeros, len) = match source {
            From::Zeros(len) => (true, *len),
            values => (false, values.as_ref().len()),
        };
        let make = move || match (zeros, &pool) {
            (true, Some(pool)) => pool.zeroed(&stream, len),
            (true, None) => DeviceBuffer::zeroed(&stream, len),
            // SAFETY: nobody sees it before all values have been queued.
            (false, Some(pool)) => unsafe { pool.uninit(&stream, len) },
            // SAFETY: as above.
            (false, None) => unsafe { DeviceBuffer::uninit(&stream, len) },
        };
        let made = core::task::ready!(cx.offload(job, make));
        let made = match made {
            // Refused for want of room, it has made nothing, and is made again.
            Ok(made) => core::task::ready!(cx.settle(made)),
            Err(error) => Err(error),
        };
        match (from.take(), made) {
            (_, Err(error)) => Poll::Ready(Err(error)),
            (Some(From::Zeros(_)) | None, Ok(buffer)) => Poll::Ready(Ok(buffer)),
            (Some(values), Ok(buffer)) => fill_outside(filling.insert(write(buffer, values)), cx),
        }
    }
}

into_future!([T: DeviceCopy] Create<T>);

/// A memoised chain runs once for each pass: what it makes is made as usual, and filled so.
fn fill_outside<Op: DeviceOp>(op: &mut Op, cx: &SubmitContext<'_>) -> Poll<Result<Op::Output, OpError>> {
    op.poll_submit(&mut cx.elsewhere(&ExecutionContext::new(cx.stream())))
}

/// A buffer that each replay fills with these values, from pinned memory that the graph keeps.
fn replayed<T: DeviceCopy>(
    cx: &SubmitContext<'_>,
    outside: &Arc<Stream>,
    values: &[T],
) -> Result<DeviceBuffer<T>, MemoryError> {
    let mut buffer = DeviceBuffer::zeroed(outside, values.len())?;
    let source = PinnedHostBuffer::from_slice(outside.context(), values)?;
    cx.submit().copy_pinned(&source, &mut buffer)?;
    Ok(buffer)
}

/// Device memory that an operation reads: borrowed, shared or owned.
pub trait Source<T: DeviceCopy>: Send {
    /// The elements.
    fn view(&self) -> DeviceBufferView<'_, T>;
}

impl<T: DeviceCopy + Send + Sync> Source<T> for DeviceBuffer<T> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBuffer::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync> Source<T> for &DeviceBuffer<T> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBuffer::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync> Source<T> for Arc<DeviceBuffer<T>> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBuffer::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync, B: ?Sized + OnDevice<Element = T>> Source<T> for DeviceBox<B> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBox::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync, B: ?Sized + OnDevice<Element = T>> Source<T> for &DeviceBox<B> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBox::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync, B: ?Sized + OnDevice<Element = T>> Source<T> for Arc<DeviceBox<B>> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBox::view(self)
    }
}

impl<T: DeviceCopy + Send + Sync> Source<T> for DeviceBufferView<'_, T> {
    fn view(&self) -> DeviceBufferView<'_, T> {
        *self
    }
}

/// Device memory that an operation writes: borrowed or owned. It gives it back.
pub trait Target<T: DeviceCopy>: crate::DeviceOutput + Send {
    /// The elements.
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T>;
}

impl<T: DeviceCopy + Send + Sync> Target<T> for DeviceBuffer<T> {
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBuffer::view_mut(self)
    }
}

impl<T: DeviceCopy + Send + Sync> Target<T> for &mut DeviceBuffer<T> {
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBuffer::view_mut(self)
    }
}

impl<T: DeviceCopy + Send + Sync, B: ?Sized + OnDevice<Element = T>> Target<T> for DeviceBox<B> {
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBox::view_mut(self)
    }
}

impl<T: DeviceCopy + Send + Sync, B: ?Sized + OnDevice<Element = T>> Target<T> for &mut DeviceBox<B> {
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBox::view_mut(self)
    }
}

impl<T: DeviceCopy + Send + Sync> Target<T> for DeviceBufferViewMut<'_, T> {
    fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        self.reborrow()
    }
}

/// See [`download`].
#[must_use = "operations are lazy"]
pub struct Download<T: DeviceCopy, S> {
    source: Option<S>,
    landing: Option<HostLanding<T>>,
    job: Option<Job<Result<(), MemoryError>>>,
    ticket: Option<Arc<Ticket>>,
}

/// The values of device memory. In a chain they are [`Pending`]; whoever waits gets a `Vec`.
pub fn download<T: DeviceCopy + Send, S: Source<T>>(source: S) -> Download<T, S> {
    Download { source: Some(source), landing: None, job: None, ticket: None }
}

/// Peers' spelling of [`download`].
pub fn to_host_vec<T: DeviceCopy + Send, S: Source<T>>(source: S) -> Download<T, S> {
    download(source)
}

impl<T: DeviceCopy + Send + 'static, S: Source<T>> DeviceOp for Download<T, S> {
    type Output = Pending<'static, Vec<T>>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Self::Output, OpError>> {
        let Self { source, landing, job, ticket } = self;
        if cx.execution().is_recording() {
            let (what, why) =
                ("a download", "a replay cannot hand out host values; download the graph's output instead");
            return Poll::Ready(Err(OpError::NotCapturable { what, why }));
        }
        let Some(from) = source.as_ref().map(S::view) else { return Poll::Ready(Err(OpError::Finished)) };
        let landing = match landing {
            Some(landing) => landing,
            None => landing.insert(HostLanding::new(format!("{from:?}"), from.len())?),
        };
        let mut budget = cx.host_budget();
        while landing.queued() < landing.num_bytes() {
            if job.is_none() && landing.pieces() >= PIECES {
                if let Some((next, bytes)) = landing.next() {
                    let (next, fits) = (next.clone(), budget.take(bytes));
                    if !fits {
                        cx.again();
                        return Poll::Pending;
                    }
                    ready!(cx.wait(&next, ticket));
                }
                landing.land()?;
                continue;
            }
            let left = landing.num_bytes() - landing.queued();
            let context = cx.stream().context().clone();
            let block = if job.is_some() { None } else { context.try_staging_block(left)? };
            let Some(mut block) = block else {
                let made = ready!(cx.offload(job, move || context.make_staging_block(left)));
                ready!(cx.settle(made));
                continue;
            };
            let bytes = left.min(block.len());
            let queued = cx.submit().download(from, &mut block, landing.queued(), bytes);
            ready!(cx.settle(queued));
            landing.push(block, bytes);
        }
        *source = None;
        match self.landing.take() {
            Some(landing) => Poll::Ready(Ok(Pending::new(OnTheWay(landing)))),
            None => Poll::Ready(Err(OpError::Finished)),
        }
    }
}

into_future!([T: DeviceCopy, S] Download<T, S>);

/// A download whose pieces were all queued.
struct OnTheWay<T>(HostLanding<T>);

impl<T: DeviceCopy + Send> Landing<Vec<T>> for OnTheWay<T> {
    fn poll_land(&mut self, budget: &mut HostBudget) -> Poll<Result<(), OpError>> {
        while let Some((_, bytes)) = self.0.next() {
            if !budget.take(bytes) {
                return Poll::Pending;
            }
            if !self.0.land()? {
                return Poll::Ready(Err(OpError::NotReady));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(self: Box<Self>) -> Result<Vec<T>, OpError> {
        if self.0.pieces() > 0 {
            return Err(OpError::NotReady);
        }
        Ok(self.0.finish()?)
    }
}

/// See [`write()`].
#[must_use = "operations are lazy"]
pub struct Write<T: DeviceCopy, V, D> {
    values: V,
    target: Option<D>,
    queued: usize,
    job: Option<Job<Result<(), MemoryError>>>,
    element: core::marker::PhantomData<T>,
}

/// Copies host values over device memory of the same length, and gives that back. The values are not needed after the last of
/// them has been queued, which is when the operation has been submitted.
pub fn write<T, V, D>(target: D, values: V) -> Write<T, V, D>
where
    T: DeviceCopy + Send,
    V: AsRef<[T]> + Send,
    D: Target<T>,
{
    Write { values, target: Some(target), queued: 0, job: None, element: core::marker::PhantomData }
}

impl<T, V, D> DeviceOp for Write<T, V, D>
where
    T: DeviceCopy + Send,
    V: AsRef<[T]> + Send,
    D: Target<T>,
{
    type Output = D;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<D, OpError>> {
        let Self { values, target, queued, job, .. } = self;
        let Some(to) = target.as_mut().map(D::view_mut) else { return Poll::Ready(Err(OpError::Finished)) };
        let values = (*values).as_ref();
        if values.len() != to.len() {
            let (expected, actual) = (to.len(), values.len());
            let error = MemoryError::LengthMismatch {
                buffer: format!("{to:?}"),
                argument: "values",
                expected,
                actual,
            };
            return Poll::Ready(Err(error.into()));
        }
        if cx.execution().is_recording() {
            let source = PinnedHostBuffer::from_slice(cx.stream().context(), values)?;
            cx.submit().copy_pinned(&source, to)?;
            return Poll::Ready(target.take().ok_or(OpError::Finished));
        }
        let mut budget = cx.host_budget();
        while *queued < size_of_val(values) {
            let left = size_of_val(values) - *queued;
            let context = cx.stream().context().clone();
            let block = if job.is_some() { None } else { context.try_staging_block(left)? };
            let Some(mut block) = block else {
                let made = ready!(cx.offload(job, move || context.make_staging_block(left)));
                ready!(cx.settle(made));
                continue;
            };
            let bytes = left.min(block.len());
            if !budget.take(bytes) {
                cx.again();
                return Poll::Pending;
            }
            let copied = cx.submit().upload(&mut block, values, &to, *queued, bytes);
            ready!(cx.settle(copied));
            *queued += bytes;
        }
        Poll::Ready(target.take().ok_or(OpError::Finished))
    }
}

into_future!([T: DeviceCopy, V, D] Write<T, V, D>);

/// See [`copy`].
#[must_use = "operations are lazy"]
pub struct Copy<T: DeviceCopy, S, D> {
    source: Option<S>,
    target: Option<D>,
    element: core::marker::PhantomData<T>,
}

/// Copies device memory over device memory of the same length, and gives that back.
pub fn copy<T: DeviceCopy + Send, S: Source<T>, D: Target<T>>(source: S, target: D) -> Copy<T, S, D> {
    Copy { source: Some(source), target: Some(target), element: core::marker::PhantomData }
}

/// Peers' spelling of [`copy`].
pub fn memcpy<T: DeviceCopy + Send, S: Source<T>, D: Target<T>>(target: D, source: S) -> Copy<T, S, D> {
    copy(source, target)
}

impl<T: DeviceCopy + Send, S: Source<T>, D: Target<T>> DeviceOp for Copy<T, S, D> {
    type Output = D;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<D, OpError>> {
        let (Some(source), Some(target)) = (&self.source, &mut self.target) else {
            return Poll::Ready(Err(OpError::Finished));
        };
        let copied = cx.submit().copy(source.view(), target.view_mut());
        ready!(cx.settle(copied));
        self.source = None;
        Poll::Ready(self.target.take().ok_or(OpError::Finished))
    }
}

into_future!([T: DeviceCopy, S, D] Copy<T, S, D>);

/// See [`fill`].
#[must_use = "operations are lazy"]
pub struct Fill<T: DeviceCopy, D> {
    target: Option<D>,
    value: T,
}

/// Sets every element of device memory to `value`, and gives the memory back.
pub fn fill<T: DeviceCopy + Send, D: Target<T>>(target: D, value: T) -> Fill<T, D> {
    Fill { target: Some(target), value }
}

impl<T: DeviceCopy + Send, D: Target<T>> DeviceOp for Fill<T, D> {
    type Output = D;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<D, OpError>> {
        let Some(target) = &mut self.target else { return Poll::Ready(Err(OpError::Finished)) };
        let filled = cx.submit().fill(target.view_mut(), self.value);
        ready!(cx.settle(filled));
        Poll::Ready(self.target.take().ok_or(OpError::Finished))
    }
}

into_future!([T: DeviceCopy, D] Fill<T, D>);
