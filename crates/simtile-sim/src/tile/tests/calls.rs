//! `preview$call`: functions that a tile library supplies, as Rust functions. The modules are written as bytecode and read back.

use super::machine::TRAITS;
use super::*;
use crate::exec::{FaultReason, FindingKind, LoadFault, Program};
use crate::memory::FaultKind;
use crate::modules::StandInError;
use crate::tile::{
    TileCall, TileConstant, TileElement, TileFunctions, TileType, TileValue, load_module, load_with,
};
use cutile_ir::bytecode::{BytecodeVersion, write_bytecode_version};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

type Returned = Result<Vec<TileValue>, StandInError>;

/// A call at line 7 of `caller.py`.
fn call(
    k: &mut K,
    symbol: &str,
    operands: &[Value],
    results: &[Type],
    constants: Vec<PreviewConstArg>,
) -> Vec<Value> {
    let place = Location::FileLineCol { filename: "caller.py".into(), line: 7, column: 3 };
    let constants = constants.into_iter().map(Attribute::PreviewConstArg).collect();
    k.add(
        cutile_ir::builder::OpBuilder::new(Opcode::PreviewCall, place)
            .operands(operands.iter().copied())
            .results(results.to_vec())
            .attr("callee", Attribute::String(symbol.into()))
            .attr("const_args", Attribute::Array(constants)),
    )
}

fn bytecode(k: K) -> Vec<u8> {
    let mut module = k.module();
    // Lines are written inside of an entry that has one.
    let entry = module.functions[0];
    module.op_mut(entry).location =
        Location::FileLineCol { filename: "caller.py".into(), line: 1, column: 1 };
    let bytes = write_bytecode_version(&module, BytecodeVersion::V13_5).expect("writes");
    assert!(simtile_image::tile::version(&bytes).expect("a header").is_preview());
    bytes
}

