//! Random modules.

use cutile_ir::OpBuilder;
use cutile_ir::builder::{append_op, build_block, build_single_block_region};
use cutile_ir::bytecode::{BytecodeVersion, Opcode};
use cutile_ir::ir::*;
use std::collections::BTreeSet;

pub fn tile(shape: &[i64], scalar: ScalarType) -> Type {
    Type::Tile(TileType { shape: shape.to_vec(), element_type: TileElementType::Scalar(scalar) })
}

/// A module of a few functions; records which operations it has.
pub fn any_module(seed: u64, version: BytecodeVersion, seen: &mut BTreeSet<u16>) -> Module {
    let mut g = Generator::new(seed ^ u64::from(version.minor) << 32, version);
    let mut module = Module::new("module");
    if version >= BytecodeVersion::V13_3 && g.chance(3) {
        module.producer = Some(g.text());
    }
    for _ in 0..g.below(3) {
        let global = g.global();
        module.globals.push(global);
    }
    for _ in 0..1 + g.below(3) {
        g.function(&mut module);
    }
    seen.extend(g.seen);
    module
}

pub struct Generator {
    state: u64,
    version: BytecodeVersion,
    seen: BTreeSet<u16>,
}

/// How an operation takes its operands.
enum Operands {
    Fixed(usize),
    /// A list of any length.
    List,
    /// Groups: (least, most) operands each.
    Groups(&'static [(usize, usize)]),
}

use Operands::{Fixed, Groups, List};

impl Generator {
    pub fn new(seed: u64, version: BytecodeVersion) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, version, seen: BTreeSet::new() }
    }

    /// xorshift64*
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn text(&mut self) -> String {
        let words =
            ["", "a", "äöü", "kernel", "x\0y", "value = %f\n", "sm_90", "dim", "long text that is shared"];
        self.pick(&words).to_owned()
    }

    fn name(&mut self) -> String {
        format!("f{}", self.next() % 1000)
    }

    fn scalar(&mut self) -> ScalarType {
        use ScalarType::*;
        let all = [
            I1, I4, I8, I16, I32, I64, F16, BF16, F32, TF32, F64, F8E4M3FN, F8E5M2, F8E8M0FNU, F4E2M1FN,
            F8E5M3FNU,
        ];
        loop {
            let s = self.pick(&all);
            if s.minimum_version() <= self.version {
                return s;
            }
        }
    }

    fn dims(&mut self, dynamic: bool) -> Vec<i64> {
        (0..self.below(4))
            .map(|_| if dynamic && self.chance(2) { DYNAMIC } else { 1 << self.below(12) })
            .collect()
    }

    fn dims32(&mut self) -> Vec<i32> {
        (0..self.below(4)).map(|_| 1 << self.below(10)).collect()
    }

    fn tensor_view(&mut self) -> TensorViewType {
        TensorViewType { element_type: self.scalar(), shape: self.dims(true), strides: self.dims(true) }
    }

    fn padding(&mut self) -> Option<PaddingValue> {
        use PaddingValue::*;
        self.pick(&[None, Some(Zero), Some(NegZero), Some(Nan), Some(PosInf), Some(NegInf)])
    }

    pub fn ty(&mut self) -> Type {
        let views = if self.version >= BytecodeVersion::V13_3 { 8 } else { 6 };
        let ty = match self.below(views) {
            0 => return Type::Token,
            1 => return Type::Scalar(self.scalar()),
            2 => return tile(&self.dims(false), self.scalar()),
            3 => Type::Tile(TileType {
                shape: self.dims(false),
                element_type: TileElementType::Pointer(Box::new(PointerType { pointee: self.scalar() })),
            }),
            4 => match self.chance(2) {
                true => Type::TensorView(self.tensor_view()),
                false => Type::Pointer(PointerType { pointee: self.scalar() }),
            },
            5 => Type::PartitionView(PartitionViewType {
                tile_shape: self.dims32(),
                tensor_view: self.tensor_view(),
                dim_map: self.dims32(),
                padding_value: self.padding(),
            }),
            6 => Type::GatherScatterView(GatherScatterViewType {
                tile_shape: self.dims32(),
                tensor_view: self.tensor_view(),
                sparse_dim: self.below(4) as i32,
                padding_value: self.padding(),
            }),
            _ => Type::StridedView(StridedViewType {
                tile_shape: self.dims32(),
                traversal_strides: self.dims32(),
                tensor_view: self.tensor_view(),
                dim_map: self.dims32(),
                padding_value: self.padding(),
            }),
        };
        if self.version >= BytecodeVersion::V13_4 && self.chance(3) {
            let fabric = self.version >= BytecodeVersion::V13_5;
            let attribute = match self.below(3) {
                1 if fabric => PointerAttribute::Unicast,
                2 if fabric => PointerAttribute::Multicast,
                _ => PointerAttribute::None,
            };
            return ty.with_pointer_attribute(attribute);
        }
        ty
    }

    fn types(&mut self, n: usize) -> Vec<Type> {
        (0..n).map(|_| self.ty()).collect()
    }

    /// A tile of scalars with constant data for it.
    fn dense(&mut self) -> DenseElements {
        let scalar = self.scalar();
        let shape: Vec<i64> = (0..self.below(3)).map(|_| 1 << self.below(4)).collect();
        let count = shape.iter().product::<i64>() as usize;
        let splat = count == 1 || self.chance(2);
        let bytes = match (scalar, splat) {
            (ScalarType::I1, true) => 1,
            (ScalarType::I1, false) => count.div_ceil(8),
            (ScalarType::TF32, true) => 3,
            (ScalarType::TF32, false) => count * 3,
            (_, true) => scalar.byte_width(),
            (_, false) => count * scalar.byte_width(),
        };
        let mut data: Vec<u8> = (0..bytes).map(|_| self.next() as u8).collect();
        // A byte for two to eight bits is a splat if it is 0 or 255.
        if scalar == ScalarType::I1 && (2..=8).contains(&count) {
            data[0] = if splat { 0xFF * (data[0] & 1) } else { 0x05 };
        }
        let element_type = tile(&shape, scalar);
        DenseElements { element_type, shape: if splat { vec![] } else { shape }, data }
    }

    fn global(&mut self) -> Global {
        let new = self.version >= BytecodeVersion::V13_3;
        Global {
            sym_name: self.name(),
            value: self.dense(),
            alignment: 1 << self.below(10),
            constant: new && self.chance(2),
            symbol_visibility: match new && self.chance(2) {
                true => SymbolVisibility::Private,
                false => SymbolVisibility::Public,
            },
        }
    }

    /// An attribute with a tag.
    fn tagged(&mut self, depth: usize) -> Attribute {
        match self.below(if depth < 3 { 12 } else { 8 }) {
            0 => {
                let (ty, mask) = self.pick(&[
                    (ScalarType::I1, 1),
                    (ScalarType::I8, 0xFF),
                    (ScalarType::I16, 0xFFFF),
                    (ScalarType::I32, u32::MAX.into()),
                    (ScalarType::I64, u64::MAX),
                ]);
                Attribute::int((self.next() & mask) as i64, ty)
            }
            1 => {
                let ty = self.pick(&[ScalarType::F16, ScalarType::BF16, ScalarType::F32, ScalarType::F64]);
                Attribute::float(self.pick(&[0.0, -1.0, 0.5, 448.0, f64::INFINITY, f64::NEG_INFINITY]), ty)
            }
            2 => Attribute::Bool(self.chance(2)),
            3 => Attribute::Type(self.ty()),
            4 => Attribute::String(self.text()),
            5 => Attribute::DivBy(DivBy {
                divisor: 1 << self.below(40),
                every: self.chance(2).then(|| self.below(100) as i64),
                along: self.chance(2).then(|| -(self.below(100) as i64)),
            }),
            6 => Attribute::SameElements(SameElements {
                values: (0..self.below(4)).map(|_| self.next() as i64).collect(),
            }),
            7 => Attribute::Bounded(Bounded {
                lb: self.chance(2).then(|| i64::MIN >> self.below(60)),
                ub: self.chance(2).then(|| i64::MAX >> self.below(60)),
            }),
            8 => Attribute::DenseElements(self.dense()),
            9 => Attribute::Array((0..self.below(4)).map(|_| self.tagged(depth + 1)).collect()),
            10 => Attribute::Dictionary(
                (0..self.below(3)).map(|_| (self.text(), self.tagged(depth + 1))).collect(),
            ),
            _ => self.hints(),
        }
    }

    fn hints(&mut self) -> Attribute {
        let mut keys = vec!["num_cta_in_cga", "occupancy", "latency", "allow_tma"];
        let mut targets = vec!["default", "sm_80", "sm_100", "sm_120"];
        if self.version >= BytecodeVersion::V13_3 {
            keys.push("num_worker_warps_per_cta");
            targets.push("sm_90");
        }
        if self.version >= BytecodeVersion::V13_5 {
            keys.push("min_ctas_per_sm");
        }
        let entries = (0..1 + self.below(2)).map(|_| {
            let values = (0..self.below(3))
                .map(|_| (self.pick(&keys).to_owned(), Attribute::i32(self.below(8) as i64)));
            let values = values.collect();
            (self.pick(&targets).to_owned(), values)
        });
        Attribute::OptimizationHints(OptimizationHints { entries: entries.collect() })
    }

    fn file(&mut self) -> DIFile {
        DIFile {
            name: self.pick(&["a.py", "b.rs"]).to_owned(),
            directory: self.pick(&["", "src"]).to_owned(),
        }
    }

    fn scope(&mut self, depth: usize) -> DebugScope {
        if depth < 3 && self.chance(2) {
            return DebugScope::LexicalBlock(DILexicalBlock {
                scope: Box::new(self.scope(depth + 1)),
                file: self.file(),
                line: self.below(500) as u32,
                column: self.below(80) as u32,
            });
        }
        DebugScope::Subprogram(DISubprogram {
            file: self.file(),
            line: self.below(500) as u32,
            name: self.name(),
            linkage_name: self.name(),
            compile_unit: DICompileUnit { file: self.file() },
            scope_line: self.below(500) as u32,
            is_declaration: self.version >= BytecodeVersion::V13_5 && self.chance(4),
        })
    }

    fn location(&mut self, depth: usize) -> Location {
        match self.below(6) {
            0 => Location::Unknown,
            1 if depth < 3 => {
                // A call site without a callee's location is written as no location.
                let callee = Location::DebugInfo(self.line());
                Location::CallSite { callee: Box::new(callee), caller: Box::new(self.location(depth + 1)) }
            }
            _ => Location::DebugInfo(self.line()),
        }
    }

    fn line(&mut self) -> DebugInfoLoc {
        let line = if self.chance(9) { u32::MAX } else { self.below(500) as u32 };
        let column = self.below(80) as u32;
        DebugInfoLoc {
            filename: self.pick(&["a.py", "b.rs", ""]).to_owned(),
            line,
            column,
            scope: self.scope(0),
        }
    }

    fn function(&mut self, module: &mut Module) {
        let n = 1 + self.below(5);
        let inputs = self.types(n);
        let (region, block, args) = build_single_block_region(module, &inputs);
        let n = self.below(25);
        self.body(module, block, args, n, 0);
        let results = if self.chance(4) { self.types(1) } else { vec![] };
        let mut entry = OpBuilder::new(Opcode::Entry, self.location(0))
            .attr("sym_name", Attribute::String(self.name()))
            .attr("function_type", Attribute::Type(Type::Func(FuncType { inputs: inputs.clone(), results })));
        if self.chance(2) {
            entry = entry.attr("optimization_hints", self.hints());
        }
        if self.version >= BytecodeVersion::V13_5 && self.chance(2) {
            // Dictionaries that are all empty are written as no attributes.
            let mut dicts: Vec<Vec<(String, Attribute)>> = inputs
                .iter()
                .map(|_| (0..self.below(2)).map(|_| (self.text(), self.tagged(2))).collect())
                .collect();
            dicts[0].push(("first".into(), Attribute::Bool(true)));
            entry = entry
                .attr("arg_attrs", Attribute::Array(dicts.into_iter().map(Attribute::Dictionary).collect()));
        }
        let (op, _) = entry.region(region).build(module);
        module.functions.push(op);
    }

    /// Appends `n` random operations that use `values` and what they define.
    fn body(&mut self, module: &mut Module, block: BlockId, mut values: Vec<Value>, n: usize, depth: usize) {
        for _ in 0..n {
            let opcode = self.pick(cutile_ir::requirements::OPCODES);
            let op = self.op(module, opcode, &values, depth);
            if let Some((op, results)) = op {
                append_op(module, block, op);
                values.extend(results);
            }
        }
    }

    fn region(&mut self, module: &mut Module, values: &[Value], depth: usize) -> RegionId {
        let blocks = (0..self.below(3)).map(|_| {
            let n = self.below(3);
            let (block, args) = build_block(module, &self.types(n));
            let inner = values.iter().copied().chain(args).collect();
            let n = self.below(5);
            self.body(module, block, inner, n, depth + 1);
            block
        });
        let blocks = blocks.collect();
        module.alloc_region(Region { blocks })
    }

    /// A module with one operation over its arguments.
    pub fn single_op(
        &mut self,
        opcode: Opcode,
        inputs: &[Type],
        results: &[Type],
        attributes: Vec<(&str, Attribute)>,
    ) -> Module {
        let mut module = Module::new("module");
        let (region, block, args) = build_single_block_region(&mut module, inputs);
        let (op, _) = OpBuilder::new(opcode, Location::Unknown)
            .operands(args)
            .results(results.iter().cloned())
            .attrs(attributes.into_iter().map(|(k, v)| (k.to_owned(), v)))
            .build(&mut module);
        append_op(&mut module, block, op);
        let ty = Type::Func(FuncType { inputs: inputs.to_vec(), results: vec![] });
        let (op, _) = OpBuilder::new(Opcode::Entry, Location::Unknown)
            .attr("sym_name", Attribute::String("f".into()))
            .attr("function_type", Attribute::Type(ty))
            .region(region)
            .build(&mut module);
        module.functions.push(op);
        module
    }

    /// One operation, or nothing where it cannot stand.
    fn op(
        &mut self,
        module: &mut Module,
        opcode: Opcode,
        values: &[Value],
        depth: usize,
    ) -> Option<(OpId, Vec<Value>)> {
        use Opcode::*;
        let (v13_3, v13_4, v13_5) = (BytecodeVersion::V13_3, BytecodeVersion::V13_4, BytecodeVersion::V13_5);
        let version = self.version;
        if opcode.minimum_version() > version || opcode == Global {
            return None;
        }
        // The writer has rules for `return` inside loops.
        if opcode == Return && depth > 0 {
            return None;
        }
        let has_regions = matches!(opcode, For | Loop | If | Reduce | Scan | Module | Entry);
        if has_regions && depth > 3 {
            return None;
        }

        let mut attrs: Vec<(&'static str, Attribute)> = Vec::new();
        let results = match opcode {
            AtomicRedViewTko => 1,
            _ => opcode.fixed_result_count().unwrap_or_else(|| self.below(4)),
        };
        let mut results = self.types(results);
        let enumeration = |g: &mut Self, n: usize| Attribute::i32(g.below(n) as i64);
        let rounding = |g: &mut Self| enumeration(g, if version >= v13_4 { 8 } else { 7 });
        // Units come last, as the reader puts them.
        let mut units: Vec<&'static str> = Vec::new();
        let operands = match opcode {
            Assert => {
                attrs.push(("message", Attribute::String(self.text())));
                Fixed(1)
            }
            Assume => {
                attrs.push(("predicate", self.tagged(0)));
                Fixed(1)
            }
            AbsF
            | AbsI
            | Bitcast
            | Broadcast
            | Ceil
            | Cos
            | CosH
            | Floor
            | IntToPtr
            | Log
            | Log2
            | MakeGatherScatterView
            | MakePartitionView
            | MakeStridedView
            | MemoryFenceAliasTko
            | NegF
            | Pack
            | PtrToInt
            | PtrToPtr
            | Reshape
            | Sin
            | SinH
            | Tan
            | Unpack
            | GetIndexSpaceShape
            | GetTensorShape
            | If => Fixed(1),
            AndI | Atan2 | FPowI | MulhiI | Offset | OrI | Pow | RemF | XOrI => Fixed(2),
            Select => Fixed(3),
            MmaFScaled => Fixed(5),
            GetNumTileBlocks | GetTileBlockId | Iota | MakeToken => Fixed(0),
            AddI | MulI | SubI | ShLI => {
                attrs.push(("overflow", enumeration(self, 4)));
                Fixed(2)
            }
            TruncI => {
                attrs.push(("overflow", enumeration(self, 4)));
                Fixed(1)
            }
            NegI => {
                if self.chance(2) {
                    attrs.push(("overflow", Attribute::i32(1 + self.below(3) as i64)));
                }
                Fixed(1)
            }
            TanH | Exp => {
                if self.chance(2) && (opcode == TanH || version >= v13_3) {
                    attrs.push(("rounding_mode", enumeration(self, 5)));
                }
                Fixed(1)
            }
            ShRI | MaxI | MinI | RemI => {
                attrs.push(("signedness", enumeration(self, 2)));
                Fixed(2)
            }
            ExtI => {
                attrs.push(("signedness", enumeration(self, 2)));
                Fixed(1)
            }
            Cat => {
                attrs.push(("dim", enumeration(self, 8)));
                Fixed(2)
            }
            Permute => {
                attrs.push(("permutation", Attribute::DenseI32Array(self.dims32())));
                Fixed(1)
            }
            CmpF => {
                attrs.push(("comparison_predicate", enumeration(self, 6)));
                attrs.push(("comparison_ordering", enumeration(self, 2)));
                Fixed(2)
            }
            CmpI => {
                attrs.push(("comparison_predicate", enumeration(self, 6)));
                attrs.push(("signedness", enumeration(self, 2)));
                Fixed(2)
            }
            Constant => {
                let value = self.dense();
                results = vec![value.element_type.clone()];
                attrs.push(("value", Attribute::DenseElements(value)));
                Fixed(0)
            }
            DivI => {
                attrs.push(("signedness", enumeration(self, 2)));
                attrs.push(("rounding", enumeration(self, 7)));
                Fixed(2)
            }
            FToF => {
                attrs.push(("rounding_mode", rounding(self)));
                Fixed(1)
            }
            FToI | IToF => {
                attrs.push(("signedness", enumeration(self, 2)));
                attrs.push(("rounding_mode", rounding(self)));
                if opcode == FToI && version >= v13_4 {
                    units.push("saturating");
                }
                Fixed(1)
            }
            MmaI => {
                attrs.push(("signedness_lhs", enumeration(self, 2)));
                attrs.push(("signedness_rhs", enumeration(self, 2)));
                Fixed(3)
            }
            MmaF => {
                if version >= v13_3 {
                    units.push("fast_acc");
                }
                Fixed(3)
            }
            AddF | SubF | MulF | DivF | Fma | Sqrt => {
                attrs.push(("rounding_mode", rounding(self)));
                units.push("flush_to_zero");
                Fixed(match opcode {
                    Fma => 3,
                    Sqrt => 1,
                    _ => 2,
                })
            }
            Exp2 | Rsqrt => {
                units.push("flush_to_zero");
                Fixed(1)
            }
            MaxF | MinF => {
                units.extend(["propagate_nan", "flush_to_zero"]);
                Fixed(2)
            }
            Alloca => {
                attrs.push(("num_elem", Attribute::int(1 << self.below(40), ScalarType::I64)));
                attrs.push(("alignment", Attribute::i32(1 << self.below(10))));
                units.push("global");
                Fixed(0)
            }
            GetGlobal => {
                attrs.push(("name", Attribute::String(self.text())));
                Fixed(0)
            }
            JoinTokens | Extract | Insert | Break | Continue | Return | Yield | Loop => List,
            For => {
                units.push("unsigned_cmp");
                List
            }
            Reduce | Scan => {
                attrs.push(("dim", enumeration(self, 4)));
                if opcode == Scan {
                    attrs.push(("reverse", Attribute::Bool(self.chance(2))));
                }
                let identities = (0..self.below(3)).map(|_| self.tagged(2)).collect();
                attrs.push(("identities", Attribute::Array(identities)));
                List
            }
            Print => {
                attrs.push(("str", Attribute::String(self.text())));
                Groups(&[(0, 3), (0, 1)])
            }
            MakeTensorView => Groups(&[(1, 1), (0, 3), (0, 3)]),
            AtomicCAS | AtomicRMW => {
                attrs.push(("memory_ordering_semantics", enumeration(self, 5)));
                attrs.push(("memory_scope", enumeration(self, 3)));
                if opcode == AtomicRMW {
                    attrs.push(("mode", enumeration(self, 10)));
                    Groups(&[(1, 1), (1, 1), (0, 1), (0, 1)])
                } else {
                    Groups(&[(1, 1), (1, 1), (1, 1), (0, 1), (0, 1)])
                }
            }
            LoadPtrTko | LoadViewTko | StorePtrTko | StoreViewTko => {
                attrs.push(("memory_ordering_semantics", enumeration(self, 5)));
                if self.chance(2) {
                    attrs.push(("memory_scope", enumeration(self, 3)));
                }
                if self.chance(2) {
                    attrs.push(("optimization_hints", self.hints()));
                }
                match opcode {
                    LoadPtrTko => Groups(&[(1, 1), (0, 1), (0, 1), (0, 1)]),
                    LoadViewTko => Groups(&[(1, 1), (0, 4), (0, 1)]),
                    StorePtrTko => Groups(&[(1, 1), (1, 1), (0, 1), (0, 1)]),
                    _ => Groups(&[(1, 1), (1, 1), (0, 4), (0, 1)]),
                }
            }
            AtomicRedViewTko => {
                attrs.push(("memory_ordering_semantics", enumeration(self, 5)));
                attrs.push(("memory_scope", enumeration(self, 3)));
                attrs.push(("mode", enumeration(self, 10)));
                Groups(&[(1, 1), (0, 4), (1, 1), (0, 1)])
            }
            MultimemLoadReduceViewTko | MultimemReduceViewTko | MultimemStoreViewTko => {
                attrs.push(("memory_ordering_semantics", enumeration(self, 5)));
                if opcode == MultimemReduceViewTko || self.chance(2) {
                    attrs.push(("memory_scope", enumeration(self, 3)));
                }
                if opcode != MultimemStoreViewTko && self.chance(2) {
                    attrs.push(("reduction", Attribute::i32(1 + self.below(8) as i64)));
                }
                match opcode {
                    MultimemLoadReduceViewTko => Groups(&[(1, 1), (0, 4), (0, 1)]),
                    _ => Groups(&[(1, 1), (1, 1), (0, 4), (0, 1)]),
                }
            }
            GdcLaunchDependentsTko | GdcWaitTko => Fixed(self.below(2)),
            PreviewCall => {
                attrs.push(("callee", Attribute::String(self.text())));
                let args = (0..self.below(4)).map(|_| {
                    Attribute::PreviewConstArg(match self.below(3) {
                        0 => PreviewConstArg::Int(self.next() as i64),
                        1 => PreviewConstArg::Str(self.text()),
                        _ => PreviewConstArg::Datatype(Type::Scalar(self.scalar())),
                    })
                });
                let args = args.collect();
                attrs.push(("const_args", Attribute::Array(args)));
                List
            }
            Module => {
                attrs.push(("sym_name", Attribute::String(self.text())));
                if version >= v13_3 && self.chance(2) {
                    attrs.push(("producer", Attribute::String(self.text())));
                }
                Fixed(0)
            }
            Entry => {
                attrs.push(("sym_name", Attribute::String(self.text())));
                attrs.push(("function_type", Attribute::Type(self.ty())));
                if self.chance(2) && version >= v13_5 {
                    let values = vec![("k".to_owned(), Attribute::Bool(true))];
                    attrs.push(("arg_attrs", Attribute::Array(vec![Attribute::Dictionary(values)])));
                }
                if self.chance(2) {
                    attrs.push(("res_attrs", Attribute::Array(vec![self.tagged(2)])));
                }
                if self.chance(2) {
                    attrs.push(("optimization_hints", self.hints()));
                }
                Fixed(0)
            }
            Global => return None,
        };

        let mut used = Vec::new();
        let mut sizes = Vec::new();
        let take = |g: &mut Self, used: &mut Vec<Value>, n: usize| {
            for _ in 0..n {
                used.push(g.pick(values));
            }
        };
        match operands {
            Fixed(n) => take(self, &mut used, n),
            List => {
                let n = self.below(5);
                take(self, &mut used, n);
            }
            Groups(groups) => {
                for &(least, most) in groups {
                    let n = least + self.below(most - least + 1);
                    sizes.push(Attribute::i32(n as i64));
                    take(self, &mut used, n);
                }
            }
        }
        let inbounds_since = match opcode {
            LoadViewTko | StoreViewTko => Some(v13_4),
            AtomicRedViewTko | MultimemLoadReduceViewTko | MultimemReduceViewTko | MultimemStoreViewTko => {
                Some(v13_5)
            }
            _ => None,
        };
        if inbounds_since.is_some_and(|since| version >= since) {
            let group = match opcode {
                LoadViewTko | AtomicRedViewTko | MultimemLoadReduceViewTko => 1,
                _ => 2,
            };
            let Attribute::Integer(n, _) = sizes[group] else { unreachable!() };
            let flags: Vec<bool> = (0..n).map(|_| self.chance(2)).collect();
            if flags.contains(&true) {
                attrs.push(("inbounds", Attribute::dense_bool_array(flags)));
            }
        }
        if opcode == LoadViewTko && version >= v13_5 && self.chance(2) {
            attrs.push(("valid_check", Attribute::Bool(true)));
        }
        for unit in units {
            if self.chance(2) {
                attrs.push((unit, Attribute::Bool(true)));
            }
        }
        if !sizes.is_empty() {
            attrs.push(("operandSegmentSizes", Attribute::Array(sizes)));
        }
        let regions: Vec<RegionId> = if has_regions {
            (0..self.below(3)).map(|_| self.region(module, values, depth)).collect()
        } else {
            vec![]
        };
        self.seen.insert(opcode.as_u16());
        let built = OpBuilder::new(opcode, self.location(0))
            .operands(used)
            .results(results)
            .attrs(attrs.into_iter().map(|(k, v)| (k.to_owned(), v)))
            .regions(regions)
            .build(module);
        Some(built)
    }
}
