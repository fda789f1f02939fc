//! The examples as a user runs them, on the simulated driver.

use std::process::{Command, Output};

fn run(binary: &str, args: &[&str], settings: &str) -> Output {
    Command::new(binary)
        .args(args)
        .env("SIMTILE_DRIVER", "sim")
        .env("SIMTILE_SIM", settings)
        .output()
        .expect("the example starts")
}

const INTER_KERNEL: &str = env!("CARGO_BIN_EXE_inter_kernel");

#[test]
fn inter_kernel_checks_every_value_in_every_mode() {
    for settings in ["mode=fast", "mode=fifo", "mode=explore,seed=7"] {
        for (rows, cols) in [("1", "1"), ("7", "33"), ("3", "1024")] {
            let output = run(INTER_KERNEL, &["--rows", rows, "--cols", cols], settings);
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{settings} {rows} x {cols}: {err}");
            let count = rows.parse::<u32>().unwrap() * cols.parse::<u32>().unwrap();
            assert!(out.contains(&format!("all {count} values are right")), "{out}");
            assert!(out.contains("simulated") && out.contains("Try next"), "{out}");
            assert!(out.contains("--bin inter_kernel -- --rows 4096 --cols 1000"), "{out}");
            assert!(err.is_empty(), "{err}");
        }
    }
}

#[test]
fn inter_kernel_refuses_what_its_kernels_only_assume() {
    for (args, text) in [
        (["--cols", "1025"], "--cols 1025 is outside 1 to 1024"),
        (["--cols", "0"], "--cols 0 is outside 1 to 1024"),
        (["--rows", "0"], "--rows 0 is outside 1 to 2147483647"),
    ] {
        let output = run(INTER_KERNEL, &args, "");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(text));
        assert!(output.stdout.is_empty());
    }
    // More than the device has: an error of the allocation, not a crash.
    let output = run(INTER_KERNEL, &["--rows", "20000", "--cols", "1024"], "memory=64MiB");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("out of device memory"), "{text}");
}

#[test]
fn a_driver_that_is_too_old_for_tile_kernels_says_so() {
    for binary in [INTER_KERNEL, env!("CARGO_BIN_EXE_async_pipeline")] {
        let output = run(binary, &[], "driver=12.0");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("version 12.0, and Tile bytecode needs 13.0: take `driver=` out"), "{text}");
    }
}

#[test]
fn async_pipeline_checks_every_value_and_leaves_nothing() {
    for settings in ["mode=fast", "mode=fifo"] {
        let output = run(env!("CARGO_BIN_EXE_async_pipeline"), &[], settings);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{settings}: {err}");
        assert!(out.contains("5 replays right") && out.contains("left over   nothing"), "{out}");
        assert!(out.contains("18 right, 6 given up half way"), "{out}");
        assert!(out.contains("library     its sum was ordered like the kernels"), "{out}");
    }
}

#[test]
fn vector_add_runs() {
    let output = run(env!("CARGO_BIN_EXE_vector_add"), &[], "");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("100003 values"));
}

/// Output that cannot be written, and arguments that are no text, are errors with a message.
#[cfg(target_os = "linux")]
#[test]
fn nothing_panics_where_nothing_can_be_written() {
    use std::fs::OpenOptions;
    use std::os::unix::ffi::OsStrExt;
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (binary, args) in [
        (INTER_KERNEL, &["--rows", "1", "--cols", "1"][..]),
        (INTER_KERNEL, &["--help"]),
        (env!("CARGO_BIN_EXE_vector_add"), &[]),
    ] {
        let mut command = Command::new(binary);
        command.args(args).env("SIMTILE_DRIVER", "sim").env_remove("SIMTILE_SIM").stdout(full());
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert_eq!(command.stderr(full()).status().unwrap().code(), Some(1), "{args:?}");
    }
    let mut command = Command::new(INTER_KERNEL);
    let output = command.arg(std::ffi::OsStr::from_bytes(b"--rows=\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    // The default driver's notice goes to stderr.
    let output = Command::new(INTER_KERNEL)
        .args(["--rows", "1", "--cols", "1"])
        .env("SIMTILE_DRIVER", "")
        .stderr(full())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_largest_matrix_is_refused_before_the_host_makes_one() {
    let output = run(INTER_KERNEL, &["--rows", "2147483647", "--cols", "1024"], "");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("out of device memory"), "{text}");
}
