//! Other kinds of memory: each step makes some, uses it on several streams, checks it and drops it with work in flight.

use super::thread::{FINE, Step, Thread};
use crate::theirs::Theirs;
use simtile_core::{
    DeviceBuffer, GrowableBuffer, ManagedBuffer, MemPool, MemoryError, PinnedHostBuffer, RawDeviceBuffer,
    Residence,
};
use std::time::Duration;

/// Kinds of steps.
const KINDS: usize = 9;
const N: usize = 64;
const GRAIN: usize = 2 << 20;
/// How long a stream is held up, in the exploration's time.
const A_WHILE: Duration = Duration::from_millis(20);

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
        match self.random.below(KINDS) {
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
                let theirs = Theirs::new(&context, 4 * N, &self.world.foreign_bytes)?;
                let mut foreign = DeviceBuffer::<u32>::from_foreign(theirs)?;
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
            7 => {
                // More uploads in flight than there are staging blocks at first.
                let stream = context.new_stream()?;
                let all: Result<Vec<_>, _> =
                    (0..12).map(|_| DeviceBuffer::<u32>::zeroed(&stream, N)).collect();
                let mut all = all?;
                stream.launch_host_function(|| simtile_sync::time::sleep(A_WHILE))?;
                for (buffer, i) in all.iter_mut().zip(0..) {
                    buffer.copy_from_slice(&stream, &[value.wrapping_add(i); N])?;
                }
                for (buffer, i) in all.iter().zip(0..) {
                    let outcome = same("one upload of many", &buffer.to_vec(&b)?, value.wrapping_add(i));
                    if !matches!(outcome, Ok(Ok(()))) {
                        return outcome;
                    }
                }
                FINE
            }
            _ => {
                // As much as a device with little memory has not got.
                let large = DeviceBuffer::<u32>::zeroed(&a, 3 << 20)?;
                same("the end of a large buffer", &large.range_to_vec(&b, (3 << 20) - 8..3 << 20)?, 0)
            }
        }
    }
}
