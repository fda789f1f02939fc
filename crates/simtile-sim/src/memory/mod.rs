//! Memory of a simulated driver.
//!
//! One [`AddressSpace`] holds everything a simulated driver maps: device memory of all its devices, pinned and
//! managed host memory, module globals, VMM mappings. Each mapping is an [`Allocation`] over a [`Backing`].
//!
//! * Device addresses are made up and lie where no host mapping can be, so host code that
//!   dereferences one crashes at once; pinned and managed addresses are the host's own.
//! * Between allocations lie gaps, so running off the end of one never lands in the next.
//! * Each byte has a bit that says whether it was ever written.
//! * Kernels on several workers may race on bytes, as on a GPU: every access here is a relaxed atomic of
//!   the access's size, so a racing kernel is wrong but the simulator is not undefined.

mod allocation;
mod backing;
mod fault;
mod space;

pub use allocation::{Allocation, MemoryKind};
pub use backing::Backing;
pub use fault::{FaultKind, MemoryFault, Nearby};
pub use space::{AddressSpace, DeviceView, Window};
