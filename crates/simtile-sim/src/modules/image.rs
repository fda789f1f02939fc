//! From an image's bytes to a program: of what kind it is, and which code CUDA gives for what is wrong with it.

use super::extent::TILE_MAGIC;
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

/// The newest PTX of the first driver that takes Tile bytecode.
const OLDEST_WITH_TILE: (u32, u32) = (9, 0);
/// Name of the section with host code, which only Tile cubins have.
const TILE_SECTION: &[u8] = b"\0.nv.host\0";

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
        return crate::modules::load_tile(image, traits, &stand_ins.tile_functions())
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
        // As for a kernel of which there is only machine code: there is nothing that could run.
        LoadFault::MissingFunctions { .. } => CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    };
    let mut refusal = Refusal::new(code, fault.to_string());
    if let LoadFault::MissingFunctions { calls } = fault {
        refusal.hint = Some(super::standin::registration_of_functions(calls));
    }
    refusal
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
