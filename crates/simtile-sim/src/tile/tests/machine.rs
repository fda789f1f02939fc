//! Memory, arguments and everything else that a kernel needs to run.

use crate::exec::{DeviceTraits, ExecContext, Finding, FindingKind, KernelFault, LaunchSpec, Program};
use crate::memory::{AddressSpace, DeviceView, MemoryKind};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;

pub(super) const TRAITS: DeviceTraits =
    DeviceTraits { compute_capability: (9, 0), multiprocessors: 132, warp_size: 32, newest_ptx: (9, 0) };

/// A kernel argument.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    Ptr(u64),
    I32(i32),
    I64(i64),
    F32(f32),
}

impl Arg {
    fn push(self, out: &mut Vec<u8>) {
        let bytes: &[u8] = match &self {
            Arg::Ptr(v) => &v.to_le_bytes(),
            Arg::I32(v) => &v.to_le_bytes(),
            Arg::I64(v) => &v.to_le_bytes(),
            Arg::F32(v) => &v.to_le_bytes(),
        };
        out.resize(out.len().next_multiple_of(bytes.len()), 0);
        out.extend_from_slice(bytes);
    }
}

/// One device.
pub(super) struct Machine {
    pub(super) space: AddressSpace,
    pub(super) steps: u64,
    pub(super) workers: usize,
    pub(super) seed: u64,
    pub(super) cancel: AtomicBool,
    pub(super) findings: Mutex<Vec<Finding>>,
    pub(super) printed: Mutex<String>,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self {
            space: AddressSpace::new(),
            steps: 1_000_000,
            workers: 2,
            seed: 0,
            cancel: AtomicBool::new(false),
            findings: Mutex::default(),
            printed: Mutex::default(),
        }
    }

    /// Memory that nobody wrote.
    pub(super) fn alloc(&self, bytes: usize) -> u64 {
        self.space.allocate(MemoryKind::Device, 0, bytes as u64).expect("host memory").base
    }

    /// Memory with these values.
    pub(super) fn put<T: bytemuck::Pod>(&self, values: &[T]) -> u64 {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let allocation = self.space.allocate(MemoryKind::Device, 0, bytes.len() as u64).expect("host memory");
        let (backing, offset) = allocation.backing();
        backing.write(offset, bytes);
        backing.mark_written(offset, bytes.len() as u64);
        allocation.base
    }

    pub(super) fn get<T: bytemuck::Pod + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut out = vec![T::default(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        let allocation = self.space.locate(address, bytes.len() as u64).expect("mapped");
        let (backing, offset) = allocation.backing();
        backing.read(offset + (address - allocation.base), bytes);
        out
    }

    /// Runs the first kernel of a program.
    pub(super) fn run(&self, program: &dyn Program, grid: [u32; 3], args: &[Arg]) -> Result<(), KernelFault> {
        let mut params = Vec::new();
        args.iter().for_each(|arg| arg.push(&mut params));
        let globals: Vec<u64> = program
            .globals()
            .iter()
            .map(|global| {
                let address = self.put(&global.init);
                assert!(address.is_multiple_of(global.align));
                address
            })
            .collect();
        let print = |bytes: &[u8]| self.printed.lock().push_str(&String::from_utf8_lossy(bytes));
        let report = |finding: Finding| self.findings.lock().push(finding);
        let context = ExecContext {
            memory: DeviceView::new(&self.space, 0),
            globals: &globals,
            grid_workspace: 0,
            step_limit: self.steps,
            cancel: &self.cancel,
            seed: self.seed,
            workers: self.workers,
            check_uninitialised: true,
            print: &print,
            set_condition: &|_, _| false,
            report: &report,
            device: TRAITS,
        };
        let launch = LaunchSpec {
            grid,
            block: [1, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            cooperative: false,
            params: &params,
            launch_id: 1,
        };
        program.run(0, &launch, &context)
    }

    /// As [`Machine::run`], and nothing may be wrong.
    pub(super) fn ok(&self, program: &dyn Program, grid: [u32; 3], args: &[Arg]) {
        if let Err(fault) = self.run(program, grid, args) {
            panic!("{fault}");
        }
        let findings = self.findings.lock();
        assert!(findings.is_empty(), "{:?}", findings.first());
    }

    /// Kinds of what was found so far.
    pub(super) fn found(&self) -> Vec<FindingKind> {
        self.findings.lock().iter().map(|f| f.kind.clone()).collect()
    }
}

/// Numbers that look random and are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ (self.0 >> 29)
    }

    /// In [-1, 1).
    pub(super) fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32) / f32::powi(2.0, 23) - 1.0
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }
}
