//! Chores of the project: `cargo run -p xtask -- COMMAND`.

use std::process::ExitCode;

mod differential;
mod layouts;
mod mutate_hazard;
mod site_lint;
mod test;

/// A chore: its name, what to pass it, what it does.
type Command = (&'static str, &'static str, fn(&[String]) -> Result<(), String>);

const COMMANDS: &[Command] = &[
    (
        "differential",
        "[--driver cuda|sim|PATH] [--out DIR] [--record FILE] [--compare FILE] [--filter TEXT]",
        differential::run,
    ),
    ("layouts", "HEADER", layouts::run),
    ("mutate-hazard", "[--programs N] [--only SITE] [--lint]", mutate_hazard::run),
    ("test", "[--update]", test::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = args.first().and_then(|name| COMMANDS.iter().find(|(known, ..)| known == name));
    let Some((name, _, run)) = command else {
        eprintln!("usage: cargo run -p xtask -- COMMAND");
        for (name, arguments, _) in COMMANDS {
            eprintln!("  {name} {arguments}");
        }
        return ExitCode::from(2);
    };
    match run(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}
