//! Matrices spread over a warp.
//!
//! `mma`, `ldmatrix` and `stmatrix` use the element layouts that PTX documents. The layout of `wmma` fragments is
//! unspecified; here lane l holds elements l·n .. l·n + n of the row-major matrix.
//!
//! Products are exact in `f64` and summed there; the sum is rounded once to the accumulator's type. A GPU sums in
//! an undocumented order and width, so results agree within its tolerance, not bit for bit. `f64` and
//! integer accumulators are exact (`f64`: fused, k ascending).

use super::code::{Addr, Lanes, Slot, Space, mode};
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
    Multiply {
        wmma: bool,
        shape: Shape,
        types: [Element; 4],
        regs: [Box<[Slot]>; 4],
        finite: bool,
        sparse: Option<Sparse>,
    },
    /// `mma.m8n8k4` on `f16`: whether a and b lie in rows, types of d and c, registers of d, a, b, c.
    Quads { rows: [bool; 2], types: [Element; 2], regs: [Box<[Slot]>; 4] },
    /// `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements.
    Rows { store: bool, transposed: bool, space: Space, addr: Addr, regs: Box<[Slot]> },
    /// `movmatrix`.
    Transpose { dst: Slot, src: Slot },
}

/// What `mma.sp` says of the left matrix: which of its elements are there, the others being zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sparse {
    /// The register with the metadata.
    pub metadata: Slot,
    /// Which of a quad's lanes give it.
    pub selector: u32,
}

impl Sparse {
    /// How many neighbours of a row form a chunk, and how many of them are there: what two bits of metadata choose from is
    /// a pair of 4-bit elements, half of a `tf32`, or one element of the other types.
    fn chunk(e: Element) -> (u32, u32) {
        match e.bits() {
            4 => (8, 4),
            32 => (2, 1),
            _ => (4, 2),
        }
    }

    /// Lanes of a quad that give metadata for a product of `k` columns: 1, 2 or 4.
    pub(super) fn lanes(e: Element, k: u32) -> u32 {
        k / Self::chunk(e).0 * 4 * 16 / 8 / 32
    }

    /// The four bits of metadata for a chunk of a row. PTX draws where they lie: 32 bits of a lane are half a row of 16-bit
    /// elements and the half row 8 below, or else all of one row's, rows 8 apart in neighbouring lanes.
    fn bits(self, e: Element, k: u32, row: u32, chunk: u32, read: &impl Fn(Slot, u32) -> u64) -> u32 {
        let lanes = Self::lanes(e, k);
        let (low, word, at) = if matches!(e.bits(), 16 | 32) {
            (chunk % 4 + row / 8 * 4, chunk / 4, 0)
        } else {
            (chunk % 8, chunk / 8, row / 8)
        };
        let lane = row % 8 * 4 + self.selector * lanes + if e.bits() >= 16 { word } else { word * 2 + at };
        (read(self.metadata, lane) >> (4 * low)) as u32 & 15
    }

