//! Host memory that a queued copy will read or fill: does the host change it meanwhile?
//!
//! The host's own loads and stores cannot be seen. What can be seen is that bytes are not what they were: when a copy
//! that involves host memory is queued, a fingerprint of every 64 bytes of that memory is taken, and compared
//! when the copy starts, and for sources once more when it ends. A difference that no device work explains is a write of
//! the host during a copy.
//!
//! What explains a difference, so that the fingerprints are taken anew:
//!
//! * other work of the device wrote there;
//! * a host function ran, a wait-value was passed, or a kernel touched host memory: there the program may have told
//!   its host side to write, and the device to wait for it.
//!
//! What is not found: a write that puts the same bytes there, one between the end of a copy and the host's wait for it,
//! and every *read* of what is not there yet. [`Core::host_access`] is for those who can tell (`Extras::host_access`): there
//! the host's accesses take part in the race check as the device's do.

use super::order::HOST;
use super::state::State;
use super::work::Work;
use crate::check::{Touch, TouchMap, Who};
use crate::core::{Core, Res};
use crate::heap::MemoryWork;
use crate::memory::{Backing, MemoryKind, Place, Side, Transfer, View};
use crate::report::{Report, ReportKind};
use simtile_driver::AccessMode;
use simtile_driver::sys::CUresult;
use simtile_sync::Arc;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

/// Bytes that have one fingerprint.
const BLOCK: u64 = 64;
/// Most bytes of one copy that are watched; the rest of it is not.
const MOST: u64 = 64 << 20;

/// Watched copies by their submission number.
pub(crate) type HostWatches = BTreeMap<u64, HostWatch>;

/// What a queued copy will read or fill on the host.
pub(crate) struct HostWatch {
    rows: Vec<Row>,
    /// The copy reads it.
    source: bool,
}

/// One row of it.
struct Row {
    address: u64,
    bytes: u64,
    memory: Arc<Backing>,
    offset: u64,
    /// The buffer, if the driver knows it.
    label: Option<String>,
    prints: Vec<u64>,
}

impl Row {
    fn print(&self) -> Vec<u64> {
        let mut block = [0; BLOCK as usize];
        let starts = (0..self.bytes).step_by(BLOCK as usize);
        let print = |at: u64| {
            let part = &mut block[..(self.bytes - at).min(BLOCK) as usize];
            self.memory.read(self.offset + at, part);
            let mut hasher = DefaultHasher::new();
            hasher.write(part);
            hasher.finish()
        };
        starts.map(print).collect()
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes) && address < self.address + self.bytes
    }
}

impl HostWatch {
    /// # Safety
    /// Pageable memory is readable until the copy has run.
    unsafe fn of(core: &Core, copy: &Transfer, side: &Side, source: bool) -> Option<Self> {
        let mut left = MOST;
        let mut rows = Vec::new();
        let whole = copy.height == 1 || side.pitch == copy.width;
        let (width, height) =
            if whole { (copy.width.saturating_mul(copy.height), 1) } else { (copy.width, copy.height) };
        for z in 0..copy.depth {
            for y in 0..height {
                let bytes = width.min(left);
                if bytes == 0 {
                    break;
                }
                left -= bytes;
                let at = side.pitch.wrapping_mul(y).wrapping_add(side.slice.wrapping_mul(z));
                let (address, memory, offset, label) = match side.place {
                    Place::Memory(start) => {
                        let address = start.wrapping_add(at);
                        let found = core.space.locate_in(View::Submission, address, bytes).ok()?;
                        // Managed memory moves with what kernels do to it; only page-locked memory is the host's.
                        if found.kind != MemoryKind::Pinned {
                            return None;
                        }
                        let offset = found.offset_of(address, bytes)?;
                        (address, found.backing().0.clone(), offset, found.label())
                    }
                    Place::Host(start) => {
                        let start = start.wrapping_add(at as usize);
                        let pointer = std::ptr::with_exposed_provenance_mut(start);
                        // SAFETY: readable as long as the copy is pending, says the caller; only read here.
                        (start as u64, Arc::new(unsafe { Backing::foreign(pointer, bytes) }?), 0, None)
                    }
                    Place::Staged(_) => return None,
                };
                let mut row = Row { address, bytes, memory, offset, label, prints: Vec::new() };
                row.prints = row.print();
                rows.push(row);
            }
        }
        Some(Self { rows, source })
    }

    /// The first bytes that are not what they were: address, how many, and the buffer's label.
    fn changed(&self) -> Option<(u64, u64, Option<String>, u64)> {
        self.rows.iter().find_map(|row| {
            let now = row.print();
            let at = now.iter().zip(&row.prints).position(|(now, before)| now != before)? as u64 * BLOCK;
            Some((row.address + at, BLOCK.min(row.bytes - at), row.label.clone(), at))
        })
    }

    fn renew(&mut self, touches: impl Fn(&Row) -> bool) {
        for row in self.rows.iter_mut().filter(|row| touches(row)) {
            row.prints = row.print();
        }
    }
}

