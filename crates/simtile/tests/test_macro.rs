//! `#[simtile::test]`: what it gives, and how it fails. Tests that fail on purpose run in a child process.
#![cfg(all(feature = "sim", feature = "macros"))]

use simtile::testing::{Fault, TestCx};
use simtile::{DeviceBuffer, DeviceCopy, Runtime, driver::Entry, driver::call, driver::sys::*};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[simtile::test(devices = 2, memory = 64 << 20, profile = "h200")]
fn settings_make_the_driver(cx: &TestCx) -> Result {
    assert_eq!(cx.runtime().devices()?.len(), 2);
    assert_eq!(cx.simulator().config().memory, 64 << 20);
    assert_eq!(cx.seed(), None);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, DeviceCopy)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    alive: bool,
}

#[simtile::test(seeds = 12)]
fn a_correct_program_passes_on_every_schedule(runtime: &Runtime) -> Result {
    let stream = runtime.device(0)?.primary_context()?.new_stream()?;
    let values = [Particle { position: [1.0, 2.0, 3.0], alive: true }; 100];
    let buffer = DeviceBuffer::from_slice(&stream, &values)?;
    assert_eq!(buffer.to_vec(&stream)?, values);
    Ok(())
}

#[test]
fn each_seed_runs_once() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    simtile::testing::Spec::new("test_macro", "sum").seeds(5).run(|cx| {
        SUM.fetch_add(1 + cx.seed().unwrap(), Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(SUM.load(Ordering::Relaxed), 15);
}

/// The code of an allocation on the default stream.
fn allocate(cx: &TestCx) -> CUresult {
    let driver = cx.driver();
    let mut pointer = 0;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { driver.cuMemAllocAsync(&mut pointer, 256, CUstream::NULL) }
}

#[simtile::test(mask = [cuMemAllocAsync, cuMemFreeAsync])]
fn masked_entries_are_missing(cx: &TestCx) {
    assert_eq!(allocate(cx), CUresult::SIMTILE_MISSING_ENTRY);
}

#[simtile::test(faults = [Fault::fail(Entry::cuMemAllocAsync, 2, CUresult::CUDA_ERROR_OUT_OF_MEMORY)])]
fn faults_hit_the_call_they_name(cx: &TestCx) -> Result {
    let _context = cx.runtime().device(0)?.primary_context()?;
    let codes = [allocate(cx), allocate(cx), allocate(cx)];
    assert_eq!(codes[1], CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_ne!(codes[0], codes[1]);
    assert_ne!(codes[2], codes[1]);
    Ok(())
}

/// Two streams that nothing orders write to one buffer.
#[simtile::test(seeds = 30)]
#[ignore = "fails on purpose"]
fn fails_by_a_race(cx: &TestCx) -> Result {
    let context = cx.runtime().device(0)?.primary_context()?;
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let buffer = DeviceBuffer::<u8>::zeroed(&a, 4096)?;
    let address = buffer.cu_deviceptr();
    let driver = cx.driver();
    context.synchronize_all()?;
    // SAFETY: the buffer lives until the streams are drained; the race is the point.
    unsafe {
        call!(driver, cuCtxSetCurrent(context.cu_ctx()))?;
        call!(driver, cuMemsetD8Async(address, 1, 4096, a.cu_stream()))?;
        call!(driver, cuMemsetD8Async(address, 2, 4096, b.cu_stream()))?;
    }
    context.synchronize_all()?;
    Ok(())
}

/// The same race, and an assertion that fails before any of it has run.
fn race_then_assert(cx: &TestCx) -> Result {
    let context = cx.runtime().device(0)?.primary_context()?;
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let buffer = std::mem::ManuallyDrop::new(DeviceBuffer::<u8>::zeroed(&a, 4096)?);
    let address = buffer.cu_deviceptr();
    let driver = cx.driver();
    context.synchronize_all()?;
    let gates = [&a, &b].map(|stream| cx.simulator().gate(stream.cu_stream()).unwrap());
    // SAFETY: the buffer is never freed; the race is the point.
    unsafe {
        call!(driver, cuCtxSetCurrent(context.cu_ctx()))?;
        call!(driver, cuMemsetD8Async(address, 1, 4096, a.cu_stream()))?;
        call!(driver, cuMemsetD8Async(address, 2, 4096, b.cu_stream()))?;
    }
    assert_eq!(cx.simulator().pending(), 6, "five is what it should be");
    drop(gates);
    Ok(())
}

#[simtile::test]
#[ignore = "fails on purpose"]
fn fails_by_an_assertion_before_a_race(cx: &TestCx) -> Result {
    race_then_assert(cx)
}

#[simtile::test(seeds = 3)]
#[ignore = "fails on purpose"]
fn fails_by_an_assertion_before_an_explored_race(cx: &TestCx) -> Result {
    race_then_assert(cx)
}

/// An assertion, and work that never ends: the assertion is told, soon.
#[simtile::test(seeds = 3)]
#[ignore = "fails on purpose"]
fn fails_by_an_assertion_before_work_that_does_not_end(cx: &TestCx) -> Result {
    let stream = cx.runtime().device(0)?.primary_context()?.new_stream()?;
    std::mem::forget(cx.simulator().gate(stream.cu_stream()).map_err(|code| format!("{code:?}"))?);
    panic!("an assertion of its own");
}

#[simtile::test(seeds = 30)]
#[ignore = "fails on purpose"]
fn fails_at_seed_seven(cx: &TestCx) {
    assert_ne!(cx.seed(), Some(7), "seven is no good");
}

#[simtile::test(seeds = 30)]
#[ignore = "fails on purpose"]
fn fails_by_a_deadlock(cx: &TestCx) -> Result {
    let stream = cx.runtime().device(0)?.primary_context()?.new_stream()?;
    let gate = cx.simulator().gate(stream.cu_stream()).map_err(|code| format!("{code:?}"))?;
    let result = stream.synchronize();
    gate.open();
    Ok(result?)
}

#[simtile::test]
#[ignore = "fails on purpose"]
fn fails_by_an_error(_: &Runtime) -> Result {
    Err("an error of its own".into())
}

#[simtile::test(profile = "b9000")]
#[ignore = "fails on purpose"]
fn fails_by_a_profile(_: &Runtime) {}

/// What a test that must fail prints.
fn failure(name: &str, seed: Option<&str>) -> String {
    failure_with(name, seed.map(|seed| ("SIMTILE_SEED", seed)).as_slice())
}

/// The same with these settings in the environment.
fn failure_with(name: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    for variable in ["SIMTILE_SEED", "SIMTILE_SCHEDULE", "SIMTILE_SIM", "SIMTILE_TRACE", "RUST_BACKTRACE"] {
        command.env_remove(variable);
    }
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{name} passed:\n{text}");
    assert!(text.contains("1 failed"), "{text}");
    text.into_owned()
}

#[test]
fn a_failed_assertion_names_its_seed_and_the_command() {
    let text = failure("fails_at_seed_seven", None);
    assert!(text.contains("fails_at_seed_seven failed with seed 7\n"), "{text}");
    assert!(text.contains("seven is no good"), "{text}");
    assert!(
        text.contains("repeat it with: SIMTILE_SEED=7 cargo test fails_at_seed_seven -- --exact"),
        "{text}"
    );
    assert!(failure("fails_at_seed_seven", Some("7")).contains("failed with seed 7\n"));
    let text = failure("fails_at_seed_seven", Some("seven"));
    assert!(text.contains("SIMTILE_SEED=seven: a seed is a number"), "{text}");
}

#[test]
fn a_report_fails_the_test_and_the_seed_repeats_the_trace() {
    let text = failure("fails_by_a_race", None);
    assert!(text.contains("nothing orders them"), "{text}");
    let seed = text.split("SIMTILE_SEED=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(text.contains("steps:"), "{text}");
    let part = |text: &str| {
        let from = text.find("fails_by_a_race failed").unwrap();
        text[from..].split("repeat it with").next().unwrap().to_owned()
    };
    assert_eq!(part(&text), part(&failure("fails_by_a_race", Some(seed))));
}

/// What had been queued when an assertion failed still runs, so its race stands beside the assertion.
#[test]
fn a_failed_assertion_hides_no_race_of_work_that_had_not_run() {
    for name in ["fails_by_an_assertion_before_a_race", "fails_by_an_assertion_before_an_explored_race"] {
        let text = failure(name, None);
        assert!(text.contains("five is what it should be"), "{text}");
        assert!(text.contains("nothing orders them"), "{text}");
    }
    let text = failure("fails_by_an_assertion_before_work_that_does_not_end", None);
    assert!(text.contains("an assertion of its own"), "{text}");
    assert!(!text.contains("pieces of work are left"), "{text}");
}

/// The printed command, the schedule in a file, the whole trace in a file, and the simulator's own setting: each repeats
/// the very run.
#[test]
fn a_schedule_repeats_the_failure_from_every_place_it_can_stand() {
    let name = "fails_by_a_race";
    let file = |kind: &str| {
        let path = std::env::temp_dir().join(format!("simtile-{kind}-{}", std::process::id()));
        path.to_str().unwrap().to_owned()
    };
    let (trace, schedule) = (file("trace"), file("schedule"));
    let text = failure_with(name, &[("SIMTILE_TRACE", &trace)]);
    // What is printed of the run: reasons and the last steps. How much it was shrunk only the first run knows.
    let run = |text: &str| {
        let from = text.find("fails_by_a_race failed").unwrap();
        text[from..].split("\nschedule (").next().unwrap().to_owned()
    };
    let command = text.split("repeat it with: SIMTILE_SCHEDULE=").nth(1).unwrap();
    let (printed, rest) = command.split_once(' ').unwrap();
    assert!(rest.starts_with("cargo test fails_by_a_race -- --exact"), "{rest}");
    std::fs::write(&schedule, printed).unwrap();
    let whole = std::fs::read_to_string(&trace).unwrap();
    assert!(whole.starts_with(&format!("schedule {printed}\n")), "{whole}");
    for (variable, value) in [
        ("SIMTILE_SCHEDULE", printed.to_owned()),
        ("SIMTILE_SCHEDULE", schedule.clone()),
        ("SIMTILE_SCHEDULE", trace.clone()),
        ("SIMTILE_SIM", format!("replay={printed}")),
        ("SIMTILE_SIM", format!("replay={schedule}")),
        ("SIMTILE_SIM", format!("replay={trace}")),
    ] {
        let again = failure_with(name, &[(variable, &value)]);
        assert_eq!(run(&again), run(&text), "{variable}={value}");
        assert!(again.contains(&format!("SIMTILE_SCHEDULE={printed} ")), "{variable}={value}: {again}");
    }
    let text = failure_with(name, &[("SIMTILE_SCHEDULE", "/no/such/schedule")]);
    assert!(text.contains("is no part of a schedule such as 7:late:12.1+40.0"), "{text}");
    let _ = (std::fs::remove_file(trace), std::fs::remove_file(schedule));
}

#[test]
fn other_ends_fail_with_their_reason() {
    let text = failure("fails_by_a_deadlock", None);
    assert!(text.contains("deadlock: nobody can go on"), "{text}");
    let text = failure("fails_by_an_error", None);
    assert!(text.contains("fails_by_an_error failed\n") && text.contains("an error of its own"), "{text}");
    assert!(text.contains("repeat it with: cargo test fails_by_an_error -- --exact"), "{text}");
    let text = failure("fails_by_a_profile", None);
    assert!(text.contains("b9000") && text.contains("h200"), "{text}");
}

#[simtile::test]
#[ignore = "fails on purpose"]
fn fails_by_work_that_does_not_end(cx: &TestCx) -> Result {
    let stream = cx.runtime().device(0)?.primary_context()?.new_stream()?;
    std::mem::forget(cx.simulator().gate(stream.cu_stream()).map_err(|code| format!("{code:?}"))?);
    Ok(())
}

#[test]
fn work_that_does_not_end_fails_the_test() {
    let text = failure("fails_by_work_that_does_not_end", None);
    assert!(text.contains("pieces of work are left that do not end"), "{text}");
}
