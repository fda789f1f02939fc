//! The raw driver, called through function pointers from `dlopen` (cudarc's bindings): what everything is compared with.

use crate::pairs::{Result, Side};
use cudarc::driver::sys::{self as cu, CUresult};
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// `k4`: four pointers and a u64, one guarded store that never happens. `spin`: holds a stream for n ns.
pub const PTX: &str = include_str!("kernels.ptx");
/// Bytes of each buffer.
pub const BYTES: usize = 1 << 20;
/// Threads of the row with threads.
pub const THREADS: usize = 8;

/// Calls the driver; an error names the call.
macro_rules! ck {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: every handle and pointer below comes from the driver or lives on this stack frame.
        let code = unsafe { cu::$name($($arg),*) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(format!("{}: {code:?}", stringify!($name)));
        }
    }};
}

/// Context, kernel and buffers of the raw side.
pub struct Raw {
    context: cu::CUcontext,
    k4: cu::CUfunction,
    spin: cu::CUfunction,
    buffers: [cu::CUdeviceptr; 4],
    host: usize,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// Device 0's primary context, made current; kernels; four buffers of [`BYTES`]; as much pinned memory.
    pub fn new() -> Result<Self> {
        ck!(cuInit(0));
        let mut device = 0;
        ck!(cuDeviceGet(&mut device, 0));
        let mut context = null_mut();
        ck!(cuDevicePrimaryCtxRetain(&mut context, device));
        ck!(cuCtxSetCurrent(context));
        let source = CString::new(PTX).map_err(|error| error.to_string())?;
        let mut module = null_mut();
        ck!(cuModuleLoadData(&mut module, source.as_ptr().cast()));
        let get = |name: &CStr| -> Result<cu::CUfunction> {
            let mut function = null_mut();
            ck!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
            Ok(function)
        };
        let (k4, spin) = (get(c"k4")?, get(c"spin")?);
        let mut buffers = [0; 4];
        for buffer in &mut buffers {
            ck!(cuMemAlloc_v2(buffer, BYTES));
            ck!(cuMemsetD8_v2(*buffer, 0, BYTES));
        }
        let mut host = null_mut();
        ck!(cuMemHostAlloc(&mut host, BYTES, 0));
        // SAFETY: that many bytes were just allocated.
        unsafe { host.cast::<u8>().write_bytes(0, BYTES) };
        let raw = Self { context, k4, spin, buffers, host: host as usize };
        // The default pool keeps what is freed, as a runtime's own pool does: else each wait returns it to the system.
        let mut pool = null_mut();
        ck!(cuDeviceGetDefaultMemPool(&mut pool, device));
        let mut keep = u64::MAX;
        let threshold = cu::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        ck!(cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()));
        Ok(raw)
    }

    /// What runs here.
    pub fn machine(&self) -> Result<String> {
        let mut version = 0;
        ck!(cuDriverGetVersion(&mut version));
        let mut name = [0; 128];
        ck!(cuDeviceGetName(name.as_mut_ptr(), 128, 0));
        // SAFETY: the driver ends the name with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(format!("{}, CUDA {}.{}", name.to_string_lossy(), version / 1000, version % 1000 / 10))
    }

    /// A non-blocking stream.
    pub fn stream(&self) -> Result<RawStream<'_>> {
        let mut stream = null_mut();
        ck!(cuStreamCreate(&mut stream, 1));
        Ok(RawStream { raw: self, stream })
    }

    fn bind(&self) -> Result {
        ck!(cuCtxSetCurrent(self.context));
        Ok(())
    }
}

/// A stream and what is done on it.
#[derive(Clone, Copy)]
pub struct RawStream<'a> {
    raw: &'a Raw,
    stream: cu::CUstream,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for RawStream<'_> {}
// SAFETY: as above.
unsafe impl Sync for RawStream<'_> {}

