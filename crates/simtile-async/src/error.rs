//! Errors of operations.

use core::fmt;
use simtile_core::{
    ContextError, ContextLoss, DeviceError, GraphError, LaunchError, MemoryError, ModuleError, StreamError,
};
use std::sync::Arc;

/// Why an operation failed. Cheap to clone: everyone who waits for a shared result gets the same error.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// An operation of the core failed; it says which one, on what.
    #[error(transparent)]
    Core(Arc<simtile_core::Error>),
    /// The operation was given no stream, and no runtime is in force to choose one.
    #[error(
        "no runtime is in force: name a stream (sync_on, enqueue_on, schedule), or make a Runtime the default \
         (Runtime::set_default, Runtime::enter)"
    )]
    NoRuntime,
    /// The future gave its result already.
    #[error("this operation has finished and given its result")]
    Finished,
    /// A shared operation needs its own result.
    #[error("a shared operation needs its own result")]
    Reentrant,
    /// As much work is in flight as may be; only from calls that must not wait.
    #[error("{stream}: as much work is in flight as may be")]
    QueueFull {
        /// The stream.
        stream: String,
    },
    /// It may wait for other work, and the call must not wait.
    #[error(
        "{what} may wait for all work of the context, and this call waits for nothing: do it before, or use enqueue_on"
    )]
    WouldWait {
        /// The operation.
        what: &'static str,
    },
    /// A closure, or the operation that it made, panicked. What was submitted before stays submitted.
    #[error("a closure of the operation panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// [`DeviceOp::unwrap_arc`](crate::DeviceOp::unwrap_arc) of a value that others hold, too.
    #[error("an Arc<{what}> is to be taken apart, but {holders} hold it; the limit is 1")]
    SharedArc {
        /// Its type.
        what: &'static str,
        /// How many hold it.
        holders: usize,
    },
    /// A result of the host is asked for before its work has finished.
    #[error("the work behind this value has not finished")]
    NotReady,
    /// The operation cannot be part of a graph.
    #[error("{what} cannot be captured into a graph: {why}")]
    NotCapturable {
        /// The operation.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// A shared result belongs to another world: it ran eagerly and is wanted in a capture, or the other way round.
    #[error("this shared result ran {ran}, and is wanted {wanted}")]
    OtherWorld {
        /// Where it ran.
        ran: &'static str,
        /// Where it is wanted.
        wanted: &'static str,
    },
    /// A launch was put together wrongly.
    #[error("launch of {kernel}: {what}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// What is wrong, with the value and the limit.
        what: String,
    },
    /// A graph cannot do this.
    #[error("graph: {what}")]
    Graph {
        /// What, and why not.
        what: String,
    },
    /// A call of another library failed. What it queued before stays queued.
    #[error("{what}: {source}")]
    External {
        /// The label of the operation.
        what: Arc<str>,
        /// What the call said.
        source: Arc<OpError>,
    },
    /// A labelled operation failed.
    #[error("{label}: {source}")]
    Labelled {
        /// The label.
        label: Arc<str>,
        /// How.
        source: Arc<OpError>,
    },
    /// The system could not start a thread that the operation needs.
    #[error("no thread for {what}: {why}")]
    NoThread {
        /// What for.
        what: &'static str,
        /// The system's reason.
        why: String,
    },
    /// An error of the program's own, from a closure that can fail.
    #[error(transparent)]
    User(Arc<dyn std::error::Error + Send + Sync>),
}

