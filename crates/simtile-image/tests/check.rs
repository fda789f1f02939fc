//! `check` on every committed image.

mod common;

use common::{artifact, images};
use simtile_image::{ImageError, ImageKind, Target, check};

#[test]
fn every_artifact_passes() {
    for (name, image) in images() {
        let info = check(&image).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = match name.rsplit('.').next() {
            Some("ptx") => ImageKind::Ptx,
            Some("cubin") => ImageKind::Cubin,
            Some("fatbin") => ImageKind::Fatbin,
            _ => ImageKind::TileBytecode,
        };
        assert_eq!(info.kind, expected, "{name}");
        if info.entries_known {
            assert!(!info.entries.is_empty(), "{name}");
        }
        assert!(info.entries.iter().all(|e| e.params.is_some()), "{name}");
    }
}

#[test]
fn ptx_text_rules() {
    let text = artifact("ptx/saxpy.ptx");
    let info = check(&text).unwrap();
    assert_eq!(info.version, Some((9, 0)));
    assert_eq!(info.target, Some(Target { sm: 90, suffix: None }));
    let entry = &info.entries[0];
    assert_eq!(entry.name, "saxpy");
    let params: Vec<_> = entry.params.iter().flatten().map(|p| (p.offset, p.size)).collect();
    assert_eq!(params, [(0, 4), (4, 4), (8, 8), (16, 8)]);

    let mut with_nul = text.clone();
    with_nul.push(0);
    assert_eq!(check(&with_nul).unwrap(), info);
    with_nul.push(0);
    assert!(matches!(check(&with_nul), Err(ImageError::Nul { offset, .. }) if offset == text.len()));

    let third_line = text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).unwrap().0 + 1;
    for (byte, expected) in [
        (0, ImageError::Nul { offset: third_line, line: 3 }),
        (0xFF, ImageError::Utf8 { offset: third_line, line: 3 }),
    ] {
        let mut bad = text.clone();
        bad[third_line] = byte;
        assert_eq!(check(&bad), Err(expected));
    }
    let error = check(b"hello").unwrap_err();
    assert!(matches!(&error, ImageError::Ptx(e) if e.line == 1));
    assert!(error.may_be_newer());
    assert_eq!(check(b""), Err(ImageError::Empty));
}

#[test]
fn directives_agree_between_ptx_and_cubin() {
    for name in ["directives", "clusters"] {
        let ptx = check(&artifact(&format!("cubin/{name}.ptx"))).unwrap();
        let cubin = check(&artifact(&format!("cubin/{name}.sm_90.cubin"))).unwrap();
        assert_eq!(ptx.entries.len(), cubin.entries.len());
        for p in &ptx.entries {
            let c = cubin.entries.iter().find(|c| c.name == p.name).unwrap();
            let layout = |e: &simtile_image::EntryInfo| -> Vec<(u64, u64)> {
                e.params.iter().flatten().map(|p| (p.offset, p.size)).collect()
            };
            assert_eq!(layout(p), layout(c), "{}", p.name);
            assert_eq!(p.max_threads, c.max_threads, "{}", p.name);
            assert_eq!(p.required_block, c.required_block, "{}", p.name);
            assert_eq!(p.required_cluster, c.required_cluster, "{}", p.name);
            assert_eq!(p.explicit_cluster, c.explicit_cluster, "{}", p.name);
        }
    }
}

#[test]
fn tile_cubins_are_launched_with_blocks_of_one() {
    let info = check(&artifact("tile_rs/rs_gemm_f16.cubin")).unwrap();
    assert!(info.is_tile);
    assert_eq!(info.entries[0].required_block, Some([1, 1, 1]));
    assert_eq!(info.entries[0].max_threads, Some(1));
}

/// The bytecode and the cubin made from it name the same parameters at the same places.
#[cfg(feature = "tile")]
#[test]
fn tile_bytecode_agrees_with_its_cubin() {
    for name in [
        "tile_rs/rs_vadd_f32",
        "tile_rs/rs_gemm_f16",
        "tile_rs/rs_softmax_f32",
        "cutile_python/vadd_f32",
        "cutile_python/softmax_f32",
    ] {
        let bytecode = check(&artifact(&format!("{name}.tileirbc"))).unwrap();
        let cubin = check(&artifact(&format!("{name}.cubin"))).unwrap();
        assert!(bytecode.is_tile && bytecode.entries_known);
        let (b, c) = (&bytecode.entries[0], &cubin.entries[0]);
        assert_eq!(b.name, c.name);
        let layout = |e: &simtile_image::EntryInfo| -> Vec<(u64, u64)> {
            e.params.iter().flatten().map(|p| (p.offset, p.size)).collect()
        };
        assert_eq!(layout(b), layout(c), "{name}");
        assert_eq!(b.params.as_ref().unwrap()[0].pointer, Some(true));
    }
}

#[test]
fn tile_headers() {
    let mut image = artifact("tile_rs/rs_vadd_f32.tileirbc");
    for (major, minor) in [(13, 1), (12, 9), (13, 6), (14, 0)] {
        image[8] = major;
        image[9] = minor;
        let error = check(&image).unwrap_err();
        assert_eq!(error, ImageError::TileVersion { found: (major, minor), supported: [(13, 2), (13, 5)] });
        assert!(error.to_string().contains(&format!("{major}.{minor}")), "{error}");
        assert_eq!(error.may_be_newer(), (major, minor) > (13, 5));
    }
    for len in 8..12 {
        image[8] = 13;
        image[9] = 3;
        assert_eq!(check(&image[..len]), Err(ImageError::TileHeader { len }));
    }
}

#[test]
fn targets() {
    let parse = |s| Target::parse(s).map(|t| t.to_string());
    assert_eq!(parse("sm_90"), Some("sm_90".into()));
    assert_eq!(parse("sm_100f"), Some("sm_100f".into()));
    assert_eq!(parse("compute_120a"), Some("sm_120a".into()));
    for bad in ["", "sm_", "sm_9x", "sm_90ab", "90", "sm_-1", "sm_+9", "sm_99999999999"] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

#[test]
fn variables_are_told_from_constants() {
    use simtile_image::Globals;
    let of = |name: &str| check(&artifact(name)).unwrap().globals;
    assert_eq!(of("ptx/saxpy.ptx"), Globals::None);
    // A counter beside the tables of the mathematics.
    assert_eq!(of("ptx/math.ptx"), Globals::Mutable);
    // Strings of `printf` are constants, wherever compilers put them.
    assert_eq!(of("ptx/printf.ptx"), Globals::Constant);
    assert_eq!(of("ptx/rust_kernels.ptx"), Globals::Constant);
    assert_eq!(of("cubin/directives.sm_90.cubin"), of("cubin/directives.ptx"));
    let text = ".version 8.0 .target sm_90 .address_size 64\n.const .u32 c = 1;\n.entry k() { ret; }";
    assert_eq!(check(text.as_bytes()).unwrap().globals, Globals::Constant);
    assert!(Globals::None < Globals::Constant && Globals::Unknown < Globals::Mutable);
}
