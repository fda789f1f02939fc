//! The submission protocol. The argument of correctness is in the crate's README.

use crate::axis::FAILED;
use crate::backend::Backend;
use crate::error::{Busy, Conflict, Party, Step, SubmitError};
use crate::event::EventRef;
use crate::ids::{RegionId, Stamp};
use crate::mode::{Kind, Mode};
use crate::mutate::site;
use crate::plan::{Follow, Plan};
use crate::ranges::{Toucher, Why};
use crate::region::{Region, RegionGuard, with_state};
use crate::stats::Rule;
use crate::stream::{Held, Later, Stream, StreamInner, StreamKind, StreamState};
use crate::tracker::{Inner, Tracker};
use smallvec::SmallVec;
use std::sync::Arc;

/// One touch of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The region.
    pub region: &'a Region,
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// How.
    pub mode: Mode,
}

impl<'a> Access<'a> {
    /// A touch of `start..end`.
    pub fn new(region: &'a Region, start: u64, end: u64, mode: Mode) -> Self {
        Self { region, start, end, mode }
    }

    /// A touch of the whole region.
    pub fn whole(region: &'a Region, mode: Mode) -> Self {
        Self { region, start: 0, end: region.len(), mode }
    }
}

/// What to do about conflicting work on other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Follow it.
    #[default]
    Order,
    /// Refuse. The stream seals after each submission, so that a conflict means the work itself.
    Reject,
    /// Follow it; the caller logs [`Submitted::waits`].
    OrderAndReport,
    /// Ignore it. Stamps are left all the same, so lifetimes stay right. The caller vouches for the order.
    Unchecked,
}

/// Whether the work may wait for something outside the streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Outside {
    /// It runs to its end alone.
    #[default]
    Never,
    /// A host function, a collective, a kernel that spins on a flag.
    Waits,
    /// A wait-value of the driver: eight of them stop every stream.
    WaitValue,
}

/// How to submit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What to do about conflicts.
    pub policy: Policy,
    /// Somebody waits for this submission: record an event right behind it.
    pub seal: bool,
    /// Whether the work waits for the outside.
    pub outside: Outside,
    /// The calling thread's token, for per-thread streams.
    pub thread: u64,
}

/// A wait that was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitNote {
    /// The work that is followed.
    pub after: Stamp,
    /// The region that asks for it.
    pub region: RegionId,
    /// How this submission touches it.
    pub mode: Mode,
    /// How the other one did.
    pub their_mode: Mode,
    /// Not a conflict: the stamp stands for the oldest of too many readers.
    pub reader_limit: bool,
}

/// A submission that happened.
pub struct Submitted<B: Backend, R> {
    /// What the enqueue returned.
    pub value: R,
    /// When it is done.
    pub stamp: Stamp,
    /// The event right behind it, if one was recorded.
    pub event: Option<EventRef<B>>,
    /// The waits that were inserted.
    pub waits: SmallVec<[WaitNote; 2]>,
}

impl<B: Backend, R: core::fmt::Debug> core::fmt::Debug for Submitted<B, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Submitted")
            .field("value", &self.value)
            .field("stamp", &self.stamp)
            .field("event", &self.event)
            .field("waits", &self.waits)
            .finish()
    }
}

/// Why an attempt ended without a submission.
enum Stop<B: Backend> {
    /// This stream is held by another thread; `None`: the own one.
    Stream(Option<Arc<StreamInner<B>>>),
    Region,
    Full {
        context: bool,
    },
    Error(SubmitError<B>),
}

impl<B: Backend> From<SubmitError<B>> for Stop<B> {
    fn from(error: SubmitError<B>) -> Self {
        Self::Error(error)
    }
}

type Guards<'a> = SmallVec<[RegionGuard<'a>; 8]>;
/// What to follow, each with an event that covers it.
type Covers<B> = SmallVec<[(EventRef<B>, Follow); 4]>;
type Accesses<'a> = SmallVec<[&'a Access<'a>; 8]>;

