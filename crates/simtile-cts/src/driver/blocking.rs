//! Whether calls block, for the rows of driver-facts' *Queues and blocking*.
//!
//! A call runs on a thread of its own; it counts as blocked if it has not returned after [`STILL`]. Then what holds it is
//! opened, and it has to come back with success.

use crate::frame::{Check, Stop, threads};
use crate::gpu::{Args, Gpu, SOON, Shape};
use crate::{ensure, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A counter or call that stands still for so long is blocked.
pub const STILL: Duration = Duration::from_millis(400);

/// Waits until the counter stands still or reaches `end`, and gives it.
pub fn settled(counter: &AtomicU32, end: u32) -> u32 {
    let mut last = counter.load(Ordering::SeqCst);
    let mut since = threads::now();
    loop {
        threads::sleep(Duration::from_millis(5));
        let now = counter.load(Ordering::SeqCst);
        if now == end || (now == last && threads::now() - since > STILL) {
            return now;
        }
        if now != last {
            (last, since) = (now, threads::now());
        }
    }
}

/// Waits for a flag, at most so long. Whether it was set.
pub fn set_within(flag: &AtomicBool, limit: Duration) -> bool {
    let end = threads::now() + limit;
    while !flag.load(Ordering::SeqCst) {
        if threads::now() > end {
            return false;
        }
        threads::sleep(Duration::from_millis(1));
    }
    true
}

/// Makes a call on another thread. Whether it was blocked until `open` let it go.
pub fn blocks(gpu: &Gpu<'_>, call: impl FnOnce() -> Check + Send, open: impl FnOnce()) -> Check<bool> {
    let returned = AtomicBool::new(false);
    threads::scope(|scope| {
        let caller = scope.spawn(|| {
            let check = gpu.enter().and_then(|()| call());
            returned.store(true, Ordering::SeqCst);
            check
        });
        let blocked = !set_within(&returned, STILL);
        open();
        caller.join().unwrap_or_else(|_| Err(Stop::fail("the calling thread panicked")))?;
        Ok(blocked)
    })
}

/// A call and its name.
pub type Named<'a> = (&'static str, Box<dyn FnOnce() -> Check + Send + 'a>);

/// Calls that must not block, each with its name, one after the other on another thread, while something is held
/// that `open` lets go.
pub fn none_blocks(gpu: &Gpu<'_>, calls: Vec<Named<'_>>, open: impl FnOnce()) -> Check {
    let names: Vec<&'static str> = calls.iter().map(|(name, _)| *name).collect();
    let (done, over) = (AtomicU32::new(0), AtomicBool::new(false));
    threads::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut check = gpu.enter();
            for (name, call) in calls {
                if check.is_ok() {
                    check = call().map_err(|stop| stop.within(name));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
            over.store(true, Ordering::SeqCst);
            check
        });
        let free = set_within(&over, SOON / 2);
        let at = names.get(done.load(Ordering::SeqCst) as usize).copied().unwrap_or("the last call");
        open();
        caller.join().unwrap_or_else(|_| Err(Stop::fail("the calling thread panicked")))?;
        ensure!(free, "{at} blocked");
        Ok(())
    })
}

/// Work that a test launches: an empty kernel, loaded and run once.
pub fn ready_kernel(gpu: &Gpu<'_>) -> Check<CUfunction> {
    let (stream, empty) = (gpu.stream()?, gpu.kernel(c"empty")?);
    gpu.launch(empty, Shape::ONE, stream, &Args::new())?;
    gpu.sync(stream)?;
    Ok(empty)
}

/// A stream held by a host function. Dropping it lets the stream go.
pub struct HostHold(&'static AtomicBool);

impl HostHold {
    /// Holds a stream of the current context.
    pub fn new(gpu: &Gpu<'_>, stream: CUstream) -> Check<Self> {
        unsafe extern "C" fn hold(data: *mut c_void) {
            // SAFETY: the flag below, which lives for ever.
            let opened = unsafe { &*data.cast::<AtomicBool>() };
            set_within(opened, SOON);
        }
        let opened: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        ok!(gpu, cuLaunchHostFunc(stream, Some(hold), std::ptr::from_ref(opened).cast_mut().cast()))?;
        Ok(Self(opened))
    }
}

impl Drop for HostHold {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
