//! The core layer: our API, and the promises it keeps.

mod bad_images;
mod bad_input;
mod bad_launches;
mod buffers;
mod contexts;
mod devices;
mod events;
mod field_reports;
mod graphs;
mod launches;
mod memory;
mod modules;
mod peers;
mod streams;
mod tracked;

use crate::frame::{Check, Cx, Stop, Test};
use crate::gpu::{Gate, Gpu};
use simtile_core::{Context, Device, Module, Stream};
use std::fmt::{Debug, Display};
use std::sync::Arc;

/// Every family.
pub const FAMILIES: &[&[Test]] = &[
    devices::TESTS,
    contexts::TESTS,
    streams::TESTS,
    events::TESTS,
    buffers::TESTS,
    tracked::TESTS,
    memory::TESTS,
    peers::TESTS,
    modules::TESTS,
    launches::TESTS,
    graphs::TESTS,
    bad_input::TESTS,
    bad_images::TESTS,
    bad_launches::TESTS,
    field_reports::TESTS,
    field_reports::BINDING,
    field_reports::IMAGES,
];

/// Where most tests start: device 0, its primary context, a stream.
pub(crate) struct Core<'a> {
    gpu: Gpu<'a>,
    device: Device,
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Arc<Stream>,
}

impl<'a> Core<'a> {
    pub(crate) fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let device = Device::new(cx.driver(), 0)?;
        let context = device.primary_context()?;
        let stream = context.new_stream()?;
        Ok(Self { gpu, device, context, stream })
    }

    /// Holds a stream until the gate is opened or dropped.
    pub(crate) fn gate(&self, stream: &Stream) -> Check<Gate> {
        self.gpu.gate(stream.cu_stream())
    }

    /// Holds a stream of another context until the gate is opened or dropped.
    fn gate_elsewhere(&self, cx: &'a Cx, stream: &Stream) -> Check<Gate> {
        let gpu = Gpu::on(cx, stream.context().ordinal() as i32)?;
        gpu.gate(stream.cu_stream())
    }

    /// The basic kernels.
    pub(crate) fn basic(&self) -> Check<Arc<Module>> {
        Ok(self.context.load_module(crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default())?)
    }
}

macro_rules! stop_from {
    ($($error:ident)*) => { $(
        impl From<simtile_core::$error> for Stop {
            fn from(error: simtile_core::$error) -> Self {
                let lacks_entry = error.driver_error().is_some_and(|error| error.is_missing_entry());
                if lacks_entry { Self::unsupported(error) } else { Self::fail(error) }
            }
        }
    )* };
}

stop_from! { DeviceError ContextError StreamError MemoryError ModuleError LaunchError GraphError }

/// The operation has to fail, with an error that says all of this.
fn refused<T, E: Display + Debug>(result: Result<T, E>, parts: &[&str]) -> Check<E> {
    let Err(error) = result else {
        return Err(Stop::fail(format!("succeeded, expected an error that names {parts:?}")));
    };
    let text = error.to_string();
    match parts.iter().find(|part| !text.contains(**part)) {
        None => Ok(error),
        Some(part) => Err(Stop::fail(format!("the error does not name `{part}`: {text}"))),
    }
}
