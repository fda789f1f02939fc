//! Which stream an operation gets.

use crate::{ExecutionContext, OpError};
use simtile_core::{Context, Stream};
use simtile_sync::atomic::{AtomicUsize, Ordering};
use simtile_sync::{Mutex, atomic::AtomicBool};
use std::sync::Arc;

/// Chooses streams. Its own code may be anything; it is called with no lock held.
pub trait SchedulingPolicy: Send + Sync {
    /// The stream of the next operation.
    ///
    /// # Errors
    /// The policy's, or the driver's.
    fn next_stream(&self) -> Result<Arc<Stream>, OpError>;

    /// Where the next operation runs: on the next stream. A policy that has pools names them here.
    ///
    /// # Errors
    /// As [`SchedulingPolicy::next_stream`].
    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        Ok(ExecutionContext::new(&self.next_stream()?))
    }
}

impl<P: SchedulingPolicy + ?Sized> SchedulingPolicy for Arc<P> {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        (**self).next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        (**self).next_execution()
    }
}

impl<P: SchedulingPolicy + ?Sized> SchedulingPolicy for &P {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        (**self).next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        (**self).next_execution()
    }
}

/// Several streams in turn.
#[derive(Debug)]
pub struct StreamPoolRoundRobin {
    streams: Box<[Arc<Stream>]>,
    next: AtomicUsize,
}

impl StreamPoolRoundRobin {
    /// So many streams of this context.
    ///
    /// # Errors
    /// None asked for, or the driver's.
    pub fn new(context: &Arc<Context>, streams: usize) -> Result<Self, OpError> {
        if streams == 0 {
            return Err(OpError::user("a pool of 0 streams; the least is 1"));
        }
        let streams = (0..streams).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
        Ok(Self { streams, next: AtomicUsize::new(0) })
    }

    /// These streams.
    ///
    /// # Errors
    /// There are none.
    pub fn from_streams(streams: impl IntoIterator<Item = Arc<Stream>>) -> Result<Self, OpError> {
        let streams: Box<[_]> = streams.into_iter().collect();
        if streams.is_empty() {
            return Err(OpError::user("a pool of 0 streams; the least is 1"));
        }
        Ok(Self { streams, next: AtomicUsize::new(0) })
    }

    /// The streams.
    pub fn streams(&self) -> &[Arc<Stream>] {
        &self.streams
    }
}

impl SchedulingPolicy for StreamPoolRoundRobin {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.streams.len();
        Ok(self.streams[next].clone())
    }
}

/// One stream for everything.
#[derive(Clone, Debug)]
pub struct SingleStream(Arc<Stream>);

impl SingleStream {
    /// A stream of its own.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, OpError> {
        Ok(Self(context.new_stream()?))
    }

    /// This stream.
    pub fn from_stream(stream: &Arc<Stream>) -> Self {
        Self(stream.clone())
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.0
    }
}

impl SchedulingPolicy for SingleStream {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        Ok(self.0.clone())
    }
}

/// A stream for each task: [`StreamPerTask::task`] gives a policy whose operations all run on one stream, which nobody else
/// has meanwhile. It goes back when the task's policy is dropped, and is used again.
#[derive(Clone, Debug)]
pub struct StreamPerTask(Arc<Free>);

#[derive(Debug)]
struct Free {
    context: Arc<Context>,
    streams: Mutex<Vec<Arc<Stream>>>,
}

impl StreamPerTask {
    /// Streams are made when tasks need them.
    pub fn new(context: &Arc<Context>) -> Self {
        Self(Arc::new(Free { context: context.clone(), streams: Mutex::new(Vec::new()) }))
    }

    /// A task's policy.
    ///
    /// # Errors
    /// The driver's.
    pub fn task(&self) -> Result<TaskStream, OpError> {
        let free = self.0.streams.lock().pop();
        let stream = match free {
            Some(stream) => stream,
            None => self.0.context.new_stream()?,
        };
        Ok(TaskStream { free: self.0.clone(), stream, given_back: AtomicBool::new(false) })
    }
}

/// A task's stream. See [`StreamPerTask`].
#[derive(Debug)]
pub struct TaskStream {
    free: Arc<Free>,
    stream: Arc<Stream>,
    given_back: AtomicBool,
}

impl TaskStream {
    /// The stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }
}

impl SchedulingPolicy for TaskStream {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        Ok(self.stream.clone())
    }
}

impl Drop for TaskStream {
    fn drop(&mut self) {
        if !self.given_back.swap(true, Ordering::Relaxed) {
            self.free.streams.lock().push(self.stream.clone());
        }
    }
}
