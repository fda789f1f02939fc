//! Any bytes as an image of any kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simtile_image::{ImageKind, check};

fuzz_target!(|data: &[u8]| {
    match check(data) {
        Ok(info) => assert!(info.kind == ImageKind::Fatbin || info.members.is_empty()),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});
