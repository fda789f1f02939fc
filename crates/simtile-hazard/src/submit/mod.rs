//! The submission protocol. The argument of correctness is in the crate's README, whose step numbers are used here.

mod admit;
mod collect;
mod commit;
mod follow;
mod mark;
mod request;

pub(crate) use collect::collect;
pub use request::{Access, Options, Outside, Policy, Submitted, WaitNote};

use crate::backend::Backend;
use crate::error::{Busy, SubmitError};
use crate::mode::Kind;
use crate::mutate::site;
use crate::plan::Plan;
use crate::planted::{Bug, is_planted};
use crate::region::{Region, RegionGuard};
use crate::stats::Rule;
use crate::stream::{Held, Later, Stream, StreamInner};
use crate::tracker::{Inner, Tracker};
use smallvec::SmallVec;
use std::sync::Arc;

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

/// A region of a submission, held.
pub(crate) struct Taken<'a> {
    pub guard: RegionGuard<'a>,
    /// Where its accesses are in the list, which has them one after another.
    pub first: u32,
    pub end: u32,
}

impl Taken<'_> {
    /// The region of `list[first]`, before its guard is taken: where its accesses end, and the kind that covers them all.
    #[inline]
    fn extent(list: &[&Access<'_>], first: usize, device: u16) -> (usize, Kind) {
        let access = list[first];
        let mut kind = Kind::new(access.mode, access.start, device);
        let mut end = first + 1;
        while let Some(more) = list.get(end)
            && core::ptr::eq(more.region, access.region)
        {
            kind = kind.join(Kind::new(more.mode, more.start, device));
            end += 1;
        }
        (end, kind)
    }

    /// Its accesses.
    #[inline]
    pub(crate) fn of<'l, 'a>(&self, list: &'l [&'a Access<'a>]) -> &'l [&'a Access<'a>] {
        &list[self.first as usize..self.end as usize]
    }
}

type Guards<'a> = SmallVec<[Taken<'a>; 8]>;
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
        let mut guards = Guards::new();
        self.take_guards(stream, list, patient, &mut guards)?;
        let mut own = Held::try_new(self, stream, &later).ok_or(Stop::Stream(None))?;
        self.admit(stream, own.state(), options)?;
        let mut plan = Plan::default();
        self.plan(stream, own.state(), list, &mut guards, options, &mut plan)?;
        let mut notes = Vec::new();
        if !plan.follow.is_empty() {
            // Never two streams: the own one is given back while others are sealed.
            drop(own);
            let events = self.cover(stream, &plan.follow, list, options, &later)?;
            own = Held::try_new(self, stream, &later).ok_or(Stop::Stream(None))?;
            self.admit(stream, own.state(), options)?;
            self.seal_before_outside(stream, own.state(), options)?;
            // Held from the plan to the stamp. (The mutation check gives them up in between.)
            let exclusive = guards.iter().any(|taken| taken.guard.is_exclusive());
            let held = if exclusive { site!(GuardExclusive) } else { site!(GuardShared) };
            let held = held && !is_planted(Bug::GuardNotTaken);
            if !held {
                guards.clear();
            }
            self.wait_for(stream, own.state(), &events, list, &mut notes)?;
            if !held {
                self.take_guards(stream, list, patient, &mut guards)?;
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
        guards: &mut Guards<'a>,
    ) -> Result<(), Stop<B>> {
        let mut first = 0;
        while first < list.len() {
            let (end, kind) = Taken::extent(list, first, stream.device);
            let region = list[first].region;
            let group = region.group(kind, stream.axis);
            // no site: `attempt` has two: guards must last from the plan to the stamp.
            let guard = match region.guard.try_lock(group) {
                Some(guard) => guard,
                None => self.wait_for_guard(region, group, patient)?,
            };
            guards.push(Taken { guard, first: first as u32, end: end as u32 });
            first = end;
        }
        Ok(())
    }

    #[cold]
    fn wait_for_guard<'a>(
        &self,
        region: &'a Region,
        group: u32,
        patient: bool,
    ) -> Result<RegionGuard<'a>, Stop<B>> {
        self.stats.fire(Rule::GuardBusy);
        if !patient {
            return Err(Stop::Region);
        }
        // no site: as above.
        Ok(region.guard.lock(group))
    }
}
