//! What most driver-layer tests start from: a device with its primary context current, and helpers over the
//! table that turn codes into failures.
//!
//! Nothing is given back: a simulator takes everything with it, and on a GPU the test's process ends. Tests that
//! are about giving back call the table themselves.

use crate::frame::{Check, Cx, Stop, threads};
use crate::{code, cu, kernels, ok};
use bytemuck::Pod;
use simtile_driver::sys::*;
use simtile_driver::{Driver, Entry};
use std::ffi::{CStr, c_void};
use std::time::Duration;

/// A device, its primary context current on the calling thread.
pub struct Gpu<'a> {
    cx: &'a Cx,
    /// The device.
    pub device: CUdevice,
    /// Its primary context.
    pub context: CUcontext,
    /// The kernel of gates, loaded and launched once. On a GPU a module load waits for all pending work, so
    /// no gate may find it missing. Null on simulators, whose gates need none.
    spin: CUfunction,
}

impl<'a> Gpu<'a> {
    /// Device 0.
    pub fn new(cx: &'a Cx) -> Check<Self> {
        Self::on(cx, 0)
    }

    /// The device of this ordinal.
    pub fn on(cx: &'a Cx, ordinal: i32) -> Check<Self> {
        ok!(cx, cuInit(0))?;
        let mut device = 0;
        ok!(cx, cuDeviceGet(&mut device, ordinal))?;
        let mut context = CUcontext::NULL;
        ok!(cx, cuDevicePrimaryCtxRetain(&mut context, device))?;
        ok!(cx, cuCtxSetCurrent(context))?;
        let mut gpu = Self { cx, device, context, spin: CUfunction::NULL };
        if cx.simulator().is_none() {
            gpu.spin = gpu.kernel(c"spin")?;
            let flag = gpu.pinned(1)?;
            flag.set(0, 1);
            let stream = gpu.stream()?;
            gpu.launch(gpu.spin, Shape::ONE, stream, &Args::new().with(flag.device).with(1u64))?;
            gpu.sync(stream)?;
        }
        Ok(gpu)
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        self.cx.driver()
    }

