//! `mma.sp` and `mma.m8n8k4` against plain products of whole matrices. Where an element lies is written down here once
//! more, from PTX's tables, register by register.

mod ptx_support;

use ptx_support::{Machine, Random, shape};

/// Runs one instruction on one warp: each lane's registers in (`inputs` of them), `outputs` out.
fn run(instruction: &str, inputs: &[Vec<u32>; 32], outputs: usize) -> Vec<Vec<u32>> {
    let count = inputs[0].len();
    let loads: String = (0..count).map(|n| format!("ld.global.b32 x{n}, [y0+{}]; ", 4 * n)).collect();
    let stores: String = (0..outputs).map(|n| format!("st.global.b32 [y1+{}], z{n}; ", 4 * n)).collect();
    let m = Machine::new(&format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u64 to) {{\n\
         .reg .b32 x<32>, z<8>, t; .reg .b64 y<2>;\n\
         mov.u32 t, %laneid; ld.param.u64 y0, [from]; ld.param.u64 y1, [to];\n\
         mad.wide.u32 y0, t, {}, y0; mad.wide.u32 y1, t, {}, y1; {loads}\n{instruction}\n{stores} ret;\n}}",
        4 * count,
        4 * outputs
    ));
    let words: Vec<u32> = inputs.iter().flatten().copied().collect();
    let (from, to) = (m.upload(&words), m.blank(4 * 32 * outputs as u64));
    m.clean("k", shape(1, 32), args![from, to]);
    m.download::<u32>(to, 32 * outputs).chunks(outputs).map(<[u32]>::to_vec).collect()
}

