//! Which runtime is in force: the innermost that the thread has entered, else the process's default.

use super::{Runtime, SPIN};
use crate::worlds::Worlds;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, Ordering};

/// The default of one world.
#[derive(Default)]
struct InForce(Mutex<Option<Runtime>>);

static DEFAULT: Worlds<InForce> = Worlds::new();
static SPIN_NANOS: AtomicU64 = AtomicU64::new(SPIN.as_nanos() as u64);

thread_local! {
    /// With the numbers of their guards: those may end in any order.
    static ENTERED: RefCell<Vec<(u64, Runtime)>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

impl Runtime {
    /// Makes it what `.await` and `.sync()` run on where nothing else was said, in the whole process. Gives the one before.
    pub fn set_default(&self) -> Option<Runtime> {
        let default = DEFAULT.mine();
        SPIN_NANOS.store(nanos(self.spin_budget()), Ordering::Relaxed);
        default.0.lock().replace(self.clone())
    }

    /// No default any more. Gives the one before.
    pub fn clear_default() -> Option<Runtime> {
        let default = DEFAULT.mine();
        SPIN_NANOS.store(nanos(SPIN), Ordering::Relaxed);
        default.0.lock().take()
    }

    /// In force on the calling thread until the guard ends, whatever the default is. Guards may end in any order: in force is what was
    /// entered last of those that live. A forgotten one leaves it in force on the thread.
    ///
    /// When the thread's locals have been destroyed it does nothing.
    ///
    /// A guard that is held over an `.await` is in force for whatever else runs on the thread meanwhile; for a future there is
    /// [`Runtime::scope`].
    pub fn enter(&self) -> Entered {
        let number = NEXT.try_with(|next| next.replace(next.get() + 1)).unwrap_or(u64::MAX);
        // At the end of a thread, when its locals are gone, nothing is in force there any more.
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().push((number, self.clone())));
        Entered { number, thread: core::marker::PhantomData }
    }

    /// A future in which it is in force, on whatever threads it is polled, and nowhere else.
    ///
    /// ```
    /// use simtile_async::{DeviceOp, Runtime, download, upload};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let simulator = simtile_sim::Simulator::builder().quiet().build();
    /// let runtime = Runtime::with_driver(simulator.driver());
    /// let task = runtime.scope(async { upload(vec![1, 2, 3]).then(download).await });
    /// # let executor = tokio::runtime::Builder::new_current_thread().build()?;
    /// # let values = executor.block_on(task)?;
    /// assert_eq!(values, [1, 2, 3]);
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let runtime = self.clone();
        async move {
            let mut scoped = Scoped { runtime, future: core::pin::pin!(Some(future)) };
            core::future::poll_fn(|cx| scoped.poll(cx)).await
        }
    }

    /// The one in force on the calling thread: the innermost that was entered, else the process's default.
    pub fn current() -> Option<Runtime> {
        let entered = ENTERED.try_with(|entered| entered.borrow().last().map(|(_, runtime)| runtime.clone()));
        let entered = entered.ok().flatten();
        entered.or_else(|| DEFAULT.mine().0.lock().clone())
    }
}

/// A future in whose polls, and in whose destructor, a runtime is in force.
struct Scoped<'f, F> {
    runtime: Runtime,
    /// `None` once it has ended.
    future: Pin<&'f mut Option<F>>,
}

impl<F: Future> Scoped<'_, F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.runtime.enter();
        match self.future.as_mut().as_pin_mut() {
            Some(future) => future.poll(cx),
            // (It is not polled again after it has ended: the block around it is not.)
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Scoped<'_, F> {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.future.set(None);
    }
}

/// See [`Runtime::enter`].
#[derive(Debug)]
#[must_use = "the runtime is in force as long as this value lives"]
pub struct Entered {
    number: u64,
    /// It ends on the thread on which it began.
    thread: core::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let ended = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let at = entered.iter().rposition(|(number, _)| *number == self.number)?;
            Some(entered.remove(at))
        });
        drop(ended);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The spin budget in force.
pub(crate) fn spin_budget() -> Duration {
    let entered =
        ENTERED.try_with(|entered| entered.borrow().last().map(|(_, runtime)| runtime.spin_budget()));
    let entered = entered.ok().flatten();
    entered.unwrap_or_else(|| Duration::from_nanos(SPIN_NANOS.load(Ordering::Relaxed)))
}
