//! The driver's side of a stream: its handle, how calls are made on it, and its name.

use super::Stream;
use super::trail::Trail;
use crate::Context;
use crate::context::{ForeignOwner, Link, Shared};
use crate::error::CallError;
use crate::label::Label;
use core::cell::Cell;
use core::fmt;
use simtile_driver::sys::{CUresult, CUstream, CUstreamCaptureStatus};
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::{AxisId, StreamKind};
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Arc, Mutex};
use std::sync::{OnceLock, Weak};

/// Identity of a stream: never reused, unlike the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(super) u64);

impl StreamId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A number of the calling thread, never reused. Works while the thread ends, too.
pub(crate) fn thread_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: Cell<u64> = const { Cell::new(0) };
    }
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        token.get()
    })
}

/// What a stream is called in errors, and where it is found by those who do not keep it open.
pub(crate) struct StreamName {
    pub(super) id: StreamId,
    /// What it is called by: the number that a simulated driver's reports give it, else the identity.
    number: u64,
    pub(super) kind: StreamKind,
    pub(super) label: Label,
    pub(super) trail: Trail,
    /// The stream, from when it has been made.
    pub(super) stream: OnceLock<Weak<Stream>>,
    shared: Weak<Shared>,
    /// The context has ended, and so.
    ended: OnceLock<Ended>,
}

/// How a context ended, as far as one stream's work is concerned.
pub(crate) enum Ended {
    /// What had been submitted had finished.
    Finished,
    /// No call may be made any more: it was lost, or the driver is gone.
    Failed(CallError),
    /// Somebody else has it, and nobody asks any more.
    Unknown,
}

impl StreamName {
    pub(super) fn new(raw: CUstream, kind: StreamKind, context: &Context) -> Self {
        let (id, driver) = (StreamId::next(), context.driver());
        let number = match (kind, driver.table().extras) {
            // SAFETY: extras take their own driver's state.
            (StreamKind::Owned | StreamKind::Borrowed, Some(extras)) => unsafe {
                (extras.stream_number)(driver.state(), raw)
            },
            _ => 0,
        };
        Self {
            id,
            number: if number == 0 { id.0 } else { number },
            kind,
            label: Label::default(),
            trail: Trail::default(),
            stream: OnceLock::new(),
            shared: std::sync::Arc::downgrade(context.shared()),
            ended: OnceLock::new(),
        }
    }

    /// What there is to ask: the stream, or, once it is closed, its context.
    pub(super) fn ask<R>(&self, ask: impl FnOnce(&std::sync::Arc<Shared>) -> R) -> Option<R> {
        if let Some(stream) = self.stream.get().and_then(Weak::upgrade) {
            return Some(ask(stream.context().shared()));
        }
        let shared = self.shared.upgrade()?;
        let _pin = shared.pin()?;
        Some(ask(&shared))
    }

    /// The context has ended. The first end counts.
    pub(crate) fn end(&self, how: Ended) {
        let _ = self.ended.set(how);
    }

    /// How the context ended, if it has.
    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.get()
    }

    /// What the stream was given lately.
    pub(crate) fn trail(&self) -> &Trail {
        &self.trail
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StreamKind::Owned => "stream",
            StreamKind::Borrowed => "borrowed stream",
            StreamKind::Legacy => "legacy default stream",
            StreamKind::PerThread(_) => "per-thread default stream",
        };
        f.write_str(&self.label.describe(kind, self.number))
    }
}

/// Names of a context's streams by axis, also of those that were dropped not long ago.
#[derive(Default)]
pub(crate) struct StreamNames(Mutex<Vec<(AxisId, Arc<StreamName>)>>);

/// Names of dropped streams that are kept.
const NAMES_KEPT: usize = 256;

impl StreamNames {
    pub(super) fn add(&self, axis: AxisId, name: &Arc<StreamName>) {
        let mut names = self.0.lock();
        if names.len() >= NAMES_KEPT {
            // The oldest of those that nobody but this list holds.
            let unused = |entry: &(AxisId, Arc<StreamName>)| Arc::strong_count(&entry.1) == 1;
            let half = names.len() / 2;
            let mut seen = 0;
            names.retain(|entry| {
                seen += 1;
                seen > half || !unused(entry)
            });
        }
        names.push((axis, name.clone()));
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(AxisId, Arc<StreamName>)> {
        self.0.lock().clone()
    }

    /// The name of a stream.
    pub(crate) fn of(&self, axis: AxisId) -> String {
        let names = self.0.lock();
        match names.iter().rev().find(|entry| entry.0 == axis) {
            Some((_, name)) => name.to_string(),
            None => "a stream that was dropped".into(),
        }
    }
}

/// A driver stream, owned by the tracker until it is closed.
pub(crate) struct StreamHandle {
    pub(super) raw: CUstream,
    pub(super) name: Arc<StreamName>,
    /// Who lent the stream.
    #[allow(dead_code, reason = "held, never used")]
    pub(super) owner: Option<Arc<dyn ForeignOwner>>,
    /// The context lives as long as the stream.
    #[allow(dead_code, reason = "held, never used")]
    pub(super) context: Arc<Context>,
}

impl StreamHandle {
    #[inline]
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.name.kind == StreamKind::Owned
    }

    /// Runs driver calls on the handle; with the context current if `current`, or where the handle is not enough: default
    /// streams are those of the current context.
    #[inline]
    pub(crate) fn call<T>(
        &self,
        link: &Link,
        current: bool,
        calls: impl FnOnce(Driver, CUstream) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        match self.name.kind {
            StreamKind::Owned | StreamKind::Borrowed if !current => {
                link.with_handles(|driver| calls(driver, self.raw))
            }
            _ => link.with_current(|driver| calls(driver, self.raw)),
        }
    }

    /// Whether whoever owns the stream records a graph on it.
    pub(crate) fn is_capturing(&self, link: &Link) -> Result<bool, CallError> {
        is_capturing(link, self.raw)
    }
}

/// Whether a graph is being recorded on a stream.
pub(crate) fn is_capturing(link: &Link, stream: CUstream) -> Result<bool, CallError> {
    let status = link.with_current(|driver| {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, the out-pointer is valid for the call.
        unsafe { call!(driver, cuStreamIsCapturing(stream, &mut status)) }?;
        Ok(status)
    });
    match status {
        Ok(status) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        // Asking the legacy stream while another stream captures answers so.
        Err(CallError::Driver(e)) if e.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        // A driver that cannot be asked cannot capture either: both came with CUDA 10.0.
        Err(CallError::Driver(e)) if e.is_missing_entry() => Ok(false),
        Err(error) => Err(error),
    }
}

impl fmt::Display for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}
