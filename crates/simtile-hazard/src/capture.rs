//! Captures: a small world of its own, and the set of accesses that it leaves.
//!
//! Inside a capture the same algebra orders several streams, with axes and ranges of the capture's own: captured work waits
//! for nothing outside. What it touched becomes a [`CaptureSet`]; each replay is one submission with that set and a write of
//! the executable, and follows the stamps of the outside then.
//!
//! Lock order: the capture's own lock, then one stream. Nobody waits for a capture's lock with a stream held.

use crate::axis::FAILED;
use crate::backend::Backend;
use crate::error::{Step, SubmitError};
use crate::event::EventRef;
use crate::frontier::Frontier;
use crate::ids::{AxisId, Epoch, RegionId, Stamp};
use crate::mode::{Kind, Mode};
use crate::mutate::site;
use crate::ranges::{Knowledge, Ranges, Touched, Toucher};
use crate::region::Region;
use crate::stats::Rule;
use crate::stream::{Held, Later, Stream, StreamInner, StreamKind};
use crate::submit::Access;
use crate::tracker::{Inner, Tracker};
use crate::union::AccessUnion;
use simtile_sync::Mutex;
use simtile_sync::atomic::Ordering;
use smallvec::SmallVec;
use std::sync::Arc;

/// One touch of captured work. The touches of a set are disjoint and sorted by region and start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedAccess {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// How.
    pub mode: Mode,
}

/// All touches of a capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureSet {
    accesses: Vec<CapturedAccess>,
}

impl CaptureSet {
    /// The touches, disjoint and sorted by region and start.
    pub fn accesses(&self) -> &[CapturedAccess] {
        &self.accesses
    }

    /// The accesses of one replay: the captured ones and a write of the executable. `find` gives the regions, which the graph
    /// keeps; `None` if it does not know one.
    pub fn replay<'a>(
        &self,
        executable: &'a Region,
        mut find: impl FnMut(RegionId) -> Option<&'a Region>,
    ) -> Option<Vec<Access<'a>>> {
        let mut list = Vec::with_capacity(self.accesses.len() + 1);
        for access in &self.accesses {
            list.push(Access::new(find(access.region)?, access.start, access.end, access.mode));
        }
        list.push(Access::whole(executable, Mode::Write));
        Some(list)
    }
}

/// A capture that runs. End it with [`Capture::finish`] or [`Capture::abandon`].
pub struct Capture<B: Backend> {
    tracker: Tracker<B>,
    id: u64,
    world: Mutex<World<B>>,
}

struct World<B: Backend> {
    /// The first one is the origin.
    members: Vec<Member<B>>,
    lists: Vec<(RegionId, Ranges)>,
    accesses: Vec<(RegionId, u64, u64, Kind)>,
    ended: bool,
}

struct Member<B: Backend> {
    stream: Arc<StreamInner<B>>,
    axis: AxisId,
    open: Epoch,
    unsealed: bool,
    frontier: Frontier,
    records: Vec<(Epoch, EventRef<B>, Frontier)>,
}

/// Inside a capture nothing completes.
struct Never;

impl Knowledge for Never {
    fn complete(&self, _: AxisId, _: Epoch) -> bool {
        false
    }
    fn same_cover(&self, _: AxisId, _: Epoch, _: Epoch) -> bool {
        false
    }
}

