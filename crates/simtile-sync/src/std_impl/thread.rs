//! Threads.

use super::{Condvar, Mutex};
use crate::hook::{self, Hook};
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::Result;

/// A started thread.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: std::thread::JoinHandle<T>,
    ended: Arc<Ended>,
}

/// Set when the thread has run, so that a participant can wait for it in turn.
#[derive(Debug, Default)]
struct Ended {
    flag: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for it, giving up the turn. Outside of a simulation the system's own wait will do.
    fn wait_in_turn(&self) {
        if hook::current().is_some() {
            let mut ended = self.flag.lock();
            while !*ended {
                self.changed.wait(&mut ended);
            }
        }
    }

    /// What the thread has told, or what the system says: inside a simulation only the first is a matter of turns.
    fn or(&self, finished: bool) -> bool {
        if hook::current().is_some() { *self.flag.lock() } else { finished }
    }
}

/// A thread's part in the simulation of the one that starts it. Reports its end, also when it panics.
struct Part(Option<(&'static Hook, usize)>, Arc<Ended>);

impl Part {
    fn new(name: &str, ended: &Arc<Ended>) -> Self {
        Self(hook::current().map(|hook| (hook, (hook.spawning)(name))), ended.clone())
    }

    /// First call of the thread.
    fn begin(&self) {
        if let Some((hook, token)) = self.0 {
            (hook.adopt)(token);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        *self.1.flag.lock() = true;
        self.1.changed.notify_all();
        if let Some((hook, token)) = self.0 {
            (hook.exiting)(token);
        }
    }
}

impl<T> JoinHandle<T> {
    /// Waits for the thread to end and returns its value.
    ///
    /// # Errors
    /// The payload of its panic.
    pub fn join(self) -> Result<T> {
        self.ended.wait_in_turn();
        self.thread.join()
    }

    /// Whether the thread has run to its end.
    pub fn is_finished(&self) -> bool {
        self.ended.or(self.thread.is_finished())
    }
}

/// Starts a named thread, which takes part in the simulation of the thread that starts it.
///
/// # Errors
/// The system's, if it cannot start one.
pub fn spawn<F, T>(name: &str, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let ended = Arc::new(Ended::default());
    // If the system cannot start it, this is dropped with the closure: the thread has ended before it began.
    let part = Part::new(name, &ended);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        part.begin();
        let _part = part;
        run()
    })?;
    Ok(JoinHandle { thread, ended })
}

/// Where threads are started that may borrow from the caller. See [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope std::thread::Scope<'scope, 'env>,
    ends: RefCell<Vec<Arc<Ended>>>,
}

/// A thread of a [`Scope`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    thread: std::thread::ScopedJoinHandle<'scope, T>,
    ended: Arc<Ended>,
}

/// As [`std::thread::scope`]: threads that may borrow, all of which have ended when it returns. They take part in the
/// simulation of the calling thread.
///
/// # Panics
/// If `body` does, or a thread that nobody joined.
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|threads| {
        let scope = Scope { threads, ends: RefCell::default() };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        // `std` waits for them as well, but without giving up the turn.
        scope.ends.into_inner().iter().for_each(|ended| ended.wait_in_turn());
        result.unwrap_or_else(|payload| resume_unwind(payload))
    })
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    ///
    /// # Panics
    /// As [`std::thread::Scope::spawn`]: if the system has no more threads.
    pub fn spawn<T: Send + 'scope>(
        &self,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let ended = Arc::new(Ended::default());
        let part = Part::new("scoped", &ended);
        let thread = self.threads.spawn(move || {
            part.begin();
            let _part = part;
            run()
        });
        self.ends.borrow_mut().push(ended.clone());
        ScopedJoinHandle { thread, ended }
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread to end and returns its value.
    ///
    /// # Errors
    /// The payload of its panic.
    pub fn join(self) -> Result<T> {
        self.ended.wait_in_turn();
        self.thread.join()
    }

    /// Whether the thread has run to its end.
    pub fn is_finished(&self) -> bool {
        self.ended.or(self.thread.is_finished())
    }
}

/// Lets other threads run.
pub fn yield_now() {
    match hook::current() {
        Some(hook) => {
            (hook.block)(0, Some(core::time::Duration::ZERO));
        }
        None => std::thread::yield_now(),
    }
}