    /// The test's surroundings.
    pub fn cx(&self) -> &'a Cx {
        self.cx
    }

    /// Makes this device's context current.
    pub fn enter(&self) -> Check {
        ok!(self, cuCtxSetCurrent(self.context))
    }

    /// An attribute of the device.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Check<i32> {
        self.cx.attribute(self.device, attribute)
    }

    /// A non-blocking stream.
    pub fn stream(&self) -> Check<CUstream> {
        self.stream_with(CUstream_flags::CU_STREAM_NON_BLOCKING)
    }

    /// A stream with these flags.
    pub fn stream_with(&self, flags: CUstream_flags) -> Check<CUstream> {
        let mut stream = CUstream::NULL;
        ok!(self, cuStreamCreate(&mut stream, flags.0))?;
        Ok(stream)
    }

    /// An event without timing.
    pub fn event(&self) -> Check<CUevent> {
        self.event_with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event with these flags.
    pub fn event_with(&self, flags: CUevent_flags) -> Check<CUevent> {
        let mut event = CUevent::NULL;
        ok!(self, cuEventCreate(&mut event, flags.0))?;
        Ok(event)
    }

    /// An event recorded on a stream now.
    pub fn recorded(&self, stream: CUstream) -> Check<CUevent> {
        let event = self.event()?;
        ok!(self, cuEventRecord(event, stream))?;
        Ok(event)
    }

    /// Device memory.
    pub fn alloc(&self, bytes: usize) -> Check<CUdeviceptr> {
        let mut pointer = 0;
        ok!(self, cuMemAlloc(&mut pointer, bytes))?;
        Ok(pointer)
    }

    /// Device memory with every byte 0.
    pub fn zeroed(&self, bytes: usize) -> Check<CUdeviceptr> {
        let pointer = self.alloc(bytes)?;
        ok!(self, cuMemsetD8(pointer, 0, bytes))?;
        ok!(self, cuCtxSynchronize())?;
        Ok(pointer)
    }

    /// Device memory with these values.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Check<CUdeviceptr> {
        let pointer = self.alloc(size_of_val(values).max(1))?;
        self.write(pointer, values)?;
        Ok(pointer)
    }

    /// Copies values to device memory and waits.
    pub fn write<T: Pod>(&self, pointer: CUdeviceptr, values: &[T]) -> Check {
        ok!(self, cuMemcpyHtoD(pointer, values.as_ptr().cast(), size_of_val(values)))?;
        ok!(self, cuCtxSynchronize())
    }

    /// Copies values from device memory and waits.
    pub fn read<T: Pod>(&self, pointer: CUdeviceptr, count: usize) -> Check<Vec<T>> {
        let mut values = vec![T::zeroed(); count];
        ok!(self, cuMemcpyDtoH(values.as_mut_ptr().cast(), pointer, count * size_of::<T>()))?;
        Ok(values)
    }

    /// One word from device memory.
    pub fn word(&self, pointer: CUdeviceptr) -> Check<u32> {
        Ok(self.read::<u32>(pointer, 1)?[0])
    }

    /// Pinned host memory of this many words, all 0.
    pub fn pinned(&self, words: usize) -> Check<Pinned> {
        let mut pointer = std::ptr::null_mut();
        ok!(self, cuMemHostAlloc(&mut pointer, words * 4, CU_MEMHOSTALLOC_DEVICEMAP))?;
        let mut device = 0;
        ok!(self, cuMemHostGetDevicePointer(&mut device, pointer, 0))?;
        let pinned = Pinned { host: pointer.cast(), words, device };
        for index in 0..words {
            pinned.set(index, 0);
        }
        Ok(pinned)
    }

    /// Loads an image (text with a NUL at its end, or a binary).
    pub fn module(&self, image: &[u8]) -> Check<CUmodule> {
        let mut module = CUmodule::NULL;
        let mut log = vec![0u8; 4096];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let code = cu!(
            self,
            cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr()
            )
        );
        if code.is_ok() {
            return Ok(module);
        }
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        if code == CUresult::SIMTILE_MISSING_ENTRY {
            return crate::frame::succeeded(self.driver(), Entry::cuModuleLoadDataEx, code, "module")
                .map(|()| module);
        }
        // The simulator refuses what it does not interpret yet, and says so in the log.
        if self.cx.simulator().is_some() && log.contains("not supported by the simulator") {
            return Err(Stop::unsupported(log.trim()));
        }
        Err(Stop::fail(format!("cuModuleLoadDataEx returned {code:?} ({}): {}", code.0, log.trim())))
    }

    /// A function of a module.
    pub fn function(&self, module: CUmodule, name: &CStr) -> Check<CUfunction> {
        let mut function = CUfunction::NULL;
        ok!(self, cuModuleGetFunction(&mut function, module, name.as_ptr()))
            .map_err(|stop| stop.within(name.to_string_lossy()))?;
        Ok(function)
    }

    /// One of the basic kernels. Loads the module anew.
    pub fn kernel(&self, name: &CStr) -> Check<CUfunction> {
        self.function(self.module(kernels::BASIC)?, name)
    }

    /// Launches with the shape (grid, block) and waits for nothing.
    pub fn launch(&self, function: CUfunction, shape: Shape, stream: CUstream, args: &Args) -> Check {
        ok!(
            self,
            cuLaunchKernel(
                function,
                shape.grid[0],
                shape.grid[1],
                shape.grid[2],
                shape.block[0],
                shape.block[1],
                shape.block[2],
                shape.shared,
                stream,
                args.pointers().as_mut_ptr(),
                std::ptr::null_mut()
            )
        )
    }

    /// Waits for a stream.
    pub fn sync(&self, stream: CUstream) -> Check {
        ok!(self, cuStreamSynchronize(stream))
    }

    /// Whether everything recorded before an event has finished.
    pub fn is_done(&self, event: CUevent) -> Check<bool> {
        let code = cu!(self, cuEventQuery(event));
        if code == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        crate::frame::succeeded(self.driver(), Entry::cuEventQuery, code, "is_done")?;
        Ok(true)
    }

    /// Polls an event for at most `limit`; whether it finished.
    pub fn done_within(&self, event: CUevent, limit: Duration) -> Check<bool> {
        let end = threads::now() + limit;
        loop {
            if self.is_done(event)? {
                return Ok(true);
            }
            if threads::now() > end {
                return Ok(false);
            }
            threads::sleep(Duration::from_micros(200));
        }
    }

    /// The event has to finish soon.
    pub fn finishes(&self, event: CUevent, what: &str) -> Check {
        if self.done_within(event, SOON)? {
            return Ok(());
        }
        Err(Stop::fail(format!("{what}: did not finish within {} s", SOON.as_secs())))
    }

    /// The event must not finish for a while.
    pub fn stays_pending(&self, event: CUevent, what: &str) -> Check {
        if self.done_within(event, A_WHILE)? {
            return Err(Stop::fail(format!("{what}: finished, although something before it had not")));
        }
        Ok(())
    }

    /// Holds a stream: nothing queued on it after this starts before the gate is opened or dropped.
    pub fn gate(&self, stream: CUstream) -> Check<Gate> {
        Gate::new(self, stream)
    }

    /// A call that has to be refused because of its pointer or size.
    pub fn refuses_copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Check {
        code!(self, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoD(to, from, bytes))
    }
}

