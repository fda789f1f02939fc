//! Bytecode that is wrong: errors name the byte and what is wrong.
#![cfg(feature = "tile")]

mod common;

use common::artifact;
use cutile_ir::OpBuilder;
use cutile_ir::builder::{append_op, build_single_block_region};
use cutile_ir::bytecode::{BytecodeVersion, Opcode, write_bytecode_version};
use cutile_ir::ir::*;
use simtile_image::tile::{self, TileError};

/// A section as the reader will find it.
fn section(id: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![id, 0x80 | (payload.len() & 0x7F) as u8, (payload.len() >> 7) as u8];
    out.extend_from_slice(payload);
    out
}

/// A file of version 13.`minor` with these sections, none of them aligned.
fn file(minor: u8, sections: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = b"\x7FTileIR\0".to_vec();
    out.extend_from_slice(&[13, minor, 0, 0]);
    for (id, payload) in sections {
        out.extend_from_slice(&section(*id, payload));
    }
    out.push(0);
    out
}

const STRING: u8 = 1;
const FUNC: u8 = 2;
const DEBUG: u8 = 3;
const CONSTANT: u8 = 4;
const TYPE: u8 = 5;
const GLOBAL: u8 = 6;

/// A table of entries with 32-bit offsets.
fn table(entries: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![entries.len() as u8, 0xCB, 0xCB, 0xCB];
    let mut at = 0u32;
    for e in entries {
        out.extend_from_slice(&at.to_le_bytes());
        at += e.len() as u32;
    }
    out.extend_from_slice(&entries.concat());
    out
}

/// A file of version 13.3 with one kernel `f` of no arguments and this body. Types: 0 is its own, 1 `i32`, 2 `token`, 3
/// `tile<i32>`.
fn kernel(body: &[u8]) -> Vec<u8> {
    let tile_i32 = [13, 1, 0];
    let types = table(&[&[16, 0, 0], &[3], &[17], &tile_i32]);
    let mut func = vec![1, 0, 0, 2, 0, body.len() as u8];
    func.extend_from_slice(body);
    file(3, &[(STRING, &table(&[b"f"])), (TYPE, &types), (FUNC, &func)])
}

fn error(bytes: &[u8]) -> TileError {
    match tile::read(bytes) {
        Ok(m) => panic!("read, with {} values", m.num_values()),
        Err(e) => {
            assert!(e.offset() <= bytes.len(), "{e}");
            e
        }
    }
}

#[test]
fn the_small_files_of_this_test_are_right() {
    assert!(tile::read(&file(2, &[])).unwrap().functions.is_empty());
    let module = tile::read(&kernel(&[0x44, 2, 0x5C, 0, 0])).unwrap();
    assert_eq!(module.functions.len(), 1);
    module.verify_bytecode_indices().unwrap();
}

#[test]
fn versions() {
    for (minor, supported) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, true), (6, false)]
    {
        match tile::read(&file(minor, &[])) {
            Ok(_) => assert!(supported),
            Err(TileError::Version { found, oldest, newest }) => {
                assert!(!supported);
                assert_eq!(found, BytecodeVersion { major: 13, minor, tag: 0 });
                assert_eq!((oldest, newest), (BytecodeVersion::V13_2, BytecodeVersion::V13_5));
            }
            Err(e) => panic!("{e}"),
        }
    }
    let message = error(&file(1, &[])).to_string();
    assert_eq!(message, "tile bytecode, byte 8: version 13.1 is not supported; supported: 13.2 to 13.5");
    // The preview bit belongs to 13.5.
    let mut preview = file(5, &[]);
    preview[10] = 1;
    assert!(tile::version(&preview).unwrap().is_preview());
    tile::read(&preview).unwrap();
    preview[9] = 4;
    assert!(matches!(error(&preview), TileError::Version { .. }));
    assert_eq!(error(b"\x7FELF\0\0\0\0\0\0\0\0"), TileError::NotTile);
    assert_eq!(error(b""), TileError::NotTile);
}

