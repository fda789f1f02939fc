//! PTX: decoding and interpretation.
//!
//! [`load`] decodes a module once into register-indexed instructions; [`Program::run`] executes a launch. Results
//! are those that PTX ISA defines, bit for bit: every rounding mode, `.ftz` and `.sat`. Approximate instructions are
//! computed more exactly than asked. What is not built is refused at load with its name and line.
//!
//! * `code`: decoded instructions; `decode`: the syntax tree into them;
//! * `lanes`, `soft`, `matrix`: arithmetic on whole warps, exact rounding, matrices;
//! * `exec`: groups of lanes, warps, blocks, clusters, grids; memory, atomics, barriers, printf.

mod code;
mod decode;
mod dependent;
mod exec;
mod lanes;
mod matrix;
mod soft;

use crate::exec::{
    DeviceTraits, ExecContext, GlobalInfo, GridDependency, KernelFault, KernelInfo, LaunchSpec, LoadFault,
    Program,
};
use std::sync::OnceLock;

/// Loads a PTX module for a device.
///
/// # Errors
/// Text that is not PTX, a version or target that the simulated driver does not take, or something that is
/// not built, each with its line.
pub fn load(text: &str, traits: DeviceTraits) -> Result<Box<dyn Program>, LoadFault> {
    let image = decode::image(text, &traits)?;
    let dependencies = image.entries.iter().map(|_| OnceLock::new()).collect();
    Ok(Box::new(Loaded { image, dependencies }))
}

struct Loaded {
    image: decode::Image,
    /// By kernel, once somebody asked.
    dependencies: Box<[OnceLock<GridDependency>]>,
}

impl Program for Loaded {
    fn kernels(&self) -> &[KernelInfo] {
        &self.image.kernels
    }

    fn globals(&self) -> &[GlobalInfo] {
        &self.image.globals
    }

    fn place(&self, _kernel: usize, site: u16) -> Option<String> {
        let at = *self.image.cache_places.get(usize::from(site)).filter(|_| site > 0)?;
        let (instruction, source) = exec::grid::describe(&self.image, self.image.code.get(at as usize)?);
        Some(match source {
            Some((file, line)) => format!("{instruction} ({file}:{line})"),
            None => instruction,
        })
    }

    fn dependency(&self, kernel: usize) -> GridDependency {
        let (Some(known), Some(&function)) = (self.dependencies.get(kernel), self.image.entries.get(kernel))
        else {
            return GridDependency::default();
        };
        known.get_or_init(|| dependent::dependency(&self.image, function)).clone()
    }

    fn run(
        &self,
        kernel: usize,
        launch: &LaunchSpec<'_>,
        context: &ExecContext<'_>,
    ) -> Result<(), KernelFault> {
        exec::grid::launch(&self.image, kernel, launch, context)
    }
}
