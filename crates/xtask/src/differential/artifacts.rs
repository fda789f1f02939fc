//! The committed kernels: every entry of `artifacts/ptx` and the five Tile kernels, each on three random
//! inputs, ragged sizes, and two geometries where the artifacts' README leaves them open.
//!
//! Tile kernels run from bytecode on a simulator and from the committed sm_90 cubin on a GPU.

use super::device::{Device, Launch, arg};
use super::record::{Elem, Output, Rows, Tolerance};
use super::values::Random;
use bytemuck::Pod;
use simtile_driver::sys::{CUdeviceptr, CUfunction};

const FILES: &[(&str, &[u8])] = include!("../../../../artifacts/files.rs");

fn file(name: &str) -> Result<&'static [u8], String> {
    let found = FILES.iter().find(|(known, _)| *known == name);
    found.map(|(_, bytes)| *bytes).ok_or_else(|| format!("no artifact {name} is embedded"))
}

/// What a case works with: an entry of a loaded module, random numbers and the outputs so far.
struct Bench<'d> {
    device: &'d Device,
    function: CUfunction,
    random: Random,
    outputs: Vec<Output>,
}

type Done = Result<(), String>;

impl Bench<'_> {
    fn up<T: Pod>(&self, values: &[T]) -> Result<CUdeviceptr, String> {
        self.device.upload(values)
    }

    fn run(&self, launch: Launch, args: &[Vec<u8>]) -> Done {
        self.device.run(self.function, launch, args)
    }

    fn keep(&mut self, elem: Elem, tolerance: Tolerance, pointer: CUdeviceptr, count: usize) -> Done {
        let bytes = self.device.read(pointer, count * elem.bytes())?;
        self.outputs.push(Output { elem, tolerance, rows: Rows::ALL, bytes });
        Ok(())
    }

    /// Keeps a matrix. What a kernel leaves in the padding of its rows is nobody's business: a GPU stores whole
    /// 16-byte pieces.
    fn keep_rows(
        &mut self,
        tolerance: Tolerance,
        pointer: CUdeviceptr,
        [rows, cols, stride]: [usize; 3],
    ) -> Done {
        self.keep(Elem::F32, tolerance, pointer, rows * stride)?;
        if let Some(output) = self.outputs.last_mut() {
            output.rows = Rows { cols: cols as u32, stride: stride as u32 };
        }
        Ok(())
    }

    /// Sizes that are no multiple of anything, and the edges of a block.
    fn ragged(&mut self) -> [usize; 4] {
        [1, 255, 257, 1001 + 2 * self.random.below(4500) as usize]
    }

    /// Ordinary floats with a few special ones among them.
    fn floats(&mut self, n: usize) -> Vec<f32> {
        const SPECIAL: [f32; 8] =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-42, f32::MAX];
        let mut all = self.random.floats(n);
        for value in &mut all {
            if self.random.below(32) == 0 {
                *value = SPECIAL[self.random.below(8) as usize];
            }
        }
        all
    }
}

