//! Loaded modules, functions, libraries and kernels.

use crate::core::Core;

pub(crate) struct Modules {}

impl Modules {
    pub(crate) fn new(_simulator: u64) -> Self {
        Self {}
    }

    /// A context is gone, and its modules with it.
    pub(crate) fn context_ended(&self, _core: &Core, _context: u64) {}
}
