//! simtile's safe, tracked API.

use crate::pairs::{Result, Side};
use crate::raw::{BYTES, PTX, THREADS, together, whole};
use simtile::{Context, DeviceBuffer, Function, LaunchArgs, LaunchConfig, PinnedHostBuffer, Runtime, Stream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const CONFIG: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };

/// Errors as text.
fn text<T>(result: core::result::Result<T, impl core::fmt::Display>) -> Result<T> {
    result.map_err(|error| format!("simtile: {error}"))
}

/// Context and kernels.
pub struct Ours {
    context: Arc<Context>,
    k4: Function,
    spin: Function,
}

impl Ours {
    /// On device 0's primary context.
    pub fn new() -> Result<Self> {
        let context = text(text(text(Runtime::new())?.device(0))?.primary_context())?;
        let module = text(context.load_module_from_ptx_src(PTX))?;
        Ok(Self { k4: text(module.load_function("k4"))?, spin: text(module.load_function("spin"))?, context })
    }

    /// A stream with an output of its own; the inputs may be common.
    pub fn launcher(&self, inputs: Option<&Arc<[DeviceBuffer<u8>; 3]>>) -> Result<Launcher> {
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

/// What a launch needs.
pub struct Launcher {
    pub stream: Arc<Stream>,
    pub k4: Function,
    pub out: DeviceBuffer<u8>,
    pub inputs: Arc<[DeviceBuffer<u8>; 3]>,
}

impl Launcher {
    #[inline]
    fn launch(&mut self) -> Result {
        let [a, b, c] = &*self.inputs;
        let args = LaunchArgs::new().buffer_mut(&mut self.out).buffer(a).buffer(b).buffer(c).arg(1024_u64);
        // SAFETY: `k4` stores nothing for this n.
        text(unsafe { self.stream.launch(&self.k4, CONFIG, args) })
    }
    pub fn sync(&self) -> Result {
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

/// One thread.
const ONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// Row `copy_compute_copy`: no event is placed by hand; the order comes from what the copies and kernels name.
pub struct CopyComputeCopy {
    spin: Function,
    streams: [Arc<Stream>; 3],
    source: PinnedHostBuffer<u8>,
    target: PinnedHostBuffer<u8>,
    input: DeviceBuffer<u8>,
    output: DeviceBuffer<u8>,
    ns: u64,
}

impl CopyComputeCopy {
    /// With its streams and buffers.
    pub fn new(bytes: usize, ns: u64) -> Result<Self> {
        let all = Ours::new()?;
        let stream = || text(all.context.new_stream());
        let streams = [stream()?, stream()?, stream()?];
        let pinned = || text(PinnedHostBuffer::zeroed(&all.context, bytes));
        let buffer = || text(DeviceBuffer::zeroed(&streams[0], bytes));
        let (source, target, input, output) = (pinned()?, pinned()?, buffer()?, buffer()?);
        Ok(Self { spin: all.spin, streams, source, target, input, output, ns })
    }
}

impl Side for CopyComputeCopy {
    fn operation(&mut self, _: usize) -> Result {
        let [up, compute, down] = &self.streams;
        text(self.source.copy_to(up, &mut self.input))?;
        let args = LaunchArgs::new().arg(self.ns);
        // SAFETY: `spin` touches no memory.
        text(unsafe {
            compute.submit().read(&self.input).write(&mut self.output).launch(&self.spin, ONE, args)
        })?;
        text(self.target.copy_from(down, &self.output)).map(drop)
    }
    fn settle(&mut self) -> Result {
        self.streams.iter().try_for_each(|stream| text(stream.synchronize()))
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        whole(self, operations)
    }
}

/// Row `fork_join`, likewise.
pub struct ForkJoin {
    spin: Function,
    main: Arc<Stream>,
    sides: [Arc<Stream>; 4],
    source: DeviceBuffer<u8>,
    parts: [DeviceBuffer<u8>; 4],
    ns: u64,
}

impl ForkJoin {
    /// With its streams and buffers.
    pub fn new(ns: u64) -> Result<Self> {
        let all = Ours::new()?;
        let stream = || text(all.context.new_stream());
        let main = stream()?;
        let buffer = || text(DeviceBuffer::<u8>::zeroed(&main, 4096));
        let (source, parts) = (buffer()?, [buffer()?, buffer()?, buffer()?, buffer()?]);
        Ok(Self {
            spin: all.spin.clone(),
            sides: [stream()?, stream()?, stream()?, stream()?],
            main,
            source,
            parts,
            ns,
        })
    }
}

impl Side for ForkJoin {
    fn operation(&mut self, _: usize) -> Result {
        let args = LaunchArgs::new().arg(self.ns);
        // SAFETY: `spin` touches no memory, here and below.
        text(unsafe { self.main.submit().write(&mut self.source).launch(&self.spin, ONE, &args) })?;
        for (side, part) in self.sides.iter().zip(&mut self.parts) {
            // SAFETY: as above.
            text(unsafe { side.submit().read(&self.source).write(part).launch(&self.spin, ONE, &args) })?;
        }
        let [a, b, c, d] = &self.parts;
        // SAFETY: as above.
        text(unsafe { self.main.submit().read(a).read(b).read(c).read(d).launch(&self.spin, ONE, &args) })
            .map(drop)
    }
    fn settle(&mut self) -> Result {
        text(self.main.synchronize())
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        whole(self, operations)
    }
}
