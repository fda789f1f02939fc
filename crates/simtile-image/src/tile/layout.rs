//! What each operation's bytes are, after its opcode.
//!
//! One line an operation: the parts in the order in which they are written. Taken from `write_op_body` in cutile-ir
//! 0.5.0 `src/bytecode/op_writer.rs`; how many operands an operation has is not written there where it is fixed, and
//! was taken from the builders in that crate's `tests/per_op_roundtrip.rs` and checked on NVIDIA's disassembler
//! (`tests/tile_wide.rs`).

use super::attr::Kind;
use cutile_ir::bytecode::{BytecodeVersion, Opcode};

/// One part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// So many result types.
    Results(usize),
    /// A count, then result types.
    ResultList,
    /// A flag word with these bits, from this version; zero before.
    Flags(BytecodeVersion, u64),
    /// A flag word with these bits before 13.5 and those from then on.
    FlagsGrown(u64, u64),
    /// A required attribute.
    Attr(&'static str, Kind),
    /// A required attribute from this version; none before.
    AttrSince(BytecodeVersion, &'static str, Kind),
    /// An attribute that is there if this flag is set.
    AttrIf(u32, &'static str, Kind),
    /// An attribute that is the flag itself.
    Unit(u32, &'static str),
    /// So many operands.
    Operands(usize),
    /// One operand if this flag is set, not in a group.
    OperandIf(u32),
    /// A count, then operands.
    OperandList,
    /// A group of one operand.
    One,
    /// A group: a count, then operands.
    Many,
    /// A group of one operand if this flag is set, else an empty one.
    OneIf(u32),
    /// From this version: one byte for each operand of the next `Many`, as attribute `inbounds`.
    Inbounds(BytecodeVersion),
    /// A count, then regions.
    Regions,
    /// Something that a module cannot hold.
    Unsupported(&'static str),
}

const V13_2: BytecodeVersion = BytecodeVersion::V13_2;
const V13_3: BytecodeVersion = BytecodeVersion::V13_3;
const V13_4: BytecodeVersion = BytecodeVersion::V13_4;
const V13_5: BytecodeVersion = BytecodeVersion::V13_5;

// Enumerations of cutile-ir 0.5.0 `src/ir/attr.rs`, by their largest number.
const SIGNEDNESS: Kind = Kind::Enum(1);
const OVERFLOW: Kind = Kind::Enum(3);
const ROUNDING: Kind = Kind::Enum(7);
const PREDICATE: Kind = Kind::Enum(5);
const ORDERING: Kind = Kind::Enum(1);
const RMW: Kind = Kind::Enum(9);
const SCOPE: Kind = Kind::Enum(2);
const MEMORY: Kind = Kind::Enum(4);

/// The operation with this number and the parts of its body.
pub(super) fn layout(opcode: u64) -> Option<(Opcode, &'static [Part])> {
    // The table is ordered by number.
    TABLE.binary_search_by_key(&opcode, |(op, _)| u64::from(op.as_u16())).ok().map(|i| TABLE[i])
}

use Opcode::*;
use Part::{
    Attr, AttrIf, AttrSince, Flags, FlagsGrown, Inbounds, Many, One, OneIf, OperandIf, OperandList, Operands,
    Regions, ResultList, Results, Unit, Unsupported,
};

const UNARY: &[Part] = &[Results(1), Operands(1)];
const BINARY: &[Part] = &[Results(1), Operands(2)];
const TERNARY: &[Part] = &[Results(1), Operands(3)];
const THREE_INDICES: &[Part] = &[Results(3)];
const FLUSH_AND_ROUND_2: &[Part] =
    &[Results(1), Flags(V13_2, 1), Attr("rounding_mode", ROUNDING), Operands(2), Unit(0, "flush_to_zero")];
const OVERFLOW_2: &[Part] = &[Results(1), Attr("overflow", OVERFLOW), Operands(2)];
const SIGNED_2: &[Part] = &[Results(1), Attr("signedness", SIGNEDNESS), Operands(2)];
const FLUSH_1: &[Part] = &[Results(1), Flags(V13_2, 1), Operands(1), Unit(0, "flush_to_zero")];
const EXTREMUM: &[Part] =
    &[Results(1), Flags(V13_2, 3), Operands(2), Unit(0, "propagate_nan"), Unit(1, "flush_to_zero")];
const TERMINATOR: &[Part] = &[ResultList, OperandList];
const SHAPE_QUERY: &[Part] = &[ResultList, Operands(1)];
const GRID_DEPENDENCY: &[Part] = &[Results(1), Flags(V13_2, 1), OperandIf(0)];

/// All operations, ordered by number.
pub(super) const TABLE: &[(Opcode, &[Part])] = &[
    (AbsF, UNARY),
    (AbsI, UNARY),
    (AddF, FLUSH_AND_ROUND_2),
    (AddI, OVERFLOW_2),
    (AndI, BINARY),
    (Assert, &[Attr("message", Kind::Str), Operands(1)]),
    (Assume, &[Results(1), Attr("predicate", Kind::Tagged), Operands(1)]),
    (
        AtomicCAS,
        &[
            Results(2),
            Flags(V13_2, 3),
            Attr("memory_ordering_semantics", MEMORY),
            Attr("memory_scope", SCOPE),
            One,
            One,
            One,
            OneIf(0),
            OneIf(1),
        ],
    ),
    (
        AtomicRMW,
        &[
            Results(2),
            Flags(V13_2, 3),
            Attr("memory_ordering_semantics", MEMORY),
            Attr("memory_scope", SCOPE),
            Attr("mode", RMW),
            One,
            One,
            OneIf(0),
            OneIf(1),
        ],
    ),
    (Bitcast, UNARY),
    (Break, TERMINATOR),
    (Broadcast, UNARY),
    (Cat, &[Results(1), Attr("dim", Kind::Int), Operands(2)]),
    (Ceil, UNARY),
    (
        CmpF,
        &[
            Results(1),
            Attr("comparison_predicate", PREDICATE),
            Attr("comparison_ordering", ORDERING),
            Operands(2),
        ],
    ),
    (
        CmpI,
        &[Results(1), Attr("comparison_predicate", PREDICATE), Attr("signedness", SIGNEDNESS), Operands(2)],
    ),
    (Constant, &[Results(1), Attr("value", Kind::Dense)]),
    (Continue, TERMINATOR),
    (Cos, UNARY),
    (CosH, UNARY),
    (DivF, FLUSH_AND_ROUND_2),
    (DivI, &[Results(1), Attr("signedness", SIGNEDNESS), Attr("rounding", ROUNDING), Operands(2)]),
    (
        Entry,
        &[
            Flags(V13_2, 7),
            Attr("sym_name", Kind::Str),
            Attr("function_type", Kind::Ty),
            AttrIf(0, "arg_attrs", Kind::Array),
            AttrIf(1, "res_attrs", Kind::Array),
            AttrIf(2, "optimization_hints", Kind::Hints),
            Regions,
        ],
    ),
    (Exp, &[Results(1), AttrSince(V13_3, "rounding_mode", Kind::EnumOr(7, 5)), Operands(1)]),
    (Exp2, FLUSH_1),
    (ExtI, &[Results(1), Attr("signedness", SIGNEDNESS), Operands(1)]),
    (Extract, &[ResultList, OperandList]),
    (Floor, UNARY),
    (
        Fma,
        &[
            Results(1),
            Flags(V13_2, 1),
            Attr("rounding_mode", ROUNDING),
            Operands(3),
            Unit(0, "flush_to_zero"),
        ],
    ),
    (For, &[ResultList, Flags(V13_2, 1), OperandList, Regions, Unit(0, "unsigned_cmp")]),
    (FToF, &[Results(1), Attr("rounding_mode", ROUNDING), Operands(1)]),
    (
        FToI,
        &[
            Results(1),
            Flags(V13_4, 1),
            Attr("signedness", SIGNEDNESS),
            Attr("rounding_mode", ROUNDING),
            Operands(1),
            Unit(0, "saturating"),
        ],
    ),
    (GetGlobal, &[Results(1), Attr("name", Kind::Str)]),
    (GetIndexSpaceShape, SHAPE_QUERY),
    (GetNumTileBlocks, THREE_INDICES),
    (GetTensorShape, SHAPE_QUERY),
    (GetTileBlockId, THREE_INDICES),
    (Global, &[Unsupported("a global inside a function: its data has no type there")]),
    (If, &[ResultList, Operands(1), Regions]),
    (IntToPtr, UNARY),
    (Iota, &[Results(1)]),
    (IToF, &[Results(1), Attr("signedness", SIGNEDNESS), Attr("rounding_mode", ROUNDING), Operands(1)]),
    (JoinTokens, &[ResultList, OperandList]),
    (
        LoadPtrTko,
        &[
            Results(2),
            Flags(V13_2, 31),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            AttrIf(1, "optimization_hints", Kind::Hints),
            One,
            OneIf(2),
            OneIf(3),
            OneIf(4),
        ],
    ),
    (
        LoadViewTko,
        &[
            ResultList,
            FlagsGrown(7, 15),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            AttrIf(1, "optimization_hints", Kind::Hints),
            Inbounds(V13_4),
            AttrIf(3, "valid_check", Kind::Bool),
            One,
            Many,
            OneIf(2),
        ],
    ),
    (Log, UNARY),
    (Log2, UNARY),
    (Loop, &[ResultList, OperandList, Regions]),
    (MakePartitionView, UNARY),
    (MakeTensorView, &[ResultList, One, Many, Many]),
    (MakeToken, &[Results(1)]),
    (MaxF, EXTREMUM),
    (MaxI, SIGNED_2),
    (MinF, EXTREMUM),
    (MinI, SIGNED_2),
    (MmaF, &[Results(1), Flags(V13_3, 1), Operands(3), Unit(0, "fast_acc")]),
    (
        MmaI,
        &[Results(1), Attr("signedness_lhs", SIGNEDNESS), Attr("signedness_rhs", SIGNEDNESS), Operands(3)],
    ),
    (Module, &[Flags(V13_3, 1), Attr("sym_name", Kind::Str), AttrIf(0, "producer", Kind::Str), Regions]),
    (MulF, FLUSH_AND_ROUND_2),
    (MulhiI, BINARY),
    (MulI, OVERFLOW_2),
    (NegF, UNARY),
    (NegI, &[Results(1), Attr("overflow", Kind::EnumOr(3, 0)), Operands(1)]),
    (Offset, BINARY),
    (OrI, BINARY),
    (Permute, &[Results(1), Attr("permutation", Kind::I32s), Operands(1)]),
    (Pow, BINARY),
    (Print, &[ResultList, Flags(V13_2, 1), Attr("str", Kind::Str), Many, OneIf(0)]),
    (PtrToInt, UNARY),
    (PtrToPtr, UNARY),
    (Reduce, &[ResultList, Attr("dim", Kind::Int), Attr("identities", Kind::Array), OperandList, Regions]),
    (RemF, BINARY),
    (RemI, SIGNED_2),
    (Reshape, UNARY),
    (Return, TERMINATOR),
    (Rsqrt, FLUSH_1),
    (
        Scan,
        &[
            ResultList,
            Attr("dim", Kind::Int),
            Attr("reverse", Kind::Bool),
            Attr("identities", Kind::Array),
            OperandList,
            Regions,
        ],
    ),
    (Select, TERNARY),
    (ShLI, OVERFLOW_2),
    (ShRI, SIGNED_2),
    (Sin, UNARY),
    (SinH, UNARY),
    (
        Sqrt,
        &[
            Results(1),
            Flags(V13_2, 1),
            Attr("rounding_mode", ROUNDING),
            Operands(1),
            Unit(0, "flush_to_zero"),
        ],
    ),
    (
        StorePtrTko,
        &[
            Results(1),
            Flags(V13_2, 15),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            AttrIf(1, "optimization_hints", Kind::Hints),
            One,
            One,
            OneIf(2),
            OneIf(3),
        ],
    ),
    (
        StoreViewTko,
        &[
            ResultList,
            Flags(V13_2, 7),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            AttrIf(1, "optimization_hints", Kind::Hints),
            Inbounds(V13_4),
            One,
            One,
            Many,
            OneIf(2),
        ],
    ),
    (SubF, FLUSH_AND_ROUND_2),
    (SubI, OVERFLOW_2),
    (Tan, UNARY),
    (TanH, &[Results(1), Attr("rounding_mode", Kind::EnumOr(7, 5)), Operands(1)]),
    (TruncI, &[Results(1), Attr("overflow", OVERFLOW), Operands(1)]),
    (XOrI, BINARY),
    (Yield, TERMINATOR),
    (Atan2, BINARY),
    (Pack, UNARY),
    (Unpack, UNARY),
    (
        Alloca,
        &[
            Results(1),
            Flags(V13_2, 1),
            Attr("num_elem", Kind::Int),
            Attr("alignment", Kind::Int),
            Unit(0, "global"),
        ],
    ),
    (MmaFScaled, &[Results(1), Operands(5)]),
    (MakeGatherScatterView, UNARY),
    (MakeStridedView, UNARY),
    (
        AtomicRedViewTko,
        &[
            ResultList,
            Flags(V13_2, 1),
            Attr("memory_ordering_semantics", MEMORY),
            Attr("memory_scope", SCOPE),
            Attr("mode", RMW),
            Inbounds(V13_5),
            One,
            Many,
            One,
            OneIf(0),
        ],
    ),
    (Insert, &[ResultList, OperandList]),
    (GdcLaunchDependentsTko, GRID_DEPENDENCY),
    (GdcWaitTko, GRID_DEPENDENCY),
    (FPowI, BINARY),
    (MemoryFenceAliasTko, UNARY),
    (
        MultimemLoadReduceViewTko,
        &[
            ResultList,
            Flags(V13_2, 3),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            Attr("reduction", Kind::EnumOr(u64::MAX, 0)),
            Inbounds(V13_5),
            One,
            Many,
            OneIf(1),
        ],
    ),
    (
        MultimemReduceViewTko,
        &[
            ResultList,
            Flags(V13_2, 1),
            Attr("memory_ordering_semantics", MEMORY),
            Attr("memory_scope", SCOPE),
            Attr("reduction", Kind::EnumOr(u64::MAX, 0)),
            Inbounds(V13_5),
            One,
            One,
            Many,
            OneIf(0),
        ],
    ),
    (
        MultimemStoreViewTko,
        &[
            ResultList,
            Flags(V13_2, 3),
            Attr("memory_ordering_semantics", MEMORY),
            AttrIf(0, "memory_scope", SCOPE),
            Inbounds(V13_5),
            One,
            One,
            Many,
            OneIf(1),
        ],
    ),
    (
        PreviewCall,
        &[
            ResultList,
            Flags(V13_2, 0),
            Attr("callee", Kind::Str),
            Attr("const_args", Kind::Array),
            OperandList,
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_opcode_in_order() {
        assert!(TABLE.is_sorted_by(|a, b| a.0.as_u16() < b.0.as_u16()));
        assert_eq!(TABLE.len(), cutile_ir::requirements::OPCODES.len());
        for op in cutile_ir::requirements::OPCODES {
            assert_eq!(layout(op.as_u16().into()).map(|l| l.0), Some(*op));
        }
        assert!(layout(0x19).is_none());
    }

    /// The reader's counts agree with what the writer's verifier expects, where the writer does not write one.
    #[test]
    fn fixed_result_counts_agree() {
        for (op, parts) in TABLE {
            let own = match parts.first() {
                Some(Results(n)) => Some(*n),
                Some(ResultList) => None,
                _ => Some(0),
            };
            // `atomic_red_view_tko` is listed as fixed there, but written with a count.
            if *op != AtomicRedViewTko {
                assert_eq!(own, op.fixed_result_count(), "{op:?}");
            }
        }
    }
}
