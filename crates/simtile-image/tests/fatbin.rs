//! Fat binaries, plain and compressed.

mod common;

use common::artifact;
use simtile_image::fatbin::{Compression, EntryKind, entries, pick};
use simtile_image::{ImageError, ImageKind, Problem, check};

#[test]
fn lists_and_picks() {
    for (mode, compression) in
        [("none", None), ("lz4", Some(Compression::Lz4)), ("zstd", Some(Compression::Zstd))]
    {
        let image = artifact(&format!("fatbin/clusters.{mode}.fatbin"));
        let list = entries(&image).unwrap();
        let seen: Vec<_> = list.iter().map(|e| (e.kind, e.target.to_string(), e.compression)).collect();
        assert_eq!(
            seen,
            [
                (EntryKind::Elf, "sm_90".to_owned(), compression),
                (EntryKind::Elf, "sm_100a".to_owned(), compression),
                (EntryKind::Ptx, "sm_90".to_owned(), compression),
            ]
        );
        assert_eq!(list[2].version, (9, 0));

        let chosen = |sm| pick(&list, sm).map(|e| (e.kind, e.target.sm));
        assert_eq!(chosen(90), Some((EntryKind::Elf, 90)));
        assert_eq!(chosen(100), Some((EntryKind::Elf, 100)));
        // sm_100a runs nowhere else; PTX is compiled for anything newer.
        assert_eq!(chosen(103), Some((EntryKind::Ptx, 90)));
        assert_eq!(chosen(120), Some((EntryKind::Ptx, 90)));
        assert_eq!(chosen(89), None);

        let originals =
            ["cubin/clusters.sm_90.cubin", "cubin/directives.sm_100a.cubin", "cubin/clusters.ptx"];
        for (e, original) in list.iter().zip(originals) {
            let original = artifact(original);
            match e.image() {
                Ok(data) => {
                    if e.kind == EntryKind::Ptx {
                        // fatbinary rewrites white space and drops comments.
                        assert_eq!(check(&data).unwrap(), check(&original).unwrap());
                        continue;
                    }
                    assert!(*data == *original, "{mode}: {:?}", e.target);
                }
                Err(error) => {
                    assert!(compression.is_some() && !cfg!(feature = "decompress"), "{error}");
                    assert!(error.to_string().contains("feature `decompress`"), "{error}");
                }
            }
        }
    }
}

#[test]
fn check_reads_the_members() {
    let image = artifact("fatbin/clusters.none.fatbin");
    let info = check(&image).unwrap();
    assert_eq!(info.kind, ImageKind::Fatbin);
    assert!(info.entries_known);
    let names: Vec<_> = info.entries.iter().map(|e| e.name.as_str()).collect();
    // Each name once, though `pair` is in the cubin and in the PTX.
    assert_eq!(names.iter().filter(|n| **n == "pair").count(), 1);
    assert!(names.contains(&"large"));
    assert_eq!(info.members.len(), 3);

    for mode in ["lz4", "zstd"] {
        let info = check(&artifact(&format!("fatbin/clusters.{mode}.fatbin"))).unwrap();
        assert_eq!(info.entries_known, cfg!(feature = "decompress"));
        assert_eq!(info.entries.is_empty(), !cfg!(feature = "decompress"));
        assert!(info.members.iter().all(|m| m.compressed));
    }
}

#[test]
fn ptx_alone() {
    let image = artifact("fatbin/ptx_90a.fatbin");
    let list = entries(&image).unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].target.to_string(), "sm_90a");
    let info = check(&image).unwrap();
    assert_eq!(info.entries.len(), 2);
    assert!(pick(&list, 90).is_some() && pick(&list, 100).is_none());
}

#[test]
fn containers_follow_each_other() {
    let one = artifact("fatbin/ptx_90a.fatbin");
    let mut two = one.clone();
    two.extend_from_slice(&one);
    assert_eq!(entries(&two).unwrap().len(), 2);
    two.extend_from_slice(&[0; 8]);
    assert_eq!(entries(&two).unwrap().len(), 2);
    two.push(1);
    assert!(entries(&two).is_err());
}

#[test]
fn every_truncation_is_an_error() {
    for mode in ["none", "lz4"] {
        let whole = artifact(&format!("fatbin/clusters.{mode}.fatbin"));
        entries(&whole).unwrap();
        for len in 0..whole.len() {
            entries(&whole[..len]).expect_err("truncated");
        }
    }
}

#[test]
fn a_member_that_is_not_whole_is_named() {
    let mut image = artifact("fatbin/clusters.none.fatbin");
    let second = entries(&image).unwrap()[1].offset as usize;
    // Its machine.
    image[second + 18] = 0;
    match check(&image) {
        Err(ImageError::Member { index: 1, error }) => {
            let ImageError::Elf(e) = *error else { panic!("{error}") };
            assert_eq!(e.what, "machine");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrapper_is_refused_with_the_reason() {
    let mut wrapper = 0x4662_43B1u32.to_le_bytes().to_vec();
    wrapper.extend_from_slice(&[1, 0, 0, 0]);
    wrapper.extend_from_slice(&[0x10; 16]);
    match check(&wrapper) {
        Err(ImageError::Fatbin(e)) => {
            assert!(matches!(e.problem, Problem::Malformed(m) if m.contains("pointer")))
        }
        other => panic!("{other:?}"),
    }
}

#[cfg(feature = "decompress")]
#[test]
fn damaged_and_boasting_entries_are_errors() {
    for mode in ["lz4", "zstd"] {
        let whole = artifact(&format!("fatbin/clusters.{mode}.fatbin"));
        // The first entry's decompressed size stands at the end of its header.
        let at = 16 + 56;
        for size in [0u64, 1, 5063, 5065, 1 << 24, u64::MAX] {
            let mut image = whole.clone();
            image[at..at + 8].copy_from_slice(&size.to_le_bytes());
            let list = entries(&image).unwrap();
            list[0].image().expect_err("another size");
        }
        let data = entries(&whole).unwrap()[0].offset as usize;
        for i in 0..200 {
            let mut image = whole.clone();
            image[data + i] ^= 0xFF;
            // Either is fine; it must return.
            let _ = entries(&image).unwrap()[0].image();
        }
    }
}
