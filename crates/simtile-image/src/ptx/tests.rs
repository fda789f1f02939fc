//! The parser on real files, on single statements, and on damaged text.

use super::{InitValue, Module, Operand, Space, Statement, Type};

/// Every file of `artifacts/ptx`.
const FILES: &[(&str, &str)] = &[
    ("async_copy", include_str!("../../../../artifacts/ptx/async_copy.ptx")),
    ("cluster", include_str!("../../../../artifacts/ptx/cluster.ptx")),
    ("dyn_shared", include_str!("../../../../artifacts/ptx/dyn_shared.ptx")),
    ("grid_sync", include_str!("../../../../artifacts/ptx/grid_sync.ptx")),
    ("histogram", include_str!("../../../../artifacts/ptx/histogram.ptx")),
    ("math", include_str!("../../../../artifacts/ptx/math.ptx")),
    ("printf", include_str!("../../../../artifacts/ptx/printf.ptx")),
    ("reduce_shared", include_str!("../../../../artifacts/ptx/reduce_shared.ptx")),
    ("rust_kernels", include_str!("../../../../artifacts/ptx/rust_kernels.ptx")),
    ("rust_saxpy", include_str!("../../../../artifacts/ptx/rust_saxpy.ptx")),
    ("saxpy", include_str!("../../../../artifacts/ptx/saxpy.ptx")),
    ("sgemm", include_str!("../../../../artifacts/ptx/sgemm.ptx")),
    ("warp_reduce", include_str!("../../../../artifacts/ptx/warp_reduce.ptx")),
    ("wmma", include_str!("../../../../artifacts/ptx/wmma.ptx")),
];

fn file(name: &str) -> Module {
    let (_, text) = FILES.iter().find(|(n, _)| *n == name).unwrap();
    Module::parse(text).unwrap()
}

fn body(statements: &str) -> Result<Vec<Statement>, super::PtxError> {
    let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {{\n{statements}\n}}");
    Module::parse(&text).map(|m| m.functions[0].body.clone().unwrap())
}

#[test]
fn every_artifact_parses_with_its_entries() {
    let mut entries = 0;
    for (name, text) in FILES {
        let module = Module::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(module.targets, ["sm_90"], "{name}");
        assert_eq!(module.address_size, 64, "{name}");
        entries += module.signatures().len();
    }
    assert_eq!(entries, 28);
}

#[test]
fn signatures_of_struct_parameters() {
    let math = file("math");
    let all = math.signatures();
    let mathk = all.iter().find(|s| s.name == "mathk").unwrap();
    let layout: Vec<_> = mathk.params.iter().map(|p| (p.offset, p.bytes, p.align, p.array)).collect();
    assert_eq!(
        layout,
        [
            (0, 8, 8, false),
            (8, 8, 8, false),
            (16, 8, 8, false),
            (24, 8, 8, false),
            (32, 24, 8, true),
            (56, 8, 8, false),
            (64, 8, 8, false)
        ]
    );
    let cluster = file("cluster").signatures().remove(0);
    assert_eq!(cluster.attributes.cluster.required, Some([2, 1, 1]));
    assert!(cluster.attributes.cluster.explicit);
    let cas = file("rust_kernels").signatures().into_iter().find(|s| s.name == "cas_loop").unwrap();
    assert_eq!(cas.params[0].pointer.map(|p| p.align), Some(1));
    assert_eq!(cas.params[1].pointer, None);
}

#[test]
fn globals_and_short_initial_values() {
    let math = file("math");
    let coef = math.variables.iter().find(|v| v.name == "coef").unwrap();
    assert_eq!((coef.space, coef.bytes(), coef.init.len()), (Space::Const, Some(16), 0));
    let counter = math.variables.iter().find(|v| v.name == "counter").unwrap();
    assert_eq!((counter.ty, &counter.init[..]), (Type::U32, &[(0, InitValue::Integer(5))][..]));
    let printf = file("printf");
    assert_eq!(printf.variables[0].bytes(), Some(35));
    assert_eq!(printf.variables[0].init.len(), 34);
    assert_eq!(file("rust_kernels").variables[0].bytes(), Some(0));
}

#[test]
fn nested_initial_values_and_symbols() {
    let text = ".version 8.0 .target sm_90 .address_size 64\n\
        .global .s32 m[2][3] = {{1, 2}, {-3}};\n.global .u64 p[2] = {generic(m)+8, m};\n.global .v2 .f32 v[2] = {{1.5, 2}, {0f3F800000, 4}};\n.global .u8 q[4] = {0xFF(m), 0xFF00(m)};";
    let module = Module::parse(text).unwrap();
    let indices: Vec<_> = module.variables[0].init.iter().map(|(i, _)| *i).collect();
    assert_eq!(indices, [0, 1, 3]);
    assert_eq!(module.variables[0].init[2].1, InitValue::Integer((-3i64) as u64));
    let symbol = |offset, generic, mask| InitValue::Symbol { name: "m".into(), offset, generic, mask };
    assert_eq!(module.variables[1].init, [(0, symbol(8, true, None)), (1, symbol(0, false, None))]);
    let indices: Vec<_> = module.variables[2].init.iter().map(|(i, _)| *i).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(module.variables[3].init[1].1, symbol(0, false, Some(0xFF00)));
}

