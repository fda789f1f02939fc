//! A capture that goes on.

use super::CapturedGraph;
use crate::context::{CoreBackend, SubmitError};
use crate::error::{Family, GraphError, OnStream, StreamError};
use crate::memory::{Allocation, Owner};
use crate::stream::Touch;
use crate::{Function, Stream, SubmitBuilder};
use core::any::Any;
use core::fmt;
use simtile_driver::sys::{CUgraph, CUstream, CUstreamCaptureMode};
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::{Access, RegionId};
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Arc, Mutex};

/// What nodes reach.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    /// Sorted by region.
    pub(super) owners: Vec<(RegionId, Owner)>,
    pub(super) functions: Vec<Function>,
    pub(super) values: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Kept {
    fn owner(&mut self, allocation: &Allocation) -> Result<(), ()> {
        let Some(region) = allocation.region().map(simtile_hazard::Region::id) else { return Ok(()) };
        if let Err(at) = self.owners.binary_search_by_key(&region, |kept| kept.0) {
            self.owners.insert(at, (region, allocation.another_owner().ok_or(())?));
        }
        Ok(())
    }

    pub(super) fn join(&mut self, other: &Kept) {
        for (region, owner) in &other.owners {
            if let Err(at) = self.owners.binary_search_by_key(region, |kept| kept.0) {
                self.owners.insert(at, (*region, owner.clone()));
            }
        }
        self.functions.extend(other.functions.iter().cloned());
        self.values.extend(other.values.iter().cloned());
    }
}

/// Work that is being recorded into a graph. Its streams take work only through it; dropping it ends the capture and throws the
/// graph away.
///
/// Nothing runs. A failed call may have become a node all the same: end the capture then.
pub struct Capture {
    /// `None` once it has ended.
    capture: Option<simtile_hazard::Capture<CoreBackend>>,
    origin: Arc<Stream>,
    id: u64,
    kept: Mutex<Kept>,
}

impl Stream {
    /// Begins to record work on this stream into a graph, in relaxed mode.
    ///
    /// # Errors
    /// [`StreamError::Capturing`]; default streams cannot be captured; the driver's. Nothing has changed then.
    pub fn begin_capture(self: &Arc<Self>) -> Result<Capture, StreamError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.on_its_thread()?;
        if self.is_default() {
            let what =
                "default streams cannot be captured: use a stream of your own (Context::new_stream)".into();
            return Err(StreamError::Refused { stream: self.to_string(), what });
        }
        let link = self.context().link();
        let Some(tracked) = self.tracked() else {
            return Err(self.refused(SubmitError::Closed, &[], || self.to_string()));
        };
        if let Err(error) = link.usable() {
            return Err(StreamError::from_call(error, self.to_string()));
        }
        let begun = self.context().tracker().begin_capture(tracked, 0, |handle| {
            handle.call(link, true, |driver, raw| {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                // SAFETY: the stream is alive.
                unsafe { call!(driver, cuStreamBeginCapture(raw, mode)) }
            })
        });
        let capture = begun.map_err(|error| self.refused::<StreamError>(error, &[], || self.to_string()))?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Capture { capture: Some(capture), origin: self.clone(), id, kept: Mutex::new(Kept::default()) })
    }
}

impl Capture {
    /// The stream on which it began.
    pub fn origin(&self) -> &Arc<Stream> {
        &self.origin
    }

    /// A number that no other capture of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes another stream in, behind what the first one has recorded so far.
    ///
    /// # Errors
    /// The stream takes no work, or the driver's. End the capture after a failed driver call.
    pub fn add_stream(&self, stream: &Arc<Stream>) -> Result<(), StreamError> {
        self.origin.same_context(stream.context(), || stream.to_string())?;
        let refused = |error| stream.refused(error, &[], || stream.to_string());
        let (Some(capture), Some(tracked)) = (&self.capture, stream.tracked()) else {
            return Err(refused(SubmitError::Closed));
        };
        capture.add_stream(tracked, 0).map_err(refused)
    }