impl RawStream<'_> {
    /// `k4` with four buffers.
    #[inline]
    pub fn launch(&self) -> Result {
        let (mut buffers, mut n) = (self.raw.buffers, 1024_u64);
        let [a, b, c, d] = &mut buffers;
        let mut params: [*mut c_void; 5] = [
            (a as *mut u64).cast(),
            (b as *mut u64).cast(),
            (c as *mut u64).cast(),
            (d as *mut u64).cast(),
            (&raw mut n).cast(),
        ];
        ck!(cuLaunchKernel(self.raw.k4, 1, 1, 1, 32, 1, 1, 0, self.stream, params.as_mut_ptr(), null_mut()));
        Ok(())
    }

    /// Holds the stream for `ns`.
    pub fn spin(&self, ns: u64) -> Result {
        let mut ns = ns;
        let mut params: [*mut c_void; 1] = [(&raw mut ns).cast()];
        ck!(cuLaunchKernel(self.raw.spin, 1, 1, 1, 1, 1, 1, 0, self.stream, params.as_mut_ptr(), null_mut()));
        Ok(())
    }

    /// Waits for the stream.
    pub fn sync(&self) -> Result {
        ck!(cuStreamSynchronize(self.stream));
        Ok(())
    }

    fn record(&self, event: cu::CUevent) -> Result {
        ck!(cuEventRecord(event, self.stream));
        Ok(())
    }

    fn wait(&self, event: cu::CUevent) -> Result {
        ck!(cuStreamWaitEvent(self.stream, event, 0));
        Ok(())
    }

    fn upload(&self, buffer: usize, bytes: usize) -> Result {
        ck!(cuMemcpyHtoDAsync_v2(
            self.raw.buffers[buffer],
            self.raw.host as *const c_void,
            bytes,
            self.stream
        ));
        Ok(())
    }

    fn download(&self, buffer: usize, bytes: usize) -> Result {
        ck!(cuMemcpyDtoHAsync_v2(self.raw.host as *mut c_void, self.raw.buffers[buffer], bytes, self.stream));
        Ok(())
    }
}

/// An untimed event.
pub fn event() -> Result<cu::CUevent> {
    let mut event = null_mut();
    ck!(cuEventCreate(&mut event, cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32));
    Ok(event)
}

/// Row `submit`: one launch with four buffers.
pub struct Submit<'a>(pub RawStream<'a>);

impl Side for Submit<'_> {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.0.launch()
    }
    fn settle(&mut self) -> Result {
        self.0.sync()
    }
}

/// Rows `graph_replay_1` and `graph_replay_100`: launches of an executable with so many kernels in a row.
pub struct Replay<'a> {
    stream: RawStream<'a>,
    exec: cu::CUgraphExec,
}

impl<'a> Replay<'a> {
    /// Captures the launches.
    pub fn new(stream: RawStream<'a>, nodes: usize) -> Result<Self> {
        Ok(Self { stream, exec: captured(stream, nodes)?.1 })
    }
}

impl Side for Replay<'_> {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        ck!(cuGraphLaunch(self.exec, self.stream.stream));
        Ok(())
    }
    fn settle(&mut self) -> Result {
        self.stream.sync()
    }
}

/// Launches in a row of the chain rows.
pub const CHAIN: usize = 100;

/// Rows `memo_chain_100` and `memo_chain_100_new`: an executable with [`CHAIN`] kernels in a row, launched and waited for; in the second every
/// kernel is given other pointers before.
pub struct Chain<'a> {
    stream: RawStream<'a>,
    exec: cu::CUgraphExec,
    nodes: Vec<cu::CUgraphNode>,
    new: bool,
    turned: bool,
}

impl<'a> Chain<'a> {
    /// Captures the launches.
    pub fn new(stream: RawStream<'a>, new: bool) -> Result<Self> {
        let (graph, exec) = captured(stream, CHAIN)?;
        let mut nodes = vec![null_mut(); CHAIN];
        let mut count = CHAIN;
        ck!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        Ok(Self { stream, exec, nodes, new, turned: false })
    }

    fn update(&self, node: cu::CUgraphNode) -> Result {
        let (mut buffers, mut n) = (self.stream.raw.buffers, 1024_u64);
        if self.turned {
            buffers.reverse();
        }
        let [a, b, c, d] = &mut buffers;
        let mut params: [*mut c_void; 5] = [
            (a as *mut u64).cast(),
            (b as *mut u64).cast(),
            (c as *mut u64).cast(),
            (d as *mut u64).cast(),
            (&raw mut n).cast(),
        ];
        // SAFETY: zeros are valid in every field.
        let mut node_params: cu::CUDA_KERNEL_NODE_PARAMS = unsafe { core::mem::zeroed() };
        node_params.func = self.stream.raw.k4;
        (node_params.gridDimX, node_params.gridDimY, node_params.gridDimZ) = (1, 1, 1);
        (node_params.blockDimX, node_params.blockDimY, node_params.blockDimZ) = (32, 1, 1);
        node_params.kernelParams = params.as_mut_ptr();
        ck!(cuGraphExecKernelNodeSetParams_v2(self.exec, node, &node_params));
        Ok(())
    }
}