impl<B: Backend> Tracker<B> {
    /// Submits: orders, stamps, calls `enqueue`. Waits only for permits and for other threads' submissions, holding nothing.
    ///
    /// # Errors
    /// See [`SubmitError`]; never `Full` or `Busy`.
    pub fn submit<R>(
        &self,
        stream: &Stream<B>,
        accesses: &[Access<'_>],
        options: &Options,
        enqueue: impl FnOnce(&B::Stream) -> Result<R, B::Error>,
    ) -> Result<Submitted<B, R>, SubmitError<B>> {
        self.inner.submit(&stream.inner, accesses, options, true, enqueue)
    }

    /// As [`Tracker::submit`], but never waits.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn try_submit<R>(
        &self,
        stream: &Stream<B>,
        accesses: &[Access<'_>],
        options: &Options,
        enqueue: impl FnOnce(&B::Stream) -> Result<R, B::Error>,
    ) -> Result<Submitted<B, R>, SubmitError<B>> {
        self.inner.submit(&stream.inner, accesses, options, false, enqueue)
    }
}

impl<B: Backend> Inner<B> {
    #[inline]
    fn submit<R, F>(
        &self,
        stream: &StreamInner<B>,
        accesses: &[Access<'_>],
        options: &Options,
        patient: bool,
        enqueue: F,
    ) -> Result<Submitted<B, R>, SubmitError<B>>
    where
        F: FnOnce(&B::Stream) -> Result<R, B::Error>,
    {
        let list = collect(accesses).inspect_err(|error| {
            if matches!(error, SubmitError::Aliased { .. }) {
                self.stats.fire(Rule::Aliased);
            }
        })?;
        let mut enqueue = Some(enqueue);
        let mut tried = false;
        loop {
            // Nothing is held here.
            self.make_events();
            match self.attempt(stream, &list, options, patient, &mut enqueue) {
                Ok(done) => return Ok(done),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Region) => return Err(SubmitError::Busy(Busy::Region)),
                Err(Stop::Stream(foreign)) => {
                    self.stats.fire(Rule::StreamBusy);
                    if !patient {
                        return Err(SubmitError::Busy(Busy::Stream));
                    }
                    let later = Later::new(self);
                    drop(Held::wait(self, foreign.as_deref().unwrap_or(stream), &later));
                }
                Err(Stop::Full { context }) => {
                    self.stats.fire(if context { Rule::ContextFull } else { Rule::StreamFull });
                    if patient {
                        self.wait_for_permit(stream, context)?;
                    } else if tried || !self.collect_permits(stream, context) {
                        return Err(SubmitError::Full { events: self.permit_events(stream, context) });
                    }
                    tried = true;
                }
            }
        }
    }

    /// One attempt, which waits for guards (if `patient`) and for nothing else.
    #[inline]
    fn attempt<R, F>(
        &self,
        stream: &StreamInner<B>,
        list: &[&Access<'_>],
        options: &Options,
        patient: bool,
        enqueue: &mut Option<F>,
    ) -> Result<Submitted<B, R>, Stop<B>>
    where
        F: FnOnce(&B::Stream) -> Result<R, B::Error>,
    {
        // Declared first, so dropped last: after the stream and after the guards.
        let later = Later::new(self);
        let mut guards = self.take_guards(stream, list, patient)?;
        let mut own = Held::try_new(self, stream, &later).ok_or(Stop::Stream(None))?;
        self.admit(stream, own.state(), options)?;
        let mut plan = Plan::default();
        self.plan(stream, own.state(), list, &mut guards, options, &mut plan)?;
        let mut notes = SmallVec::new();
        if !plan.follow.is_empty() {
            // Never two streams: the own one is given back while others are sealed.
            drop(own);
            let events = self.cover(stream, &plan.follow, list, options)?;
            own = Held::try_new(self, stream, &later).ok_or(Stop::Stream(None))?;
            self.admit(stream, own.state(), options)?;
            self.seal_before_outside(stream, own.state(), options)?;
            // Held from the plan to the stamp. (The mutation check gives them up in between.)
            let exclusive = guards.iter().any(|guard| guard.is_exclusive());
            let held = if exclusive { site!(GuardExclusive) } else { site!(GuardShared) };
            if !held {
                guards.clear();
            }
            self.wait_for(stream, own.state(), &events, list, &mut notes)?;
            if !held {
                guards = self.take_guards(stream, list, patient)?;
            }
        } else {
            self.seal_before_outside(stream, own.state(), options)?;
        }
        self.commit(stream, own.state(), list, &mut guards, options, plan.met, notes, enqueue)
    }

    /// One guard per region, in the order of their ids.
    #[inline]
    fn take_guards<'a>(
        &self,
        stream: &StreamInner<B>,
        list: &[&'a Access<'a>],
        patient: bool,
    ) -> Result<Guards<'a>, Stop<B>> {
        let mut guards = Guards::new();
        let mut at = 0;
        while at < list.len() {
            let region = list[at].region;
            let mut kind = Kind::new(list[at].mode, list[at].start, stream.device);
            at += 1;
            while at < list.len() && core::ptr::eq(list[at].region, region) {
                kind = kind.join(Kind::new(list[at].mode, list[at].start, stream.device));
                at += 1;
            }
            let group = region.group(kind, stream.axis);
            // no site: `attempt` has two: guards must last from the plan to the stamp.
            let guard = match region.guard.try_lock(group) {
                Some(guard) => guard,
                None => {
                    self.stats.fire(Rule::GuardBusy);
                    if !patient {
                        return Err(Stop::Region);
                    }
                    // no site: as above.
                    region.guard.lock(group)
                }
            };
            guards.push(guard);
        }
        Ok(guards)
    }

