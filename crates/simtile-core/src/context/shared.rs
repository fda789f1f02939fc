//! What all handles of one CUDA context share: the link to the driver, the tracker, memory, background work.
//!
//! Two retains of a primary context, or a borrowed handle beside the owner's, are two [`Context`](crate::Context) values on one CUDA
//! context. Their streams and buffers work together, so they must be tracked together: the process keeps a list of
//! contexts that have handles, and a new handle joins what is there.

use super::backend::{CoreBackend, Tracker};
use super::lanes::Lanes;
use super::link::Link;
use crate::Device;
use crate::memory::ContextMemory;
use crate::policy::WaitLog;
use crate::stream::{Standing, StreamNames};
use simtile_driver::sys::CUcontext;
use simtile_hazard::Config;
use simtile_sync::atomic::{AtomicUsize, Ordering};
use simtile_sync::{Arc, Global, Mutex};
use std::collections::BTreeMap;
use std::sync::Weak;

pub(crate) struct Shared {
    pub(crate) link: Arc<Link>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) tracker: Tracker,
    pub(crate) memory: ContextMemory,
    pub(crate) names: StreamNames,
    /// Kernels by name, for what lost a context.
    kernels: Mutex<BTreeMap<Arc<str>, u32>>,
    pub(crate) waits: WaitLog,
    /// Axes here that stand for streams of other contexts.
    pub(crate) standing: Standing,
    /// Taken by submissions across contexts, before anything else, in the order of addresses.
    pub(crate) crossing: Mutex<()>,
    /// Contexts of other devices whose kernels may use the memory of this one.
    pub(crate) granted: Mutex<Vec<Weak<Shared>>>,
    /// Taken while that list changes, before anything else.
    pub(crate) granting: Mutex<()>,
    /// Handles that are alive. Changed with the list locked.
    handles: AtomicUsize,
    /// Questions that are being asked by those who have no handle; [`CLOSED`] once none may be asked any more.
    pins: AtomicUsize,
}

const CLOSED: usize = usize::MAX;

/// The count with one question more; `None` where none may be asked.
fn one_more(pins: usize) -> Option<usize> {
    if pins == CLOSED { None } else { Some(pins + 1) }
}

/// Somebody asks about work without a handle: the context does not end meanwhile.
pub(crate) struct Pin<'a>(&'a AtomicUsize);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Unused events to keep at hand.
const EVENTS: usize = 16;

/// What tells CUDA contexts apart.
type Key = (Device, CUcontext, Option<u64>);

/// Contexts that have handles. Those of other drivers are not touched: they may belong to another exploration.
static CONTEXTS: Global<Vec<(Key, Weak<Shared>)>> = Global::new(Vec::new());

impl Shared {
    /// Joins the other handles of this CUDA context, or begins.
    pub(super) fn join(device: Device, raw: CUcontext) -> Arc<Self> {
        crate::sys::watch();
        let mut id = 0;
        // SAFETY: the context is alive, the out-pointer is valid for the call.
        let has_id = unsafe { device.driver().cuCtxGetId(raw, &mut id) }.is_ok();
        let id = has_id.then_some(id);
        let key = (device, raw, id);
        let (found, _ended) = Self::find(&mut CONTEXTS.lock(), key);
        if let Some(shared) = found {
            return shared;
        }
        // Made with the list free: making events may wait for a blocked launch of others.
        let link = Arc::new(Link::new(device, raw, id));
        let lanes = Arc::new(Lanes::default());
        let backend = CoreBackend::new(link.clone(), lanes.clone());
        let shared = Arc::new(Self {
            tracker: Tracker::new(backend, Config { event_reserve: EVENTS, ..Config::default() }),
            link,
            lanes,
            memory: ContextMemory::default(),
            names: StreamNames::default(),
            kernels: Mutex::default(),
            waits: WaitLog::default(),
            standing: Standing::default(),
            crossing: Mutex::default(),
            granted: Mutex::default(),
            granting: Mutex::default(),
            handles: AtomicUsize::new(1),
            pins: AtomicUsize::new(0),
        });
        // Nobody else has it yet.
        let _ = shared.link.shared.set(Arc::downgrade(&shared));
        let mut contexts = CONTEXTS.lock();
        let (found, _ended) = Self::find(&mut contexts, key);
        if let Some(earlier) = found {
            drop(contexts);
            shared.link.end_events();
            return earlier;
        }
        contexts.push((key, Arc::downgrade(&shared)));
        shared
    }

    /// The one of this CUDA context that has handles, with one more. Beside it those that have none any more: they
    /// may end with the reference that was looked through, and must do so when the list is free.
    fn find(contexts: &mut Vec<(Key, Weak<Self>)>, key: Key) -> (Option<Arc<Self>>, Vec<Arc<Self>>) {
        contexts.retain(|(_, known)| known.strong_count() > 0);
        let mut ended = Vec::new();
        for shared in contexts.iter().filter(|(known, _)| *known == key).filter_map(|(_, s)| s.upgrade()) {
            if shared.handles.load(Ordering::Relaxed) > 0 {
                shared.handles.fetch_add(1, Ordering::Relaxed);
                return (Some(shared), ended);
            }
            ended.push(shared);
        }
        (None, ended)
    }

    /// The number of a kernel's name, the same for equal names.
    pub(crate) fn kernel_number(&self, name: &str) -> u32 {
        let mut kernels = self.kernels.lock();
        let next = u32::try_from(kernels.len()).unwrap_or(u32::MAX);
        if let Some(known) = kernels.get(name) {
            return *known;
        }
        kernels.insert(name.into(), next);
        next
    }

    /// The name of a number.
    pub(super) fn kernel_name(&self, number: u32) -> Option<Arc<str>> {
        self.kernels.lock().iter().find(|(_, known)| **known == number).map(|(name, _)| name.clone())
    }

    /// The other contexts of this driver that have handles.
    pub(crate) fn others(&self) -> Vec<Arc<Self>> {
        let driver = self.link.driver();
        let all = CONTEXTS.lock();
        // Those of other drivers are not touched.
        all.iter()
            .filter(|(key, _)| key.0.driver() == driver)
            .filter_map(|(_, known)| known.upgrade())
            .filter(|known| !core::ptr::eq(&**known, self))
            .collect()
    }

    /// Keeps the context from ending while it is asked. `None`: it is ending, or has ended.
    pub(crate) fn pin(&self) -> Option<Pin<'_>> {
        self.pins.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).ok()?;
        Some(Pin(&self.pins))
    }

    /// From here on nobody asks who has no handle. `false`: somebody does just now.
    pub(super) fn close(&self) -> bool {
        match self.pins.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(pins) => pins == CLOSED,
        }
    }

    /// A handle goes. Whether it was the last one: nobody joins from here on.
    pub(super) fn leave(&self) -> bool {
        let _list = CONTEXTS.lock();
        self.handles.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_none_may_be_asked_none_is_counted() {
        assert_eq!((one_more(0), one_more(7), one_more(CLOSED)), (Some(1), Some(8), None));
    }
}
