//! Planning: which foreign stamps a submission has to follow, and the counters of touches.

use crate::backend::Backend;
use crate::error::{Conflict, Party, SubmitError};
use crate::ids::Stamp;
use crate::mode::{Kind, Mode};
use crate::mutate::site;
use crate::planted::{Bug, is_planted};
use crate::ranges::{Entry, Touched, Toucher, Why};
use crate::region::{Foreign, RegionGuard, RegionState, with_state};
use crate::stats::Rule;
use crate::stream::{StreamInner, StreamState};
use crate::submit::{Access, Options, Policy, Taken};
use crate::tracker::Inner;
use simtile_sync::atomic::Ordering;
use smallvec::SmallVec;

/// A foreign stamp that must be followed.
#[derive(Clone, Copy)]
pub(crate) struct Follow {
    pub stamp: Stamp,
    pub access: usize,
    pub theirs: Kind,
    pub ours: Kind,
    pub why: Why,
}

/// What planning found.
#[derive(Default)]
pub(crate) struct Plan {
    /// At most one entry per axis and reason: the latest epoch, which covers the earlier ones.
    pub follow: SmallVec<[Follow; 4]>,
    /// Which accesses met another stream's conflicting work (the 64th and later share a bit).
    pub met: u64,
}

impl Plan {
    fn add(&mut self, access: usize, entry: &Entry, ours: Kind, why: Why) {
        let stamp = Stamp { axis: entry.axis, epoch: entry.epoch };
        let new = Follow { stamp, access, theirs: entry.kind, ours, why };
        // A conflict and a reader limit are judged differently, so they stay apart.
        let same = |follow: &&mut Follow| follow.stamp.axis == entry.axis && follow.why == why;
        match self.follow.iter_mut().find(same) {
            Some(old) if old.stamp.epoch < entry.epoch => *old = new,
            Some(_) => {}
            None => self.follow.push(new),
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Finds what the submission must follow. Refuses what the host, foreign code or a failed axis forbids.
    #[inline]
    pub(crate) fn plan(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
        list: &[&Access<'_>],
        guards: &mut [Taken<'_>],
        options: &Options,
        plan: &mut Plan,
    ) -> Result<(), SubmitError<B>> {
        for taken in guards {
            // What one stream alone uses is in its order anyway.
            if taken.guard.get_mut().is_some_and(|alone| alone.get_mut().quiet_for(stream.axis)) {
                continue;
            }
            for (within, access) in taken.of(list).iter().enumerate() {
                let at = taken.first as usize + within;
                self.plan_access(stream, state, at, access, &mut taken.guard, options, plan)?;
            }
        }
        Ok(())
    }

    /// [`Inner::plan`] for one access that may meet others. Apart, so that what meets nobody stays short.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn plan_access(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
        at: usize,
        access: &Access<'_>,
        guard: &mut RegionGuard<'_>,
        options: &Options,
        plan: &mut Plan,
    ) -> Result<(), SubmitError<B>> {
        let who = Toucher { axis: stream.axis, frontier: &state.frontier };
        let kind = Kind::new(access.mode, access.start, stream.device);
        let mut skipped = (0, 0);
        let planned = with_state(guard, |region| {
            if !region.is_free() {
                self.plan_held(region, access, kind, Some(stream))?;
            }
            let limit = self.config.max_readers;
            region.ranges.plan(
                access.start,
                access.end,
                kind,
                &who,
                &self.axes,
                limit,
                &mut skipped,
                |entry, why| {
                    if is_planted(Bug::WriteAfterReadLost) && entry.kind == Kind::READ {
                        return;
                    }
                    if why == Why::Conflict {
                        plan.met |= 1 << at.min(63);
                    }
                    if options.policy == Policy::Unchecked {
                        self.stats.fire(Rule::Unchecked);
                    } else {
                        plan.add(at, entry, kind, why);
                    }
                },
            );
            Ok(())
        });
        if skipped != (0, 0) {
            self.stats.add(Rule::SkipDominated, skipped.0.into());
            self.stats.add(Rule::SkipCompleted, skipped.1.into());
        }
        planned
    }

    /// Checks an access against what the host and foreign code hold.
    #[cold]
    pub(crate) fn plan_held(
        &self,
        region: &mut RegionState,
        access: &Access<'_>,
        kind: Kind,
        stream: Option<&StreamInner<B>>,
    ) -> Result<(), SubmitError<B>> {
        let conflict = |with, their_mode| {
            SubmitError::Conflict(Conflict {
                region: access.region.id(),
                stream: stream.map(|stream| stream.axis),
                mode: access.mode,
                with,
                their_mode,
            })
        };
        if let Foreign::Quarantined(at) = region.foreign
            && self.syncs_done.load(Ordering::Acquire) > at
        {
            self.stats.fire(Rule::Unquarantined);
            region.foreign = Foreign::None;
        }
        let free = match region.foreign {
            Foreign::None => true,
            Foreign::Shared => kind == Kind::READ,
            Foreign::Exclusive | Foreign::Quarantined(_) => false,
        };
        if !free && site!(RefuseExported) {
            self.stats.fire(Rule::Conflict);
            let mode = if region.foreign == Foreign::Shared { Mode::Read } else { Mode::Write };
            return Err(conflict(Party::Foreign, mode));
        }
        for claim in &region.host {
            let meets = claim.start < access.end && access.start < claim.end && claim.kind.conflicts(kind);
            if meets && site!(RefuseHost) {
                self.stats.fire(Rule::HostConflict);
                return Err(conflict(Party::Host, claim.kind.mode()));
            }
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn count_touch(&self, report: &Touched) {
        for (rule, times) in [
            (Rule::Cut, report.cut),
            (Rule::Joined, report.joined),
            (Rule::Folded, report.folded),
            (Rule::Replaced, report.replaced),
            (Rule::PruneDominated, report.dominated),
            (Rule::PruneCompleted, report.completed),
        ] {
            self.stats.add(rule, times.into());
        }
    }
}
