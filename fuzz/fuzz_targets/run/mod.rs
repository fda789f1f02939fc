//! Running what loads: plausible arguments, 100 000 steps, bounded memory. Any end is fine but a crash or no end.

use simtile_sim::exec::{DeviceTraits, ExecContext, Finding, KernelModel, LaunchSpec, Program};
use simtile_sim::memory::{AddressSpace, DeviceView, MemoryKind};
use std::sync::atomic::AtomicBool;

/// The device that programs are loaded for.
pub const TRAITS: DeviceTraits =
    DeviceTraits { compute_capability: (9, 0), multiprocessors: 132, warp_size: 32, newest_ptx: (9, 0) };
/// Steps of one thread or block.
const STEPS: u64 = 100_000;
/// Most bytes of a module's globals, and of a kernel's shared and local memory.
const MOST: u64 = 1 << 20;

fn put(space: &AddressSpace, kind: MemoryKind, bytes: u64, init: &[u8]) -> Option<u64> {
    let memory = space.allocate(kind, 0, bytes.max(init.len() as u64).max(1))?;
    let (backing, offset) = memory.backing();
    backing.write(offset, init);
    backing.mark_written(offset, memory.bytes);
    Some(memory.base)
}

/// Runs every kernel of a program.
pub fn run(program: &dyn Program) {
    let space = AddressSpace::new();
    let mut globals = Vec::new();
    for info in program.globals() {
        // Larger ones are no fault of the program; they are only slow to clear.
        if info.bytes > MOST {
            return;
        }
        let Some(address) = put(&space, MemoryKind::ModuleGlobal, info.bytes, &info.init) else { return };
        globals.push(address);
    }
    let data: Vec<u8> = (0..1u32 << 14).flat_map(|i| (i % 61).to_le_bytes()).collect();
    let Some(buffer) = put(&space, MemoryKind::Device, 0, &data) else { return };
    let Some(workspace) = put(&space, MemoryKind::Internal, 64 << 10, &[]) else { return };
    for (number, kernel) in program.kernels().iter().enumerate().take(4) {
        let end = kernel.params.iter().map(|p| u64::from(p.offset) + u64::from(p.bytes)).max().unwrap_or(0);
        if end > 1 << 16 || u64::from(kernel.local_bytes).max(kernel.static_shared_bytes.into()) > MOST {
            continue;
        }
        let mut params = vec![0u8; end as usize];
        for p in &kernel.params {
            let value = if p.bytes == 8 { buffer } else { 48 };
            let bytes = value.to_le_bytes();
            let n = (p.bytes as usize).min(8);
            params[p.offset as usize..][..n].copy_from_slice(&bytes[..n]);
        }
        let block = match kernel.model {
            KernelModel::Tile => [1, 1, 1],
            _ => kernel.required_block.filter(|b| b.iter().product::<u32>() <= 64).unwrap_or([64, 1, 1]),
        };
        let cluster = kernel.required_cluster.filter(|c| *c == [2, 1, 1]).unwrap_or([1, 1, 1]);
        let (cancel, print, report) = (AtomicBool::new(false), |_: &[u8]| {}, |_: Finding| {});
        let context = ExecContext {
            memory: DeviceView::new(&space, 0),
            globals: &globals,
            grid_workspace: workspace,
            step_limit: STEPS,
            cancel: &cancel,
            seed: number as u64,
            workers: 1,
            check_uninitialised: true,
            print: &print,
            report: &report,
            device: TRAITS,
            set_condition: &|_, _| false,
        };
        let launch = LaunchSpec {
            grid: [2, 1, 1],
            block,
            cluster,
            dynamic_shared_bytes: 1024,
            cooperative: number % 2 == 1,
            params: &params,
            launch_id: 1,
        };
        if let Err(fault) = program.run(number, &launch, &context) {
            assert!(!fault.to_string().contains("internal error"), "{fault}");
        }
    }
}
