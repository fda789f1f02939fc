//! What both benches measure: a submission on four buffers (one written, three read) of one stream, on a driver that does
//! nothing.

#[path = "../../tests/support/null.rs"]
mod null;

use null::Null;
use simtile_hazard::*;

/// How many submissions are in flight while one more is measured.
pub const IN_FLIGHT: [u64; 3] = [1, 4_096, 100_000];

const PERMITS: u64 = 1 << 40;

fn four(regions: &[Region]) -> [Access<'_>; 4] {
    [
        Access::whole(&regions[0], Mode::Write),
        Access::whole(&regions[1], Mode::Read),
        Access::whole(&regions[2], Mode::Read),
        Access::whole(&regions[3], Mode::Read),
    ]
}

/// Brings `in_flight` submissions about, then runs.
pub fn with_set_up(in_flight: u64, run: impl FnOnce(&Tracker<Null>, &Stream<Null>, &[Access<'_>])) {
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