impl Side for Chain<'_> {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        if self.new {
            self.turned = !self.turned;
            self.nodes.iter().try_for_each(|&node| self.update(node))?;
        }
        ck!(cuGraphLaunch(self.exec, self.stream.stream));
        self.stream.sync()
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// A graph of so many launches in a row, and its executable.
fn captured(stream: RawStream<'_>, nodes: usize) -> Result<(cu::CUgraph, cu::CUgraphExec)> {
    let (graph, mut exec) = (capture(stream, nodes)?, null_mut());
    ck!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    Ok((graph, exec))
}

fn capture(stream: RawStream<'_>, nodes: usize) -> Result<cu::CUgraph> {
    let mut graph = null_mut();
    let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ck!(cuStreamBeginCapture_v2(stream.stream, mode));
    (0..nodes).try_for_each(|_| stream.launch())?;
    ck!(cuStreamEndCapture(stream.stream, &mut graph));
    Ok(graph)
}

/// What graphs of so many nodes cost: capturing one, making its executable (both per node), and bytes of device memory per executable.
pub fn graph_costs(stream: RawStream<'_>, nodes: usize, graphs: usize) -> Result<GraphCosts> {
    let free = || -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        ck!(cuMemGetInfo_v2(&mut free, &mut total));
        Ok(free)
    };
    let (mut capturing, mut making) = (Vec::new(), Vec::new());
    let mut execs = Vec::new();
    // The first one pays for what all use.
    ck!(cuGraphLaunch(captured(stream, nodes)?.1, stream.stream));
    stream.sync()?;
    let before = free()?;
    for _ in 0..graphs {
        let start = Instant::now();
        let graph = capture(stream, nodes)?;
        capturing.push(start.elapsed());
        let (start, mut exec) = (Instant::now(), null_mut());
        ck!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        making.push(start.elapsed());
        ck!(cuGraphLaunch(exec, stream.stream));
        execs.push((graph, exec));
    }
    stream.sync()?;
    let bytes = before.saturating_sub(free()?) / graphs;
    for (graph, exec) in execs {
        ck!(cuGraphExecDestroy(exec));
        ck!(cuGraphDestroy(graph));
    }
    Ok(GraphCosts::new(capturing, making, nodes, bytes))
}

/// See [`graph_costs`].
pub struct GraphCosts {
    /// Nanoseconds a node, median.
    pub capture: f64,
    /// The same.
    pub instantiate: f64,
    /// Of device memory, an executable.
    pub bytes: usize,
}

impl GraphCosts {
    /// Of so many captures and instantiations.
    pub fn new(
        mut capture: Vec<Duration>,
        mut instantiate: Vec<Duration>,
        nodes: usize,
        bytes: usize,
    ) -> Self {
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times[times.len() / 2].as_nanos() as f64 / nodes as f64
        };
        Self { capture: median(&mut capture), instantiate: median(&mut instantiate), bytes }
    }

    /// One line.
    pub fn line(&self, name: &str, nodes: usize) -> String {
        let Self { capture, instantiate, bytes } = self;
        format!(
            "{name:<10} {nodes:>4} nodes  capture {capture:>8.1} ns/node  instantiate {instantiate:>8.1} ns/node  {bytes:>9} bytes/executable"
        )
    }
}

/// Row `launch_and_wait`.
pub struct LaunchAndWait<'a>(pub RawStream<'a>);

impl Side for LaunchAndWait<'_> {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.0.launch()?;
        self.0.sync()
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// Row `alloc_drop`: 1 MiB from the default pool, freed in stream order.
pub struct AllocDrop<'a>(pub RawStream<'a>);

impl Side for AllocDrop<'_> {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        let mut address = 0;
        ck!(cuMemAllocAsync(&mut address, BYTES, self.0.stream));
        ck!(cuMemFreeAsync(address, self.0.stream));
        Ok(())
    }
    fn settle(&mut self) -> Result {
        self.0.sync()
    }
}

/// Row `threads_8`: every thread launches on its own stream; the buffers are common.
pub struct Threads<'a>(pub Vec<RawStream<'a>>);

