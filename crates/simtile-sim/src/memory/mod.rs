//! Memory of a simulated driver.
//!
//! One [`AddressSpace`] holds everything a simulated driver maps: device memory of all its devices, pinned and
//! managed host memory, module globals, VMM mappings. Each mapping is an [`Allocation`] over a [`Backing`].
//!
//! * Device addresses are made up and lie where no host mapping can be, so host code that
//!   dereferences one crashes at once; pinned and managed addresses are the host's own.
//! * Between allocations lie gaps, so running off the end of one never lands in the next.
//! * Addresses of freed memory are used again, as on a GPU; its bytes then count as never written.
//! * Each byte has a bit that says whether it was ever written.
//! * Kernels on several workers may race on bytes, as on a GPU: every access here is a relaxed atomic of
//!   the access's size, so a racing kernel is wrong but the simulator is not undefined.
//!
//! Nothing here knows of streams, contexts or CUDA's codes; the entries of the driver table are built on it.
//!
//! * [`Ranges`]: which addresses are taken; [`Budget`]: how much memory is left;
//! * [`AddressSpace`], [`DeviceView`], [`Window`]: from addresses to bytes;
//! * [`Transfer`], [`Fill`]: whole ranges;
//! * [`Pool`]: stream-ordered memory; [`Vmm`], [`Multicast`]: virtual memory.

mod allocation;
mod backing;
mod budget;
mod bulk;
mod fault;
mod multicast;
mod pool;
mod ranges;
mod space;
mod vmm;
mod window;
mod written;

pub use allocation::{Access, Allocation, Attachment, MOST_DEVICES, MemoryKind, Origin, Rights};
pub use backing::{Backing, Pattern};
pub use budget::{Budget, Charge};
pub use bulk::{Fill, Place, Side, Transfer, Unread};
pub use fault::{FaultKind, MemoryFault, Nearby};
pub use multicast::Multicast;
pub use pool::{Grant, Order, Point, Pool, PoolError, PoolStats, RESERVE_STEP, Reuse, reserve_step};
pub use ranges::{GRANULE, Ranges};
pub use space::{AddressSpace, DEVICE_BASE, Mapping, Shortage, View};
pub use vmm::{GRANULARITY, Object, Physical, PhysicalRequest, Vmm, VmmError, access_of};
pub use window::{DeviceView, Window};
