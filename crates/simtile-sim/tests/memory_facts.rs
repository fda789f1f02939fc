//! The simulator answers memory calls as the real driver does.
//!
//! `facts/h200.txt` is what `cargo run -p simtile-sim --example memory_facts` printed on a machine with two H200
//! (driver 580.159.04, CUDA 13.0); the simulator must print the same lines.

mod facts;

use simtile_sim::{Mode, Simulator};

#[test]
fn memory_calls_are_answered_as_on_the_gpu() {
    let expected = include_str!("facts/h200.txt");
    for mode in [Mode::Fast, Mode::Fifo] {
        let mut wrong = String::new();
        let mut sections = 0;
        for (name, run) in facts::FAMILIES {
            // A family gets a driver of its own, as on the GPU it gets a process of its own.
            let sim = Simulator::builder().devices(2).mode(mode).quiet().build();
            let found = facts::run(sim.driver(), *run, |_| (), |_| ());
            let section = expected.split("# ").find_map(|part| part.strip_prefix(&format!("{name}\n")));
            let section: Vec<&str> = section.unwrap_or_default().lines().collect();
            sections += usize::from(!section.is_empty());
            for (i, line) in found.iter().enumerate() {
                let real = section.get(i).copied().unwrap_or("nothing");
                if line != real {
                    wrong += &format!("{name}: simulator: {line}\n{name}: GPU:       {real}\n");
                }
            }
            if section.len() != found.len() {
                wrong += &format!("{name}: {} lines, on the GPU {}\n", found.len(), section.len());
            }
        }
        assert_eq!(sections, facts::FAMILIES.len(), "a family is not in the file");
        assert!(wrong.is_empty(), "{mode:?}:\n{wrong}");
    }
}
