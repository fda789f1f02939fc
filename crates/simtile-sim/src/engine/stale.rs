//! Pointers that a graph keeps: is the memory behind them still the one that they were captured with?
//!
//! A graph's node holds addresses. The memory may be freed before a replay, and its addresses given to somebody else: then the
//! replay works on memory that is not its own, and nothing about a single access looks wrong. So every pointer of a node is
//! kept with the identity of the allocation behind it when the node was made. When the node runs and touches
//! an allocation through such a pointer that is another one, or faults where the memory is gone, that is a stale graph pointer.
//! A pointer that the kernel does not follow is no fault.

use super::state::State;
use super::work::Work;
use crate::check::TouchMap;
use crate::core::Core;
use crate::heap::MemoryWork;
use crate::memory::{Allocation, MemoryKind, Place, View};
use crate::report::{Report, ReportKind};
use simtile_sync::Arc;

/// A pointer in a kernel's parameters, with the allocation that it pointed into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// Number of the parameter.
    param: usize,
    address: u64,
    /// Number of the allocation.
    id: u64,
}

impl Pointer {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

/// Every aligned word of the parameters that is an address of known memory. `params` gives offsets and sizes.
pub(crate) fn pointers(
    core: &Core,
    bytes: &[u8],
    params: impl Iterator<Item = (usize, usize)>,
) -> Vec<Pointer> {
    if !core.config.checks.races {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (param, (offset, len)) in params.enumerate() {
        for at in (offset..offset.saturating_add(len)).step_by(8) {
            let word = bytes.get(at..at.saturating_add(8)).and_then(|bytes| bytes.try_into().ok());
            let Some(address) = word.map(u64::from_le_bytes) else { continue };
            if let Ok(allocation) = core.space.locate_in(View::Submission, address, 1) {
                found.push(Pointer { param, address, id: allocation.id });
            }
        }
    }
    found
}

/// The pointers of a node: role, address, number of the allocation when the node was made.
fn of_work(work: &Work) -> Vec<(String, u64, u64)> {
    match work {
        Work::Launch(launch) => {
            let role =
                |pointer: &Pointer| (format!("parameter {}", pointer.param), pointer.address, pointer.id);
            launch.pointers.iter().map(role).collect()
        }
        Work::Memory(MemoryWork::Transfer(copy)) => {
            let sides = [(&copy.from, "the source"), (&copy.to, "the destination")];
            let known = sides.into_iter().filter_map(|(side, role)| match side.place {
                Place::Memory(address) => Some((role.to_owned(), address, side.allocation)),
                _ => None,
            });
            known.filter(|&(.., id)| id != 0).collect()
        }
        Work::Memory(MemoryWork::Fill(fill)) if fill.allocation != 0 => {
            vec![("the destination".to_owned(), fill.address, fill.allocation)]
        }
        _ => Vec::new(),
    }
}

fn buffer(label: Option<String>, base: u64, bytes: u64) -> String {
    match label {
        Some(label) => format!("'{label}'"),
        None => format!("the buffer of {bytes} bytes at {base:#x}"),
    }
}

impl Core {
    /// A node of a graph has run: reports each of its pointers that is stale and was followed. `touched` is what
    /// it touched, `fault` the address that it could not.
    pub(crate) fn check_stale(
        &self,
        state: &State,
        node: usize,
        work: &Work,
        stream: &str,
        touched: &[Arc<TouchMap>],
        fault: Option<u64>,
    ) {
        for (role, address, id) in of_work(work) {
            let covers = |allocation: &&Arc<Allocation>| allocation.offset_of(address, 1).is_some();
            let now = touched.iter().map(|map| map.allocation()).find(covers);
            let was = self.space.remembered(id);
            let fate = match now {
                // Graphs have memory of their own at fixed addresses; mappings are moved on purpose.
                Some(now)
                    if now.id == id
                        || now.kind == MemoryKind::Virtual
                        || state.graphs.memory.contains_key(&now.base) =>
                {
                    continue;
                }
                Some(now) => {
                    let now = buffer(now.label(), now.base, now.bytes);
                    format!("that was freed, and the address belongs to {now} now")
                }
                None => {
                    let Some(was) = &was else { continue };
                    if !fault.is_some_and(|fault| fault >= was.base && fault - was.base < was.bytes) {
                        continue;
                    }
                    "that was freed".to_owned()
                }
            };
            let label = was.as_ref().and_then(|was| was.label.clone());
            let was = was.map_or_else(
                || "a buffer that is long gone".to_owned(),
                |was| buffer(was.label, was.base, was.bytes),
            );
            let text = format!(
                "stale graph pointer: node {node} ({}) follows {address:#x} ({role}), which was in {was} when the node was \
                 made; {fate}",
                work.describe()
            );
            let mut report =
                Report::new(ReportKind::StaleGraphPointer, text).on_stream(Some(stream.to_owned()));
            report.labels.extend(label);
            self.report(report);
        }
    }
}
