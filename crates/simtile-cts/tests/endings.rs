//! Processes end quietly with objects of the runtime still there (H5, H6 of the field reports).

use std::process::Command;

#[test]
fn fr_h5_h6_processes_end_with_0_and_in_silence() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simtile-cts"));
    let output = command.args(["endings", "--driver", "sim-fast", "--times", "2"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    assert_eq!(stdout.lines().last(), Some("0 of 22 processes ended badly"));
}
