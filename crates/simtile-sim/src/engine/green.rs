//! Green contexts: what is known of them, and what they do to streams.

use super::state::{Item, State};
use super::work::{Record, Work};
use crate::core::{ContextRef, Core, Res, StreamRef};
use simtile_driver::sys::*;
use simtile_sync::Arc;
use std::collections::BTreeMap;

/// Multiprocessors side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Least size and step of groups.
    pub(crate) step: u32,
    /// Not the output of a split: it can be split.
    pub(crate) whole: bool,
}

/// A green context.
pub(crate) struct GreenState {
    pub(crate) handle: CUgreenCtx,
    /// Its handle as a context.
    pub(crate) context: CUcontext,
    /// Uid of its primary context.
    pub(crate) primary: u64,
    pub(crate) device: i32,
    pub(crate) part: Part,
    /// Uid of its default stream.
    pub(crate) legacy: u64,
    /// Per-thread default streams by thread number.
    pub(crate) per_thread: BTreeMap<u64, u64>,
}

impl State {
    /// The default stream that a stream's blocking order is about: its green context's, or its context's.
    pub(crate) fn legacy_of(&self, context: u64, green: Option<u64>) -> u64 {
        let green = green.and_then(|green| self.greens.get(&green)).map(|green| green.legacy);
        green.unwrap_or_else(|| self.contexts.get(&context).map_or(0, |context| context.legacy))
    }

    /// How many multiprocessors work of a green context, or of none, may use.
    pub(crate) fn multiprocessors(&self, green: Option<u64>) -> Option<u32> {
        Some(self.greens.get(&green?)?.part.count)
    }
}

impl Core {
    /// Makes a green context, with a default stream.
    pub(crate) fn add_green(&self, primary: u64, device: i32, part: Part) -> Res<CUgreenCtx> {
        const OUT: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let mut state = self.state.lock();
        let uid = state.uid();
        let handle = CUgreenCtx(state.green_handles.insert(uid).ok_or(OUT)?);
        let context = CUcontext(state.context_handles.insert(uid).ok_or(OUT)?);
        let (legacy, _) = self.add_stream(&mut state, primary, 0, 0, true).ok_or(OUT)?;
        if let Some(stream) = state.streams.get_mut(&legacy) {
            stream.green = Some(uid);
        }
        let per_thread = BTreeMap::new();
        let green = GreenState { handle, context, primary, device, part, legacy, per_thread };
        state.greens.insert(uid, green);
        Ok(handle)
    }

    /// Destroys a green context and its streams; what is queued goes on. Its device.
    pub(crate) fn drop_green(&self, handle: CUgreenCtx) -> Res<i32> {
        let mut state = self.state.lock();
        let uid = state.green_handles.remove(handle.0).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let green = state.greens.remove(&uid).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let _ = state.context_handles.remove(green.context.0);
        let streams = self.streams_of_green(&state, uid);
        streams.into_iter().for_each(|stream| self.drop_stream(&mut state, stream));
        self.changed.notify_all();
        Ok(green.device)
    }

    /// A primary context has ended: its green contexts go too.
    pub(crate) fn drop_greens_of(&self, state: &mut State, primary: u64) {
        let State { greens, green_handles, context_handles, .. } = state;
        greens.retain(|_, green| {
            let keep = green.primary != primary;
            if !keep {
                let _ = green_handles.remove(green.handle.0);
                let _ = context_handles.remove(green.context.0);
            }
            keep
        });
    }

    fn streams_of_green(&self, state: &State, uid: u64) -> Vec<u64> {
        let of = |stream: &&super::state::StreamState| stream.green == Some(uid) && !stream.destroyed;
        let all = state.streams.iter().filter(|(_, stream)| of(stream));
        all.map(|(uid, _)| *uid).collect()
    }

    /// The streams of a green context. None of them may capture: the captures are dead then.
    pub(crate) fn green_streams(&self, uid: u64) -> Res<Vec<StreamRef>> {
        let mut state = self.state.lock();
        let streams = self.streams_of_green(&state, uid);
        let refused: Vec<Res> = streams.iter().map(|&stream| state.refuse_capturing(stream)).collect();
        refused.into_iter().collect::<Res<()>>()?;
        let of = |stream: u64| {
            let found = state.streams.get(&stream)?;
            let context = state.contexts.get(&found.context)?;
            let (handle, device, green) = (context.handle, context.device, found.green);
            let context = ContextRef { uid: found.context, device, handle, green };
            Some(StreamRef { uid: stream, context, handle: found.handle, legacy: found.legacy })
        };
        Ok(streams.into_iter().filter_map(of).collect())
    }

    /// Records an event that completes when everything that was queued on the green context's streams has: their ends are
    /// gathered on its default stream.
    pub(crate) fn record_green(self: &Arc<Self>, uid: u64, event: u64) -> Res {
        let streams = self.green_streams(uid)?;
        let mut state = self.state.lock();
        let legacy = state.greens.get(&uid).map_or(0, |green| green.legacy);
        let Some(target) = streams.iter().find(|stream| stream.uid == legacy).copied() else {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        };
        for stream in streams.iter().filter(|stream| stream.uid != legacy) {
            let busy = state.streams.get(&stream.uid).is_some_and(|stream| !stream.items.is_empty());
            if busy {
                let (at, next) = ((stream.uid, state.next_seq), (target.uid, state.next_seq + 1));
                let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
                let record = Record::pending(at, frontier);
                // The record at the end of what the stream has, and the wait for it. Nobody is told yet: who is woken with
                // the lock held waits for it.
                for ((uid, seq), work) in [(at, Work::Record(0)), (next, Work::After(record.clone()))] {
                    let (record, host) = (Some(record.clone()), state.order.host());
                    if let Some(stream) = state.streams.get_mut(&uid) {
                        stream.items.push_back(Item { seq, work, counted: false, record, host, graph: None });
                    }
                    state.active.insert(uid);
                }
                state.next_seq += 2;
            }
        }
        self.enqueue_locked(&mut state, &target, Work::Record(event))
    }
}
