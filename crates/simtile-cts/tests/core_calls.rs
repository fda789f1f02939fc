//! F3 is asked of everything: each driver call in the core's source is made by an operation of its table, whatever is current
//! on the thread.

use simtile_cts::frame::{Mask, Target, run};
use std::collections::BTreeSet;
use std::path::Path;

/// Calls that no operation of the table makes, and why that is right. A name may end in `*`.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cuCtxDisablePeerAccess", "between two devices: core_peers"),
    ("cuCtxEnablePeerAccess", "between two devices: core_peers"),
    ("cuDeviceCanAccessPeer", "between two devices: core_peers"),
    ("cuMemPoolSetAccess", "between two devices: core_peers"),
    ("cuMemcpyPeerAsync", "between two devices: core_peers"),
    ("cuMulticast*", "never on a real device; on the simulator: core_memory"),
    ("cuGraphAddDependencies", GRAPHS),
    ("cuGraphAddKernelNode", GRAPHS),
    ("cuGraphAddMemcpyNode", GRAPHS),
    ("cuGraphAddMemsetNode", GRAPHS),
    ("cuGraphAddNode", GRAPHS),
    ("cuGraphConditionalHandleCreate", GRAPHS),
    ("cuGraphCreate", GRAPHS),
    ("cuGraphExecKernelNodeSetParams", GRAPHS),
    ("cuGraphExecMemcpyNodeSetParams", GRAPHS),
    ("cuGraphExecMemsetNodeSetParams", GRAPHS),
    ("cuGraphGetEdges_v2", GRAPHS),
    ("cuGraphKernelNodeSetAttribute", GRAPHS),
    ("cuGraphKernelNodeSetParams", GRAPHS),
    ("cuStreamBeginCaptureToGraph", GRAPHS),
];

/// Calls that build and change graphs.
const GRAPHS: &str = "work on a graph, whose context is in what they are given: core_graphs";

/// Every `cuXxx(` in the source of the core.
fn calls_in_the_source() -> BTreeSet<String> {
    let (mut found, mut folders) =
        (BTreeSet::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../simtile-core/src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                for (at, _) in line.match_indices("cu") {
                    let rest = &line[at..];
                    let name: String = rest.chars().take_while(|&c| is_name(c)).collect();
                    let starts = !line[..at].chars().next_back().is_some_and(is_name);
                    let is_call = rest[name.len()..].starts_with('(');
                    if starts && is_call && name.chars().nth(2).is_some_and(|c| c.is_ascii_uppercase()) {
                        found.insert(name);
                    }
                }
            }
        }
    }
    found
}

#[test]
fn fr_f3_the_table_makes_every_call_of_the_core() {
    let name = "field_reports::fr_f3_every_operation_binds_its_own_context";
    let test = simtile_cts::tests().find(|test| test.name == name).expect("the test of F3");
    let mut made = BTreeSet::new();
    // A device without pools is served in another way.
    for target in [Target::SimFast, Target::SimMasked(Mask::NoPools)] {
        let report = run::execute(test, &target);
        assert_eq!(report.outcome, "pass", "{}: {}", target.name(), report.reason);
        made.extend(report.entries);
    }
    let known = calls_in_the_source();
    assert!(known.len() > 60, "the source was not understood: {known:?}");
    let listed = |name: &str| {
        ELSEWHERE.iter().any(|(pattern, _)| {
            pattern.strip_suffix('*').map_or(name == *pattern, |stem| name.starts_with(stem))
        })
    };
    let missing: Vec<&String> = known.iter().filter(|name| !made.contains(*name) && !listed(name)).collect();
    assert!(
        missing.is_empty(),
        "no operation of crates/simtile-cts/src/core_layer/field_reports/binding.rs makes {missing:?}: add one for each, \
         or list it here with the reason"
    );
    let stale: Vec<&str> =
        ELSEWHERE.iter().map(|(name, _)| *name).filter(|name| made.contains(*name)).collect();
    assert!(stale.is_empty(), "listed as made elsewhere, but made by the table: {stale:?}");
}
