//! Tests through the table, as host code would call it.

mod capture;
mod crowd;
mod explored;
mod graphs;
mod host_watch;
mod launches;
mod managed;
mod mapped;
mod memory;
mod offered;
mod planted;
mod pools;
mod profiles;
pub(crate) mod program;
mod programs;
mod races;
mod rules;
mod sites;
mod streams;
mod stuck;

use crate::{Builder, Mode, Simulator};
use simtile_driver::Driver;
use simtile_driver::sys::*;
use std::time::Duration;

/// How long a test waits for what must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Calls an entry and gives its code.
macro_rules! code {
    ($rig:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let driver: simtile_driver::Driver = $rig.driver;
        // SAFETY: the test passes null or valid pointers.
        unsafe { driver.$entry($($arg),*) }
    }};
}

/// Calls an entry that must succeed.
macro_rules! ok {
    ($rig:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let code = code!($rig, $entry($($arg),*));
        assert_eq!(code, simtile_driver::sys::CUresult::CUDA_SUCCESS, stringify!($entry));
    }};
}
pub(crate) use {code, ok};

/// A simulator with a current primary context of device 0.
pub(crate) struct Rig {
    pub(crate) sim: Simulator,
    pub(crate) driver: Driver,
    pub(crate) context: CUcontext,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Simulator::builder())
    }

    /// One rig a mode.
    pub(crate) fn modes() -> [Self; 2] {
        [Mode::Fast, Mode::Fifo].map(|mode| Self::with(Simulator::builder().mode(mode)))
    }

    pub(crate) fn with(builder: Builder) -> Self {
        let sim = builder.quiet().capture_printf().build();
        let mut rig = Self { driver: sim.driver(), sim, context: CUcontext::NULL };
        ok!(rig, cuInit(0));
        let mut context = CUcontext::NULL;
        ok!(rig, cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(rig, cuCtxSetCurrent(context));
        rig.context = context;
        rig
    }

    pub(crate) fn stream(&self) -> CUstream {
        let mut stream = CUstream::NULL;
        ok!(self, cuStreamCreate(&mut stream, 1));
        stream
    }

    pub(crate) fn blocking_stream(&self) -> CUstream {
        let mut stream = CUstream::NULL;
        ok!(self, cuStreamCreate(&mut stream, 0));
        stream
    }

    pub(crate) fn event(&self) -> CUevent {
        let mut event = CUevent::NULL;
        ok!(self, cuEventCreate(&mut event, 0));
        event
    }

    /// Records a new event on a stream.
    pub(crate) fn mark(&self, stream: CUstream) -> CUevent {
        let event = self.event();
        ok!(self, cuEventRecord(event, stream));
        event
    }

    /// Whether an event is still pending.
    pub(crate) fn pending(&self, event: CUevent) -> bool {
        match code!(self, cuEventQuery(event)) {
            CUresult::CUDA_SUCCESS => false,
            CUresult::CUDA_ERROR_NOT_READY => true,
            other => panic!("cuEventQuery: {other:?}"),
        }
    }

    /// Waits until a condition holds.
    pub(crate) fn soon(&self, mut holds: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + SOON;
        while !holds() {
            assert!(std::time::Instant::now() < end, "it did not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a call on another thread with the same current context.
    pub(crate) fn on_thread<T: Send>(&self, run: impl FnOnce(&Self) -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    ok!(self, cuCtxSetCurrent(self.context));
                    run(self)
                })
                .join()
                .unwrap()
        })
    }
}

/// Device memory that the tests of launches write to.
impl Rig {
    pub(crate) fn memory(&self, bytes: u64) -> std::sync::Arc<crate::memory::Allocation> {
        let kind = crate::memory::MemoryKind::Device;
        let allocation = self.sim.core().space.allocate(kind, 0, bytes).unwrap();
        let (backing, offset) = allocation.backing();
        backing.mark_written(offset, bytes);
        allocation
    }

    pub(crate) fn word(&self, memory: &crate::memory::Allocation, index: u64) -> u32 {
        let (backing, offset) = memory.backing();
        u32::from_ne_bytes(backing.load::<4>(offset + 4 * index))
    }

    pub(crate) fn set_word(&self, memory: &crate::memory::Allocation, index: u64, value: u32) {
        let (backing, offset) = memory.backing();
        backing.store::<4>(offset + 4 * index, value.to_ne_bytes());
    }

    /// Loads the test program.
    pub(crate) fn module(&self) -> CUmodule {
        let mut module = CUmodule::NULL;
        ok!(self, cuModuleLoadData(&mut module, program::IMAGE.as_ptr().cast()));
        module
    }

    pub(crate) fn function(&self, module: CUmodule, name: &str) -> CUfunction {
        let mut function = CUfunction::NULL;
        let name = std::ffi::CString::new(name).unwrap();
        ok!(self, cuModuleGetFunction(&mut function, module, name.as_ptr()));
        function
    }

    /// Launches with 8-byte and 4-byte parameters as the test program's kernels take them.
    pub(crate) fn launch(
        &self,
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic: u32,
        stream: CUstream,
        params: &[u64],
    ) -> CUresult {
        let mut list: Vec<*mut core::ffi::c_void> =
            params.iter().map(|value| core::ptr::from_ref(value).cast_mut().cast()).collect();
        let list = if list.is_empty() { core::ptr::null_mut() } else { list.as_mut_ptr() };
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let extra = core::ptr::null_mut();
        code!(self, cuLaunchKernel(function, gx, gy, gz, bx, by, bz, dynamic, stream, list, extra))
    }

    /// Launches one thread, which must be accepted.
    pub(crate) fn run(&self, function: CUfunction, stream: CUstream, params: &[u64]) {
        assert_eq!(self.launch(function, [1; 3], [1; 3], 0, stream, params), CUresult::CUDA_SUCCESS);
    }
}

impl Rig {
    /// A driver without devices, not initialised.
    pub(crate) fn with_none() -> Self {
        let sim = Simulator::builder().devices(0).quiet().build();
        Self { driver: sim.driver(), sim, context: CUcontext::NULL }
    }
}
