//! Threads and time of tests.
//!
//! Under exploration a test's own threads are participants, and time is virtual: both come from here, never
//! from `std`. On other drivers they are the system's.

use simtile_sync::hook::{self, Hook};
pub use simtile_sync::time::{now, sleep};
use simtile_sync::{Arc, Condvar, Mutex};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Lets others run, for loops that wait for something.
pub fn yield_now() {
    simtile_sync::thread::yield_now();
}

/// Where threads are started that may borrow from the caller.
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope thread::Scope<'scope, 'env>,
    ends: RefCell<Vec<Arc<End>>>,
}

/// A thread of a [`Scope`].
pub struct Handle<'scope, T> {
    thread: thread::ScopedJoinHandle<'scope, T>,
    end: Arc<End>,
}

/// Set when a thread has run, so that others can wait for it in turn.
#[derive(Default)]
struct End {
    over: Mutex<bool>,
    changed: Condvar,
}

impl End {
    fn wait(&self) {
        let mut over = self.over.lock();
        while !*over {
            self.changed.wait(&mut over);
        }
    }
}

/// Tells of the end of a thread, also of one that panics.
struct Leave(Option<(&'static Hook, usize)>, Arc<End>);

impl Drop for Leave {
    fn drop(&mut self) {
        *self.1.over.lock() = true;
        self.1.changed.notify_all();
        if let Some((hook, token)) = self.0 {
            (hook.exiting)(token);
        }
    }
}

/// As [`std::thread::scope`].
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    thread::scope(|threads| {
        let scope = Scope { threads, ends: RefCell::default() };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        // `std` waits for them as well, but without giving up the turn.
        scope.ends.into_inner().iter().for_each(|end| end.wait());
        result.unwrap_or_else(|payload| resume_unwind(payload))
    })
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    pub fn spawn<T: Send + 'scope>(&self, run: impl FnOnce() -> T + Send + 'scope) -> Handle<'scope, T> {
        let adopted = hook::current().map(|hook| (hook, (hook.spawning)("test")));
        let end = Arc::new(End::default());
        let theirs = end.clone();
        let thread = self.threads.spawn(move || {
            if let Some((hook, token)) = adopted {
                (hook.adopt)(token);
            }
            let _leave = Leave(adopted, theirs);
            run()
        });
        self.ends.borrow_mut().push(end.clone());
        Handle { thread, end }
    }
}

impl<T> Handle<'_, T> {
    /// Waits for the thread and gives its result.
    ///
    /// # Errors
    /// The payload of its panic.
    pub fn join(self) -> thread::Result<T> {
        self.end.wait();
        self.thread.join()
    }

    /// Whether it has come to its end.
    pub fn is_over(&self) -> bool {
        *self.end.over.lock()
    }
}