impl<B: Backend> Tracker<B> {
    /// Begins a capture on `stream`: seals it, calls `begin`, and from then on the stream takes work only through the
    /// capture. Waits for the stream's lock.
    ///
    /// # Errors
    /// The stream does not take work, or `begin` failed; nothing has changed then.
    ///
    /// A capture of a per-thread stream stays on that stream's thread; the caller sees to that.
    pub fn begin_capture(
        &self,
        stream: &Stream<B>,
        thread: u64,
        begin: impl FnOnce(&B::Stream) -> Result<(), B::Error>,
    ) -> Result<Capture<B>, SubmitError<B>> {
        let inner = &*self.inner;
        let id = inner.next_capture.fetch_add(1, Ordering::Relaxed);
        let members = vec![Member::new(0, Arc::clone(&stream.inner))];
        // Counted before it is one, and given back by its drop: a count of 0 is the truth at every moment.
        inner.captures.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = enter(inner, &stream.inner, id, thread, begin) {
            inner.captures.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        inner.stats.fire(Rule::CaptureBegan);
        let world = World { members, lists: Vec::new(), accesses: Vec::new(), ended: false };
        Ok(Capture { tracker: self.clone(), id, world: Mutex::new(world) })
    }

    /// How many captures have not ended, those that are about to begin among them.
    pub fn captures(&self) -> u64 {
        self.inner.captures.load(Ordering::SeqCst)
    }
}

/// Seals a stream and gives it to a capture.
fn enter<B: Backend>(
    inner: &Inner<B>,
    stream: &StreamInner<B>,
    id: u64,
    thread: u64,
    begin: impl FnOnce(&B::Stream) -> Result<(), B::Error>,
) -> Result<(), SubmitError<B>> {
    inner.make_events();
    let later = Later::new(inner);
    let mut held = Held::wait(inner, stream, &later);
    let state = held.state();
    if state.capture.is_some() {
        return Err(SubmitError::Capturing);
    }
    if matches!(stream.kind, StreamKind::PerThread(owner) if owner != thread) {
        return Err(SubmitError::WrongThread);
    }
    let Some(handle) = &state.handle else { return Err(SubmitError::Closed) };
    if stream.kind.may_capture() {
        match inner.backend.is_capturing(handle) {
            Ok(false) => {}
            Ok(true) => return Err(SubmitError::BorrowedCapturing),
            Err(error) => return Err(SubmitError::Driver { step: Step::IsCapturing, error }),
        }
    }
    if site!(SealCapture) {
        inner.seal_epoch(stream, state, state.last_used);
    }
    if inner.axes.get(stream.axis).is_none_or(|slot| slot.has(FAILED)) {
        return Err(SubmitError::Failed { axis: stream.axis });
    }
    let Some(handle) = &state.handle else { return Err(SubmitError::Closed) };
    begin(handle).map_err(|error| SubmitError::Driver { step: Step::Enqueue, error })?;
    state.capture = Some(id);
    Ok(())
}

impl<B: Backend> Member<B> {
    fn new(at: usize, stream: Arc<StreamInner<B>>) -> Self {
        Self {
            stream,
            axis: AxisId(at as u64 + 1),
            open: 1,
            unsealed: false,
            frontier: Frontier::default(),
            records: Vec::new(),
        }
    }
}

impl<B: Backend> Capture<B> {
    /// Takes another stream into the capture, ordered behind what the origin has captured so far.
    ///
    /// # Errors
    /// The stream does not take work; it is as before then. After a failed driver call it may have joined all the same:
    /// abandon the capture.
    pub fn add_stream(&self, stream: &Stream<B>, thread: u64) -> Result<(), SubmitError<B>> {
        let mut world = self.world.lock();
        if world.ended {
            return Err(SubmitError::Closed);
        }
        let inner = &*self.tracker.inner;
        // The fork needs an event of the origin even if nothing was captured there yet.
        world.members[0].unsealed = true;
        // no site: `WaitAddStream` below leaves out what it is for.
        let (event, frontier) = self.seal(&mut world.members[0])?;
        let epoch = world.members[0].open - 1;
        enter(inner, &stream.inner, self.id, thread, |handle| {
            if site!(WaitAddStream) { inner.backend.wait(handle, event.event()) } else { Ok(()) }
        })?;
        let mut member = Member::new(world.members.len(), Arc::clone(&stream.inner));
        member.frontier = frontier;
        member.frontier.raise(world.members[0].axis, epoch);
        world.members.push(member);
        Ok(())
    }

    /// The timelines of its streams, the origin's first.
    pub fn axes(&self) -> Vec<AxisId> {
        self.world.lock().members.iter().map(|member| member.stream.axis).collect()
    }

    /// Whether the stream is one of its streams.
    pub fn has(&self, stream: &Stream<B>) -> bool {
        self.world.lock().members.iter().any(|member| member.stream.axis == stream.inner.axis)
    }

