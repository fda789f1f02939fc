//! Builds modules of one entry with `cutile_ir`'s builder.
//!
//! With `TILEIRAS` set to the path of the official assembler, every module that is expected to load is assembled as
//! well (for `TILEIRAS_GPU`, or `sm_90`), to show that it is one.

use super::machine::TRAITS;
use crate::exec::{LoadFault, Program};
use crate::tile::{TileFunctions, load_module};
use cutile_ir::builder::{OpBuilder, append_op, build_single_block_region};
pub(super) use cutile_ir::bytecode::Opcode;
pub(super) use cutile_ir::ir::ScalarType::*;
pub(super) use cutile_ir::ir::*;

/// A tile type.
pub(super) fn tile(shape: &[i64], scalar: ScalarType) -> Type {
    Type::Tile(TileType { shape: shape.to_vec(), element_type: TileElementType::Scalar(scalar) })
}

/// A tile of pointers.
pub(super) fn ptr(shape: &[i64], scalar: ScalarType) -> Type {
    let element_type = TileElementType::Pointer(Box::new(PointerType { pointee: scalar }));
    Type::Tile(TileType { shape: shape.to_vec(), element_type })
}

/// Operand groups.
pub(super) fn groups(sizes: &[i64]) -> Attribute {
    Attribute::Array(sizes.iter().map(|&s| Attribute::i32(s)).collect())
}

/// A tensor view type; `None` is dynamic.
pub(super) fn tensor(scalar: ScalarType, shape: &[Option<i64>], strides: &[Option<i64>]) -> TensorViewType {
    let dims = |d: &[Option<i64>]| d.iter().map(|d| d.unwrap_or(DYNAMIC)).collect();
    TensorViewType { element_type: scalar, shape: dims(shape), strides: dims(strides) }
}

/// A partition view type with the dimensions in order.
pub(super) fn partition(
    tile: &[i32],
    tensor: &TensorViewType,
    padding: Option<PaddingValue>,
) -> PartitionViewType {
    PartitionViewType {
        tile_shape: tile.to_vec(),
        tensor_view: tensor.clone(),
        dim_map: (0..tile.len() as i32).collect(),
        padding_value: padding,
    }
}

/// A kernel under construction.
pub(super) struct K {
    pub(super) m: Module,
    block: BlockId,
    region: RegionId,
    pub(super) args: Vec<Value>,
    inputs: Vec<Type>,
    name: String,
}

impl K {
    pub(super) fn new(name: &str, inputs: &[Type]) -> Self {
        let mut m = Module::new(name);
        let (region, block, args) = build_single_block_region(&mut m, inputs);
        Self { m, block, region, args, inputs: inputs.to_vec(), name: name.into() }
    }

    pub(super) fn op(opcode: Opcode) -> OpBuilder {
        OpBuilder::new(opcode, Location::Unknown)
    }

    /// Appends an operation.
    pub(super) fn add(&mut self, op: OpBuilder) -> Vec<Value> {
        let (op, results) = op.build(&mut self.m);
        append_op(&mut self.m, self.block, op);
        results
    }

    pub(super) fn ty(&self, v: Value) -> Type {
        self.m.value_type(v).clone()
    }

    /// One result, these operands and numbers as attributes.
    pub(super) fn e(
        &mut self,
        opcode: Opcode,
        operands: &[Value],
        result: Type,
        attrs: &[(&str, i64)],
    ) -> Value {
        let mut op = Self::op(opcode).operands(operands.iter().copied()).result(result);
        for (name, value) in attrs {
            op = op.attr(*name, Attribute::i32(*value));
        }
        self.add(op)[0]
    }

    /// As [`K::e`], with the type of the first operand.
    pub(super) fn same(&mut self, opcode: Opcode, operands: &[Value], attrs: &[(&str, i64)]) -> Value {
        let ty = self.ty(operands[0]);
        self.e(opcode, operands, ty, attrs)
    }

    pub(super) fn constant(&mut self, ty: Type, data: &[u8]) -> Value {
        let value = DenseElements { element_type: ty.clone(), shape: vec![], data: data.to_vec() };
        self.add(Self::op(Opcode::Constant).attr("value", Attribute::DenseElements(value)).result(ty))[0]
    }

    pub(super) fn i32(&mut self, v: i32) -> Value {
        self.constant(tile(&[], I32), &v.to_le_bytes())
    }