fn functions(
    symbol: &str,
    function: impl Fn(&TileCall<'_>) -> Returned + Send + Sync + 'static,
) -> TileFunctions {
    let mut functions = TileFunctions::new();
    functions.register(symbol, function);
    functions
}

fn loaded(k: K, functions: &TileFunctions) -> Box<dyn Program> {
    load_with(&bytecode(k), TRAITS, functions).unwrap_or_else(|fault| panic!("{fault}"))
}

/// `out[block * 4 ..] = f(in[0..4], block)`, both of f32.
fn caller(symbol: &str) -> K {
    let mut k = K::new("caller", &[ptr(&[], F32), ptr(&[], F32)]);
    let x = k.input(0, F32, &[4]);
    let block = k.block_id()[0];
    let token = k.token();
    let constants = vec![
        PreviewConstArg::Int(-3),
        PreviewConstArg::Str("lower".into()),
        PreviewConstArg::Datatype(Type::Scalar(F64)),
    ];
    let y = call(&mut k, symbol, &[x, token, block], &[Type::Token, tile(&[4], F32)], constants)[1];
    let four = k.i32(4);
    let start = k.same(Opcode::MulI, &[block, four], &[("overflow", 0)]);
    let base = k.args[1];
    let base = k.e(Opcode::Offset, &[base, start], ptr(&[], F32), &[]);
    let pointers = k.pointers(base, F32, &[4]);
    k.store_ptr(pointers, y);
    k
}

#[test]
fn blocks_call_in_parallel_and_get_their_own_results() {
    let (calls, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counters = (calls.clone(), most.clone());
    let program = loaded(
        caller("scale"),
        &functions("scale", move |call| {
            assert_eq!((call.kernel, call.function), ("caller", "scale"));
            let expected = [
                TileConstant::Int(-3),
                TileConstant::Text("lower".into()),
                TileConstant::Element(TileElement::Scalar(F64)),
            ];
            assert_eq!(call.constants, expected);
            // The tokens are left out.
            assert_eq!((call.operands.len(), call.results.len(), call.grid), (2, 1, [16, 1, 1]));
            let block = call.operands[1].values::<u32>()?[0];
            assert_eq!(call.block, [block, 0, 0]);
            let running = counters.0.fetch_add(1, Ordering::SeqCst) + 1;
            counters.1.fetch_max(running, Ordering::SeqCst);
            let start = Instant::now();
            // The first one waits for company, as long as there may be some.
            while counters.1.load(Ordering::SeqCst) < 2 && start.elapsed() < Duration::from_secs(30) {
                std::thread::yield_now();
            }
            counters.0.fetch_sub(1, Ordering::SeqCst);
            let y: Vec<f32> = call.operands[0].values::<f32>()?.iter().map(|x| x * block as f32).collect();
            Ok(vec![TileValue::from_values(&call.results[0], &y)?])
        }),
    );
    let machine = Machine::new();
    let (x, y) = (machine.put(&[1.0f32, -2.0, 0.5, 8.0]), machine.alloc(16 * 16));
    machine.ok(&*program, [16, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
    let expected: Vec<f32> = (0..16).flat_map(|b| [1.0, -2.0, 0.5, 8.0].map(|x| x * b as f32)).collect();
    assert_eq!(machine.get::<f32>(y, 64), expected);
    assert!(most.load(Ordering::SeqCst) >= 2, "no two blocks ran at once");
}

#[test]
fn a_missing_one_is_refused_with_every_name_and_place() {
    let build = || {
        let mut k = K::new("two", &[]);
        call(&mut k, "f", &[], &[], vec![]);
        call(&mut k, "g", &[], &[], vec![]);
        call(&mut k, "f", &[], &[], vec![]);
        k
    };
    let refused = |functions: &TileFunctions| load_with(&bytecode(build()), TRAITS, functions).err();
    let none = TileFunctions::new();
    let Some(LoadFault::MissingFunctions { calls }) = refused(&none) else { panic!("missing") };
    let found: Vec<_> = calls.iter().map(|c| (c.symbol.as_str(), c.kernel.as_str(), c.operation)).collect();
    assert_eq!(found, [("f", "two", 0), ("g", "two", 1)]);
    let text = refused(&none).expect("refused").to_string();
    assert!(text.contains("f (kernel two, operation 0, caller.py:7)"), "{text}");
    let some = functions("f", |_| Ok(vec![]));
    let Some(LoadFault::MissingFunctions { calls }) = refused(&some) else { panic!("missing") };
    assert_eq!(calls.len(), 1);
    // What no registration helps comes first.
    let mut k = build();
    k.i32(0);
    k.add(K::op(Opcode::AddI));
    assert!(matches!(load_module(k.module(), TRAITS, &none), Err(LoadFault::Malformed { .. })));
}

/// The fault of a call whose function does this.
fn fault(function: impl Fn(&TileCall<'_>) -> Returned + Send + Sync + 'static) -> crate::exec::KernelFault {
    let program = loaded(caller("f"), &functions("f", function));
    let machine = Machine::new();
    let (x, y) = (machine.put(&[0.0f32; 4]), machine.alloc(16));
    let fault = machine.run(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]).expect_err("a fault");
    assert_eq!(fault.site.kernel, "caller");
    assert_eq!(fault.site.source, Some(("caller.py".to_owned(), 7)));
    assert!(fault.site.instruction.starts_with("preview$call"), "{fault}");
    fault
}

#[test]
fn what_a_function_does_wrong_is_a_fault_that_names_it() {
    let f32s = |shape: &[usize]| TileType::new(TileElement::Scalar(F32), shape);
    let zeros = |ty: &TileType| TileValue::from_bits(ty, vec![0; ty.shape.iter().product()]);
    type Wrong = Box<dyn Fn(&TileCall<'_>) -> Returned + Send + Sync>;
    let one = move |ty: TileType| -> Wrong { Box::new(move |_| Ok(vec![zeros(&ty)?])) };
    let cases: Vec<(&str, Wrong)> = vec![
        ("returned 0 tiles; the operation has 1 tiles", Box::new(|_| Ok(vec![]))),
        ("returned 2 tiles", Box::new(|call| Ok(vec![call.operands[0].clone(), call.operands[0].clone()]))),
        ("returned I32[4] as tile 0; the operation's result is F32[4]", {
            one(TileType::new(TileElement::Scalar(I32), &[4]))
        }),
        ("returned F32[8] as tile 0", one(f32s(&[8]))),
        ("returned F32[2, 2] as tile 0", one(f32s(&[2, 2]))),
        ("returned F32[] as tile 0", one(f32s(&[]))),
        ("returned pointer to F32[4] as tile 0", one(TileType::new(TileElement::Pointer(F32), &[4]))),
        ("panicked: no such luck", Box::new(|_| panic!("no such {}", "luck"))),
        ("panicked: plainly", Box::new(|_| panic!("plainly"))),
        ("panicked", Box::new(|_| std::panic::panic_any(7))),
    ];
    for (expected, function) in cases {
        let fault = fault(function);
        let FaultReason::StandIn { symbol, problem } = &fault.reason else { panic!("{fault}") };
        assert_eq!(symbol, "f");
        assert!(problem.starts_with(expected), "{problem}; expected {expected}");
        assert!(fault.to_string().contains("the stand-in for f "), "{fault}");
    }
    let fault = fault(|_| Err("the matrix is singular".to_owned().into()));
    assert_eq!(fault.reason, FaultReason::Assert("f: the matrix is singular".to_owned()));
}

#[test]
fn a_tile_value_is_what_its_type_says() {
    let refused = |value: Result<TileValue, String>| value.expect_err("refused");
    let i4 = TileType::new(TileElement::Scalar(I4), &[2]);
    assert!(refused(TileValue::from_bits(&i4, [1, 16])).contains("element 1 of a tile I4[2] is 0x10"));
    assert!(refused(TileValue::from_bits(&i4, [1])).contains("1 elements"));
    assert!(refused(TileValue::from_bits(&i4, 0..)).contains("more elements"));
    let i1 = TileType::new(TileElement::Scalar(I1), &[]);
    assert!(TileValue::from_bits(&i1, [2]).is_err());
    let huge = TileType::new(TileElement::Scalar(I8), &[1 << 40, 1 << 40]);
    assert!(refused(TileValue::from_bits(&huge, 0..)).contains("the limit is 16777216"));
    let f16 = TileType::new(TileElement::Scalar(F16), &[2]);
    assert!(refused(TileValue::from_values(&f16, &[1.0f32, 2.0])).contains("values of 4 bytes"));
    let value = TileValue::from_values(&f16, &[0x3c00u16, 0x4000]).expect("two halves");
    assert!(value.values::<u32>().is_err());
    assert_eq!(value.values::<u16>().expect("halves"), [0x3c00, 0x4000]);
    assert_eq!((value.len(), value.is_empty()), (2, false));
    assert_eq!(value.bits().collect::<Vec<_>>(), [0x3c00, 0x4000]);
}

#[test]
fn tiles_of_every_element_type_go_in_and_out_unchanged() {
    let types = [I1, I8, I16, I32, I64, F16, BF16, F32, TF32, F64, F8E4M3FN, F8E5M2, F8E8M0FNU, F8E5M3FNU];
    for scalar in types {
        let mut k = K::new("copy", &[ptr(&[], scalar), ptr(&[], scalar)]);
        let x = k.input(0, scalar, &[2, 4]);
        let y = call(&mut k, "copy", &[x], &[tile(&[2, 4], scalar)], vec![])[0];
        k.output(1, y);
        let copy = functions("copy", move |call| {
            let x = &call.operands[0];
            assert_eq!(*x.tile_type(), TileType::new(TileElement::Scalar(scalar), &[2, 4]));
            Ok(vec![TileValue::from_bits(x.tile_type(), x.bits())?])
        });
        let machine = Machine::new();
        let bits: Vec<u8> = (0..8 * scalar.byte_width())
            .map(|i| if scalar == I1 { i as u8 & 1 } else { (37 * i) as u8 })
            .collect();
        let (x, y) = (machine.put(&bits), machine.alloc(bits.len()));
        machine.ok(&*loaded(k, &copy), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
        assert_eq!(machine.get::<u8>(y, bits.len()), bits, "{scalar:?}");
    }
}

#[test]
fn calls_in_loops_and_folds() {
    // Sums 1..=8 by a function, in a loop of 3 and in a reduction.
    let mut k = K::new("nested", &[ptr(&[], I32)]);
    let numbers = k.e(Opcode::Iota, &[], tile(&[8], I32), &[]);
    let bounds = [k.i32(0), k.i32(3), k.i32(1)];
    let numbers = k.for_loop(bounds, &[numbers], |k, _, v| {
        let same = k.ty(v[0]);
        vec![call(k, "add", &[v[0], v[0]], &[same], vec![])[0]]
    })[0];
    let sum = k.fold(Opcode::Reduce, &[numbers], 0, vec![Attribute::i32(0)], false, |k, v| {
        vec![call(k, "add", v, &[tile(&[], I32)], vec![])[0]]
    })[0];
    k.output(0, sum);
    let add = functions("add", |call| {
        let [a, b] = call.operands else { return Err("two operands".to_owned().into()) };
        let (a, b) = (a.values::<i32>()?, b.values::<i32>()?);
        let sums: Vec<i32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
        Ok(vec![TileValue::from_values(&call.results[0], &sums)?])
    });
    let machine = Machine::new();
    let out = machine.alloc(4);
    machine.ok(&*loaded(k, &add), [1, 1, 1], &[Arg::Ptr(out)]);
    assert_eq!(machine.get::<i32>(out, 1), [8 * 28]);
}

#[test]
fn memory_that_a_function_reaches_is_checked() {
    let build = || {
        let mut k = K::new("reach", &[ptr(&[], I32)]);
        let base = k.args[0];
        call(&mut k, "reach", &[base], &[], vec![]);
        k
    };
    let run = |function: fn(&TileCall<'_>, u64) -> Result<(), StandInError>| {
        let program = loaded(
            build(),
            &functions("reach", move |call| {
                function(call, call.operands[0].values::<u64>()?[0]).map(|()| vec![])
            }),
        );
        let machine = Machine::new();
        let memory = machine.alloc(256);
        let result = machine.run(&*program, [1, 1, 1], &[Arg::Ptr(memory)]);
        let place = program.place(0, 1);
        assert_eq!(place.as_deref(), Some("preview$call (operation 0) (caller.py:7)"));
        (result, machine.found(), machine.get::<u32>(memory, 1)[0])
    };
    let (result, found, word) = run(|call, at| {
        call.write(at, &5u32.to_le_bytes())?;
        let mut word = [0; 4];
        call.read(at, &mut word)?;
        assert_eq!(word, [5, 0, 0, 0]);
        Ok(())
    });
    assert!(result.is_ok() && found.is_empty() && word == 5, "{result:?} {found:?}");
    // Twice what nobody wrote: one finding for the operation.
    let (result, found, _) = run(|call, at| {
        call.read(at + 8, &mut [0; 8])?;
        call.read(at + 16, &mut [0; 8])
    });
    assert!(result.is_ok(), "{result:?}");
    assert!(matches!(found.as_slice(), [FindingKind::UninitialisedRead { bytes: 8, .. }]), "{found:?}");
    for outside in [
        (|call, at| call.write(at + 254, &[0; 4])) as fn(&TileCall<'_>, u64) -> Result<(), StandInError>,
        |call, at| call.read(at + 256, &mut [0]),
        |call, _| call.read(0, &mut [0; 4]),
        |call, _| call.write(u64::MAX - 1, &[0; 4]),
    ] {
        let (result, ..) = run(outside);
        let fault = result.expect_err("outside");
        let FaultReason::Memory(memory) = &fault.reason else { panic!("{fault}") };
        assert_ne!(memory.kind, FaultKind::Misaligned);
        assert_eq!(fault.site.source, Some(("caller.py".to_owned(), 7)));
    }
}

#[test]
fn malformed_calls() {
    let named = |k: &mut K, callee: Option<Attribute>, arguments: Option<Attribute>| {
        let mut op = K::op(Opcode::PreviewCall);
        for (name, value) in [("callee", callee), ("const_args", arguments)] {
            if let Some(value) = value {
                op = op.attr(name, value);
            }
        }
        k.add(op);
    };
    let text = |t: &str| Some(Attribute::String(t.into()));
    let list = |items: Vec<Attribute>| Some(Attribute::Array(items));
    for (expected, callee, arguments) in [
        ("attribute callee is missing", None, list(vec![])),
        ("attribute callee is empty", text(""), list(vec![])),
        ("attribute callee is", Some(Attribute::i32(3)), list(vec![])),
        ("attribute const_args is missing", text("f"), None),
        ("attribute const_args is", text("f"), text("g")),
        ("is no number, text or type", text("f"), list(vec![Attribute::i32(3)])),
    ] {
        let mut k = K::new("malformed", &[]);
        named(&mut k, callee, arguments);
        let fault = load_module(k.module(), TRAITS, &TileFunctions::new()).err();
        let Some(LoadFault::Malformed { at: crate::exec::At::Operation(0), what }) = fault else {
            panic!("{fault:?}")
        };
        assert!(what.contains(expected), "{what}; expected {expected}");
    }
    // Views are not passed.
    let ty = tensor(F32, &[Some(8)], &[Some(1)]);
    let mut k = K::new("view", &[ptr(&[], F32)]);
    let base = k.args[0];
    let view = k.tensor(base, &ty, &[], &[]);
    call(&mut k, "f", &[view], &[], vec![]);
    let fault = load_module(k.module(), TRAITS, &functions("f", |_| Ok(vec![]))).err();
    let Some(LoadFault::Malformed { what, .. }) = fault else { panic!("{fault:?}") };
    assert!(what.contains("a call takes and gives tiles and tokens"), "{what}");
}
