//! The decoded form of a kernel: what [`super::lower`] makes of a module once, and [`super::run`] executes.
//!
//! All types, shapes, attributes and operand counts were checked when this was built.

use super::call::{TileCall, TileConstant, TileType, TileValue};
use super::data::Data;
use super::elementwise::{Compare, Convert, FloatBinary, FloatUnary, IntBinary, IntUnary};
use super::float::Round;
use super::print::Piece;
use super::types::{Elem, Shape, TileTy, ViewTy};
use crate::modules::StandInError;
use cutile_ir::ir::ScalarType;
use std::fmt;
use std::sync::Arc;

/// An operand: a slot of the frame, and whether this is its last use, so that the value may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) slot: u32,
    pub(super) last: bool,
}

/// A block of instructions.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Slots of the block's arguments.
    pub(super) args: Vec<u32>,
    pub(super) insts: Vec<Inst>,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Inst {
    pub(super) op: Op,
    pub(super) operands: Vec<Use>,
    /// Slots of the results.
    pub(super) results: Vec<u32>,
    /// Index into [`Kernel::sites`].
    pub(super) site: u32,
    /// What it counts as in steps: one, and one more for every 2^16 elements or products.
    pub(super) cost: u64,
}

/// Name, number and source line of an operation, for reports.
#[derive(Clone, Debug)]
pub(super) struct OpSite {
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) source: Option<(String, u32)>,
}

/// An entry, ready to run.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) body: Code,
    /// Size of the frame.
    pub(super) slots: u32,
    /// Number of memory operations; each has a window of its own.
    pub(super) windows: u32,
    /// Which of the sites each memory operation is.
    pub(super) window_sites: Vec<u32>,
    pub(super) sites: Vec<OpSite>,
    /// Elements of the parameters, in order.
    pub(super) params: Vec<Elem>,
    /// Bytes of all its tiles: the most that a running block holds, up to copies that one operation makes.
    pub(super) bytes: u64,
}

/// A memory order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtomicMode {
    And,
    Or,
    Xor,
    Add,
    AddFloat,
    Max,
    Min,
    UnsignedMax,
    UnsignedMin,
    Exchange,
}

/// What an access to the memories of all devices does. Reductions are sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MultimemKind {
    LoadReduce,
    Reduce,
    Store,
}

/// What an `assume` promises.
#[derive(Clone, Debug)]
pub(super) enum Predicate {
    /// The first element of each group of `every` along a dimension is divisible; the others follow in steps of `step`.
    DivBy { divisor: u64, every: usize, along: usize, step: u64 },
    /// The base address of a tensor view is divisible.
    BaseDivBy(u64),
    /// Chunks of this shape hold one value each.
    SameElements(Shape),
    /// Signed bounds.
    Bounded(Option<i64>, Option<i64>),
}

/// A matrix multiplication: rows, columns, depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct MmaShape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// An operation that reaches memory: its window and what it promises.
#[derive(Clone, Debug)]
pub(super) struct ViewAccess {
    pub(super) view: ViewTy,
    pub(super) order: Order,
    pub(super) window: u32,
    /// For each index, whether the module promises that the tile lies within the tensor.
    pub(super) inbounds: Vec<bool>,
}

/// A registered function.
pub(crate) type Function = Arc<dyn Fn(&TileCall<'_>) -> Result<Vec<TileValue>, StandInError> + Send + Sync>;

/// A call of a function that is not in the module.
pub(super) struct Call {
    pub(super) symbol: String,
    /// `None` if nobody registered one; then the module is refused.
    pub(super) function: Option<Function>,
    pub(super) constants: Vec<TileConstant>,
    /// Types of the operands that are tiles.
    pub(super) operands: Vec<Arc<TileType>>,
    /// Types of the results that are tiles.
    pub(super) expected: Vec<TileType>,
    /// Of all results, whether they are tiles. The others are tokens.
    pub(super) results: Vec<bool>,
    pub(super) window: u32,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("symbol", &self.symbol).finish_non_exhaustive()
    }
}

