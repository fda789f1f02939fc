//! Step 3: whether the stream takes the work now; and what has to be sealed before work that may wait for the outside.

use super::{Options, Outside, Stop};
use crate::axis::{AxisSlot, FAILED};
use crate::backend::Backend;
use crate::error::{Step, SubmitError};
use crate::ids::Stamp;
use crate::mutate::site;
use crate::stats::Rule;
use crate::stream::{StreamInner, StreamKind, StreamState};
use crate::tracker::Inner;

impl<B: Backend> Inner<B> {
    /// Whether the stream takes this work now. Takes the permit's lease, not the permit.
    #[inline]
    pub(super) fn admit(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
    ) -> Result<(), Stop<B>> {
        let slot = self.takes_work(stream, state, options)?;
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

    /// Whether the stream takes anything now, room aside.
    #[inline]
    pub(super) fn takes_work(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
        options: &Options,
    ) -> Result<&AxisSlot<B>, Stop<B>> {
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
        Ok(slot)
    }

    #[cold]
    fn admit_tainted(
        &self,
        stream: &StreamInner<B>,
        state: &StreamState<B>,
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
    pub(super) fn seal_before_outside(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        options: &Options,
    ) -> Result<(), Stop<B>> {
        if options.outside == Outside::Never {
            return Ok(());
        }
        if site!(SealBeforeOutside) {
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
}