    pub(super) fn token(&mut self) -> Value {
        self.add(Self::op(Opcode::MakeToken).result(Type::Token))[0]
    }

    pub(super) fn block_id(&mut self) -> Vec<Value> {
        self.add(Self::op(Opcode::GetTileBlockId).results(vec![tile(&[], I32); 3]))
    }

    pub(super) fn tensor(
        &mut self,
        base: Value,
        ty: &TensorViewType,
        shape: &[Value],
        strides: &[Value],
    ) -> Value {
        self.add(
            Self::op(Opcode::MakeTensorView)
                .operand(base)
                .operands(shape.iter().copied())
                .operands(strides.iter().copied())
                .attr("operandSegmentSizes", groups(&[1, shape.len() as i64, strides.len() as i64]))
                .result(Type::TensorView(ty.clone())),
        )[0]
    }

    pub(super) fn view(&mut self, opcode: Opcode, tensor: Value, ty: Type) -> Value {
        self.add(Self::op(opcode).operand(tensor).result(ty))[0]
    }

    /// A load through a view with optional further attributes.
    pub(super) fn load_view(
        &mut self,
        view: Value,
        index: &[Value],
        ty: Type,
        attrs: &[(&str, Attribute)],
    ) -> Value {
        let mut op = Self::op(Opcode::LoadViewTko)
            .operand(view)
            .operands(index.iter().copied())
            .attr("memory_ordering_semantics", Attribute::i32(0))
            .attr("operandSegmentSizes", groups(&[1, index.len() as i64, 0]))
            .result(ty)
            .result(Type::Token);
        for (name, value) in attrs {
            op = op.attr(*name, value.clone());
        }
        self.add(op)[0]
    }

    pub(super) fn store_view(&mut self, value: Value, view: Value, index: &[Value]) {
        self.add(
            Self::op(Opcode::StoreViewTko)
                .operand(value)
                .operand(view)
                .operands(index.iter().copied())
                .attr("memory_ordering_semantics", Attribute::i32(0))
                .attr("operandSegmentSizes", groups(&[1, 1, index.len() as i64, 0]))
                .result(Type::Token),
        );
    }

    /// Pointers to consecutive elements from a base, in a shape.
    pub(super) fn pointers(&mut self, base: Value, scalar: ScalarType, shape: &[i64]) -> Value {
        let count: i64 = shape.iter().product();
        let one = self.e(Opcode::Reshape, &[base], ptr(&[1], scalar), &[]);
        let all = self.e(Opcode::Broadcast, &[one], ptr(&[count], scalar), &[]);
        let index = self.e(Opcode::Iota, &[], tile(&[count], I32), &[]);
        let moved = self.e(Opcode::Offset, &[all, index], ptr(&[count], scalar), &[]);
        self.e(Opcode::Reshape, &[moved], ptr(shape, scalar), &[])
    }

    pub(super) fn load_ptr(&mut self, pointers: Value, scalar: ScalarType, shape: &[i64]) -> Value {
        self.add(
            Self::op(Opcode::LoadPtrTko)
                .operand(pointers)
                .attr("memory_ordering_semantics", Attribute::i32(0))
                .attr("operandSegmentSizes", groups(&[1, 0, 0, 0]))
                .result(tile(shape, scalar))
                .result(Type::Token),
        )[0]
    }

    pub(super) fn store_ptr(&mut self, pointers: Value, value: Value) {
        self.add(
            Self::op(Opcode::StorePtrTko)
                .operand(pointers)
                .operand(value)
                .attr("memory_ordering_semantics", Attribute::i32(0))
                .attr("operandSegmentSizes", groups(&[1, 1, 0, 0]))
                .result(Type::Token),
        );
    }

    /// Loads a tile from argument `arg`, consecutive from there.
    pub(super) fn input(&mut self, arg: usize, scalar: ScalarType, shape: &[i64]) -> Value {
        let pointers = self.pointers(self.args[arg], scalar, shape);
        self.load_ptr(pointers, scalar, shape)
    }

    /// Stores a tile to argument `arg`, consecutive from there.
    pub(super) fn output(&mut self, arg: usize, value: Value) {
        let Type::Tile(TileType { shape, element_type: TileElementType::Scalar(scalar) }) = self.ty(value)
        else {
            panic!("not a tile of numbers");
        };
        let pointers = self.pointers(self.args[arg], scalar, &shape);
        self.store_ptr(pointers, value);
    }

