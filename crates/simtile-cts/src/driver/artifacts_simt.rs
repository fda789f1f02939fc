//! The SIMT kernels of `artifacts/ptx`, made by nvrtc and rustc: every entry that ran on a GPU, on random
//! inputs of ragged sizes, held to the tolerance of the artifacts' README.

use crate::artifacts;
use crate::frame::{Check, Cx, Need, Random, Stop, printed, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::ffi::CStr;

const CLUSTERS: Need = Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, "clusters");

crate::frame::registry::tests! { Driver, "artifacts";
    saxpy needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_saxpy_slice needs [Need::Capability(9, 0)] seeds 3,
    reduce_shared needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_reduce_shared needs [Need::Capability(9, 0)] seeds 3,
    warp_reduce needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_warp_reduce needs [Need::Capability(9, 0)] seeds 3,
    histogram needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_histogram needs [Need::Capability(9, 0)] seeds 3,
    dyn_shared needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_dyn_shared needs [Need::Capability(9, 0)] seeds 3,
    sgemm_tiled needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    rust_sgemm16 needs [Need::Capability(9, 0)] seeds 3,
    rust_cas_loop needs [Need::Capability(9, 0)] seeds 3,
    hello needs [Need::Capability(9, 0), Need::ARTIFACTS],
    rust_hello needs [Need::Capability(9, 0)],
    grid_sync needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    cluster_dsm needs [Need::Capability(9, 0), Need::ARTIFACTS, CLUSTERS] seeds 3,
    async_copy needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    bulk_copy needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
    wmma16 needs [Need::Capability(9, 0), Need::ARTIFACTS] seeds 3,
}

/// A device, a stream and one entry of an artifact.
struct Kernel<'a> {
    gpu: Gpu<'a>,
    stream: CUstream,
    function: CUfunction,
}

impl<'a> Kernel<'a> {
    fn new(cx: &'a Cx, file: &str, entry: &CStr) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let stream = gpu.stream()?;
        let module = gpu.module(&artifacts::text(file)?).map_err(|stop| stop.within(file))?;
        let function = gpu.function(module, entry)?;
        Ok(Self { gpu, stream, function })
    }

    fn run(&self, shape: Shape, args: &Args) -> Check {
        self.gpu.launch(self.function, shape, self.stream, args)?;
        self.gpu.sync(self.stream)
    }
}

/// The README's tolerance: `|got - want| <= t (1 + |want|)`.
pub fn close(what: &str, got: &[f32], want: &[f32], t: f32) -> Check {
    ensure_eq!(got.len(), want.len(), "values of {what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let holds = (g - w).abs() <= t * (1.0 + w.abs());
        ensure!(holds, "{what}: value {i} of {} is {g}, expected {w} within {t}", want.len());
    }
    Ok(())
}

/// Sizes that are no multiple of anything, and the edges of a block.
fn ragged(random: &mut Random) -> [u32; 4] {
    [1, 255, 257, 1001 + 2 * random.below(4500) as u32]
}

fn saxpy_inputs(random: &mut Random, n: usize) -> (f32, Vec<f32>, Vec<f32>, Vec<f32>) {
    let (a, x, y) = (random.float() * 4.0, random.floats(n), random.floats(n));
    let want = x.iter().zip(&y).map(|(x, y)| a * x + y).collect();
    (a, x, y, want)
}

fn saxpy(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/saxpy.ptx", c"saxpy")?;
    let mut random = cx.random(10);
    for n in ragged(&mut random) {
        for block in [256, 96] {
            let (a, x, y, want) = saxpy_inputs(&mut random, n as usize);
            let (dx, dy) = (kernel.gpu.upload(&x)?, kernel.gpu.upload(&y)?);
            kernel
                .run(Shape::of(n.div_ceil(block), block), &Args::new().with(n).with(a).with(dx).with(dy))?;
            close(&format!("saxpy of {n}"), &kernel.gpu.read(dy, n as usize)?, &want, 1e-6)?;
            same("x afterwards", &kernel.gpu.read::<f32>(dx, n as usize)?, &x)?;
        }
    }
    Ok(())
}