impl Core {
    /// Work was queued: watches the host memory of a copy.
    pub(crate) fn watch_host(&self, state: &mut State, seq: u64, work: &Work) {
        self.watch_kernel(state, seq, work);
        let Work::Memory(MemoryWork::Transfer(copy)) = work else { return };
        if !self.config.checks.races {
            return;
        }
        for (side, source) in [(&copy.from, true), (&copy.to, false)] {
            // SAFETY: the caller of the copy says that its host memory is valid until the copy has run.
            if let Some(watch) = unsafe { HostWatch::of(self, copy, side, source) } {
                state.watches.insert(seq, watch);
                return;
            }
        }
    }

    /// A watched copy starts.
    pub(crate) fn host_copy_starts(&self, state: &mut State, seq: u64, stream: &str) {
        let Some(watch) = state.watches.get(&seq) else { return };
        let changed = self.report_changed(watch, seq, stream, "before it ran");
        if changed || !watch.source {
            state.watches.remove(&seq);
        }
    }

    /// Work has ended: a watched copy, or work after which host memory may be another.
    pub(crate) fn host_work_ended(
        &self,
        state: &mut State,
        seq: u64,
        work: &Work,
        touched: &[Arc<TouchMap>],
    ) {
        if state.watches.is_empty() && state.kernel_watches.is_empty() {
            return;
        }
        let label = || {
            let stream =
                state.streams.iter().find(|(_, s)| s.items.front().is_some_and(|item| item.seq == seq));
            stream.map_or_else(String::new, |(&uid, stream)| super::run::stream_name(stream, uid))
        };
        if let Some(watch) = state.watches.get(&seq) {
            self.report_changed(watch, seq, &label(), "while it ran");
            state.watches.remove(&seq);
        }
        let everything = match work {
            Work::Host(_) | Work::WaitValue(_) | Work::WriteValue { .. } => true,
            Work::Launch(_) => touched.iter().any(|map| map.allocation().kind.is_host()),
            _ => false,
        };
        if everything {
            state.watches.values_mut().for_each(|watch| watch.renew(|_| true));
            super::kernel_watch::renew(&mut state.kernel_watches, None);
        }
        let to = match work {
            Work::Memory(MemoryWork::Transfer(copy)) => match copy.to.place {
                Place::Memory(at) => at,
                Place::Host(at) => at as u64,
                Place::Staged(_) => return,
            },
            Work::Memory(MemoryWork::Fill(fill)) => fill.address,
            _ => return,
        };
        let bytes = match work {
            Work::Memory(MemoryWork::Transfer(copy)) => {
                copy.to.span(copy.width, copy.height, copy.depth).unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        };
        state.watches.values_mut().for_each(|watch| watch.renew(|row| row.overlaps(to, bytes)));
        super::kernel_watch::renew(&mut state.kernel_watches, Some((to, bytes)));
    }

    fn report_changed(&self, watch: &HostWatch, seq: u64, stream: &str, when: &str) -> bool {
        let Some((address, bytes, label, at)) = watch.changed() else { return false };
        let place = match &label {
            Some(label) => format!("bytes {at} to {} of the part of '{label}'", at + bytes - 1),
            None => format!("bytes {at} to {} of the host memory (at {address:#x})", at + bytes - 1),
        };
        let does = if watch.source { "reads" } else { "fills" };
        let text = format!(
            "host write during a copy: the host changed {place} that copy (#{seq}) on stream {stream} {does}, after it was \
             submitted and {when}"
        );
        let mut report = Report::new(ReportKind::HostWrite, text).on_stream(Some(stream.to_owned()));
        report.labels.extend(label);
        self.report(report);
        true
    }

    /// The calling host thread accesses memory itself, now.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the range lies in no allocation of this driver.
    pub(crate) fn host_access(&self, address: u64, bytes: u64, mode: AccessMode) -> Res {
        let found = self.space.locate_in(View::Submission, address, bytes);
        let allocation = found.map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if bytes == 0 {
            return Ok(());
        }
        let offset = allocation.offset_of(address, bytes).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let touch = match mode {
            AccessMode::Read => Touch::Read,
            AccessMode::Write => Touch::Write,
            AccessMode::Accumulate => Touch::Atomic,
        };
        let thread = std::thread::current();
        let place = match thread.name() {
            Some(name) => format!("host thread '{name}'"),
            None => "a host thread".to_owned(),
        };
        let mut state = self.state.lock();
        self.check_managed_host(&state, &allocation, (address - allocation.base, bytes), touch, &place);
        if !self.config.checks.races {
            return Ok(());
        }
        let touched = TouchMap::part(allocation, offset, bytes, touch);
        let stamp = state.order.host_access();
        debug_assert_eq!(stamp.epoch.axis, HOST);
        let who = Who { what: "the host".to_owned(), place, id: 0, code: None };
        for race in state.order.ended(&stamp, &who, &[Arc::new(touched)]) {
            self.report(Report::race(&race));
        }
        if touch != Touch::Read {
            // The write is known now: copies that are queued meet it in the race check.
            state.watches.values_mut().for_each(|watch| watch.renew(|row| row.overlaps(address, bytes)));
            super::kernel_watch::renew(&mut state.kernel_watches, Some((address, bytes)));
        }
        Ok(())
    }
}