    /// Builds a nested block.
    pub(super) fn nested(&mut self, args: &[Type], build: impl FnOnce(&mut K, &[Value])) -> RegionId {
        let (region, block, values) = build_single_block_region(&mut self.m, args);
        let outer = std::mem::replace(&mut self.block, block);
        build(self, &values);
        self.block = outer;
        region
    }

    /// A terminator.
    pub(super) fn end(&mut self, opcode: Opcode, values: &[Value]) {
        self.add(Self::op(opcode).operands(values.iter().copied()));
    }

    pub(super) fn for_loop(
        &mut self,
        bounds: [Value; 3],
        init: &[Value],
        body: impl FnOnce(&mut K, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let types: Vec<Type> = init.iter().map(|&v| self.ty(v)).collect();
        let mut args = vec![self.ty(bounds[0])];
        args.extend(types.iter().cloned());
        let region = self.nested(&args, |k, values| {
            let next = body(k, values[0], &values[1..]);
            k.end(Opcode::Continue, &next);
        });
        self.add(
            Self::op(Opcode::For)
                .operands(bounds)
                .operands(init.iter().copied())
                .results(types)
                .region(region),
        )
    }

    /// A reduction or scan; `body` gets (current, before) of each operand.
    pub(super) fn fold(
        &mut self,
        opcode: Opcode,
        values: &[Value],
        dim: usize,
        identities: Vec<Attribute>,
        reverse: bool,
        body: impl FnOnce(&mut K, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let mut args = Vec::new();
        let mut results = Vec::new();
        for &v in values {
            let Type::Tile(mut ty) = self.ty(v) else { panic!("not a tile") };
            let scalar = Type::Tile(TileType { shape: vec![], element_type: ty.element_type.clone() });
            args.extend([scalar.clone(), scalar]);
            if opcode == Opcode::Reduce {
                ty.shape.remove(dim);
            }
            results.push(Type::Tile(ty));
        }
        let region = self.nested(&args, |k, values| {
            let out = body(k, values);
            k.end(Opcode::Yield, &out);
        });
        let mut op = Self::op(opcode)
            .operands(values.iter().copied())
            .attr("dim", Attribute::i32(dim as i64))
            .attr("identities", Attribute::Array(identities))
            .results(results)
            .region(region);
        if opcode == Opcode::Scan {
            op = op.attr("reverse", Attribute::Bool(reverse));
        }
        self.add(op)
    }

    /// The finished module.
    pub(super) fn module(mut self) -> Module {
        self.end(Opcode::Return, &[]);
        let signature = FuncType { inputs: self.inputs.clone(), results: vec![] };
        let (entry, _) = Self::op(Opcode::Entry)
            .attr("sym_name", Attribute::String(self.name.clone()))
            .attr("function_type", Attribute::Type(Type::Func(signature)))
            .region(self.region)
            .build(&mut self.m);
        self.m.functions.push(entry);
        self.m
    }

    pub(super) fn load(self) -> Result<Box<dyn Program>, LoadFault> {
        load_module(self.module(), TRAITS, &TileFunctions::new())
    }

    /// The loaded program.
    pub(super) fn program(self) -> Box<dyn Program> {
        let module = self.module();
        if let Some(assembler) = std::env::var_os("TILEIRAS") {
            assemble(&module, &assembler);
        }
        match load_module(module, TRAITS, &TileFunctions::new()) {
            Ok(program) => program,
            Err(fault) => panic!("{fault}"),
        }
    }
}

/// Panics if the official assembler refuses a module.
fn assemble(module: &Module, assembler: &std::ffi::OsStr) {
    use cutile_ir::bytecode::{BytecodeVersion, write_bytecode_version};
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let bytes = write_bytecode_version(module, BytecodeVersion::V13_4).expect("writes");
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("simtile-{}-{number}.tileirbc", std::process::id()));
    std::fs::write(&path, bytes).expect("writable");
    let gpu = std::env::var("TILEIRAS_GPU").unwrap_or_else(|_| "sm_90".into());
    let result = std::process::Command::new(assembler)
        .arg(format!("--gpu-name={gpu}"))
        .arg(&path)
        .arg("-o")
        .arg(path.with_extension("cubin"))
        .output();
    let output = result.expect("the assembler starts");
    let _ = std::fs::remove_file(path.with_extension("cubin"));
    let _ = std::fs::remove_file(&path);
    assert!(output.status.success(), "{}: {}", module.name, String::from_utf8_lossy(&output.stderr));
}
