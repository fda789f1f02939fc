//! Threads, time and an executor whose waiting the schedule sees.

use crate::Runtime;
use simtile_sync::{Condvar, Mutex};
use std::future::IntoFuture;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub use simtile_sync::thread::{JoinHandle, ScopedJoinHandle};
pub use simtile_sync::time::{now, sleep};

/// How long a future may be pending without a single wake-up where time is real, before that counts as a deadlock. Longer
/// than a simulator waits before it says the same of a stream.
const STUCK: Duration = Duration::from_secs(60);

/// Starts a named thread that takes part in the exploration, if there is one. The runtime that is in force here is in force there.
///
/// The first argument is a name for traces and reports, and the result is that of the start, not yet that of the thread:
///
/// ```no_run
/// # use simtile::testing;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let thread = testing::spawn("producer", || 40 + 2)?;
/// let value = thread.join().map_err(|_| "the producer panicked")?;
/// assert_eq!(value, 42);
/// # Ok(()) }
/// ```
///
/// A thread of `std` has no turn: it must not use the driver of an explored test, and a test that waits for one is reported as
/// blocked outside the exploration. [`scope`] starts threads that may borrow.
///
/// # Errors
/// The system's, if it has no more threads.
pub fn spawn<F, T>(name: &str, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    simtile_sync::thread::spawn(name, in_this_runtime(run))
}

/// The closure, with the runtime that is in force here.
fn in_this_runtime<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let runtime = Runtime::current();
    move || {
        let _entered = runtime.as_ref().map(Runtime::enter);
        run()
    }
}

/// Where threads are started that may borrow from the caller. See [`scope`].
#[derive(Debug)]
pub struct Scope<'a, 'scope, 'env: 'scope> {
    threads: &'a simtile_sync::thread::Scope<'scope, 'env>,
}

/// As [`std::thread::scope`]: threads that may borrow, all of which have ended when it returns. They take part in the exploration, if
/// there is one, and the runtime that is in force where they are started is in force there.
///
/// ```
/// use simtile::testing;
///
/// let mut counts = [0, 0];
/// testing::scope(|scope| {
///     for count in &mut counts {
///         scope.spawn(move || *count += 1);
///     }
/// });
/// assert_eq!(counts, [1, 1]);
/// ```
///
/// # Panics
/// If `body` does, or a thread that nobody joined.
pub fn scope<'env, T>(body: impl for<'a, 'scope> FnOnce(&Scope<'a, 'scope, 'env>) -> T) -> T {
    simtile_sync::thread::scope(|threads| body(&Scope { threads }))
}

impl<'scope> Scope<'_, 'scope, '_> {
    /// Starts a thread.
    ///
    /// # Panics
    /// As [`std::thread::Scope::spawn`]: if the system has no more threads.
    pub fn spawn<T: Send + 'scope>(
        &self,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        self.threads.spawn(in_this_runtime(run))
    }
}

/// A thread that waits for its waker.
#[derive(Default)]
struct Parked {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}

impl Parked {
    /// Waits for a wake-up. `false`: there will be none.
    fn wait(self: &Arc<Self>) -> bool {
        let mut woken = self.woken.lock();
        while !core::mem::take(&mut *woken) {
            // This one, and the waker of the poll. Whoever wakes does so before it lets its clone go.
            if Arc::strong_count(self) <= 2 {
                return false;
            }
            if simtile_sync::hook::current().is_some() {
                // If nobody can go on, this is left by a panic that says so.
                self.changed.wait(&mut woken);
            } else if self.changed.wait_for(&mut woken, STUCK) && !*woken {
                return false;
            }
        }
        true
    }
}

/// Runs a future on this thread, and parks while it is pending.
///
/// The executor of tests: under `#[simtile::test(seeds = …)]` its parking is part of the schedule, so that the seed decides
/// when it goes on. An executor of another crate parks where no schedule sees it, which is reported as blocked outside the
/// exploration.
///
/// ```
/// use simtile::ops::{download, upload};
/// use simtile::{DeviceOp, Runtime, sim::Simulator, testing};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(&Simulator::builder().quiet().build());
/// let values = testing::block_on(upload(vec![1, 2, 3]).then(download).schedule(&runtime)?)?;
/// assert_eq!(values, [1, 2, 3]);
/// # Ok(()) }
/// ```
///
/// # Panics
/// With a report that begins with `deadlock` if nobody can wake the future: no waker of it is left, nobody can go on (explored),
/// or nothing has woken it for a minute (not explored).
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        if !parked.wait() {
            let why = match Arc::strong_count(&parked) {
                0..=2 => "nobody has its waker any more".to_owned(),
                held => format!(
                    "nobody has woken it for {} s, though {} wakers of it are held",
                    STUCK.as_secs(),
                    held - 2
                ),
            };
            std::panic::panic_any(format!(
                "deadlock: block_on waits for a future that is pending, and {why}"
            ));
        }
    }
}
