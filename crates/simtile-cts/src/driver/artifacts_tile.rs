//! The Tile kernels of `artifacts/`: bytecode on a simulator, the committed sm_90 cubin on a GPU.

use super::artifacts_simt::close;
use crate::artifacts;
use crate::frame::{Check, Cx, Need, Random, Stop, same};
use crate::gpu::{Args, Gpu, Shape};
use simtile_driver::sys::*;
use std::ffi::CStr;

crate::frame::registry::tests! { Driver, "artifacts_tile";
    rs_vadd_f32 needs [Need::ARTIFACTS] seeds 3,
    rs_softmax_f32 needs [Need::ARTIFACTS] seeds 3,
    rs_gemm_f16 needs [Need::ARTIFACTS] seeds 3,
    python_vadd_f32 needs [Need::ARTIFACTS] seeds 3,
    python_softmax_f32 needs [Need::ARTIFACTS] seeds 3,
}

struct Kernel<'a> {
    gpu: Gpu<'a>,
    stream: CUstream,
    function: CUfunction,
}

impl<'a> Kernel<'a> {
    /// `name` is the file without its suffix.
    fn new(cx: &'a Cx, name: &str, entry: &CStr) -> Check<Self> {
        cx.devices()?;
        if cx.simulator().is_none() && cx.capability()?.0 != 9 {
            let (major, minor) = cx.capability()?;
            return Err(Stop::unsupported(format!(
                "the committed cubin is for sm_90, device 0 has compute capability {major}.{minor}"
            )));
        }
        let gpu = Gpu::new(cx)?;
        let stream = gpu.stream()?;
        let load = |suffix| gpu.module(artifacts::bytes(&format!("{name}.{suffix}"))?);
        let module = match cx.simulator() {
            Some(_) => load("tileirbc")?,
            // A simulated driver behind a library takes no cubin, but the bytecode.
            None => load("cubin").or_else(|cubin| load("tileirbc").map_err(|_| cubin))?,
        };
        let function = gpu.function(module, entry)?;
        Ok(Self { gpu, stream, function })
    }

    fn run(&self, grid: [u32; 3], args: &Args) -> Check {
        let shape = Shape { grid, block: [1, 1, 1], shared: 0 };
        self.gpu.launch(self.function, shape, self.stream, args)?;
        self.gpu.sync(self.stream)
    }
}

fn vadds(cx: &Cx, name: &str, entry: &CStr) -> Check {
    let kernel = Kernel::new(cx, name, entry)?;
    let mut random = cx.random(20);
    for n in [1, 1023, 1025, 2000 + random.below(8000) as usize] {
        let (a, b) = (random.floats(n), random.floats(n));
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        // One more value, which must stay.
        let c = kernel.gpu.upload(&vec![-7f32; n + 1])?;
        let mut args = Args::new();
        for pointer in [kernel.gpu.upload(&a)?, kernel.gpu.upload(&b)?, c] {
            args = args.with(pointer).with(n as i32).with(1i32);
        }
        kernel.run([(n as u32).div_ceil(1024), 1, 1], &args)?;
        let mut found = kernel.gpu.read::<f32>(c, n + 1)?;
        same("the value behind the end", &[found.pop().unwrap_or(0.0)], &[-7.0])?;
        same(&format!("sums of {n}"), &found, &want)?;
    }
    Ok(())
}

fn rs_vadd_f32(cx: &Cx) -> Check {
    vadds(cx, "tile_rs/rs_vadd_f32", c"rs_vadd_f32")
}

fn python_vadd_f32(cx: &Cx) -> Check {
    vadds(cx, "cutile_python/vadd_f32", c"vadd_f32")
}

fn softmax(row: &[f32]) -> Vec<f32> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = row.iter().map(|&x| f64::from(x - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|&p| (p / sum) as f32).collect()
}

