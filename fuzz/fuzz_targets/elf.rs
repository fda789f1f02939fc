//! Any bytes as a cubin.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simtile_image::elf::Cubin;

fuzz_target!(|data: &[u8]| {
    match Cubin::parse(data) {
        Ok(cubin) => {
            for entry in cubin.entries {
                let mut end = 0;
                for param in entry.params.iter().flatten() {
                    assert!(param.offset >= end);
                    end = param.offset + param.size;
                }
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});
