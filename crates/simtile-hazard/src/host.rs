//! The host as an axis: claims of guards on the host, and regions that foreign code holds.

use crate::backend::Backend;
use crate::error::{Busy, Conflict, Party, SubmitError};
use crate::event::EventRef;
use crate::ids::{AxisId, Stamp};
use crate::mode::{Kind, Mode};
use crate::mutate::site;
use crate::planted::{Bug, is_planted};
use crate::ranges::Toucher;
use crate::region::{Foreign, HostEntry, Region, with_state};
use crate::stats::Rule;
use crate::stream::{Held, Later, Stream, StreamKind};
use crate::submit::{Access, Taken};
use crate::tracker::{Settled, Tracker};
use simtile_sync::EXCLUSIVE;
use simtile_sync::atomic::Ordering;
use smallvec::SmallVec;

/// The device number of the host, for accumulations: only system scope covers it.
const HOST_DEVICE: u16 = u16::MAX;
const HOST_AXIS: AxisId = AxisId(u64::MAX);

/// A range that the host holds. Give it back with [`Tracker::host_release`]; a forgotten one refuses for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct HostClaim(u64);

/// The host cannot have a range now.
pub enum HostBusy<B: Backend> {
    /// Conflicting work is in flight; all of these must settle. Seals have been asked for.
    Pending(SmallVec<[Stamp; 4]>),
    /// It is refused.
    Refused(SubmitError<B>),
}

impl<B: Backend> Tracker<B> {
    /// Claims a range for the host if no conflicting work is in flight. Never waits.
    ///
    /// # Errors
    /// [`HostBusy`].
    pub fn try_host(&self, access: &Access<'_>) -> Result<HostClaim, HostBusy<B>> {
        let inner = &*self.inner;
        let region = access.region;
        let (start, end, len) = (access.start, access.end, region.len());
        if start > end || end > len {
            let error = SubmitError::OutOfRange { region: region.id(), start, end, len };
            return Err(HostBusy::Refused(error));
        }
        let kind = Kind::new(access.mode, start, HOST_DEVICE);
        // No conflicting submission may be between its plan and its stamp.
        let group = if site!(GuardHost) { kind.group() } else { Kind::READ.group() };
        let busy = HostBusy::Refused(SubmitError::Busy(Busy::Region));
        let mut guard = region.guard.try_lock(group).ok_or(busy)?;
        let mut pending: SmallVec<[Stamp; 4]> = SmallVec::new();
        let claimed = with_state(&mut guard, |state| {
            inner.plan_held(state, access, kind, None)?;
            let who = Toucher { axis: HOST_AXIS, frontier: &Default::default() };
            let limit = usize::MAX;
            state.ranges.plan(start, end, kind, &who, &inner.axes, limit, &mut (0, 0), |entry, _| {
                if site!(WaitHost) && !is_planted(Bug::HostGuardWithoutWait) {
                    pending.push(Stamp { axis: entry.axis, epoch: entry.epoch });
                }
            });
            if !pending.is_empty() {
                return Ok(None);
            }
            let id = state.next_claim;
            state.next_claim += 1;
            state.host.push(HostEntry { id, start, end, kind });
            Ok(Some(HostClaim(id)))
        });
        drop(guard);
        match claimed {
            Err(error) => Err(HostBusy::Refused(error)),
            Ok(Some(claim)) => {
                inner.stats.fire(Rule::HostClaim);
                Ok(claim)
            }
            Ok(None) => {
                // Whoever waits for an epoch seals it.
                // no site: `ask_seal` has one.
                pending.iter().for_each(|&stamp| inner.ask_seal(stamp));
                Err(HostBusy::Pending(pending))
            }
        }
    }

