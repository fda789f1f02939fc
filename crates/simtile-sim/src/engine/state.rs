//! Everything a simulated driver knows of contexts, streams and events, under one lock.

use super::capture::{Captured, Membership};
use super::graph_launch::GraphItem;
use super::graphs::GraphStore;
use super::green::{GreenState, Part};
use super::host_watch::HostWatches;
use super::kernel_watch::KernelWatches;
use super::managed::KernelMarks;
use super::order::{Order, Prior};
use super::policy::{Policy, Running};
use super::work::{Frontier, Record, Work};
use crate::check::VectorClock;
use crate::handles::Handles;
use simtile_driver::sys::{CUcontext, CUevent, CUlimit, CUresult, CUstream};
use simtile_sync::Arc;
use simtile_sync::atomic::AtomicBool;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most launches and the like in one stream.
pub(crate) const STREAM_LIMIT: usize = 1021;
/// Most in one context.
pub(crate) const CONTEXT_LIMIT: usize = 8 * STREAM_LIMIT;

/// A context.
pub(crate) struct ContextState {
    pub(crate) handle: CUcontext,
    pub(crate) device: i32,
    pub(crate) primary: bool,
    pub(crate) flags: u32,
    pub(crate) limits: BTreeMap<u32, usize>,
    /// The code that every call returns since a fault.
    pub(crate) lost: Option<CUresult>,
    /// Uid of the legacy default stream.
    pub(crate) legacy: u64,
    /// Per-thread default streams by thread number.
    pub(crate) per_thread: BTreeMap<u64, u64>,
    /// Uids of all its streams that are not gone.
    pub(crate) streams: BTreeSet<u64>,
    /// Work that takes places in the queues.
    pub(crate) counted: usize,
    /// Calls that wait for the whole context and hold launches back meanwhile.
    pub(crate) stalls: usize,
    /// Launches that wait for a place.
    pub(crate) blocked: usize,
    /// Set when running kernels should end.
    pub(crate) cancel: Arc<AtomicBool>,
    /// Being destroyed: nothing new is taken.
    pub(crate) ending: bool,
    /// Contexts whose memory it may reach.
    pub(crate) peers: BTreeSet<u64>,
    /// Local memory per thread that kernels have had so far, bytes.
    pub(crate) local_bytes: u32,
}

impl ContextState {
    pub(crate) fn limit(&self, limit: CUlimit) -> Option<usize> {
        self.limits.get(&limit.0).copied()
    }
}

/// One queued piece of work.
pub(crate) struct Item {
    pub(crate) seq: u64,
    pub(crate) work: Work,
    pub(crate) counted: bool,
    /// What a record completes, or what a wait waits for.
    pub(crate) record: Option<Arc<Record>>,
    /// What the host knew when it submitted this.
    pub(crate) host: Arc<VectorClock>,
    /// Its place in a graph's launch.
    pub(crate) graph: Option<GraphItem>,
}

/// A stream.
pub(crate) struct StreamState {
    pub(crate) handle: CUstream,
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Number within its context, from 0.
    pub(crate) index: u64,
    /// The context's legacy default stream, or a green context's.
    pub(crate) legacy: bool,
    /// Uid of the green context that it belongs to.
    pub(crate) green: Option<u64>,
    pub(crate) items: VecDeque<Item>,
    /// The first item runs now.
    pub(crate) running: bool,
    pub(crate) counted: usize,
    /// Launches that wait for a place in it.
    pub(crate) blocked: usize,
    /// What its next work is ordered after on other streams.
    pub(crate) frontier: Frontier,
    /// The handle is gone; the rest of its work goes on.
    pub(crate) destroyed: bool,
    pub(crate) label: Option<String>,
    /// Values set by `cuStreamSetAttribute`.
    pub(crate) sync_policy: u32,
    /// The capture it takes part in.
    pub(crate) capture: Option<Membership>,
    /// Its last work, if that was a kernel and races are checked.
    pub(crate) prior: Option<Prior>,
    /// Axes for nodes of graphs that do not follow each other.
    pub(crate) lanes: Vec<u64>,
}

impl StreamState {
    /// Whether the default stream of its context, or green context, orders with it.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & 1 == 0
    }
}

/// An event.
pub(crate) struct EventState {
    pub(crate) handle: CUevent,
    pub(crate) context: u64,
    pub(crate) flags: u32,
    /// The last record, if there was one.
    pub(crate) record: Option<Arc<Record>>,
    /// The capture it was last recorded in, if that came after the last record.
    pub(crate) captured: Option<Captured>,
}

/// A primary context's duties.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<u64>,
    pub(crate) retains: u32,
    pub(crate) flags: u32,
    /// The code of the fault after which the device is of no use to the process.
    pub(crate) lost: Option<CUresult>,
}

/// All of it.
pub(crate) struct State {
    pub(crate) next_uid: u64,
    pub(crate) next_seq: u64,
    /// Pieces of work that have started or ended.
    pub(crate) steps: u64,
    pub(crate) order: Order,
    /// Host memory that queued copies will read or fill.
    pub(crate) watches: HostWatches,
    /// Host memory that queued kernels may touch.
    pub(crate) kernel_watches: KernelWatches,
    /// The last kernels, where managed memory is not shared.
    pub(crate) kernels: KernelMarks,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) context_handles: Handles<u64>,
    pub(crate) contexts: BTreeMap<u64, ContextState>,
    pub(crate) stream_handles: Handles<u64>,
    pub(crate) streams: BTreeMap<u64, StreamState>,
    pub(crate) event_handles: Handles<u64>,
    pub(crate) events: BTreeMap<u64, EventState>,
    pub(crate) graphs: GraphStore,
    pub(crate) green_handles: Handles<u64>,
    pub(crate) greens: BTreeMap<u64, GreenState>,
    /// Descriptions of resources: device and multiprocessors.
    pub(crate) desc_handles: Handles<(i32, Part)>,
    /// Streams that have work.
    pub(crate) active: BTreeSet<u64>,
    pub(crate) running: Vec<Running>,
    pub(crate) policy: Box<dyn Policy>,
    /// Worker threads, and those of them that wait for work.
    pub(crate) workers: usize,
    /// Workers ever started.
    pub(crate) workers_started: u64,
    /// Those of them that have not looked at the streams yet.
    pub(crate) starting: usize,
    pub(crate) idle: usize,
    /// One idle worker looks at wait-values now and then.
    pub(crate) polling: bool,
    /// Host threads that wait for progress.
    pub(crate) waiting: usize,
    /// A deadlock was reported: what still runs never ends.
    pub(crate) given_up: bool,
    /// The driver was shut down.
    pub(crate) down: bool,
}

impl State {
    pub(crate) fn uid(&mut self) -> u64 {
        let uid = self.next_uid;
        self.next_uid += 1;
        uid
    }
}
