//! Decoded instructions.
//!
//! Everything that a name or a modifier decides is decided at load: an instruction holds slots, constants
//! and function pointers. One step executes one instruction for all lanes of a group, so what is called
//! through a pointer is a loop over lanes, never the work of a single lane.

use simtile_image::ptx::Type;

/// One value for each lane of a warp. A register narrower than 64 bits holds zeros above its width.
pub(super) type Lanes = [u64; 32];

/// Computes a register from up to three others. The last argument is the instruction's mode word.
pub(super) type LaneFn = Versioned<unsafe fn(&mut Lanes, [&Lanes; 3], u32)>;

/// Computes a mask of lanes from up to three registers.
pub(super) type TestFn = Versioned<unsafe fn([&Lanes; 3], u32) -> u32>;

/// A loop over lanes in the version for this machine's vector unit.
///
/// Only [`versions`](super::lanes::versions) makes one, and it has asked the machine. So the function may be
/// called, although its type says `unsafe`: nothing but a missing vector unit could go wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Versioned<F>(F);

impl<F> Versioned<F> {
    /// # Safety
    /// The machine has whatever vector unit the function was compiled for.
    pub(super) const unsafe fn new(f: F) -> Self {
        Self(f)
    }
}

impl LaneFn {
    #[inline(always)]
    pub(super) fn run(self, out: &mut Lanes, sources: [&Lanes; 3], mode: u32) {
        // SAFETY: by the contract of `new`, the machine can run it.
        unsafe { (self.0)(out, sources, mode) }
    }
}

impl TestFn {
    #[inline(always)]
    pub(super) fn run(self, sources: [&Lanes; 3], mode: u32) -> u32 {
        // SAFETY: as above.
        unsafe { (self.0)(sources, mode) }
    }
}

/// Computes a register and the new carry mask from three registers and the old carry mask.
pub(super) type CarryFn = fn(&mut Lanes, [&Lanes; 3], u32) -> u32;

/// Register slot of the executing function; from [`CONSTANT`] on, a slot of its constant table.
pub(super) type Slot = u32;

/// First slot of the constant table.
pub(super) const CONSTANT: Slot = 1 << 31;

/// No register, no predicate.
pub(super) const NONE: u32 = u32::MAX;

/// A predicate operand: slot and whether it is negated. [`NONE`] reads as true.
#[derive(Clone, Copy, Debug)]
pub(super) struct PredSrc {
    pub slot: u32,
    pub negated: bool,
}

impl PredSrc {
    pub(super) const TRUE: Self = Self { slot: NONE, negated: false };
}

/// Bits of a mode word.
pub(super) mod mode {
    pub const RN: u32 = 0;
    pub const RZ: u32 = 1;
    pub const RM: u32 = 2;
    pub const RP: u32 = 3;
    /// To nearest, ties away from zero.
    pub const RNA: u32 = 4;
    pub const ROUNDING: u32 = 7;
    pub const FTZ: u32 = 8;
    pub const SAT: u32 = 16;
    pub const RELU: u32 = 32;
    pub const NAN: u32 = 64;
    pub const XORSIGN: u32 = 128;
    /// Round to an integer of the same float type.
    pub const INTEGRAL: u32 = 256;
    /// `.satfinite`.
    pub const FINITE: u32 = 512;
    /// Free for one instruction's own use.
    pub const OWN: u32 = 1 << 12;
}

/// State spaces of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    /// Global and constant memory: driver addresses.
    Global,
    Shared,
    Local,
    /// The launch's parameters.
    Param,
}

/// Where windows of the generic address space begin; each has 2^32 addresses.
pub(super) mod window {
    pub const SHARED: u64 = 0xFF00_0000_0000_0000;
    pub const LOCAL: u64 = 0xFF01_0000_0000_0000;
    pub const PARAM: u64 = 0xFF02_0000_0000_0000;
    /// Function number n has address `CODE + n * 16`.
    pub const CODE: u64 = 0xFF03_0000_0000_0000;
    /// In shared addresses: (rank in the cluster + 1) above this bit, or 0 for the executing block.
    pub const RANK_SHIFT: u32 = 24;
}

/// An address: register or constant, plus an offset; `frame` adds the lane's stack base.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addr {
    pub base: Slot,
    pub offset: i64,
    pub frame: bool,
}

/// Logical operators on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
    /// The first operand.
    First,
}

