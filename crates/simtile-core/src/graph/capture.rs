//! A capture that goes on.

use super::CapturedGraph;
use super::condition::Place;
use super::script::Kernel;
use crate::context::{CoreBackend, Link, SubmitError};
use crate::error::{CallError, Family, GraphError, On, OnStream, StreamError};
use crate::memory::{Allocation, Owner};
use crate::stream::{StreamHandle, Touch};
use crate::{Function, Stream, SubmitBuilder};
use core::any::Any;
use core::fmt;
use simtile_driver::sys::{CUgraph, CUgraphNode, CUstream, CUstreamCaptureMode};
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{Access, CapturedAccess, RegionId};
use simtile_sync::{Arc, Mutex};

/// What nodes reach.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    /// Sorted by region.
    pub(super) owners: Vec<(RegionId, Owner)>,
    pub(super) functions: Vec<Function>,
    pub(super) values: Vec<Arc<dyn Any + Send + Sync>>,
}

/// What nodes touch, node by node.
#[derive(Default)]
pub(super) struct Touched {
    pub all: Vec<NodeTouch>,
    /// Kernels that were given names.
    pub named: Vec<Named>,
    /// Launches get names now.
    naming: bool,
}

pub(super) struct NodeTouch {
    pub access: CapturedAccess,
    /// Which of the named kernels; `None`: another node.
    pub named: Option<u32>,
}

pub(super) struct Named {
    pub node: CUgraphNode,
    pub kernel: Kernel,
}

/// A kernel of a graph whose parameters can be changed alone ([`GraphExec::set_kernel`](crate::GraphExec::set_kernel)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelNode {
    /// The capture that it is of.
    pub(super) capture: u64,
    pub(super) index: u32,
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
    touched: Mutex<Touched>,
}

impl Stream {
    /// Begins to record work on this stream into a graph, in relaxed mode.
    ///
    /// # Errors
    /// [`StreamError::Capturing`]; default streams cannot be captured; the driver's. Nothing has changed then.
    pub fn begin_capture(self: &Arc<Self>) -> Result<Capture, StreamError> {
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
        let id = super::next_world();
        Ok(Capture {
            capture: Some(capture),
            origin: self.clone(),
            id,
            kept: Mutex::default(),
            touched: Mutex::default(),
        })
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

    /// Runs `record`, which submits one launch to this capture, and gives a name to its node.
    ///
    /// # Errors
    /// What `record` gives; [`GraphError::NotUpdatable`] if it recorded no launch or several, which stay recorded.
    pub fn name_kernel<R, E: From<GraphError>>(
        &self,
        record: impl FnOnce() -> Result<R, E>,
    ) -> Result<(R, KernelNode), E> {
        let before = {
            let mut touched = self.touched.lock();
            touched.naming = true;
            touched.named.len()
        };
        let recorded = record();
        let after = {
            let mut touched = self.touched.lock();
            touched.naming = false;
            touched.named.len()
        };
        let recorded = recorded?;
        if after - before != 1 {
            let why = format!("{} launches were recorded, and one can be named", after - before);
            return Err(GraphError::NotUpdatable { what: format!("{self:?}"), why }.into());
        }
        Ok((recorded, KernelNode { capture: self.id, index: before as u32 }))
    }

    /// The node behind which this stream stands, if that is one.
    fn last_node(&self, stream: &Stream) -> Result<CUgraphNode, GraphError> {
        let on = || format!("capture on {stream}");
        let place = stream.context().link().with_handles(|driver| Place::of(driver, stream.cu_stream()));
        let place = place.on::<GraphError>(on)?;
        match place.behind.as_slice() {
            [node] => Ok(*node),
            nodes => {
                let why = format!("the stream stands behind {} nodes, where one was expected", nodes.len());
                Err(GraphError::NotUpdatable { what: on(), why })
            }
        }
    }

    /// The name of a launch that is about to be recorded, if names are given.
    pub(crate) fn name_launch(&self, kernel: impl FnOnce() -> Kernel) -> Option<u32> {
        let mut touched = self.touched.lock();
        touched.naming.then(|| {
            touched.named.push(Named { node: CUgraphNode::NULL, kernel: kernel() });
            touched.named.len() as u32 - 1
        })
    }

    /// That launch was recorded.
    pub(crate) fn named(&self, stream: &Stream, name: u32) -> Result<(), GraphError> {
        let node = self.last_node(stream)?;
        if let Some(named) = self.touched.lock().named.get_mut(name as usize) {
            named.node = node;
        }
        Ok(())
    }

    pub(crate) fn keep_all(&self, other: &Kept) {
        self.kept.lock().join(other);
    }

    /// Records one submission. `name` is that of a launch.
    #[allow(clippy::too_many_arguments, reason = "all of a submission")]
    pub(crate) fn record<E: OnStream>(
        &self,
        stream: &Arc<Stream>,
        touches: &[Touch<'_>],
        accesses: &[Access<'_>],
        name: Option<u32>,
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
        let refused_one = {
            let mut kept = self.kept.lock();
            used.iter().find(|allocation| kept.owner(allocation).is_err())
        };
        if let Some(allocation) = refused_one {
            let what = format!("{} cannot be kept by a graph", allocation.name());
            return Err(E::from_stream(StreamError::Refused { stream: stream.to_string(), what }));
        }
        let touched = accesses.iter().filter(|access| access.start < access.end).map(|access| {
            let (region, start, end) = (access.region.id(), access.start, access.end);
            NodeTouch { access: CapturedAccess { region, start, end, mode: access.mode }, named: name }
        });
        self.touched.lock().all.extend(touched);
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
        let ended = capture.finish(|handle| end(link, handle, &mut graph));
        let mut kept = core::mem::take(&mut *self.kept.lock());
        let mut touched = core::mem::take(&mut *self.touched.lock());
        if is_planted(Bug::GraphKeepsNothing) {
            (kept, touched) = Default::default();
        }
        match ended {
            Ok(_) if graph != CUgraph::NULL => {
                Ok(CapturedGraph::new(self.origin.context(), graph, self.id, touched, kept))
            }
            Ok(_) => Err(GraphError::Invalidated { on: on() }),
            Err(error) => {
                destroy(&self.origin, graph);
                Err(self.origin.refused(error, &[], on))
            }
        }
    }
}

/// Ends the capture of a stream. Tried twice: a stream that goes on capturing would take no work for ever.
fn end(link: &Link, stream: &StreamHandle, graph: &mut CUgraph) -> Result<(), CallError> {
    let mut attempt = || {
        stream.call(link, true, |driver, raw| {
            // SAFETY: the stream is alive, the out-pointer is valid for the call.
            unsafe { call!(driver, cuStreamEndCapture(raw, graph)) }
        })
    };
    let first = attempt();
    // If the first call has ended it all the same, the second says that there is none, which is no news.
    if first.is_err() && link.usable().is_ok() && attempt().is_ok() { Ok(()) } else { first }
}

/// Throws a graph away that nobody wants.
fn destroy(stream: &Stream, graph: CUgraph) {
    if graph != CUgraph::NULL {
        // SAFETY: the graph is ours, and nobody has its handle.
        let call = move |driver: Driver| unsafe { call!(driver, cuGraphDestroy(graph)) };
        let name = stream.to_string();
        stream.context().end_object(move || format!("graph of a capture on {name}"), call);
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
        let _ = capture.abandon(|handle| end(link, handle, &mut graph));
        destroy(&self.origin, graph);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({}, on {})", self.id, self.origin)
    }
}
