//! Any bytes as a fat binary, decompressed too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use simtile_image::fatbin::{MAX_DECOMPRESSED, entries, pick};

fuzz_target!(|data: &[u8]| {
    let Ok(list) = entries(data) else { return };
    for entry in &list {
        assert!(entry.offset as usize + entry.data.len() <= data.len());
        if let Ok(image) = entry.image() {
            assert!(image.len() as u64 <= MAX_DECOMPRESSED.max(data.len() as u64));
        }
    }
    for sm in [80, 90, 100, 120] {
        if let Some(entry) = pick(&list, sm) {
            assert!(entry.runs_on(sm));
        }
    }
});
