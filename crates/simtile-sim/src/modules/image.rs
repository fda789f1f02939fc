//! From a pointer to an image: how long it is, what kind, and which program it becomes.

use crate::exec::{DeviceTraits, LoadFault, Program};
use crate::report::{Report, ReportKind};
use simtile_driver::sys::CUresult;
use simtile_image::{elf, fatbin};
use simtile_sync::Arc;

/// Why an image was refused: CUDA's code, and the reason in words.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: CUresult,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: CUresult, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), hint: None }
    }

    pub(crate) fn report(&self) -> Report {
        let report = Report::new(ReportKind::Image, self.text.clone());
        match &self.hint {
            Some(hint) => report.with_hint(hint.clone()),
            None => report,
        }
    }
}

/// Longest image that is read: a wrong header must not run away through memory.
const MOST_BYTES: usize = 1 << 30;
const TILE_MAGIC: [u8; 8] = *b"\x7fTileIR\0";
/// The newest PTX of the first driver that takes Tile bytecode.
const OLDEST_WITH_TILE: (u32, u32) = (9, 0);
/// Name of the section with host code, which only Tile cubins have.
const TILE_SECTION: &[u8] = b"\0.nv.host\0";
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const FATBIN_MAGIC: u32 = 0xba55_ed50;

/// Reads an image's bytes one after the other, as far as its own headers say.
struct Reader(*const u8);

impl Reader {
    /// # Safety
    /// Byte `at` belongs to the image.
    unsafe fn byte(&self, at: usize) -> u8 {
        // SAFETY: the caller's.
        unsafe { self.0.add(at).read() }
    }

    /// # Safety
    /// As `byte`, for `N` bytes.
    unsafe fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: the caller's.
        unsafe { self.0.add(at).cast::<[u8; N]>().read() }
    }

    /// Whether the image starts with these bytes. Stops at the first that differs, so that an image
    /// that is shorter is not read past its end (a text ends with a NUL).
    ///
    /// # Safety
    /// The image is an image of some kind.
    unsafe fn starts_with(&self, magic: &[u8]) -> bool {
        // SAFETY: byte `i` is there if all before it were as in an image of this kind.
        magic.iter().enumerate().all(|(i, &byte)| unsafe { self.byte(i) } == byte)
    }
}

/// The bytes of the image at `image`: as many as its headers say, for text up to its NUL.
///
/// # Safety
/// `image` points to PTX text with a NUL, Tile bytecode, a cubin or a fat binary, whole.
pub(crate) unsafe fn bytes<'a>(image: *const u8) -> Result<&'a [u8], Refusal> {
    let reader = Reader(image);
    // SAFETY: the caller's; each reader follows the headers of the kind that the magic number tells.
    unsafe {
        let len = if reader.starts_with(&TILE_MAGIC) {
            tile_length(&reader)?
        } else if reader.starts_with(&ELF_MAGIC) {
            elf_length(&reader)?
        } else if reader.starts_with(&WRAPPER_MAGIC.to_le_bytes()) {
            let container = usize::from_ne_bytes(reader.array(8));
            return bytes(std::ptr::with_exposed_provenance(container));
        } else if reader.starts_with(&FATBIN_MAGIC.to_le_bytes()) {
            let header = usize::from(u16::from_le_bytes(reader.array(6)));
            let body = u64::from_le_bytes(reader.array(8)) as usize;
            limit(header.saturating_add(body))?
        } else {
            core::ffi::CStr::from_ptr(image.cast()).count_bytes()
        };
        Ok(std::slice::from_raw_parts(image, len))
    }
}

fn limit(len: usize) -> Result<usize, Refusal> {
    if len <= MOST_BYTES {
        return Ok(len);
    }
    let text = format!("the image's header says {len} bytes; images have at most {MOST_BYTES}");
    Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, text))
}

/// # Safety
/// Tile bytecode.
unsafe fn tile_length(reader: &Reader) -> Result<usize, Refusal> {
    // Magic number, two bytes of version, two of a tag; then sections: id (bit 7: aligned), length,
    // alignment; id 0 ends.
    let mut at = 12;
    let varint = |at: &mut usize| {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            // SAFETY: the caller's: a section's header is whole.
            let byte = unsafe { reader.byte(*at) };
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        u64::MAX
    };
    loop {
        // SAFETY: the sections so far were whole, so there is another or the end marker.
        let id = unsafe { reader.byte(at) };
        at += 1;
        if id == 0 {
            return Ok(at);
        }
        // What is no section cannot be skipped: the reader of the bytes says what is wrong.
        if id & 0x7f > 15 {
            return Ok(at);
        }
        let length = varint(&mut at);
        if id & 0x80 != 0 {
            let alignment = varint(&mut at);
            if !alignment.is_power_of_two() || alignment > 4096 {
                return Ok(at);
            }
            at = at.next_multiple_of(alignment as usize);
        }
        at = limit(at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)))?;
    }
}

