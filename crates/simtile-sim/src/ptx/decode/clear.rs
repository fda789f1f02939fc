//! Which registers a warp must find zero when it starts.
//!
//! A register that every path writes before it reads it may hold what the warp before left there. The rest, which PTX
//! leaves undefined, must not: the same launch gives the same results whatever ran before it. The answer may name more
//! registers than necessary: a function with an instruction that reads other lanes' registers, calls, or jumps by
//! index, starts with all of them zero.

use crate::ptx::code::{CONSTANT, Insn, NONE, Op, Slot};

/// Slots to clear, of the `regs` registers of the function whose instructions are `code[start..]`.
pub(super) fn needed(code: &[Insn], start: u32, regs: u32) -> Vec<Slot> {
    read_early(&code[start as usize..], start, regs as usize).unwrap_or_else(|| (0..regs).collect())
}

/// A set of registers.
type Set = Vec<u64>;

fn read_early(code: &[Insn], start: u32, regs: usize) -> Option<Vec<Slot>> {
    // A function so long that this would take long is cleared whole.
    if code.len().saturating_mul(regs) > 1 << 24 {
        return None;
    }
    let words = regs.div_ceil(64);
    // Registers written on every path to an instruction; nothing is known of what no path has reached yet.
    let mut before: Vec<Option<Set>> = vec![None; code.len()];
    let mut early = vec![0u64; words];
    let mut work = vec![(0usize, vec![0u64; words])];
    while let Some((mut at, mut written)) = work.pop() {
        while let Some(insn) = code.get(at) {
            match &mut before[at] {
                Some(known) => {
                    let mut changed = false;
                    for (known, now) in known.iter_mut().zip(&written) {
                        changed |= *known & !now != 0;
                        *known &= now;
                    }
                    if !changed {
                        break;
                    }
                    written.clone_from(known);
                }
                unknown => {
                    // Only places where paths meet need it, and those are few; all have it, for simplicity.
                    *unknown = Some(written.clone());
                }
            }
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            slots(&insn.op, &mut reads, &mut writes)?;
            for slot in reads.into_iter().filter(|slot| slot & CONSTANT == 0) {
                let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
                early[word] |= bit & !written[word];
            }
            if insn.guard == NONE {
                writes.iter().for_each(|&slot| written[slot as usize / 64] |= 1 << (slot % 64));
            }
            match insn.op {
                Op::Bra { target } => {
                    let target = target.checked_sub(start)? as usize;
                    if insn.guard == NONE {
                        at = target;
                        continue;
                    }
                    work.push((target, written.clone()));
                }
                Op::Ret | Op::Exit | Op::Trap if insn.guard == NONE => break,
                _ => {}
            }
            at += 1;
        }
    }
    let early = |slot: &Slot| early[*slot as usize / 64] >> (slot % 64) & 1 != 0;
    Some((0..regs as Slot).filter(early).collect())
}

/// What an instruction reads and writes whole; `None` if it is none of the simple ones.
fn slots(op: &Op, reads: &mut Vec<Slot>, writes: &mut Vec<Slot>) -> Option<()> {
    let real = |slot: &Slot| *slot != NONE;
    match op {
        Op::Alu { dst, src, .. } | Op::Set { dst, src, .. } | Op::Carry { dst, src, .. } => {
            reads.extend(src);
            writes.push(*dst);
        }
        Op::Test { src, .. } => reads.extend(src),
        Op::Select { dst, a, b, .. } => {
            reads.extend([a, b]);
            writes.push(*dst);
        }
        Op::Special { dst, .. }
        | Op::GlobalAddr { dst, .. }
        | Op::LocalAddr { dst, .. }
        | Op::DynamicShared { dst, .. }
        | Op::ActiveMask { dst } => writes.push(*dst),
        Op::Load(access) => {
            reads.push(access.addr.base);
            writes.extend(access.regs.iter().filter(|slot| real(slot)));
        }
        Op::Store(access) => {
            reads.push(access.addr.base);
            reads.extend(access.regs.iter().filter(|slot| real(slot)));
        }
        Op::Atom(atom) => {
            reads.push(atom.addr.base);
            reads.extend(atom.src.iter().chain([&atom.swap]).filter(|slot| real(slot)));
            writes.extend(atom.dst.iter().filter(|slot| real(slot)));
        }
        Op::Bar(bar) => {
            reads.extend([bar.id, bar.count].iter().filter(|slot| real(slot)));
            // Its destination may be a predicate: not counted as written.
        }
        Op::Nop | Op::Logic { .. } | Op::Bra { .. } | Op::Ret | Op::Exit | Op::Trap | Op::Yield => {}
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use crate::exec::DeviceTraits;
    use crate::ptx::decode::image;

    /// How many registers of a kernel with this body are cleared.
    fn cleared(body: &str) -> (usize, u32) {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n.reg .pred %p<4>; .reg .b32 %r<8>; \
             .reg .b64 %d<4>;\n{body}\nret; }}"
        );
        let traits = DeviceTraits {
            compute_capability: (9, 0),
            multiprocessors: 1,
            warp_size: 32,
            newest_ptx: (9, 0),
        };
        let image = image(&text, &traits).unwrap();
        (image.funcs[0].clear.len(), image.funcs[0].regs)
    }

    #[test]
    fn only_what_is_read_before_it_is_written() {
        assert_eq!(cleared("mov.u32 %r1, %tid.x; add.u32 %r2, %r1, 1;").0, 0);
        assert_eq!(cleared("add.u32 %r2, %r1, %r3;").0, 2);
        // A guarded write may not happen.
        assert_eq!(cleared("setp.eq.u32 %p1, 1, 1; @%p1 mov.u32 %r1, 1; add.u32 %r2, %r1, 1;").0, 1);
        // One of two paths writes.
        assert_eq!(
            cleared("setp.eq.u32 %p1, 1, 1; @%p1 bra L; mov.u32 %r1, 1; L: add.u32 %r2, %r1, 1;").0,
            1
        );
        assert_eq!(
            cleared(
                "setp.eq.u32 %p1, 1, 1; @%p1 bra L; mov.u32 %r1, 1; bra M; L: mov.u32 %r1, 2; M: add.u32 %r2, %r1, 1;"
            )
            .0,
            0
        );
        // The second round of a loop reads what the first wrote; the first reads nothing.
        assert_eq!(
            cleared("mov.u32 %r1, 0; L: add.u32 %r1, %r1, %r2; mov.u32 %r2, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;")
                .0,
            1
        );
    }

    #[test]
    fn all_where_lanes_read_each_other() {
        let (clear, regs) = cleared("mov.u32 %r1, 1; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;");
        assert_eq!(clear as u32, regs);
    }
}
