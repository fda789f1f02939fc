//! What the tracker itself costs: `cargo bench -p simtile-hazard`.
//!
//! `plan`: ranges, waits and stamps of a submission on four buffers, locks held already. `submit`: the same with guards, stream
//! lock and permits, on a driver that does nothing. Each with 1, 4 096 and 100 000 submissions in flight.

#![allow(missing_docs)]

#[path = "../tests/support/null.rs"]
mod null;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use null::Null;
use simtile_hazard::*;
use std::hint::black_box;

const PERMITS: u64 = 1 << 40;

fn four(regions: &[Region]) -> [Access<'_>; 4] {
    [
        Access::whole(&regions[0], Mode::Write),
        Access::whole(&regions[1], Mode::Read),
        Access::whole(&regions[2], Mode::Read),
        Access::whole(&regions[3], Mode::Read),
    ]
}

fn with_set_up(in_flight: u64, run: impl FnOnce(&Tracker<Null>, &Stream<Null>, &[Access<'_>])) {
    let config = Config { stream_permits: PERMITS, context_permits: PERMITS, ..Config::default() };
    let tracker = Tracker::new(Null, config);
    let Ok(stream) = tracker.stream((), StreamKind::Owned, 0) else { return };
    let regions: Vec<_> = (0..4).map(|_| tracker.region(1 << 20)).collect();
    for region in &regions {
        let write = [Access::whole(region, Mode::Write)];
        let _ = tracker.submit(&stream, &write, &Options::default(), |_| Ok(()));
    }
    let accesses = four(&regions);
    for _ in 0..in_flight {
        let _ = tracker.submit(&stream, &accesses, &Options::default(), |_| Ok(()));
    }
    run(&tracker, &stream, &accesses);
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan_4_warm");
    for in_flight in [1u64, 4_096, 100_000] {
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
    for in_flight in [1u64, 4_096, 100_000] {
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
