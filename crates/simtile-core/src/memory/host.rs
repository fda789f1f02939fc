//! The host's side of memory that both sides reach: claims, and the guards made of them.
//!
//! The host is an axis like a stream: it reads and writes through guards, which wait for conflicting work, and conflicting
//! submissions are refused while a guard lives. A guard that is forgotten refuses for ever, and nothing races.

use super::Allocation;
use super::part::{Part, distinct};
use crate::context::SubmitError;
use crate::error::{Family, MemoryError, On, OnStream, StreamError};
use core::fmt;
use core::ops::{Deref, DerefMut};
use simtile_hazard::{Access, Busy, HostBusy, HostClaim, Mode};
use simtile_types::DeviceCopy;

/// The values of a buffer in host memory, to be read. No work that writes them runs meanwhile.
pub struct PinnedRead<'a, T: DeviceCopy> {
    values: &'a [T],
    claim: Claim<'a>,
}

/// The values of a buffer in host memory, to be written. No work that uses them runs meanwhile.
pub struct PinnedWrite<'a, T: DeviceCopy> {
    values: &'a mut [T],
    claim: Claim<'a>,
}

/// Given back when the guard ends; a forgotten guard keeps it.
pub(super) struct Claim<'a> {
    allocation: &'a Allocation,
    claim: Option<HostClaim>,
    /// Whether all device work of the context is held off, too.
    all: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let (Some(claim), Some(region)) = (self.claim.take(), self.allocation.region()) {
            self.allocation.context().tracker().host_release(region, claim);
        }
        if self.all {
            self.allocation.context().link().host_lets_go();
        }
    }
}

impl Allocation {
    /// Claims all bytes for the host; if `patient`, waits for conflicting work.
    pub(super) fn claim(&self, mode: Mode, patient: bool) -> Result<Claim<'_>, MemoryError> {
        let mut claimed = Claim { allocation: self, claim: None, all: false };
        let Some(region) = self.region() else { return Ok(claimed) };
        let context = self.context();
        context.usable().on::<MemoryError>(|| self.name())?;
        if self.needs_all() {
            self.claim_all(patient, &mut claimed)?;
        }
        let access = Access::whole(region, mode);
        let claim = if patient {
            context.tracker().host(&access)
        } else {
            loop {
                match context.tracker().try_host(&access) {
                    Ok(claim) => break Ok(claim),
                    // Somebody is between two steps of a submission.
                    Err(HostBusy::Refused(SubmitError::Busy(Busy::Region))) => {
                        simtile_sync::thread::yield_now()
                    }
                    Err(HostBusy::Refused(error)) => break Err(error),
                    Err(HostBusy::Pending(stamps)) => {
                        // It may have finished without anybody having looked.
                        let Some(busy) = stamps.iter().copied().find(|&stamp| !context.has_settled(stamp))
                        else {
                            continue;
                        };
                        let user = context.shared().names.of(busy.axis);
                        let what = format!("{user} uses {}", self.name());
                        let error = StreamError::Conflict { stream: "the host".into(), what, host: false };
                        return Err(MemoryError::Stream(error));
                    }
                }
            }
        };
        claimed.claim = Some(claim.map_err(|error| self.host_refused(error))?);
        Ok(claimed)
    }

    /// Where the host must not touch managed memory while any work runs: holds all work of the context off.
    fn claim_all(&self, patient: bool, claimed: &mut Claim<'_>) -> Result<(), MemoryError> {
        let context = self.context();
        // From here on enqueuing is refused; what was enqueued before is waited for.
        context.link().host_takes_all();
        claimed.all = true;
        if !patient {
            let busy = context.tracker().tails().into_iter().find(|&stamp| !context.has_settled(stamp));
            if let Some(busy) = busy {
                let what = format!(
                    "{} is at work, and this platform lets one side at a time have managed memory",
                    context.shared().names.of(busy.axis)
                );
                return Err(MemoryError::Stream(StreamError::Conflict {
                    stream: "the host".into(),
                    what,
                    host: false,
                }));
            }
        }
        context.synchronize_all().map_err(|error| match error {
            crate::ContextError::Driver { on, source } => MemoryError::Driver { on, source },
            crate::ContextError::ContextLost { on, source, by } => {
                MemoryError::ContextLost { on, source, by }
            }
            other => MemoryError::Unsupported { what: self.name(), why: other.to_string() },
        })
    }

    /// What a refusal of the tracker means to the host.
    pub(super) fn host_refused(&self, error: SubmitError) -> MemoryError {
        let context = self.context();
        match error {
            SubmitError::Driver { error, .. } => MemoryError::from_call(error, self.name()),
            SubmitError::Conflict(conflict) => {
                let name = self.name();
                let what = match conflict.host() {
                    true => format!("a guard of {name} was forgotten"),
                    false => format!("foreign code has {name}"),
                };
                let error = StreamError::Conflict { stream: "the host".into(), what, host: conflict.host() };
                MemoryError::Stream(error)
            }
            SubmitError::Failed { axis } => {
                if let Err(error) = context.usable() {
                    return MemoryError::from_call(error, self.name());
                }
                let leader = context.shared().names.of(axis);
                MemoryError::from_stream(StreamError::Failed { stream: "the host".into(), leader })
            }
            other => {
                let (stream, what) = ("the host".into(), other.to_string());
                MemoryError::from_stream(StreamError::Refused { stream, what })
            }
        }
    }
}