#[test]
fn sections() {
    let cases: &[(&[u8], &str)] = &[
        (&[0x08, 0], "byte 12: 8 is not a valid section id"),
        (&[0x80, 0], "byte 12: 0 is not a valid section id"),
        (&[FUNC, 200, 1], "byte 13: 200 section length; the limit is 0"),
        (&[FUNC | 0x80, 0, 3], "byte 14: 3 is not a valid section alignment"),
        (&[FUNC | 0x80, 1, 8, 0, 0, 0, 0, 0], "byte 15: a padding byte is 0x00, not 0xcb"),
        (&[FUNC, 1, 0, FUNC, 1, 0, 0], "byte 15: section 2 appears twice"),
        (&[0, 0], "byte 13: 1 bytes are left over after the end marker"),
        (&[], "byte 12: section id needs 1 bytes, 0 are left"),
        (
            &[STRING, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
            "byte 13: section length does not fit in 64 bits",
        ),
    ];
    for (rest, message) in cases {
        let mut bytes = file(3, &[]);
        bytes.pop();
        bytes.extend_from_slice(rest);
        assert_eq!(error(&bytes).to_string(), format!("tile bytecode, {message}"));
    }
}

#[test]
fn tables() {
    // A count that the section cannot hold.
    let e = error(&file(3, &[(STRING, &[0xFF, 0xFF, 0x7F, 0])]));
    assert_eq!(e, TileError::Limit { offset: 15, what: "strings", value: 0x1F_FFFF, limit: 0 });
    let e = error(&file(3, &[(STRING, &table(&[b"ok", b"\xFF"]))]));
    assert_eq!(e.to_string(), "tile bytecode, byte 29: a string is not UTF-8");
    // An entry that ends before it begins.
    let mut backwards = table(&[b"a", b"b"]);
    backwards[8] = 9;
    let e = error(&file(3, &[(STRING, &backwards)]));
    assert_eq!(e.to_string(), "tile bytecode, byte 27: strings spans bytes 0 to 9 of 2");
    // A constant whose own length differs, and one of the wrong size for its type.
    let types = table(&[&[3], &[13, 0, 0]]);
    let constant = |data: &[u8]| {
        let mut out = vec![1, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0, 0, 0, 0, 0, 0, 0, 0];
        out.extend_from_slice(data);
        out
    };
    let globals = [1, 0, 1, 0, 4, 0, 0];
    let strings = table(&[b"g"]);
    let with = |data: &[u8]| {
        let data = constant(data);
        tile::read(&file(3, &[(STRING, &strings), (TYPE, &types), (CONSTANT, &data), (GLOBAL, &globals)]))
    };
    let module = with(&[4, 1, 2, 3, 4]).unwrap();
    assert_eq!(module.globals[0].value.data, [1, 2, 3, 4]);
    let message = with(&[4, 1, 2, 3, 4, 5]).unwrap_err().to_string();
    assert!(message.ends_with("1 bytes are left over after a constant"), "{message}");
    let message = with(&[3, 1, 2, 3]).unwrap_err().to_string();
    assert!(message.ends_with("a constant of 1 I32 has 3 bytes, not 4 or 4"), "{message}");
}

/// What NVIDIA's reader takes, by its listing of the same constants.
#[test]
fn constant_data() {
    let shape_of = |tag: &[u8], count: u8, data: &[u8]| {
        let tile = [13, 0, 1, count, 0, 0, 0, 0, 0, 0, 0];
        let mut constants =
            vec![1, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0, 0, 0, 0, 0, 0, 0, 0, data.len() as u8];
        constants.extend_from_slice(data);
        let types = table(&[tag, &tile]);
        let bytes = file(
            4,
            &[
                (STRING, &table(&[b"g"])),
                (TYPE, &types),
                (CONSTANT, &constants),
                (GLOBAL, &[1, 0, 1, 0, 4, 0, 0]),
            ],
        );
        tile::read(&bytes).map(|m| m.globals[0].value.shape.clone()).map_err(|e| e.to_string())
    };
    let (i1, i8, tf32, f4) = (&[0], &[1], &[8], &[19]);
    let splat = Ok(vec![]);
    // Bits: all of one kind, or one a bit.
    assert_eq!(shape_of(i1, 8, &[0xFF]), splat);
    assert_eq!(shape_of(i1, 8, &[0x01]), Ok(vec![8]));
    assert_eq!(shape_of(i1, 2, &[0x3D]), Ok(vec![2]));
    assert_eq!(shape_of(i1, 1, &[0x3D]), splat);
    assert_eq!(shape_of(i1, 16, &[0x3D]), splat);
    assert_eq!(shape_of(i1, 16, &[1, 1]), Ok(vec![16]));
    assert!(shape_of(i1, 8, &[1; 8]).unwrap_err().contains("8 I1 has 8 bytes, not 1 or 1"));
    assert_eq!(shape_of(i8, 4, &[7]), splat);
    assert_eq!(shape_of(i8, 4, &[7; 4]), Ok(vec![4]));
    assert_eq!(shape_of(tf32, 4, &[0; 3]), splat);
    assert_eq!(shape_of(tf32, 4, &[0; 12]), Ok(vec![4]));
    assert!(shape_of(tf32, 4, &[0; 4]).unwrap_err().contains("not 3 or 12"));
    assert_eq!(shape_of(f4, 4, &[0; 4]), Ok(vec![4]));
    assert!(shape_of(f4, 4, &[0; 2]).is_err());
}

/// An identity of `reduce` holds the bits of its type.
#[test]
fn integers_fit_in_their_type() {
    // reduce of %0 = iota over dimension 0, with an i32 identity.
    let with = |value: &[u8]| {
        let mut body = vec![0x3A, 3, 0x58, 1, 3, 0, 1, 1, 1];
        body.extend_from_slice(value);
        body.extend_from_slice(&[1, 0, 0]);
        tile::read(&kernel(&body))
    };
    with(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]).unwrap();
    let e = with(&[0x80, 0x80, 0x80, 0x80, 0x10]).unwrap_err();
    assert!(matches!(e, TileError::Limit { value: 0x1_0000_0000, limit: 0xFFFF_FFFF, .. }), "{e}");
}