/// An operation. Operands are in the order of the bytecode; optional ones that are present are noted.
#[derive(Debug)]
pub(super) enum Op {
    Constant(Arc<Data>),
    Iota {
        elem: Elem,
        count: usize,
    },
    BlockId,
    NumBlocks,
    /// Makes a token; whatever it waits for has happened, since operations run in program order.
    Token,
    Global(usize),
    Call(Box<Call>),
    Alloca {
        bytes: u64,
        align: u64,
    },
    Assume {
        predicate: Predicate,
        tile: Option<TileTy>,
        text: String,
    },
    Assert {
        message: String,
        shape: Shape,
    },
    Print {
        pieces: Vec<Piece>,
        args: Vec<TileTy>,
    },

    FloatUnary {
        op: FloatUnary,
        scalar: ScalarType,
        round: Round,
        ftz: bool,
    },
    FloatBinary {
        op: FloatBinary,
        scalar: ScalarType,
        round: Round,
        ftz: bool,
    },
    Fma {
        scalar: ScalarType,
        round: Round,
        ftz: bool,
    },
    PowInt {
        scalar: ScalarType,
        exponent_bits: u32,
    },
    IntUnary {
        op: IntUnary,
        bits: u32,
    },
    IntBinary {
        op: IntBinary,
        bits: u32,
    },
    CompareFloat {
        op: Compare,
        ordered: bool,
        scalar: ScalarType,
    },
    CompareInt {
        op: Compare,
        signed: bool,
        bits: u32,
    },
    Select,
    Convert(Convert),
    /// Same bits, other type or shape.
    Same,
    Offset {
        bits: u32,
        size: u64,
    },

    Broadcast {
        from: Shape,
        to: Shape,
    },
    Permute {
        from: Shape,
        permutation: Vec<usize>,
    },
    Cat {
        left: Shape,
        right: Shape,
        dim: usize,
    },
    Extract {
        large: Shape,
        small: Shape,
    },
    Insert {
        large: Shape,
        small: Shape,
    },
    Repack {
        from: Elem,
        to: Elem,
    },

    Reduce {
        shape: Shape,
        dim: usize,
        lanes: bool,
        body: Box<Code>,
    },
    Scan {
        shape: Shape,
        dim: usize,
        reverse: bool,
        lanes: bool,
        body: Box<Code>,
    },
    MmaFloat {
        shape: MmaShape,
        input: ScalarType,
        acc: ScalarType,
    },
    MmaScaled {
        shape: MmaShape,
        input: ScalarType,
        scale: ScalarType,
        scales: usize,
    },
    MmaInt {
        shape: MmaShape,
        signed: (bool, bool),
    },

    /// Dynamic extents and strides come as operands behind the base, in order.
    MakeTensor {
        shape: Vec<Option<i64>>,
        strides: Vec<Option<i64>>,
        bits: (Vec<u32>, Vec<u32>),
    },
    TensorShape {
        elems: Vec<Elem>,
    },
    IndexSpace {
        view: ViewTy,
        elems: Vec<Elem>,
    },
    LoadView {
        access: ViewAccess,
        index_bits: Vec<u32>,
    },
    StoreView {
        access: ViewAccess,
        index_bits: Vec<u32>,
    },
    AtomicView {
        access: ViewAccess,
        index_bits: Vec<u32>,
        mode: AtomicMode,
    },
    Multimem {
        kind: MultimemKind,
        access: ViewAccess,
        index_bits: Vec<u32>,
    },
    LoadPtr {
        elem: ScalarType,
        order: Order,
        window: u32,
        mask: bool,
        padding: bool,
    },
    StorePtr {
        elem: ScalarType,
        order: Order,
        window: u32,
        mask: bool,
    },
    AtomicRmw {
        elem: ScalarType,
        order: Order,
        window: u32,
        mode: AtomicMode,
        mask: bool,
    },
    AtomicCas {
        elem: ScalarType,
        order: Order,
        window: u32,
        mask: bool,
    },

    If {
        then: Box<Code>,
        otherwise: Box<Code>,
    },
    For {
        bits: u32,
        unsigned: bool,
        body: Box<Code>,
    },
    Loop {
        body: Box<Code>,
    },
    Yield,
    Continue,
    Break,
    Return,
}