fn list(name: &str, from: usize, count: usize) -> String {
    let all: Vec<String> = (from..from + count).map(|n| format!("{name}{n}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// Bits of a small whole number, as an element of a type.
fn bits(ty: &str, v: i32) -> u32 {
    match ty {
        "f16" => half::f16::from_f32(v as f32).to_bits().into(),
        "bf16" => half::bf16::from_f32(v as f32).to_bits().into(),
        "tf32" => (v as f32).to_bits(),
        "s8" | "u8" => v as u8 as u32,
        _ => v as u32 & 15,
    }
}

/// A product of `mma.sp`.
struct Case {
    ty: &'static str,
    k: usize,
    /// Bits of an element.
    width: usize,
    selector: usize,
    /// Lanes of a quad that give metadata.
    lanes: usize,
}

/// Which lane holds the metadata of a row's chunk, and from which bit on.
fn metadata_place(case: &Case, row: usize, chunk: usize) -> (usize, usize) {
    let (group, below) = (row % 8, row / 8);
    let quad = 4 * group + case.selector * case.lanes;
    match (case.width, case.lanes) {
        // One lane: the row in the lower half, the row 8 below in the upper one.
        (16 | 32, 1) => (quad, 16 * below + 4 * chunk),
        // Two lanes: the first half of the columns, then the second.
        (16 | 32, 2) => (quad + chunk / 4, 16 * below + chunk % 4 * 4),
        // A lane for each of the two rows, and twice that for twice the columns.
        (_, 2) => (quad + below, 4 * chunk),
        (_, _) => (quad + below + 2 * (chunk / 8), chunk % 8 * 4),
    }
}

fn sparse(case: &Case) {
    let (ty, k) = (case.ty, case.k);
    let name = format!("{ty} k{k} selector {}", case.selector);
    let mut random = Random(1 + k as u64 + case.selector as u64);
    let mut number = |limit: u64| random.below(limit) as usize;
    // Elements of a chunk, and pieces of it that are there or not as a whole.
    let (chunk, piece) = match case.width {
        4 => (8, 2),
        32 => (2, 1),
        _ => (4, 1),
    };
    let kept = chunk / 2;
    let mut dense = vec![vec![0i32; k]; 16];
    let mut packed = vec![Vec::new(); 16];
    let mut lanes: [Vec<u32>; 32] = std::array::from_fn(|_| Vec::new());
    let mut metadata = [0u32; 32];
    for row in 0..16 {
        for c in 0..k / chunk {
            let (nibble, columns): (u32, Vec<usize>) = if case.width == 32 {
                let at = number(2);
                ([0b0100, 0b1110][at], vec![at])
            } else {
                let (first, second) = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][number(6)];
                let columns = (0..2 * piece).map(|i| [first, second][i / piece] * piece + i % piece);
                ((first | second << 2) as u32, columns.collect())
            };
            assert_eq!(columns.len(), kept);
            let (lane, at) = metadata_place(case, row, c);
            metadata[lane] |= nibble << at;
            for column in columns {
                let value = 1 + number(6) as i32;
                dense[row][c * chunk + column] = value;
                packed[row].push(value);
            }
        }
    }
    let b: Vec<Vec<i32>> = (0..k).map(|_| (0..8).map(|_| number(7) as i32).collect()).collect();
    let c: Vec<Vec<i32>> = (0..16).map(|_| (0..8).map(|_| number(50) as i32).collect()).collect();
    // Elements of a register, and of the four lanes of a quad.
    let each = 32 / case.width;
    let across = 4 * each;
    let registers_a = k / 2 / across * 2;
    let registers_b = k / across;
    let float = matches!(ty, "f16" | "bf16" | "tf32");
    for (lane, words) in lanes.iter_mut().enumerate() {
        let (group, thread) = (lane / 4, lane % 4);
        for register in 0..registers_a {
            // Rows first: a0 of the row, a1 of the row 8 below, then the next columns.
            let row = group + 8 * (register % 2);
            let first = register / 2 * across + thread * each;
            words.push((0..each).fold(0, |w, i| w | bits(ty, packed[row][first + i]) << (i * case.width)));
        }
        for register in 0..registers_b {
            let first = register * across + thread * each;
            words.push((0..each).fold(0, |w, i| w | bits(ty, b[first + i][group]) << (i * case.width)));
        }
        for register in 0..4 {
            let value = c[group + register / 2 * 8][thread * 2 + register % 2];
            words.push(if float { (value as f32).to_bits() } else { value as u32 });
        }
        words.push(metadata[lane]);
    }
    let (na, nb) = (registers_a, registers_b);
    let acc = if float { "f32" } else { "s32" };
    let instruction = format!(
        "mma.sp.sync.aligned.m16n8k{k}.row.col.{acc}.{ty}.{ty}.{acc} {}, {}, {}, {}, x{}, {};",
        list("z", 0, 4),
        list("x", 0, na),
        list("x", na, nb),
        list("x", na + nb, 4),
        na + nb + 4,
        case.selector
    );
    let found = run(&instruction, &lanes, 4);
    for (lane, words) in found.iter().enumerate() {
        for (register, &word) in words.iter().enumerate() {
            let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
            let sum: i32 = (0..k).map(|i| dense[row][i] * b[i][column]).sum();
            let want = c[row][column] + sum;
            let got = if float { f32::from_bits(word) as i32 } else { word as i32 };
            assert_eq!(got, want, "{name}: row {row} column {column}");
        }
    }
}

#[test]
fn sparse_products() {
    for (ty, width, shapes) in [
        ("f16", 16, [(16, 1), (32, 2)]),
        ("bf16", 16, [(16, 1), (32, 2)]),
        ("tf32", 32, [(8, 1), (16, 2)]),
        ("s8", 8, [(32, 2), (64, 4)]),
        ("u8", 8, [(32, 2), (64, 4)]),
        ("s4", 4, [(64, 2), (128, 4)]),
        ("u4", 4, [(64, 2), (128, 4)]),
    ] {
        for (k, lanes) in shapes {
            for selector in 0..4 / lanes {
                sparse(&Case { ty, k, width, selector, lanes });
            }
        }
    }
}

#[test]
fn what_a_sparse_row_lacks_meets_nothing() {
    // Columns 0 and 1 of each four are there; the rows of b for the others are infinite.
    let lanes: [Vec<u32>; 32] = std::array::from_fn(|lane| {
        let b = if lane % 2 == 0 { 0x3C00_3C00 } else { 0x7C00_7C00 };
        vec![0x3C00_3C00, 0x3C00_3C00, b, b, 0, 0, 0, 0, 0x4444_4444]
    });
    let instruction = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1}, {x2, x3}, \
                       {x4, x5, x6, x7}, x8, 0;";
    for words in run(instruction, &lanes, 4) {
        assert_eq!(words, [8f32.to_bits(); 4]);
    }
}

#[test]
fn four_products_of_eight_lanes() {
    let mut random = Random(4);
    for (d, c) in [("f32", "f32"), ("f16", "f16"), ("f32", "f16")] {
        for a_row in [true, false] {
            for b_row in [true, false] {
                let mut matrix = |rows: usize, columns: usize| -> Vec<Vec<Vec<i32>>> {
                    let mut one = || (0..columns).map(|_| random.below(9) as i32 - 3).collect::<Vec<_>>();
                    (0..4).map(|_| (0..rows).map(|_| one()).collect()).collect()
                };
                let (ma, mb, mc) = (matrix(8, 4), matrix(4, 8), matrix(8, 8));
                let lanes: [Vec<u32>; 32] = std::array::from_fn(|lane| {
                    let (quad, upper, t) = (lane % 16 / 4, lane >= 16, lane % 4);
                    let far = if upper { 4 } else { 0 };
                    let pair = |f: &dyn Fn(usize) -> i32, i: usize| {
                        bits("f16", f(2 * i)) | bits("f16", f(2 * i + 1)) << 16
                    };
                    let a = |i: usize| if a_row { ma[quad][t + far][i] } else { ma[quad][i + far][t] };
                    let b = |i: usize| if b_row { mb[quad][t][i + far] } else { mb[quad][i][t + far] };
                    let mut words = vec![pair(&a, 0), pair(&a, 1), pair(&b, 0), pair(&b, 1)];
                    if c == "f16" {
                        words.extend((0..4).map(|i| pair(&|i| mc[quad][t + far][i], i)));
                    } else {
                        words.extend((0..8).map(|i| {
                            let row = (lane & 1) + (i & 2) + far;
                            let column = (i & 4) + (lane & 2) + (i & 1);
                            (mc[quad][row][column] as f32).to_bits()
                        }));
                    }
                    words
                });
                let (nd, nc) = (if d == "f16" { 4 } else { 8 }, if c == "f16" { 4 } else { 8 });
                let layout = |row| if row { "row" } else { "col" };
                let instruction = format!(
                    "mma.sync.aligned.m8n8k4.{}.{}.{d}.f16.f16.{c} {}, {{x0, x1}}, {{x2, x3}}, {};",
                    layout(a_row),
                    layout(b_row),
                    list("z", 0, nd),
                    list("x", 4, nc)
                );
                for (lane, words) in run(&instruction, &lanes, nd).iter().enumerate() {
                    let (quad, far) = (lane % 16 / 4, lane / 16 * 4);
                    for i in 0..8 {
                        let (row, column) = match d {
                            "f16" => (lane % 4 + far, i),
                            _ => ((lane & 1) + (i & 2) + far, (i & 4) + (lane & 2) + (i & 1)),
                        };
                        let got = match d {
                            "f16" => half::f16::from_bits((words[i / 2] >> (16 * (i % 2))) as u16).to_f32(),
                            _ => f32::from_bits(words[i]),
                        };
                        let sum: i32 = (0..4).map(|k| ma[quad][row][k] * mb[quad][k][column]).sum();
                        assert_eq!(got as i32, mc[quad][row][column] + sum, "{instruction} lane {lane} {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn products_that_there_are_not() {
    for (text, why) in [
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1}, {x2, x3}, {x4, x5, x6, x7}, x8, 4;",
            "0 to 3",
        ),
        (
            "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1, x2, x3}, {x4, x5, x6, x7}, {x4, x5, x6, x7}, x8, 2;",
            "0 to 1",
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1}, {x2, x3}, {x4, x5, x6, x7};",
            "6 operands",
        ),
        (
            "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1}, {x2, x3}, {x4, x5, x6, x7, x4, x5, x6, x7};",
            "f32",
        ),
        (
            "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {z0, z1, z2, z3}, {x0, x1}, {x2, x3}, {x4, x5, x6, x7};",
            "registers",
        ),
    ] {
        let module = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k() {{ .reg .b32 x<16>, z<8>;\n{text}\nret; }}"
        );
        let fault = Machine::load(&module).err().unwrap_or_else(|| panic!("{text}")).to_string();
        assert!(fault.contains(why), "{fault}");
    }
}