fn rust_saxpy_slice(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/rust_saxpy.ptx", c"saxpy_slice")?;
    let mut random = cx.random(11);
    for n in ragged(&mut random) {
        for (grid, block) in [(64, 256), (3, 96)] {
            let (a, x, y, want) = saxpy_inputs(&mut random, n as usize);
            let (dx, dy) = (kernel.gpu.upload(&x)?, kernel.gpu.upload(&y)?);
            let args = Args::new().with(a).with(dx).with(dy).with(u64::from(n));
            kernel.run(Shape::of(grid, block), &args)?;
            close(&format!("saxpy_slice of {n}"), &kernel.gpu.read(dy, n as usize)?, &want, 1e-6)?;
        }
    }
    Ok(())
}

/// Sums of small integers, which are exact in f32 in any order.
fn sums(cx: &Cx, file: &str, entry: &CStr, blocks: [u32; 2]) -> Check {
    let kernel = Kernel::new(cx, file, entry)?;
    let mut random = cx.random(12);
    for n in ragged(&mut random) {
        for block in blocks {
            let x: Vec<f32> = (0..n).map(|_| random.below(7) as f32).collect();
            let want: f32 = x.iter().sum();
            let (dx, out) = (kernel.gpu.upload(&x)?, kernel.gpu.upload(&[0f32])?);
            kernel.run(Shape::of(n.div_ceil(block), block), &Args::new().with(dx).with(out).with(n))?;
            close(&format!("sum of {n}, blocks of {block}"), &kernel.gpu.read(out, 1)?, &[want], 1e-6)?;
        }
    }
    Ok(())
}

fn reduce_shared(cx: &Cx) -> Check {
    sums(cx, "ptx/reduce_shared.ptx", c"reduce_shared", [256, 64])
}

fn rust_reduce_shared(cx: &Cx) -> Check {
    sums(cx, "ptx/rust_kernels.ptx", c"reduce_shared", [256, 64])
}

fn warp_reduce(cx: &Cx) -> Check {
    sums(cx, "ptx/warp_reduce.ptx", c"warp_reduce", [256, 96])
}

fn rust_warp_reduce(cx: &Cx) -> Check {
    sums(cx, "ptx/rust_kernels.ptx", c"warp_reduce", [256, 96])
}

fn histograms(cx: &Cx, file: &str) -> Check {
    let kernel = Kernel::new(cx, file, c"histogram")?;
    let mut random = cx.random(13);
    for n in ragged(&mut random) {
        for grid in [40, 3] {
            let x: Vec<u8> = (0..n).map(|_| (random.below(16) * random.below(16)) as u8).collect();
            // Counting goes on from what is there.
            let mut want: Vec<u32> = (0..256).collect();
            let bins = kernel.gpu.upload(&want)?;
            for &value in &x {
                want[usize::from(value)] += 1;
            }
            let dx = kernel.gpu.upload(&x)?;
            kernel.run(Shape::of(grid, 256), &Args::new().with(dx).with(bins).with(n))?;
            same(&format!("bins of {n}, grid {grid}"), &kernel.gpu.read::<u32>(bins, 256)?, &want)?;
        }
    }
    Ok(())
}

fn histogram(cx: &Cx) -> Check {
    histograms(cx, "ptx/histogram.ptx")
}

fn rust_histogram(cx: &Cx) -> Check {
    histograms(cx, "ptx/rust_kernels.ptx")
}

fn reversed(x: &[f32]) -> Vec<f32> {
    x.chunks(256).flat_map(|block| block.iter().rev().copied()).collect()
}