/// Long enough for anything that is not held back.
pub const SOON: Duration = Duration::from_secs(20);
/// Long enough to notice that something is not held back.
pub const A_WHILE: Duration = Duration::from_millis(60);

/// A grid of blocks, and dynamic shared memory.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}

impl Shape {
    /// One thread.
    pub const ONE: Self = Self::of(1, 1);

    /// A one-dimensional grid of one-dimensional blocks.
    pub const fn of(grid: u32, block: u32) -> Self {
        Self { grid: [grid, 1, 1], block: [block, 1, 1], shared: 0 }
    }

    /// Blocks of 256 threads for `n` elements.
    pub const fn over(n: u32) -> Self {
        Self::of(n.div_ceil(256), 256)
    }

    /// With dynamic shared memory.
    pub const fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }
}

/// Kernel arguments, each in a slot of its own.
#[derive(Clone, Default)]
pub struct Args(Vec<[u8; 8]>);

impl Args {
    /// No arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more argument: any plain value of at most 8 bytes.
    pub fn with<T: Pod>(mut self, value: T) -> Self {
        const { assert!(size_of::<T>() <= 8) }
        let mut slot = [0; 8];
        slot[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.0.push(slot);
        self
    }

    /// The array of pointers that a launch takes. Valid while `self` is.
    pub fn pointers(&self) -> Vec<*mut c_void> {
        self.0.iter().map(|slot| slot.as_ptr().cast_mut().cast()).collect()
    }
}

/// Words of pinned host memory. Never freed, see the module.
#[derive(Clone, Copy)]
pub struct Pinned {
    host: *mut u32,
    words: usize,
    /// The address for the device.
    pub device: CUdeviceptr,
}

// SAFETY: the memory is never freed while a test runs, and is only accessed by volatile loads and stores of
// whole words, as memory that a device shares has to be.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// The host address.
    pub fn host(&self) -> *mut c_void {
        self.host.cast()
    }

    /// The word number `index` (0 beyond the end).
    pub fn get(&self, index: usize) -> u32 {
        if index >= self.words {
            return 0;
        }
        // SAFETY: in bounds, and the memory lives (see the type).
        unsafe { self.host.add(index).read_volatile() }
    }

    /// Sets the word number `index` (nothing beyond the end).
    pub fn set(&self, index: usize, value: u32) {
        if index < self.words {
            // SAFETY: as above.
            unsafe { self.host.add(index).write_volatile(value) }
        }
    }

    /// All words.
    pub fn to_vec(&self) -> Vec<u32> {
        (0..self.words).map(|index| self.get(index)).collect()
    }
}

/// A stream held back. On a GPU by a kernel that spins on a word of pinned memory, with a limit; on a simulator
/// in this process by its own tool.
pub struct Gate {
    flag: Option<Pinned>,
    simulated: Option<simtile_sim::Gate>,
}

/// Rounds of the spinning kernel: each takes a microsecond or two, so it gives up after half a minute.
const SPIN_LIMIT: u64 = 20_000_000;

impl Gate {
    fn new(gpu: &Gpu<'_>, stream: CUstream) -> Check<Self> {
        if let Some(simulator) = gpu.cx.simulator() {
            let simulated = simulator
                .gate(stream)
                .map_err(|code| Stop::fail(format!("the simulator gave no gate for {stream:?}: {code:?}")))?;
            return Ok(Self { flag: None, simulated: Some(simulated) });
        }
        let flag = gpu.pinned(1)?;
        gpu.launch(gpu.spin, Shape::ONE, stream, &Args::new().with(flag.device).with(SPIN_LIMIT))?;
        Ok(Self { flag: Some(flag), simulated: None })
    }

    /// Lets the stream go on.
    pub fn open(mut self) {
        self.release();
    }

    fn release(&mut self) {
        if let Some(flag) = self.flag.take() {
            flag.set(0, 1);
        }
        drop(self.simulated.take());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.release();
    }
}
