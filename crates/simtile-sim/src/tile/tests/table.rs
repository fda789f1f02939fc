//! `docs/tile-ops.md` says of every operation whether it is built. This test writes the table and compares.
//!
//! With `SIMTILE_UPDATE` set, the file is written instead.

use super::*;
use crate::exec::LoadFault;
use cutile_ir::requirements::{OPCODES, opcode_requirement};

fn remark(opcode: Opcode) -> &'static str {
    use Opcode::*;
    match opcode {
        AddF | SubF | MulF | Fma => "f16, bf16, f32, f64; nearest even, zero, down, up; flush_to_zero on f32",
        DivF | Sqrt => "as addf; approx and full are computed exactly",
        Exp | TanH => "full and approx: double precision, rounded",
        Exp2 | Rsqrt => "double precision, rounded; flush_to_zero on f32",
        Log | Log2 | Sin | Cos | Tan | SinH | CosH | Pow | Atan2 | FPowI => "double precision, rounded",
        MaxF | MinF => "propagate_nan, flush_to_zero",
        FToF => {
            "all float formats; nearest even, zero, down, up, nearest away; formats without infinity saturate"
        }
        FToI => "to zero, clamped; NaN is 0",
        IToF => "all float formats; nearest even, zero, down, up; out of range is infinity or NaN",
        DivI => "rounded to zero, up or down; by zero gives all ones",
        RemI => "by zero gives the dividend",
        ShLI | ShRI => "by the width or more gives 0, or the sign",
        AddI | SubI | MulI | NegI | TruncI => "wraps; overflow promises are not checked",
        Assume => "div_by, same_elements, bounded: checked, a false one is a finding",
        Assert => "the first false element faults",
        Print => "C conversions; tiles as nested lists",
        AtomicRMW | AtomicCAS | AtomicRedViewTko => "all modes; scopes count as the widest",
        LoadPtrTko | StorePtrTko => {
            "masks, padding; i1 as bytes; 4-bit elements have no pointers of their own"
        }
        LoadViewTko | StoreViewTko => {
            "partition, strided and gather views; inbounds checked; 4-bit elements two in a byte, low half first; no valid_check"
        }
        MmaF => "f16, bf16, tf32, f32, f64, f8, f4; 2-D and batched; fast_acc is ignored",
        MmaFScaled => "element times scale rounded to f32",
        MmaI => "i8 of either sign; i32 wraps",
        Reduce | Scan => "any body, any number of operands",
        Entry | Global | Module => "as part of a module, not inside of an entry",
        For => "signed or unsigned counter; a step below 1 faults",
        Extract | Insert => "a slice that is not there faults",
        Alloca => "64 MiB a block, freed at its end",
        Pack | Unpack => "to and from i8",
        GdcLaunchDependentsTko | GdcWaitTko | MemoryFenceAliasTko => "ordering only",
        MultimemLoadReduceViewTko | MultimemReduceViewTko => {
            "on the simulator's multicast objects; sums (the numbers of other reductions are not published: refused)"
        }
        PreviewCall => {
            "tiles and tokens; runs the function registered by `Simulator::register_tile_function`"
        }
        MultimemStoreViewTko => "on the simulator's multicast objects",
        _ => "",
    }
}

fn table() -> String {
    let mut rows: Vec<Opcode> = OPCODES.to_vec();
    rows.sort_by_key(|op| op.as_u16());
    let mut out = String::from(
        "# Tile IR operations on the simulator\n\nWritten and compared by the test `tile::tests::table`. \
         How each family computes is in the documentation of `simtile_sim::tile`.\n\n\
         | number | operation | since | state | remarks |\n| --- | --- | --- | --- | --- |\n",
    );
    let mut built = 0;
    for opcode in rows {
        let mut k = K::new("one", &[]);
        k.add(K::op(opcode));
        let (state, why) = match k.load() {
            Err(LoadFault::Unsupported { what, .. }) => {
                ("refused at load", what.rsplit(": ").next().unwrap_or_default().to_owned())
            }
            _ => ("built", remark(opcode).to_owned()),
        };
        built += usize::from(state == "built");
        let since = opcode_requirement(opcode).since;
        out += &format!("| {:#04x} | {} | {since} | {state} | {why} |\n", opcode.as_u16(), opcode.name());
    }
    out + &format!(
        "\n{built} of {} are built.\n\n`preview$call` is a preview that Tile IR's release notes (13.5, *New Operations*) call not \
         portable to future versions: it calls functions of a SIMT library, compiled and linked by other tools \
         (`preview$extern_impl`). Bytecode has the name of the callee and no more, so what runs is the Rust function registered \
         under that name; a module that calls one which is not registered is refused with the line that registers it.\n",
        OPCODES.len()
    )
}

#[test]
fn the_table_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tile-ops.md");
    let table = table();
    if std::env::var_os("SIMTILE_UPDATE").is_some() {
        std::fs::write(path, &table).expect("writable");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(committed, table, "run with SIMTILE_UPDATE=1 and commit docs/tile-ops.md");
}
