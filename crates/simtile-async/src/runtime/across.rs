//! Operations over all devices of a runtime.

use super::{Place, Runtime};
use crate::{ExecutionContext, OpError, SchedulingPolicy};
use core::fmt;
use simtile_core::Stream;
use simtile_sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// See [`Runtime::across_devices`].
pub struct AcrossDevices {
    runtime: Runtime,
    next: AtomicUsize,
}

impl AcrossDevices {
    pub(super) fn new(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone(), next: AtomicUsize::new(0) }
    }

    fn place(&self) -> Result<&Place, OpError> {
        let slots = self.runtime.slots()?;
        self.runtime.placed(&slots[self.next.fetch_add(1, Ordering::Relaxed) % slots.len()])
    }
}

impl SchedulingPolicy for AcrossDevices {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        self.place()?.policy.next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        self.place()?.next()
    }
}

impl fmt::Debug for AcrossDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AcrossDevices").field(&self.runtime).finish()
    }
}