/// The text, since that is what `main` and `unwrap` print of an error.
impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl OpError {
    /// An error of the program's own.
    pub fn user(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::User(Arc::from(error.into()))
    }

    /// The core's error, if it is one; also that of a labelled operation or of an external call.
    pub fn core(&self) -> Option<&simtile_core::Error> {
        match self {
            Self::Core(error) => Some(error),
            Self::Labelled { source, .. } | Self::External { source, .. } => source.core(),
            _ => None,
        }
    }

    /// The error without the labels of operations around it.
    pub fn unlabelled(&self) -> &OpError {
        match self {
            Self::Labelled { source, .. } => source.unlabelled(),
            error => error,
        }
    }

    /// The same, of an operation of this name.
    pub(crate) fn labelled(self, label: &Arc<str>) -> Self {
        Self::Labelled { label: label.clone(), source: Arc::new(self) }
    }

    /// How the context was lost, if that is the error: by which work, and what told.
    pub fn loss(&self) -> Option<&Arc<ContextLoss>> {
        use simtile_core::Error as E;
        match self.core()? {
            E::Device(error) => error.loss(),
            E::Context(error) => error.loss(),
            E::Stream(error) => error.loss(),
            E::Memory(error) => error.loss(),
            E::Module(error) => error.loss(),
            E::Launch(error) => error.loss(),
            E::Graph(error) => error.loss(),
            _ => None,
        }
    }

    /// The driver call that failed, or that lost the context.
    pub fn driver_error(&self) -> Option<simtile_driver::DriverError> {
        use simtile_core::Error as E;
        match self.core()? {
            E::Device(error) => error.driver_error(),
            E::Context(error) => error.driver_error(),
            E::Stream(error) => error.driver_error(),
            E::Memory(error) => error.driver_error(),
            E::Module(error) => error.driver_error(),
            E::Launch(error) => error.driver_error(),
            E::Graph(error) => error.driver_error(),
            _ => None,
        }
    }

    /// Whether the context was lost, by this operation or an earlier one.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    pub(crate) fn panicked(payload: &(dyn core::any::Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Self::Panicked { message }
    }
}

macro_rules! from_core {
    ($($name:ident)*) => { $(
        impl From<$name> for OpError {
            fn from(error: $name) -> Self {
                Self::Core(Arc::new(error.into()))
            }
        }
    )* };
}

from_core! { DeviceError ContextError StreamError MemoryError ModuleError LaunchError GraphError }

impl From<simtile_core::Error> for OpError {
    fn from(error: simtile_core::Error) -> Self {
        Self::Core(Arc::new(error))
    }
}

/// What a refused submission has to wait for, if it is only a matter of waiting.
pub(crate) enum Refused {
    /// Room in a queue.
    Full(simtile_core::Room),
    /// Another thread, for a moment.
    Busy,
    /// It will not get better.
    Error(OpError),
}

/// Errors that may be a matter of waiting.
pub trait MayWait: Into<OpError> {
    #[doc(hidden)]
    fn stream_error(&self) -> Option<&StreamError>;
}

/// In a forked child nobody does what other threads were to do: what waits for them is told so.
pub(crate) fn forked(waiting_for: &str) -> Option<OpError> {
    simtile_core::is_forked().then(|| StreamError::Forked { on: waiting_for.to_owned() }.into())
}

pub(crate) fn refused<E: MayWait>(error: E) -> Refused {
    match error.stream_error() {
        Some(StreamError::QueueFull { room, .. }) => Refused::Full(room.clone()),
        Some(StreamError::Busy { .. }) => Refused::Busy,
        _ => Refused::Error(error.into()),
    }
}

impl MayWait for StreamError {
    fn stream_error(&self) -> Option<&StreamError> {
        Some(self)
    }
}

impl MayWait for MemoryError {
    fn stream_error(&self) -> Option<&StreamError> {
        match self {
            Self::Stream(error) => Some(error),
            _ => None,
        }
    }
}

impl MayWait for LaunchError {
    fn stream_error(&self) -> Option<&StreamError> {
        match self {
            Self::Stream(error) => Some(error),
            _ => None,
        }
    }
}

impl MayWait for GraphError {
    fn stream_error(&self) -> Option<&StreamError> {
        match self {
            Self::Stream(error) => Some(error),
            _ => None,
        }
    }
}

impl MayWait for simtile_core::Error {
    fn stream_error(&self) -> Option<&StreamError> {
        match self {
            Self::Stream(error) => Some(error),
            Self::Memory(error) => error.stream_error(),
            Self::Launch(error) => error.stream_error(),
            Self::Graph(error) => error.stream_error(),
            _ => None,
        }
    }
}

impl MayWait for OpError {
    fn stream_error(&self) -> Option<&StreamError> {
        self.core().and_then(MayWait::stream_error)
    }
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(room) => room.fmt(f),
            Self::Busy => f.write_str("Busy"),
            Self::Error(error) => error.fmt(f),
        }
    }
}