    /// Claims a range for the host, waiting for conflicting work, holding nothing.
    ///
    /// # Errors
    /// [`SubmitError`]: refused, failed axis, driver.
    pub fn host(&self, access: &Access<'_>) -> Result<HostClaim, SubmitError<B>> {
        loop {
            match self.try_host(access) {
                Ok(claim) => return Ok(claim),
                Err(HostBusy::Refused(SubmitError::Busy(_))) => simtile_sync::thread::yield_now(),
                Err(HostBusy::Refused(error)) => return Err(error),
                Err(HostBusy::Pending(stamps)) => {
                    for stamp in stamps {
                        self.wait(stamp)?;
                    }
                }
            }
        }
    }

    /// Gives a claim back. Work submitted from here on comes after what the host did.
    pub fn host_release(&self, region: &Region, claim: HostClaim) {
        // no site: giving back needs no guard; it is the way to the data.
        let mut guard = region.guard.lock(HOST_RELEASE);
        with_state(&mut guard, |state| state.host.retain(|entry| entry.id != claim.0));
    }

    /// Waits on the host until a stamp has settled, holding nothing.
    ///
    /// # Errors
    /// A failed axis, or the driver's.
    pub fn wait(&self, stamp: Stamp) -> Result<(), SubmitError<B>> {
        loop {
            match self.settle(stamp) {
                Settled::Complete => return Ok(()),
                Settled::Failed => return Err(SubmitError::Failed { axis: stamp.axis }),
                Settled::Unsealed => simtile_sync::thread::yield_now(),
                Settled::Pending(event) => self.inner.wait_for_event(event)?,
            }
        }
    }

    /// Hands a region to foreign code: from here on it is out of safe use (`shared`: both sides read only). The stamps
    /// that the foreign code has to follow come back; seals have been asked for.
    ///
    /// # Errors
    /// The host or foreign code holds it already, be it shared: there is one export at a time.
    pub fn export(&self, region: &Region, shared: bool) -> Result<SmallVec<[Stamp; 4]>, SubmitError<B>> {
        let mut guard = region.guard.lock(if site!(GuardExport) { EXCLUSIVE } else { Kind::READ.group() });
        let mode = if shared { Mode::Read } else { Mode::Write };
        let access = Access::whole(region, mode);
        let kind = Kind::new(mode, 0, HOST_DEVICE);
        let mut stamps: SmallVec<[Stamp; 4]> = SmallVec::new();
        with_state(&mut guard, |state| {
            self.inner.plan_held(state, &access, kind, None)?;
            // Two shared exports would be ended by the first return.
            if state.foreign != Foreign::None {
                return Err(SubmitError::Conflict(Conflict {
                    region: region.id(),
                    stream: None,
                    mode,
                    with: Party::Foreign,
                    their_mode: Mode::Read,
                }));
            }
            state.ranges.live(0, region.len(), &self.inner.axes, |entry| {
                if kind.conflicts(entry.kind) {
                    stamps.push(Stamp { axis: entry.axis, epoch: entry.epoch });
                }
            });
            state.foreign = if shared { Foreign::Shared } else { Foreign::Exclusive };
            Ok(())
        })?;
        drop(guard);
        // no site: `ask_seal` has one.
        stamps.iter().for_each(|&stamp| self.inner.ask_seal(stamp));
        self.inner.stats.fire(Rule::Exported);
        Ok(stamps)
    }

    /// Takes an exported region back. `consumer` is the stream of the foreign code's last use: the region is stamped
    /// with all that it holds now, and an event is recorded there. Without one the region stays refused until an
    /// explicit synchronisation of everything.
    ///
    /// # Errors
    /// The stream is closed, failed or capturing, it is per-thread (see [`Tracker::return_export_as`]), or the record
    /// failed; the region is then quarantined likewise.
    pub fn return_export(&self, region: &Region, consumer: Option<&Stream<B>>) -> Result<(), SubmitError<B>> {
        self.return_by(region, consumer, None)
    }

