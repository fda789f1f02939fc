//! The host's side of the streams: queueing work and waiting for it.

use super::state::{CONTEXT_LIMIT, Item, STREAM_LIMIT, State, StreamState};
use super::work::{Frontier, Record, Work};
use crate::core::{ContextRef, Core, Res, StreamRef};
use simtile_driver::sys::{CUresult, CUstream};
use simtile_sync::{Arc, MutexGuard};
use std::collections::VecDeque;

impl Core {
    /// Waits until `done`, woken by progress.
    ///
    /// # Errors
    /// `CUDA_ERROR_DEINITIALIZED` if the driver is shut down meanwhile; `CUDA_ERROR_LAUNCH_TIMEOUT` if it is known that
    /// nobody can let the streams go on.
    pub(crate) fn wait_until(
        &self,
        state: &mut MutexGuard<'_, State>,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> Res {
        let mut looks = super::stuck::Looks::default();
        loop {
            if state.down {
                return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
            }
            if done(state) {
                return Ok(());
            }
            self.await_progress(state, &mut looks)?;
        }
    }

    /// Queues work at the end of a stream. Waits for a place as the real driver does: while the stream or
    /// the context is full, and while another call waits for the whole context.
    ///
    /// # Errors
    /// The context's fault, or the driver's end.
    pub(crate) fn enqueue(self: &Arc<Self>, stream: &StreamRef, work: Work) -> Res {
        let mut state = self.state.lock();
        self.enqueue_locked(&mut state, stream, work)
    }

