//! Looking at a context's books without holding the context.

use super::stats::{BackgroundError, ContextStats};
use super::{Context, ContextLoss, Link};
use core::fmt;
use simtile_sync::Arc;

/// Reads the counts of a CUDA context, also after its last handle has gone. It keeps nothing alive.
///
/// What a supervisor, or a test, asks when everything is over: what was lost with the context.
#[derive(Clone)]
pub struct ContextMonitor(Arc<Link>);

impl Context {
    /// A reader of this CUDA context's counts.
    pub fn monitor(&self) -> ContextMonitor {
        ContextMonitor(self.link().clone())
    }
}

impl ContextMonitor {
    /// As [`Context::stats`].
    pub fn stats(&self) -> ContextStats {
        self.0.counters.read()
    }

    /// As [`Context::take_errors`].
    pub fn take_errors(&self) -> Vec<BackgroundError> {
        self.0.counters.take_errors()
    }

    /// As [`Context::loss`].
    pub fn loss(&self) -> Option<Arc<ContextLoss>> {
        self.0.health.loss().cloned()
    }
}

impl fmt::Debug for ContextMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextMonitor").field("loss", &self.loss()).field("stats", &self.stats()).finish()
    }
}
