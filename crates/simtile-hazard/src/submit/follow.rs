//! Steps 5 and 6: an event for each stamp that must be followed, and the waits.

use super::{Access, Options, Policy, Stop, WaitNote};
use crate::axis::FAILED;
use crate::backend::Backend;
use crate::error::{Conflict, Party, Step, SubmitError};
use crate::event::EventRef;
use crate::ids::Stamp;
use crate::mutate::site;
use crate::plan::Follow;
use crate::planted::{Bug, is_planted};
use crate::ranges::Why;
use crate::stats::Rule;
use crate::stream::{Held, Later, StreamInner, StreamKind, StreamState};
use crate::tracker::{Inner, Settled};
use smallvec::SmallVec;
use std::sync::Arc;

/// What to follow, each with an event that covers it.
pub(super) type Covers<B> = SmallVec<[(EventRef<B>, Follow); 4]>;

impl<B: Backend> Inner<B> {
    /// An event for each stamp that must be followed. Called with guards, without a stream; what is to be done without guards
    /// goes to `later`.
    #[cold]
    pub(super) fn cover(
        &self,
        stream: &StreamInner<B>,
        follow: &[Follow],
        list: &[&Access<'_>],
        options: &Options,
        later: &Later<'_, B>,
    ) -> Result<Covers<B>, Stop<B>> {
        let mut events: Covers<B> = SmallVec::new();
        for follow in follow {
            let Some(event) = self.cover_one(follow.stamp, later)? else { continue };
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

    /// The waits, and the merge of each frontier after its wait succeeded.
    #[cold]
    pub(super) fn wait_for(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        events: &[(EventRef<B>, Follow)],
        list: &[&Access<'_>],
        notes: &mut Vec<WaitNote>,
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
                if site!(SealBeforeWait) && self.seal_epoch(stream, state, state.last_used) {
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
                Why::Conflict => !site!(WaitForeign) || is_planted(Bug::MissingWait),
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
