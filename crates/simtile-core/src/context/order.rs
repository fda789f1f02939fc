//! Events and the service stream: how one stream is made to follow another.
//!
//! Pooled events have no timing and are used for one record and what follows from it at once; a wait that
//! was queued keeps the record it saw, so the event may be recorded again right after.
//!
//! The *service stream* is an owned stream of the context that does nothing but follow others. Work on a stream that
//! is not ours (borrowed, or a default stream) is followed at once, so that later uses and frees never touch the
//! borrowed handle again.

use super::Context;
use super::stats::add;
use crate::Stream;
use crate::error::CallError;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::Arc;
use std::sync::Weak;

/// Most events that wait in the pool; more are destroyed.
const POOLED_EVENTS: usize = 64;

impl Context {
    /// Runs `use_event` with an event from the pool and gives the event back.
    pub(crate) fn with_event<T>(
        &self,
        use_event: impl FnOnce(Driver, CUevent) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        let event = self.take_event()?;
        let result = self.with_current(|driver| use_event(driver, event));
        self.give_event(event);
        result
    }

    /// An untimed event, new or used.
    pub(crate) fn take_event(&self) -> Result<CUevent, CallError> {
        self.usable()?;
        if let Some(event) = self.events.lock().pop() {
            return Ok(event);
        }
        self.with_current(|driver| {
            let mut event = CUevent::NULL;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)) }?;
            Ok(event)
        })
    }

    /// Takes an event back. Nobody may look at it again.
    pub(crate) fn give_event(&self, event: CUevent) {
        let mut events = self.events.lock();
        if events.len() < POOLED_EVENTS {
            events.push(event);
            return;
        }
        drop(events);
        self.destroy_event(event);
    }

    pub(crate) fn destroy_event(&self, event: CUevent) {
        // SAFETY: the event is ours and nobody refers to it; pending work does not matter to CUDA.
        let call = |driver: Driver| unsafe { call!(driver, cuEventDestroy(event)) };
        if !self.finish(|| "destroying an event".into(), call) && self.usable().is_ok() {
            add(&self.counters.failed_destroys, 1);
        }
    }

    /// Makes everything queued on `follower` from now on wait for everything queued on `leader` so far.
    pub(crate) fn follow(&self, leader: CUstream, follower: CUstream) -> Result<(), CallError> {
        self.with_event(|driver, event| {
            // SAFETY: both streams and the event are alive and of this driver; the context is current.
            unsafe {
                call!(driver, cuEventRecord(event, leader))?;
                call!(driver, cuStreamWaitEvent(follower, event, 0))
            }
        })
    }

    /// The service stream, made at first use.
    pub(crate) fn service_stream(&self) -> Result<CUstream, CallError> {
        let mut service = self.service.lock();
        if let Some(stream) = *service {
            return Ok(stream);
        }
        let stream = self.with_current(|driver| {
            let mut stream = CUstream::NULL;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)) }?;
            Ok(stream)
        })?;
        *service = Some(stream);
        Ok(stream)
    }

    /// Remembers a stream of ours, so that [`Context::follow_all`] finds it.
    pub(crate) fn remember(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Makes `follower` wait for everything that was queued through this handle on any stream: our own, dropped ones
    /// whose work still runs, and (through the service stream) those that are not ours.
    pub(crate) fn follow_all(&self, follower: &Stream) -> Result<(), CallError> {
        let streams: Vec<Arc<Stream>> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
        for leader in streams.iter().filter(|leader| leader.id() != follower.id()) {
            self.follow(leader.cu_stream(), follower.cu_stream())?;
        }
        let service = *self.service.lock();
        if let Some(service) = service {
            self.follow(service, follower.cu_stream())?;
        }
        // Under the lock, so that no tail is given back meanwhile.
        let tails = self.tails.lock();
        self.with_current(|driver| {
            tails.iter().try_for_each(|&tail| {
                // SAFETY: stream and event are alive; the context is current.
                unsafe { call!(driver, cuStreamWaitEvent(follower.cu_stream(), tail, 0)) }
            })
        })
    }

    /// Makes the service stream wait for what was queued on a stream that is not ours.
    pub(crate) fn follow_with_service(&self, stream: CUstream) -> Result<(), CallError> {
        self.follow(stream, self.service_stream()?)
    }

    /// Waits on the host until everything queued on `stream` so far has finished.
    pub(crate) fn wait_for(&self, stream: CUstream) -> Result<(), CallError> {
        self.with_event(|driver, event| {
            // SAFETY: stream and event are alive; the context is current.
            unsafe {
                call!(driver, cuEventRecord(event, stream))?;
                call!(driver, cuEventSynchronize(event))
            }
        })
    }

    /// Whether everything queued on `stream` so far has finished.
    pub(crate) fn has_finished(&self, stream: CUstream) -> Result<bool, CallError> {
        self.with_event(|driver, event| {
            // SAFETY: stream and event are alive; the context is current.
            unsafe {
                call!(driver, cuEventRecord(event, stream))?;
                query(driver, event)
            }
        })
    }

    /// Keeps the end of a stream that is about to be destroyed, until its work has finished: the context may not
    /// end before. Ends that have been reached are forgotten.
    pub(crate) fn keep_tail(&self, stream: CUstream) -> Result<(), CallError> {
        let event = self.take_event()?;
        let recorded = self.with_current(|driver| {
            // SAFETY: stream and event are alive; the context is current.
            unsafe { call!(driver, cuEventRecord(event, stream)) }
        });
        if let Err(error) = recorded {
            self.give_event(event);
            return Err(error);
        }
        self.tails.lock().push(event);
        self.prune_tails();
        Ok(())
    }

    /// Forgets the ends that have been reached. Returns whether none is left; an end that cannot be asked stays.
    pub(crate) fn prune_tails(&self) -> bool {
        let tails = core::mem::take(&mut *self.tails.lock());
        let mut left = Vec::new();
        for event in tails {
            // SAFETY: the event is alive; the context is current.
            match self.with_current(|driver| unsafe { query(driver, event) }) {
                Ok(true) => self.give_event(event),
                _ => left.push(event),
            }
        }
        let none = left.is_empty();
        self.tails.lock().extend(left);
        none
    }
}

/// Whether an event has happened.
///
/// # Safety
/// The event is alive and its context current.
pub(crate) unsafe fn query(driver: Driver, event: CUevent) -> Result<bool, DriverError> {
    // SAFETY: the caller's.
    match unsafe { call!(driver, cuEventQuery(event)) } {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}