impl Logic {
    pub(super) fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::First => a,
        }
    }
}

/// A load or store of one to eight elements.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub space: Space,
    pub addr: Addr,
    /// Bytes of one element: 1, 2, 4, 8.
    pub width: u8,
    /// Loads: sign-extend to this many bits (0: no).
    pub sign_to: u8,
    /// Registers in order; [`NONE`] skips an element.
    pub regs: Box<[Slot]>,
    /// Index into the window cache.
    pub cache: u32,
    /// Volatile, relaxed, acquire …: what a spinning loop reads.
    pub strong: bool,
}

/// What an atomic does to the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtomOp {
    Add,
    Exch,
    Cas,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Min,
    Max,
}

/// `atom` and `red`.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    pub space: Space,
    pub addr: Addr,
    pub op: AtomOp,
    pub ty: Type,
    /// Old values; empty for `red`.
    pub dst: Box<[Slot]>,
    /// Operands, one an element.
    pub src: Box<[Slot]>,
    /// New value of `cas`.
    pub swap: Slot,
    pub cache: u32,
}

/// What `multimem` does with the memories of all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MultimemKind {
    LoadReduce,
    Store,
    Reduce,
}

/// `multimem`.
#[derive(Clone, Debug)]
pub(super) struct Multimem {
    pub kind: MultimemKind,
    pub space: Space,
    pub addr: Addr,
    /// Of no meaning for a store.
    pub op: AtomOp,
    pub ty: Type,
    pub elements: u32,
    /// `.acc::f32`: sums of halves are rounded once.
    pub in_f32: bool,
    /// Registers read or written, one an element; [`NONE`] skips one.
    pub regs: Box<[Slot]>,
    pub cache: u32,
}

/// How one actual parameter lies in the caller.
#[derive(Clone, Copy, Debug)]
pub(super) enum Actual {
    /// Bytes of the caller's frame.
    Frame(u32),
    /// A register or constant.
    Reg(Slot),
    /// A predicate.
    Pred(u32),
    /// Not wanted.
    Sink,
}

/// One parameter of a call: where it lies in the caller, at which offset of the callee's frame, how many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub actual: Actual,
    pub offset: u32,
    pub bytes: u32,
}

/// Who is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callee {
    /// Function number.
    Function(u32),
    /// Address in a register; the signature's hash must agree.
    Indirect(Slot),
    /// `vprintf`.
    Printf,
    /// `__assertfail`.
    AssertFail,
    /// `cudaGraphSetConditional`.
    SetCondition,
}

/// A call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub callee: Callee,
    pub args: Box<[Passing]>,
    pub returns: Box<[Passing]>,
    /// Bytes of parameters and returns that the callee's frame must begin with.
    pub shape: u32,
}

/// `bar` and `barrier`.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub id: Slot,
    /// [`NONE`]: all threads of the block.
    pub count: Slot,
    pub wait: bool,
    pub aligned: bool,
    pub reduce: Option<Reduce>,
}

/// The reduction of a barrier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduce {
    /// `None`: count the true ones.
    pub op: Option<Logic>,
    pub source: PredSrc,
    /// Register (popc) or predicate.
    pub dst: u32,
}

