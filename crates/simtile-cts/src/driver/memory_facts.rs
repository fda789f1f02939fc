//! What memory calls answer, good ones and bad ones, line by line as an H200 answered them.
//!
//! The cases and the answers are those of the simulator's own test; here they run on every driver, so that a real one is
//! asked again.

#[path = "../../../simtile-sim/tests/facts/mod.rs"]
mod facts;

use crate::frame::{Check, Cx, Need, Stop};
use crate::{ensure, ok};
use simtile_driver::sys::CUdevice_attribute;
use std::ffi::CStr;

/// The answers of two H200 (driver 580.159.04, CUDA 13.0).
const MEASURED: &str = include_str!("../../../simtile-sim/tests/facts/h200.txt");
/// Lines of a difference that are shown.
const SHOWN: usize = 12;

const VMM: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    "virtual memory management",
);
const DRIVER: Need = Need::Driver(13, 0, "the answers that were measured");

macro_rules! sections {
    ($($name:ident $([$($need:expr),*])?),* $(,)?) => {
        crate::frame::registry::tests! { Driver, "memory_facts";
            $($name needs [DRIVER, Need::POOLS, VMM, $($($need),*)?]),*
        }
        $(fn $name(cx: &Cx) -> Check {
            answers_as_measured(cx, stringify!($name))
        })*
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

sections! {
    no_context, device_memory, pinned, registered, managed [super::memory_host::CONCURRENT], attach, pointer_attributes, copies, copies_2d, copies_3d, memsets,
    pools, pool_access, pool_accounting, virtual_memory, peers, two_devices [Need::Devices(2)], ipc,
}

fn answers_as_measured(cx: &Cx, name: &str) -> Check {
    let mut text = [0; 128];
    ok!(cx, cuDeviceGetName(text.as_mut_ptr(), 128, 0))?;
    let bytes = text.map(|c| c as u8);
    let device = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy();
    if !device.contains("H200") {
        return Err(Stop::unsupported(format!("the answers are those of an H200, this is {device}")));
    }
    let Some((_, run)) = facts::FAMILIES.iter().find(|(known, _)| *known == name) else {
        return Err(Stop::fail(format!("there are no cases called {name}")));
    };
    let measured = MEASURED.split("# ").find_map(|part| part.strip_prefix(name)?.strip_prefix('\n'));
    let measured: Vec<&str> = measured.unwrap_or_default().lines().collect();
    ensure!(!measured.is_empty(), "nothing was measured for {name}");
    let found = facts::run(cx.driver(), *run, |_| (), |_| ());
    let lines = found.len().max(measured.len());
    let wrong: Vec<String> = (0..lines)
        .map(|at| {
            (found.get(at).map_or("nothing", String::as_str), measured.get(at).copied().unwrap_or("nothing"))
        })
        .filter(|(found, measured)| found != measured)
        .map(|(found, measured)| format!("`{found}`, measured `{measured}`"))
        .collect();
    let more = wrong.len().saturating_sub(SHOWN);
    ensure!(
        wrong.is_empty(),
        "{} of {lines} answers differ: {}{}",
        wrong.len(),
        wrong[..wrong.len() - more].join("; "),
        if more > 0 { "; …" } else { "" }
    );
    Ok(())
}

/// Every case is a test, in the same order.
const _: () = {
    assert!(NAMES.len() == facts::FAMILIES.len());
    let mut at = 0;
    while at < NAMES.len() {
        let (name, case) = (NAMES[at].as_bytes(), facts::FAMILIES[at].0.as_bytes());
        assert!(name.len() == case.len());
        let mut byte = 0;
        while byte < name.len() {
            assert!(name[byte] == case[byte]);
            byte += 1;
        }
        at += 1;
    }
};
