//! A kernel launch, resolved and checked, and how it runs.

use super::stale::Pointer;
use crate::check::{AccessLog, Locate};
use crate::core::Core;
use crate::exec::{
    DeviceTraits, ExecContext, FaultReason, Finding, GridDependency, KernelFault, LaunchSpec, Program,
};
use crate::memory::{DeviceView, FaultKind, MemoryKind};
use crate::report::Report;
use core::ffi::c_char;
use simtile_driver::sys::{CUfunction, CUresult};
use simtile_sync::atomic::AtomicBool;
use simtile_sync::{Arc, Mutex};
use std::collections::{BTreeMap, BTreeSet};

/// A loaded image: the program and where its variables lie. Lives as long as a launch needs it, also
/// after the module was unloaded.
pub(crate) struct Loaded {
    pub(crate) program: Arc<dyn Program>,
    /// Addresses of the program's variables, by their number.
    pub(crate) globals: Vec<u64>,
    pub(crate) traits: DeviceTraits,
}

impl Loaded {
    /// Addresses of the variables in managed memory, by their number.
    pub(crate) fn managed(&self) -> BTreeMap<usize, u64> {
        let all = self.program.globals().iter().zip(&self.globals).enumerate();
        all.filter(|(_, (global, _))| global.managed)
            .map(|(number, (_, &address))| (number, address))
            .collect()
    }
}

/// A kernel launch.
#[derive(Clone)]
pub(crate) struct Launch {
    /// As the call named it.
    pub(crate) function: CUfunction,
    /// Uid of the function's context.
    pub(crate) context: u64,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) kernel: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// It may start while the kernel before it still runs. It starts late, which is always allowed; the race checker knows.
    pub(crate) programmatic: bool,
    pub(crate) params: Vec<u8>,
    /// Instead of its stream's.
    pub(crate) priority: Option<i32>,
    /// Attributes without an effect here, by number: a node shows them.
    pub(crate) hints: BTreeMap<u32, [c_char; 64]>,
    /// How many multiprocessors it may use, if not all.
    pub(crate) multiprocessors: Option<u32>,
    /// What the host said that it accesses, if it said anything.
    pub(crate) declared: Option<crate::check::Declared>,
    /// Pointers among the parameters.
    pub(crate) pointers: Vec<Pointer>,
}

/// Where and for whom a launch runs.
pub(crate) struct Place<'a> {
    pub(crate) device: i32,
    pub(crate) context: u64,
    /// Submission number.
    pub(crate) id: u64,
    /// The stream's name in reports.
    pub(crate) stream: &'a str,
    pub(crate) cancel: &'a AtomicBool,
    /// Where accesses are noted, if the checker wants them.
    pub(crate) log: Option<&'a AccessLog>,
}

/// Bytes of the workspace of cooperative grids.
const GRID_WORKSPACE: u64 = 64 << 10;
/// Most places of one launch that findings are told of.
const MOST_FINDINGS: usize = 100;

impl Launch {
    pub(crate) fn name(&self) -> &str {
        self.loaded.program.kernels().get(self.kernel).map_or("?", |kernel| kernel.name.as_str())
    }

    /// What the kernel's memory instructions are in words.
    pub(crate) fn locate(&self) -> Locate {
        let (loaded, kernel) = (self.loaded.clone(), self.kernel);
        Arc::new(move |site| loaded.program.place(kernel, site))
    }

    /// What the kernel does about those before and behind it.
    pub(crate) fn dependency(&self) -> GridDependency {
        self.loaded.program.dependency(self.kernel)
    }

    /// Where each parameter lies in `params`.
    pub(crate) fn param_offsets(&self) -> impl Iterator<Item = usize> {
        let kernel = self.loaded.program.kernels().get(self.kernel);
        kernel.into_iter().flat_map(|kernel| &kernel.params).map(|param| param.offset as usize)
    }

    /// Runs the kernel to its end.
    pub(crate) fn run(&self, core: &Core, place: &Place<'_>) -> Result<(), KernelFault> {
        let &Place { device, context, id: launch_id, stream, cancel, log } = place;
        let spec = LaunchSpec {
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            cooperative: self.cooperative,
            params: &self.params,
            launch_id,
        };
        let workspace = if self.cooperative {
            let allocation = core.space.allocate(MemoryKind::Internal, device, GRID_WORKSPACE);
            if let Some(allocation) = &allocation {
                let (backing, offset) = allocation.backing();
                backing.mark_written(offset, GRID_WORKSPACE);
            }
            allocation
        } else {
            None
        };
        // A loop finds the same thing over and over: each place in the kernel is told once a launch.
        let told = Mutex::new(BTreeSet::new());
        let report = |finding: Finding| {
            let place = (std::mem::discriminant(&finding.kind), finding.site.instruction.clone());
            let place = format!("{place:?}");
            let mut told = told.lock();
            if told.len() >= MOST_FINDINGS || !told.insert(place) {
                return;
            }
            drop(told);
            if super::run::is_lost(&core.state.lock(), context) {
                return;
            }
            core.report(Report::finding(finding).on_stream(Some(stream.to_owned())));
        };
        let print = |bytes: &[u8]| core.printf.write(context, bytes);
        let set_condition = |condition: u64, value: u32| {
            let mut state = core.state.lock();
            let known = state.graphs.conditions.get_mut(&condition);
            let Some(known) = known.filter(|known| known.context == context) else { return false };
            known.value = Some(value);
            true
        };
        let result = self.loaded.program.run(
            self.kernel,
            &spec,
            &ExecContext {
                memory: DeviceView { log, ..DeviceView::new(&core.space, device) },
                globals: &self.loaded.globals,
                grid_workspace: workspace.as_ref().map_or(0, |allocation| allocation.base),
                step_limit: core.config.step_limit,
                cancel,
                seed: core.config.seed ^ launch_id.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                workers: core.kernel_workers(),
                check_uninitialised: core.config.checks.uninitialised,
                print: &print,
                report: &report,
                set_condition: &set_condition,
                device: DeviceTraits {
                    multiprocessors: self.multiprocessors.unwrap_or(self.loaded.traits.multiprocessors),
                    ..self.loaded.traits
                },
            },
        );
        if let Some(allocation) = workspace {
            // It was mapped above and nobody else knows it.
            let _ = core.space.release(allocation.base);
        }
        result
    }
}

/// The code that the real driver returns from then on.
pub(crate) fn fault_code(reason: &FaultReason) -> CUresult {
    match reason {
        FaultReason::Memory(fault) => match fault.kind {
            FaultKind::Misaligned => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            _ => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        },
        FaultReason::Space { .. } => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        FaultReason::Trap | FaultReason::StandIn { .. } => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        FaultReason::Assert(_) => CUresult::CUDA_ERROR_ASSERT,
        FaultReason::StepLimit(_) | FaultReason::Deadlock(_) => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        FaultReason::StackOverflow => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        FaultReason::IllegalInstruction(_) => CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        FaultReason::Cancelled => CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    }
}
