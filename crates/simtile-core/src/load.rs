//! Loading: from an image, or a set of them, to a module.
//!
//! An image is checked before the driver sees it, because the driver trusts the offsets in it. Loading happens here and
//! in [`Module::load_function`], never in a launch: the driver stops every launch of the context while it loads.

use crate::error::{CallError, Family, ModuleError};
use crate::{Context, Module};
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_driver::{DriverError, call};
use simtile_image::{ImageInfo, ImageKind, Target};
use simtile_sync::Arc;
use smallvec::SmallVec;
use std::path::Path;

/// Bytes of each of the driver's two logs.
const LOG_BYTES: usize = 8 << 10;
/// The compiler's highest level of optimisation, which is its default.
const MOST_OPTIMIZED: u32 = 4;

/// What the driver's compiler is asked for when it compiles PTX. A simulated driver interprets; there they change nothing.
///
/// ```
/// use simtile_core::JitOptions;
/// let options = JitOptions::new().max_registers(64).line_info();
/// assert_eq!(options.max_registers, Some(64));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct JitOptions {
    /// Most registers of a thread, at least 1.
    pub max_registers: Option<u32>,
    /// 0 (none) to 4 (all, the default).
    pub optimization_level: Option<u32>,
    /// Which line of the source an instruction came from, for profilers and sanitizers.
    pub line_info: bool,
    /// All that a debugger needs.
    pub debug_info: bool,
}

impl JitOptions {
    /// The compiler's defaults.
    pub const fn new() -> Self {
        Self { max_registers: None, optimization_level: None, line_info: false, debug_info: false }
    }