#[test]
fn types() {
    let bad: &[(&[&[u8]], &str)] = &[
        (&[&[40]], "40 is not a valid type tag"),
        (&[&[0x82, 1]], "F8E5M3FNU needs version 13.4, the input has 13.3"),
        (&[&[12, 7]], "type 7 is out of range: there are 1"),
        // A pointer to itself, and a function of itself.
        (&[&[12, 0]], "type 0 with tag 12 cannot stand inside another type here"),
        (&[&[16, 1, 0, 0]], "type 0 with tag 16 cannot stand inside another type here"),
        (
            &[&[3], &[13, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]],
            "-1 among the tile dimensions",
        ),
        (&[&[3, 3]], "1 bytes are left over after a type"),
        (&[&[13, 0]], "type 0 with tag 13 cannot stand inside another type here"),
    ];
    for (entries, message) in bad {
        let text = error(&file(3, &[(TYPE, &table(entries))])).to_string();
        assert!(text.ends_with(message), "{text}");
    }
    // More dimensions than any tile has.
    let mut many = vec![13, 1, 65];
    many.extend_from_slice(&[1; 65 * 8]);
    let e = error(&file(3, &[(TYPE, &table(&[&many, &[3]]))]));
    assert!(matches!(e, TileError::Limit { what: "tile dimensions", value: 65, limit: 64, .. }), "{e}");
}

#[test]
fn operations() {
    let bad: &[(&[u8], &str)] = &[
        (&[0x19], "25 is not a valid opcode"),
        (&[0x76, 0, 0], "insert needs version 13.4, the input has 13.3"),
        (&[0x44], "type of a result needs 1 bytes, 0 are left"),
        (&[0x44, 9], "type of a result 9 is out of range: there are 4"),
        (&[0x44, 0], "type of a result is a function type"),
        (&[0x00, 3, 0], "operand 0 is out of range: there are 0"),
        (&[0x44, 2, 0x5C, 0, 2, 0, 1], "operand 1 is out of range: there are 1"),
        (&[0x5C, 0, 5], "5 operands; the limit is 0"),
        (&[0x10, 3, 0], "constant 0 is out of range: there are 0"),
        (&[0x31], "a global inside a function: its data has no type there"),
        // overflow 4
        (&[0x3A, 3, 0x03, 3, 4, 0, 0], "4 is not a valid overflow"),
        // addf with an unknown flag
        (&[0x3A, 3, 0x02, 3, 2, 0, 0, 0], "flags 0x2 of addf; known are 0x1"),
        (&[0x3A, 3, 0x06, 3, 99, 0], "99 is not a valid attribute tag"),
    ];
    for (body, message) in bad {
        let text = error(&kernel(body)).to_string();
        assert!(text.ends_with(message), "{text}, expected {message}");
    }
    // An operand from a region that has ended: if %0 { %1 = iota } use(%1)
    let body = [0x3A, 3, 0x32, 0, 0, 1, 1, 0, 1, 0x3A, 3, 0x00, 3, 1];
    let e = error(&kernel(&body));
    assert!(matches!(e, TileError::Index { what: "operand", index: 1, len: 1, .. }), "{e}");
}

