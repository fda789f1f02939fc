//! User objects: things of the user's that graphs keep alive.

use crate::core::Res;
use crate::engine::graphs::{ObjectState, UserObject};
use crate::engine::work::HostCall;
use crate::entry::{Call, entries};
use core::ffi::{c_uint, c_void};
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NO_DESTRUCTOR_SYNC: u32 = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0;
const MOVE: u32 = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE.0;

/// Most references at once.
const MOST: u32 = i32::MAX as u32;

/// A number of references that a call names.
fn references(count: u32) -> Res<u32> {
    if (1..=MOST).contains(&count) { Ok(count) } else { Err(INVALID) }
}

/// The user gives references up.
fn release(object: &mut ObjectState, count: u32) -> Res<Option<Arc<UserObject>>> {
    object.count = object.count.checked_sub(count).ok_or(INVALID)?;
    Ok(if object.count == 0 { object.own.take() } else { None })
}

fn graph_release(call: &Call<'_>, graph: CUgraph, object: CUuserObject, count: u32) -> Res {
    let mut state = call.core.state.lock();
    let uid = state.graphs.uid(graph)?;
    let graph = state.graphs.graph_mut(uid)?;
    let (held, _) = graph.objects.get_mut(&object.0).ok_or(INVALID)?;
    *held = held.checked_sub(count).ok_or(INVALID)?;
    if *held == 0 {
        graph.objects.remove(&object.0);
    }
    Ok(())
}

entries! {
    fn cuUserObjectCreate(call, out: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint) {
        out.check()?;
        let count = references(count)?;
        if destroy.is_none() || flags != NO_DESTRUCTOR_SYNC {
            return Err(INVALID);
        }
        let mut state = call.core.state.lock();
        // Handles of objects that are gone are stale from now on.
        let gone: Vec<usize> = state
            .graphs
            .objects
            .iter()
            .filter(|(_, object)| object.object.strong_count() == 0)
            .map(|(handle, _)| handle)
            .collect();
        for handle in gone {
            let _ = state.graphs.objects.remove(handle);
        }
        let host = HostCall { function: destroy, data: data.raw().expose_provenance() };
        let object = Arc::new(UserObject { call: host, core: Arc::downgrade(call.core) });
        let entry = ObjectState { object: Arc::downgrade(&object), own: Some(object), count };
        let handle = state.graphs.objects.insert(entry).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        out.set(CUuserObject(handle))
    }

    fn cuUserObjectRetain(call, object: CUuserObject, count: c_uint) {
        let count = references(count)?;
        let mut state = call.core.state.lock();
        let object = state.graphs.objects.get_mut(object.0).map_err(|_| INVALID)?;
        let alive = object.object.upgrade().ok_or(INVALID)?;
        object.count = object.count.checked_add(count).filter(|n| *n <= MOST).ok_or(INVALID)?;
        object.own = Some(alive);
        Ok(())
    }

    fn cuUserObjectRelease(call, object: CUuserObject, count: c_uint) {
        let count = references(count)?;
        let mut state = call.core.state.lock();
        let last = release(state.graphs.objects.get_mut(object.0).map_err(|_| INVALID)?, count)?;
        drop(state);
        drop(last);
        Ok(())
    }

    fn cuGraphRetainUserObject(call, graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let count = references(count)?;
        if flags & !MOVE != 0 {
            return Err(INVALID);
        }
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let entry = state.graphs.objects.get_mut(object.0).map_err(|_| INVALID)?;
        let alive = entry.object.upgrade().ok_or(INVALID)?;
        if flags & MOVE != 0 {
            // The graph holds it from here on.
            release(entry, count)?;
        }
        let held = state.graphs.graph_mut(uid)?.objects.entry(object.0).or_insert((0, alive));
        held.0 = held.0.saturating_add(count);
        Ok(())
    }

    fn cuGraphReleaseUserObject(call, graph: CUgraph, object: CUuserObject, count: c_uint) {
        graph_release(call, graph, object, references(count)?)
    }
}