    /// With at most this many registers a thread.
    pub const fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }

    /// With this level of optimisation, 0 to 4.
    pub const fn optimization_level(mut self, level: u32) -> Self {
        self.optimization_level = Some(level);
        self
    }

    /// With line information.
    pub const fn line_info(mut self) -> Self {
        self.line_info = true;
        self
    }

    /// With debug information.
    pub const fn debug_info(mut self) -> Self {
        self.debug_info = true;
        self
    }

    /// The options that were set: in words, CUDA's name, value.
    fn list(&self) -> SmallVec<[(&'static str, CUjit_option, u32); 4]> {
        let flag = |set: bool| set.then_some(1);
        [
            ("max_registers", CUjit_option::CU_JIT_MAX_REGISTERS, self.max_registers),
            ("optimization_level", CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, self.optimization_level),
            ("line_info", CUjit_option::CU_JIT_GENERATE_LINE_INFO, flag(self.line_info)),
            ("debug_info", CUjit_option::CU_JIT_GENERATE_DEBUG_INFO, flag(self.debug_info)),
        ]
        .into_iter()
        .filter_map(|(name, option, value)| Some((name, option, value?)))
        .collect()
    }

    /// Refuses what has no effect on an image of this kind, or no meaning.
    fn check(&self, kind: ImageKind, image: &str) -> Result<(), ModuleError> {
        let bad = |name: &str, value: u32, why: String| {
            Err(ModuleError::BadOption { image: image.into(), option: format!("{name} = {value}"), why })
        };
        for (name, option, value) in self.list() {
            // A fat binary may hold PTX; which of its images the driver takes is not known here.
            if !matches!(kind, ImageKind::Ptx | ImageKind::Fatbin) {
                let why = format!("does not apply to a {}, which is not compiled", kind_name(kind));
                return bad(name, value, why);
            }
            match option {
                CUjit_option::CU_JIT_MAX_REGISTERS if value == 0 => {
                    return bad(name, value, "is below 1".into());
                }
                CUjit_option::CU_JIT_OPTIMIZATION_LEVEL if value > MOST_OPTIMIZED => {
                    return bad(name, value, format!("is above {MOST_OPTIMIZED}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Context {
    /// Loads an image of any kind: PTX, cubin, fat binary, or, on a simulated driver, Tile IR bytecode.
    ///
    /// Stalls: the driver waits for all pending work of the context, and launches of other threads block meanwhile.
    ///
    /// # Errors
    /// [`ModuleError::BadImage`] if the image is not whole, [`ModuleError::WrongArchitecture`],
    /// [`ModuleError::NeedsTileCompiler`], or [`ModuleError::Load`] with the driver's log.
    pub fn load_module(self: &Arc<Self>, image: &[u8]) -> Result<Arc<Module>, ModuleError> {
        self.load_named(image, None, &JitOptions::new())
    }

    /// The same with options for the driver's compiler.
    ///
    /// Stalls as [`Context::load_module`] does.
    ///
    /// # Errors
    /// [`ModuleError::BadOption`] for options of an image that is not compiled, and for values out of range; else as
    /// [`Context::load_module`].
    pub fn load_module_with(
        self: &Arc<Self>,
        image: &[u8],
        options: &JitOptions,
    ) -> Result<Arc<Module>, ModuleError> {
        self.load_named(image, None, options)
    }

    /// Loads the image that suits the device best, of several with the same kernels: a cubin for exactly this device, one
    /// for an older one that it runs too, a fat binary or Tile IR bytecode, PTX. Of those of a rank the newest architecture
    /// comes first, then the order given. What the driver does not take, such as PTX newer than it, is passed over.
    ///
    /// Stalls as [`Context::load_module`] does, for each image that is tried.
    ///
    /// # Errors
    /// [`ModuleError::NoImageFits`] says of each image why not; failures that are not the image's end the search.
    pub fn load_best_module(self: &Arc<Self>, images: &[&[u8]]) -> Result<Arc<Module>, ModuleError> {
        let device = self.target();
        let (mut fitting, mut refused) = (Vec::new(), Vec::new());
        for image in images {
            let name = || format!("image of {} bytes", image.len());
            match simtile_image::check(image) {
                Err(error) => {
                    refused.push(ModuleError::BadImage { image: name(), why: error.to_string() }.to_string())
                }
                Ok(info) => match rank(&info, device) {
                    Some(rank) => fitting.push((rank, *image)),
                    None => {
                        let made_for =
                            info.target.map_or_else(|| "nothing".into(), |target| target.to_string());
                        let kind = kind_name(info.kind);
                        refused.push(format!("{kind} of {} bytes is for {made_for}", image.len()));
                    }
                },
            }
        }
        fitting.sort_by_key(|(rank, _)| *rank);
        let mut tried = Vec::new();
        for (_, image) in fitting {
            match self.load_module(image) {
                Err(error) if is_of_the_image(&error) => tried.push(error.to_string()),
                done => return done,
            }
        }
        tried.append(&mut refused);
        Err(ModuleError::NoImageFits { device: name_of(device), refused: tried })
    }

    /// The same as [`Context::load_module`].
    ///
    /// # Errors
    /// As [`Context::load_module`].
    pub fn load_module_from_image(self: &Arc<Self>, image: &[u8]) -> Result<Arc<Module>, ModuleError> {
        self.load_module(image)
    }

    /// Loads PTX text.
    ///
    /// # Errors
    /// As [`Context::load_module`].
    pub fn load_module_from_ptx_src(self: &Arc<Self>, text: &str) -> Result<Arc<Module>, ModuleError> {
        match simtile_image::check(text.as_bytes()) {
            Ok(info) if info.kind != ImageKind::Ptx => Err(ModuleError::BadImage {
                image: "PTX text".into(),
                why: format!("this is a {}, not PTX", kind_name(info.kind)),
            }),
            _ => self.load_module(text.as_bytes()),
        }
    }

    /// Loads an image from a file.
    ///
    /// # Errors
    /// [`ModuleError::File`], else as [`Context::load_module`].
    pub fn load_module_from_file(
        self: &Arc<Self>,
        path: impl AsRef<Path>,
    ) -> Result<Arc<Module>, ModuleError> {
        let path = path.as_ref();
        let image = std::fs::read(path)
            .map_err(|source| ModuleError::File { path: path.display().to_string(), source })?;
        self.load_named(&image, Some(path), &JitOptions::new())
    }

    fn load_named(
        self: &Arc<Self>,
        image: &[u8],
        path: Option<&Path>,
        options: &JitOptions,
    ) -> Result<Arc<Module>, ModuleError> {
        let describe = |kind: &str| match path {
            Some(path) => format!("{kind} {}", path.display()),
            None => format!("{kind} of {} bytes", image.len()),
        };
        let info = simtile_image::check(image)
            .map_err(|error| ModuleError::BadImage { image: describe("image"), why: error.to_string() })?;
        let name = describe(kind_name(info.kind));
        options.check(info.kind, &name)?;
        let raw = self.load_raw(image, options).map_err(|(error, log)| match error {
            CallError::Driver(source) if is_foreign_image(source) => self.foreign(&info, &name, log, source),
            CallError::Driver(source) => ModuleError::Load { image: name.clone(), log, source },
            other => ModuleError::from_call(other, name.clone()),
        })?;
        Ok(Module::new(raw, self, info, name))
    }

    /// What it means that the driver knows nothing to do with an image that is whole.
    fn foreign(&self, info: &ImageInfo, name: &str, log: String, source: DriverError) -> ModuleError {
        let (image, device) = (name.to_string(), self.target());
        match (info.kind, info.target) {
            (ImageKind::TileBytecode, _) => ModuleError::NeedsTileCompiler { image, target: name_of(device) },
            (_, Some(made_for)) if device.is_some() && rank(info, device).is_none() => {
                let (made_for, device) = (made_for.to_string(), name_of(device));
                ModuleError::WrongArchitecture { image, made_for, device, source }
            }
            _ => ModuleError::Load { image, log, source },
        }
    }

    /// Loads a checked image. The error carries the driver's log.
    fn load_raw(&self, image: &[u8], jit: &JitOptions) -> Result<CUmodule, (CallError, String)> {
        // PTX must end with a NUL. The copy is also as aligned as the driver may assume of an image.
        let mut bytes = Vec::with_capacity(image.len() + 16);
        bytes.extend_from_slice(image);
        bytes.resize(image.len() + 16, 0);
        let mut errors = vec![0u8; LOG_BYTES];
        let mut infos = vec![0u8; LOG_BYTES];
        let number = |number: usize| core::ptr::without_provenance_mut::<c_void>(number);
        let mut options: SmallVec<[CUjit_option; 8]> = SmallVec::new();
        let mut values: SmallVec<[*mut c_void; 8]> = SmallVec::new();
        for (option, value) in [
            (CUjit_option::CU_JIT_ERROR_LOG_BUFFER, errors.as_mut_ptr().cast()),
            (CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES)),
            (CUjit_option::CU_JIT_INFO_LOG_BUFFER, infos.as_mut_ptr().cast()),
            (CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES)),
        ] {
            options.push(option);
            values.push(value);
        }
        for (_, option, value) in jit.list() {
            options.push(option);
            values.push(number(value as usize));
        }
        let loaded = self.with_current(|driver| {
            let mut raw = CUmodule::NULL;
            let count = options.len() as u32;
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            // SAFETY: the image is whole and ends with a NUL; the logs have the stated sizes; the context is current.
            unsafe {
                call!(driver, cuModuleLoadDataEx(&mut raw, bytes.as_ptr().cast(), count, options, values))
            }?;
            Ok(raw)
        });
        loaded.map_err(|error| {
            let text = |log: &[u8]| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                String::from_utf8_lossy(&log[..end]).trim().to_string()
            };
            let log = [text(&errors), text(&infos)].into_iter().filter(|log| !log.is_empty());
            (error, log.collect::<Vec<_>>().join("\n"))
        })
    }

    /// The device's architecture: 90 for `sm_90`. `None` if the driver does not say.
    fn target(&self) -> Option<u32> {
        let (major, minor) = self.capabilities().ok()?.compute_capability;
        Some(major * 10 + minor)
    }
}

fn name_of(device: Option<u32>) -> String {
    device.map_or_else(|| "this device".into(), |sm| format!("sm_{sm}"))
}

/// How well an image suits a device, best first: rank, then newest. `None`: its code does not run there.
fn rank(info: &ImageInfo, device: Option<u32>) -> Option<(u8, u32)> {
    let Some((target, device)) = info.target.zip(device) else {
        // Fat binaries and Tile bytecode say nothing; the driver decides.
        return Some((2, 0));
    };
    let (Target { sm, suffix, .. }, same_major) = (target, target.sm / 10 == device / 10);
    let runs = match (info.kind, suffix) {
        (_, Some('a')) => sm == device,
        // Of a family, or native code: this major version, from its minor version on.
        (_, Some(_)) | (ImageKind::Cubin, None) => same_major && sm <= device,
        _ => sm <= device,
    };
    let rank = match info.kind {
        ImageKind::Cubin if sm == device => 0,
        ImageKind::Cubin => 1,
        _ => 3,
    };
    runs.then_some((rank, u32::MAX - sm))
}

/// Whether another image may load where this one did not.
fn is_of_the_image(error: &ModuleError) -> bool {
    match error {
        ModuleError::BadImage { .. }
        | ModuleError::WrongArchitecture { .. }
        | ModuleError::NeedsTileCompiler { .. } => true,
        ModuleError::Load { source, .. } => is_foreign_image(*source),
        _ => false,
    }
}

/// Whether a driver says: this is no image that I know.
fn is_foreign_image(error: DriverError) -> bool {
    matches!(
        error.code(),
        CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_INVALID_SOURCE
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    )
}

fn kind_name(kind: ImageKind) -> &'static str {
    match kind {
        ImageKind::Ptx => "PTX",
        ImageKind::Cubin => "cubin",
        ImageKind::Fatbin => "fat binary",
        ImageKind::TileBytecode => "Tile IR bytecode",
        _ => "image",
    }
}
