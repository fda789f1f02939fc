//! Any text: a tree whose parameters fit in the address space, or an error with a line of the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simtile_image::ptx::Module;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Module::parse(text) {
        Ok(module) => {
            for signature in module.signatures() {
                for param in signature.params {
                    assert!(param.offset.checked_add(param.bytes).is_some());
                    assert!(param.align.is_power_of_two());
                }
            }
        }
        Err(e) => assert!(e.line as usize <= text.lines().count() + 1),
    }
});
