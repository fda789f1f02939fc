//! Prints what a CUDA driver answers to memory calls: `memory_facts [PATH OF A LIBCUDA]`.
//!
//! Each family of cases runs in a process of its own, since a driver may crash on what it does not check; the
//! name of the last case then stands on the error stream.

#[path = "../tests/facts/mod.rs"]
mod facts;

use std::process::Command;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--family") {
        let family = arguments.next().unwrap_or_default();
        let driver = match arguments.next() {
            Some(path) => simtile_driver::Driver::open(path),
            None => simtile_driver::Driver::cuda(),
        };
        let driver = driver.unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(1);
        });
        for (_, run) in facts::FAMILIES.iter().filter(|(name, _)| *name == family) {
            facts::run(driver, *run, |case| eprintln!("{case}"), |line| println!("{line}"));
        }
        return;
    }
    for (family, _) in facts::FAMILIES {
        println!("# {family}");
        let own = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(own);
        child.args(["--family", family]).args(&first);
        let output = child.output().expect("this program starts");
        print!("{}", String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("").to_owned();
            println!("DIED ({}) in: {last}", output.status);
        }
    }
}
