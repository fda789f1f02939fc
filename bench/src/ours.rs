//! simtile's safe, tracked API.

use crate::pairs::{Result, Side};
use crate::raw::{BYTES, PTX, THREADS, together};
use simtile::{Context, DeviceBuffer, Function, LaunchArgs, LaunchConfig, Runtime, Stream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONFIG: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };

/// Errors as text.
fn text<T>(result: core::result::Result<T, impl core::fmt::Display>) -> Result<T> {
    result.map_err(|error| format!("simtile: {error}"))
}

/// Context and kernel.
pub struct Ours {
    context: Arc<Context>,
    k4: Function,
}

impl Ours {
    /// On device 0's primary context.
    pub fn new() -> Result<Self> {
        let context = text(text(text(Runtime::new())?.device(0))?.primary_context())?;
        let module = text(context.load_module_from_ptx_src(PTX))?;
        Ok(Self { k4: text(module.load_function("k4"))?, context })
    }

    /// A stream with an output of its own; the inputs may be common.
    fn launcher(&self, inputs: Option<&Arc<[DeviceBuffer<u8>; 3]>>) -> Result<Launcher> {
        let stream = text(self.context.new_stream())?;
        let buffer = || text(DeviceBuffer::<u8>::zeroed(&stream, BYTES));
        let out = buffer()?;
        let inputs = match inputs {
            Some(inputs) => Arc::clone(inputs),
            None => Arc::new([buffer()?, buffer()?, buffer()?]),
        };
        text(stream.synchronize())?;
        Ok(Launcher { stream, k4: self.k4.clone(), out, inputs })
    }
}

struct Launcher {
    stream: Arc<Stream>,
    k4: Function,
    out: DeviceBuffer<u8>,
    inputs: Arc<[DeviceBuffer<u8>; 3]>,
}

impl Launcher {
    #[inline]
    fn launch(&mut self) -> Result {
        let [a, b, c] = &*self.inputs;
        let args = LaunchArgs::new().buffer_mut(&mut self.out).buffer(a).buffer(b).buffer(c).arg(1024_u64);
        // SAFETY: `k4` stores nothing for this n.
        text(unsafe { self.stream.launch(&self.k4, CONFIG, args) })
    }
    fn sync(&self) -> Result {
        text(self.stream.synchronize())
    }
}

/// Rows `submit` and `submit_shared`.
pub struct Submit {
    ours: Launcher,
    other: Option<Launcher>,
}

impl Submit {
    /// With buffers that no other stream has seen, or with inputs that a second stream reads between the batches.
    pub fn new(shared: bool) -> Result<Self> {
        let all = Ours::new()?;
        let ours = all.launcher(None)?;
        let other = if shared { Some(all.launcher(Some(&ours.inputs))?) } else { None };
        Ok(Self { ours, other })
    }
}

impl Side for Submit {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.ours.launch()
    }
    fn settle(&mut self) -> Result {
        self.ours.sync()?;
        if let Some(other) = &mut self.other {
            other.launch()?;
            other.sync()?;
        }
        Ok(())
    }
}

/// Row `launch_and_wait`.
pub struct LaunchAndWait(Launcher);

impl LaunchAndWait {
    /// With buffers of its own.
    pub fn new() -> Result<Self> {
        Ok(Self(Ours::new()?.launcher(None)?))
    }
}

impl Side for LaunchAndWait {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.0.launch()?;
        self.0.sync()
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// Row `alloc_drop`.
pub struct AllocDrop(Arc<Stream>);

impl AllocDrop {
    /// On a stream of its own.
    pub fn new() -> Result<Self> {
        Ok(Self(text(Ours::new()?.context.new_stream())?))
    }
}

impl Side for AllocDrop {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        // SAFETY: never read.
        text(unsafe { DeviceBuffer::<u8>::uninit(&self.0, BYTES) }).map(drop)
    }
    fn settle(&mut self) -> Result {
        text(self.0.synchronize())
    }
}

/// Row `threads_8`: the three inputs are common.
pub struct Threads(Vec<Mutex<Launcher>>);

impl Threads {
    /// One stream a thread.
    pub fn new() -> Result<Self> {
        let all = Ours::new()?;
        let first = all.launcher(None)?;
        let one = |_| all.launcher(Some(&first.inputs)).map(Mutex::new);
        Ok(Self((0..THREADS).map(one).collect::<Result<_>>()?))
    }
}

impl Side for Threads {
    fn operation(&mut self, _: usize) -> Result {
        Err("this row times whole batches".into())
    }
    fn settle(&mut self) -> Result {
        self.0.iter().try_for_each(|one| one.lock().map_err(|_| "poisoned")?.sync())
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        // The lock is taken once a batch: it is the bench's own.
        let all = |one: &Mutex<Launcher>| {
            let mut one = one.lock().map_err(|_| "poisoned")?;
            (0..operations).try_for_each(|_| one.launch())
        };
        together(&self.0, 1, |_| Ok(()), all)
    }
}
