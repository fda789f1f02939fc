//! Retiring memory: free it on a stream that follows all its uses, or hand it to the reclaimer with its stamps.

use crate::axis::FAILED;
use crate::backend::{Backend, Quarantine};
use crate::ids::{AxisId, Stamp};
use crate::mutate::site;
use crate::planted::{Bug, is_planted};
use crate::region::{Foreign, Region};
use crate::stats::Rule;
use crate::stream::{Action, Held, Later, Request, StreamInner, StreamKind, StreamState};
use crate::tracker::{Inner, Tracker};
use simtile_sync::atomic::Ordering;
use smallvec::SmallVec;

/// What became of retired memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retired {
    /// Freed in the order of this stream.
    Inline(AxisId),
    /// This stream was busy; its holder frees it, or hands it to the reclaimer.
    Requested(AxisId),
    /// With the reclaimer.
    Reclaimer,
    /// Kept for ever.
    Quarantined(Quarantine),
}

/// Streams tried before the reclaimer gets it.
const CANDIDATES: usize = 4;

impl<B: Backend> Tracker<B> {
    /// Whether foreign code may still use the region: it came back from nobody knows which stream, and no synchronisation of
    /// everything that began after that has ended. Retired now its memory would be kept for ever.
    pub fn is_quarantined(&self, region: &mut Region) -> bool {
        match region.guard.get_mut().get_mut().foreign {
            Foreign::Quarantined(at) => self.inner.syncs_done.load(Ordering::Acquire) <= at,
            _ => false,
        }
    }

    /// Retires `memory`, whose accesses `region` knows, when its last handle has gone. Never waits.
    pub fn retire(&self, mut region: Region, memory: B::Memory) -> Retired {
        let inner = &*self.inner;
        let len = region.len();
        let home = region.home();
        let state = region.guard.get_mut().get_mut();
        let mut stamps: SmallVec<[Stamp; 4]> = SmallVec::new();
        state.ranges.live(0, len, &inner.axes, |entry| {
            match stamps.iter_mut().find(|stamp| stamp.axis == entry.axis) {
                Some(stamp) => stamp.epoch = stamp.epoch.max(entry.epoch),
                None => stamps.push(Stamp { axis: entry.axis, epoch: entry.epoch }),
            }
        });
        let quarantined = match state.foreign {
            Foreign::Quarantined(at) if inner.syncs_done.load(Ordering::Acquire) > at => false,
            Foreign::None => false,
            _ => true,
        };
        let why = if !state.host.is_empty() && site!(QuarantineHost) {
            Some(Quarantine::HostClaim)
        } else if quarantined {
            Some(Quarantine::Foreign)
        } else if site!(QuarantineFailed) && stamps.iter().any(|stamp| inner.axes.is_failed(stamp.axis)) {
            Some(Quarantine::FailedAxis)
        } else {
            None
        };
        let later = Later::new(inner);
        if let Some(why) = why {
            later.push(Action::Quarantine(memory, why));
            return Retired::Quarantined(why);
        }
        inner.retire_on_stream(memory, stamps, home, &later)
    }
}

impl<B: Backend> Inner<B> {
    fn retire_on_stream(
        &self,
        mut memory: B::Memory,
        stamps: SmallVec<[Stamp; 4]>,
        home: Option<AxisId>,
        later: &Later<'_, B>,
    ) -> Retired {
        let mut candidates: SmallVec<[AxisId; CANDIDATES]> = SmallVec::new();
        if stamps.is_empty() {
            candidates.extend(home);
        } else {
            candidates.extend(stamps.iter().map(|stamp| stamp.axis).take(CANDIDATES));
        }
        for &axis in &candidates {
            let Some(stream) = self.axes.stream(axis) else { continue };
            if stream.kind != StreamKind::Owned && site!(FreeTainted) {
                continue;
            }
            let mine = Later::new(self);
            let held = Held::try_new(self, &stream, &mine);
            if let Some(mut held) = held {
                let result = self.free_here(&stream, held.state(), memory, &stamps);
                drop(held);
                mine.hand_over(later);
                match result {
                    Ok(()) => {
                        self.stats.fire(Rule::FreedInline);
                        return Retired::Inline(axis);
                    }
                    Err(back) => memory = back,
                }
            } else if stamps.len() <= 1 && site!(RequestFree) {
                // Its own stamps alone: the holder will be able to.
                drop(held);
                self.leave_request(&stream, Request::Free(memory, stamps), later);
                return Retired::Requested(axis);
            }
        }
        later.push(Action::Reclaim(memory, stamps));
        Retired::Reclaimer
    }

    /// Frees `memory` on this stream, which is one of ours, if it is open, healthy, not capturing, and follows all `stamps`.
    pub(crate) fn free_here(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        memory: B::Memory,
        stamps: &[Stamp],
    ) -> Result<(), B::Memory> {
        let free_of_capture = state.capture.is_none() || !site!(FreeCapturing);
        let healthy = self.axes.get(stream.axis).is_some_and(|slot| !slot.has(FAILED));
        let follows = !site!(FreeFollows)
            || is_planted(Bug::FreeWithoutLooking)
            || stamps.iter().all(|&stamp| {
                stamp.axis == stream.axis
                    || state.frontier.get(stamp.axis) >= stamp.epoch
                    || self.axes.done(stamp)
            });
        match &state.handle {
            Some(handle) if free_of_capture && healthy && follows => self.backend.free(handle, memory),
            _ => Err(memory),
        }
    }
}
