//! Distributes the blocks of a launch over threads.
//!
//! Blocks start in order of their number, or in an order chosen by a seed that is not 0. After a fault no further block starts; of the
//! faults that running blocks still meet, the one of the lowest block counts.
//!
//! Blocks may wait for each other: on a GPU all resident blocks make progress. A block that has run for long therefore
//! calls for a further thread as long as there are blocks that have not started, up to one a multiprocessor.

use super::op::Kernel;
use super::run::{Block, Val};
use crate::exec::{ExecContext, FaultReason, KernelFault, LaunchSpec};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, Scope};

/// Most bytes that the blocks of further threads may hold together.
const MAX_BYTES: u64 = 4 << 30;

struct Shared<'a> {
    kernel: &'a Kernel,
    launch: &'a LaunchSpec<'a>,
    context: &'a ExecContext<'a>,
    params: &'a [Val],
    total: u64,
    next: AtomicU64,
    /// Start order: block `(i * factor + shift) % total`.
    factor: u64,
    shift: u64,
    threads: AtomicU64,
    failed: AtomicBool,
    fault: Mutex<Option<(u64, KernelFault)>>,
}

/// Runs all blocks.
pub(super) fn run(
    kernel: &Kernel,
    launch: &LaunchSpec<'_>,
    context: &ExecContext<'_>,
    params: &[Val],
) -> Result<(), KernelFault> {
    let total = launch.grid.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
    if total == 0 {
        return Ok(());
    }
    let (factor, shift) = match context.seed {
        0 => (1, 0),
        seed => (coprime(seed, total), seed.rotate_left(17) % total),
    };
    let workers = (context.workers as u64).clamp(1, total);
    let shared = Shared {
        kernel,
        launch,
        context,
        params,
        total,
        next: AtomicU64::new(0),
        factor,
        shift,
        threads: AtomicU64::new(workers),
        failed: AtomicBool::new(false),
        fault: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            // Without a further thread, the others do its work.
            let _ = Builder::new().spawn_scoped(scope, || work(scope, &shared));
        }
        work(scope, &shared);
    });
    match shared.fault.into_inner() {
        Some((_, fault)) => Err(fault),
        None => Ok(()),
    }
}

/// A number below `total` that is prime to it, chosen by a seed.
fn coprime(seed: u64, total: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % total;
    (start..start + total).find(|&f| gcd(f, total) == 1).map_or(1, |f| f % total.max(2))
}

fn work<'scope, 'env, 'a>(scope: &'scope Scope<'scope, 'env>, shared: &'scope Shared<'a>) {
    let stalled = || {
        std::thread::yield_now();
        let room = MAX_BYTES / shared.kernel.bytes.max(1);
        let most = u64::from(shared.context.device.multiprocessors).min(room);
        let waiting = shared.next.load(Ordering::Relaxed) < shared.total;
        let room = |threads: u64| (waiting && threads < most).then_some(threads + 1);
        if shared.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
            let _ = Builder::new().spawn_scoped(scope, move || work(scope, shared));
        }
    };
    while !shared.failed.load(Ordering::Relaxed) {
        let turn = shared.next.fetch_add(1, Ordering::Relaxed);
        if turn >= shared.total {
            break;
        }
        let number = (u128::from(turn) * u128::from(shared.factor) + u128::from(shared.shift))
            % u128::from(shared.total);
        block(shared, number as u64, &stalled);
    }
}

fn block(shared: &Shared<'_>, number: u64, stalled: &dyn Fn()) {
    let [x, y, _] = shared.launch.grid.map(u64::from);
    let id = [number % x, number / x % y, number / x / y].map(|i| i as u32);
    let mut block = Block::new(shared.kernel, shared.launch, shared.context, id, shared.params, stalled);
    // A bug in the interpreter must not take the process along.
    let result = catch_unwind(AssertUnwindSafe(|| block.run()))
        .unwrap_or_else(|_| Err(FaultReason::IllegalInstruction("internal error of the interpreter".into())));
    if let Err(reason) = result {
        let fault = KernelFault { site: Box::new(block.site()), reason };
        shared.failed.store(true, Ordering::Relaxed);
        let mut first = shared.fault.lock();
        if first.as_ref().is_none_or(|(other, _)| number < *other) {
            *first = Some((number, fault));
        }
    }
}