    /// Whether the stream takes this work now. Takes the permit's lease, not the permit.
    #[inline]
    fn admit(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
    ) -> Result<(), Stop<B>> {
        let slot = match self.axes.get(stream.axis) {
            Some(slot) if state.handle.is_some() => slot,
            _ => return Err(SubmitError::Closed.into()),
        };
        if slot.has(FAILED) && site!(RefuseFailed) {
            self.stats.fire(Rule::RefusedFailed);
            return Err(SubmitError::Failed { axis: stream.axis }.into());
        }
        if state.capture.is_some() && site!(RefuseCapturing) {
            self.stats.fire(Rule::RefusedCapturing);
            return Err(SubmitError::Capturing.into());
        }
        if stream.kind.tainted() {
            self.admit_tainted(stream, state, options)?;
        }
        let in_flight = state.issued - slot.retired();
        if in_flight >= self.config.stream_permits && site!(PermitStream) {
            return Err(Stop::Full { context: false });
        }
        if in_flight >= state.leased && site!(PermitContext) {
            let lot = self.permits.lease();
            if lot == 0 {
                return Err(Stop::Full { context: true });
            }
            state.leased += lot;
        }
        Ok(())
    }

    #[cold]
    fn admit_tainted(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
    ) -> Result<(), Stop<B>> {
        if let StreamKind::PerThread(owner) = stream.kind
            && owner != options.thread
            && site!(RefuseThread)
        {
            self.stats.fire(Rule::WrongThread);
            return Err(SubmitError::WrongThread.into());
        }
        if stream.kind.may_capture()
            && site!(RefuseBorrowedCapturing)
            && let Some(handle) = &state.handle
        {
            match self.backend.is_capturing(handle) {
                Ok(false) => {}
                Ok(true) => {
                    self.stats.fire(Rule::RefusedBorrowed);
                    return Err(SubmitError::BorrowedCapturing.into());
                }
                Err(error) => return Err(SubmitError::Driver { step: Step::IsCapturing, error }.into()),
            }
        }
        Ok(())
    }

    /// Everything before work that may wait for the outside gets an event in front of it.
    #[inline]
    fn seal_before_outside(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
    ) -> Result<(), Stop<B>> {
        if options.outside == Outside::Never {
            return Ok(());
        }
        if state.unsealed > 0 && site!(SealBeforeOutside) {
            if self.seal_epoch(stream, state, state.last_used) {
                self.stats.fire(Rule::SealBeforeOutside);
            }
            if self.axes.is_failed(stream.axis) {
                return Err(SubmitError::Failed { axis: stream.axis }.into());
            }
        }
        if options.outside == Outside::WaitValue && site!(PermitWaitValue) {
            let mut sitting = self.wait_values.lock();
            sitting.retain(|stamp| !self.axes.done(*stamp));
            let here = sitting.iter().any(|stamp| stamp.axis == stream.axis);
            if !here && sitting.len() >= self.config.max_wait_values {
                self.stats.fire(Rule::WaitValueFull);
                return Err(SubmitError::WaitValues { limit: self.config.max_wait_values }.into());
            }
            // Stands before the work does; a failure from here on leaves it for the rest of the epoch.
            sitting.retain(|stamp| stamp.axis != stream.axis);
            sitting.push(Stamp { axis: stream.axis, epoch: state.open });
        }
        Ok(())
    }