    /// Captures work on one of the capture's streams, ordered against the rest of the capture.
    ///
    /// # Errors
    /// [`SubmitError`]. A failed wait captures nothing; a failed enqueue stays in the set.
    pub fn submit<R>(
        &self,
        stream: &Stream<B>,
        accesses: &[Access<'_>],
        enqueue: impl FnOnce(&B::Stream) -> Result<R, B::Error>,
    ) -> Result<R, SubmitError<B>> {
        let list = crate::submit::collect(accesses)?;
        let inner = &*self.tracker.inner;
        inner.make_events();
        let mut world = self.world.lock();
        let world = &mut *world;
        let at = world
            .members
            .iter()
            .position(|member| member.stream.axis == stream.inner.axis)
            .ok_or(SubmitError::Capturing)?;
        if world.ended {
            return Err(SubmitError::Closed);
        }
        let device = stream.inner.device;
        for stamp in self.plan(world, at, &list, device) {
            self.follow(world, at, stamp)?;
        }
        self.touch(world, at, &list, device);
        let result = self.on(&world.members[at].stream, enqueue, Step::Enqueue);
        if result.is_err() {
            inner.stats.fire(Rule::EnqueueFailed);
        }
        result
    }

    /// The stamps of other members that the work must follow.
    fn plan(&self, world: &World<B>, at: usize, list: &[&Access<'_>], device: u16) -> SmallVec<[Stamp; 4]> {
        let member = &world.members[at];
        let who = Toucher { axis: member.axis, frontier: &member.frontier };
        let mut follow: SmallVec<[Stamp; 4]> = SmallVec::new();
        for access in list {
            let kind = Kind::new(access.mode, access.start, device);
            let Ok(found) = world.lists.binary_search_by_key(&access.region.id(), |list| list.0) else {
                continue;
            };
            let ranges = &world.lists[found].1;
            ranges.plan(access.start, access.end, kind, &who, &Never, usize::MAX, &mut (0, 0), |entry, _| {
                match follow.iter_mut().find(|stamp| stamp.axis == entry.axis) {
                    Some(stamp) => stamp.epoch = stamp.epoch.max(entry.epoch),
                    None => follow.push(Stamp { axis: entry.axis, epoch: entry.epoch }),
                }
            });
        }
        follow
    }

    /// Makes member `at` wait for another member's stamp.
    fn follow(&self, world: &mut World<B>, at: usize, stamp: Stamp) -> Result<(), SubmitError<B>> {
        let inner = &*self.tracker.inner;
        let other = (stamp.axis.0 - 1) as usize;
        if world.members[at].frontier.get(stamp.axis) >= stamp.epoch {
            return Ok(());
        }
        let covering =
            |member: &Member<B>| member.records.iter().find(|record| record.0 >= stamp.epoch).cloned();
        let record = match covering(&world.members[other]) {
            Some(record) => record,
            None => {
                // no site: `WaitCapture` below leaves out what it is for.
                let (event, frontier) = self.seal(&mut world.members[other])?;
                (world.members[other].open - 1, event, frontier)
            }
        };
        let wait = |handle: &B::Stream| {
            if site!(WaitCapture) { inner.backend.wait(handle, record.1.event()) } else { Ok(()) }
        };
        self.on(&world.members[at].stream, wait, Step::Wait)?;
        inner.stats.fire(Rule::CaptureWait);
        let frontier = &mut world.members[at].frontier;
        frontier.raise(stamp.axis, record.0);
        if site!(MergeCapture) {
            frontier.merge(&record.2);
        }
        Ok(())
    }

    /// Leaves the stamps of one captured piece of work, and notes its accesses for the set.
    fn touch(&self, world: &mut World<B>, at: usize, list: &[&Access<'_>], device: u16) {
        let max = self.tracker.inner.config.max_ranges;
        let member = &mut world.members[at];
        member.unsealed = true;
        for access in list {
            let kind = Kind::new(access.mode, access.start, device);
            let region = access.region.id();
            let found = match world.lists.binary_search_by_key(&region, |list| list.0) {
                Ok(found) => found,
                Err(place) => {
                    world.lists.insert(place, (region, Ranges::default()));
                    place
                }
            };
            let who = Toucher { axis: member.axis, frontier: &member.frontier };
            world.lists[found].1.touch(
                access.start,
                access.end,
                kind,
                member.open,
                false,
                &who,
                &Never,
                max,
                &mut Touched::default(),
            );
            world.accesses.push((region, access.start, access.end, kind));
        }
    }

    /// Bumps, then records, inside the capture.
    fn seal(&self, member: &mut Member<B>) -> Result<(EventRef<B>, Frontier), SubmitError<B>> {
        let inner = &*self.tracker.inner;
        if !member.unsealed
            && let Some((_, event, frontier)) = member.records.last()
        {
            return Ok((event.clone(), frontier.clone()));
        }
        inner.make_events();
        let Some(event) = inner.events.take() else {
            return Err(SubmitError::Failed { axis: member.stream.axis });
        };
        let closed = member.open;
        if site!(BumpCapture) {
            member.open += 1;
        }
        self.on(&member.stream, |handle| inner.backend.record(handle, event.event()), Step::Record)?;
        member.unsealed = false;
        member.records.push((closed, event.clone(), member.frontier.clone()));
        Ok((event, member.frontier.clone()))
    }

    /// Runs a driver call on a member, under its stream lock.
    fn on<R>(
        &self,
        stream: &StreamInner<B>,
        call: impl FnOnce(&B::Stream) -> Result<R, B::Error>,
        step: Step,
    ) -> Result<R, SubmitError<B>> {
        let inner = &*self.tracker.inner;
        let later = Later::new(inner);
        let mut held = Held::wait(inner, stream, &later);
        // Lent, and never taken out: `call` may panic.
        let Some(handle) = &held.state().handle else { return Err(SubmitError::Closed) };
        call(handle).map_err(|error| SubmitError::Driver { step, error })
    }

    /// Joins all streams to the origin, calls `end` on it and gives the streams back. The set of accesses comes with what
    /// `end` returned.
    ///
    /// # Errors
    /// A join or `end` failed. `end` is called in any case, and the streams are back.
    pub fn finish<R>(
        self,
        end: impl FnOnce(&B::Stream) -> Result<R, B::Error>,
    ) -> Result<(R, CaptureSet), SubmitError<B>> {
        let joined = self.join();
        let mut world = self.world.lock();
        let ended = self.on(&world.members[0].stream, end, Step::Enqueue);
        let accesses = core::mem::take(&mut world.accesses);
        drop(world);
        drop(self);
        joined?;
        Ok((ended?, CaptureSet { accesses: normalise(accesses) }))
    }

    /// Calls `end` on the origin and gives the streams back; for errors and panics.
    pub fn abandon<R>(self, end: impl FnOnce(&B::Stream) -> R) -> Option<R> {
        let world = self.world.lock();
        let ended = self.on(&world.members[0].stream, |handle| Ok(end(handle)), Step::Enqueue).ok();
        drop(world);
        ended
    }

    fn join(&self) -> Result<(), SubmitError<B>> {
        let mut world = self.world.lock();
        for other in 1..world.members.len() {
            // CUDA wants every forked stream joined, also one that captured nothing.
            let member = &mut world.members[other];
            member.unsealed |= member.records.is_empty();
            let last = if member.unsealed { member.open } else { member.open - 1 };
            let stamp = Stamp { axis: member.axis, epoch: last };
            if site!(WaitCaptureJoin) {
                self.follow(&mut world, 0, stamp)?;
                self.tracker.inner.stats.fire(Rule::CaptureJoined);
            }
        }
        Ok(())
    }
}

impl<B: Backend> Drop for Capture<B> {
    fn drop(&mut self) {
        let inner = &*self.tracker.inner;
        let world = self.world.get_mut();
        world.ended = true;
        for member in &world.members {
            let later = Later::new(inner);
            let mut held = Held::wait(inner, &member.stream, &later);
            let stream = held.stream;
            let state = held.state();
            state.capture = None;
            if core::mem::take(&mut state.close_after_capture) {
                inner.serve_close(stream, state, &later);
            }
        }
        inner.captures.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<B: Backend> core::fmt::Debug for Capture<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Capture").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The touches as a set.
fn normalise(accesses: Vec<(RegionId, u64, u64, Kind)>) -> Vec<CapturedAccess> {
    let mut union = AccessUnion::default();
    for (region, start, end, kind) in accesses {
        union.push(region, start, end, kind, ());
    }
    union.join();
    union.set().iter().map(|(access, ())| *access).collect()
}
