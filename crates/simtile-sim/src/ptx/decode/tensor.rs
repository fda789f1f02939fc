//! `wmma`, `mma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::modifiers::Modifiers;
use super::{Decoder, Result};
use crate::ptx::code::{NONE, Op, Slot, Space, Together, TogetherOp};
use crate::ptx::matrix::{Element, Matrix, Part, Shape, Sparse};
use simtile_image::ptx::{Instruction, Operand, Type};

/// `m16n8k16`.
fn shape(name: &str) -> Option<Shape> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

fn element(name: &str) -> Option<Element> {
    Some(match name {
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "tf32" => Element::Tf32,
        "f32" => Element::F32,
        "f64" => Element::F64,
        "e4m3" => Element::E4m3,
        "e5m2" => Element::E5m2,
        "s32" => Element::S32,
        "s8" => Element::S8,
        "u8" => Element::U8,
        "s4" => Element::S4,
        "u4" => Element::U4,
        "b1" => Element::B1,
        _ => return None,
    })
}

impl Decoder<'_, '_> {
    fn registers(&mut self, operand: &Operand, wanted: u32, dst: bool) -> Result<Box<[Slot]>> {
        let all = match operand {
            Operand::Vector(all) => &all[..],
            one => std::slice::from_ref(one),
        };
        if all.len() as u32 != wanted {
            return self.bad(format!("a fragment of {wanted} registers is expected, not {}", all.len()));
        }
        all.iter().map(|o| if dst { Ok(self.dst(o)?.0) } else { self.src(o, Type::B64) }).collect()
    }

