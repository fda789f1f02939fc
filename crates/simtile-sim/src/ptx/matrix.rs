//! Matrices spread over a warp.
//!
//! `mma`, `ldmatrix` and `stmatrix` use the element layouts that PTX documents. The layout of `wmma` fragments is
//! unspecified; here lane l holds elements l·n .. l·n + n of the row-major matrix.
//!
//! Products are exact in `f64` and summed there; the sum is rounded once to the accumulator's type. A GPU sums in
//! an undocumented order and width, so results agree within its tolerance, not bit for bit. `f64` and
//! integer accumulators are exact (`f64`: fused, k ascending).

use super::code::{Addr, Slot, Space, mode};
use super::lanes::{convert, half};
use super::soft;

/// Sizes of a product: m × k by k × n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

/// Which matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    A,
    B,
    /// Both accumulators.
    C,
}

impl Shape {
    /// Rows and columns of a part.
    pub(super) fn extents(self, part: Part) -> (u32, u32) {
        match part {
            Part::A => (self.m, self.k),
            Part::B => (self.k, self.n),
            Part::C => (self.m, self.n),
        }
    }

    pub(super) fn elements(self, part: Part) -> u32 {
        let (rows, columns) = self.extents(part);
        rows * columns
    }
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
    S32,
    S8,
    U8,
    S4,
    U4,
    /// Single bits, joined by `and`; sums count ones.
    B1,
    /// The same, joined by `xor`.
    B1Xor,
}

impl Element {
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::B1 | Self::B1Xor => 1,
            Self::S4 | Self::U4 => 4,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 | Self::F32 | Self::S32 => 32,
            Self::F64 => 64,
        }
    }

    /// Width of the registers that hold it.
    pub(super) fn register_bits(self) -> u32 {
        if self == Self::F64 { 64 } else { 32 }
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::S32 | Self::S8 | Self::U8 | Self::S4 | Self::U4 | Self::B1 | Self::B1Xor)
    }

    fn float(self, bits: u64) -> f64 {
        match self {
            Self::F16 => half::value(false, bits as u16).into(),
            Self::Bf16 => half::value(true, bits as u16).into(),
            // The hardware ignores the low bits.
            Self::Tf32 => f32::from_bits(bits as u32 & !0x1FFF).into(),
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::E4m3 => convert::from_eighth(bits as u8, 0),
            Self::E5m2 => convert::from_eighth(bits as u8, convert::E5M2),
            _ => f64::from_bits(bits),
        }
    }

    fn integer(self, bits: u64) -> i64 {
        match self {
            Self::S8 => (bits as i8).into(),
            Self::S4 => ((bits << 60) as i64) >> 60,
            Self::S32 => (bits as i32).into(),
            _ => bits as i64,
        }
    }
}

/// One instruction on matrices.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    /// `wmma.load` and `wmma.store`.
    Fragment {
        store: bool,
        part: Part,
        shape: Shape,
        row: bool,
        element: Element,
        space: Space,
        addr: Addr,
        stride: Slot,
        regs: Box<[Slot]>,
    },
    /// `wmma.mma` and `mma`: registers of d, a, b, c.
    Multiply { wmma: bool, shape: Shape, types: [Element; 4], regs: [Box<[Slot]>; 4], finite: bool },
    /// `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements.
    Rows { store: bool, transposed: bool, space: Space, addr: Addr, regs: Box<[Slot]> },
    /// `movmatrix`.
    Transpose { dst: Slot, src: Slot },
}

/// Row and column of element `i` of lane `lane`.
pub(super) fn place(wmma: bool, shape: Shape, part: Part, e: Element, lane: u32, i: u32) -> (u32, u32) {
    let (_, columns) = shape.extents(part);
    if wmma {
        let per_lane = (shape.elements(part) / 32).max(1);
        let at = lane * per_lane + i % per_lane;
        return (at / columns, at % columns);
    }
    let (group, thread) = (lane >> 2, lane & 3);
    let per_register = e.register_bits() / e.bits();
    let (register, within) = (i / per_register, i % per_register);
    let column = thread * per_register + within;
    match part {
        Part::A => {
            let halves = shape.m / 8;
            (group + 8 * (register % halves), column + register / halves * 4 * per_register)
        }
        Part::B => (column + register * 4 * per_register, group),
        Part::C => (group + 8 * (i >> 1), thread * 2 + (i & 1)),
    }
}

