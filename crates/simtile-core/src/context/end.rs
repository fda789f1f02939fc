//! The end of a context.
//!
//! A context ends when its last handle goes; buffers, streams, events and modules are such handles. Work of streams
//! that were dropped before may still run, and CUDA would wait for it when the context is destroyed: then the
//! background thread waits instead. A context that was lost, or whose driver is gone, is left as it is.

use super::stats::add;
use super::{Context, Owner};
use crate::reaper;
use crate::stream::in_host_function;
use simtile_driver::sys::{CUcontext, CUevent, CUstream};
use simtile_driver::{Driver, call};

/// What is left of a context after its last handle: enough to end it.
pub(super) struct Remains {
    /// The context without handles. Its own drop has been disarmed.
    context: Context,
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.ended || self.health.check().is_err() {
            return;
        }
        let inside = in_host_function();
        let service: Option<CUstream> = *self.service.lock();
        if let Some(stream) = service
            && !inside
            && self.owner.is_owned()
        {
            // It follows what was queued on streams that are not ours, whose work may still run too.
            let _ = self.keep_tail(stream);
        }
        if !inside && (self.prune_tails() || !self.owner.is_owned()) {
            self.end();
            return;
        }
        // Moves everything out into a context of its own, which the background thread ends.
        let mut remains = Remains { context: self.take() };
        remains.context.ended = true;
        self.ended = true;
        // Without a thread nothing may be destroyed here: what is left stays with the process.
        if let Err(job) = reaper::submit(Box::new(move || remains.wait_and_end())) {
            core::mem::forget(job);
        }
    }
}

impl Remains {
    fn wait_and_end(&mut self) {
        let context = &mut self.context;
        if context.owner.is_owned() {
            let tails: Vec<CUevent> = core::mem::take(&mut *context.tails.lock());
            for event in tails {
                // SAFETY: the event is alive; the context is current. A failure means that the work will never
                // be seen to finish (the context is lost), and then `end` makes no call.
                let _ = context.with_current(|driver| unsafe { call!(driver, cuEventSynchronize(event)) });
                context.give_event(event);
            }
        }
        context.end();
    }
}

impl Context {
    /// Gives back everything that the context holds, then the context. Waits only if work is still running.
    fn end(&mut self) {
        self.ended = true;
        let tails = core::mem::take(&mut *self.tails.lock());
        let events = core::mem::take(&mut *self.events.lock());
        for event in tails.into_iter().chain(events) {
            self.destroy_event(event);
        }
        let service: Option<CUstream> = self.service.lock().take();
        if let Some(stream) = service {
            // SAFETY: the service stream is ours and nothing is queued on it after this.
            let call = |driver: Driver| unsafe { call!(driver, cuStreamDestroy(stream)) };
            if !self.finish(|| "destroying the service stream".into(), call) {
                add(&self.counters.failed_destroys, 1);
            }
        }
        self.end_memory();
        if self.owner.is_owned() && self.health.check().is_ok() {
            self.release();
        }
    }

    /// Gives the CUDA context itself back.
    fn release(&self) {
        let driver = self.driver();
        let mut current = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        let was_current = unsafe { driver.cuCtxGetCurrent(&mut current) }.is_ok() && current == self.raw;
        let released = match self.owner {
            // SAFETY: we retained it once and give that back once.
            Owner::Primary => unsafe { call!(driver, cuDevicePrimaryCtxRelease(self.device.cu_device())) },
            // SAFETY: we created it, and no handle of ours is left.
            _ => unsafe { call!(driver, cuCtxDestroy(self.raw)) },
        };
        if released.is_ok() && was_current {
            // This thread must not go on with a context that may be dead.
            // SAFETY: null means: no context.
            let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
        }
        if let Err(error) = released {
            // Nobody can ask this context any more; what is left to tell is the process-wide count.
            let _ = self.note(error);
            add(&super::CONTEXTS_KEPT, 1);
        }
    }
}
