//! Writes a kernel with as many operations as fit in one: valid bytecode for comparing our reading of each of
//! them with NVIDIA's disassembler.
//!
//!     cargo run -p simtile-image --features tile --example make_tile_wide -- artifacts/tile_wide/wide.tileirbc
//!     TILEIRDISASM=... scripts/tile-disassembly.sh --write

use ScalarType::*;
use cutile_ir::OpBuilder;
use cutile_ir::builder::{append_op, build_single_block_region};
use cutile_ir::bytecode::{BytecodeVersion, Opcode, write_bytecode_version};
use cutile_ir::ir::*;

type Attrs<'a> = &'a [(&'a str, Attribute)];

struct Kernel {
    module: Module,
    block: BlockId,
}

fn tile(shape: &[i64], scalar: ScalarType) -> Type {
    Type::Tile(TileType { shape: shape.to_vec(), element_type: TileElementType::Scalar(scalar) })
}

fn pointers(shape: &[i64], pointee: ScalarType) -> Type {
    let element_type = TileElementType::Pointer(Box::new(PointerType { pointee }));
    Type::Tile(TileType { shape: shape.to_vec(), element_type })
}

fn n(v: i64) -> Attribute {
    Attribute::i32(v)
}

fn groups(sizes: &[i64]) -> Attribute {
    Attribute::Array(sizes.iter().map(|&v| n(v)).collect())
}

impl Kernel {
    fn ops(
        &mut self,
        opcode: Opcode,
        operands: &[Value],
        attrs: Attrs<'_>,
        results: &[Type],
        regions: &[RegionId],
    ) -> Vec<Value> {
        let (op, values) = OpBuilder::new(opcode, Location::Unknown)
            .operands(operands.iter().copied())
            .attrs(attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())))
            .results(results.iter().cloned())
            .regions(regions.iter().copied())
            .build(&mut self.module);
        append_op(&mut self.module, self.block, op);
        values
    }

    /// One result.
    fn op(&mut self, opcode: Opcode, operands: &[Value], attrs: Attrs<'_>, result: Type) -> Value {
        self.ops(opcode, operands, attrs, &[result], &[])[0]
    }

    fn constant(&mut self, ty: Type, data: &[u8]) -> Value {
        let value = DenseElements { element_type: ty.clone(), shape: vec![], data: data.to_vec() };
        self.op(Opcode::Constant, &[], &[("value", Attribute::DenseElements(value))], ty)
    }

    /// A region of one block, filled by `f`.
    fn region(&mut self, args: &[Type], f: impl FnOnce(&mut Self, &[Value])) -> RegionId {
        let (region, block, args) = build_single_block_region(&mut self.module, args);
        let outer = std::mem::replace(&mut self.block, block);
        f(self, &args);
        self.block = outer;
        region
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let output = std::env::args().nth(1).ok_or("usage: make_tile_wide OUT")?;
    let module = wide();
    module.verify_bytecode_indices()?;
    std::fs::write(output, write_bytecode_version(&module, BytecodeVersion::V13_4)?)?;
    Ok(())
}

fn wide() -> Module {
    use Opcode::*;
    let mut module = cutile_ir::ir::Module::new("wide");
    let inputs = [pointers(&[], F32), pointers(&[], I32), tile(&[], I32), tile(&[], F32)];
    let (region, block, args) = build_single_block_region(&mut module, &inputs);
    let mut k = Kernel { module, block };
    let [pf, pi, si, sf] = args[..] else { unreachable!("four arguments") };

    let (ti, tf, tb) = (tile(&[128], I32), tile(&[128], F32), tile(&[128], I1));
    let int = k.op(Iota, &[], &[], ti.clone());
    let float = k.op(IToF, &[int], &[("signedness", n(1)), ("rounding_mode", n(0))], tf.clone());

    // Integers.
    for (opcode, attrs) in [
        (AddI, &[("overflow", n(1))][..]),
        (SubI, &[("overflow", n(2))]),
        (MulI, &[("overflow", n(3))]),
        (ShLI, &[("overflow", n(0))]),
        (ShRI, &[("signedness", n(0))]),
        (MaxI, &[("signedness", n(1))]),
        (MinI, &[("signedness", n(0))]),
        (RemI, &[("signedness", n(1))]),
        (DivI, &[("signedness", n(1)), ("rounding", n(2))]),
        (AndI, &[]),
        (OrI, &[]),
        (XOrI, &[]),
        (MulhiI, &[]),
    ] {
        k.op(opcode, &[int, int], attrs, ti.clone());
    }
    k.op(AbsI, &[int], &[], ti.clone());
    k.op(NegI, &[int], &[("overflow", n(1))], ti.clone());
    let wide_int = k.op(ExtI, &[int], &[("signedness", n(1))], tile(&[128], I64));
    k.op(TruncI, &[wide_int], &[("overflow", n(0))], tile(&[128], I16));
    let below = k.op(CmpI, &[int, int], &[("comparison_predicate", n(2)), ("signedness", n(0))], tb.clone());

    // Floats.
    for opcode in [AbsF, Ceil, Cos, CosH, Exp, Exp2, Floor, Log, Log2, NegF, Rsqrt, Sin, SinH, Tan, TanH] {
        k.op(opcode, &[float], &[], tf.clone());
    }
    k.op(Exp, &[float], &[("rounding_mode", n(4))], tf.clone());
    k.op(TanH, &[float], &[("rounding_mode", n(4))], tf.clone());
    k.op(Exp2, &[float], &[("flush_to_zero", Attribute::Bool(true))], tf.clone());
    k.op(Sqrt, &[float], &[("rounding_mode", n(3))], tf.clone());
    for (i, opcode) in [AddF, SubF, MulF, DivF].into_iter().enumerate() {
        let attrs = [("rounding_mode", n(i as i64)), ("flush_to_zero", Attribute::Bool(true))];
        k.op(opcode, &[float, float], &attrs, tf.clone());
    }
    for opcode in [MaxF, MinF] {
        k.op(opcode, &[float, float], &[("propagate_nan", Attribute::Bool(true))], tf.clone());
    }
    for opcode in [Atan2, Pow, RemF] {
        k.op(opcode, &[float, float], &[], tf.clone());
    }
    k.op(FPowI, &[float, int], &[], tf.clone());
    k.op(Fma, &[float, float, float], &[("rounding_mode", n(1))], tf.clone());
    let ordered = [("comparison_predicate", n(5)), ("comparison_ordering", n(1))];
    k.op(CmpF, &[float, float], &ordered, tb.clone());
    k.op(Select, &[below, float, float], &[], tf.clone());

    // Conversions and shapes.
    let half = k.op(FToF, &[float], &[("rounding_mode", n(0))], tile(&[128], F16));
    let to_int = [("signedness", n(0)), ("rounding_mode", n(6))];
    k.op(FToI, &[float], &to_int, ti.clone());
    let saturating = [("signedness", n(1)), ("rounding_mode", n(6)), ("saturating", Attribute::Bool(true))];
    k.op(FToI, &[float], &saturating, ti.clone());
    k.op(Bitcast, &[float], &[], ti.clone());
    let one = k.op(Reshape, &[sf], &[], tile(&[1, 1], F32));
    let square = k.op(Broadcast, &[one], &[], tile(&[32, 16], F32));
    let turned = [("permutation", Attribute::DenseI32Array(vec![1, 0]))];
    let turned = k.op(Permute, &[square], &turned, tile(&[16, 32], F32));
    k.op(Cat, &[square, square], &[("dim", n(1))], tile(&[32, 32], F32));
    let zero = k.constant(tile(&[], I32), &[0; 4]);
    k.op(Extract, &[square, zero, zero], &[], tile(&[8, 8], F32));
    let halves = k.op(Reshape, &[half], &[], tile(&[8, 16], F16));
    let other = k.op(Reshape, &[half], &[], tile(&[16, 8], F16));
    let sum = k.constant(tile(&[8, 8], F32), &1.5f32.to_le_bytes());
    k.op(MmaF, &[halves, other, sum], &[], tile(&[8, 8], F32));
    let bytes = k.constant(tile(&[16, 32], I8), &[0xFD]);
    let more = k.constant(tile(&[32, 16], I8), &[3]);
    let total = k.constant(tile(&[16, 16], I32), &[0xFF; 4]);
    let signs = [("signedness_lhs", n(1)), ("signedness_rhs", n(0))];
    k.op(MmaI, &[bytes, more, total], &signs, tile(&[16, 16], I32));

    // Constants of every width, and one with all its elements.
    for (scalar, data) in [
        (I1, &[0xFFu8][..]),
        (I8, &[0x81]),
        (I16, &[1, 0x80]),
        (I64, &[1, 2, 3, 4, 5, 6, 7, 0x88]),
        (F16, &[0, 0xBC]),
        (BF16, &[0x80, 0x3F]),
        (F64, &[0, 0, 0, 0, 0, 0, 4, 0xC0]),
    ] {
        k.constant(tile(&[4], scalar), data);
    }
    let all = DenseElements {
        element_type: tile(&[4], I32),
        shape: vec![4],
        data: [1i32, -2, 3, i32::MIN].iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    k.op(Constant, &[], &[("value", Attribute::DenseElements(all))], tile(&[4], I32));

    // Pointers, tokens and memory.
    let (token, ints, floats) = (Type::Token, pointers(&[128], I32), pointers(&[128], F32));
    let start = k.op(MakeToken, &[], &[], token.clone());
    let reshaped = k.op(Reshape, &[pf], &[], pointers(&[1], F32));
    let spread = k.op(Broadcast, &[reshaped], &[], floats.clone());
    let float_ptrs = k.op(Offset, &[spread, int], &[], floats.clone());
    let reshaped = k.op(Reshape, &[pi], &[], pointers(&[1], I32));
    let spread = k.op(Broadcast, &[reshaped], &[], ints.clone());
    let int_ptrs = k.op(Offset, &[spread, int], &[], ints.clone());
    let address = k.op(PtrToInt, &[float_ptrs], &[], tile(&[128], I64));
    k.op(IntToPtr, &[address], &[], floats.clone());
    k.op(PtrToPtr, &[float_ptrs], &[], ints.clone());
    let weak = ("memory_ordering_semantics", n(0));
    let loads: [(&[Value], &[i64], Attrs<'_>); 4] = [
        (&[float_ptrs], &[1, 0, 0, 0], &[]),
        (&[float_ptrs, below], &[1, 1, 0, 0], &[]),
        (&[float_ptrs, below, float], &[1, 1, 1, 0], &[]),
        (&[float_ptrs, below, float, start], &[1, 1, 1, 1], &[]),
    ];
    for (operands, sizes, more) in loads {
        let attrs = [&[weak.clone()][..], more, &[("operandSegmentSizes", groups(sizes))]].concat();
        k.ops(LoadPtrTko, operands, &attrs, &[tf.clone(), token.clone()], &[]);
    }
    let relaxed = [
        ("memory_ordering_semantics", n(1)),
        ("memory_scope", n(1)),
        ("operandSegmentSizes", groups(&[1, 0, 0, 1])),
    ];
    let loaded = k.ops(LoadPtrTko, &[int_ptrs, start], &relaxed, &[ti.clone(), token.clone()], &[]);
    let stores: [(&[Value], &[i64]); 3] = [
        (&[float_ptrs, float], &[1, 1, 0, 0]),
        (&[float_ptrs, float, below], &[1, 1, 1, 0]),
        (&[float_ptrs, float, below, start], &[1, 1, 1, 1]),
    ];
    let mut after = loaded[1];
    for (operands, sizes) in stores {
        let attrs = [weak.clone(), ("operandSegmentSizes", groups(sizes))];
        after = k.op(StorePtrTko, operands, &attrs, token.clone());
    }
    let release = [
        ("memory_ordering_semantics", n(3)),
        ("memory_scope", n(2)),
        ("operandSegmentSizes", groups(&[1, 1, 0, 1])),
    ];
    k.op(StorePtrTko, &[int_ptrs, int, after], &release, token.clone());
    let joined = k.op(JoinTokens, &[start, after], &[], token.clone());
    let attrs = [
        ("memory_ordering_semantics", n(4)),
        ("memory_scope", n(1)),
        ("mode", n(3)),
        ("operandSegmentSizes", groups(&[1, 1, 1, 1])),
    ];
    k.ops(AtomicRMW, &[int_ptrs, int, below, joined], &attrs, &[ti.clone(), token.clone()], &[]);
    let attrs = [
        ("memory_ordering_semantics", n(1)),
        ("memory_scope", n(2)),
        ("operandSegmentSizes", groups(&[1, 1, 1, 0, 1])),
    ];
    k.ops(AtomicCAS, &[int_ptrs, int, int, joined], &attrs, &[ti.clone(), token.clone()], &[]);

    // Views.
    let divided = Attribute::DivBy(DivBy { divisor: 16, every: None, along: None });
    let base = k.op(Assume, &[pf], &[("predicate", divided)], pointers(&[], F32));
    let bounded = Attribute::Bounded(Bounded { lb: Some(-5), ub: Some(1 << 20) });
    let extent = k.op(Assume, &[si], &[("predicate", bounded)], tile(&[], I32));
    let tensor = TensorViewType { element_type: F32, shape: vec![DYNAMIC, 64], strides: vec![DYNAMIC, 1] };
    let attrs = [("operandSegmentSizes", groups(&[1, 1, 1]))];
    let view = k.op(MakeTensorView, &[base, extent, extent], &attrs, Type::TensorView(tensor.clone()));
    let partition = Type::PartitionView(PartitionViewType {
        tile_shape: vec![32, 16],
        tensor_view: tensor.clone(),
        dim_map: vec![0, 1],
        padding_value: Some(PaddingValue::Nan),
    });
    let parts = k.op(MakePartitionView, &[view], &[], partition);
    let strided = Type::StridedView(StridedViewType {
        tile_shape: vec![32, 16],
        traversal_strides: vec![8, 16],
        tensor_view: tensor.clone(),
        dim_map: vec![0, 1],
        padding_value: None,
    });
    let steps = k.op(MakeStridedView, &[view], &[], strided);
    let sparse = Type::GatherScatterView(GatherScatterViewType {
        tile_shape: vec![128, 16],
        tensor_view: tensor,
        sparse_dim: 0,
        padding_value: Some(PaddingValue::Zero),
    });
    let gather = k.op(MakeGatherScatterView, &[view], &[], sparse);
    let scalar = tile(&[], I32);
    k.ops(GetTensorShape, &[view], &[], &[scalar.clone(), scalar.clone()], &[]);
    k.ops(GetIndexSpaceShape, &[parts], &[], &[scalar.clone(), scalar.clone()], &[]);
    let ids = k.ops(GetTileBlockId, &[], &[], &vec![scalar.clone(); 3], &[]);
    k.ops(GetNumTileBlocks, &[], &[], &vec![scalar.clone(); 3], &[]);
    for source in [parts, steps] {
        let attrs = [
            weak.clone(),
            ("inbounds", Attribute::dense_bool_array([true, false])),
            ("operandSegmentSizes", groups(&[1, 2, 1])),
        ];
        let types = [tile(&[32, 16], F32), token.clone()];
        k.ops(LoadViewTko, &[source, ids[0], ids[1], start], &attrs, &types, &[]);
    }
    let attrs = [weak.clone(), ("operandSegmentSizes", groups(&[1, 2, 0]))];
    let rows =
        k.ops(LoadViewTko, &[gather, int, ids[1]], &attrs, &[tile(&[128, 16], F32), token.clone()], &[]);
    let attrs = [weak.clone(), ("operandSegmentSizes", groups(&[1, 1, 2, 1]))];
    k.op(StoreViewTko, &[square, parts, ids[0], ids[1], start], &attrs, token.clone());
    k.op(StoreViewTko, &[rows[0], gather, int, ids[1], start], &attrs, token.clone());

    // Control flow.
    let flag =
        k.op(CmpI, &[si, zero], &[("comparison_predicate", n(4)), ("signedness", n(1))], tile(&[], I1));
    let pick = |k: &mut Kernel, v: Value| {
        k.ops(Yield, &[v], &[], &[], &[]);
    };
    let yes = k.region(&[], |k, _| pick(k, si));
    let no = k.region(&[], |k, _| pick(k, zero));
    let chosen = k.ops(If, &[flag], &[], std::slice::from_ref(&scalar), &[yes, no])[0];
    let step = k.constant(scalar.clone(), &[1, 0, 0, 0]);
    let body = k.region(&[scalar.clone(), tf.clone(), scalar.clone()], |k, a| {
        let next = k.op(AddF, &[a[1], a[1]], &[("rounding_mode", n(0))], tile(&[128], F32));
        let count = k.op(AddI, &[a[2], a[0]], &[("overflow", n(0))], tile(&[], I32));
        k.ops(Continue, &[next, count], &[], &[], &[]);
    });
    let results = [tf.clone(), scalar.clone()];
    k.ops(For, &[zero, chosen, step, float, zero], &[], &results, &[body]);
    let body = k.region(std::slice::from_ref(&scalar), |k, a| {
        let end = [("comparison_predicate", n(0)), ("signedness", n(1))];
        let done = k.op(CmpI, &[a[0], chosen], &end, tile(&[], I1));
        let leave = k.region(&[], |k, _| {
            k.ops(Break, &[a[0]], &[], &[], &[]);
        });
        let stay = k.region(&[], |k, _| {
            k.ops(Yield, &[], &[], &[], &[]);
        });
        k.ops(If, &[done], &[], &[], &[leave, stay]);
        let next = k.op(AddI, &[a[0], step], &[("overflow", n(0))], tile(&[], I32));
        k.ops(Continue, &[next], &[], &[], &[]);
    });
    k.ops(Loop, &[zero], &[], std::slice::from_ref(&scalar), &[body]);
    let pair = [tile(&[], I32), tile(&[], I32)];
    let least = k.region(&pair, |k, a| {
        let v = k.op(MinI, &[a[0], a[1]], &[("signedness", n(1))], tile(&[], I32));
        k.ops(Yield, &[v], &[], &[], &[]);
    });
    let identity = Attribute::Array(vec![Attribute::int(u32::MAX.into(), I32)]);
    k.ops(
        Reduce,
        &[int],
        &[("dim", n(0)), ("identities", identity)],
        std::slice::from_ref(&scalar),
        &[least],
    );
    let pair = [tile(&[], F32), tile(&[], F32)];
    let plus = k.region(&pair, |k, a| {
        let v = k.op(AddF, &[a[0], a[1]], &[("rounding_mode", n(0))], tile(&[], F32));
        k.ops(Yield, &[v], &[], &[], &[]);
    });
    let identity = Attribute::Array(vec![Attribute::float(0.5, F32)]);
    let attrs = [("dim", n(1)), ("reverse", Attribute::Bool(true)), ("identities", identity)];
    k.ops(Scan, &[turned], &attrs, &[tile(&[16, 32], F32)], &[plus]);

    // The rest.
    k.ops(Assert, &[flag], &[("message", Attribute::String("a \"quoted\" reason".into()))], &[], &[]);
    let attrs = [("str", Attribute::String("x = %d, %f\n".into())), ("operandSegmentSizes", groups(&[2, 1]))];
    k.op(Print, &[si, sf, start], &attrs, token.clone());
    let attrs = [("str", Attribute::String("none".into())), ("operandSegmentSizes", groups(&[0, 0]))];
    k.op(Print, &[], &attrs, token.clone());
    k.op(GetGlobal, &[], &[("name", Attribute::String("table".into()))], pointers(&[], I32));
    k.op(GdcWaitTko, &[start], &[], token.clone());
    k.op(GdcLaunchDependentsTko, &[], &[], token.clone());
    k.op(MemoryFenceAliasTko, &[start], &[], token.clone());
    let attrs = [("num_elem", n(64)), ("alignment", n(16))];
    k.op(Alloca, &[], &attrs, pointers(&[], F32));
    k.ops(Return, &[], &[], &[], &[]);

    let mut module = k.module;
    module.globals.push(cutile_ir::ir::Global {
        sym_name: "table".into(),
        value: DenseElements {
            element_type: tile(&[2], I32),
            shape: vec![2],
            data: vec![1, 0, 0, 0, 2, 0, 0, 0],
        },
        alignment: 16,
        constant: false,
        symbol_visibility: SymbolVisibility::Public,
    });
    let ty = Type::Func(FuncType { inputs: inputs.to_vec(), results: vec![] });
    let hints = OptimizationHints { entries: vec![("sm_90".into(), vec![("num_cta_in_cga".into(), n(2))])] };
    let (op, _) = OpBuilder::new(Entry, Location::Unknown)
        .attr("sym_name", Attribute::String("wide".into()))
        .attr("function_type", Attribute::Type(ty))
        .attr("optimization_hints", Attribute::OptimizationHints(hints))
        .region(region)
        .build(&mut module);
    module.functions.push(op);
    module
}
