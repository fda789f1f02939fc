//! Tile bytecode: read whole with the feature `tile`, else its header and the bounds of its sections.

#[cfg(feature = "tile")]
use crate::{EntryInfo, Param};
use crate::{Globals, ImageError, ImageInfo, ImageKind};

const MAGIC: &[u8] = b"\x7FTileIR\0";

pub(super) fn is_tile(image: &[u8]) -> bool {
    image.starts_with(MAGIC)
}

pub(super) fn check(image: &[u8]) -> Result<ImageInfo, ImageError> {
    const SUPPORTED: [(u8, u8); 2] = [(13, 2), (13, 5)];
    let Some(&[major, minor]) = image.get(8..10).and_then(|v| v.first_chunk::<2>()) else {
        return Err(ImageError::TileHeader { len: image.len() });
    };
    let found = (major, minor);
    if found < SUPPORTED[0] || found > SUPPORTED[1] {
        return Err(ImageError::TileVersion { found, supported: SUPPORTED });
    }
    if image.len() < 12 {
        return Err(ImageError::TileHeader { len: image.len() });
    }
    #[cfg(feature = "tile")]
    let entries = entries_of(&crate::tile::read(image).map_err(ImageError::Tile)?);
    #[cfg(not(feature = "tile"))]
    let entries = {
        sections(image).map_err(ImageError::TileSections)?;
        Vec::new()
    };
    Ok(ImageInfo {
        kind: ImageKind::TileBytecode,
        entries,
        entries_known: cfg!(feature = "tile"),
        target: None,
        version: Some((major.into(), minor.into())),
        is_tile: true,
        globals: Globals::Unknown,
        members: Vec::new(),
    })
}

#[cfg(feature = "tile")]
fn entries_of(module: &cutile_ir::ir::Module) -> Vec<EntryInfo> {
    use cutile_ir::ir::{Attribute, Type};
    let entry = |op: &cutile_ir::ir::OpId| {
        let mut name = None;
        let mut params = None;
        for (key, value) in &module.op(*op).attributes {
            match (key.as_str(), value) {
                ("sym_name", Attribute::String(s)) => name = Some(s.clone()),
                ("function_type", Attribute::Type(Type::Func(f))) => params = params_of(&f.inputs),
                _ => {}
            }
        }
        Some(EntryInfo {
            name: name?,
            params,
            max_threads: Some(1),
            required_block: Some([1; 3]),
            required_cluster: None,
            explicit_cluster: false,
            registers: None,
            shared_bytes: None,
            local_bytes: None,
        })
    };
    module.functions.iter().filter_map(entry).collect()
}

/// Scalars and addresses, each at its own alignment; `None` if there is anything else.
#[cfg(feature = "tile")]
fn params_of(inputs: &[cutile_ir::ir::Type]) -> Option<Vec<Param>> {
    use cutile_ir::ir::{TileElementType, Type};
    let mut end = 0u64;
    let param = |ty: &Type| {
        let Type::Tile(tile) = ty.without_pointer_attribute() else { return None };
        let (size, pointer) = match &tile.element_type {
            TileElementType::Scalar(s) => (s.byte_width() as u64, false),
            TileElementType::Pointer(_) => (8, true),
        };
        if !tile.shape.is_empty() {
            return None;
        }
        let offset = end.next_multiple_of(size);
        end = offset + size;
        // At most eight.
        Some(Param { name: None, offset, size, align: Some(size as u32), pointer: Some(pointer) })
    };
    inputs.iter().map(param).collect()
}

/// Follows the sections up to the end marker. Their order and format: see `crate::tile`.
#[cfg(not(feature = "tile"))]
fn sections(image: &[u8]) -> Result<(), crate::FormatError> {
    use crate::bytes::{Bytes, Problem, error};

    let bytes = Bytes::new(image);
    let varint = |at: &mut u64, what| {
        let start = *at;
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = bytes.u8(*at, what)?;
            *at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(error(start, what, Problem::Malformed("it does not fit in 63 bits")))
    };
    let mut at = 12;
    loop {
        let id = bytes.u8(at, "section id")?;
        at += 1;
        match id & 0x7F {
            0 if id == 0 => break,
            1..=7 => {}
            _ => {
                let problem = Problem::Value { found: (id & 0x7F).into(), expected: "0 to 7" };
                return Err(error(at - 1, "section id", problem));
            }
        }
        let length = varint(&mut at, "section length")?;
        if id & 0x80 != 0 {
            let alignment = varint(&mut at, "section alignment")?;
            if !alignment.is_power_of_two() || alignment > 4096 {
                let problem = Problem::Value { found: alignment, expected: "a power of two up to 4096" };
                return Err(error(at, "section alignment", problem));
            }
            // `at` is at most the image's length.
            at = at.next_multiple_of(alignment);
        }
        bytes.part(at, length, "section")?;
        at += length;
    }
    if bytes.len() != at {
        return Err(error(at, "end marker", Problem::Malformed("bytes follow it")));
    }
    Ok(())
}
