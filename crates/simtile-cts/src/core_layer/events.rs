//! Events by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, threads};
use crate::{code, ensure};
use simtile_core::StreamError;

crate::frame::registry::tests! { Core, "core_events";
    event_has_no_timing proves ["H4"],
    timed_event_measures proves ["H4"],
    time_that_is_not_known_yet proves ["H4", "F2"],
    unrecorded_is_complete proves ["H4"],
    record_and_synchronize proves ["H4"],
    drop_while_pending proves ["H4"],
}

fn event_has_no_timing(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let plain = core.stream.record_event()?;
    let timed = core.stream.record_timed_event()?;
    core.stream.synchronize()?;
    let mut millis = 0.0;
    // The driver itself refuses: the untimed event was made without timing.
    code!(
        cx,
        [CUDA_ERROR_INVALID_HANDLE],
        cuEventElapsedTime(&mut millis, plain.cu_event(), timed.cu_event())
    )
}

fn timed_event_measures(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let start = core.stream.record_timed_event()?;
    let gate = core.gate(&core.stream)?;
    threads::sleep(crate::gpu::A_WHILE);
    gate.open();
    let end = core.stream.record_timed_event()?;
    end.synchronize()?;
    let millis = start.elapsed_time(&end)?;
    let slept = crate::gpu::A_WHILE.as_secs_f32() * 1e3;
    ensure!(millis > slept * 0.5, "{millis} ms over a gate of {slept} ms");
    ensure!(start.elapsed(&end)? > crate::gpu::A_WHILE / 2, "{:?}", start.elapsed(&end)?);
    Ok(())
}

fn time_that_is_not_known_yet(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let start = core.stream.record_timed_event()?;
    let gate = core.gate(&core.stream)?;
    let end = core.stream.record_timed_event()?;
    let error = refused(start.elapsed_time(&end), &["not known yet"])?;
    ensure!(matches!(error, StreamError::NotReady { .. }), "{error:?}");
    gate.open();
    end.synchronize()?;
    start.elapsed_time(&end)?;
    Ok(())
}

fn unrecorded_is_complete(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let event = core.context.new_event()?;
    ensure!(event.is_complete()?, "an event that was never recorded is pending");
    event.synchronize()?;
    core.stream.wait(&event)?;
    core.stream.synchronize()?;
    Ok(())
}

fn record_and_synchronize(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let event = core.context.new_event()?;
    let gate = core.gate(&core.stream)?;
    event.record(&core.stream)?;
    ensure!(!event.is_complete()?, "an event behind a gate is complete");
    gate.open();
    event.synchronize()?;
    ensure!(event.is_complete()?, "an event waited for is pending");
    Ok(())
}

fn drop_while_pending(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let gate = core.gate(&core.stream)?;
    for _ in 0..10 {
        drop(core.stream.record_event()?);
        drop(core.stream.record_timed_event()?);
    }
    let last = core.stream.record_event()?;
    ensure!(!last.is_complete()?, "events dropped behind a gate let it pass");
    gate.open();
    last.synchronize()?;
    Ok(())
}
