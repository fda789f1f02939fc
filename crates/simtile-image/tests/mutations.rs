//! Damaged images: whatever is done to a committed image, `check` returns. The cases are the same every time.

mod common;

use simtile_image::{ImageKind, check, elf, fatbin};

/// Cases of one kind for all images together.
const CASES: usize = 4000;

struct Random(u64);

impl Random {
    /// xorshift64*
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

/// Images to damage: large ones are left to the fuzzer, which has the time.
fn images() -> Vec<(String, Vec<u8>)> {
    let mut all = common::images();
    all.retain(|(_, image)| image.len() < 24 << 10);
    assert!(all.len() > 25, "{}", all.len());
    all
}

/// Everything that reads this kind of image. Counts what was accepted.
fn read(image: &[u8], accepted: &mut usize) {
    if let Ok(info) = check(image) {
        *accepted += 1;
        for entry in &info.entries {
            for param in entry.params.iter().flatten() {
                assert!(param.offset.checked_add(param.size).is_some());
            }
        }
        if info.kind == ImageKind::Fatbin {
            for sm in [80, 90, 100] {
                let _ = fatbin::pick(&fatbin::entries(image).unwrap(), sm);
            }
        }
    }
    let _ = elf::Cubin::parse(image);
    let _ = fatbin::entries(image);
}

/// A number that is likely to matter: small, huge, or near a length.
fn interesting(random: &mut Random, len: usize) -> u64 {
    match random.below(6) {
        0 => random.below(256) as u64,
        1 => u64::MAX >> random.below(64),
        2 => len as u64,
        3 => (len as u64).wrapping_sub(random.below(16) as u64),
        4 => 1 << random.below(64),
        _ => random.next(),
    }
}

#[test]
fn changed_bytes() {
    let (images, mut random, mut accepted) = (images(), Random(1), 0);
    for case in 0..CASES {
        let (_, image) = &images[case % images.len()];
        let mut image = image.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(image.len());
            image[at] = match random.below(3) {
                0 => image[at] ^ 1 << random.below(8),
                1 => random.next() as u8,
                _ => [0, 0x7F, 0x80, 0xFF][random.below(4)],
            };
        }
        read(&image, &mut accepted);
    }
    // Many changes are in code or comments. If none passed, or all, the test would not reach far.
    assert!((100..CASES).contains(&accepted), "{accepted}");
}

#[test]
fn changed_numbers() {
    let (mut images, mut random, mut accepted) = (images(), Random(2), 0);
    images.retain(|(name, _)| !name.ends_with(".ptx"));
    for case in 0..CASES {
        let (_, image) = &images[case % images.len()];
        let mut image = image.clone();
        // Headers and tables are at the front and at the end.
        let near = random.below(512).min(image.len() - 8);
        let at = if random.below(2) == 0 { near } else { image.len() - 8 - near };
        let bytes = interesting(&mut random, image.len()).to_le_bytes();
        let width = [1, 2, 4, 8][random.below(4)];
        image[at..at + width].copy_from_slice(&bytes[..width]);
        read(&image, &mut accepted);
    }
    assert!((10..CASES).contains(&accepted), "{accepted}");
}

#[test]
fn truncated() {
    let (images, mut random, mut accepted) = (images(), Random(3), 0);
    for case in 0..CASES {
        let (name, image) = &images[case % images.len()];
        let len = random.below(image.len());
        let before = accepted;
        read(&image[..len], &mut accepted);
        // Text can end anywhere between two functions; binary formats cannot.
        assert!(accepted == before || name.ends_with(".ptx"), "{name}, {len} of {} bytes", image.len());
    }
    assert!(accepted < CASES / 2, "{accepted}");
}

#[test]
fn spliced() {
    let (images, mut random, mut accepted) = (images(), Random(4), 0);
    for case in 0..CASES {
        let (_, image) = &images[case % images.len()];
        let mut image = image.clone();
        // Of itself more often than of another.
        let other = if random.below(3) == 0 { &images[random.below(images.len())].1 } else { &image };
        let from = random.below(other.len());
        let piece = other[from..(from + 1 + random.below(64)).min(other.len())].to_vec();
        let at = random.below(image.len());
        let replaced =
            if random.below(2) == 0 { piece.len().min(image.len() - at) } else { random.below(16) };
        image.splice(at..(at + replaced).min(image.len()), piece);
        read(&image, &mut accepted);
    }
    assert!((100..CASES).contains(&accepted), "{accepted}");
}

#[test]
fn noise_behind_each_magic_number() {
    let (mut random, mut accepted) = (Random(5), 0);
    let starts: [&[u8]; 5] = [
        b"",
        b"\x7FELF\x02\x01\x01\x41",
        &[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0],
        b"\x7FTileIR\0\x0d\x03\0\0",
        b".version 9.0\n.target sm_90\n.address_size 64\n",
    ];
    for case in 0..CASES {
        let mut image = starts[case % starts.len()].to_vec();
        let len = random.below(300);
        image.extend((0..len).map(|_| random.next() as u8));
        read(&image, &mut accepted);
    }
    assert!(accepted < CASES / 10, "{accepted}");
}

/// What the reader accepts, the writer can write, and that reads as the same module.
#[cfg(feature = "tile")]
#[test]
fn damaged_bytecode_that_reads_can_be_written() {
    use cutile_ir::bytecode::write_bytecode_version;
    use simtile_image::tile;

    let (mut images, mut random, mut same) = (images(), Random(6), 0);
    images.retain(|(name, _)| name.ends_with(".tileirbc"));
    assert_eq!(images.len(), 6);
    for case in 0..CASES / 3 {
        let mut image = images[case % images.len()].1.clone();
        let at = random.below(image.len());
        image[at] =
            if random.below(2) == 0 { image[at] ^ 1 << random.below(8) } else { random.below(64) as u8 };
        let Ok(module) = tile::read(&image) else { continue };
        let version = tile::version(&image).unwrap();
        let written = write_bytecode_version(&module, version)
            .unwrap_or_else(|e| panic!("case {case}, byte {at}: {e}"));
        let again = tile::read(&written).unwrap_or_else(|e| panic!("case {case}, byte {at}: {e}"));
        assert_eq!(
            tile_common::dump::dump(&module),
            tile_common::dump::dump(&again),
            "case {case}, byte {at}"
        );
        same += 1;
    }
    assert!(same > CASES / 60, "{same}");
}

#[cfg(feature = "tile")]
mod tile_common;
