//! Streams: their state, their lock, and the requests that others leave on them.

use crate::backend::{Backend, Quarantine};
use crate::frontier::Frontier;
use crate::ids::{AxisId, Epoch, Stamp};
use crate::mutate::site;
use crate::stats::Rule;
use crate::tracker::{Inner, Tracker};
use simtile_sync::{Mutex, RequestGuard, RequestLock};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;

/// What kind of stream it is, as far as tracking cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// Created by us, used by us alone.
    Owned,
    /// Belongs to somebody else, who may queue work and begin captures on it.
    Borrowed,
    /// The per-thread default stream of the thread with this token. Only that thread's calls may pass its handle on.
    PerThread(u64),
    /// The legacy default stream.
    Legacy,
}

impl StreamKind {
    /// Whether it carries work that the tracker does not know.
    #[inline]
    pub(crate) fn tainted(self) -> bool {
        !matches!(self, StreamKind::Owned)
    }

    /// Whether its owner may begin a capture behind our back.
    #[inline]
    pub(crate) fn may_capture(self) -> bool {
        matches!(self, StreamKind::Borrowed | StreamKind::PerThread(_) | StreamKind::Legacy)
    }
}

pub(crate) struct StreamInner<B: Backend> {
    pub axis: AxisId,
    pub kind: StreamKind,
    pub device: u16,
    pub lock: RequestLock<StreamState<B>>,
    pub requests: Mutex<Vec<Request<B>>>,
}

/// What the stream lock protects.
pub(crate) struct StreamState<B: Backend> {
    /// Gone once the stream is closed.
    pub handle: Option<B::Stream>,
    pub open: Epoch,
    /// The last epoch with work.
    pub last_used: Epoch,
    /// Submissions since the last successful record.
    pub unsealed: u64,
    /// Submissions ever.
    pub issued: u64,
    /// Context permits held.
    pub leased: u64,
    /// Records behind no work since all of them were known to have fired.
    pub marks: u64,
    pub frontier: Frontier,
    pub capture: Option<u64>,
    /// Records that failed in a row.
    pub failures: u32,
    /// The last epoch that may be stuck behind something outside.
    pub outside: Epoch,
    pub close_after_capture: bool,
}

impl<B: Backend> StreamState<B> {
    pub(crate) fn new(handle: B::Stream) -> Self {
        Self {
            handle: Some(handle),
            open: 1,
            last_used: 0,
            unsealed: 0,
            issued: 0,
            leased: 0,
            marks: 0,
            frontier: Frontier::default(),
            capture: None,
            failures: 0,
            outside: 0,
            close_after_capture: false,
        }
    }
}

/// What others ask of the holder of a stream.
pub(crate) enum Request<B: Backend> {
    /// Somebody waits for this epoch.
    Seal(Epoch),
    /// Memory whose stamps this stream may follow.
    Free(B::Memory, SmallVec<[Stamp; 4]>),
    /// The last handle has gone.
    Close,
}

/// Things to be done or dropped when nothing is held any more.
pub(crate) enum Action<B: Backend> {
    Reclaim(B::Memory, SmallVec<[Stamp; 4]>),
    Quarantine(B::Memory, Quarantine),
    Closed(B::Stream),
    Forget(Arc<StreamInner<B>>),
}

/// A list of [`Action`]s that runs when it is dropped: declare it before any guard.
pub(crate) struct Later<'t, B: Backend> {
    inner: &'t Inner<B>,
    actions: RefCell<Vec<Action<B>>>,
}

impl<'t, B: Backend> Later<'t, B> {
    pub(crate) fn new(inner: &'t Inner<B>) -> Self {
        Self { inner, actions: RefCell::new(Vec::new()) }
    }

    pub(crate) fn push(&self, action: Action<B>) {
        self.actions.borrow_mut().push(action);
    }

    /// Leaves all to another list, whose owner holds more.
    pub(crate) fn hand_over(&self, other: &Later<'_, B>) {
        other.actions.borrow_mut().append(&mut self.actions.borrow_mut());
    }
}

impl<B: Backend> Drop for Later<'_, B> {
    #[inline]
    fn drop(&mut self) {
        if !self.actions.get_mut().is_empty() {
            self.run();
        }
    }
}

impl<B: Backend> Later<'_, B> {
    #[cold]
    fn run(&mut self) {
        for action in self.actions.get_mut().drain(..) {
            match action {
                Action::Reclaim(memory, stamps) => self.inner.to_reclaimer(memory, stamps),
                Action::Quarantine(memory, why) => {
                    self.inner.stats.fire(Rule::Quarantined);
                    self.inner.backend.quarantine(memory, why);
                }
                Action::Closed(stream) => self.inner.backend.closed(stream),
                Action::Forget(stream) => drop(stream),
            }
        }
    }
}

/// A stream lock, held. Requests were served when it was taken and are served again after it is given back.
pub(crate) struct Held<'s, 'l, B: Backend> {
    inner: &'s Inner<B>,
    pub stream: &'s StreamInner<B>,
    later: &'l Later<'s, B>,
    guard: Option<RequestGuard<'s, StreamState<B>>>,
}

