//! Speed of the interpreter. Run with
//! `cargo test --release -p simtile-sim --lib tile::tests::speed -- --ignored --nocapture`.

use super::artifacts::{GEMM, SOFTMAX, VADD, gemm, program, tensor};
use super::machine::Machine;
use std::time::{Duration, Instant};

#[test]
#[ignore = "measures time; for release builds on a quiet machine"]
fn matrix_multiplication_and_rows() {
    let program_gemm = program(GEMM);
    for (size, limit) in [(256usize, 0.2), (512, 1.0), (1024, 5.0)] {
        // The check of few elements takes part of the time; it is the same for all.
        let started = Instant::now();
        let worst = gemm(&*program_gemm, size, size, size, 1, size * size / 64 + 1);
        let took = started.elapsed();
        println!("f16 matmul {size}^3: {took:?}, inputs and check included (worst error {worst:.1e})");
        assert!(worst < 2e-2 && took < Duration::from_secs_f64(limit), "{took:?}");
    }
    for (name, bytes, rows, columns) in
        [("softmax", SOFTMAX[0], 4096usize, 1024usize), ("vadd", VADD[0], 1, 1 << 22)]
    {
        let program = program(bytes);
        let machine = Machine::new();
        let x = machine.put(&vec![0.5f32; rows * columns]);
        let y = machine.alloc(rows * columns * 4);
        let shape: &[usize] = if name == "vadd" { &[columns] } else { &[rows, columns] };
        let strides: &[usize] = if name == "vadd" { &[1] } else { &[columns, 1] };
        let mut args = tensor(x, shape, strides);
        if name == "vadd" {
            args.extend(tensor(x, shape, strides));
        }
        args.extend(tensor(y, shape, strides));
        let grid = if name == "vadd" { columns / 1024 } else { rows };
        let started = Instant::now();
        machine.ok(&*program, [grid as u32, 1, 1], &args);
        let took = started.elapsed();
        let rate = (rows * columns) as f64 / took.as_secs_f64() / 1e6;
        println!("{name} of {} elements: {took:?}, {rate:.0} M elements a second", rows * columns);
    }
}
