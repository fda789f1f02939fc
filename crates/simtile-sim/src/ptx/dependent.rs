//! Programmatic dependent launch: which instructions of a kernel run before it waits for the kernel before it.
//!
//! A kernel that is launched early may touch memory before `griddepcontrol.wait`. Which instructions do so is read from the
//! code, once: those that can be reached from the start without passing a wait, and not also behind one. What can be
//! reached both ways (a function that is called before and after, a wait on one side of a branch) counts as behind it,
//! so that no access is blamed that may have waited.

use super::code::{Callee, Op};
use super::decode::Image;
use crate::exec::GridDependency;

/// What a function does about its neighbours.
pub(super) fn dependency(image: &Image, function: u32) -> GridDependency {
    let Some(start) = image.funcs.get(function as usize).map(|function| function.start) else {
        return GridDependency::default();
    };
    let mut early = vec![false; image.code.len()];
    let mut waits = Vec::new();
    walk(image, vec![start], &mut early, |at| {
        let waited = image.grid_waits.contains(&at);
        if waited {
            waits.push(at + 1);
        }
        waited
    });
    let mut late = vec![false; image.code.len()];
    walk(image, waits, &mut late, |_| false);
    let reached = |at: u32| early.get(at as usize) == Some(&true) || late.get(at as usize) == Some(&true);
    let before = |&at: &u32| early.get(at as usize) == Some(&true) && late.get(at as usize) != Some(&true);
    GridDependency {
        launches_dependents: image.grid_triggers.iter().any(|&at| reached(at)),
        // Number 0 is for system calls.
        early: image.cache_places.iter().enumerate().map(|(site, at)| site > 0 && before(at)).collect(),
    }
}

/// Marks what can be reached from `starts`; where `ends` says so nothing is reached behind.
fn walk(image: &Image, starts: Vec<u32>, seen: &mut [bool], mut ends: impl FnMut(u32) -> bool) {
    let mut open = starts;
    while let Some(at) = open.pop() {
        let Some(insn) = image.code.get(at as usize) else { continue };
        if std::mem::replace(&mut seen[at as usize], true) || ends(at) {
            continue;
        }
        let goes_on = match &insn.op {
            Op::Bra { target } => {
                open.push(*target);
                false
            }
            Op::BrxIdx { targets, .. } => {
                open.extend(targets.iter());
                false
            }
            Op::Ret | Op::Exit | Op::Trap => false,
            Op::Call(call) => {
                if let Callee::Function(callee) = call.callee {
                    open.extend(image.funcs.get(callee as usize).map(|function| function.start));
                }
                true
            }
            _ => true,
        };
        if goes_on || insn.guard != super::code::NONE {
            open.push(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::image;
    use super::*;
    use crate::exec::DeviceTraits;

    /// What a kernel with this body, which may call `f(p)`, does, and which of the loads are early, in order of the text.
    fn of(body: &str) -> (bool, Vec<bool>) {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.func f(.reg .b64 %a) {{ .reg .b32 %r1;\nld.global.b32 %r1, [%a];\nret; }}\n\
             .visible .entry k(.param .u64 p) {{\n.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<4>;\nld.param.u64 %d1, [p];\n\
             {body}\nret; }}"
        );
        let traits = DeviceTraits {
            compute_capability: (9, 0),
            multiprocessors: 132,
            warp_size: 32,
            newest_ptx: (9, 0),
        };
        let image = image(&text, &traits).unwrap();
        let found = dependency(&image, image.entries[0]);
        let loads =
            |&(_, at): &(bool, u32)| image.names[image.code[at as usize].name as usize] == "ld.global.b32";
        let sites = found.early.iter().copied().zip(image.cache_places.iter().copied());
        (found.launches_dependents, sites.skip(1).filter(loads).map(|(early, _)| early).collect())
    }

    const LOAD: &str = "ld.global.b32 %r1, [%d1];\n";

    #[test]
    fn what_comes_before_the_wait_is_early() {
        // The first is the function's.
        let (triggers, early) = of(&format!("{LOAD}griddepcontrol.wait;\n{LOAD}"));
        assert_eq!((triggers, early), (false, vec![false, true, false]));
        let (triggers, early) = of(&format!("griddepcontrol.launch_dependents;\n{LOAD}"));
        assert_eq!((triggers, early), (true, vec![false, true]));
    }

    #[test]
    fn what_can_be_reached_both_ways_is_not() {
        let (_, early) = of(&format!(
            "mov.u32 %r2, %tid.x;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra L;\n{LOAD}griddepcontrol.wait;\nL:\n{LOAD}"
        ));
        assert_eq!(early, [false, true, false]);
        let (_, early) = of("call f, (%d1);\ngriddepcontrol.wait;\ncall f, (%d1);");
        assert!(!early[0], "{early:?}");
        let (_, early) = of("call f, (%d1);\ngriddepcontrol.wait;");
        assert!(early[0], "{early:?}");
    }
}
