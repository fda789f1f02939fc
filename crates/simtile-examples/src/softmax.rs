//! The Tile kernel's image for the device at hand.
//!
//! Tile IR bytecode is the kernel; a simulated driver runs it as it is. A GPU needs it compiled by `tileiras`: for compute
//! capability 9.0 the result is committed, for others a local `tileiras` is asked (`TILEIRAS`, else the search path).

use simtile::{Context, Module, ModuleError};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const BYTECODE: &[u8] = include_bytes!("../../../artifacts/tile_rs/rs_softmax_f32.tileirbc");
const CUBIN_SM_90: &[u8] = include_bytes!("../../../artifacts/tile_rs/rs_softmax_f32.cubin");

/// The loaded kernel.
pub struct Tile {
    /// The module; its kernel is `rs_softmax_f32`.
    pub module: Arc<Module>,
    /// What was loaded.
    pub origin: String,
}

/// Loads the first image that suits the device.
///
/// # Errors
/// There is none, and no compiler; or the driver's.
pub fn load(context: &Arc<Context>) -> Result<Tile, Box<dyn Error>> {
    if !context.device().is_simulated() && context.device().compute_capability()? == (9, 0) {
        let module = context.load_module(CUBIN_SM_90)?;
        return Ok(Tile { module, origin: "committed cubin for sm_90".into() });
    }
    match context.load_module(BYTECODE) {
        Ok(module) => Ok(Tile { module, origin: "bytecode, interpreted".into() }),
        // Nothing that a compiler makes would help: a simulated driver runs no machine code.
        Err(ModuleError::NeedsTileCompiler { .. }) if context.device().is_simulated() => {
            let version = context.driver().version()?;
            Err(format!(
                "the simulated driver has version {}.{}, and Tile bytecode needs 13.0: take `driver=` out of SIMTILE_SIM, or set \
                 driver=13.0",
                version / 1000,
                version % 1000 / 10
            )
            .into())
        }
        Err(ModuleError::NeedsTileCompiler { target, .. }) => {
            let (cubin, compiler) = compile(&target)?;
            let module = context.load_module(&cubin)?;
            Ok(Tile { module, origin: format!("bytecode compiled for {target} by {}", compiler.display()) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Compiles the bytecode with a local `tileiras`.
fn compile(target: &str) -> Result<(Vec<u8>, PathBuf), String> {
    let compiler = find_compiler().ok_or_else(|| {
        format!(
            "the committed Tile cubin is for sm_90 and this device is {target}: set TILEIRAS to the path of tileiras \
             13.3 or newer to compile the kernel here, or SIMTILE_DRIVER=sim to simulate"
        )
    })?;
    let folder = std::env::temp_dir().join(format!("inter_kernel-{}", std::process::id()));
    let result = compile_in(&folder, &compiler, target);
    // The folder is ours alone; what stays behind if this fails is a few kilobytes.
    let _ = std::fs::remove_dir_all(&folder);
    result.map(|cubin| (cubin, compiler))
}

fn compile_in(folder: &Path, compiler: &Path, target: &str) -> Result<Vec<u8>, String> {
    let (input, output) = (folder.join("softmax.tileirbc"), folder.join("softmax.cubin"));
    let io = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(io)?;
    std::fs::write(&input, BYTECODE).map_err(io)?;
    let mut command = Command::new(compiler);
    command.arg(format!("--gpu-name={target}")).arg(&input).arg("-o").arg(&output);
    let run = command.output().map_err(|error| format!("{}: {error}", compiler.display()))?;
    if !run.status.success() {
        let log = String::from_utf8_lossy(&run.stderr);
        return Err(format!("{} failed for {target}: {}", compiler.display(), log.trim()));
    }
    std::fs::read(&output).map_err(io)
}

fn find_compiler() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TILEIRAS").filter(|path| !path.is_empty()) {
        return Some(named.into());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join("tileiras")).find(|path| path.is_file())
}
