//! Page-locked memory under queued kernels: does the host write to it meanwhile?
//!
//! As in `host_watch`, bytes that are not what they were tell of a store that cannot be seen. Which bytes matter is known
//! only when the kernel has ended: those that it touched. So a copy of the page-locked memory that its parameters point into is
//! kept from the submission on. Bytes that changed before the kernel started and that it touched, and bytes that changed while
//! it ran and that it only read, are reported.
//!
//! What explains a change, so that the copy is taken anew: other work of the device wrote there; a host function ran, a
//! wait-value was passed, or another kernel touched host memory. And a kernel that itself accesses host memory atomically (or
//! `volatile`) may have agreed on something with its host: it is not judged. While other work runs, changes may be
//! its, and count as explained.
//!
//! What is not found: a write of the same bytes, one to memory that the kernel reaches by no parameter, one beyond the first
//! [`MOST`] bytes, and every *read* of the host.

use super::state::State;
use super::work::Work;
use crate::check::{Touch, TouchMap};
use crate::core::Core;
use crate::memory::{Allocation, MemoryKind, View};
use crate::report::{Report, ReportKind};
use simtile_sync::Arc;
use std::collections::BTreeMap;

/// Most bytes of one launch that are watched.
const MOST: u64 = 1 << 20;

/// Watched launches by their submission number.
pub(crate) type KernelWatches = BTreeMap<u64, KernelWatch>;

/// Page-locked memory that a queued kernel may touch.
pub(crate) struct KernelWatch {
    parts: Vec<Part>,
}

struct Part {
    allocation: Arc<Allocation>,
    bytes: Vec<u8>,
    /// Offsets that changed before the kernel started.
    changed: Vec<u64>,
}

impl Part {
    fn of(allocation: Arc<Allocation>, bytes: u64) -> Self {
        let mut part = Self { allocation, bytes: vec![0; bytes as usize], changed: Vec::new() };
        part.renew();
        part
    }

    /// What the memory holds now.
    fn now(&self) -> Vec<u8> {
        let mut now = self.bytes.clone();
        // Registered memory may be gone with its registration.
        if self.allocation.is_live() {
            let (backing, offset) = self.allocation.backing();
            backing.read(offset, &mut now);
        }
        now
    }

    fn renew(&mut self) {
        self.bytes = self.now();
    }

    fn differences(&self) -> Vec<u64> {
        let now = self.now();
        (0..)
            .zip(now.iter().zip(&self.bytes))
            .filter(|(_, (now, then))| now != then)
            .map(|(at, _)| at)
            .collect()
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let end = self.allocation.base + self.bytes.len() as u64;
        self.allocation.base < address.saturating_add(bytes) && address < end
    }
}

fn touches(map: &TouchMap, offset: u64, touch: Touch) -> bool {
    map.set(touch).word(offset & !63) >> (offset & 63) & 1 != 0
}

impl Core {
    /// A kernel was queued.
    pub(super) fn watch_kernel(&self, state: &mut State, seq: u64, work: &Work) {
        let Work::Launch(launch) = work else { return };
        if !self.config.checks.races {
            return;
        }
        let (mut left, mut parts) = (MOST, Vec::<Part>::new());
        for address in launch.pointers.iter().map(|pointer| pointer.address()) {
            let Ok(allocation) = self.space.locate_in(View::Submission, address, 1) else { continue };
            let known = parts.iter().any(|part| part.allocation.id == allocation.id);
            let bytes = allocation.bytes.min(left);
            if allocation.kind == MemoryKind::Pinned && !known && bytes > 0 {
                left -= bytes;
                parts.push(Part::of(allocation, bytes));
            }
        }
        if !parts.is_empty() {
            state.kernel_watches.insert(seq, KernelWatch { parts });
        }
    }

    /// A watched kernel starts.
    pub(super) fn watched_kernel_starts(&self, state: &mut State, seq: u64) {
        let alone = state.running.len() <= 1;
        let Some(watch) = state.kernel_watches.get_mut(&seq) else { return };
        for part in &mut watch.parts {
            if alone {
                part.changed = part.differences();
            }
            part.renew();
        }
    }

    /// A watched kernel has ended.
    pub(super) fn watched_kernel_ended(
        &self,
        state: &mut State,
        seq: u64,
        work: &Work,
        stream: &str,
        touched: &[Arc<TouchMap>],
    ) {
        let Some(watch) = state.kernel_watches.remove(&seq) else { return };
        let agrees =
            |map: &Arc<TouchMap>| map.allocation().kind.is_host() && !map.set(Touch::Atomic).is_empty();
        if touched.iter().any(agrees) {
            return;
        }
        let alone = state.running.len() <= 1;
        for part in &watch.parts {
            let (backing, base) = part.allocation.backing();
            let maps = || touched.iter().filter(|map| Arc::ptr_eq(map.backing(), backing));
            let reads = |at: u64| maps().any(|map| touches(map, base + at, Touch::Read));
            let writes = |at: u64| maps().any(|map| touches(map, base + at, Touch::Write));
            let before = part.changed.iter().copied().find(|&at| reads(at) || writes(at));
            let during = || {
                let found = part.differences().into_iter().find(|&at| reads(at) && !writes(at));
                found.filter(|_| alone)
            };
            let (at, when) = match before {
                Some(at) => (at, "before it ran"),
                None => match during() {
                    Some(at) => (at, "while it ran"),
                    None => continue,
                },
            };
            let does = if reads(at) { "reads" } else { "writes" };
            let label = part.allocation.label();
            let buffer = match &label {
                Some(label) => format!("'{label}'"),
                None => format!(
                    "the page-locked buffer of {} bytes at {:#x}",
                    part.allocation.bytes, part.allocation.base
                ),
            };
            let text = format!(
                "host write under a kernel: the host changed byte {at} of {buffer} that {} (#{seq}) on stream {stream} {does}, \
                 after it was submitted and {when}",
                work.describe()
            );
            let mut report = Report::new(ReportKind::HostWrite, text).on_stream(Some(stream.to_owned()));
            report.labels.extend(label);
            self.report(report);
        }
    }
}

/// Something wrote to a range, or to any page-locked memory for `None`.
pub(super) fn renew(watches: &mut KernelWatches, range: Option<(u64, u64)>) {
    let parts = watches.values_mut().flat_map(|watch| &mut watch.parts);
    let wanted = |part: &&mut Part| range.is_none_or(|(address, bytes)| part.overlaps(address, bytes));
    parts.filter(wanted).for_each(Part::renew);
}
