//! Rates of the PTX interpreter: `cargo run --release -p simtile-sim --example ptx_rates`.
//!
//! Prints, for the matrix product of 256³ and a histogram of 2^22 bytes, seconds and millions of lane instructions
//! a second (instructions of the inner loops, counted from the PTX), with bounds and uninitialised checks on.

#[path = "../tests/ptx_support/mod.rs"]
mod ptx_support;

use ptx_support::{Shape, artifact, shape};
use std::time::Instant;

fn main() {
    let m = artifact("sgemm");
    let n = 256u32;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32).collect();
    let (da, db, dc) = (m.upload(&a), m.upload(&a), m.blank(u64::from(4 * n * n)));
    let launch = Shape { grid: [n / 32, n / 32, 1], block: [32, 32, 1], ..shape(1, 1) };
    let start = Instant::now();
    m.clean("sgemm_tiled", launch, args![da, db, dc, n, n, n]);
    // Three instructions for each product, about sixty for each tile of 32 beside them.
    let lanes = f64::from(n * n) * (3.0 * f64::from(n) + 60.0 * f64::from(n / 32));
    report("sgemm 256^3", start, lanes);

    let m = artifact("histogram");
    let count = 1u32 << 22;
    let x: Vec<u8> = (0..count).map(|i| (i.wrapping_mul(i) % 251) as u8).collect();
    let (dx, bins) = (m.upload(&x), m.upload(&[0u32; 256]));
    let start = Instant::now();
    m.clean("histogram", shape(40, 256), args![dx, bins, count]);
    report("histogram 2^22", start, f64::from(count) * 9.0);
}

fn report(name: &str, start: Instant, lanes: f64) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{name}: {seconds:.3} s, {:.0} M lane instructions/s", lanes / seconds / 1e6);
}