/// The functions that `Module` cannot hold.
#[test]
fn functions() {
    let types = table(&[&[16, 0, 0], &[3]]);
    let strings = table(&[b"f"]);
    let func = |func: &[u8]| file(3, &[(STRING, &strings), (TYPE, &types), (FUNC, func)]);
    tile::read(&func(&[1, 0, 0, 2, 0, 0])).unwrap();
    let e = error(&func(&[1, 0, 0, 0, 0, 0]));
    assert!(matches!(&e, TileError::Unsupported { what, .. } if what == "function \"f\" is not a kernel"));
    let e = error(&func(&[1, 0, 0, 3, 0, 0]));
    assert!(matches!(&e, TileError::Unsupported { what, .. } if what == "kernel \"f\" is private"));
    let e = error(&func(&[1, 0, 0, 8, 0, 0]));
    assert!(matches!(e, TileError::Value { what: "set of function flags", value: 8, .. }));
    let e = error(&func(&[1, 0, 1, 2, 0, 0]));
    assert!(e.to_string().ends_with("the type of function \"f\" is not a function type"));
    let e = error(&func(&[1, 0, 0, 2, 1, 0]));
    assert!(matches!(e, TileError::Index { what: "debug information of function", index: 1, len: 0, .. }));
    let e = error(&func(&[1, 0, 0, 2, 0, 0, 1, 2, 3]));
    assert!(e.to_string().ends_with("a padding byte is 0x01, not 0xcb"), "{e}");
}

#[test]
fn nesting_is_limited() {
    // Regions: 65 of `loop { ... }`, each with one block of one operation.
    let mut body = Vec::new();
    for _ in 0..65 {
        body.extend_from_slice(&[0x41, 0, 0, 1, 1, 0, 1]);
    }
    body.extend_from_slice(&[0x5C, 0, 0]);
    let e = error(&long_kernel(&body));
    assert!(matches!(e, TileError::Limit { what: "levels of regions", value: 65, limit: 64, .. }), "{e}");
    // 64 are fine.
    tile::read(&long_kernel(&body[7..])).unwrap();
    // Attributes: an assumption that is an array of arrays.
    let mut body = vec![0x3A, 3, 0x06, 3];
    for _ in 0..70 {
        body.extend_from_slice(&[6, 1]);
    }
    body.extend_from_slice(&[3, 0, 0]);
    let e = error(&long_kernel(&body));
    assert!(matches!(e, TileError::Limit { what: "levels of attributes", limit: 64, .. }), "{e}");
}

/// As `kernel`, with a body of up to 16383 bytes.
fn long_kernel(body: &[u8]) -> Vec<u8> {
    let types = table(&[&[16, 0, 0], &[3], &[17], &[13, 1, 0]]);
    let mut func = vec![1, 0, 0, 2, 0, 0x80 | (body.len() & 0x7F) as u8, (body.len() >> 7) as u8];
    func.extend_from_slice(body);
    file(3, &[(STRING, &table(&[b"f"])), (TYPE, &types), (FUNC, &func)])
}