impl Side for Threads<'_> {
    fn operation(&mut self, _: usize) -> Result {
        Err("this row times whole batches".into())
    }
    fn settle(&mut self) -> Result {
        self.0.iter().try_for_each(RawStream::sync)
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        let raw = self.0[0].raw;
        together(&self.0, operations, |_| raw.bind(), |stream| stream.launch())
    }
}

/// Every item's thread does `operations` operations between two barriers; the time between these.
pub fn together<T: Sync>(
    items: &[T],
    operations: usize,
    begin: impl Fn(&T) -> Result + Sync,
    operation: impl Fn(&T) -> Result + Sync,
) -> Result<Duration> {
    let (start, end) = (Barrier::new(items.len() + 1), Barrier::new(items.len() + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .iter()
            .map(|item| {
                let (start, end, begin, operation) = (&start, &end, &begin, &operation);
                scope.spawn(move || {
                    let begun = begin(item);
                    start.wait();
                    let done = begun.and_then(|()| (0..operations).try_for_each(|_| operation(item)));
                    end.wait();
                    done
                })
            })
            .collect();
        start.wait();
        let time = Instant::now();
        end.wait();
        let time = time.elapsed();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(time)
    })
}

/// Row `copy_compute_copy`: upload on one stream, kernel on a second, download on a third, events placed by hand; time until all
/// of the batch has finished. `ns` is how long the kernel runs.
pub struct CopyComputeCopy<'a> {
    streams: [RawStream<'a>; 3],
    events: [cu::CUevent; 3],
    bytes: usize,
    ns: u64,
}

impl<'a> CopyComputeCopy<'a> {
    /// With its streams and events.
    pub fn new(raw: &'a Raw, bytes: usize, ns: u64) -> Result<Self> {
        Ok(Self {
            streams: [raw.stream()?, raw.stream()?, raw.stream()?],
            events: [event()?, event()?, event()?],
            bytes,
            ns,
        })
    }
}

impl Side for CopyComputeCopy<'_> {
    fn operation(&mut self, index: usize) -> Result {
        let [up, compute, down] = &self.streams;
        // Before the next upload overwrites the input, the last kernel has read it; before the next kernel overwrites the
        // output, the last download has read it.
        if index > 0 {
            up.wait(self.events[1])?;
        }
        up.upload(0, self.bytes)?;
        up.record(self.events[0])?;
        compute.wait(self.events[0])?;
        if index > 0 {
            compute.wait(self.events[2])?;
        }
        compute.spin(self.ns)?;
        compute.record(self.events[1])?;
        down.wait(self.events[1])?;
        down.download(1, self.bytes)?;
        down.record(self.events[2])?;
        Ok(())
    }
    fn settle(&mut self) -> Result {
        self.streams.iter().try_for_each(RawStream::sync)
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        whole(self, operations)
    }
}

/// Row `fork_join`: one kernel, four on streams of their own that follow it, one that follows these.
pub struct ForkJoin<'a> {
    main: RawStream<'a>,
    sides: [RawStream<'a>; 4],
    forked: cu::CUevent,
    joined: [cu::CUevent; 4],
    ns: u64,
}

impl<'a> ForkJoin<'a> {
    /// With its streams and events.
    pub fn new(raw: &'a Raw, ns: u64) -> Result<Self> {
        let sides = [raw.stream()?, raw.stream()?, raw.stream()?, raw.stream()?];
        let joined = [event()?, event()?, event()?, event()?];
        Ok(Self { main: raw.stream()?, sides, forked: event()?, joined, ns })
    }
}

impl Side for ForkJoin<'_> {
    fn operation(&mut self, _: usize) -> Result {
        self.main.spin(self.ns)?;
        self.main.record(self.forked)?;
        for (side, joined) in self.sides.iter().zip(self.joined) {
            side.wait(self.forked)?;
            side.spin(self.ns)?;
            side.record(joined)?;
        }
        for joined in self.joined {
            self.main.wait(joined)?;
        }
        self.main.spin(self.ns)
    }
    fn settle(&mut self) -> Result {
        self.main.sync()
    }
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        whole(self, operations)
    }
}

/// A batch whose time includes the wait for its end.
pub fn whole(side: &mut impl Side, operations: usize) -> Result<Duration> {
    let start = Instant::now();
    for index in 0..operations {
        side.operation(index)?;
    }
    side.settle()?;
    Ok(start.elapsed())
}
