//! Threads.

use super::{Condvar, Mutex};
use crate::hook::{self, Hook};
use std::io;
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

impl<T> JoinHandle<T> {
    /// Waits for the thread to end and returns its value.
    ///
    /// # Errors
    /// The payload of its panic.
    pub fn join(self) -> Result<T> {
        if hook::current().is_some() {
            let mut ended = self.ended.flag.lock();
            while !*ended {
                self.ended.changed.wait(&mut ended);
            }
        }
        self.thread.join()
    }

    /// Whether the thread has run to its end.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
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
    /// Reports the end, also when `run` panics.
    struct Leave(Option<(&'static Hook, usize)>, Arc<Ended>);
    impl Drop for Leave {
        fn drop(&mut self) {
            *self.1.flag.lock() = true;
            self.1.changed.notify_all();
            if let Some((hook, token)) = self.0 {
                (hook.exiting)(token);
            }
        }
    }

    let adopted = hook::current().map(|hook| (hook, (hook.spawning)(name)));
    let ended = Arc::new(Ended::default());
    let theirs = ended.clone();
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Some((hook, token)) = adopted {
            (hook.adopt)(token);
        }
        let _leave = Leave(adopted, theirs);
        run()
    });
    match started {
        Ok(thread) => Ok(JoinHandle { thread, ended }),
        Err(error) => {
            // The simulation expects the thread; it has ended before it began.
            if let Some((hook, token)) = adopted {
                (hook.exiting)(token);
            }
            Err(error)
        }
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
