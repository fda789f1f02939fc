//! Managed memory on devices without concurrent access (`managed=exclusive`).
//!
//! CUDA's rule there: while a kernel may be running, the devices own all managed memory, whether or not the kernel uses it.
//! The host may touch it again once it has waited for the kernel; that it happens to be over is not enough.
//! `cuStreamAttachMemAsync` narrows that: memory that is attached to one stream only follows the work of that stream, and
//! memory that is attached to the host is the host's, and no device may touch it.
//!
//! What is checked:
//!
//! * the host's accesses that are told ([`Core::host_access`]);
//! * with the race check on, what kernels and copies touch, against the attachment of the memory when they end.
//!
//! The judgement follows what the program has waited for, not what happens to run, so it is the same on every schedule.

use super::state::State;
use super::work::Work;
use crate::check::{Epoch, Touch, TouchMap};
use crate::core::Core;
use crate::memory::{Allocation, Attachment, MemoryKind};
use crate::report::{Report, ReportKind};
use simtile_driver::sys::CUmemAttach_flags;
use simtile_sync::Arc;
use std::collections::BTreeMap;

/// The last kernel on an axis of the order.
pub(crate) struct KernelMark {
    epoch: Epoch,
    /// Uid of its stream.
    stream: u64,
    what: String,
}

/// The last kernels that have started, by axis.
pub(crate) type KernelMarks = BTreeMap<u32, KernelMark>;

/// Who may touch the memory now: the attachment, or what it was allocated with if its stream is gone.
fn attachment(state: &State, allocation: &Allocation) -> Attachment {
    match allocation.attachment() {
        Some(Attachment::Stream(uid)) if state.streams.get(&uid).is_some_and(|stream| !stream.destroyed) => {
            Attachment::Stream(uid)
        }
        Some(other @ (Attachment::Global | Attachment::Host)) => other,
        _ if allocation.origin.flags == CUmemAttach_flags::CU_MEM_ATTACH_HOST.0 => Attachment::Host,
        _ => Attachment::Global,
    }
}

fn buffer(allocation: &Allocation) -> String {
    match allocation.label() {
        Some(label) => format!("'{label}'"),
        None => format!("the buffer of {} bytes at {:#x}", allocation.bytes, allocation.base),
    }
}

impl Core {
    /// A kernel starts.
    pub(super) fn kernel_starts(&self, state: &mut State, epoch: Epoch, stream: u64, work: &Work, seq: u64) {
        if !self.config.concurrent_managed && matches!(work, Work::Launch(_)) {
            let what = format!("{} (#{seq}) on stream {}", work.describe(), state.stream_name(stream));
            state.kernels.insert(epoch.axis.0, KernelMark { epoch, stream, what });
        }
    }

    /// The host touches managed memory: is the memory its own now?
    pub(super) fn check_managed_host(
        &self,
        state: &State,
        allocation: &Allocation,
        (offset, bytes): (u64, u64),
        touch: Touch,
        who: &str,
    ) {
        if self.config.concurrent_managed || allocation.kind != MemoryKind::Managed {
            return;
        }
        let only = match attachment(state, allocation) {
            Attachment::Host => return,
            Attachment::Global => None,
            Attachment::Stream(uid) => Some(uid),
        };
        let queued = state.streams.iter().filter(|(uid, _)| only.is_none_or(|only| only == **uid)).find_map(
            |(&uid, s)| {
                // Memory of one stream follows all of its work.
                let item = s
                    .items
                    .iter()
                    .find(|item| only.is_some() || matches!(item.work, Work::Launch(_) | Work::Branch(..)))?;
                Some(format!("{} (#{}) on stream {}", item.work.describe(), item.seq, state.stream_name(uid)))
            },
        );
        let host = state.order.host();
        let unknown = || {
            let marks = state.kernels.values().filter(|mark| only.is_none_or(|only| only == mark.stream));
            marks.filter(|mark| !host.follows(mark.epoch)).map(|mark| mark.what.clone()).next()
        };
        let Some(busy) = queued.or_else(unknown) else { return };
        let does = if touch == Touch::Read { "reads" } else { "writes" };
        let text = format!(
            "managed memory: {who} {does} bytes {offset} to {} of {} before it has waited for {busy}; the devices have no \
             concurrent managed access and own the memory until then",
            offset + bytes - 1,
            buffer(allocation),
        );
        let mut report = Report::new(ReportKind::ManagedAccess, text);
        report.labels.extend(allocation.label());
        self.report(report);
    }

    /// Work of a stream has touched memory: did its attachment allow that?
    pub(super) fn check_managed_work(
        &self,
        state: &State,
        stream: u64,
        work: &Work,
        seq: u64,
        touched: &[Arc<TouchMap>],
    ) {
        if self.config.concurrent_managed {
            return;
        }
        for allocation in touched.iter().map(|map| map.allocation()).filter(|a| a.kind == MemoryKind::Managed)
        {
            let attached = match attachment(state, allocation) {
                Attachment::Host => "to the host".to_owned(),
                Attachment::Stream(uid) if uid != stream => format!("to stream {}", state.stream_name(uid)),
                _ => continue,
            };
            let name = state.stream_name(stream);
            let text = format!(
                "managed memory: {} (#{seq}) on stream {name} touches {}, which is attached {attached}",
                work.describe(),
                buffer(allocation)
            );
            let mut report = Report::new(ReportKind::ManagedAccess, text).on_stream(Some(name));
            report.labels.extend(allocation.label());
            self.report(report);
        }
    }
}