/// Call sites that name the previous one twice would expand to 2^40 locations.
#[test]
fn debug_information_does_not_explode() {
    let mut entries: Vec<Vec<u8>> =
        vec![vec![2, 0, 0], vec![1, 1], vec![5, 1, 1, 0, 0, 2, 1], vec![4, 3, 0, 1, 1]];
    for id in 4..44 {
        entries.push(vec![6, id, id]);
    }
    let with = |id: u8, entries: &[Vec<u8>]| {
        let mut debug = vec![1, 0xCB, 0xCB, 0xCB, 0, 0, 0, 0, 1, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB, 0xCB];
        debug.extend_from_slice(&u64::from(id).to_le_bytes());
        debug.extend_from_slice(&table(&entries.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        let types = table(&[&[16, 0, 0]]);
        tile::read(&file(
            3,
            &[(STRING, &table(&[b"f"])), (TYPE, &types), (DEBUG, &debug), (FUNC, &[1, 0, 0, 2, 1, 0])],
        ))
    };
    let module = with(6, &entries).unwrap();
    assert!(matches!(module.op_location(module.functions[0]), Location::CallSite { .. }));
    let e = with(44, &entries).unwrap_err();
    assert!(matches!(e, TileError::Limit { what: "bytes of memory for the module", .. }), "{e}");
    // A scope inside itself.
    entries.truncate(3);
    entries.push(vec![3, 4, 1, 1, 1]);
    entries.push(vec![4, 4, 0, 1, 1]);
    let e = with(5, &entries).unwrap_err();
    assert!(matches!(e, TileError::Limit { what: "levels of debug entries", .. }), "{e}");
    // An id beyond the table.
    let e = with(6, &entries).unwrap_err();
    assert!(matches!(e, TileError::Index { what: "debug entry", index: 6, len: 5, .. }), "{e}");
}

#[test]
fn every_truncation_is_an_error() {
    for name in ["tile_rs/rs_gemm_f16", "cutile_python/softmax_f32"] {
        let whole = artifact(&format!("{name}.tileirbc"));
        for len in 0..whole.len() {
            error(&whole[..len]);
        }
    }
}

/// The kinds that the writer takes and no bytecode can hold come back as errors, not as something else.
#[test]
fn a_global_inside_a_function() {
    let mut module = Module::new("m");
    let (region, block, _) = build_single_block_region(&mut module, &[]);
    let ty = Type::Tile(TileType { shape: vec![], element_type: TileElementType::Scalar(ScalarType::I32) });
    let value = DenseElements { element_type: ty, shape: vec![], data: vec![0; 4] };
    let (op, _) = OpBuilder::new(Opcode::Global, Location::Unknown)
        .attr("sym_name", Attribute::String("g".into()))
        .attr("value", Attribute::DenseElements(value))
        .attr("alignment", Attribute::i32(4))
        .build(&mut module);
    append_op(&mut module, block, op);
    let ty = Type::Func(FuncType { inputs: vec![], results: vec![] });
    let (op, _) = OpBuilder::new(Opcode::Entry, Location::Unknown)
        .attr("sym_name", Attribute::String("f".into()))
        .attr("function_type", Attribute::Type(ty))
        .region(region)
        .build(&mut module);
    module.functions.push(op);
    let bytes = write_bytecode_version(&module, BytecodeVersion::V13_3).unwrap();
    assert!(matches!(error(&bytes), TileError::Unsupported { .. }));
}

/// Operations of two bytes whose type has 64 dimensions: memory is limited by the size of the input, and the limit is
/// found before it is taken.
#[test]
fn memory_is_limited_by_the_input() {
    let mut ty = vec![13, 1, 64];
    ty.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0].repeat(64));
    let types = table(&[&[16, 0, 0], &[3], &ty]);
    let with = |operations: usize| {
        let body = [0x3A, 2].repeat(operations);
        let mut func = vec![1, 0, 0, 2, 0];
        let varint = |n: usize| [0x80 | (n & 0x7F) as u8, 0x80 | (n >> 7 & 0x7F) as u8, (n >> 14) as u8];
        func.extend_from_slice(&varint(body.len()));
        func.extend_from_slice(&body);
        let mut out = b"\x7FTileIR\0\x0d\x03\0\0".to_vec();
        for (id, payload) in [(STRING, &table(&[b"f"])), (TYPE, &types), (FUNC, &func)] {
            out.push(id);
            out.extend_from_slice(&varint(payload.len()));
            out.extend_from_slice(payload);
        }
        out.push(0);
        out
    };
    assert_eq!(tile::read(&with(100)).unwrap().num_values(), 100);
    let many = with(100_000);
    let e = error(&many);
    let TileError::Limit { what: "bytes of memory for the module", limit, value, .. } = e else {
        panic!("{e}")
    };
    assert_eq!(limit as usize, tile::LIMITS.memory_base + tile::LIMITS.memory_per_byte * many.len());
    assert!(value > limit);
}
