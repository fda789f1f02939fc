//! The gate on cost: heap allocations, lock acquisitions and atomic operations of a warm submission.
//!
//! `cargo test -p simtile-hazard --features count --test cost`. Counts, never times.

#![cfg(all(feature = "count", not(any(loom, shuttle))))]

#[path = "support/null.rs"]
mod null;

use null::Null;
use simtile_hazard::*;
use simtile_sync::count::{Counts, take};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; the counter is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's duty is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duty is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PERMITS: u64 = 200_000;

fn tracker() -> Tracker<Null> {
    let config = Config { stream_permits: PERMITS, context_permits: PERMITS, ..Config::default() };
    Tracker::new(Null, config)
}

fn four(regions: &[Region]) -> [Access<'_>; 4] {
    [
        Access::whole(&regions[0], Mode::Write),
        Access::whole(&regions[1], Mode::Read),
        Access::whole(&regions[2], Mode::Read),
        Access::whole(&regions[3], Mode::Read),
    ]
}

/// What one submission costs, and what `times` cost in all.
fn cost(
    tracker: &Tracker<Null>,
    stream: &Stream<Null>,
    accesses: &[Access<'_>],
    times: u64,
) -> (Counts, Counts, u64) {
    let submit = || {
        let done = tracker.submit(stream, accesses, &Options::default(), |_| Ok(()));
        assert!(done.is_ok_and(|done| done.waits.is_empty()));
    };
    submit();
    take();
    submit();
    let one = take();
    let before = ALLOCATIONS.get();
    (0..times).for_each(|_| submit());
    (one, take(), ALLOCATIONS.get() - before)
}

#[test]
fn four_private_buffers_cost_five_locks_and_ten_read_modify_writes() {
    let tracker = tracker();
    let stream = tracker.stream((), StreamKind::Owned, 0).map_err(|_| ()).expect("one stream");
    let regions: Vec<_> = (0..4).map(|_| tracker.region(1 << 20)).collect();
    // All four are written once, as any buffer is: that makes the stream their home.
    for region in &regions {
        tracker
            .submit(&stream, &[Access::whole(region, Mode::Write)], &Options::default(), |_| Ok(()))
            .expect("submitted");
    }
    let accesses = four(&regions);
    let (one, _, _) = cost(&tracker, &stream, &accesses, 1);
    println!("private: {one:?}");
    assert_eq!((one.locks, one.rmws, one.stores), (5, 10, 0));
    assert!(one.loads <= 40, "{one:?}");
    // Flat in what is in flight.
    for in_flight in [4_096, 100_000] {
        let (one_more, all, _) = cost(&tracker, &stream, &accesses, in_flight);
        assert_eq!((one_more.locks, one_more.rmws), (5, 10));
        println!("{in_flight} more in flight: {all:?}");
        // The checkpoint of each 32nd submission and the lease of each 32 permits are the rest.
        assert!(all.rmws <= in_flight * 10 + in_flight / 32 * 12 + 64, "{all:?}");
        assert!(all.locks <= in_flight * 5 + in_flight / 32 * 8 + 64, "{all:?}");
    }
}

#[test]
fn shared_readers_cost_two_short_locks_more() {
    let tracker = tracker();
    let a = tracker.stream((), StreamKind::Owned, 0).map_err(|_| ()).expect("stream");
    let b = tracker.stream((), StreamKind::Owned, 0).map_err(|_| ()).expect("stream");
    let regions: Vec<_> = (0..4).map(|_| tracker.region(1 << 20)).collect();
    let reads: Vec<_> = regions.iter().map(|region| Access::whole(region, Mode::Read)).collect();
    for stream in [&a, &b, &a, &b] {
        tracker.submit(stream, &reads, &Options::default(), |_| Ok(())).expect("submitted");
    }
    let (one, _, _) = cost(&tracker, &a, &reads, 1);
    println!("shared: {one:?}");
    assert_eq!((one.locks, one.rmws, one.stores), (13, 10, 0));
}

#[test]
fn nothing_is_allocated_once_warm() {
    let tracker = Tracker::new(Null, Config::default());
    let stream = tracker.stream((), StreamKind::Owned, 0).map_err(|_| ()).expect("one stream");
    let regions: Vec<_> = (0..4).map(|_| tracker.region(1 << 20)).collect();
    let accesses = four(&regions);
    let submit = |seal| {
        let options = Options { seal, ..Options::default() };
        tracker.submit(&stream, &accesses, &options, |_| Ok(())).expect("submitted").event
    };
    // Warm: events made, records and lists at their size.
    for n in 0..2_000 {
        if let Some(event) = submit(n % 100 == 99) {
            tracker.observe(&event);
        }
    }
    let before = ALLOCATIONS.get();
    for n in 0..10_000 {
        if let Some(event) = submit(n % 100 == 99) {
            tracker.observe(&event);
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "checkpoints, seals and permits included");
}
