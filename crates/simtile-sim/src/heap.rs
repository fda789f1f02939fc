//! State and queued work of the memory families of the driver API (`table/memory.rs`, `table/pool.rs`,
//! `table/copy.rs`, `table/memset.rs`, `table/pinned.rs`, `table/pointer.rs`, `table/vmm.rs`,
//! `table/multicast.rs`).
//!
//! Lock order: the pools' table, a pool, the engine's state. Instant work runs under the engine's state and only
//! touches the address space.

mod pools;

use crate::core::Core;
use crate::engine::work::Record;
use crate::memory::{Allocation, Attachment, DeviceView, Fill, MemoryFault, Transfer, Vmm};
use crate::report::{Report, ReportKind};
pub(crate) use pools::Pools;
use simtile_sync::Arc;

/// What the memory families keep beside the address space.
pub(crate) struct Heap {
    /// Reserved addresses and memory handles.
    pub(crate) vmm: Vmm,
    /// Memory pools.
    pub(crate) pools: Pools,
}

impl Heap {
    pub(crate) fn new(simulator: u64) -> Self {
        Self { vmm: Vmm::default(), pools: Pools::new(simulator) }
    }

    /// A context is gone: its work has ended, its memory goes with it. Pools and mappings are the device's.
    pub(crate) fn context_ended(&self, core: &Core, context: u64, _device: i32) {
        for allocation in core.space.all() {
            if allocation.origin.context_uid == context {
                // It may be on its way out in another thread.
                let _ = core.space.unname(allocation.base);
                core.space.end(&allocation);
            }
        }
        self.synchronised(core);
    }

    /// A host thread has waited for something: pools give back what is over their threshold.
    pub(crate) fn synchronised(&self, core: &Core) {
        self.pools.synchronised(core);
    }
}

/// Work of the memory families in a stream.
#[derive(Clone)]
pub(crate) enum MemoryWork {
    /// A copy.
    Transfer(Arc<Transfer>),
    /// A memset.
    Fill(Fill),
    /// From here on work may touch the allocation.
    Begin(Arc<Allocation>),
    /// From here on it may not; then the engine completes the record.
    End(Arc<Allocation>, Arc<Record>),
    /// Managed memory belongs to the host, to one stream or to all from here on.
    Attach(Arc<Allocation>, Attachment),
    /// Only a place in the stream: a prefetch, which changes nothing here.
    Place,
}

impl MemoryWork {
    /// Whether it takes a place in the driver's bounded queues (copies and memsets do, the places of
    /// allocations and frees do not).
    pub(crate) fn counts(&self) -> bool {
        matches!(self, Self::Transfer(_) | Self::Fill(_))
    }

    /// The device that does it, if it is not the one whose stream it is on.
    pub(crate) fn device(&self) -> Option<i32> {
        match self {
            Self::Transfer(transfer) => transfer.device,
            Self::Fill(fill) => fill.device,
            Self::Begin(_) | Self::End(..) | Self::Attach(..) | Self::Place => None,
        }
    }

    /// What it is, for traces.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Transfer(_) => "copy",
            Self::Fill(_) => "memset",
            Self::Begin(_) => "allocation",
            Self::End(..) => "free",
            Self::Attach(..) => "attachment",
            Self::Place => "place",
        }
    }

    /// Whether it is done in no time, so that it may run under the engine's lock.
    pub(crate) fn is_instant(&self) -> bool {
        matches!(self, Self::Begin(_) | Self::End(..) | Self::Attach(..) | Self::Place)
    }

    /// Does the work, on behalf of the view's device. Instant work runs under the engine's lock
    /// (`core.state`) and must not take it.
    ///
    /// # Errors
    /// The refused access; the context is lost then.
    pub(crate) fn run(&self, core: &Core, view: &DeviceView<'_>) -> Result<(), MemoryFault> {
        match self {
            Self::Transfer(transfer) => {
                // SAFETY: the caller of the copy said that its host pointers are valid until the copy has run.
                let unread = unsafe { transfer.run(view)? };
                if let Some(unread) = unread.filter(|_| core.config.checks.uninitialised) {
                    let text = format!(
                        "copy of {} bytes to the host: nothing wrote the byte at {:#x}",
                        transfer.bytes(),
                        unread.address
                    );
                    let mut report = Report::new(ReportKind::UninitialisedRead, text);
                    report.labels.extend(unread.label);
                    core.report(report);
                }
                Ok(())
            }
            Self::Fill(fill) => fill.run(view),
            Self::Begin(allocation) => {
                core.space.begin(allocation);
                Ok(())
            }
            Self::End(allocation, _) => {
                core.space.end(allocation);
                Ok(())
            }
            Self::Attach(allocation, to) => {
                allocation.attach(*to);
                Ok(())
            }
            Self::Place => Ok(()),
        }
    }

    /// It will never run, since its context is lost or ends. Memory whose free was queued goes all the same.
    pub(crate) fn abandon(&self, core: &Core) {
        if let Self::End(allocation, record) = self {
            core.space.end(allocation);
            record.abandon();
        }
    }
}