/// Reads one part from the lanes' registers as bits, row-major.
fn gather(
    wmma: bool,
    shape: Shape,
    part: Part,
    e: Element,
    regs: &[Slot],
    read: &impl Fn(Slot, u32) -> u64,
) -> Vec<u64> {
    let (_, columns) = shape.extents(part);
    let mut bits = vec![0u64; shape.elements(part) as usize];
    let per_register = e.register_bits() / e.bits();
    for lane in 0..32 {
        for i in 0..regs.len() as u32 * per_register {
            let (row, column) = place(wmma, shape, part, e, lane, i);
            let value = read(regs[(i / per_register) as usize], lane) >> (i % per_register * e.bits());
            if let Some(slot) = bits.get_mut((row * columns + column) as usize) {
                *slot = value & (u64::MAX >> (64 - e.bits()));
            }
        }
    }
    bits
}

/// The product as bits of `d`, row-major.
pub(super) fn multiply(
    wmma: bool,
    shape: Shape,
    [d, a, b, c]: [Element; 4],
    [_, ra, rb, rc]: [&[Slot]; 4],
    finite: bool,
    read: impl Fn(Slot, u32) -> u64,
) -> Vec<u64> {
    let abits = gather(wmma, shape, Part::A, a, ra, &read);
    let bbits = gather(wmma, shape, Part::B, b, rb, &read);
    let cbits = gather(wmma, shape, Part::C, c, rc, &read);
    let (n, k) = (shape.n as usize, shape.k as usize);
    let mut out = Vec::with_capacity(cbits.len());
    if a.is_integer() {
        let left: Vec<i64> = abits.iter().map(|&x| a.integer(x)).collect();
        let right: Vec<i64> = bbits.iter().map(|&x| b.integer(x)).collect();
        for (at, &start) in cbits.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let products = (0..k).map(|i| {
                let (x, y) = (left[row * k + i], right[i * n + column]);
                if a == Element::B1Xor { x ^ y } else { x * y }
            });
            let sum = c.integer(start) + products.sum::<i64>();
            let sum = if finite { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
            out.push(u64::from(sum as u32));
        }
        return out;
    }
    let left: Vec<f64> = abits.iter().map(|&x| a.float(x)).collect();
    let right: Vec<f64> = bbits.iter().map(|&x| b.float(x)).collect();
    for (at, &start) in cbits.iter().enumerate() {
        let (row, column) = (at / n, at % n);
        let mut sum = c.float(start);
        for i in 0..k {
            let (x, y) = (left[row * k + i], right[i * n + column]);
            sum = if d == Element::F64 { x.mul_add(y, sum) } else { sum + x * y };
        }
        out.push(match d {
            Element::F64 => sum.to_bits(),
            Element::F16 => soft::narrow(sum, soft::F16, mode::RN),
            _ => soft::narrow(sum, soft::F32, mode::RN),
        });
    }
    out
}

/// Register contents of one lane for one part given row-major bits.
pub(super) fn scatter(
    wmma: bool,
    shape: Shape,
    part: Part,
    e: Element,
    bits: &[u64],
    lane: u32,
    register: u32,
) -> u64 {
    let (_, columns) = shape.extents(part);
    let per_register = e.register_bits() / e.bits();
    (0..per_register).fold(0, |word, within| {
        let (row, column) = place(wmma, shape, part, e, lane, register * per_register + within);
        let value = bits.get((row * columns + column) as usize).copied().unwrap_or(0);
        word | value << (within * e.bits())
    })
}
