//! The end of a context.
//!
//! A context ends when its last handle goes; buffers, streams, events and modules are such handles, also those that wait
//! in the background. Work of streams that were dropped before may still run, and CUDA would wait for it
//! when the context is destroyed: then the background waits instead. A context that was lost, or whose driver is
//! gone, is left as it is.

use super::lanes::{Lane, Work, drop_user_value};
use super::shared::Shared;
use super::stats::add;
use super::{Context, Owner};
use crate::stream::{Ended, drops_go_elsewhere};
use simtile_driver::sys::CUcontext;
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::Settled;
use simtile_sync::Arc;

/// What is left of a context after its last handle. Dropping it ends the context.
pub(crate) struct Remains {
    owner: Owner,
    shared: Arc<Shared>,
    /// Whether no other handle of this CUDA context is left.
    last: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        let owner = core::mem::replace(&mut self.owner, Owner::Borrowed(None));
        if crate::sys::is_forked() {
            core::mem::forget(owner);
            return;
        }
        let last = self.shared.leave();
        if let Err(error) = self.shared.link.health.check() {
            if last {
                self.shared.names.all().iter().for_each(|(_, name)| name.end(Ended::Failed(error.clone())));
            }
            drop_user_value(owner);
            return;
        }
        let remains = Remains { owner, shared: self.shared.clone(), last };
        if !drops_go_elsewhere() && remains.ready_here() {
            // Who lent the context is a user's value, whose destructor may panic.
            drop_user_value(remains);
        } else {
            self.shared.lanes.push(Lane::Memory, Work::End(remains));
        }
    }
}

impl Remains {
    /// Whether nothing that can be known to end is left of its work.
    pub(super) fn ready(&self) -> bool {
        self.may_end(true)
    }

    /// Whether ending would wait for nothing, so that any thread may do it.
    fn ready_here(&self) -> bool {
        // Freeing blocks waits for all work of the context, that of others too. Without an owner nobody says that it is alive later.
        let others = matches!(self.owner, Owner::Borrowed(Some(_)) | Owner::Primary | Owner::Green(_));
        !(others && self.last && self.shared.keeps_blocks()) && self.may_end(false)
    }

    fn may_end(&self, failed: bool) -> bool {
        // Who asks about work without a handle has to be through with it.
        self.has_ended(failed) && (!self.last || self.shared.close())
    }

    /// `failed`: what to say of work whose end can never be known.
    fn has_ended(&self, failed: bool) -> bool {
        let shared = &*self.shared;
        if shared.link.health.check().is_err() {
            return true;
        }
        match self.owner {
            Owner::Borrowed(_) => true,
            // Others retain the context too: it goes on.
            Owner::Primary if !self.last => true,
            _ => shared.link.prune_tails() && shared.is_quiet(failed),
        }
    }
}

impl Context {
    /// Runs the call that ends an object of this context, now or, inside a host function, in the background.
    pub(crate) fn end_object(
        self: &Arc<Self>,
        during: impl FnOnce() -> String + Send + 'static,
        call: impl FnOnce(Driver) -> Result<(), DriverError> + Send + 'static,
    ) {
        self.end_objects(1, during, call);
    }

    /// As [`Context::end_object`], for an object that others are a part of: so many in all.
    pub(crate) fn end_objects(
        self: &Arc<Self>,
        objects: u64,
        during: impl FnOnce() -> String + Send + 'static,
        call: impl FnOnce(Driver) -> Result<(), DriverError> + Send + 'static,
    ) {
        if !drops_go_elsewhere() {
            return self.link().destroy_all(objects, during, call);
        }
        let context = self.clone();
        let job = move || context.link().destroy_all(objects, during, call);
        self.shared.lanes.push(Lane::Memory, Work::Job(Box::new(job)));
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let shared = &*self.shared;
        if self.last {
            // What is asked from here on is answered by the names.
            let health = shared.link.health.check();
            let quiet =
                !matches!(self.owner, Owner::Borrowed(_)) || (health.is_ok() && shared.is_quiet(true));
            for (axis, name) in shared.names.all() {
                name.end(match &health {
                    Err(error) => Ended::Failed(error.clone()),
                    Ok(()) if quiet && !shared.tracker.has_failed(axis) => Ended::Finished,
                    Ok(()) => Ended::Unknown,
                });
            }
            shared.link.health.set_over();
            shared.end_memory(!matches!(self.owner, Owner::Created));
            shared.link.end_events();
        }
        if self.owner.is_owned() && shared.link.health.check().is_ok() {
            self.release();
        }
    }
}

impl Remains {
    /// Gives the CUDA context itself back.
    fn release(&self) {
        let link = &*self.shared.link;
        let driver = link.driver();
        let mut current = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        let was_current = unsafe { driver.cuCtxGetCurrent(&mut current) }.is_ok() && current == link.raw;
        let released = match self.owner {
            // SAFETY: we retained it once and give that back once.
            Owner::Primary => unsafe { call!(driver, cuDevicePrimaryCtxRelease(link.device.cu_device())) },
            // SAFETY: we created it, and its streams, which hold this handle, are gone.
            Owner::Green(ref green) => unsafe { call!(driver, cuGreenCtxDestroy(green.raw)) },
            // SAFETY: we created it, and no handle of ours is left.
            _ => unsafe { call!(driver, cuCtxDestroy(link.raw)) },
        };
        if released.is_ok() && !self.goes_on() {
            // Its pinned memory went with it.
            self.shared.forget_left();
        }
        if released.is_ok() && was_current && !self.goes_on() {
            // This thread must not go on with a context that is dead.
            // SAFETY: null means: no context.
            let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
        }
        if let Err(error) = released {
            // Nobody can ask this context any more; what is left to tell is the process-wide count.
            let _ = link.note(error);
            add(&super::CONTEXTS_KEPT, 1);
        }
    }
}

impl Remains {
    /// Whether somebody else retains the context that was just given back: it stays as current as it was.
    fn goes_on(&self) -> bool {
        match self.owner {
            Owner::Primary => {}
            // Its primary context does, which it holds.
            Owner::Green(_) => return true,
            _ => return false,
        }
        let link = &*self.shared.link;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the out-pointers are valid for the call.
        let asked = unsafe {
            link.driver().cuDevicePrimaryCtxGetState(link.device.cu_device(), &mut flags, &mut active)
        };
        asked.is_ok() && active != 0
    }
}

impl Shared {
    /// Whether all tracked work has finished; `failed` is the answer for work that can never be known to. Never waits.
    fn is_quiet(&self, failed: bool) -> bool {
        self.tracker.tails().into_iter().all(|stamp| match self.tracker.settle(stamp) {
            Settled::Complete => true,
            Settled::Failed => failed,
            Settled::Unsealed => false,
            Settled::Pending(event) => self.tracker.query(&event).unwrap_or(true),
        }) && (failed || !self.tracker.has_failed_axes())
    }
}
