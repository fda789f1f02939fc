//! The Tile IR interpreter.
//!
//! [`load`] and [`load_module`] check a module and decode it once into a compact form; running it executes each tile block
//! over dense arrays, blocks in parallel on [`ExecContext::workers`] threads.
//!
//! * **Entry**: the function type is the parameter list; each parameter lies at its natural alignment; block
//!   (1,1,1); the grid is the tile grid.
//! * **Floats**: `f32` and `f64` arithmetic is correctly rounded in the mode that the operation names; `f16` and `bf16`
//!   results are computed exactly and rounded once. Functions such as `exp` are computed in double precision and rounded, whatever
//!   approximation the module allows. NaN results of `f32`, `f16` and `bf16` are canonical. Conversions to formats
//!   without infinity saturate (from integers: NaN).
//! * **Reductions** combine neighbours (elements 2i and 2i + 1) until one is left, each step rounded to the element
//!   type; **scans** run one element after the other; identities are not used, as combining with one changes nothing.
//! * **Matrix multiplication** adds fused products in ascending order of the depth to an `f32` accumulator (`f64` for `f64`,
//!   wrapping `i32` for integers); an `f16` result is rounded once, at the end of the operation.
//! * **Memory**: bounds, lifetime and alignment are faults; reads of bytes that nobody wrote, and `assume` and `inbounds` that do
//!   not hold, are findings. Loads outside of a view without padding, and masked-out pointers without a padding operand, give NaN or
//!   `0x5a…`, so that using them shows. Operations of a block run in program order, which satisfies every order of tokens.
//! * **Integers** wrap. Division by zero gives all ones (remainder: the dividend); a shift by the width or more gives 0, or the
//!   sign.
//! * **Other promises** to the compiler (`overflow`, optimisation hints) are read and change nothing.
//!   Elements of 4 bits lie two in a byte, the lower half first; they are reached through views, since a pointer names a byte.
//! * **Multicast memory** is that of the simulator's multicast objects. Reductions other than sums have numbers whose meaning
//!   is not published; they are refused at load.
//! * **Calls** of functions that a tile library supplies run the Rust function that is registered under that name
//!   ([`TileFunctions`]); without one the module is refused at load, with the line that registers it.
//! * **Architecture**: operations that only newer GPUs have run as well, except `valid_check`, which is refused at load by name
//!   and number.
//! * **Limits**: 2^24 elements a tile, 2 GiB of tiles, 2^20 operations and 64 levels of nesting an entry, 256 MiB of
//!   constants a module, rank 16, 64 MiB of `alloca` a running block, 1 MiB of text a print.
//! * **Steps** ([`ExecContext::step_limit`]): one an operation, and one more for every 2^16 elements or products.
//!
//! `docs/tile-ops.md` lists every operation.

mod assume;
mod attrs;
mod call;
mod data;
mod elementwise;
mod float;
mod lower;
mod lower_ops;
mod memory;
mod mma;
mod multimem;
mod nibbles;
mod op;
mod print;
mod run;
mod schedule;
mod shape;
mod types;

#[cfg(test)]
mod tests;

use crate::exec::{
    At, DeviceTraits, ExecContext, FaultReason, GlobalInfo, KernelFault, KernelInfo, LaunchSpec, LoadFault,
    Program, Site,
};
use cutile_ir::ir::Module;
use simtile_image::tile::TileError;

pub(crate) use call::panic_text;
pub use call::{TileCall, TileConstant, TileFunctions, TileType, TileValue};
pub use cutile_ir::ir::ScalarType;
pub(crate) use op::Function;
pub use types::Elem as TileElement;

struct TileProgram {
    kernels: Vec<op::Kernel>,
    infos: Vec<KernelInfo>,
    globals: Vec<GlobalInfo>,
}

/// Loads bytecode of the versions that `simtile_image::tile` reads, with no functions of libraries.
///
/// # Errors
/// As [`load_with`].
pub fn load(bytes: &[u8], traits: DeviceTraits) -> Result<Box<dyn Program>, LoadFault> {
    load_with(bytes, traits, &TileFunctions::new())
}

/// Loads bytecode of the versions that `simtile_image::tile` reads.
///
/// # Errors
/// Not readable bytecode, a version that is not known, or as [`load_module`].
pub fn load_with(
    bytes: &[u8],
    traits: DeviceTraits,
    functions: &TileFunctions,
) -> Result<Box<dyn Program>, LoadFault> {
    let module = simtile_image::tile::read(bytes).map_err(|error| match error {
        TileError::Version { found, oldest, newest } => {
            LoadFault::Version { found: found.to_string(), supported: format!("{oldest} to {newest}") }
        }
        TileError::Unsupported { offset, what } => {
            LoadFault::Unsupported { at: At::Byte(offset as u64), what }
        }
        other => LoadFault::Malformed { at: At::Byte(other.offset() as u64), what: other.to_string() },
    })?;
    load_module(module, traits, functions)
}

/// Loads a module.
///
/// # Errors
/// Malformed, or an operation, type or attribute that is not built; with its name and number. A call of a function that is
/// not registered.
pub fn load_module(
    module: Module,
    _traits: DeviceTraits,
    functions: &TileFunctions,
) -> Result<Box<dyn Program>, LoadFault> {
    // The module's arenas panic on ids of another module, and nothing in its API lets us ask first.
    let lowered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lower::lower(&module, functions)))
        .unwrap_or_else(|_| {
            Err(LoadFault::Malformed {
                at: At::Module,
                what: "the module refers to parts that it does not have".into(),
            })
        })?;
    Ok(Box::new(TileProgram { kernels: lowered.kernels, infos: lowered.infos, globals: lowered.globals }))
}

impl Program for TileProgram {
    fn kernels(&self) -> &[KernelInfo] {
        &self.infos
    }

    fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    fn place(&self, kernel: usize, site: u16) -> Option<String> {
        let kernel = self.kernels.get(kernel)?;
        let site = *kernel.window_sites.get(usize::from(site).checked_sub(1)?)?;
        let site = kernel.sites.get(site as usize)?;
        let text = format!("{} (operation {})", site.name, site.number);
        Some(match &site.source {
            Some((file, line)) => format!("{text} ({file}:{line})"),
            None => text,
        })
    }

    fn run(
        &self,
        kernel: usize,
        launch: &LaunchSpec<'_>,
        context: &ExecContext<'_>,
    ) -> Result<(), KernelFault> {
        let fault = |text: String| {
            let kernel = self.infos.get(kernel).map(|k| k.name.clone()).unwrap_or_default();
            KernelFault {
                site: Box::new(Site { kernel, ..Site::default() }),
                reason: FaultReason::IllegalInstruction(text),
            }
        };
        let (Some(code), Some(info)) = (self.kernels.get(kernel), self.infos.get(kernel)) else {
            return Err(fault(format!("kernel {kernel} of {}", self.kernels.len())));
        };
        if launch.block != [1, 1, 1] {
            return Err(fault(format!(
                "launched with block {:?}; Tile kernels have block (1,1,1)",
                launch.block
            )));
        }
        let params = info
            .params
            .iter()
            .zip(&code.params)
            .map(|(param, elem)| {
                let bytes =
                    launch.params.get(param.offset as usize..(param.offset + param.bytes) as usize)?;
                let value = bytes.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
                let value = if elem.bits() == 1 { u64::from(value != 0) } else { value };
                Some(run::Val::from(data::Data::splat(*elem, 1, value)))
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| fault(format!("{} parameter bytes are too few", launch.params.len())))?;
        schedule::run(code, launch, context, &params)
    }
}
