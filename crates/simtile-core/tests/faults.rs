//! Every driver call of a scenario fails once: the program sees an error or a parked one, nothing hangs, nothing is
//! used after it was freed, and what is lost is counted.

mod common;

use common::*;
use simtile_core::{Context, Device, DeviceBuffer, Error, LaunchArgs, drain_background};
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const SOON: Duration = Duration::from_secs(10);

/// Two streams, an upload, a launch, copies and a download, handles dropped at the end. Checks its own result.
fn scenario(context: &Arc<Context>) -> Result<(), Error> {
    let (a, b) = (context.new_stream()?, context.new_stream_with_priority(-1)?);
    let saxpy = context.load_module_from_ptx_src(SAXPY)?.load_function("saxpy")?;
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 300])?;
    let mut y = DeviceBuffer::<f32>::zeroed(&b, 300)?;
    y.fill(&b, 2.0)?;
    let args = LaunchArgs::new().arg(300u32).arg(3.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have 300 elements.
    unsafe { a.launch(&saxpy, LaunchConfig::for_num_elems(300), args) }?;
    let mut z = DeviceBuffer::<f32>::zeroed(&b, 300)?;
    z.copy_from(&b, &y)?;
    let event = b.record_event()?;
    a.wait(&event)?;
    let fork = a.fork()?;
    b.join(&fork)?;
    let mut host = vec![0.0; 300];
    z.copy_to_slice(&fork, &mut host)?;
    assert!(host.iter().all(|&v| v == 5.0), "a wrong result without an error");
    b.synchronize()?;
    event.synchronize()?;
    Ok(())
}

/// A context of its own, so that its end belongs to the scenario too.
fn run(sim: &Simulator) -> (Result<(), Error>, Option<Arc<Context>>) {
    let context = match Device::new(sim.driver(), 0).map_err(Error::from) {
        Ok(device) => match device.create_context() {
            Ok(context) => context,
            Err(error) => return (Err(error.into()), None),
        },
        Err(error) => return (Err(error), None),
    };
    let result = scenario(&context);
    (result, Some(context))
}

/// How many driver calls the scenario makes when nothing fails.
fn calls() -> u64 {
    let sim = sim(1);
    let (result, context) = run(&sim);
    result.unwrap();
    drop(context);
    assert!(drain_background(SOON));
    sim.counts().total()
}

#[test]
fn each_driver_call_fails_once_and_somebody_is_told() {
    let calls = calls();
    assert!(calls > 60, "{calls}");
    let mut told_of = 0;
    for (code, k) in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN]
        .into_iter()
        .flat_map(|code| (1..=calls).map(move |k| (code, k)))
    {
        let sim = sim(1);
        sim.fail_any(k, code);
        let (result, context) = run(&sim);
        // A background call that was under way is over before anything is counted.
        assert!(drain_background(SOON), "call {k}");
        let mut told = result.is_err();
        if let Some(context) = context {
            let stats = context.stats();
            assert_eq!((stats.live_allocations, stats.live_bytes), (0, 0), "call {k}");
            let errors = context.take_errors();
            told |= !errors.is_empty();
            assert!(stats.failed_frees <= 1 && stats.failed_destroys <= 1, "call {k}: {stats:?}");
            // Without an error the scenario has checked its own result; then nothing may be lost either.
            if stats.failed_frees + stats.failed_destroys > 0 {
                assert!(told, "call {k}: counted but not told");
            }
            told_of += u64::from(told);
            // The context works on after any single failure that does not lose it.
            if context.loss().is_none() {
                sim.clear_rules();
                scenario(&context).unwrap_or_else(|error| panic!("call {k}, afterwards: {error}"));
            }
            drop(context);
        }
        assert!(drain_background(SOON), "call {k}");
        assert!(sim.reports().is_empty(), "call {k}: {:?}", sim.reports());
    }
    // The rest: calls whose failure is answered by another way to the same result (optional attributes, a second
    // record), and those of the context's end, which no handle is left to ask about.
    assert!(told_of > calls, "of {} failures only {told_of} were told", 2 * calls);
}

#[test]
fn losing_the_context_at_any_call_ends_everything_cleanly() {
    let calls = calls();
    for k in (1..=calls).step_by(3) {
        let sim = sim(1);
        sim.lose_at(None, k, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let (result, context) = run(&sim);
        // A background call that was under way is over before anything is counted.
        assert!(drain_background(SOON), "call {k}");
        if let Some(context) = context {
            if context.loss().is_some() {
                let before = sim.counts().total();
                assert!(context.new_stream().is_err());
                assert_eq!(sim.counts().total(), before, "call {k}: no call after the loss");
            }
            assert!(context.take_errors().len() <= 1, "call {k}: the loss is told once");
            let _ = result;
            drop(context);
        }
        assert!(drain_background(SOON), "call {k}");
    }
}

#[test]
fn shutting_down_at_any_call_is_silent_in_drops() {
    let calls = calls();
    for k in (1..=calls).step_by(3) {
        let sim = sim(1);
        sim.fail_any(k, CUresult::CUDA_ERROR_DEINITIALIZED);
        let (_, context) = run(&sim);
        assert!(drain_background(SOON), "call {k}");
        if let Some(context) = context {
            assert!(context.take_errors().is_empty(), "call {k}");
            let stats = context.stats();
            assert_eq!((stats.failed_frees, stats.failed_destroys), (0, 0), "call {k}");
        }
    }
}
