//! Loading code, as operations.
//!
//! A load makes the driver wait for all pending work of the context, so a poll hands it to a thread of the runtime, and a call that waits
//! for nothing refuses.

use crate::worker::Job;
use crate::{DeviceOp, OpError, SubmitContext, into_future};
use core::task::Poll;
use simtile_core::{Function, JitOptions, Module, ModuleCache, ModuleError};
use std::sync::Arc;

/// See [`load_module`].
#[must_use = "operations are lazy"]
pub struct LoadModule {
    image: Option<Arc<[u8]>>,
    cache: Option<Arc<ModuleCache>>,
    job: Option<Job<Result<Arc<Module>, OpError>>>,
}

/// Loads an image (PTX, cubin, fat binary, on a simulated driver also Tile bytecode) into the context that the operation runs in.
pub fn load_module(image: impl Into<Arc<[u8]>>) -> LoadModule {
    LoadModule { image: Some(image.into()), cache: None, job: None }
}

impl LoadModule {
    /// Taken from the cache if it is there, else loaded into it. All who ask meanwhile share one load, and one error.
    pub fn cached_in(mut self, cache: &Arc<ModuleCache>) -> Self {
        self.cache = Some(cache.clone());
        self
    }
}

impl DeviceOp for LoadModule {
    type Output = Arc<Module>;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Arc<Module>, OpError>> {
        if self.image.is_none() && self.job.is_none() {
            return Poll::Ready(Err(OpError::Finished));
        }
        let context = cx.stream().context();
        if let (Some(cache), Some(image)) = (&self.cache, &self.image)
            && let Some(module) = cache.get(context, image, &JitOptions::new())
        {
            self.image = None;
            return Poll::Ready(Ok(module));
        }
        if self.job.is_none() && cx.would_wait("loading a module") {
            return Poll::Pending;
        }
        let (context, cache) = (context.clone(), self.cache.clone());
        let image = self.image.take().unwrap_or_default();
        let load = move || match cache {
            Some(cache) => cache.load(&context, &image).map_err(OpError::Core),
            None => Ok(context.load_module(&image)?),
        };
        match cx.offload(&mut self.job, load) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(loaded) => Poll::Ready(loaded.flatten()),
        }
    }
}

into_future!(LoadModule);

/// See [`load_function`].
#[must_use = "operations are lazy"]
pub struct LoadFunction {
    what: Option<(Arc<Module>, String)>,
    job: Option<Job<Option<Result<Function, ModuleError>>>>,
}

/// A kernel of a module. Its code is loaded, and the stack limit raised to what it needs, so that its launches do not stall.
pub fn load_function(module: Arc<Module>, name: impl Into<String>) -> LoadFunction {
    LoadFunction { what: Some((module, name.into())), job: None }
}

impl DeviceOp for LoadFunction {
    type Output = Function;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Function, OpError>> {
        if self.job.is_none() && cx.would_wait("loading a function") {
            return Poll::Pending;
        }
        // (Not run if an earlier poll has handed it over.)
        let what = self.what.take();
        let load = move || what.map(|(module, name)| module.load_function(&name));
        match cx.offload(&mut self.job, load) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Some(loaded))) => Poll::Ready(Ok(loaded?)),
            Poll::Ready(Ok(None)) => Poll::Ready(Err(OpError::Finished)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

into_future!(LoadFunction);