fn softmaxes(cx: &Cx, name: &str, entry: &CStr) -> Check {
    let kernel = Kernel::new(cx, name, entry)?;
    let mut random = cx.random(21);
    let some = 1 + random.below(1024) as usize;
    for (rows, cols) in [(1, 1), (7, 1024), (5, 992), (3 + random.below(20) as usize, some)] {
        // Rows start at multiples of 16 elements, which the kernel assumes.
        let stride = cols.next_multiple_of(16);
        let x: Vec<f32> = random.floats(rows * stride).iter().map(|x| x * 8.0).collect();
        let want: Vec<f32> = x.chunks(stride).flat_map(|row| softmax(&row[..cols])).collect();
        let (dx, dy) = (kernel.gpu.upload(&x)?, kernel.gpu.upload(&vec![-7f32; rows * stride])?);
        let mut args = Args::new();
        for pointer in [dx, dy] {
            args = args.with(pointer).with(rows as i32).with(cols as i32).with(stride as i32).with(1i32);
        }
        kernel.run([rows as u32, 1, 1], &args)?;
        let found = kernel.gpu.read::<f32>(dy, rows * stride)?;
        let inside: Vec<f32> = found.chunks(stride).flat_map(|row| row[..cols].to_vec()).collect();
        close(&format!("softmax of {rows} x {cols}"), &inside, &want, 1e-5)?;
        // Tile IR stores nothing outside of the view. What tileiras makes of it for sm_90 writes zeros into the padding
        // between a row's end and its stride (seen with one column on an H200), which the stride assumption allows.
        if cx.simulator().is_some() {
            let outside: Vec<f32> = found.chunks(stride).flat_map(|row| row[cols..].to_vec()).collect();
            same("the padding of the rows", &outside, &vec![-7f32; outside.len()])?;
        }
    }
    Ok(())
}

fn rs_softmax_f32(cx: &Cx) -> Check {
    softmaxes(cx, "tile_rs/rs_softmax_f32", c"rs_softmax_f32")
}

fn python_softmax_f32(cx: &Cx) -> Check {
    softmaxes(cx, "cutile_python/softmax_f32", c"softmax_f32")
}

/// A matrix of halves whose rows are padded to a multiple of 16: bits with padding, and values without.
fn matrix(random: &mut Random, rows: usize, cols: usize) -> (Vec<u16>, Vec<f64>, usize) {
    let stride = cols.next_multiple_of(16);
    let mut bits = vec![half::f16::NAN.to_bits(); rows * stride];
    let mut values = Vec::with_capacity(rows * cols);
    for row in 0..rows {
        for col in 0..cols {
            let value = half::f16::from_f32(random.float());
            bits[row * stride + col] = value.to_bits();
            values.push(value.to_f64());
        }
    }
    (bits, values, stride)
}

fn rs_gemm_f16(cx: &Cx) -> Check {
    let kernel = Kernel::new(cx, "tile_rs/rs_gemm_f16", c"rs_gemm_f16")?;
    let mut random = cx.random(22);
    let some = |random: &mut Random| 1 + random.below(200) as usize;
    for (m, n, k) in [(1, 1, 1), (130, 70, 97), (some(&mut random), some(&mut random), some(&mut random))] {
        let (a_bits, a, a_stride) = matrix(&mut random, m, k);
        let (b_bits, b, b_stride) = matrix(&mut random, k, n);
        let c_stride = n.next_multiple_of(16);
        let c = kernel.gpu.upload(&vec![-7f32; m * c_stride])?;
        let mut args = Args::new();
        for (pointer, rows, cols, stride) in [
            (kernel.gpu.upload(&a_bits)?, m, k, a_stride),
            (kernel.gpu.upload(&b_bits)?, k, n, b_stride),
            (c, m, n, c_stride),
        ] {
            args = args.with(pointer).with(rows as i32).with(cols as i32).with(stride as i32).with(1i32);
        }
        kernel.run([m.div_ceil(128) as u32, n.div_ceil(128) as u32, 1], &args)?;
        let found = kernel.gpu.read::<f32>(c, m * c_stride)?;
        let inside: Vec<f32> = found.chunks(c_stride).flat_map(|row| row[..n].to_vec()).collect();
        let want: Vec<f32> = (0..m * n)
            .map(|i| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum::<f64>() as f32)
            .collect();
        close(&format!("product {m} x {n} x {k}"), &inside, &want, 1e-3)?;
    }
    Ok(())
}
