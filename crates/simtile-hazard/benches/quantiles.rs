//! The costs of `plan.rs` on a machine that is busy with other things: many samples, each shorter than a time slice, of which the
//! lower quantiles were not disturbed. `cargo bench -p simtile-hazard --bench quantiles`.

#![allow(missing_docs)]

#[path = "support/mod.rs"]
mod support;

use simtile_hazard::{Options, Submitted};
use std::hint::black_box;
use std::time::Instant;
use support::{IN_FLIGHT, with_set_up};

const SAMPLES: usize = 40_000;
/// Repetitions in one sample: a few microseconds.
const REPEAT: u32 = 64;

fn measure(name: &str, in_flight: u64, mut run: impl FnMut()) {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            (0..REPEAT).for_each(|_| run());
            start.elapsed().as_nanos() as f64 / f64::from(REPEAT)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let at = |percent: usize| samples[SAMPLES * percent / 100];
    println!(
        "{name:<22} {in_flight:>7} in flight: min {:6.1}  10 % {:6.1}  median {:6.1}  90 % {:6.1} ns",
        samples[0],
        at(10),
        at(50),
        at(90)
    );
}

fn main() {
    for in_flight in IN_FLIGHT {
        with_set_up(in_flight, |tracker, stream, accesses| {
            tracker.warm(stream, accesses, |warm| {
                measure("plan, 4 buffers", in_flight, || {
                    black_box(warm.once());
                });
            });
        });
    }
    for in_flight in IN_FLIGHT {
        with_set_up(in_flight, |tracker, stream, accesses| {
            // Observing now and then keeps what is in flight from growing without end.
            let mut n = 0u32;
            measure("with locks and permits", in_flight, || {
                n += 1;
                let options = Options { seal: n.is_multiple_of(8_192), ..Options::default() };
                let done = tracker.submit(stream, accesses, &options, |_| Ok(()));
                if let Ok(Submitted { event: Some(event), .. }) = done
                    && options.seal
                {
                    tracker.observe(&event);
                }
            });
        });
    }
}