    /// Begins a submission that becomes nodes.
    pub fn submit<'a>(&'a self, stream: &'a Arc<Stream>) -> SubmitBuilder<'a> {
        stream.submit().into_capture(self)
    }

    /// Keeps a value as long as the graph and its executables.
    pub fn keep(&self, value: Arc<dyn Any + Send + Sync>) {
        self.kept.lock().values.push(value);
    }

    pub(crate) fn keep_function(&self, function: &Function) {
        self.kept.lock().functions.push(function.clone());
    }

    pub(crate) fn keep_all(&self, other: &Kept) {
        self.kept.lock().join(other);
    }

    /// Records one submission.
    pub(crate) fn record<E: OnStream>(
        &self,
        stream: &Arc<Stream>,
        touches: &[Touch<'_>],
        accesses: &[Access<'_>],
        current: bool,
        on: impl Fn() -> String,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), E> {
        let used: Vec<&Allocation> = touches.iter().map(|touch| touch.allocation).collect();
        let refused = |error| stream.refused::<E>(error, &used, || format!("{} on {stream}", on()));
        let (Some(capture), Some(tracked)) = (&self.capture, stream.tracked()) else {
            return Err(refused(SubmitError::Closed));
        };
        let link = stream.context().link();
        if let Err(error) = link.usable() {
            return Err(E::from_call(error, format!("{} on {stream}", on())));
        }
        // Kept first: a call that fails may have become a node.
        for allocation in &used {
            if self.kept.lock().owner(allocation).is_err() {
                let what = format!("{} cannot be kept by a graph", allocation.name());
                return Err(E::from_stream(StreamError::Refused { stream: stream.to_string(), what }));
            }
        }
        capture.submit(tracked, accesses, |handle| handle.call(link, current, calls)).map_err(refused)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The driver's: something ended or spoiled the capture. Its streams are back in any case.
    pub fn finish(mut self) -> Result<CapturedGraph, GraphError> {
        let on = || format!("capture on {}", self.origin);
        let Some(capture) = self.capture.take() else {
            return Err(GraphError::NotUpdatable { what: on(), why: "it has ended".into() });
        };
        let link = self.origin.context().link();
        let mut graph = CUgraph::NULL;
        let ended =
            capture.finish(|handle| handle.call(link, true, |driver, raw| end(driver, raw, &mut graph)));
        let kept = core::mem::take(&mut *self.kept.lock());
        match ended {
            Ok(((), set)) if graph != CUgraph::NULL => {
                Ok(CapturedGraph::new(self.origin.context(), graph, set.accesses(), kept))
            }
            Ok(_) => Err(GraphError::Invalidated { on: on() }),
            Err(error) => {
                destroy(&self.origin, graph);
                Err(self.origin.refused(error, &[], on))
            }
        }
    }
}

fn end(driver: Driver, stream: CUstream, graph: &mut CUgraph) -> Result<(), DriverError> {
    // SAFETY: the stream is alive, the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamEndCapture(stream, graph)) }
}

/// Throws a graph away that nobody wants.
fn destroy(stream: &Stream, graph: CUgraph) {
    if graph != CUgraph::NULL {
        // SAFETY: the graph is ours, and nobody has its handle.
        let call = |driver: Driver| unsafe { call!(driver, cuGraphDestroy(graph)) };
        stream.context().link().finish(|| format!("graph of a capture on {stream}"), call);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let Some(capture) = self.capture.take() else { return };
        if crate::sys::is_forked() {
            core::mem::forget(capture);
            return;
        }
        let link = self.origin.context().link();
        let mut graph = CUgraph::NULL;
        // The answer says what spoiled the capture; whoever dropped it has that error already.
        let _ = capture.abandon(|handle| handle.call(link, true, |driver, raw| end(driver, raw, &mut graph)));
        destroy(&self.origin, graph);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({}, on {})", self.id, self.origin)
    }
}