/// Instructions that lanes of a warp execute together.
#[derive(Clone, Debug)]
pub(super) struct Together {
    /// Who takes part; [`NONE`]: the executing lanes.
    pub members: Slot,
    pub op: TogetherOp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

#[derive(Clone, Debug)]
pub(super) enum TogetherOp {
    Barrier,
    Shfl { mode: ShflMode, dst: u32, valid: u32, value: Slot, lane: Slot, clamp: Slot },
    Vote { mode: VoteMode, dst: u32, source: PredSrc },
    Match { all: bool, dst: u32, pred: u32, value: Slot },
    Redux { op: ReduxOp, ty: Type, dst: u32, value: Slot },
    Elect { dst: u32, pred: u32 },
    Matrix(super::matrix::Matrix),
}

/// mbarrier operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MbarOp {
    Init,
    Inval,
    /// (drop, do not complete)
    Arrive {
        drop: bool,
    },
    /// Arrive and expect bytes first.
    ArriveExpect {
        drop: bool,
    },
    ExpectTx,
    CompleteTx,
    /// By state.
    Test {
        parity: bool,
        yields: bool,
    },
    PendingCount,
    /// `cp.async.mbarrier.arrive`: (whether the pending count grows first).
    AsyncArrive {
        noinc: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Mbar {
    pub op: MbarOp,
    pub space: Space,
    pub addr: Addr,
    /// Register (state) or predicate.
    pub dst: u32,
    pub arg: Slot,
}

/// `cp.async` and `cp.async.bulk` without tensors.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub dst_space: Space,
    pub dst: Addr,
    pub src_space: Space,
    pub src: Addr,
    /// Bytes written.
    pub bytes: Slot,
    /// Bytes read; the rest is zero. [`NONE`]: as `bytes`.
    pub src_bytes: Slot,
    /// If set, nothing is read and zeros are written.
    pub ignore: PredSrc,
    /// Alignment of both addresses and of the size.
    pub align: u32,
    pub barrier: Option<(Space, Addr)>,
    /// `.multicast::cluster`: blocks of the cluster, a bit each; [`NONE`]: the address says.
    pub multicast: Slot,
    /// `cp.reduce.async.bulk`.
    pub reduce: Option<(AtomOp, Type)>,
    pub cache: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Tid(u8),
    Ntid(u8),
    CtaId(u8),
    NctaId(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LaneMask(LaneMask),
    Clock,
    Clock64,
    ClockHi,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    EnvReg(u8),
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaId(u8),
    ClusterNctaId(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    IsExplicitCluster,
    DynamicSmem,
    TotalSmem,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneMask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Nop,
    Alu {
        f: LaneFn,
        mode: u32,
        dst: Slot,
        src: [Slot; 3],
    },
    Carry {
        f: CarryFn,
        write: bool,
        dst: Slot,
        src: [Slot; 3],
    },
    Test {
        f: TestFn,
        mode: u32,
        src: [Slot; 3],
        yes: u32,
        no: u32,
        logic: Logic,
        with: PredSrc,
    },
    /// As `Test`, into a register: `truth` where it holds, 0 elsewhere.
    Set {
        f: TestFn,
        mode: u32,
        src: [Slot; 3],
        dst: Slot,
        truth: u64,
        logic: Logic,
        with: PredSrc,
    },
    Logic {
        op: Logic,
        negate: bool,
        dst: u32,
        a: PredSrc,
        b: PredSrc,
    },
    Select {
        dst: Slot,
        a: Slot,
        b: Slot,
        p: PredSrc,
    },
    Special {
        dst: Slot,
        what: Special,
    },
    GlobalAddr {
        dst: Slot,
        index: u32,
        offset: i64,
    },
    LocalAddr {
        dst: Slot,
        offset: i64,
    },
    DynamicShared {
        dst: Slot,
        offset: i64,
    },
    /// Room at the end of the function's frame.
    Alloca {
        dst: Slot,
        bytes: Slot,
        align: u32,
    },
    /// Where the frame ends.
    StackSave {
        dst: Slot,
    },
    StackRestore {
        src: Slot,
    },
    ActiveMask {
        dst: Slot,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atom(Box<Atom>),
    Multimem(Box<Multimem>),
    Bra {
        target: u32,
    },
    BrxIdx {
        index: Slot,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    AfterCall(Box<Call>),
    Ret,
    Exit,
    Trap,
    Bar(Box<Bar>),
    ClusterArrive,
    ClusterWait,
    Together(Box<Together>),
    Mbar(Box<Mbar>),
    Copy(Box<Copy>),
    Yield,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Insn {
    pub op: Op,
    /// Predicate slot, or [`NONE`].
    pub guard: u32,
    pub guard_negated: bool,
    /// Line in the PTX text.
    pub line: u32,
    /// Index into the program's positions, or [`NONE`].
    pub position: u32,
    /// Index into the program's instruction names.
    pub name: u32,
}

/// A function with a body.
#[derive(Clone, Debug, Default)]
pub(super) struct Func {
    /// First instruction.
    pub start: u32,
    pub regs: u32,
    pub preds: u32,
    /// Registers that are zero when a warp starts; the others are written before they are read.
    pub clear: Vec<Slot>,
    pub constants: Vec<Lanes>,
    /// Bytes of its stack frame.
    pub frame: u32,
    /// See [`Call::shape`].
    pub shape: u32,
    /// Entries: start of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Whether it can be called.
    pub defined: bool,
}
