//! The simulated libcuda lies in the target folder after a build, and `cargo run` puts that folder on the loader's search path.
//! A program must not take it for the driver.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this build, such as `target/debug`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/PROFILE/deps/TEST
    test.parent().and_then(Path::parent).unwrap().to_owned()
}

fn cargo(arguments: &[&str]) -> String {
    let built = built();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(arguments[0]).args(["--quiet", "--offline"]);
    if built.ends_with("release") {
        command.arg("--release");
    }
    // The folder that this test was built into, whatever the environment says.
    command.arg("--target-dir").arg(built.parent().unwrap()).args(&arguments[1..]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    // What cargo sets for this test is not meant for the packages that it builds now.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST") || text == "LD_LIBRARY_PATH" {
            command.env_remove(&name);
        }
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn cargo_run_does_not_take_the_cdylib_for_the_driver() {
    cargo(&["build", "-p", "simtile-libcuda"]);
    let out = cargo(&["run", "-p", "simtile-driver", "--example", "driver_found"]);
    let path = out.lines().find_map(|line| line.strip_prefix("search path: ")).unwrap();
    let here = path.split(':').map(Path::new).find(|folder| folder.join("libcuda.so").exists());
    let here = here.unwrap_or_else(|| panic!("cargo run has the cdylib on its search path: {path}"));
    assert!(here.starts_with(built()), "{}", here.display());
    // A real driver where there is one; else the refusal that names the file.
    let driver = out.lines().nth(1).unwrap();
    if driver != "driver: Cuda" {
        assert!(driver.starts_with("no driver: "), "{driver}");
        assert!(driver.contains("is simtile's simulated libcuda, not a driver"), "{driver}");
    }
}