/// # Safety
/// A 64-bit little-endian ELF file.
unsafe fn elf_length(reader: &Reader) -> Result<usize, Refusal> {
    // SAFETY: the header of a 64-bit ELF file is 64 bytes, and its tables are where it says.
    unsafe {
        let programs = u64::from_le_bytes(reader.array(32)) as usize;
        let sections = u64::from_le_bytes(reader.array(40)) as usize;
        let program_size = usize::from(u16::from_le_bytes(reader.array(54)));
        let program_count = usize::from(u16::from_le_bytes(reader.array(56)));
        let section_size = usize::from(u16::from_le_bytes(reader.array(58)));
        let section_count = usize::from(u16::from_le_bytes(reader.array(60)));
        let after = |start: usize, size: usize, count: usize| start.saturating_add(size * count);
        let mut end = 64.max(after(programs, program_size, program_count));
        end = limit(end.max(after(sections, section_size, section_count)))?;
        for i in 0..section_count {
            if section_size < 64 {
                break;
            }
            let header = sections + i * section_size;
            let kind = u32::from_le_bytes(reader.array(header + 4));
            let offset = u64::from_le_bytes(reader.array(header + 24)) as usize;
            let size = u64::from_le_bytes(reader.array(header + 32)) as usize;
            // Kind 8 takes no room in the file.
            if kind != 8 {
                end = limit(end.max(offset.saturating_add(size)))?;
            }
        }
        Ok(end)
    }
}

/// Most bytes of parameters that a kernel may have (CUDA 12.1 and later: 32 764).
const MOST_PARAMETER_BYTES: u64 = 32_764;

/// Makes a program of an image.
pub(crate) fn load(
    image: &[u8],
    traits: DeviceTraits,
    stand_ins: &super::StandIns,
) -> Result<Arc<dyn Program>, Refusal> {
    let program = parse(image, traits, stand_ins)?;
    for kernel in program.kernels() {
        let end = kernel.params.iter().map(|p| u64::from(p.offset) + u64::from(p.bytes)).max().unwrap_or(0);
        if end > MOST_PARAMETER_BYTES {
            return Err(Refusal::new(
                CUresult::CUDA_ERROR_INVALID_IMAGE,
                format!(
                    "kernel {} has {end} bytes of parameters; at most {MOST_PARAMETER_BYTES} are allowed",
                    kernel.name
                ),
            ));
        }
    }
    Ok(program)
}

fn parse(
    image: &[u8],
    traits: DeviceTraits,
    stand_ins: &super::StandIns,
) -> Result<Arc<dyn Program>, Refusal> {
    if image.starts_with(&TILE_MAGIC) {
        if traits.newest_ptx < OLDEST_WITH_TILE {
            return Err(Refusal::new(
                CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                "a driver older than 13.0 takes no Tile bytecode",
            ));
        }
        return crate::modules::load_tile(image, traits)
            .map_err(|fault| refusal(&fault, CUresult::CUDA_ERROR_INVALID_IMAGE));
    }
    if elf::is_elf(image) {
        return cubin(image, stand_ins);
    }
    if fatbin::is_fatbin(image) {
        return fat(image, traits, stand_ins);
    }
    text(image, traits)
}

fn text(image: &[u8], traits: DeviceTraits) -> Result<Arc<dyn Program>, Refusal> {
    let text = simtile_image::ptx_text(image)
        .map_err(|error| Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, error.to_string()))?;
    // What does not even look like PTX is no image at all, as the real driver has it.
    let looks = text.contains(".version");
    let malformed = if looks { CUresult::CUDA_ERROR_INVALID_PTX } else { CUresult::CUDA_ERROR_INVALID_IMAGE };
    crate::modules::load_ptx(text, traits).map_err(|fault| refusal(&fault, malformed))
}

fn refusal(fault: &LoadFault, malformed: CUresult) -> Refusal {
    let code = match fault {
        LoadFault::Malformed { .. } => malformed,
        // Measured: PTX for a newer GPU is "invalid PTX".
        LoadFault::Target { .. } => CUresult::CUDA_ERROR_INVALID_PTX,
        LoadFault::Version { .. } => CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        LoadFault::Unsupported { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
    };
    Refusal::new(code, fault.to_string())
}

fn fat(image: &[u8], traits: DeviceTraits, stand_ins: &super::StandIns) -> Result<Arc<dyn Program>, Refusal> {
    let invalid = |error: simtile_image::FormatError| {
        Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, error.to_string())
    };
    let entries = fatbin::entries(image).map_err(invalid)?;
    let sm = traits.compute_capability.0 * 10 + traits.compute_capability.1;
    let best = |kind| entries.iter().filter(|e| e.kind == kind && e.runs_on(sm)).max_by_key(|e| e.target.sm);
    if let Some(entry) = best(fatbin::EntryKind::Ptx) {
        let data = entry.image().map_err(invalid)?;
        return text(&data, traits);
    }
    if let Some(entry) = best(fatbin::EntryKind::Elf) {
        let data = entry.image().map_err(invalid)?;
        return cubin(&data, stand_ins);
    }
    Err(Refusal::new(
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        format!("the fat binary has {} entries, none of them for sm_{sm}", entries.len()),
    ))
}

fn cubin(image: &[u8], stand_ins: &super::StandIns) -> Result<Arc<dyn Program>, Refusal> {
    let cubin = elf::Cubin::parse(image)
        .map_err(|error| Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, error.to_string()))?;
    // Tile kernels say the block that they are compiled for, and are launched with one thread.
    let tile = image.windows(TILE_SECTION.len()).any(|bytes| bytes == TILE_SECTION);
    stand_ins.program(&cubin, tile)
}
