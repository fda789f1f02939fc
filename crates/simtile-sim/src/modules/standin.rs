//! Stand-ins: Rust functions in place of kernels that exist only as machine code, and of functions that Tile code calls and
//! that libraries supply.

use super::image::Refusal;
use crate::exec::{
    ExecContext, FaultReason, GlobalInfo, KernelFault, KernelInfo, KernelModel, LaunchSpec, MissingFunction,
    ParamInfo, Program, Site,
};
use crate::memory::{DeviceView, MemoryFault, Window};
use crate::tile::{Function as TileFunction, TileFunctions, panic_text};
use simtile_driver::sys::CUresult;
use simtile_image::elf::Cubin;
use simtile_sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a stand-in sees of a launch.
pub struct StandInCall<'a> {
    /// The launch.
    pub launch: &'a LaunchSpec<'a>,
    /// Global memory as the device sees it.
    pub memory: DeviceView<'a>,
}

impl StandInCall<'_> {
    /// Parameter bytes from `offset` on.
    ///
    /// # Errors
    /// A parameter buffer that ends before.
    pub fn param<const N: usize>(&self, offset: usize) -> Result<[u8; N], String> {
        let bytes = self.launch.params.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| {
            format!("the parameters have {} bytes; {N} were asked at {offset}", self.launch.params.len())
        })
    }

    /// Reads global memory.
    ///
    /// # Errors
    /// The refused access.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let mut window = Window::new();
        let (backing, offset) =
            window.access(&self.memory, address, out.len() as u64, crate::check::Touch::Read)?;
        backing.read(offset, out);
        Ok(())
    }

    /// Writes global memory.
    ///
    /// # Errors
    /// The refused access.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let mut window = Window::new();
        let (backing, offset) =
            window.access(&self.memory, address, bytes.len() as u64, crate::check::Touch::Write)?;
        backing.write(offset, bytes);
        backing.mark_written(offset, bytes.len() as u64);
        Ok(())
    }
}

/// How a stand-in failed.
#[derive(Clone, Debug)]
pub enum StandInError {
    /// A refused access: the context is lost, as after a kernel's.
    Memory(MemoryFault),
    /// Anything else: as a kernel's assertion.
    Other(String),
}

impl From<MemoryFault> for StandInError {
    fn from(fault: MemoryFault) -> Self {
        Self::Memory(fault)
    }
}

impl From<String> for StandInError {
    fn from(text: String) -> Self {
        Self::Other(text)
    }
}

type Function = Arc<dyn Fn(&StandInCall<'_>) -> Result<(), StandInError> + Send + Sync>;

/// The registered stand-ins, by name: of kernels, and of functions that Tile code calls.
#[derive(Default)]
pub(crate) struct StandIns {
    functions: Mutex<BTreeMap<String, Function>>,
    tile: Mutex<TileFunctions>,
}

impl StandIns {
    pub(crate) fn register(&self, symbol: &str, function: Function) {
        // Dropped behind the statement, when the lock is free again: it is somebody else's code.
        let _old = self.functions.lock().insert(symbol.to_owned(), function);
    }

    pub(crate) fn register_tile(&self, symbol: &str, function: TileFunction) {
        let _old = self.tile.lock().insert(symbol, function);
    }

    /// The functions that are registered now.
    pub(super) fn tile_functions(&self) -> TileFunctions {
        self.tile.lock().clone()
    }

    /// A program for a cubin whose kernels all have stand-ins.
    pub(super) fn program(&self, cubin: &Cubin, tile: bool) -> Result<Arc<dyn Program>, Refusal> {
        let functions = self.functions.lock();
        let mut program = StandInProgram { kernels: Vec::new(), functions: Vec::new() };
        let mut missing = Vec::new();
        for entry in &cubin.entries {
            let Some(function) = functions.get(&entry.name) else {
                missing.push(entry.name.as_str());
                continue;
            };
            let params = entry.params.iter().flatten();
            program.kernels.push(KernelInfo {
                name: entry.name.clone(),
                model: if tile { KernelModel::Tile } else { KernelModel::Simt },
                params: params.map(|p| ParamInfo { offset: word(p.offset), bytes: word(p.size) }).collect(),
                static_shared_bytes: word(entry.shared_bytes),
                local_bytes: entry.local_bytes.unwrap_or(0),
                registers: entry.registers.unwrap_or(32),
                const_bytes: 0,
                virtual_architecture: None,
                max_threads: if tile { None } else { entry.max_block.map(|block| block.iter().product()) },
                required_block: if tile { None } else { entry.required_block },
                required_cluster: entry.required_cluster,
            });
            program.functions.push(function.clone());
        }
        if missing.is_empty() && !program.kernels.is_empty() {
            return Ok(Arc::new(program));
        }
        let mut refusal = Refusal::new(
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            format!("the image holds only machine code; no stand-in for: {}", missing.join(", ")),
        );
        let lines = missing.iter().map(|name| {
            format!("simulator.register_stand_in({name:?}, |call| {{ /* what the kernel does */ Ok(()) }});")
        });
        refusal.hint = Some(format!(
            "load the kernel's PTX or Tile bytecode instead, or register a stand-in before loading:\n    {}",
            lines.collect::<Vec<_>>().join("\n    ")
        ));
        Err(refusal)
    }
}

/// What to write so that functions that Tile code calls are there.
pub(super) fn registration_of_functions(missing: &[MissingFunction]) -> String {
    let lines = missing.iter().map(|call| {
        format!(
            "simulator.register_tile_function({:?}, |call| {{ /* the result tiles */ Ok(vec![]) }});",
            call.symbol
        )
    });
    format!("register a stand-in before loading:\n    {}", lines.collect::<Vec<_>>().join("\n    "))
}

/// Sizes beyond 32 bits are refused when the program is placed.
fn word(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

struct StandInProgram {
    kernels: Vec<KernelInfo>,
    functions: Vec<Function>,
}

impl Program for StandInProgram {
    fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    fn globals(&self) -> &[GlobalInfo] {
        &[]
    }

    fn run(
        &self,
        kernel: usize,
        launch: &LaunchSpec<'_>,
        context: &ExecContext<'_>,
    ) -> Result<(), KernelFault> {
        let (Some(function), Some(info)) = (self.functions.get(kernel), self.kernels.get(kernel)) else {
            return Ok(());
        };
        let fault = |reason| KernelFault {
            site: Box::new(Site {
                kernel: info.name.clone(),
                instruction: "stand-in".to_owned(),
                ..Site::default()
            }),
            reason,
        };
        let call = StandInCall { launch, memory: context.memory };
        // Somebody else's code: its panic is its kernel's fault.
        match catch_unwind(AssertUnwindSafe(|| function(&call))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(StandInError::Memory(memory))) => Err(fault(FaultReason::Memory(memory))),
            Ok(Err(StandInError::Other(text))) => Err(fault(FaultReason::Assert(text))),
            Err(payload) => {
                Err(fault(FaultReason::StandIn { symbol: info.name.clone(), problem: panic_text(&*payload) }))
            }
        }
    }
}
