//! Checks of images of any format.

mod tile;

use crate::elf::{self, Cubin};
use crate::fatbin::{self, EntryKind};
use crate::ptx;
use crate::{EntryInfo, Globals, ImageError, ImageInfo, ImageKind, MemberInfo, Param, Target};

/// Checks a module image and lists its kernels.
///
/// The format is told by the first bytes; what has none of the magic numbers is taken for PTX text. Any input
/// is fine: the answer is an error where the image is not whole.
pub fn check(image: &[u8]) -> Result<ImageInfo, ImageError> {
    if image.is_empty() {
        Err(ImageError::Empty)
    } else if tile::is_tile(image) {
        tile::check(image)
    } else if elf::is_elf(image) {
        Cubin::parse(image).map(cubin_info).map_err(ImageError::Elf)
    } else if fatbin::is_fatbin(image) {
        check_fatbin(image)
    } else {
        check_ptx(image)
    }
}

/// PTX text without its trailing NUL: UTF-8, no other NUL.
pub fn ptx_text(image: &[u8]) -> Result<&str, ImageError> {
    let text = image.strip_suffix(b"\0").unwrap_or(image);
    let line = |offset: usize| {
        let lines = text[..offset].iter().filter(|&&b| b == b'\n').count();
        u32::try_from(lines).unwrap_or(u32::MAX).saturating_add(1)
    };
    if let Some(offset) = text.iter().position(|&b| b == 0) {
        return Err(ImageError::Nul { offset, line: line(offset) });
    }
    std::str::from_utf8(text).map_err(|e| {
        let offset = e.valid_up_to();
        ImageError::Utf8 { offset, line: line(offset) }
    })
}

fn check_ptx(image: &[u8]) -> Result<ImageInfo, ImageError> {
    let module = ptx::Module::parse(ptx_text(image)?).map_err(ImageError::Ptx)?;
    let entries = module.signatures().into_iter().map(|s| {
        let a = &s.attributes;
        let params = s.params.into_iter().map(|p| Param {
            name: Some(p.name),
            offset: p.offset,
            size: p.bytes,
            align: Some(p.align),
            // Without `.ptr` a pointer is a `.u64` like any other.
            pointer: p.pointer.is_some().then_some(true),
        });
        let most = a.required_block.or(a.max_threads);
        EntryInfo {
            name: s.name,
            params: Some(params.collect()),
            max_threads: most.map(threads),
            required_block: a.required_block,
            required_cluster: a.cluster.required,
            explicit_cluster: a.cluster.explicit,
            registers: None,
            shared_bytes: None,
            local_bytes: None,
        }
    });
    Ok(ImageInfo {
        kind: ImageKind::Ptx,
        entries: entries.collect(),
        entries_known: true,
        target: module.targets.first().and_then(|t| Target::parse(t)),
        version: Some(module.version),
        is_tile: false,
        globals: ptx_globals(&module.variables),
        members: Vec::new(),
    })
}

fn ptx_globals(variables: &[ptx::Variable]) -> Globals {
    let one = |variable: &ptx::Variable| match variable.space {
        ptx::Space::Const => Globals::Constant,
        ptx::Space::Global => Globals::of_name(&variable.name),
        _ => Globals::None,
    };
    variables.iter().map(one).max().unwrap_or(Globals::None)
}

fn threads(block: [u32; 3]) -> u32 {
    block.into_iter().fold(1, u32::saturating_mul)
}

fn cubin_info(cubin: Cubin) -> ImageInfo {
    // The driver starts a Tile kernel's own threads; a launch passes a block of one.
    let tile_block = cubin.host_code.then_some([1; 3]);
    let entries = cubin.entries.into_iter().map(|e| EntryInfo {
        name: e.name,
        params: e.params,
        max_threads: tile_block.or(e.required_block).or(e.max_block).map(threads),
        required_block: tile_block.or(e.required_block),
        required_cluster: e.required_cluster,
        explicit_cluster: e.explicit_cluster,
        registers: e.registers,
        shared_bytes: Some(e.shared_bytes),
        local_bytes: e.local_bytes,
    });
    ImageInfo {
        kind: ImageKind::Cubin,
        entries: entries.collect(),
        entries_known: true,
        target: Some(cubin.target),
        version: None,
        is_tile: cubin.host_code,
        globals: cubin.globals,
        members: Vec::new(),
    }
}

fn check_fatbin(image: &[u8]) -> Result<ImageInfo, ImageError> {
    let mut info = ImageInfo {
        kind: ImageKind::Fatbin,
        entries: Vec::new(),
        entries_known: true,
        target: None,
        version: None,
        is_tile: false,
        globals: Globals::None,
        members: Vec::new(),
    };
    let mut names = std::collections::HashSet::new();
    for (index, entry) in fatbin::entries(image).map_err(ImageError::Fatbin)?.into_iter().enumerate() {
        let compressed = entry.compression.is_some();
        let kind = match entry.kind {
            EntryKind::Ptx => Some(ImageKind::Ptx),
            EntryKind::Elf => Some(ImageKind::Cubin),
            EntryKind::Other(_) => None,
        };
        let readable = kind.is_some() && (!compressed || cfg!(feature = "decompress"));
        if readable {
            let member = |error| ImageError::Member { index, error: Box::new(error) };
            let data = entry.image().map_err(ImageError::Fatbin)?;
            let inner = match entry.kind {
                EntryKind::Elf => Cubin::parse(&data).map(cubin_info).map_err(ImageError::Elf),
                _ => check_ptx(&data),
            };
            let inner = inner.map_err(member)?;
            info.is_tile |= inner.is_tile;
            info.globals = info.globals.max(inner.globals);
            info.entries.extend(inner.entries.into_iter().filter(|e| names.insert(e.name.clone())));
        } else {
            info.entries_known = false;
            info.globals = info.globals.max(Globals::Unknown);
        }
        info.members.push(MemberInfo { kind, target: entry.target, compressed, checked: readable });
    }
    Ok(info)
}