    pub(crate) fn enqueue_locked(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        stream: &StreamRef,
        work: Work,
    ) -> Res {
        if state.capture_work(stream, &work)? {
            return Ok(());
        }
        let counted = work.counts();
        if counted {
            self.take_place(state, stream)?;
        } else {
            // Blocked launches hold host functions up everywhere.
            self.pass_blocked_launches_on(state, stream, matches!(work, Work::Host(_)))?;
        }
        self.context_health(state, stream.context.uid)?;
        let seq = state.next_seq;
        let record = match &work {
            Work::Record(event) => {
                let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
                let record = Record::pending((stream.uid, seq), frontier);
                let event = state.events.get_mut(event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
                event.record = Some(record.clone());
                event.captured = None;
                Some(record)
            }
            Work::Wait(event) => {
                let event = state.events.get(event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
                match &event.record {
                    // Never recorded, or long past: nothing to wait for.
                    None => return Ok(()),
                    Some(record) => Some(record.clone()),
                }
            }
            Work::After(record) => Some(record.clone()),
            _ => None,
        };
        state.next_seq += 1;
        self.watch_host(state, seq, &work);
        let host = state.order.host();
        let target = state.streams.get_mut(&stream.uid).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        if let (Work::Wait(_) | Work::After(_), Some(record)) = (&work, &record) {
            follow(&mut target.frontier, record);
        }
        target.items.push_back(Item { seq, work, counted, record, host, graph: None });
        target.counted += usize::from(counted);
        state.active.insert(stream.uid);
        if counted && let Some(context) = state.contexts.get_mut(&stream.context.uid) {
            context.counted += 1;
        }
        self.kick(state);
        if state.workers == 0 && state.active.contains(&stream.uid) {
            // No thread could be started: nothing would ever run.
            return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(())
    }

    /// Waits while a launch on the stream (or, if asked, anywhere in its context) waits for a place: it holds back what
    /// takes no place itself. Gives the engine's lock up only if it has to wait.
    ///
    /// # Errors
    /// As [`Core::wait_until`].
    pub(crate) fn pass_blocked_launches_on(
        &self,
        state: &mut MutexGuard<'_, State>,
        stream: &StreamRef,
        everywhere: bool,
    ) -> Res {
        let (uid, context) = (stream.uid, stream.context.uid);
        self.wait_until(state, |state| {
            let stream = state.streams.get(&uid).map_or(0, |stream| stream.blocked);
            let context = state.contexts.get(&context).map_or(0, |context| context.blocked);
            stream == 0 && (context == 0 || !everywhere)
        })
    }

    pub(crate) fn take_place(&self, state: &mut MutexGuard<'_, State>, stream: &StreamRef) -> Res {
        let (uid, context) = (stream.uid, stream.context.uid);
        let mut waits = false;
        let result = self.wait_until(state, |state| {
            let Some(c) = state.contexts.get(&context) else { return true };
            let Some(s) = state.streams.get(&uid) else { return true };
            if c.lost.is_some() || c.ending {
                return true;
            }
            let full = s.counted >= STREAM_LIMIT || c.counted >= CONTEXT_LIMIT;
            if full && !waits {
                waits = true;
                block(state, uid, context, true);
            }
            !full && state.contexts.get(&context).is_none_or(|c| c.stalls == 0)
        });
        if waits {
            block(state, uid, context, false);
            self.changed.notify_all();
        }
        result
    }

    /// Waits while a launch anywhere in the context waits for a place, as the real driver does in
    /// `cuEventCreate`, `cuEventDestroy`, `cuStreamCreate`, `cuMemAlloc`, `cuMemHostAlloc` and module loads.
    pub(crate) fn pass_blocked_launches(&self, context: &ContextRef) -> Res {
        let mut state = self.state.lock();
        let uid = context.uid;
        self.wait_until(&mut state, |state| state.contexts.get(&uid).is_none_or(|c| c.blocked == 0))
    }

    /// Waits for all work of the context and holds launches of other threads back meanwhile, as the real
    /// driver does in `cuMemFree`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuCtxSetLimit` and module loads.
    ///
    /// # Errors
    /// The context's fault, or the driver's end.
    pub(crate) fn stall(&self, context: &ContextRef) -> Res {
        let mut state = self.state.lock();
        let uid = context.uid;
        if let Some(context) = state.contexts.get_mut(&uid) {
            context.stalls += 1;
        }
        let result = self.wait_until(&mut state, |state| is_idle(state, uid, u64::MAX));
        host_follows_context(&mut state, uid);
        if let Some(context) = state.contexts.get_mut(&uid) {
            context.stalls -= 1;
        }
        self.changed.notify_all();
        result?;
        self.context_health(&state, uid)
    }

    /// Waits for what was submitted to the context so far; launches may pass.
    ///
    /// # Errors
    /// As [`Core::stall`].
    pub(crate) fn synchronize_context(&self, context: &ContextRef) -> Res {
        let mut state = self.state.lock();
        let (uid, green, before) = (context.uid, context.green, state.next_seq);
        // Of a green context only its own streams; a primary context waits for those of its green ones too.
        self.wait_until(&mut state, |state| match green {
            None => is_idle(state, uid, before),
            Some(_) => !state
                .streams
                .iter()
                .any(|(stream, of)| of.green == green && has_before(state, *stream, before)),
        })?;
        match green {
            None => host_follows_context(&mut state, uid),
            Some(_) => {
                let State { streams, order, .. } = &mut *state;
                let own = streams.iter().filter(|(_, stream)| stream.green == green).map(|(uid, _)| *uid);
                order.host_follows(own, None);
            }
        }
        self.context_health(&state, uid)?;
        drop(state);
        self.heap.synchronised(self);
        self.printf.flush(uid);
        Ok(())
    }

    /// A look at a stream that a capture may forbid.
    pub(crate) fn refuse_look(&self, stream: &StreamRef) -> Res {
        let mut state = self.state.lock();
        state.refuse_capturing(stream.uid)?;
        state.refuse_implicit(stream)?;
        state.refuse_unsafe()
    }

    /// Waits for what was submitted to the stream so far.
    ///
    /// # Errors
    /// As [`Core::stall`].
    pub(crate) fn synchronize_stream(&self, stream: &StreamRef) -> Res {
        let mut state = self.state.lock();
        let before = state.next_seq;
        let (uid, context) = (stream.uid, stream.context.uid);
        self.wait_until(&mut state, |state| !has_before(state, uid, before))?;
        state.order.host_follows(std::iter::once(uid), None);
        self.context_health(&state, context)?;
        drop(state);
        self.heap.synchronised(self);
        self.printf.flush(context);
        Ok(())
    }

    /// Whether the stream has no work. Waits while a launch on it waits for a place.
    pub(crate) fn query_stream(&self, stream: &StreamRef) -> Res {
        let mut state = self.state.lock();
        let uid = stream.uid;
        self.wait_until(&mut state, |state| state.streams.get(&uid).is_none_or(|s| s.blocked == 0))?;
        self.context_health(&state, stream.context.uid)?;
        match state.streams.get(&uid) {
            Some(stream) if !stream.items.is_empty() => Err(CUresult::CUDA_ERROR_NOT_READY),
            _ => {
                state.order.host_follows(std::iter::once(uid), None);
                Ok(())
            }
        }
    }

    /// Waits for a record, or for the end of its context.
    pub(crate) fn wait_record(&self, record: &Record, context: u64) -> Res {
        let mut state = self.state.lock();
        self.wait_until(&mut state, |state| {
            record.is_over() || state.contexts.get(&context).is_none_or(|c| c.lost.is_some())
        })?;
        if let Some(known) = record.known() {
            state.order.host_learns(known);
        }
        self.context_health(&state, context)?;
        drop(state);
        self.heap.synchronised(self);
        Ok(())
    }

    /// Makes a stream in a context. `None` if there are too many.
    pub(crate) fn add_stream(
        &self,
        state: &mut State,
        context: u64,
        flags: u32,
        priority: i32,
        legacy: bool,
    ) -> Option<(u64, CUstream)> {
        let uid = state.uid();
        let handle = CUstream(state.stream_handles.insert(uid)?);
        let owner = state.contexts.get_mut(&context)?;
        let index = owner.streams.len() as u64;
        owner.streams.insert(uid);
        let stream = StreamState {
            handle,
            context,
            flags,
            priority,
            index,
            legacy,
            green: None,
            items: VecDeque::new(),
            running: false,
            counted: 0,
            blocked: 0,
            frontier: Frontier::default(),
            destroyed: false,
            label: None,
            sync_policy: 1,
            capture: None,
            prior: None,
            lanes: Vec::new(),
        };
        state.streams.insert(uid, stream);
        Some((uid, handle))
    }

    /// Destroys a stream's handle; what is queued goes on.
    pub(crate) fn drop_stream(&self, state: &mut State, uid: u64) {
        state.stream_leaves_capture(uid);
        let Some(stream) = state.streams.get_mut(&uid) else { return };
        stream.destroyed = true;
        let (handle, context, idle) = (stream.handle, stream.context, stream.items.is_empty());
        let _ = state.stream_handles.remove(handle.0);
        if idle {
            state.streams.remove(&uid);
            state.order.stream_gone(uid, context);
            if let Some(context) = state.contexts.get_mut(&context) {
                context.streams.remove(&uid);
            }
        }
    }
}

/// A stream is ordered after a record from now on, and after what the record's stream was ordered after.
fn follow(frontier: &mut Frontier, record: &Record) {
    let frontier = Arc::make_mut(frontier);
    // Forgetting is safe: it only loses a chance to use memory again without a wait.
    if frontier.len() > 1024 {
        frontier.clear();
    }
    let (stream, position) = record.origin;
    for (&stream, &position) in record.frontier.iter().chain([(&stream, &position)]) {
        let entry = frontier.entry(stream).or_default();
        *entry = position.max(*entry);
    }
}

fn block(state: &mut State, stream: u64, context: u64, on: bool) {
    let change = |n: &mut usize| *n = if on { *n + 1 } else { n.saturating_sub(1) };
    if let Some(stream) = state.streams.get_mut(&stream) {
        change(&mut stream.blocked);
    }
    if let Some(context) = state.contexts.get_mut(&context) {
        change(&mut context.blocked);
    }
}

/// The host has waited for all work of a context.
fn host_follows_context(state: &mut State, context: u64) {
    let State { contexts, order, .. } = state;
    let streams = contexts.get(&context).map(|c| &c.streams).into_iter().flatten().copied();
    order.host_follows(streams, Some(context));
}

/// Whether the stream has work that was submitted before number `before`.
pub(crate) fn has_before(state: &State, stream: u64, before: u64) -> bool {
    state.streams.get(&stream).and_then(|s| s.items.front()).is_some_and(|item| item.seq < before)
}

/// Whether no stream of the context has work submitted before number `before`.
pub(crate) fn is_idle(state: &State, context: u64, before: u64) -> bool {
    state.contexts.get(&context).is_none_or(|c| !c.streams.iter().any(|uid| has_before(state, *uid, before)))
}