    /// As [`Tracker::return_export`], by the thread with this token: a per-thread stream is used by its own thread alone.
    ///
    /// # Errors
    /// As there, and another thread's per-thread stream.
    pub fn return_export_as(
        &self,
        region: &Region,
        consumer: &Stream<B>,
        thread: u64,
    ) -> Result<(), SubmitError<B>> {
        self.return_by(region, Some(consumer), Some(thread))
    }

    fn return_by(
        &self,
        region: &Region,
        consumer: Option<&Stream<B>>,
        thread: Option<u64>,
    ) -> Result<(), SubmitError<B>> {
        let result = match consumer {
            Some(stream) => self.return_from(region, stream, thread),
            None => {
                self.inner.stats.fire(Rule::ReturnedUnknown);
                Ok(false)
            }
        };
        let known = matches!(result, Ok(true));
        // no site: everybody else is refused while it is exported; it is the way to the data.
        let mut guard = region.guard.lock(EXCLUSIVE);
        with_state(&mut guard, |state| {
            state.foreign = if known {
                Foreign::None
            } else {
                Foreign::Quarantined(self.inner.syncs_begun.load(Ordering::Acquire))
            };
        });
        result.map(|_| ())
    }

    fn return_from(
        &self,
        region: &Region,
        stream: &Stream<B>,
        thread: Option<u64>,
    ) -> Result<bool, SubmitError<B>> {
        let inner = &*self.inner;
        if let StreamKind::PerThread(owner) = stream.kind()
            && thread != Some(owner)
            && site!(RefuseThread)
        {
            inner.stats.fire(Rule::WrongThread);
            return Err(SubmitError::WrongThread);
        }
        loop {
            let later = Later::new(inner);
            // no site: everybody else is refused while it is exported; it is the way to the data.
            let mut taken = Taken { guard: region.guard.lock(EXCLUSIVE), first: 0, end: 1 };
            let Some(mut held) = Held::try_new(inner, &stream.inner, &later) else {
                drop(taken);
                drop(Held::wait(inner, &stream.inner, &later));
                continue;
            };
            let state = held.state();
            if state.handle.is_none() {
                return Err(SubmitError::Closed);
            }
            if state.capture.is_some() {
                return Err(SubmitError::Capturing);
            }
            let shared = with_state(&mut taken.guard, |region| region.foreign == Foreign::Shared);
            let mode = if shared { Mode::Read } else { Mode::Write };
            let access = Access::whole(region, mode);
            state.last_used = state.open;
            let stamp = Stamp { axis: stream.inner.axis, epoch: state.open };
            inner.stamp(&stream.inner, state, &[&access], core::slice::from_mut(&mut taken), 0);
            if site!(SealExportReturn) {
                inner.seal_epoch(&stream.inner, state, stamp.epoch);
            }
            if inner.axes.is_failed(stamp.axis) {
                return Err(SubmitError::Failed { axis: stamp.axis });
            }
            inner.stats.fire(Rule::Returned);
            return Ok(true);
        }
    }

    /// The event to wait for a stamp with, on a stream of foreign code or on the host. `None`: it is complete.
    ///
    /// # Errors
    /// A failed axis.
    pub fn event_of(&self, stamp: Stamp) -> Result<Option<EventRef<B>>, SubmitError<B>> {
        loop {
            match self.settle(stamp) {
                Settled::Complete => return Ok(None),
                Settled::Pending(event) => return Ok(Some(event)),
                Settled::Failed => return Err(SubmitError::Failed { axis: stamp.axis }),
                Settled::Unsealed => simtile_sync::thread::yield_now(),
            }
        }
    }
}

/// The guard group of those who only give back.
const HOST_RELEASE: u32 = 3;

impl<B: Backend> core::fmt::Debug for HostBusy<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Pending(stamps) => f.debug_tuple("Pending").field(stamps).finish(),
            Self::Refused(error) => f.debug_tuple("Refused").field(error).finish(),
        }
    }
}