impl<T: DeviceCopy> Part<'_, T> {
    /// The first value, in memory that the host reaches.
    pub(super) fn host_pointer(&self) -> *mut T {
        match self.num_bytes() {
            0 => core::ptr::NonNull::dangling().as_ptr(),
            // Pinned and managed memory have one address on both sides.
            _ => core::ptr::with_exposed_provenance_mut(self.address() as usize),
        }
    }

    /// # Safety
    /// The host reaches the elements, which are initialised, and no work writes them.
    unsafe fn check_values(&self) -> Result<(), MemoryError> {
        for index in 0..distinct::<T>(self.len) {
            // SAFETY: the element is initialised and nobody writes it (the caller's).
            if !unsafe { T::is_valid(self.host_pointer().add(index)) } {
                let (buffer, type_name) = (self.allocation.name(), core::any::type_name::<T>());
                return Err(MemoryError::InvalidElement { buffer, index, type_name });
            }
        }
        Ok(())
    }
}

impl<'a, T: DeviceCopy> PinnedRead<'a, T> {
    /// Claims and gives the values.
    ///
    /// # Safety
    /// The host reaches the elements, which are initialised.
    pub(super) unsafe fn new(part: Part<'a, T>, patient: bool) -> Result<Self, MemoryError> {
        let claim = part.allocation.claim(Mode::Read, patient)?;
        // SAFETY: no work writes the elements while the claim is held; the rest is the caller's.
        unsafe { part.check_values() }?;
        // SAFETY: as above, and the values are valid.
        let values = unsafe { core::slice::from_raw_parts(part.host_pointer(), part.len) };
        Ok(Self { values, claim })
    }
}

impl<'a, T: DeviceCopy> PinnedWrite<'a, T> {
    /// Claims and gives the values.
    ///
    /// # Safety
    /// As [`PinnedRead::new`], and the buffer is borrowed exclusively.
    pub(super) unsafe fn new(part: Part<'a, T>, patient: bool) -> Result<Self, MemoryError> {
        let claim = part.allocation.claim(Mode::Write, patient)?;
        // SAFETY: no work uses the elements while the claim is held; the rest is the caller's.
        unsafe { part.check_values() }?;
        // SAFETY: as above, and the values are valid.
        let values = unsafe { core::slice::from_raw_parts_mut(part.host_pointer(), part.len) };
        Ok(Self { values, claim })
    }
}

impl<T: DeviceCopy> Deref for PinnedRead<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T: DeviceCopy> Deref for PinnedWrite<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T: DeviceCopy> DerefMut for PinnedWrite<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.values
    }
}

impl<T: DeviceCopy> fmt::Debug for PinnedRead<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedRead({})", self.claim.allocation.name())
    }
}

impl<T: DeviceCopy> fmt::Debug for PinnedWrite<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedWrite({})", self.claim.allocation.name())
    }
}
