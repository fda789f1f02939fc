//! Streams that sit in a wait, and what else of their context still runs (driver-facts, *Queues and blocking*: wait-values).

use super::blocking::{HostHold, ready_kernel};
use crate::frame::{Check, Cx};
use crate::gpu::{A_WHILE, Args, Gate, Gpu, Pinned, Shape};
use crate::{ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

crate::frame::registry::tests! { Driver, "sitting";
    four_waits_for_values_hold_nobody_up,
    seven_waits_for_values_hold_some_up,
    eight_waits_for_values_hold_everybody_up,
    streams_held_by_kernels_hold_nobody_up,
    streams_held_by_host_functions_hold_nobody_up,
    streams_held_by_event_waits_hold_nobody_up,
}

/// Streams beside the held ones.
const OTHERS: usize = 8;

/// Launches on other streams, and gives their events.
fn others(gpu: &Gpu<'_>, empty: CUfunction, streams: &[CUstream]) -> Check<Vec<CUevent>> {
    let launch = |&stream: &CUstream| {
        gpu.launch(empty, Shape::ONE, stream, &Args::new())?;
        gpu.recorded(stream)
    };
    streams.iter().map(launch).collect()
}

fn streams(gpu: &Gpu<'_>, count: usize) -> Check<Vec<CUstream>> {
    (0..count).map(|_| gpu.stream()).collect()
}

/// So many streams wait for a word to become 1. Runs `check` with the events of the others; then all must end.
fn waiting(cx: &Cx, count: usize, check: impl FnOnce(&Gpu<'_>, &[CUevent]) -> Check) -> Check {
    /// Whatever was found, no stream must stay blocked.
    struct Release(Pinned);
    impl Drop for Release {
        fn drop(&mut self) {
            self.0.set(0, 1);
        }
    }
    let gpu = Gpu::new(cx)?;
    let (empty, word) = (ready_kernel(&gpu)?, gpu.pinned(1)?);
    let (held, free) = (streams(&gpu, count)?, streams(&gpu, OTHERS)?);
    let release = Release(word);
    for &stream in &held {
        let equal = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0;
        ok!(cx, cuStreamWaitValue32(stream, word.device, 1, equal))?;
    }
    let events = others(&gpu, empty, &free)?;
    check(&gpu, &events)?;
    let last = held.iter().map(|&stream| gpu.recorded(stream)).collect::<Check<Vec<_>>>()?;
    drop(release);
    events
        .iter()
        .chain(&last)
        .try_for_each(|&event| gpu.finishes(event, "a stream after the value was written"))
}

/// How many of the events are done after a while.
fn done(gpu: &Gpu<'_>, events: &[CUevent]) -> Check<usize> {
    crate::frame::threads::sleep(2 * A_WHILE);
    let mut done = 0;
    for &event in events {
        done += usize::from(gpu.is_done(event)?);
    }
    Ok(done)
}

fn four_waits_for_values_hold_nobody_up(cx: &Cx) -> Check {
    waiting(cx, 4, |gpu, events| {
        events.iter().try_for_each(|&event| gpu.finishes(event, "a stream beside 4 that wait for a value"))
    })
}

/// Half of the others stop, measured.
fn seven_waits_for_values_hold_some_up(cx: &Cx) -> Check {
    waiting(cx, 7, |gpu, events| {
        let done = done(gpu, events)?;
        ensure!((1..OTHERS).contains(&done), "{done} of {OTHERS} streams run beside 7 that wait for a value");
        Ok(())
    })
}

fn eight_waits_for_values_hold_everybody_up(cx: &Cx) -> Check {
    waiting(cx, 8, |gpu, events| {
        ensure_eq!(done(gpu, events)?, 0, "streams that run beside 8 that wait for a value");
        Ok(())
    })
}

/// Holds so many streams, each by what `hold` gives; all others run meanwhile.
fn holding<T>(cx: &Cx, count: usize, hold: impl Fn(&Gpu<'_>, CUstream) -> Check<T>) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = ready_kernel(&gpu)?;
    let (held, free) = (streams(&gpu, count)?, streams(&gpu, OTHERS)?);
    let mut last = Vec::new();
    let mut holds = Vec::new();
    for &stream in &held {
        holds.push(hold(&gpu, stream)?);
        last.push(gpu.recorded(stream)?);
    }
    for event in others(&gpu, empty, &free)? {
        gpu.finishes(event, &format!("a stream beside {count} held ones"))?;
    }
    for &event in &last {
        ensure!(!gpu.is_done(event)?, "a held stream has ended");
    }
    drop(holds);
    last.iter().try_for_each(|&event| gpu.finishes(event, "a stream let go"))
}

fn streams_held_by_kernels_hold_nobody_up(cx: &Cx) -> Check {
    holding(cx, 32, |gpu, stream| gpu.gate(stream))
}

fn streams_held_by_host_functions_hold_nobody_up(cx: &Cx) -> Check {
    holding(cx, 32, HostHold::new)
}

/// 40 streams wait for an event behind a gate, which is there as long as one of them is held.
fn streams_held_by_event_waits_hold_nobody_up(cx: &Cx) -> Check {
    let known: RefCell<Option<(Weak<Gate>, CUevent)>> = RefCell::default();
    holding(cx, 40, |gpu, stream| {
        let mut known = known.borrow_mut();
        let held = known.as_ref().and_then(|(gate, event)| Some((gate.upgrade()?, *event)));
        let (gate, event) = match held {
            Some(held) => held,
            None => {
                let gated = gpu.stream()?;
                (Arc::new(gpu.gate(gated)?), gpu.recorded(gated)?)
            }
        };
        *known = Some((Arc::downgrade(&gate), event));
        ok!(gpu, cuStreamWaitEvent(stream, event, 0))?;
        Ok(gate)
    })
}
