//! Other kinds of memory: each step makes some, uses it on several streams, checks it and drops it with work in flight.

use super::thread::{FINE, Step, Thread};
use simtile_core::{
    Context, DeviceAllocation, DeviceBuffer, GrowableBuffer, ManagedBuffer, MemPool, MemoryError,
    PinnedHostBuffer, RawDeviceBuffer, Residence,
};
use simtile_driver::sys::{CUcontext, CUdeviceptr};
use simtile_driver::{DriverError, call};
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const N: usize = 64;
const GRAIN: usize = 2 << 20;

/// Memory that somebody else allocated, and frees in its drop.
struct Theirs {
    context: Arc<Context>,
    address: CUdeviceptr,
    lost: Arc<AtomicU64>,
}

/// Runs a call with the context current, as foreign code does.
fn current<T>(context: &Context, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
    let driver = context.driver();
    // SAFETY: the context is alive.
    unsafe { call!(driver, cuCtxSetCurrent(context.cu_ctx())) }?;
    let result = call();
    // SAFETY: null means: no context.
    let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
    result
}

// SAFETY: the memory is this value's own until the drop.
unsafe impl DeviceAllocation for Theirs {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        4 * N
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let (driver, address) = (self.context.driver(), self.address);
        // SAFETY: nobody uses the memory any more.
        let free = || current(&self.context, || unsafe { call!(driver, cuMemFree(address)) }).is_ok();
        if self.context.loss().is_some() || !free() && !free() {
            self.lost.fetch_add(4 * N as u64, Ordering::Relaxed);
        }
    }
}

fn same(what: &str, found: &[u32], right: u32) -> Step {
    Ok(match found.iter().find(|&&value| value != right) {
        None => Ok(()),
        Some(value) => Err(format!("{what} holds {value}, should hold {right}")),
    })
}

impl Thread {
    pub(super) fn kind_of_memory(&mut self) -> Step {
        let (a, b, c) = (self.stream(), self.stream(), self.stream());
        let value = self.random.bits() as u32;
        let context = self.context.clone();
        match self.random.below(8) {
            0 => {
                let mut managed = ManagedBuffer::from_slice(&context, &[value; N])?;
                managed.view_mut().slice_mut(0..N / 2)?.fill(&a, 1)?;
                managed.prefetch(&b, Residence::Host)?;
                managed.view_mut().slice_mut(N / 2..N)?.fill(&c, 1)?;
                let outcome = same("managed memory", &managed.read()?, 1);
                managed.write()?.fill(7);
                managed.view_mut().fill(&b, value)?;
                outcome
            }
            1 => {
                let mut growable = GrowableBuffer::<u32>::new(&context, 2 * GRAIN / 4)?;
                growable.extend_from_slice(&a, &[value; N])?;
                growable.view_mut().fill(&b, 3)?;
                if self.random.one_in(3) {
                    growable.reserve(GRAIN / 4 + 1)?;
                    growable.shrink_to_fit()?;
                }
                let outcome = same("growable memory", &growable.to_vec(&c)?, 3);
                growable.view_mut().fill(&a, value)?;
                outcome
            }
            2 => {
                let mut pinned = PinnedHostBuffer::from_slice(&context, &[value; N])?;
                let mut device = DeviceBuffer::<u32>::zeroed(&a, N)?;
                pinned.copy_to(&b, &mut device)?;
                device.fill(&a, 5)?;
                pinned.copy_from(&c, &device)?;
                let outcome = same("pinned memory", &pinned.read()?, 5);
                pinned.write()?.fill(value);
                pinned.copy_to(&a, &mut device)?;
                outcome
            }
            3 => {
                let driver = context.driver();
                let address = current(&context, || {
                    let mut address = 0;
                    // SAFETY: the out-pointer is valid for the call.
                    unsafe { call!(driver, cuMemAlloc(&mut address, 4 * N)) }?;
                    Ok(address)
                })?;
                let lost = self.world.foreign_bytes.clone();
                let mut foreign = DeviceBuffer::<u32>::from_foreign(Theirs { context, address, lost })?;
                foreign.fill(&a, value)?;
                let mut copy = DeviceBuffer::<u32>::zeroed(&b, N)?;
                copy.copy_from(&b, &foreign)?;
                foreign.fill(&c, 9)?;
                drop(foreign);
                same("a copy of foreign memory", &copy.to_vec(&a)?, value)
            }
            4 => {
                let pool = MemPool::builder(&context).limit(1 << 20).build()?;
                let mut x = pool.from_slice(&a, &[value; N])?;
                let y = pool.zeroed::<u32>(&b, N)?;
                if self.random.one_in(2) {
                    x.copy_from(&c, &y)?;
                    drop((y, pool));
                    return same("memory of a pool", &x.to_vec(&b)?, 0);
                }
                drop(pool);
                same("memory of a pool", &x.to_vec(&c)?, value)
            }
            5 => {
                let mut raw = RawDeviceBuffer::zeroed(&a, 4 * N)?;
                raw.view_mut().slice_mut(0..2 * N)?.fill(&b, 1)?;
                let typed = raw.into_typed::<u32>().map_err(|refused| refused.error)?;
                let lease = typed.lease();
                let outcome = same("raw memory", &typed.slice(0..N / 2)?.to_vec(&c)?, 0x0101_0101);
                drop(typed);
                drop(lease);
                outcome
            }
            6 => {
                let asked = DeviceBuffer::<u8>::zeroed(&a, 1 << 40);
                match asked {
                    Err(MemoryError::OutOfMemory { .. }) => FINE,
                    Err(error) => Err(error.into()),
                    Ok(_) => Ok(Err("there is no such amount of memory".into())),
                }
            }
            _ => {
                // As much as a device with little memory has not got.
                let large = DeviceBuffer::<u32>::zeroed(&a, 3 << 20)?;
                same("the end of a large buffer", &large.range_to_vec(&b, (3 << 20) - 8..3 << 20)?, 0)
            }
        }
    }
}