/// A case: its name, the file of its kernel, the entry and what it runs.
pub struct Case {
    pub name: &'static str,
    file: &'static str,
    entry: &'static str,
    body: fn(&mut Bench<'_>) -> Done,
    /// The kernel prints: its output is what the process writes.
    pub prints: bool,
    /// The kernel traps: its output is the error.
    pub loses: bool,
}

const fn case(
    name: &'static str,
    file: &'static str,
    entry: &'static str,
    body: fn(&mut Bench<'_>) -> Done,
) -> Case {
    Case { name, file, entry, body, prints: false, loses: false }
}

/// Every case.
pub const CASES: &[Case] = &[
    case("saxpy", "ptx/saxpy.ptx", "saxpy", saxpy),
    case("reduce_shared", "ptx/reduce_shared.ptx", "reduce_shared", |b| sums(b, [256, 64])),
    case("warp_reduce", "ptx/warp_reduce.ptx", "warp_reduce", |b| sums(b, [256, 96])),
    case("warp_ops", "ptx/warp_reduce.ptx", "warp_ops", warp_ops),
    case("histogram", "ptx/histogram.ptx", "histogram", histogram),
    case("atomics_mix", "ptx/histogram.ptx", "atomics_mix", atomics_mix),
    case("dyn_shared", "ptx/dyn_shared.ptx", "dyn_shared", |b| {
        reverses(b, 1024, true, 0)?;
        reverses(b, 1024, true, 77)
    }),
    case("sgemm_tiled", "ptx/sgemm.ptx", "sgemm_tiled", |b| products(b, 32)),
    case("grid_sync", "ptx/grid_sync.ptx", "grid_sync", grid_sync),
    case("cluster_dsm", "ptx/cluster.ptx", "cluster_dsm", cluster_dsm),
    case("async_copy", "ptx/async_copy.ptx", "async_copy", |b| reverses(b, 0, false, 0)),
    case("bulk_copy", "ptx/async_copy.ptx", "bulk_copy", |b| reverses(b, 0, false, 0)),
    case("wmma16", "ptx/wmma.ptx", "wmma16", wmma16),
    Case { prints: true, ..case("hello", "ptx/printf.ptx", "hello", hello) },
    case("asserts(0)", "ptx/printf.ptx", "asserts", |b| b.run(Launch::of(3, 64), &[arg(0i32)])),
    Case {
        loses: true,
        ..case("asserts(-1)", "ptx/printf.ptx", "asserts", |b| b.run(Launch::of(3, 64), &[arg(-1i32)]))
    },
    case("mathk", "ptx/math.ptx", "mathk", mathk),
    case("vec4", "ptx/math.ptx", "vec4", vec4),
    case("rust saxpy", "ptx/rust_saxpy.ptx", "saxpy", saxpy),
    case("rust saxpy_slice", "ptx/rust_saxpy.ptx", "saxpy_slice", saxpy_slice),
    case("rust reduce_shared", "ptx/rust_kernels.ptx", "reduce_shared", |b| sums(b, [256, 64])),
    case("rust warp_reduce", "ptx/rust_kernels.ptx", "warp_reduce", |b| sums(b, [256, 96])),
    case("rust histogram", "ptx/rust_kernels.ptx", "histogram", histogram),
    case("rust dyn_shared", "ptx/rust_kernels.ptx", "dyn_shared", |b| reverses(b, 1024, true, 0)),
    Case {
        prints: true,
        ..case("rust hello", "ptx/rust_kernels.ptx", "hello", |b| b.run(Launch::of(1, 2), &[]))
    },
    case("rust cas_loop", "ptx/rust_kernels.ptx", "cas_loop", cas_loop),
    case("rust cluster_rank", "ptx/rust_kernels.ptx", "cluster_rank", cluster_rank),
    case("rust sgemm16", "ptx/rust_kernels.ptx", "sgemm16", |b| products(b, 16)),
    case("rust math", "ptx/rust_kernels.ptx", "math", rust_math),
    case("tile rs_vadd_f32", "tile_rs/rs_vadd_f32", "rs_vadd_f32", tile_vadd),
    case("tile rs_softmax_f32", "tile_rs/rs_softmax_f32", "rs_softmax_f32", tile_softmax),
    case("tile rs_gemm_f16", "tile_rs/rs_gemm_f16", "rs_gemm_f16", tile_gemm),
    case("tile python vadd_f32", "cutile_python/vadd_f32", "vadd_f32", tile_vadd),
    case("tile python softmax_f32", "cutile_python/softmax_f32", "softmax_f32", tile_softmax),
];

impl Case {
    /// Runs on three random inputs.
    pub fn run(&self, device: &Device) -> Result<Vec<Output>, String> {
        let image = if self.file.ends_with(".ptx") {
            let mut text = file(self.file)?.to_vec();
            text.push(0);
            text
        } else if device.is_simulated() {
            file(&format!("{}.tileirbc", self.file))?.to_vec()
        } else if device.capability() == (9, 0) {
            file(&format!("{}.cubin", self.file))?.to_vec()
        } else {
            let (major, minor) = device.capability();
            return Err(format!("the committed cubin is for sm_90, this device is {major}.{minor}"));
        };
        let module = device.load(&image)?;
        let function = device.function(module, self.entry)?;
        let mut outputs = Vec::new();
        for seed in 0..if self.prints || self.loses { 1 } else { 3 } {
            let random = Random::new(self.name, seed);
            let mut bench = Bench { device, function, random, outputs: Vec::new() };
            let done = (self.body)(&mut bench);
            if self.loses {
                // The error itself, and that the context is gone.
                let again = device.wait();
                let text = format!("{:?} / {:?}", done.map_err(code_name), again.map_err(code_name));
                bench.outputs.push(Output {
                    elem: Elem::U8,
                    tolerance: Tolerance::EXACT,
                    rows: Rows::ALL,
                    bytes: text.into_bytes(),
                });
            } else {
                done?;
            }
            outputs.append(&mut bench.outputs);
            device.release();
        }
        if !self.loses {
            device.unload(module)?;
        }
        Ok(outputs)
    }
}

/// `CUDA_ERROR_…` out of an error's text.
fn code_name(error: String) -> String {
    let start = error.find("CUDA_ERROR").unwrap_or(0);
    let word = &error[start..];
    word[..word.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(word.len())].to_owned()
}

fn saxpy(b: &mut Bench<'_>) -> Done {
    for n in b.ragged() {
        for block in [256u32, 96] {
            let (a, x, y) = (b.random.float(), b.floats(n), b.floats(n));
            let (dx, dy) = (b.up(&x)?, b.up(&y)?);
            let launch = Launch::of((n as u32).div_ceil(block), block);
            b.run(launch, &[arg(n as u32), arg(a), arg(dx), arg(dy)])?;
            b.keep(Elem::F32, Tolerance::EXACT, dy, n)?;
        }
    }
    Ok(())
}

fn saxpy_slice(b: &mut Bench<'_>) -> Done {
    for n in b.ragged() {
        for (grid, block) in [(64, 256), (3, 96)] {
            let (a, x, y) = (b.random.float(), b.floats(n), b.floats(n));
            let (dx, dy) = (b.up(&x)?, b.up(&y)?);
            b.run(Launch::of(grid, block), &[arg(a), arg(dx), arg(dy), arg(n as u64)])?;
            b.keep(Elem::F32, Tolerance::EXACT, dy, n)?;
        }
    }
    Ok(())
}

/// Sums of small integers are exact in f32, in any order.
fn sums(b: &mut Bench<'_>, blocks: [u32; 2]) -> Done {
    for n in b.ragged() {
        for block in blocks {
            let x: Vec<f32> = (0..n).map(|_| b.random.below(7) as f32).collect();
            let (dx, out) = (b.up(&x)?, b.up(&[3f32])?);
            let launch = Launch::of((n as u32).div_ceil(block), block);
            b.run(launch, &[arg(dx), arg(out), arg(n as u32)])?;
            b.keep(Elem::F32, Tolerance::EXACT, out, 1)?;
        }
    }
    Ok(())
}

fn warp_ops(b: &mut Bench<'_>) -> Done {
    for threads in [32usize, 96, 1024] {
        let x: Vec<i32> = (0..threads).map(|_| b.random.below(20) as i32 - 6).collect();
        let (dx, out) = (b.up(&x)?, b.up(&vec![0u32; threads])?);
        b.run(Launch::of(1, threads as u32), &[arg(dx), arg(out)])?;
        b.keep(Elem::U32, Tolerance::EXACT, out, threads)?;
    }
    Ok(())
}

fn histogram(b: &mut Bench<'_>) -> Done {
    for n in b.ragged() {
        for (grid, block) in [(40, 256), (3, 100)] {
            let x: Vec<u8> = (0..n).map(|_| (b.random.below(16) * b.random.below(16)) as u8).collect();
            let bins: Vec<u32> = (0..256).collect();
            let (dx, bins) = (b.up(&x)?, b.up(&bins)?);
            b.run(Launch::of(grid, block), &[arg(dx), arg(bins), arg(n as u32)])?;
            b.keep(Elem::U32, Tolerance::EXACT, bins, 256)?;
        }
    }
    Ok(())
}

fn atomics_mix(b: &mut Bench<'_>) -> Done {
    for threads in [1u32, 77, 256, 1024] {
        let mut a: Vec<i32> = (0..8).map(|_| b.random.bits() as i32).collect();
        (a[6], a[7]) = (b.random.below(1001) as i32, b.random.below(1001) as i32);
        let words = [b.random.below(1000), b.random.below(2) * 5];
        let (a, w) = (b.up(&a)?, b.up(&words)?);
        let (f, d) = (b.up(&[2.0f32, 1.5])?, b.up(&[0.25f64])?);
        b.run(Launch::of(1, threads), &[arg(a), arg(w), arg(f), arg(d)])?;
        b.keep(Elem::U32, Tolerance::EXACT, a, 8)?;
        b.keep(Elem::U64, Tolerance::EXACT, w, 2)?;
        b.keep(Elem::F32, Tolerance::EXACT, f, 2)?;
        b.keep(Elem::F64, Tolerance::EXACT, d, 1)?;
    }
    Ok(())
}

/// Each block of 256 elements reversed; `tail` elements are missing from the last block.
fn reverses(b: &mut Bench<'_>, shared: u32, takes_n: bool, tail: usize) -> Done {
    for blocks in [1, 3, 2 + b.random.below(30) as usize] {
        let all = blocks * 256;
        let x = b.floats(all - tail);
        let (dx, dy) = (b.up(&x)?, b.up(&vec![-7f32; all])?);
        let mut args = vec![arg(dx), arg(dy)];
        if takes_n {
            args.push(arg((all - tail) as u32));
        }
        b.run(Launch { shared, ..Launch::of(blocks as u32, 256) }, &args)?;
        b.keep(Elem::F32, Tolerance::EXACT, dy, all)?;
    }
    Ok(())
}

fn products(b: &mut Bench<'_>, tile: u32) -> Done {
    for size in [[1usize, 1, 1], [65, 33, 47], [0; 3]] {
        let [m, n, k] = size.map(|s| if s == 0 { 1 + b.random.below(90) as usize } else { s });
        let (x, y) = (b.random.floats(m * k), b.random.floats(k * n));
        let (da, db, dc) = (b.up(&x)?, b.up(&y)?, b.up(&vec![0f32; m * n])?);
        let launch = Launch {
            grid: [(n as u32).div_ceil(tile), (m as u32).div_ceil(tile), 1],
            block: [tile, tile, 1],
            ..Launch::of(1, 1)
        };
        b.run(launch, &[arg(da), arg(db), arg(dc), arg(m as u32), arg(n as u32), arg(k as u32)])?;
        b.keep(Elem::F32, Tolerance::EXACT, dc, m * n)?;
    }
    Ok(())
}

fn grid_sync(b: &mut Bench<'_>) -> Done {
    for (grid, block) in [(32u32, 256u32), (5, 64)] {
        let n = (grid * block) as usize - b.random.below(block.into()) as usize;
        let a: Vec<f32> = (0..n).map(|_| b.random.below(100) as f32).collect();
        let (da, db) = (b.up(&a)?, b.up(&vec![0f32; n])?);
        let launch = Launch { cooperative: true, ..Launch::of(grid, block) };
        b.run(launch, &[arg(da), arg(db), arg(n as u32)])?;
        b.keep(Elem::F32, Tolerance::EXACT, da, n)?;
        b.keep(Elem::F32, Tolerance::EXACT, db, n)?;
    }
    Ok(())
}

fn cluster_dsm(b: &mut Bench<'_>) -> Done {
    for blocks in [2, 8, 2 + 2 * b.random.below(10) as usize] {
        let x = b.floats(blocks * 128);
        let (dx, dy) = (b.up(&x)?, b.up(&vec![0f32; x.len()])?);
        b.run(Launch::of(blocks as u32, 128), &[arg(dx), arg(dy)])?;
        b.keep(Elem::F32, Tolerance::EXACT, dy, x.len())?;
    }
    Ok(())
}

fn cluster_rank(b: &mut Bench<'_>) -> Done {
    for (grid, block, cluster) in [(12u32, 64u32, 4u32), (6, 32, 1), (8, 100, 8)] {
        let out = b.up(&vec![99u32; grid as usize])?;
        b.run(Launch { cluster: Some(cluster), ..Launch::of(grid, block) }, &[arg(out)])?;
        b.keep(Elem::U32, Tolerance::EXACT, out, grid as usize)?;
    }
    Ok(())
}

fn wmma16(b: &mut Bench<'_>) -> Done {
    let (x, y) = (b.random.halves(256), b.random.halves(256));
    let (da, db, dc) = (b.up(&x)?, b.up(&y)?, b.up(&[0f32; 256])?);
    b.run(Launch::of(1, 32), &[arg(da), arg(db), arg(dc)])?;
    b.keep(Elem::F32, Tolerance::readme(1e-3), dc, 256)
}

fn hello(b: &mut Bench<'_>) -> Done {
    b.run(Launch::of(1, 2), &[arg(7i32), arg(1.5f32)])?;
    b.run(Launch::of(1, 1), &[arg(-3i32), arg(1e10f32)])
}

fn cas_loop(b: &mut Bench<'_>) -> Done {
    for (grid, block) in [(4, 64), (3, 33)] {
        let (before, value) = (b.random.bits() as i64, b.random.bits() as i64);
        let place = b.up(&[before])?;
        b.run(Launch::of(grid, block), &[arg(place), arg(value)])?;
        b.keep(Elem::U64, Tolerance::EXACT, place, 1)?;
    }
    Ok(())
}

/// f32 math of the CUDA library is made of approximate instructions: a few ulp. Everything else is exact.
fn mathk(b: &mut Bench<'_>) -> Done {
    for n in [8usize, 64, 1024] {
        let f: Vec<f32> = (0..n).map(|_| b.random.float().abs() * 5.0 + 0.01).collect();
        let d: Vec<f64> = (0..n).map(|_| f64::from(b.random.float().abs())).collect();
        let h = b.random.halves(n + 1);
        let ll: Vec<i64> = (0..n).map(|_| b.random.bits() as i64).collect();
        let bytes: Vec<u8> = (0..n).map(|_| b.random.bits() as u8).collect();
        let mut p = vec![0u8; 24];
        p[..4].copy_from_slice(&3i32.to_le_bytes());
        p[4..8].copy_from_slice(&0.5f32.to_le_bytes());
        p[8..16].copy_from_slice(&2.25f64.to_le_bytes());
        for (at, v) in [11i16, -12, 13].iter().enumerate() {
            p[16 + 2 * at..18 + 2 * at].copy_from_slice(&v.to_le_bytes());
        }
        let (df, dd, dh) = (b.up(&f)?, b.up(&d)?, b.up(&h)?);
        let (dbf, dll, du) = (b.up(&vec![0u16; n])?, b.up(&ll)?, b.up(&bytes)?);
        b.run(Launch::of(1, n as u32), &[arg(df), arg(dd), arg(dh), arg(dbf), p, arg(dll), arg(du)])?;
        b.keep(Elem::F32, Tolerance::readme(1e-5), df, n)?;
        b.keep(Elem::F64, Tolerance::EXACT, dd, n)?;
        b.keep(Elem::Bf16, Tolerance::EXACT, dbf, n)?;
        b.keep(Elem::U64, Tolerance::EXACT, dll, n)?;
        b.keep(Elem::U8, Tolerance::EXACT, du, n)?;
    }
    Ok(())
}

fn vec4(b: &mut Bench<'_>) -> Done {
    for n in [1usize, 33, 1024] {
        let a = b.floats(4 * n);
        let c: Vec<u32> = (0..2 * n).map(|_| b.random.bits() as u32).collect();
        let (da, db) = (b.up(&a)?, b.up(&vec![0f32; 4 * n])?);
        let (dc, dd) = (b.up(&c)?, b.up(&vec![0u32; 2 * n])?);
        b.run(Launch::of(1, n as u32), &[arg(da), arg(db), arg(dc), arg(dd)])?;
        b.keep(Elem::F32, Tolerance::EXACT, db, 4 * n)?;
        b.keep(Elem::U32, Tolerance::EXACT, dd, 2 * n)?;
    }
    Ok(())
}

fn rust_math(b: &mut Bench<'_>) -> Done {
    for n in [1usize, 33, 1024] {
        let x: Vec<f32> = b.floats(n).iter().map(|v| v.abs()).collect();
        let (dx, dy, dh) = (b.up(&x)?, b.up(&vec![0f32; n])?, b.up(&vec![0u16; n])?);
        b.run(Launch::of(1, n as u32), &[arg(dx), arg(dy), arg(dh)])?;
        b.keep(Elem::F32, Tolerance::EXACT, dy, n)?;
        b.keep(Elem::F16, Tolerance::EXACT, dh, n)?;
    }
    Ok(())
}

/// Pointer, extents and strides of a row-major tensor.
fn tensor(pointer: CUdeviceptr, shape: &[usize], stride: usize) -> Vec<Vec<u8>> {
    let mut args = vec![arg(pointer)];
    args.extend(shape.iter().map(|&extent| arg(extent as i32)));
    if shape.len() > 1 {
        args.push(arg(stride as i32));
    }
    args.push(arg(1i32));
    args
}

fn tile_vadd(b: &mut Bench<'_>) -> Done {
    for n in [1, 1023, 1025, 2000 + b.random.below(8000) as usize] {
        let (x, y) = (b.floats(n), b.floats(n));
        // One more value, which must stay.
        let (dx, dy, dz) = (b.up(&x)?, b.up(&y)?, b.up(&vec![-7f32; n + 1])?);
        let args = [tensor(dx, &[n], 1), tensor(dy, &[n], 1), tensor(dz, &[n], 1)].concat();
        b.run(Launch::of((n as u32).div_ceil(1024), 1), &args)?;
        b.keep(Elem::F32, Tolerance::EXACT, dz, n + 1)?;
    }
    Ok(())
}

fn tile_softmax(b: &mut Bench<'_>) -> Done {
    let some = 1 + b.random.below(1024) as usize;
    for (rows, cols) in [(1, 1), (7, 1024), (5, 992), (3 + b.random.below(20) as usize, some)] {
        let stride = cols.next_multiple_of(16);
        let x: Vec<f32> = b.random.floats(rows * stride).iter().map(|x| x * 8.0).collect();
        let (dx, dy) = (b.up(&x)?, b.up(&vec![-7f32; rows * stride])?);
        let args = [tensor(dx, &[rows, cols], stride), tensor(dy, &[rows, cols], stride)].concat();
        b.run(Launch::of(rows as u32, 1), &args)?;
        b.keep_rows(Tolerance::readme(1e-5), dy, [rows, cols, stride])?;
    }
    Ok(())
}

fn tile_gemm(b: &mut Bench<'_>) -> Done {
    for size in [[1usize, 1, 1], [130, 70, 97], [0; 3]] {
        let [m, n, k] = size.map(|s| if s == 0 { 1 + b.random.below(200) as usize } else { s });
        let (sa, sb) = (k.next_multiple_of(16), n.next_multiple_of(16));
        // What lies beyond a row's end must not count.
        let mut matrix = |rows: usize, cols: usize, stride: usize| {
            let mut bits = b.random.halves(rows * stride);
            for row in bits.chunks_mut(stride) {
                row[cols..].fill(half::f16::NAN.to_bits());
            }
            bits
        };
        let (x, y) = (matrix(m, k, sa), matrix(k, n, sb));
        let (dx, dy, dz) = (b.up(&x)?, b.up(&y)?, b.up(&vec![-7f32; m * sb])?);
        let args = [tensor(dx, &[m, k], sa), tensor(dy, &[k, n], sb), tensor(dz, &[m, n], sb)].concat();
        let grid = [m.div_ceil(128) as u32, n.div_ceil(128) as u32, 1];
        b.run(Launch { grid, ..Launch::of(1, 1) }, &args)?;
        b.keep_rows(Tolerance::readme(1e-3), dz, [m, n, sb])?;
    }
    Ok(())
}
