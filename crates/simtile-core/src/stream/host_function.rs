//! Host functions: closures that the driver runs in stream order.
//!
//! CUDA allows no calls inside them. The thread carries a mark while one runs: every operation of this crate then
//! returns `InHostFunction` before any call, and drops go to the background thread.

use super::{Stream, Submit, What};
use crate::Context;
use crate::context::{SubmitError, add, drop_user_value};
use crate::error::{Family, StreamError};
use core::cell::Cell;
use core::ffi::c_void;
use simtile_driver::call;
use simtile_sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static HURRIED: Cell<bool> = const { Cell::new(false) };
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Whole) };
}

/// What submissions of this thread wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Patience {
    None,
    /// Anything but room in a queue.
    ForMemory,
    Whole,
}

/// Whether the calling thread is inside a host function of this runtime.
#[inline]
pub fn in_host_function() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Runs code that must not hold its thread: a poll. What is dropped meanwhile is given back by background threads, since a free, and
/// every other call of a drop, can take long (the driver's locks are held while somebody waits for room in a queue).
pub fn with_drops_elsewhere<R>(run: impl FnOnce() -> R) -> R {
    /// Also after a panic.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            HURRIED.set(self.0);
        }
    }
    let _back = Back(HURRIED.replace(true));
    run()
}

/// Runs code whose submissions are to wait for nothing, as by [`SubmitBuilder::no_wait`](crate::SubmitBuilder::no_wait): those, too, that it has no
/// builder of, such as the ones that make buffers. Allocations do not wait for memory.
pub fn without_waiting<R>(run: impl FnOnce() -> R) -> R {
    with_patience(Patience::None, run)
}

/// Runs code whose submissions are refused where a queue is full, but whose allocations may wait for memory. For threads that many share.
pub fn without_waiting_for_room<R>(run: impl FnOnce() -> R) -> R {
    with_patience(Patience::ForMemory, run)
}

fn with_patience<R>(patience: Patience, run: impl FnOnce() -> R) -> R {
    /// Also after a panic.
    struct Back(Patience);
    impl Drop for Back {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let before = PATIENCE.get();
    let _back = Back(before);
    PATIENCE.set(if patience < before { patience } else { before });
    run()
}

/// Whether submissions of this thread do not wait for room in a queue.
#[inline]
pub(crate) fn waits_for_no_room() -> bool {
    PATIENCE.try_with(Cell::get).unwrap_or(Patience::Whole) != Patience::Whole
}

/// Whether this thread waits for nothing at all.
#[inline]
pub(crate) fn waits_for_nothing() -> bool {
    PATIENCE.try_with(Cell::get).unwrap_or(Patience::Whole) == Patience::None
}

/// Whether drops on this thread must not call the driver: in a host function they may not, in a poll they take too long.
#[inline]
pub(crate) fn drops_go_elsewhere() -> bool {
    HURRIED.try_with(Cell::get).unwrap_or(false) || in_host_function()
}

/// Runs somebody else's code that is called with locks held: what it would do with this crate is refused.
pub(super) fn as_inside<R>(run: impl FnOnce() -> R) -> R {
    /// Also after a panic.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _back = Back(INSIDE.replace(true));
    run()
}

struct Payload {
    run: Box<dyn FnOnce() + Send>,
    context: Arc<Context>,
}

/// What the driver calls. Frees the payload; nothing unwinds into the driver.
unsafe extern "C" fn trampoline(data: *mut c_void) {
    // SAFETY: `launch_host_function` gave this pointer up, and the driver calls once.
    let payload = unsafe { Box::from_raw(data.cast::<Payload>()) };
    let before = INSIDE.replace(true);
    let Payload { run, context } = *payload;
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        add(&context.counters().host_function_panics, 1);
        drop_user_value(payload);
    }
    // Dropped with the mark still set: this may be the context's last handle, and hold whoever lent the context.
    drop_user_value(context);
    INSIDE.set(before);
}

impl Stream {
    /// Runs a closure on a thread of the driver, after everything queued so far. Work queued later waits for it.
    ///
    /// Inside, every operation of this crate returns `InHostFunction`, and dropped handles go to a background thread.
    /// A panic is caught and counted in [`ContextStats`](crate::ContextStats). If earlier work failed, the closure does not
    /// run, and what it holds stays with the process.
    ///
    /// # Errors
    /// The driver's; the closure is then dropped without being run.
    pub fn launch_host_function(&self, run: impl FnOnce() + Send + 'static) -> Result<(), StreamError> {
        self.on_its_thread()?;
        let payload = Box::new(Payload { run: Box::new(run), context: self.context.clone() });
        let data = Box::into_raw(payload);
        let call = |driver: simtile_driver::Driver, raw| {
            // SAFETY: the stream is alive; the trampoline takes exactly this pointer.
            unsafe { call!(driver, cuLaunchHostFunc(raw, Some(trampoline), data.cast())) }
        };
        // Everything before it is sealed first: it may wait for anything.
        let queued = match self.submit_tracked(&[], Submit { what: What::HOST, ..Submit::OUTSIDE }, call) {
            Err(SubmitError::BorrowedCapturing) => self
                .call_in_foreign_capture(call)
                .map_err(|error| StreamError::from_call(error, self.to_string())),
            Err(error) => Err(self.refused(error, &[], || self.to_string())),
            Ok(_) => Ok(()),
        };
        queued.inspect_err(|_| {
            // SAFETY: the driver refused the pointer and will never call with it.
            drop(unsafe { Box::from_raw(data) });
        })
    }
}
