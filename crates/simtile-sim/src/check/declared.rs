//! What a launch declared, compared with what its kernel touched.
//!
//! A read needs a range declared as read or written, a write one declared as written, an atomic update one declared as
//! written or accumulated. A plain read of an accumulated range is not covered: other work may update it meanwhile.

use super::{Bitmap, Touch, TouchMap};
use simtile_driver::{AccessMode, DeclaredAccess};

/// What the host said that a launch accesses.
#[derive(Clone, Debug)]
pub struct Declared {
    /// Ranges and modes.
    pub accesses: Vec<DeclaredAccess>,
    /// The launch accesses nothing else. If not, other bytes are the caller's business.
    pub all: bool,
}

/// A byte that a launch touched in a way it did not declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undeclared {
    /// What the kernel did.
    pub touch: Touch,
    /// The first such byte: its offset in the buffer.
    pub offset: u64,
    /// What the launch declared of that byte, if anything.
    pub declared: Option<AccessMode>,
    /// The instruction that touched it, as the interpreter counts them; 0 if it did not say.
    pub site: u16,
}

fn covers(mode: AccessMode, touch: Touch) -> bool {
    match touch {
        Touch::Read => matches!(mode, AccessMode::Read | AccessMode::Write),
        Touch::Write => mode == AccessMode::Write,
        Touch::Atomic => matches!(mode, AccessMode::Write | AccessMode::Accumulate),
    }
}

/// The first byte of each kind in one memory that was touched otherwise than declared. `declared` gives ranges of the
/// memory behind the map: offset, bytes, mode.
pub fn undeclared(map: &TouchMap, declared: &[(u64, u64, AccessMode)]) -> Vec<Undeclared> {
    otherwise(map, declared, true)
}

/// The same of the declared ranges alone.
pub fn misused(map: &TouchMap, declared: &[(u64, u64, AccessMode)]) -> Vec<Undeclared> {
    if declared.is_empty() { Vec::new() } else { otherwise(map, declared, false) }
}

fn otherwise(map: &TouchMap, declared: &[(u64, u64, AccessMode)], all: bool) -> Vec<Undeclared> {
    let (backing, base) = map.allocation().backing();
    let kinds = [Touch::Read, Touch::Write, Touch::Atomic];
    let found = kinds.into_iter().filter_map(|touch| {
        let ranges = |pick: &dyn Fn(AccessMode) -> bool| {
            let ranges = Bitmap::new(backing.len());
            for &(offset, bytes, _) in declared.iter().filter(|&&(_, _, mode)| pick(mode)) {
                let end = offset.saturating_add(bytes).min(backing.len());
                ranges.set(offset, end.saturating_sub(offset));
            }
            ranges
        };
        let allowed = ranges(&|mode| covers(mode, touch));
        let looked_at = (!all).then(|| ranges(&|_| true));
        let at = map.set(touch).words().find_map(|(offset, bits)| {
            let bits = looked_at.as_ref().map_or(bits, |named| bits & named.word(offset));
            let rest = bits & !allowed.word(offset);
            (rest != 0).then(|| offset + u64::from(rest.trailing_zeros()))
        })?;
        let said = declared.iter().find(|&&(offset, bytes, _)| offset <= at && at - offset < bytes);
        let (offset, declared) = (at.saturating_sub(base), said.map(|&(_, _, mode)| mode));
        Some(Undeclared { touch, offset, declared, site: map.site(at, touch) })
    });
    found.collect()
}
