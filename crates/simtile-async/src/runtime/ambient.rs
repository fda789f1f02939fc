//! Which runtime is in force: the innermost that the thread has entered, else the process's default.

use super::{Runtime, SPIN};
use crate::worlds::Worlds;
use core::cell::RefCell;
use core::time::Duration;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, Ordering};

/// The default of one world.
#[derive(Default)]
struct InForce(Mutex<Option<Runtime>>);

static DEFAULT: Worlds<InForce> = Worlds::new();
static SPIN_NANOS: AtomicU64 = AtomicU64::new(SPIN.as_nanos() as u64);

thread_local! {
    static ENTERED: RefCell<Vec<Runtime>> = const { RefCell::new(Vec::new()) };
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

    /// In force on the calling thread until the guard ends, whatever the default is.
    pub fn enter(&self) -> Entered {
        ENTERED.with_borrow_mut(|entered| entered.push(self.clone()));
        Entered { depth: ENTERED.with_borrow(Vec::len), thread: core::marker::PhantomData }
    }

    /// The one in force on the calling thread: the innermost that was entered, else the process's default.
    pub fn current() -> Option<Runtime> {
        let entered = ENTERED.try_with(|entered| entered.borrow().last().cloned()).ok().flatten();
        entered.or_else(|| DEFAULT.mine().0.lock().clone())
    }
}

/// See [`Runtime::enter`].
#[derive(Debug)]
#[must_use = "the runtime is in force as long as this value lives"]
pub struct Entered {
    depth: usize,
    /// It ends on the thread on which it began.
    thread: core::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Those that were entered later and whose guards were forgotten end with it.
        let ended = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let keep = (self.depth - 1).min(entered.len());
            entered.split_off(keep)
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
        ENTERED.try_with(|entered| entered.borrow().last().map(Runtime::spin_budget)).ok().flatten();
    entered.unwrap_or_else(|| Duration::from_nanos(SPIN_NANOS.load(Ordering::Relaxed)))
}
