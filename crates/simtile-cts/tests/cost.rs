//! What operations and replays cost on the null driver, as gates on counts: driver calls, events, heap allocations.

use simtile_cts::cost::{self, Row};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Counts the heap allocations of threads that ask for it: those of the background, for a row before, are none of a row's.
struct Counting;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.try_with(Cell::get).unwrap_or(false) {
            cost::ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An event every 32, and once for 512 permits a look: a context check, a switch of the capture mode and back, a question.
const SPARE: f64 = 1.0 / 32.0 + 4.0 / 512.0;

#[test]
fn operations_and_replays_cost_no_more_than_promised() {
    ON.set(true);
    let rows = cost::count_ops().unwrap();
    ON.set(false);
    assert!(cost::ALLOCATIONS.load(Ordering::Relaxed) > 0, "nothing was counted at all");
    let row = |path: &str| -> &Row {
        rows.iter().find(|row| row.path == path).unwrap_or_else(|| panic!("no row {path}"))
    };
    // Driver calls that each may make.
    let gates = [
        ("op_enqueue_4", 1.0),
        ("op_sync_4", 3.0),
        ("op_await_4", 3.0),
        ("graph_replay_1", 1.0),
        ("graph_replay_100", 1.0),
    ];
    for (path, calls) in gates {
        let row = row(path);
        assert_eq!(row.heap_allocs, 0.0, "{row:?}");
        assert!(row.driver_calls <= calls + SPARE, "{row:?}, at most {calls}");
    }
    // Flat in nodes.
    assert_eq!(row("graph_replay_1").driver_calls, row("graph_replay_100").driver_calls);
}
