//! cudarc's safe API, with its event tracking on.

use crate::pairs::{Result, Side};
use crate::raw::{BYTES, PTX, THREADS, together};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use std::time::Duration;

const CONFIG: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };

/// Errors as text.
fn text<T>(result: core::result::Result<T, impl core::fmt::Debug>) -> Result<T> {
    result.map_err(|error| format!("cudarc: {error:?}"))
}

/// Stream, kernel, buffers.
pub struct Cudarc {
    stream: Arc<CudaStream>,
    function: CudaFunction,
    out: CudaSlice<u8>,
    inputs: Arc<[CudaSlice<u8>; 3]>,
}

impl Cudarc {
    /// On device 0's primary context, with a stream of its own (so that tracking is active).
    pub fn new() -> Result<Self> {
        let context = text(CudaContext::new(0))?;
        // SAFETY: on is the safe setting.
        unsafe { context.enable_event_tracking() };
        let module = text(context.load_module(cudarc::nvrtc::Ptx::from_src(PTX)))?;
        let stream = text(context.new_stream())?;
        let buffer = || text(stream.alloc_zeros::<u8>(BYTES));
        let (out, inputs) = (buffer()?, Arc::new([buffer()?, buffer()?, buffer()?]));
        text(stream.synchronize())?;
        Ok(Self { function: text(module.load_function("k4"))?, stream, out, inputs })
    }

    /// The same kernel and inputs on another stream, with an output of its own.
    fn again(&self) -> Result<Self> {
        let stream = text(self.stream.context().new_stream())?;
        let out = text(stream.alloc_zeros::<u8>(BYTES))?;
        text(stream.synchronize())?;
        Ok(Self { stream, function: self.function.clone(), out, inputs: Arc::clone(&self.inputs) })
    }

    #[inline]
    fn launch(&mut self) -> Result {
        let n = 1024_u64;
        let [a, b, c] = &*self.inputs;
        let mut builder = self.stream.launch_builder(&self.function);
        builder.arg(&mut self.out).arg(a).arg(b).arg(c).arg(&n);
        // SAFETY: `k4` stores nothing for this n.
        text(unsafe { builder.launch(CONFIG) }).map(drop)
    }
}

/// Row `submit`.
pub struct Submit(pub Cudarc);

impl Side for Submit {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.0.launch()
    }
    fn settle(&mut self) -> Result {
        text(self.0.stream.synchronize())
    }
}

/// Row `launch_and_wait`.
pub struct LaunchAndWait(pub Cudarc);

impl Side for LaunchAndWait {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.0.launch()?;
        text(self.0.stream.synchronize())
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// Row `alloc_drop`.
pub struct AllocDrop(pub Cudarc);

impl Side for AllocDrop {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        // SAFETY: never read.
        text(unsafe { self.0.stream.alloc::<u8>(BYTES) }).map(drop)
    }
    fn settle(&mut self) -> Result {
        text(self.0.stream.synchronize())
    }
}

/// Row `threads_8`: the three inputs are common.
pub struct Threads(Vec<std::sync::Mutex<Cudarc>>);

impl Threads {
    /// One stream a thread.
    pub fn new() -> Result<Self> {
        let first = Cudarc::new()?;
        Ok(Self((0..THREADS).map(|_| first.again().map(Into::into)).collect::<Result<_>>()?))
    }
}

impl Side for Threads {
    fn operation(&mut self, _: usize) -> Result {
        Err("this row times whole batches".into())
    }
    fn settle(&mut self) -> Result {
        self.0.iter().try_for_each(|one| text(one.lock().map_err(|_| "poisoned")?.stream.synchronize()))
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        together(
            &self.0,
            1,
            |one| text(one.lock().map_err(|_| "poisoned")?.stream.context().bind_to_thread()),
            // The lock is taken once a batch: it is the bench's own.
            |one| {
                let mut one = one.lock().map_err(|_| "poisoned")?;
                (0..operations).try_for_each(|_| one.launch())
            },
        )
    }
}
