//! What is read from cubins, against the PTX they were made from and against ptxas's own listing.

mod common;

use common::artifact;
use simtile_image::elf::{Cubin, CubinEntry};
use simtile_image::{FormatError, Problem};

fn cubin(name: &str) -> Cubin {
    Cubin::parse(&artifact(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn entry<'c>(cubin: &'c Cubin, name: &str) -> &'c CubinEntry {
    cubin.entries.iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no entry {name}"))
}

/// (offset, size) of each parameter.
fn params(entry: &CubinEntry) -> Vec<(u64, u64)> {
    entry.params.as_ref().expect("parameters").iter().map(|p| (p.offset, p.size)).collect()
}

#[test]
fn directives_and_parameters() {
    for (file, target) in [("sm_80", "sm_80"), ("sm_90", "sm_90"), ("sm_100a", "sm_100a")] {
        let c = cubin(&format!("cubin/directives.{file}.cubin"));
        assert_eq!(c.target.to_string(), target);
        assert!(!c.relocatable && !c.host_code);
        let mut names: Vec<_> = c.entries.iter().map(|e| e.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["bounded", "fixed", "large", "local", "nothing"], "{file}");

        let e = entry(&c, "fixed");
        assert_eq!(params(e), [(0, 8), (8, 4), (16, 24)]);
        assert_eq!(e.param_bytes, Some(40));
        assert_eq!((e.required_block, e.max_block), (Some([64, 2, 1]), None));
        assert_eq!(e.shared_bytes, 1024, "{file}");
        assert_eq!(e.local_bytes, Some(0));

        let e = entry(&c, "bounded");
        assert_eq!(params(e), [(0, 8)]);
        assert_eq!((e.required_block, e.max_block), (None, Some([128, 1, 1])));
        assert_eq!(e.shared_bytes, 0);

        let e = entry(&c, "nothing");
        assert_eq!(params(e), []);
        assert_eq!((e.required_block, e.max_block), (None, None));

        let e = entry(&c, "large");
        assert_eq!(params(e), [(0, 8), (16, 20_000), (20_016, 1)]);
        assert_eq!(e.param_bytes, Some(20_017));

        let e = entry(&c, "local");
        assert_eq!(e.local_bytes, Some(256), "{file}");
        assert!(e.registers.is_some_and(|r| (4..=255).contains(&r)), "{:?}", e.registers);
    }
}

#[test]
fn clusters() {
    for (file, relocatable) in
        [("cubin/clusters.sm_90.cubin", false), ("cubin/clusters.sm_90.rdc.cubin", true)]
    {
        let c = cubin(file);
        assert_eq!(c.relocatable, relocatable);
        let e = entry(&c, "pair");
        assert_eq!((e.required_cluster, e.required_block), (Some([2, 1, 1]), Some([64, 2, 1])));
        assert!(!e.explicit_cluster);
        let e = entry(&c, "explicit");
        assert_eq!((e.required_cluster, e.max_cluster_blocks), (None, Some(4)));
        assert_eq!(e.max_block, Some([96, 2, 1]));
        assert!(e.explicit_cluster);
    }
}

#[test]
fn tile_cubins_list_what_the_caller_passes() {
    // (file, entry, tensors of this rank, threads inside, hidden bytes after the visible parameters)
    let files = [
        ("tile_rs/rs_vadd_f32", "rs_vadd_f32", [1, 1, 1].as_slice(), 128, 0),
        ("tile_rs/rs_gemm_f16", "rs_gemm_f16", &[2, 2, 2], 256, 3 * 128),
        ("tile_rs/rs_softmax_f32", "rs_softmax_f32", &[2, 2], 256, 128),
        ("cutile_python/vadd_f32", "vadd_f32", &[1, 1, 1], 128, 0),
        ("cutile_python/softmax_f32", "softmax_f32", &[2, 2], 256, 128),
    ];
    for (file, name, ranks, threads, hidden) in files {
        let c = cubin(&format!("{file}.cubin"));
        assert!(c.host_code, "{file}");
        assert_eq!(c.target.sm, 90);
        assert_eq!(c.entries.len(), 1);
        let e = entry(&c, name);
        assert_eq!(e.required_block, Some([threads, 1, 1]), "{file}");
        let mut expected = Vec::new();
        let mut end = 0u64;
        for &rank in ranks {
            for size in std::iter::once(8).chain(std::iter::repeat_n(4, 2 * rank)) {
                let offset = end.next_multiple_of(size);
                expected.push((offset, size));
                end = offset + size;
            }
        }
        assert_eq!(params(e), expected, "{file}");
        // Hidden tensor maps are 64-aligned in the constant bank, where the parameters begin at 0x210.
        let all = if hidden == 0 { end } else { (0x210 + end).next_multiple_of(64) - 0x210 + hidden };
        assert_eq!(e.param_bytes.map(u64::from), Some(all), "{file}");
    }
}

fn parse(bytes: &[u8]) -> Result<Cubin, FormatError> {
    Cubin::parse(bytes)
}

#[test]
fn every_truncation_is_an_error() {
    for name in ["cubin/clusters.sm_90.cubin", "tile_rs/rs_vadd_f32.cubin"] {
        let whole = artifact(name);
        parse(&whole).unwrap();
        // The program headers are the last thing in these files.
        for len in 0..whole.len() {
            let e = parse(&whole[..len]).expect_err("truncated");
            assert!(e.offset <= whole.len() as u64, "{name}, {len} bytes: {e}");
        }
    }
}

#[test]
fn errors_name_offset_value_and_limit() {
    let whole = artifact("cubin/clusters.sm_90.cubin");
    let with = |at: usize, bytes: &[u8]| {
        let mut image = whole.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        parse(&image).expect_err("changed")
    };
    let e = with(18, &62u16.to_le_bytes());
    assert_eq!((e.offset, e.what), (18, "machine"));
    assert_eq!(e.problem, Problem::Value { found: 62, expected: "190 (CUDA)" });
    assert_eq!(e.to_string(), "byte 18: machine: found 0x3e, expected 190 (CUDA)");

    let len = whole.len() as u64;
    let e = with(40, &(len + 1).to_le_bytes());
    assert_eq!(e.problem, Problem::Beyond { end: len + 65, limit: len });
    let e = with(40, &u64::MAX.to_le_bytes());
    assert_eq!(e.problem, Problem::Beyond { end: u64::MAX, limit: len });
    // Program headers.
    let e = with(32, &(len - 1).to_le_bytes());
    assert_eq!((e.offset, e.what), (len - 1, "program headers"));
    // Number of sections.
    let e = with(60, &u16::MAX.to_le_bytes());
    assert_eq!(e.what, "section headers");
    // Section name table.
    let e = with(62, &500u16.to_le_bytes());
    assert_eq!(e.what, "section names");
}

/// The layout of `e_flags` before CUDA 13: architecture in the low byte, `a` as 0x800.
#[test]
fn old_flags() {
    let mut image = artifact("cubin/clusters.sm_90.cubin");
    image[7] = 0x33;
    image[8] = 7;
    image[48..52].copy_from_slice(&0x005a_055au32.to_le_bytes());
    assert_eq!(parse(&image).unwrap().target.to_string(), "sm_90");
    image[48..52].copy_from_slice(&0x005a_0d5au32.to_le_bytes());
    assert_eq!(parse(&image).unwrap().target.to_string(), "sm_90a");
}

/// A table of names without an end costs no more than its limit for each symbol.
#[test]
fn names_are_limited() {
    let whole = artifact("cubin/clusters.sm_90.cubin");
    // Moves the section names (section 1) to a long run of letters behind the image.
    let mut image = whole.clone();
    let headers = u64::from_le_bytes(image[40..48].try_into().unwrap()) as usize;
    let names = headers + 64;
    let at = image.len() as u64;
    image.extend_from_slice(&vec![b'x'; 1 << 17]);
    image[names + 24..names + 32].copy_from_slice(&at.to_le_bytes());
    image[names + 32..names + 40].copy_from_slice(&(1u64 << 17).to_le_bytes());
    let e = parse(&image).expect_err("no names");
    assert_eq!(e.problem, Problem::Limit { value: 1 << 17, limit: 1 << 16 });
}