    pub(super) fn matrix(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Result<()> {
        let matrix = match i.opcode.as_str() {
            "wmma" => self.wmma(i, &mut m)?,
            "mma" => self.mma(i, &mut m)?,
            "movmatrix" => {
                let fits = m.take("sync") && m.take("aligned") && m.take("m8n8") && m.take("trans");
                if !fits || !m.take("b16") {
                    return self.refuse();
                }
                let [dst, src] = self.operands::<2>(i)?;
                Matrix::Transpose { dst: self.dst(dst)?.0, src: self.src(src, Type::B32)? }
            }
            name => {
                let fits = m.take("sync") && m.take("aligned") && m.take("m8n8");
                let count = match m.pick(&["x1", "x2", "x4"]) {
                    Some("x1") => 1,
                    Some("x2") => 2,
                    Some(_) => 4,
                    None => return self.refuse(),
                };
                let transposed = m.take("trans");
                let space = self.space(&mut m);
                if !fits || !m.take("b16") || !matches!(space, Space::Shared | Space::Generic) {
                    return self.refuse();
                }
                let [a, b] = self.operands::<2>(i)?;
                let store = name == "stmatrix";
                let (regs, address) = if store { (b, a) } else { (a, b) };
                let regs = self.registers(regs, count, !store)?;
                let (space, addr) = self.address(address, space)?;
                Matrix::Rows { store, transposed, space, addr, regs }
            }
        };
        if !m.is_empty() {
            return self.refuse();
        }
        let members = self.constant(0xFFFF_FFFF);
        self.emit(Op::Together(Box::new(Together { members, op: TogetherOp::Matrix(matrix) })))?;
        Ok(())
    }

    fn wmma(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<Matrix> {
        let Some(what) = m.pick(&["load", "store", "mma"]) else { return self.refuse() };
        if what == "mma" {
            let bits = self.bit_operation(m)?;
            if !(m.take("sync") && m.take("aligned")) {
                return self.refuse();
            }
            let (Some(_), Some(_)) = (m.pick(&["row", "col"]), m.pick(&["row", "col"])) else {
                return self.refuse();
            };
            return self.multiply(i, m, true, bits, false);
        }
        let part = match m.pick(&["a", "b", "c", "d"]) {
            Some("a") => Part::A,
            Some("b") => Part::B,
            Some(_) => Part::C,
            None => return self.refuse(),
        };
        if !(m.take("sync") && m.take("aligned")) {
            return self.refuse();
        }
        let Some(layout) = m.pick(&["row", "col"]) else { return self.refuse() };
        let Some(shape) = m.next().and_then(shape) else { return self.refuse() };
        let space = self.space(m);
        let Some(element) = m.next().and_then(element) else { return self.refuse() };
        let store = what == "store";
        let (regs, address, stride) = match &i.operands[..] {
            [a, b] => {
                if store {
                    (b, a, None)
                } else {
                    (a, b, None)
                }
            }
            [a, b, stride] => {
                if store {
                    (b, a, Some(stride))
                } else {
                    (a, b, Some(stride))
                }
            }
            _ => return self.bad("wmma takes other operands"),
        };
        let Some(count) = wmma_registers(shape, part, element) else { return self.refuse() };
        let regs = self.registers(regs, count, !store)?;
        let (space, addr) = self.address(address, space)?;
        let stride = match stride {
            Some(stride) => self.src(stride, Type::U32)?,
            None => NONE,
        };
        Ok(Matrix::Fragment { store, part, shape, row: layout == "row", element, space, addr, stride, regs })
    }

    fn mma(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<Matrix> {
        // Metadata in order or not: it is read the same.
        let sparse = m.pick(&["sp", "sp::ordered_metadata"]).is_some();
        if !(m.take("sync") && m.take("aligned")) {
            return self.refuse();
        }
        let bits = self.bit_operation(m)?;
        if !sparse && i.modifiers.iter().any(|m| m == "m8n8k4") && i.modifiers.iter().any(|m| m == "f16") {
            return self.quads(i, m);
        }
        self.multiply(i, m, false, bits, sparse)
    }

    /// `mma.m8n8k4` on `f16`, four products in one instruction.
    fn quads(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<Matrix> {
        m.take("m8n8k4");
        let (Some(a), Some(b)) = (m.pick(&["row", "col"]), m.pick(&["row", "col"])) else {
            return self.refuse();
        };
        let (d, c) = match [m.next(), m.next(), m.next(), m.next()] {
            [Some(d), Some("f16"), Some("f16"), Some(c)] => (element(d), element(c)),
            _ => return self.refuse(),
        };
        let (Some(d), Some(c)) = (d, c) else { return self.refuse() };
        let count = |e| match e {
            Element::F16 => Some(4),
            Element::F32 => Some(8),
            _ => None,
        };
        let (Some(nd), Some(nc)) = (count(d), count(c)) else { return self.refuse() };
        if (d, c) == (Element::F16, Element::F32) {
            return self.bad("mma.m8n8k4 adds f32 only to a result of f32");
        }
        let [rd, ra, rb, rc] = self.operands::<4>(i)?;
        let (ra, rb) = (self.registers(ra, 2, false)?, self.registers(rb, 2, false)?);
        let (rc, rd) = (self.registers(rc, nc, false)?, self.registers(rd, nd, true)?);
        Ok(Matrix::Quads { rows: [a == "row", b == "row"], types: [d, c], regs: [rd, ra, rb, rc] })
    }

    /// How single bits are joined, if the instruction says so.
    fn bit_operation(&mut self, m: &mut Modifiers<'_>) -> Result<Option<Element>> {
        Ok(match (m.pick(&["xor", "and"]), m.take("popc")) {
            (Some("xor"), true) => Some(Element::B1Xor),
            (Some(_), true) => Some(Element::B1),
            (None, false) => None,
            _ => return self.refuse(),
        })
    }

    /// What `wmma.mma` and `mma` have in common, from the shape on.
    fn multiply(
        &mut self,
        i: &Instruction,
        m: &mut Modifiers<'_>,
        wmma: bool,
        bits: Option<Element>,
        sparse: bool,
    ) -> Result<Matrix> {
        let Some(shape) = m.next().and_then(shape) else { return self.refuse() };
        let fits = wmma || m.take("row") && m.take("col");
        if !fits {
            return self.refuse();
        }
        m.pick(&["rn"]);
        let finite = m.take("satfinite");
        let mut types = Vec::new();
        while let Some(name) = m.next() {
            let Some(element) = element(name) else { return self.refuse() };
            types.push(if element == Element::B1 { bits.unwrap_or(element) } else { element });
        }
        if bits.is_some() != types.iter().any(|e| e.bits() == 1) {
            return self.refuse();
        }
        let (d, a, b, c) = match types[..] {
            // wmma on f16 names the accumulators only.
            [d, c] if wmma => (d, Element::F16, Element::F16, c),
            [d, a, b, c] => (d, a, b, c),
            _ => return self.refuse(),
        };
        let built = match sparse {
            true => sparse_is_built(shape, [d, a, b, c]),
            false => combination_is_built(shape, [d, a, b, c], wmma),
        };
        if !built {
            return self.refuse();
        }
        let count = |part: Part, e: Element| match wmma {
            true => wmma_registers(shape, part, e),
            false => {
                let there = if sparse && part == Part::A { 2 } else { 1 };
                Some(shape.elements(part) * e.bits() / 32 / e.register_bits() / there)
            }
        };
        let (Some(nd), Some(na), Some(nb), Some(nc)) =
            (count(Part::C, d), count(Part::A, a), count(Part::B, b), count(Part::C, c))
        else {
            return self.refuse();
        };
        let ([rd, ra, rb, rc], sparse) = if sparse {
            let [rd, ra, rb, rc, metadata, selector] = self.operands::<6>(i)?;
            let most = 4 / Sparse::lanes(a, shape.k) - 1;
            let selector = match selector {
                Operand::Integer(v) if *v <= most.into() => *v as u32,
                other => return self.bad(format!("the sparsity selector is {other:?}, not 0 to {most}")),
            };
            let metadata = self.src(metadata, Type::B32)?;
            ([rd, ra, rb, rc], Some(Sparse { metadata, selector }))
        } else {
            let [rd, ra, rb, rc] = self.operands::<4>(i)?;
            ([rd, ra, rb, rc], None)
        };
        let (ra, rb) = (self.registers(ra, na, false)?, self.registers(rb, nb, false)?);
        let (rc, rd) = (self.registers(rc, nc, false)?, self.registers(rd, nd, true)?);
        Ok(Matrix::Multiply { wmma, shape, types: [d, a, b, c], regs: [rd, ra, rb, rc], finite, sparse })
    }
}

/// Registers of a `wmma` fragment; `None` if there is no such fragment.
fn wmma_registers(shape: Shape, part: Part, e: Element) -> Option<u32> {
    let half_shapes = matches!((shape.m, shape.n, shape.k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16));
    let per_lane = shape.elements(part) / 32;
    match (e, part) {
        // Twice as many as needed where a matrix has 256 or 128 elements: PTX's own count.
        (Element::F16, Part::A | Part::B) if half_shapes => Some(8),
        (Element::F16, Part::C) if half_shapes => Some(4),
        (Element::F32, Part::C) if half_shapes => Some(8),
        (Element::F32, Part::C) if (shape.m, shape.n, shape.k) == (16, 16, 8) => Some(8),
        (Element::Bf16, Part::A | Part::B) if half_shapes => Some(per_lane / 2),
        (Element::S8 | Element::U8, Part::A | Part::B) if half_shapes => Some(per_lane / 4),
        (Element::S32, Part::C) if half_shapes => Some(8),
        (Element::Tf32, Part::A | Part::B) if (shape.m, shape.n, shape.k) == (16, 16, 8) => Some(4),
        (Element::F64, _) if (shape.m, shape.n, shape.k) == (8, 8, 4) => Some(per_lane),
        (Element::S4 | Element::U4, Part::A | Part::B) if (shape.m, shape.n, shape.k) == (8, 8, 32) => {
            Some(1)
        }
        (Element::B1 | Element::B1Xor, Part::A | Part::B) if (shape.m, shape.n, shape.k) == (8, 8, 128) => {
            Some(1)
        }
        (Element::S32, Part::C) if (shape.m, shape.n) == (8, 8) && matches!(shape.k, 32 | 128) => Some(2),
        _ => None,
    }
}

fn combination_is_built(shape: Shape, [d, a, b, c]: [Element; 4], wmma: bool) -> bool {
    use Element as E;
    let integers = |e| matches!(e, E::S8 | E::U8);
    let nibbles = |e| matches!(e, E::S4 | E::U4);
    let eighths = |e| matches!(e, E::E4m3 | E::E5m2);
    let accumulator = |e| matches!(e, E::F16 | E::F32);
    let (m, n, k) = (shape.m, shape.n, shape.k);
    if wmma {
        return match (a, b) {
            (E::F16, E::F16) => accumulator(c) && accumulator(d),
            (E::Bf16, E::Bf16) | (E::Tf32, E::Tf32) => (c, d) == (E::F32, E::F32),
            (E::F64, E::F64) => (c, d) == (E::F64, E::F64),
            (a, b) => a == b && (integers(a) || nibbles(a) || a.bits() == 1) && (c, d) == (E::S32, E::S32),
        };
    }
    match (a, b) {
        (E::F16, E::F16) => accumulator(c) && accumulator(d) && (m, n) == (16, 8) && matches!(k, 8 | 16),
        (E::Bf16, E::Bf16) => (c, d) == (E::F32, E::F32) && (m, n) == (16, 8) && matches!(k, 8 | 16),
        (E::Tf32, E::Tf32) => (c, d) == (E::F32, E::F32) && (m, n) == (16, 8) && matches!(k, 4 | 8),
        (E::F64, E::F64) => {
            (c, d) == (E::F64, E::F64)
                && ((m, n, k) == (8, 8, 4) || (m, n) == (16, 8) && matches!(k, 4 | 8 | 16))
        }
        (a, b) if eighths(a) && eighths(b) => {
            accumulator(c) && accumulator(d) && (m, n) == (16, 8) && matches!(k, 16 | 32)
        }
        (a, b) if integers(a) && integers(b) => {
            (c, d) == (E::S32, E::S32) && matches!((m, n, k), (8, 8, 16) | (16, 8, 16) | (16, 8, 32))
        }
        (a, b) if nibbles(a) && nibbles(b) => {
            (c, d) == (E::S32, E::S32) && matches!((m, n, k), (8, 8, 32) | (16, 8, 32) | (16, 8, 64))
        }
        (a, b) if a == b && a.bits() == 1 => {
            (c, d) == (E::S32, E::S32) && matches!((m, n, k), (8, 8, 128) | (16, 8, 128) | (16, 8, 256))
        }
        _ => false,
    }
}

/// Whether `mma.sp` has this product.
fn sparse_is_built(shape: Shape, [d, a, b, c]: [Element; 4]) -> bool {
    use Element as E;
    if (shape.m, shape.n) != (16, 8) || c != d {
        return false;
    }
    match (a, b) {
        (E::F16, E::F16) => matches!(c, E::F16 | E::F32) && matches!(shape.k, 16 | 32),
        (E::Bf16, E::Bf16) => c == E::F32 && matches!(shape.k, 16 | 32),
        (E::Tf32, E::Tf32) => c == E::F32 && matches!(shape.k, 8 | 16),
        (E::E4m3 | E::E5m2, E::E4m3 | E::E5m2) => matches!(c, E::F16 | E::F32) && shape.k == 64,
        (E::S8 | E::U8, E::S8 | E::U8) => c == E::S32 && matches!(shape.k, 32 | 64),
        (E::S4 | E::U4, E::S4 | E::U4) => c == E::S32 && matches!(shape.k, 64 | 128),
        _ => false,
    }
}