    /// Columns of the elements that a row has, in the order of its registers.
    fn columns(self, e: Element, k: u32, row: u32, read: &impl Fn(Slot, u32) -> u64) -> Vec<usize> {
        let (wide, there) = Self::chunk(e);
        let mut columns = Vec::with_capacity((k * there / wide) as usize);
        for chunk in 0..k / wide {
            let bits = self.bits(e, k, row, chunk, read);
            let first = (chunk * wide) as usize;
            let (one, two) = ((bits & 3) as usize, (bits >> 2) as usize);
            match e.bits() {
                4 => columns.extend([2 * one, 2 * one + 1, 2 * two, 2 * two + 1].map(|c| first + c)),
                // Both halves of an element: only 0b0100 and 0b1110 have a meaning.
                32 => columns.push(first + one / 2),
                _ => columns.extend([first + one, first + two]),
            }
        }
        columns
    }
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
    sparse: Option<Sparse>,
    read: impl Fn(Slot, u32) -> u64,
) -> Vec<u64> {
    // The columns of b that a row's elements meet. What a sparse row lacks meets none, not even an infinity.
    let meets: Vec<Vec<usize>> = match sparse {
        Some(sparse) => (0..shape.m).map(|row| sparse.columns(a, shape.k, row, &read)).collect(),
        None => vec![(0..shape.k as usize).collect()],
    };
    let held = Shape { k: if sparse.is_some() { shape.k / 2 } else { shape.k }, ..shape };
    let abits = gather(wmma, held, Part::A, a, ra, &read);
    let bbits = gather(wmma, shape, Part::B, b, rb, &read);
    let cbits = gather(wmma, shape, Part::C, c, rc, &read);
    let (n, k) = (shape.n as usize, held.k as usize);
    let columns = |row: usize| meets[row % meets.len()].iter().copied().enumerate();
    let mut out = Vec::with_capacity(cbits.len());
    if a.is_integer() {
        let left: Vec<i64> = abits.iter().map(|&x| a.integer(x)).collect();
        let right: Vec<i64> = bbits.iter().map(|&x| b.integer(x)).collect();
        for (at, &start) in cbits.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let products = columns(row).map(|(i, met)| {
                let (x, y) = (left[row * k + i], right[met * n + column]);
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
        for (i, met) in columns(row) {
            let (x, y) = (left[row * k + i], right[met * n + column]);
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

/// `mma.m8n8k4` on `f16`: four products of 8 × 4 by 4 × 8 at once. The lanes 4q to 4q + 3 and those 16 above them hold one.
/// Gives the registers of d.
pub(super) fn quads(
    rows: [bool; 2],
    [d, c]: [Element; 2],
    [rd, ra, rb, rc]: [&[Slot]; 4],
    read: impl Fn(Slot, u32) -> u64,
) -> Vec<Lanes> {
    // Row and column of a lane's element, by PTX's description.
    let input = |lane: u32, i: u32, along: bool| {
        let (near, far) = (lane % 4, lane / 16 * 4);
        if along { (near + far, i) } else { (i + far, near) }
    };
    let result = |e: Element, lane: u32, i: u32| match e {
        Element::F16 => (lane % 4 + lane / 16 * 4, i),
        _ => ((lane & 1) + (i & 2) + lane / 16 * 4, (i & 4) + (lane & 2) + (i & 1)),
    };
    let half = |regs: &[Slot], lane: u32, i: u32| {
        Element::F16.float(read(regs[(i / 2) as usize], lane) >> (16 * (i % 2)) & 0xFFFF)
    };
    let mut out = vec![[0; 32]; rd.len()];
    for quad in 0..4 {
        let (mut a, mut b, mut sums) = ([[0.0; 4]; 8], [[0.0; 8]; 4], [[0.0; 8]; 8]);
        let lanes = (0..8).map(|n| quad * 4 + n % 4 + n / 4 * 16);
        for lane in lanes.clone() {
            for i in 0..4 {
                let (row, column) = input(lane, i, rows[0]);
                a[row as usize][column as usize] = half(ra, lane, i);
                // b is a turned by its diagonal: what was row is column.
                let (column, row) = input(lane, i, !rows[1]);
                b[row as usize][column as usize] = half(rb, lane, i);
            }
            for i in 0..8 {
                let (row, column) = result(c, lane, i);
                sums[row as usize][column as usize] = match c {
                    Element::F16 => half(rc, lane, i),
                    _ => c.float(read(rc[i as usize], lane)),
                };
            }
        }
        for lane in lanes {
            for i in 0..8 {
                let (row, column) = result(d, lane, i);
                let (row, column) = (row as usize, column as usize);
                let sum = (0..4).fold(sums[row][column], |sum, k| sum + a[row][k] * b[k][column]);
                match d {
                    Element::F16 => {
                        let bits = soft::narrow(sum, soft::F16, mode::RN);
                        out[(i / 2) as usize][lane as usize] |= bits << (16 * (i % 2));
                    }
                    _ => out[i as usize][lane as usize] = soft::narrow(sum, soft::F32, mode::RN),
                }
            }
        }
    }
    out
}
