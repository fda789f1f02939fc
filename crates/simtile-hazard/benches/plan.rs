//! What the tracker itself costs: `cargo bench -p simtile-hazard`.
//!
//! `plan`: ranges, waits and stamps of a submission on four buffers, locks held already. `submit`: the same with guards, stream
//! lock and permits, on a driver that does nothing. Each with 1, 4 096 and 100 000 submissions in flight.

#![allow(missing_docs)]

#[path = "support/mod.rs"]
mod support;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use simtile_hazard::*;
use std::hint::black_box;
use support::{IN_FLIGHT, with_set_up};

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan_4_warm");
    for in_flight in IN_FLIGHT {
        with_set_up(in_flight, |tracker, stream, accesses| {
            tracker.warm(stream, accesses, |warm| {
                group.bench_function(BenchmarkId::from_parameter(in_flight), |b| {
                    b.iter(|| black_box(warm.once()))
                });
            });
        });
    }
    group.finish();
}

fn submit(c: &mut Criterion) {
    let mut group = c.benchmark_group("submit_4_null_driver");
    for in_flight in IN_FLIGHT {
        with_set_up(in_flight, |tracker, stream, accesses| {
            // Observing now and then keeps what is in flight from growing without end.
            let mut n = 0u32;
            group.bench_function(BenchmarkId::from_parameter(in_flight), |b| {
                b.iter(|| {
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
        });
    }
    group.finish();
}

criterion_group!(benches, plan, submit);
criterion_main!(benches);
