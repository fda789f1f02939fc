//! The syntax tree.

/// A parsed file.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `.version`: major, minor.
    pub version: (u32, u32),
    /// `.target`: the first is the architecture, such as `sm_90` or `sm_90a`.
    pub targets: Vec<String>,
    /// `.address_size`: 32 or 64.
    pub address_size: u32,
    /// `.file` table.
    pub files: Vec<SourceFile>,
    /// Module-scope variables in order.
    pub variables: Vec<Variable>,
    /// Entries and functions in order, declarations included.
    pub functions: Vec<Function>,
    /// `.alias`: (new name, function).
    pub aliases: Vec<(String, String)>,
}

/// One `.file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its number in `.loc`.
    pub index: u32,
    /// Its name as written.
    pub name: String,
}

/// Who else sees a symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// This module only.
    #[default]
    Internal,
    /// `.visible`.
    Visible,
    /// `.extern`: defined elsewhere.
    Extern,
    /// `.weak`.
    Weak,
    /// `.common`.
    Common,
}

/// State spaces of declarations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `.reg`.
    Reg,
    /// `.global`.
    Global,
    /// `.const`.
    Const,
    /// `.shared`.
    Shared,
    /// `.local`.
    Local,
    /// `.param`.
    Param,
    /// `.tex`.
    Tex,
}

/// Fundamental types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are PTX's own")]
pub enum Type {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    B128,
    F16,
    F16x2,
    F32,
    F64,
    Bf16,
    Bf16x2,
    Pred,
    TexRef,
    SamplerRef,
    SurfRef,
}

impl Type {
    /// From its name without the dot.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "pred" => Self::Pred,
            "texref" => Self::TexRef,
            "samplerref" => Self::SamplerRef,
            "surfref" => Self::SurfRef,
            _ => return None,
        })
    }

    /// Size in bytes; 1 for predicates, 8 for opaque references.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 | Self::B8 | Self::Pred => 1,
            Self::U16 | Self::S16 | Self::B16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::B32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::U64 | Self::S64 | Self::B64 | Self::F64 => 8,
            Self::TexRef | Self::SamplerRef | Self::SurfRef => 8,
            Self::B128 => 16,
        }
    }
}

/// `.ptr` of a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The space it points into; generic if absent.
    pub space: Option<Space>,
    /// The promised alignment in bytes (4 if absent, by PTX).
    pub align: u32,
}

/// A variable, parameter or register declaration.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Name. For `%r<18>` the prefix.
    pub name: String,
    /// Its space.
    pub space: Space,
    /// Element type.
    pub ty: Type,
    /// Elements of a vector type: 1, 2, 4 or 8.
    pub vector: u8,
    /// `.align`, bytes, a power of two.
    pub align: Option<u32>,
    /// Array extents; 0 for `[]`.
    pub dims: Vec<u64>,
    /// `%r<18>`: how many registers `prefix0`, `prefix1`, … there are.
    pub count: Option<u32>,
    /// `.ptr`, for kernel parameters.
    pub pointer: Option<Pointer>,
    /// Linkage.
    pub linkage: Linkage,
    /// `.attribute(.managed)`.
    pub managed: bool,
    /// Initial values by element number; elements not listed are zero.
    pub init: Vec<(u64, InitValue)>,
    /// Line.
    pub line: u32,
}

impl Variable {
    /// Size in bytes: 0 for `[]`, `None` beyond 2^63.
    pub fn bytes(&self) -> Option<u64> {
        let one = self.ty.bytes() * u64::from(self.vector);
        let all = self.dims.iter().try_fold(one, |size, &dim| size.checked_mul(dim))?;
        i64::try_from(all).ok().map(|_| all)
    }

    /// Alignment in bytes: `.align`, or what the type needs.
    pub fn alignment(&self) -> u32 {
        let natural = (self.ty.bytes() as u32) * u32::from(self.vector);
        self.align.unwrap_or(natural.next_power_of_two())
    }
}

