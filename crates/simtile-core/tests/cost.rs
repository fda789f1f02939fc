//! L4: what a warm launch costs: one driver call (and an event every 32), no heap allocation.

use simtile_core::{Context, DeviceBuffer, LaunchArgs};
use simtile_driver::Entry;
use simtile_driver::count::Counted;
use simtile_types::LaunchConfig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");

/// Counts allocations of threads that ask for it.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.try_with(Cell::get).unwrap_or(false) {
            COUNT.fetch_add(1, Ordering::Relaxed);
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

/// Allocations of this thread in `run`.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = COUNT.load(Ordering::Relaxed);
    ON.set(true);
    run();
    ON.set(false);
    COUNT.load(Ordering::Relaxed) - before
}

#[test]
fn l4_a_warm_launch_of_four_buffers_is_one_call_and_no_allocation() {
    let counted = Counted::new(simtile_sim::null());
    let context = Context::new(counted.driver(), 0).unwrap();
    let stream = context.new_stream().unwrap();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let buffers: Vec<_> = (0..3).map(|_| DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap()).collect();
    let mut out = DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap();
    let config = LaunchConfig::for_num_elems(64);
    let mut launch = |raw: bool| {
        let args = LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&buffers[0]).buffer_mut(&mut out);
        // SAFETY: the null driver runs nothing.
        unsafe {
            if raw {
                stream.launch(&function, config, args).unwrap();
            } else {
                let builder = stream.submit().read(&buffers[1]).read(&buffers[2]);
                drop(builder.launch(&function, config, args).unwrap());
            }
        }
    };
    // A stream's permits: when they are used up, its newest event is asked, which has fired.
    const PERMITS: u64 = 512;
    // The context check, the switch of the capture mode and back, the question.
    const LOOK: u64 = 4;
    const LAUNCHES: u64 = 10 * PERMITS;
    for raw in [false, true] {
        (0..2000).for_each(|_| launch(raw));
        let before = counted.counts();
        let allocated = allocations(|| (0..LAUNCHES).for_each(|_| launch(raw)));
        let after = counted.counts();
        let done = |entry| after.of(entry) - before.of(entry);
        assert_eq!(allocated, 0, "allocations of {LAUNCHES} launches");
        assert!(done(Entry::cuEventRecord) <= LAUNCHES / 32, "a checkpoint every 32");
        assert!(done(Entry::cuEventQuery) <= LAUNCHES / PERMITS, "one look for all permits of a stream");
        let calls = after.total() - before.total();
        assert!(calls <= LAUNCHES + LAUNCHES / 32 + LAUNCHES / PERMITS * LOOK, "{calls} calls");
    }
}

#[test]
fn a_view_costs_nothing() {
    let counted = Counted::new(simtile_sim::null());
    let context = Context::new(counted.driver(), 0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap();
    let calls = counted.counts().total();
    let allocated = allocations(|| {
        for _ in 0..100 {
            let (left, right) = buffer.split_at_mut(32).unwrap();
            assert_eq!(left.as_view().slice(0..4).unwrap().len() + right.len(), 36);
        }
    });
    assert_eq!((allocated, counted.counts().total() - calls), (0, 0));
}
