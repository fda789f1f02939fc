//! The peer crates (cuda-core, cuda-async 0.5.0): the safe future polled once and dropped, and the unsafe `async_on`.

use crate::pairs::{Result, Side};
use crate::raw::PTX;
use cuda_async::device_operation::DeviceOp;
use cuda_async::launch::{AsyncKernelLaunch, AsyncKernelLaunchBuilder};
use cuda_async::scheduling_policies::SingleStream;
use cuda_core::{Context, DeviceBuffer, Function, LaunchConfig, RawDeviceBuffer, Stream};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

const CONFIG: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
/// 1 MiB of f32.
const ELEMENTS: usize = 1 << 18;

/// Errors as text.
fn text<T>(result: core::result::Result<T, impl core::fmt::Debug>) -> Result<T> {
    result.map_err(|error| format!("peer: {error:?}"))
}

/// Stream, kernel, buffers.
pub struct Peer {
    stream: Arc<Stream>,
    function: Arc<Function>,
    _owners: Vec<DeviceBuffer<f32>>,
    buffers: Vec<RawDeviceBuffer>,
    policy: SingleStream,
}

impl Peer {
    /// On device 0's primary context.
    pub fn new() -> Result<Self> {
        let context = text(Context::new(0))?;
        let stream = text(context.new_stream())?;
        let function = text(text(context.load_module_from_ptx_src(PTX))?.load_function("k4"))?;
        let owners = (0..4)
            .map(|_| text(DeviceBuffer::<f32>::zeroed(&stream, ELEMENTS)))
            .collect::<Result<Vec<_>>>()?;
        let buffers = owners.iter().map(|owner| owner.storage().clone()).collect();
        text(text(context.default_mem_pool())?.set_release_threshold(u64::MAX))?;
        Ok(Self {
            policy: SingleStream::from_stream(stream.clone()),
            stream,
            function: Arc::new(function),
            _owners: owners,
            buffers,
        })
    }

    #[inline]
    fn operation(&self) -> AsyncKernelLaunch<'static> {
        let mut launch = AsyncKernelLaunchBuilder::new(self.function.clone());
        for (index, buffer) in self.buffers.iter().enumerate() {
            launch.retain_buffer(buffer.clone(), index == 0);
            // SAFETY: the buffer is retained.
            unsafe { launch.push_device_ptr(buffer.cu_deviceptr()) };
        }
        launch.push_arg(1024_u64);
        // SAFETY: `k4` stores nothing for this n.
        unsafe { launch.finalize_unchecked(CONFIG) }
    }

    /// Its retirement thread looks once a millisecond; it shall not work inside a timed batch.
    fn settle(&self) -> Result {
        text(self.stream.synchronize())?;
        std::thread::sleep(Duration::from_millis(4));
        Ok(())
    }
}

/// Row `submit_safe`.
pub struct SubmitSafe(pub Peer);

impl Side for SubmitSafe {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        let mut future = text(self.0.operation().schedule(&self.0.policy))?;
        let waker = futures::task::noop_waker();
        let _ = Pin::new(&mut future).poll(&mut std::task::Context::from_waker(&waker));
        Ok(())
    }
    fn settle(&mut self) -> Result {
        self.0.settle()
    }
}

/// Row `submit_unsafe`.
pub struct SubmitUnsafe(pub Peer);

impl Side for SubmitUnsafe {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        // SAFETY: the buffers live as long as `self`, and one stream orders everything.
        text(unsafe { self.0.operation().async_on(&self.0.stream) })
    }
    fn settle(&mut self) -> Result {
        self.0.settle()
    }
}

/// Row `launch_and_wait`.
pub struct LaunchAndWait(pub Peer);

impl Side for LaunchAndWait {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        text(self.0.operation().sync_on(&self.0.stream))
    }
    fn settle(&mut self) -> Result {
        self.0.settle()
    }
}

/// Row `alloc_drop`.
pub struct AllocDrop(pub Peer);

impl Side for AllocDrop {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        // SAFETY: never read.
        text(unsafe { DeviceBuffer::<f32>::uninitialized_async(&self.0.stream, ELEMENTS) }).map(drop)
    }
    fn settle(&mut self) -> Result {
        self.0.settle()
    }
}
