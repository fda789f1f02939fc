//! Host functions in streams.

use crate::frame::{Check, Cx, Need, threads};
use crate::gpu::{A_WHILE, Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::Driver;
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

crate::frame::registry::tests! { Driver, "host_functions";
    runs_once_in_order,
    sees_the_work_before_it,
    work_behind_it_waits,
    other_streams_go_on,
    calls_inside needs [Need::POOLS],
    null_function,
}

/// Runs the closure that the data points to.
unsafe extern "C" fn run<F: Fn() + Sync>(data: *mut c_void) {
    // SAFETY: `queue` passes a leaked closure of this type.
    unsafe { (*data.cast::<F>())() }
}

/// Queues a closure. It is leaked, so that it outlives whatever happens to the stream.
fn queue<F: Fn() + Send + Sync + 'static>(gpu: &Gpu<'_>, stream: CUstream, closure: F) -> Check {
    let data = Box::into_raw(Box::new(closure));
    ok!(gpu, cuLaunchHostFunc(stream, Some(run::<F>), data.cast()))
}

/// A value that lives as long as the process.
fn shared<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn runs_once_in_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let last = shared(AtomicU32::new(0));
    let wrong = shared(AtomicU32::new(0));
    let gate = gpu.gate(stream)?;
    for i in 1..=50u32 {
        queue(&gpu, stream, move || {
            if last.swap(i, Ordering::SeqCst) != i - 1 {
                wrong.fetch_add(1, Ordering::SeqCst);
            }
        })?;
    }
    ensure_eq!(last.load(Ordering::SeqCst), 0, "host functions that ran behind a gate");
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(last.load(Ordering::SeqCst), 50, "the last host function");
    ensure_eq!(wrong.load(Ordering::SeqCst), 0, "host functions out of order");
    Ok(())
}

fn sees_the_work_before_it(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let late = gpu.kernel(c"late_store")?;
    let word = gpu.pinned(1)?;
    let seen = shared(AtomicU32::new(0));
    gpu.launch(late, Shape::ONE, stream, &Args::new().with(word.device).with(12u32).with(500u32))?;
    queue(&gpu, stream, move || seen.store(word.get(0), Ordering::SeqCst))?;
    gpu.sync(stream)?;
    ensure_eq!(seen.load(Ordering::SeqCst), 12, "word as the host function saw it");
    Ok(())
}

fn work_behind_it_waits(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let copy = gpu.kernel(c"copy_one")?;
    let (from, to) = (gpu.pinned(1)?, gpu.pinned(1)?);
    queue(&gpu, stream, move || {
        threads::sleep(A_WHILE);
        from.set(0, 33);
    })?;
    gpu.launch(copy, Shape::ONE, stream, &Args::new().with(from.device).with(to.device))?;
    gpu.sync(stream)?;
    ensure_eq!(to.get(0), 33, "word copied behind a host function");
    Ok(())
}

/// Holds a host function until told otherwise, and lets it go when the test ends either way.
struct Hold(&'static AtomicBool);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn other_streams_go_on(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let released = shared(AtomicBool::new(false));
    let hold = Hold(released);
    queue(&gpu, a, move || {
        while !released.load(Ordering::SeqCst) {
            threads::sleep(A_WHILE / 60);
        }
    })?;
    let held = gpu.recorded(a)?;
    gpu.launch(store, Shape::ONE, b, &Args::new().with(word).with(2u32))?;
    gpu.finishes(gpu.recorded(b)?, "work beside a host function that runs")?;
    ensure!(!gpu.is_done(held)?, "an event behind a running host function is done");
    drop(hold);
    gpu.finishes(held, "an event behind a host function that ended")
}

/// driver-facts, Queues: inside a host function an event query works; free and launch give 800.
fn calls_inside(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let empty = gpu.kernel(c"empty")?;
    let mut memory = 0;
    ok!(cx, cuMemAllocAsync(&mut memory, 4096, b))?;
    gpu.sync(b)?;
    let event = gpu.recorded(b)?;
    gpu.finishes(event, "an event on an idle stream")?;
    let codes = shared([const { AtomicU32::new(12345) }; 3]);
    let driver: Driver = cx.driver();
    struct Inside(Driver);
    impl Inside {
        fn driver(&self) -> Driver {
            self.0
        }
    }
    queue(&gpu, a, move || {
        let inside = Inside(driver);
        let query = cu!(inside, cuEventQuery(event));
        let free = cu!(inside, cuMemFreeAsync(memory, b));
        let launch = cu!(
            inside,
            cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, b, std::ptr::null_mut(), std::ptr::null_mut())
        );
        for (slot, code) in codes.iter().zip([query, free, launch]) {
            slot.store(code.0, Ordering::SeqCst);
        }
    })?;
    gpu.sync(a)?;
    let found: Vec<CUresult> = codes.iter().map(|code| CUresult(code.load(Ordering::SeqCst))).collect();
    let expected =
        [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_NOT_PERMITTED, CUresult::CUDA_ERROR_NOT_PERMITTED];
    ensure_eq!(found, expected, "event query, free and launch inside a host function");
    // The refused free freed nothing.
    ok!(cx, cuMemFreeAsync(memory, b))?;
    gpu.sync(b)
}

fn null_function(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuLaunchHostFunc(stream, None, std::ptr::null_mut()))
}
