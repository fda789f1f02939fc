//! Any bytes as Tile bytecode. What reads can be written, and then reads and writes the same.
#![no_main]

use cutile_ir::bytecode::write_bytecode_version;
use libfuzzer_sys::fuzz_target;
use simtile_image::tile;

fuzz_target!(|data: &[u8]| {
    let module = match tile::read(data) {
        Ok(module) => module,
        Err(e) => {
            assert!(e.offset() <= data.len());
            return;
        }
    };
    let version = tile::version(data).expect("it was read");
    // The writer has rules of its own about what stands where.
    let Ok(once) = write_bytecode_version(&module, version) else { return };
    let again = tile::read(&once).expect("the writer's own bytes");
    let twice = write_bytecode_version(&again, version).expect("what was written before");
    assert!(once == twice);
});