/// Each block of 256 elements reversed; `tail` elements are missing from the last block and count as 0.
fn reverses(cx: &Cx, file: &str, entry: &CStr, shared: u32, takes_n: bool, tail: u32) -> Check {
    let kernel = Kernel::new(cx, file, entry)?;
    let mut random = cx.random(14);
    for blocks in [1, 3, 2 + random.below(30) as u32] {
        let all = blocks as usize * 256;
        let n = all as u32 - tail;
        let mut x = random.floats(all);
        x[n as usize..].fill(0.0);
        let dx = kernel.gpu.upload(&x[..n as usize])?;
        let dy = kernel.gpu.upload(&vec![-7f32; all])?;
        let mut args = Args::new().with(dx).with(dy);
        if takes_n {
            args = args.with(n);
        }
        kernel.run(Shape::of(blocks, 256).with_shared(shared), &args)?;
        let mut want = reversed(&x);
        want[n as usize..].fill(-7.0);
        same(&format!("{n} values reversed in blocks"), &kernel.gpu.read::<f32>(dy, all)?, &want)?;
    }
    Ok(())
}

fn dyn_shared(cx: &Cx) -> Check {
    reverses(cx, "ptx/dyn_shared.ptx", c"dyn_shared", 1024, true, 0)?;
    reverses(cx, "ptx/dyn_shared.ptx", c"dyn_shared", 1024, true, 77)
}

fn rust_dyn_shared(cx: &Cx) -> Check {
    reverses(cx, "ptx/rust_kernels.ptx", c"dyn_shared", 1024, true, 0)
}

fn async_copy(cx: &Cx) -> Check {
    reverses(cx, "ptx/async_copy.ptx", c"async_copy", 0, false, 0)
}

fn bulk_copy(cx: &Cx) -> Check {
    reverses(cx, "ptx/async_copy.ptx", c"bulk_copy", 0, false, 0)
}

/// C = A B in row-major order.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut c = vec![0f32; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = (0..k).fold(0f32, |sum, l| a[i * k + l].mul_add(b[l * n + j], sum));
        }
    }
    c
}

fn products(cx: &Cx, file: &str, entry: &CStr, tile: u32) -> Check {
    let kernel = Kernel::new(cx, file, entry)?;
    let most = kernel.gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    if i64::from(most) < i64::from(tile * tile) {
        let reason = format!("needs blocks of {} threads, the device has {most} at most", tile * tile);
        return Err(Stop::unsupported(reason));
    }
    let mut random = cx.random(15);
    let some = |random: &mut Random| 1 + random.below(90) as u32;
    for (m, n, k) in
        [(1u32, 1u32, 1u32), (65, 33, 47), (some(&mut random), some(&mut random), some(&mut random))]
    {
        let (a, b) = (random.floats((m * k) as usize), random.floats((k * n) as usize));
        let want = product(&a, &b, m as usize, n as usize, k as usize);
        let (da, db) = (kernel.gpu.upload(&a)?, kernel.gpu.upload(&b)?);
        let dc = kernel.gpu.zeroed((m * n * 4) as usize)?;
        let shape =
            Shape { grid: [n.div_ceil(tile), m.div_ceil(tile), 1], block: [tile, tile, 1], shared: 0 };
        kernel.run(shape, &Args::new().with(da).with(db).with(dc).with(m).with(n).with(k))?;
        close(&format!("product {m} x {n} x {k}"), &kernel.gpu.read(dc, (m * n) as usize)?, &want, 1e-4)?;
    }
    Ok(())
}

fn sgemm_tiled(cx: &Cx) -> Check {
    products(cx, "ptx/sgemm.ptx", c"sgemm_tiled", 32)
}

fn rust_sgemm16(cx: &Cx) -> Check {
    products(cx, "ptx/rust_kernels.ptx", c"sgemm16", 16)
}

fn rust_cas_loop(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/rust_kernels.ptx", c"cas_loop")?;
    let mut random = cx.random(16);
    for shape in [Shape::of(4, 64), Shape::of(3, 33)] {
        for _ in 0..3 {
            let (before, value) = (random.bits() as i64, random.bits() as i64);
            let place = kernel.gpu.upload(&[before])?;
            kernel.run(shape, &Args::new().with(place).with(value))?;
            ensure_eq!(kernel.gpu.read::<i64>(place, 1)?, [before.max(value)], "maximum by compare and swap");
        }
    }
    Ok(())
}

fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn hello(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/printf.ptx", c"hello")?;
    let text = printed(cx, || {
        kernel.run(Shape::of(1, 2), &Args::new().with(7i32).with(1.5f32))?;
        ok!(cx, cuCtxSynchronize())
    })?;
    // Threads print in no promised order.
    let want = ["block 0 thread 0 a=7 f=1.500000 s=str", "block 0 thread 1 a=7 f=1.500000 s=str"];
    ensure_eq!(sorted_lines(&text), want, "what hello prints");
    Ok(())
}

fn rust_hello(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/rust_kernels.ptx", c"hello")?;
    let text = printed(cx, || {
        kernel.run(Shape::of(1, 2), &Args::new())?;
        ok!(cx, cuCtxSynchronize())
    })?;
    let want = ["hello from block 0 thread 0", "hello from block 0 thread 1"];
    ensure_eq!(sorted_lines(&text), want, "what hello prints");
    Ok(())
}

fn grid_sync(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/grid_sync.ptx", c"grid_sync")?;
    let mut random = cx.random(17);
    let mut each = 0;
    ok!(cx, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, kernel.function, 256, 0))?;
    let processors = kernel.gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let most = u32::try_from(each * processors).map_err(Stop::fail)?;
    for (grid, block) in [(most.min(32), 256u32), (5, 64)] {
        let n = grid * block - random.below(u64::from(block)) as u32;
        let a: Vec<f32> = (0..n).map(|_| random.below(100) as f32).collect();
        let (da, db) = (kernel.gpu.upload(&a)?, kernel.gpu.zeroed(n as usize * 4)?);
        let args = Args::new().with(da).with(db).with(n);
        ok!(
            cx,
            cuLaunchCooperativeKernel(
                kernel.function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                kernel.stream,
                args.pointers().as_mut_ptr()
            )
        )?;
        kernel.gpu.sync(kernel.stream)?;
        let n = n as usize;
        let want: Vec<f32> = (0..n).map(|i| 2.0 * (a[i] + a[(i + 1) % n])).collect();
        same(&format!("{n} values after a grid barrier"), &kernel.gpu.read::<f32>(da, n)?, &want)?;
    }
    Ok(())
}

fn cluster_dsm(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/cluster.ptx", c"cluster_dsm")?;
    let mut random = cx.random(18);
    for blocks in [2u32, 8, 2 + 2 * random.below(10) as u32] {
        let n = blocks as usize * 128;
        let x = random.floats(n);
        let (dx, dy) = (kernel.gpu.upload(&x)?, kernel.gpu.zeroed(n * 4)?);
        kernel.run(Shape::of(blocks, 128), &Args::new().with(dx).with(dy))?;
        let want: Vec<f32> = (0..n).map(|i| x[i] + 10.0 * x[i ^ 128]).collect();
        close(&format!("{blocks} blocks in clusters"), &kernel.gpu.read(dy, n)?, &want, 1e-6)?;
    }
    Ok(())
}

fn wmma16(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "ptx/wmma.ptx", c"wmma16")?;
    let mut random = cx.random(19);
    let half = |random: &mut Random| -> Vec<half::f16> {
        random.floats(256).into_iter().map(half::f16::from_f32).collect()
    };
    let (a, b) = (half(&mut random), half(&mut random));
    let bits = |values: &[half::f16]| -> Vec<u16> { values.iter().map(|value| value.to_bits()).collect() };
    let wide = |values: &[half::f16]| -> Vec<f32> { values.iter().map(|value| value.to_f32()).collect() };
    let (da, db) = (kernel.gpu.upload(&bits(&a))?, kernel.gpu.upload(&bits(&b))?);
    let dc = kernel.gpu.zeroed(1024)?;
    kernel.run(Shape::of(1, 32), &Args::new().with(da).with(db).with(dc))?;
    close(
        "a product of 16 x 16 x 16",
        &kernel.gpu.read(dc, 256)?,
        &product(&wide(&a), &wide(&b), 16, 16, 16),
        1e-3,
    )
    .map_err(|stop: Stop| stop.within("wmma16"))
}
