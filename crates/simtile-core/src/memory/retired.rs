//! What is given back when its last use has finished: device memory, modules.

use super::allocation::{Keep, Kind};
use super::foreign::Lent;
use super::pool::Parked;
use crate::Context;
use crate::context::{Lane, Link, Tracker, Work, add, sub};
use crate::error::CallError;
use crate::label::Label;
use simtile_driver::sys::{CUdeviceptr, CUmodule, CUresult, CUstream};
use simtile_driver::{Driver, DriverError, Entry, call};
use simtile_hazard::Quarantine;
use simtile_sync::Arc;

/// Something without an owner. It holds its context until it is given back.
pub(crate) struct Memory {
    context: Arc<Context>,
    what: What,
    /// Whether its bytes are counted as waiting.
    waiting: bool,
}

/// What an allocation held beside its bytes.
#[derive(Default)]
struct Held {
    keep: Option<Keep>,
    /// Owners of imports that joined it.
    also: Vec<Lent>,
}

impl Held {
    fn is_work(&self) -> bool {
        !self.also.is_empty() || matches!(self.keep, Some(Keep::Foreign(_) | Keep::Mapped(_)))
    }
}

/// What is left of memory that was given back. Dropping it runs the owner's destructor, which may be a user's, ends the
/// mappings, and may end the pool or the context.
pub(crate) struct Left {
    held: Held,
    context: Arc<Context>,
}

impl Left {
    /// Whether dropping it is work of its lane.
    pub(crate) fn is_work(&self) -> bool {
        self.held.is_work()
    }

    /// Drops it where locks are held: what would end with it ends in the background.
    fn drop_under_locks(self) {
        let Self { held, context } = self;
        let lanes = context.shared().lanes.clone();
        let pool = match held.keep {
            Some(Keep::Pool(share)) => share.release(),
            _ => None,
        };
        let context = Arc::into_inner(context);
        if pool.is_some() || context.is_some() {
            lanes.push(Lane::Memory, Work::Job(Box::new(move || drop((pool, context)))));
        }
    }
}

enum What {
    /// An allocation.
    Device { id: u64, address: CUdeviceptr, bytes: usize, kind: Kind, label: Label, held: Held },
    /// A loaded module.
    Module { raw: CUmodule, name: String },
}

impl Memory {
    pub(crate) fn device(
        context: Arc<Context>,
        id: u64,
        address: CUdeviceptr,
        bytes: usize,
        kind: Kind,
        label: Label,
    ) -> Self {
        Self {
            context,
            what: What::Device { id, address, bytes, kind, label, held: Held::default() },
            waiting: false,
        }
    }

    /// With what the allocation held.
    pub(super) fn keeping(mut self, keep: Option<Keep>, also: Vec<Lent>) -> Self {
        if let What::Device { held, .. } = &mut self.what {
            *held = Held { keep, also };
        }
        self
    }

    pub(crate) fn module(context: Arc<Context>, raw: CUmodule, name: String) -> Self {
        Self { context, what: What::Module { raw, name }, waiting: false }
    }

