//! A context that is lost.

use super::{Ops, poll_once, wait_for};
use crate::frame::{Check, Cx};
use crate::{ensure, ensure_eq};
use simtile_async::{AsyncKernelLaunchBuilder, DeviceOp, value};
use simtile_types::LaunchConfig;

crate::frame::registry::tests! { Async, "async_losses";
    everybody_hears_which_operation_lost_the_context proves ["F3", "O3"],
    the_loss_is_a_future proves ["F3"],
}

/// A launch that writes where nothing is.
fn wild(ops: &Ops<'_>) -> Check<impl DeviceOp<Output = ()> + use<>> {
    let store = ops.core.basic()?.load_function("store_one")?;
    let builder = AsyncKernelLaunchBuilder::new(&store).arg(0x10_0000u64).arg(1u32);
    // SAFETY: the kernel writes to an address that nobody owns, which costs the context: that is the test.
    Ok(unsafe {
        builder.finalize_unchecked(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }?
    .labelled("wild"))
}

fn everybody_hears_which_operation_lost_the_context(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let bad = wild(&ops)?;
    let gate = ops.core.gate(&ops.core.stream)?;
    bad.enqueue_on(&ops.core.stream)?;
    let mut waiting: Vec<_> = (0..4).map(|n| value(n).on(&ops.core.stream)).collect();
    for future in &mut waiting {
        ensure!(poll_once(future).is_pending(), "a future behind a gate is ready");
    }
    gate.open();
    for mut future in waiting {
        let outcome = wait_for(&mut future);
        let Err(error) = outcome else {
            return Err(crate::frame::Stop::fail("a future of a lost context succeeded"));
        };
        let Some(loss) = error.loss() else { return Err(error.into()) };
        ensure!(loss.work().iter().any(|work| work.label.as_deref() == Some("wild")), "{loss}");
    }
    let before = cx.calls();
    let later = value(1).sync_on(&ops.core.stream);
    ensure!(
        later.is_err_and(|error| error.to_string().contains("\"wild\"")),
        "a later operation says something else"
    );
    ensure_eq!(cx.calls() - before, 0, "driver calls for a lost context");
    Ok(())
}

fn the_loss_is_a_future(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let mut lost = ops.core.context.lost();
    wild(&ops)?.enqueue_on(&ops.core.stream)?;
    // Nobody waits for the work.
    let loss = wait_for(&mut lost);
    ensure!(loss.as_ref().is_some_and(|loss| loss.work().len() == 1), "{loss:?}");
    Ok(())
}