#[test]
fn operands() {
    let statements = body("@!%p1 shfl.sync.down.b32 %r1|%p2, %r3, 0x10, -1, (1<<2)|3; ld.v2.u32 {%a, _}, [%rd1+-4]; mov.u32 %r1, %tid.x; mov.f32 f, 0f3F800000;").unwrap();
    let Statement::Instruction(i) = &statements[0] else { panic!() };
    assert_eq!(i.guard, Some((true, "%p1".into())));
    assert_eq!(i.name(), "shfl.sync.down.b32");
    assert!(matches!(i.operands[0], Operand::Pair(..)));
    assert_eq!(i.operands[2..], [Operand::Integer(16), Operand::Integer(u64::MAX), Operand::Integer(7)]);
    let Statement::Instruction(i) = &statements[1] else { panic!() };
    assert_eq!(i.operands[0], Operand::Vector(vec![Operand::Name("%a".into()), Operand::Sink]));
    assert!(matches!(i.operands[1], Operand::Address { offset: -4, .. }));
    let Statement::Instruction(i) = &statements[2] else { panic!() };
    assert_eq!(i.operands[1], Operand::Name("%tid.x".into()));
    let Statement::Instruction(i) = &statements[3] else { panic!() };
    assert_eq!(i.operands[1], Operand::Float32(0x3F80_0000));
}

#[test]
fn scopes_calls_tables_and_positions() {
    let statements = body(
        ".loc 1 12 5, function_name $L__info+3, inlined_at 1 4 2\n{ .reg .b32 x<4>, y; L: bra L; }\n\
        t: .branchtargets A, B;\nproto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 8 .b8 _[16]);\n\
        call.uni (r), %rd1, (a, b), proto; .pragma \"nounroll\"; brx.idx %r1, t;",
    )
    .unwrap();
    assert!(matches!(statements[0], Statement::Loc { file: 1, line: 12, column: 5 }));
    assert!(matches!(statements[1], Statement::Open));
    let Statement::Variable(x) = &statements[2] else { panic!() };
    assert_eq!((x.name.as_str(), x.count), ("x", Some(4)));
    assert!(statements.iter().any(
        |s| matches!(s, Statement::CallPrototype { prototype, .. } if prototype.params[1].bytes() == Some(16))
    ));
}

#[test]
fn errors_name_line_text_and_expectation() {
    let error = body("add.s32 %r1 %r2;").unwrap_err();
    assert_eq!(error.to_string(), "line 5: found `%r2`, expected `,` or `;`");
    let error = Module::parse(".version x").unwrap_err();
    assert_eq!((error.line, error.expected.as_str()), (1, "a version"));
    let error = body("mov.u32 %r1, ;").unwrap_err();
    assert_eq!(error.expected, "an operand");
    assert!(Module::parse("").unwrap_err().to_string().contains("end of the text"));
}

#[test]
fn deep_nesting_is_an_error_or_flat() {
    let braces = "{".repeat(100_000) + &"}".repeat(100_000);
    assert!(body(&braces).is_ok());
    for open in ["(", "-", "~", "!", "1+(", "1?"] {
        assert!(body(&format!("mov.u32 %r1, {};", open.repeat(100_000))).is_err(), "{open}");
    }
    let text = format!(".version 8.0 .target sm_90\n.global .u32 x = {};", "{".repeat(100_000));
    assert!(Module::parse(&text).is_err());
    let text = format!(".version 8.0 .target sm_90\n.global .u64 x{};", "[4294967296]".repeat(3));
    assert!(Module::parse(&text).unwrap_err().expected.contains("size"));
}

/// Damage by truncation and by random edits: an error or a tree, never a panic.
#[test]
fn damaged_text_never_panics() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    const PIECES: &[&str] = &[
        "{", "}", "(", ")", "[", "]", ";", ",", ".", "<", "\"", "0f", "0x", "-", "|", "@", ".reg", "é", "/*",
    ];
    let mut refused = 0;
    for (_, text) in FILES {
        for _ in 0..60 {
            let mut bytes = text.as_bytes().to_vec();
            bytes.truncate(random(bytes.len()));
            for _ in 0..random(4) {
                let at = random(bytes.len());
                let piece = PIECES[random(PIECES.len())].bytes();
                bytes.splice(at..at, piece);
            }
            refused += usize::from(Module::parse(&String::from_utf8_lossy(&bytes)).is_err());
        }
    }
    assert!(refused > 100);
}