/// One initial value.
#[derive(Clone, Debug, PartialEq)]
pub enum InitValue {
    /// An integer, two's complement.
    Integer(u64),
    /// The bits of an `f32`.
    Float32(u32),
    /// The bits of an `f64`.
    Float64(u64),
    /// Address of a symbol plus an offset.
    Symbol {
        /// Variable or function.
        name: String,
        /// Bytes added.
        offset: i64,
        /// `generic(name)`.
        generic: bool,
        /// `mask(name)`: which bits of the address, moved to the right.
        mask: Option<u64>,
    },
}

/// Entry or function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// `.entry`: a kernel.
    Entry,
    /// `.func`.
    Func,
}

/// Cluster directives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// `.reqnctapercluster`; missing extents are 1.
    pub required: Option<[u32; 3]>,
    /// `.explicitcluster`.
    pub explicit: bool,
    /// `.maxclusterrank`.
    pub max_rank: Option<u32>,
    /// `.blocksareclusters`.
    pub blocks_are_clusters: bool,
}

/// Directives between a function's head and its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// `.maxntid`; missing extents are 1.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`; missing extents are 1.
    pub required_block: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks: Option<u32>,
    /// `.maxnctapersm`.
    pub max_blocks: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// Cluster directives.
    pub cluster: Cluster,
    /// `.noreturn`.
    pub no_return: bool,
}

/// An entry or a function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Entry or function.
    pub kind: FunctionKind,
    /// Linkage.
    pub linkage: Linkage,
    /// Return parameters.
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
    /// Directives.
    pub attributes: FunctionAttributes,
    /// Statements, or `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    /// Line of its name.
    pub line: u32,
}

/// Types of an indirect call.
#[derive(Clone, Debug, Default)]
pub struct Prototype {
    /// Return parameters.
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `{`: a scope of names begins.
    Open,
    /// `}`: it ends.
    Close,
    /// `name:`.
    Label {
        /// Name.
        name: String,
        /// Line.
        line: u32,
    },
    /// A variable or registers.
    Variable(Variable),
    /// An instruction.
    Instruction(Instruction),
    /// `.loc`: the source position of what follows.
    Loc {
        /// Number in the `.file` table.
        file: u32,
        /// Line there.
        line: u32,
        /// Column there.
        column: u32,
    },
    /// `name: .branchtargets a, b, …;`
    BranchTargets {
        /// Name of the list.
        name: String,
        /// Labels.
        targets: Vec<String>,
        /// Line.
        line: u32,
    },
    /// `name: .calltargets f, g, …;`
    CallTargets {
        /// Name of the list.
        name: String,
        /// Functions.
        targets: Vec<String>,
        /// Line.
        line: u32,
    },
    /// `name: .callprototype (…) _ (…);`
    CallPrototype {
        /// Name of the prototype.
        name: String,
        /// Its types.
        prototype: Prototype,
        /// Line.
        line: u32,
    },
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// `@p` or `@!p`: (whether negated, predicate).
    pub guard: Option<(bool, String)>,
    /// What stands before the first dot.
    pub opcode: String,
    /// What stands after each dot, `::` included.
    pub modifiers: Vec<String>,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// Line.
    pub line: u32,
}

impl Instruction {
    /// Opcode and modifiers as written.
    pub fn name(&self) -> String {
        let mut name = self.opcode.clone();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }
}

/// One operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// Register, special register (`%tid.x`), variable, label or function.
    Name(String),
    /// `!p`.
    Not(String),
    /// An integer, two's complement in 64 bits.
    Integer(u64),
    /// `0f…`: the bits.
    Float32(u32),
    /// `0d…` or decimal: the bits.
    Float64(u64),
    /// `name+8` outside of brackets.
    Offset(String, i64),
    /// `[base+offset, more…]`.
    Address {
        /// Name or integer.
        base: Box<Operand>,
        /// Bytes added.
        offset: i64,
        /// What follows the base: coordinates of textures and tensors.
        more: Vec<Operand>,
    },
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    /// `_`.
    Sink,
    /// `(a, b)` of a call.
    Group(Vec<Operand>),
}