impl<'s, 'l, B: Backend> Held<'s, 'l, B> {
    fn new(
        inner: &'s Inner<B>,
        stream: &'s StreamInner<B>,
        later: &'l Later<'s, B>,
        mut guard: RequestGuard<'s, StreamState<B>>,
    ) -> Self {
        if site!(ServeBefore) && guard.take_request() {
            inner.serve(stream, &mut guard, later);
        }
        Self { inner, stream, later, guard: Some(guard) }
    }

    /// Takes the lock if nobody holds it.
    #[inline]
    pub(crate) fn try_new(
        inner: &'s Inner<B>,
        stream: &'s StreamInner<B>,
        later: &'l Later<'s, B>,
    ) -> Option<Self> {
        let guard = stream.lock.try_lock()?;
        Some(Self::new(inner, stream, later, guard))
    }

    /// Waits for the lock. Only with nothing held.
    pub(crate) fn wait(inner: &'s Inner<B>, stream: &'s StreamInner<B>, later: &'l Later<'s, B>) -> Self {
        let guard = stream.lock.lock();
        Self::new(inner, stream, later, guard)
    }

    #[inline]
    pub(crate) fn state(&mut self) -> &mut StreamState<B> {
        // The guard is there until the drop.
        match self.guard.as_mut() {
            Some(guard) => guard,
            None => unreachable!("a held stream has its guard"),
        }
    }
}

impl<B: Backend> Drop for Held<'_, '_, B> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        // Whoever left a request and failed the try relies on this second look.
        while guard.unlock() && site!(ServeAfter) {
            match self.stream.lock.try_lock() {
                None => return,
                Some(again) => guard = again,
            }
            if guard.take_request() {
                self.inner.serve(self.stream, &mut guard, self.later);
            }
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Leaves a request on a stream and tries to serve it. Never waits for the stream's lock.
    pub(crate) fn leave_request(&self, stream: &StreamInner<B>, request: Request<B>, later: &Later<'_, B>) {
        self.stats.fire(Rule::Requested);
        stream.requests.lock().push(request);
        stream.lock.request();
        // Taking and giving back the lock serves. `Held` wants one lifetime for all, hence the inner list.
        let mine = Later::new(self);
        drop(Held::try_new(self, stream, &mine));
        mine.hand_over(later);
    }

    /// Serves all requests.
    #[cold]
    fn serve(&self, stream: &StreamInner<B>, state: &mut StreamState<B>, later: &Later<'_, B>) {
        loop {
            let requests = core::mem::take(&mut *stream.requests.lock());
            if requests.is_empty() {
                return;
            }
            for request in requests {
                self.stats.fire(Rule::Served);
                match request {
                    Request::Seal(epoch) => {
                        if site!(ServeSeal) {
                            self.seal_epoch(stream, state, epoch);
                        }
                    }
                    Request::Free(memory, stamps) => self.serve_free(stream, state, memory, stamps, later),
                    Request::Close => self.serve_close(stream, state, later),
                }
            }
        }
    }

    fn serve_free(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        memory: B::Memory,
        stamps: SmallVec<[Stamp; 4]>,
        later: &Later<'_, B>,
    ) {
        match self.free_here(stream, state, memory, &stamps) {
            Ok(()) => self.stats.fire(Rule::FreedByRequest),
            Err(memory) => later.push(Action::Reclaim(memory, stamps)),
        }
    }

    pub(crate) fn serve_close(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        later: &Later<'_, B>,
    ) {
        if state.capture.is_some() {
            state.close_after_capture = true;
            return;
        }
        if state.handle.is_none() {
            return;
        }
        if site!(SealTail) && self.seal_epoch(stream, state, state.last_used) {
            self.stats.fire(Rule::SealTail);
        }
        self.stats.fire(Rule::Closed);
        if let Some(handle) = state.handle.take() {
            later.push(Action::Closed(handle));
        }
        self.permits.give_back(core::mem::take(&mut state.leased));
        if let Some(slot) = self.axes.get(stream.axis) {
            // The table's reference may be the last one but ours: it must not go while the lock is held.
            if let Some(stream) = slot.set_stream(None) {
                later.push(Action::Forget(stream));
            }
        }
        if self.axes.close(stream.axis, state.last_used) {
            self.stats.fire(Rule::AxisEnded);
        }
    }
}

/// A stream that is tracked. Dropping it closes it and never waits.
pub struct Stream<B: Backend> {
    pub(crate) inner: Arc<StreamInner<B>>,
    pub(crate) tracker: Tracker<B>,
}

impl<B: Backend> Stream<B> {
    /// Its timeline.
    pub fn axis(&self) -> AxisId {
        self.inner.axis
    }

    /// What kind it is.
    pub fn kind(&self) -> StreamKind {
        self.inner.kind
    }
}

impl<B: Backend> Drop for Stream<B> {
    fn drop(&mut self) {
        if site!(RequestClose) {
            let inner = &*self.tracker.inner;
            let later = Later::new(inner);
            inner.leave_request(&self.inner, Request::Close, &later);
        }
    }
}

impl<B: Backend> core::fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream").field("axis", &self.inner.axis).field("kind", &self.inner.kind).finish()
    }
}