    pub(crate) fn tracker(&self) -> &Tracker {
        self.context.tracker()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn lane(&self) -> Lane {
        match &self.what {
            What::Device { kind: Kind::Foreign, .. } => Lane::Foreign,
            What::Device { held, .. } if !held.also.is_empty() => Lane::Foreign,
            What::Device { kind: Kind::Mapped, .. } => Lane::Mapped,
            What::Device { .. } => Lane::Memory,
            What::Module { .. } => Lane::Module,
        }
    }

    fn bytes(&self) -> usize {
        match self.what {
            What::Device { bytes, .. } => bytes,
            What::Module { .. } => 0,
        }
    }

    fn name(&self) -> String {
        match &self.what {
            What::Device { id, label, .. } => label.describe("buffer", *id),
            What::Module { name, .. } => name.clone(),
        }
    }

    /// Whether giving it back makes no driver call.
    pub(crate) fn is_parked_when_free(&self) -> bool {
        matches!(self.what, What::Device { kind: Kind::Plain | Kind::Pinned | Kind::Managed, .. })
    }

    /// From here on it waits in the background.
    pub(crate) fn waits(&mut self) {
        if !core::mem::replace(&mut self.waiting, true) {
            add(&self.context.counters().reclaiming_bytes, self.bytes() as u64);
        }
    }

    fn waits_no_more(&mut self) {
        if core::mem::replace(&mut self.waiting, false) {
            sub(&self.context.counters().reclaiming_bytes, self.bytes() as u64);
        }
    }

    /// Frees it in the order of a stream of ours. It comes back if that is not possible.
    #[allow(clippy::result_large_err, reason = "it comes back to be kept")]
    pub(crate) fn free_on(mut self, link: &Link, stream: CUstream) -> Result<(), Self> {
        let What::Device { address, kind: Kind::Pooled, ref held, .. } = self.what else { return Err(self) };
        if !held.also.is_empty() {
            // Those owners go when the last use has finished, not when that is queued.
            return Err(self);
        }
        // SAFETY: the allocation came from a pool and its owner is gone; all its uses are queued before.
        let freed = link.relaxed_handles(|driver| unsafe { call!(driver, cuMemFreeAsync(address, stream)) });
        match freed {
            Err(CallError::InHostFunction) => return Err(self),
            Err(error) => self.failed(error),
            Ok(()) => {}
        }
        self.waits_no_more();
        self.left().drop_under_locks();
        Ok(())
    }

    /// What is left of it: to be dropped with nothing held.
    fn left(self) -> Left {
        let held = match self.what {
            What::Device { held, .. } => held,
            What::Module { .. } => Held::default(),
        };
        Left { held, context: self.context }
    }

    /// Gives it back: all its uses have finished.
    pub(crate) fn give_back(mut self) -> Left {
        self.waits_no_more();
        let given = match &self.what {
            What::Device { address, kind: Kind::Pooled, .. } => {
                let address = *address;
                self.context.reclaim_stream().and_then(|stream| {
                    // SAFETY: the allocation came from a pool, its owner is gone and its uses have finished.
                    let call = |driver: Driver| unsafe { call!(driver, cuMemFreeAsync(address, stream)) };
                    self.context.link().relaxed_handles(call)
                })
            }
            What::Device { address, bytes, kind: Kind::Pinned, .. } => {
                self.context.shared().keep_pinned(*address as usize, *bytes);
                Ok(())
            }
            What::Device { address, bytes, kind: Kind::Managed, .. } => {
                self.context.shared().keep_managed(*address, *bytes);
                Ok(())
            }
            // What is left does it.
            What::Device { kind: Kind::Foreign | Kind::Mapped | Kind::Globals, .. } => Ok(()),
            What::Device { address, bytes, .. } => {
                self.context.park(Parked { address: *address, bytes: *bytes });
                Ok(())
            }
            What::Module { raw, .. } => {
                let raw = *raw;
                // SAFETY: we loaded the module, no handle of it is left, and its launches have finished.
                self.context.link().relaxed(|driver: Driver| unsafe { call!(driver, cuModuleUnload(raw)) })
            }
        };
        match given {
            Ok(()) if matches!(self.what, What::Module { .. }) => {
                sub(&self.context.counters().retained_modules, 1);
            }
            Ok(()) => {}
            Err(error) => self.failed(error),
        }
        self.left()
    }

    /// From here on it counts as lost, not as what it was.
    fn off_the_books(&self) {
        let counters = self.context.counters();
        let What::Device { kind, bytes, .. } = &self.what else { return };
        match kind {
            Kind::Pinned => sub(&counters.pinned_bytes, *bytes as u64),
            Kind::Managed => sub(&counters.managed_bytes, *bytes as u64),
            Kind::Mapped => sub(&counters.mapped_bytes, *bytes as u64),
            Kind::Pooled | Kind::Plain | Kind::Foreign | Kind::Globals => {}
        }
    }

    /// Keeps it for ever: a stream that used it failed.
    pub(crate) fn give_up(self) -> Left {
        self.keep(Quarantine::FailedAxis)
    }

    /// Keeps it for ever, counted and told once.
    pub(crate) fn keep(mut self, why: Quarantine) -> Left {
        self.waits_no_more();
        self.forget_owner();
        if let Err(error) = self.context.link().usable()
            && !matches!(error, CallError::InHostFunction)
        {
            self.failed(error);
            return self.left();
        }
        let counters = self.context.counters();
        if let What::Device { bytes, .. } = self.what {
            self.off_the_books();
            add(&counters.quarantined, 1);
            add(&counters.quarantined_bytes, bytes as u64);
        }
        let reason = match why {
            Quarantine::FailedAxis => "a stream that used it failed",
            Quarantine::HostClaim => "a guard on the host was forgotten",
            Quarantine::Foreign => "it was exported and its last use is unknown",
        };
        let error = DriverError::new(Entry::cuMemFreeAsync, CUresult::CUDA_ERROR_NOT_PERMITTED);
        counters.push_error(format!("{} is kept for ever: {reason}", self.name()), error);
        self.left()
    }

    /// What is kept for ever keeps its owner, or its mappings: they are what the memory lives by.
    fn forget_owner(&mut self) {
        if let What::Device { held, bytes, .. } = &mut self.what
            && held.is_work()
        {
            let held = core::mem::take(held);
            let foreign = held.also.len() + usize::from(matches!(held.keep, Some(Keep::Foreign(_))));
            sub(&self.context.counters().foreign_allocations, foreign as u64);
            core::mem::forget(held.also);
            match held.keep {
                Some(Keep::Mapped(mapped)) => *bytes = mapped.leave_all(),
                keep => core::mem::forget(keep),
            }
        }
    }

    /// A failed free: counted always, kept as an error where nobody has been told yet.
    fn failed(&self, error: CallError) {
        let counters = self.context.counters();
        let leak = || {
            add(&counters.failed_frees, 1);
            add(&counters.leaked_bytes, self.bytes() as u64);
            self.off_the_books();
        };
        let is_device = matches!(self.what, What::Device { .. });
        match error {
            // The driver took everything with it: nothing is lost that anyone could use.
            CallError::Deinitialized | CallError::Forked => {}
            CallError::Driver(error) => {
                leak();
                counters.push_error(format!("drop of {}", self.name()), error);
            }
            CallError::Lost { loss, first } => {
                if is_device {
                    leak();
                }
                if first {
                    counters.push_error(format!("drop of {}", self.name()), loss.error());
                }
            }
            CallError::InHostFunction | CallError::HostHolds => {
                leak();
                let error = DriverError::new(Entry::cuMemFreeAsync, CUresult::CUDA_ERROR_NOT_PERMITTED);
                counters.push_error(format!("drop of {} inside a host function", self.name()), error);
            }
        }
    }
}
