//! Step 7: stamp, then enqueue, then the seals that cannot wait.

use super::{Access, Guards, Options, Outside, Policy, Stop, Submitted, Taken, WaitNote};
use crate::backend::Backend;
use crate::error::{Step, SubmitError};
use crate::event::EventRef;
use crate::ids::Stamp;
use crate::mode::Kind;
use crate::mutate::site;
use crate::planted::{Bug, is_planted};
use crate::ranges::{Touched, Toucher};
use crate::region::{RegionGuard, with_state};
use crate::stats::Rule;
use crate::stream::{StreamInner, StreamState};
use crate::tracker::Inner;

impl<B: Backend> Inner<B> {
    /// Stamp, then enqueue, then the seals that cannot wait.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn commit<R, F>(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        list: &[&Access<'_>],
        guards: &mut Guards<'_>,
        options: &Options,
        met: u64,
        notes: Vec<WaitNote>,
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
        if is_planted(Bug::SealTooEarly) {
            // no site: a bug that is planted for the explorer.
            self.seal_once(stream, state);
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
        guards: &mut [Taken<'_>],
        met: u64,
    ) -> bool {
        let mut report = Touched::default();
        for taken in guards {
            for (within, access) in taken.of(list).iter().enumerate() {
                let at = taken.first as usize + within;
                if is_planted(Bug::StampNotWritten) && at + 1 == list.len() {
                    continue;
                }
                let kind = Kind::new(access.mode, access.start, stream.device);
                if kind == Kind::WRITE {
                    access.region.written_by(stream.axis);
                }
                let (axis, epoch) = (stream.axis, state.open);
                let (start, end) = (access.start, access.end);
                // (What has met another stream's stamps does not get through here: those are there.)
                let alone = taken.guard.get_mut();
                if !alone
                    .is_some_and(|alone| alone.get_mut().ranges.touch_again(start, end, kind, axis, epoch))
                {
                    let met = met >> at.min(63) & 1 != 0;
                    self.stamp_slow(stream, state, access, kind, met, &mut taken.guard, &mut report);
                }
            }
        }
        let seal = core::mem::take(&mut report.seal);
        if report != Touched::default() {
            self.count_touch(&report);
        }
        seal
    }

    /// [`Inner::stamp`] for one access that changes more than the epoch of a stamp. Apart, so that the others stay short.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn stamp_slow(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
        access: &Access<'_>,
        kind: Kind,
        met: bool,
        guard: &mut RegionGuard<'_>,
        report: &mut Touched,
    ) {
        let who = Toucher { axis: stream.axis, frontier: &state.frontier };
        with_state(guard, |region| {
            region.ranges.touch(
                access.start,
                access.end,
                kind,
                state.open,
                met,
                &who,
                &self.axes,
                self.config.max_ranges,
                report,
            )
        });
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