    /// Step 4: an event for each stamp that must be followed. Called with guards, without a stream.
    #[cold]
    fn cover(
        &self,
        stream: &StreamInner<B>,
        follow: &[Follow],
        list: &[&Access<'_>],
        options: &Options,
    ) -> Result<Covers<B>, Stop<B>> {
        let mut events: Covers<B> = SmallVec::new();
        let later = Later::new(self);
        for follow in follow {
            let Some(event) = self.cover_one(follow.stamp, &later)? else { continue };
            if options.policy == Policy::Reject && follow.why == Why::Conflict {
                if site!(QueryBeforeConflict) && matches!(self.query(&event), Ok(true)) {
                    self.stats.fire(Rule::ConflictCompleted);
                    continue;
                }
                self.stats.fire(Rule::Conflict);
                return Err(SubmitError::Conflict(Conflict {
                    region: list[follow.access].region.id(),
                    stream: Some(stream.axis),
                    mode: follow.ours.mode(),
                    with: Party::Stream(follow.stamp),
                    their_mode: follow.theirs.mode(),
                })
                .into());
            }
            events.push((event, *follow));
        }
        implying_first(&mut events);
        Ok(events)
    }

    /// The event that covers a stamp; `None` if it turns out complete.
    fn cover_one(&self, stamp: Stamp, later: &Later<'_, B>) -> Result<Option<EventRef<B>>, Stop<B>> {
        use crate::tracker::Settled;
        if let Some(foreign) = self.needs_seal(stamp) {
            let inner_later = Later::new(self);
            let Some(mut held) = Held::try_new(self, &foreign, &inner_later) else {
                return Err(Stop::Stream(Some(foreign)));
            };
            if site!(SealForeign) && self.seal_epoch(&foreign, held.state(), stamp.epoch) {
                self.stats.fire(Rule::SealForeign);
            }
            drop(held);
            inner_later.hand_over(later);
        }
        match self.look(stamp) {
            Settled::Complete => Ok(None),
            Settled::Pending(event) => Ok(Some(event)),
            Settled::Failed | Settled::Unsealed if !site!(RefuseFailed) => Ok(None),
            Settled::Failed | Settled::Unsealed => {
                self.stats.fire(Rule::RefusedFailed);
                Err(SubmitError::Failed { axis: stamp.axis }.into())
            }
        }
    }

    /// The stream to seal so that something covers `stamp`.
    fn needs_seal(&self, stamp: Stamp) -> Option<Arc<StreamInner<B>>> {
        let slot = self.axes.get(stamp.axis)?;
        if slot.completed() >= stamp.epoch || slot.recorded() >= stamp.epoch || slot.has(FAILED) {
            return None;
        }
        // A per-thread stream was sealed by its own thread; nobody else touches it.
        self.axes.stream(stamp.axis).filter(|stream| !matches!(stream.kind, StreamKind::PerThread(_)))
    }

    /// Step 5, first half: the waits, and the merge of each frontier after its wait succeeded.
    #[cold]
    fn wait_for(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        events: &[(EventRef<B>, Follow)],
        list: &[&Access<'_>],
        notes: &mut SmallVec<[WaitNote; 2]>,
    ) -> Result<(), Stop<B>> {
        for (event, follow) in events {
            // Each stamp is judged here, by itself, by what has been queued and what is complete now. (That another event
            // would imply it says nothing: that one's own stamp may have completed meanwhile, and it is not waited for.)
            if state.frontier.get(follow.stamp.axis) >= follow.stamp.epoch {
                self.stats.fire(Rule::SkipTransitive);
                continue;
            }
            if self.axes.done(follow.stamp) {
                continue;
            }
            if event.with(|content| content.outside) {
                // The awaited stream may sit in front of something outside. What this one has queued must not
                // become visible only behind that.
                if state.unsealed > 0
                    && site!(SealBeforeWait)
                    && self.seal_epoch(stream, state, state.last_used)
                {
                    self.stats.fire(Rule::SealBeforeWait);
                }
                // That took a driver call: the work may have ended meanwhile.
                if self.axes.done(follow.stamp) {
                    continue;
                }
                state.outside = state.open;
            }
            let Some(handle) = &state.handle else { return Err(SubmitError::Closed.into()) };
            let leave_out = match follow.why {
                Why::Conflict => !site!(WaitForeign),
                Why::ReaderLimit => false,
            };
            if !leave_out && let Err(error) = self.backend.wait(handle, event.event()) {
                self.stats.fire(Rule::WaitFailed);
                if stream.kind.tainted() {
                    state.frontier.clear();
                }
                return Err(SubmitError::Driver { step: Step::Wait, error }.into());
            }
            self.stats.fire(if follow.why == Why::Conflict { Rule::Wait } else { Rule::ReaderLimit });
            event.with(|content| {
                if site!(MergeSelf) {
                    state.frontier.raise(content.axis, content.epoch);
                }
                if site!(MergeWait) {
                    state.frontier.merge(&content.frontier);
                }
            });
            notes.push(WaitNote {
                after: follow.stamp,
                region: list[follow.access].region.id(),
                mode: follow.ours.mode(),
                their_mode: follow.theirs.mode(),
                reader_limit: follow.why == Why::ReaderLimit,
            });
        }
        Ok(())
    }

    /// Step 5, second half: stamp, then enqueue, then the seals that cannot wait.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn commit<R, F>(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        list: &[&Access<'_>],
        guards: &mut Guards<'_>,
        options: &Options,
        met: u64,
        notes: SmallVec<[WaitNote; 2]>,
        enqueue: &mut Option<F>,
    ) -> Result<Submitted<B, R>, Stop<B>>
    where
        F: FnOnce(&B::Stream) -> Result<R, B::Error>,
    {
        let mut seal = false;
        if site!(OrderBeforeEnqueue) {
            seal = self.stamp(stream, state, list, guards, met);
        }
        let stamp = Stamp { axis: stream.axis, epoch: state.open };
        state.last_used = state.open;
        state.unsealed += 1;
        state.issued += 1;
        if options.outside != Outside::Never {
            state.outside = state.open;
        }
        let result = match (&state.handle, enqueue.take()) {
            (Some(handle), Some(enqueue)) => enqueue(handle),
            // `admit` saw the handle, and an attempt that enqueues is the last one.
            _ => return Err(SubmitError::Closed.into()),
        };
        if !site!(OrderBeforeEnqueue) && result.is_ok() {
            seal = self.stamp(stream, state, list, guards, met);
        }
        let event = self.seal_after(stream, state, options, seal);
        if stream.kind.tainted() && site!(TaintedFrontier) {
            state.frontier.clear();
        }
        match result {
            Ok(value) => Ok(Submitted { value, stamp, event, waits: notes }),
            Err(error) => {
                self.stats.fire(Rule::EnqueueFailed);
                Err(SubmitError::Driver { step: Step::Enqueue, error }.into())
            }
        }
    }

    /// Leaves the stamps. Whether a range asks for an eager seal.
    #[inline]
    pub(crate) fn stamp(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
        list: &[&Access<'_>],
        guards: &mut [RegionGuard<'_>],
        met: u64,
    ) -> bool {
        let mut seal = false;
        let who = Toucher { axis: stream.axis, frontier: &state.frontier };
        let mut guard = 0;
        for (at, access) in list.iter().enumerate() {
            if at > 0 && !core::ptr::eq(access.region, list[at - 1].region) {
                guard += 1;
            }
            let kind = Kind::new(access.mode, access.start, stream.device);
            if kind == Kind::WRITE {
                access.region.written_by(stream.axis);
            }
            let report = with_state(&mut guards[guard], |region| {
                region.ranges.touch(
                    access.start,
                    access.end,
                    kind,
                    state.open,
                    met >> at.min(63) & 1 != 0,
                    &who,
                    &self.axes,
                    self.config.max_ranges,
                )
            });
            seal |= report.seal;
            if report.any() {
                self.count_touch(&report);
            }
        }
        seal
    }

    /// The seals that follow a submission. The event right behind it, if there is one.
    #[inline]
    fn seal_after(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
        met: bool,
    ) -> Option<EventRef<B>> {
        let due = state.unsealed >= self.config.checkpoint && site!(SealCheckpoint);
        if !(due || met || options.seal || options.policy == Policy::Reject || stream.kind.tainted()) {
            return None;
        }
        self.seal_after_slow(stream, state, options, met, due)
    }

    #[cold]
    fn seal_after_slow(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
        met: bool,
        due: bool,
    ) -> Option<EventRef<B>> {
        let rule = if stream.kind.tainted() && site!(SealTainted) {
            Rule::SealTainted
        } else if options.policy == Policy::Reject && site!(SealReject) {
            Rule::SealReject
        } else if options.seal && site!(SealAsked) {
            Rule::SealAsked
        } else if met && site!(SealEager) {
            Rule::SealEager
        } else if due {
            Rule::SealCheckpoint
        } else {
            return None;
        };
        let epoch = state.last_used;
        let sealed = match rule {
            // Nobody waits yet: one try; the next seal covers it.
            // no site: one for each rule, above.
            Rule::SealEager | Rule::SealCheckpoint => self.seal_once(stream, state),
            // `admit` has asked already whether a borrowed stream is capturing.
            // no site: one for each rule, above.
            _ => self.seal_epoch_asking(stream, state, epoch, false),
        };
        if !sealed {
            return None;
        }
        self.stats.fire(rule);
        self.axes.get(stream.axis)?.covering(epoch)
    }
}

/// Puts waits that imply others before those, so that the others are seen to be dominated once these are queued.
fn implying_first<B: Backend>(events: &mut Covers<B>) {
    if events.len() < 2 {
        return;
    }
    let implied_by = |stamp: Stamp| {
        let implies = |other: &&(EventRef<B>, Follow)| {
            other
                .0
                .with(|content| content.axis != stamp.axis && content.frontier.get(stamp.axis) >= stamp.epoch)
        };
        events.iter().filter(implies).count()
    };
    // Implication is transitive, so who implies another is implied by fewer.
    let mut ranks: SmallVec<[(usize, usize); 4]> =
        events.iter().enumerate().map(|(at, (_, follow))| (implied_by(follow.stamp), at)).collect();
    ranks.sort_unstable();
    let mut taken: SmallVec<[Option<_>; 4]> = events.drain(..).map(Some).collect();
    events.extend(ranks.iter().filter_map(|&(_, at)| taken[at].take()));
}

/// Step 2: bounds, order by region, aliasing.
#[inline]
pub(crate) fn collect<'a, B: Backend>(accesses: &'a [Access<'a>]) -> Result<Accesses<'a>, SubmitError<B>> {
    let mut list = Accesses::new();
    let mut sorted = true;
    for access in accesses {
        let (start, end, len) = (access.start, access.end, access.region.len());
        if start > end || end > len {
            return Err(SubmitError::OutOfRange { region: access.region.id(), start, end, len });
        }
        if start == end {
            continue;
        }
        sorted &= list.last().is_none_or(|last: &&Access<'_>| last.region.id() < access.region.id());
        list.push(access);
    }
    if !sorted {
        list.sort_unstable_by_key(|access| (access.region.id(), access.start));
        check_aliases(&list)?;
    }
    Ok(list)
}

/// Two accesses of one region that overlap must commute. `list` is sorted by region and start.
#[cold]
fn check_aliases<B: Backend>(list: &[&Access<'_>]) -> Result<(), SubmitError<B>> {
    for (at, access) in list.iter().enumerate() {
        for other in &list[at + 1..] {
            if other.region.id() != access.region.id() || other.start >= access.end {
                break;
            }
            let (a, b) = (Kind::new(access.mode, access.start, 0), Kind::new(other.mode, other.start, 0));
            if a.conflicts(b) && site!(RefuseAlias) {
                let (start, end) = (other.start, other.end.min(access.end));
                return Err(SubmitError::Aliased { region: access.region.id(), start, end });
            }
        }
    }
    Ok(())
}
