//! What `SIMTILE_DRIVER` and `SIMTILE_SIM` do, each in a child process: a process reads them once.
#![cfg(feature = "sim")]

use simtile::Runtime;
use std::process::{Command, Output};

const CHILD: &str = "SIMTILE_RUNTIME_CHILD";

/// What a child prints: how many devices each constructor found, or its error.
fn report() {
    for (name, runtime) in [("new", Runtime::new()), ("auto", Runtime::auto()), ("auto", Runtime::auto())] {
        match runtime {
            Ok(runtime) => {
                println!("{name}: {} simulated={}", runtime.devices().unwrap().len(), runtime.is_simulated());
            }
            Err(error) => println!("{name}: {error}"),
        }
    }
}

fn child(settings: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_environment_chooses_the_driver", "--nocapture"]);
    command.env(CHILD, "1").env_remove("SIMTILE_DRIVER").env_remove("SIMTILE_SIM");
    command.envs(settings.iter().copied());
    let Output { stdout, stderr, status } = command.output().unwrap();
    assert!(status.success());
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn the_environment_chooses_the_driver() {
    if std::env::var_os(CHILD).is_some() {
        return report();
    }
    let (out, err) = child(&[("SIMTILE_DRIVER", "sim"), ("SIMTILE_SIM", "devices=3")]);
    assert_eq!(out.matches("simulated=true").count(), 3, "{out}");
    assert!(out.contains("new: 3 ") && out.contains("auto: 3 "), "{out}");
    assert!(!err.contains("simulated driver"), "asked for, so there is nothing to tell: {err}");

    let (out, _) = child(&[("SIMTILE_DRIVER", "sim"), ("SIMTILE_SIM", "devices=many")]);
    assert_eq!(out.matches("SIMTILE_SIM").count(), 3, "{out}");

    let (out, err) = child(&[("SIMTILE_SIM", "devices=0")]);
    if !out.contains("simulated=false") {
        assert!(out.contains("auto: SIMTILE_SIM: devices=0 leaves nothing to run on"), "{out}");
        assert!(!err.contains("running on"), "nothing runs: {err}");
    }

    let (out, _) = child(&[("SIMTILE_DRIVER", "nonsense")]);
    assert!(out.contains("neither `cuda` nor `sim`"), "{out}");

    let (out, _) = child(&[("SIMTILE_DRIVER", "/nowhere/libcuda.so")]);
    assert_eq!(out.matches("SIMTILE_DRIVER=/nowhere/libcuda.so").count(), 3, "{out}");

    // Without a setting: a GPU where there is one, else an error for `new` and one notice for `auto`.
    let (out, err) = child(&[]);
    if out.contains("simulated=false") {
        assert_eq!(out.matches("simulated=false").count(), 3, "{out}");
    } else {
        assert!(out.contains("new: no CUDA device") && out.contains("SIMTILE_DRIVER=sim"), "{out}");
        assert_eq!(out.matches("simulated=true").count(), 2, "{out}");
        assert_eq!(err.matches("running on the simulated driver").count(), 1, "{err}");
        let (out, _) = child(&[("SIMTILE_DRIVER", "cuda")]);
        assert_eq!(out.matches("no CUDA device").count(), 3, "{out}");
    }
}
