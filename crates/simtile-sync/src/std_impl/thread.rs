//! Threads.

use crate::hook;
use std::io;
pub use std::thread::{JoinHandle, yield_now};

/// Starts a named thread, which takes part in the simulation of the thread that starts it.
///
/// # Errors
/// The system's, if it cannot start one.
pub fn spawn<F, T>(name: &str, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let adopted = hook::installed().and_then(|hook| (hook.spawning)(name).map(|token| (hook, token)));
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Leaving is reported also when `run` panics.
        struct Leave(Option<(&'static hook::Hook, usize)>);
        impl Drop for Leave {
            fn drop(&mut self) {
                if let Some((hook, token)) = self.0 {
                    (hook.exiting)(token);
                }
            }
        }
        if let Some((hook, token)) = adopted {
            (hook.adopt)(token);
        }
        let _leave = Leave(adopted);
        run()
    })
}
