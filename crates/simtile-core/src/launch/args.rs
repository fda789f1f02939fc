//! Arguments of a raw launch.

use crate::memory::sealed::{Memory, MemoryMut};
use crate::memory::{DeviceBuffer, DeviceMemory, DeviceMemoryMut};
use crate::stream::{AtomicScope, Touch};
use core::ffi::c_void;
use core::fmt;
use core::mem::MaybeUninit;
use simtile_hazard::Mode;
use simtile_types::DeviceCopy;
use smallvec::SmallVec;

/// Sixteen bytes at sixteen-byte alignment: what the most demanding parameter types need.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Slot(#[allow(dead_code, reason = "read through a pointer")] [MaybeUninit<u8>; 16]);

/// Where an argument lies.
#[derive(Clone, Copy)]
enum Place {
    /// Offset in the slots, and size.
    Slot(u32, u32),
    /// Host address of a value in its box, and size.
    Boxed(usize, u32),
}

/// A value in a box, of whatever type: it is given back as what it was made.
trait Held {}

impl<T> Held for T {}

const EMPTY: Slot = Slot([MaybeUninit::uninit(); 16]);

/// Arguments of a raw launch, by value, in the order of the kernel's parameters.
///
/// ```
/// use simtile_core::LaunchArgs;
/// let args = LaunchArgs::new().arg(1024u32).arg(2.5f32);
/// assert_eq!(args.len(), 2);
/// ```
///
/// Up to 256 bytes and 16 arguments lie inline; more go to the heap.
#[derive(Default)]
pub struct LaunchArgs<'a> {
    slots: SmallVec<[Slot; 16]>,
    /// Bytes of `slots` in use.
    used: usize,
    places: SmallVec<[Place; 16]>,
    touches: SmallVec<[Touch<'a>; 8]>,
    /// Values that do not lie in the slots.
    boxed: Vec<Box<dyn Held + Send + Sync + 'a>>,
}

impl<'a> LaunchArgs<'a> {
    /// No arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. A pointer among them, also inside a struct, is the launcher's duty.
    #[must_use]
    pub fn arg<T: DeviceCopy>(mut self, value: T) -> Self {
        self.push(value);
        self
    }

    /// Adds a value.
    pub fn push<T: DeviceCopy>(&mut self, value: T) -> &mut Self {
        let size = size_of::<T>();
        // Drivers copy arguments byte by byte, so alignment above a slot's own does not matter.
        let offset = self.used.next_multiple_of(align_of::<T>().min(align_of::<Slot>()));
        self.slots.resize((offset + size).div_ceil(size_of::<Slot>()), EMPTY);
        let target = self.slots.as_mut_ptr().cast::<MaybeUninit<u8>>().wrapping_add(offset);
        // SAFETY: the slots were just made large enough; padding may be uninitialised, as the slots may.
        unsafe {
            let source = core::ptr::from_ref(&value).cast::<MaybeUninit<u8>>();
            source.copy_to_nonoverlapping(target, size);
        }
        self.used = offset + size;
        // A kernel has at most 32 764 bytes of parameters; a larger offset is refused by the size checks.
        self.places.push(Place::Slot(
            u32::try_from(offset).unwrap_or(u32::MAX),
            u32::try_from(size).unwrap_or(u32::MAX),
        ));
        self
    }

    /// Adds the address of a buffer that the kernel reads. The launch follows everything that used the buffer before, and
    /// later uses follow the launch. An empty buffer passes address 0.
    #[must_use]
    pub fn buffer<T: DeviceCopy>(mut self, buffer: &'a DeviceBuffer<T>) -> Self {
        self.push(buffer.cu_deviceptr());
        self.touches.push(buffer.touched(Mode::Read));
        self
    }

    /// Adds the address of a buffer that the kernel writes.
    #[must_use]
    pub fn buffer_mut<T: DeviceCopy>(mut self, buffer: &'a mut DeviceBuffer<T>) -> Self {
        self.push(buffer.cu_deviceptr());
        self.touches.push(buffer.touched_mut());
        self
    }

    /// Adds the address of a view, or of any other device memory, that the kernel reads.
    #[must_use]
    pub fn view<M: DeviceMemory + ?Sized>(mut self, memory: &'a M) -> Self {
        self.push(memory.address());
        self.touches.push(memory.touched(Mode::Read));
        self
    }

    /// Adds the address of an exclusive view, or of any other device memory, that the kernel writes.
    #[must_use]
    pub fn view_mut<M: DeviceMemoryMut + ?Sized>(mut self, memory: &'a mut M) -> Self {
        self.push(memory.address());
        self.touches.push(memory.touched_mut());
        self
    }

    /// Adds the address of device memory that the kernel updates with device atomics of the element's size. Such launches
    /// do not wait for each other.
    #[must_use]
    pub fn accumulated<M: DeviceMemory + ?Sized>(mut self, memory: &'a M, scope: AtomicScope) -> Self {
        self.push(memory.address());
        self.touches.push(memory.touched(scope.mode(memory.element_bytes())));
        self
    }

    /// Adds a value that stays in its box, for those that are too large to be moved around.
    #[must_use]
    pub fn boxed<T: DeviceCopy + Send + Sync + 'a>(mut self, value: Box<T>) -> Self {
        let address = core::ptr::from_ref(&*value).expose_provenance();
        self.places.push(Place::Boxed(address, u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)));
        self.boxed.push(value);
        self
    }

    /// Arguments so far.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Size of each argument in bytes.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().map(|&(Place::Slot(_, size) | Place::Boxed(_, size))| size as usize)
    }

    /// The device memory among them, and how it is touched.
    pub(crate) fn touches(&self) -> &[Touch<'a>] {
        &self.touches
    }

    /// Pointers to the arguments, as the driver takes them. It only reads behind them.
    pub(crate) fn pointers(&self) -> SmallVec<[*mut c_void; 16]> {
        let base = self.slots.as_ptr().cast::<u8>();
        let pointer = |place: &Place| match *place {
            Place::Slot(offset, _) => base.wrapping_add(offset as usize).cast_mut().cast(),
            Place::Boxed(address, _) => core::ptr::with_exposed_provenance_mut(address),
        };
        self.places.iter().map(pointer).collect()
    }
}

impl fmt::Debug for LaunchArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchArgs")
            .field("sizes", &self.sizes().collect::<Vec<_>>())
            .field("buffers", &self.touches.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: DeviceCopy>(args: &LaunchArgs<'_>, index: usize) -> T {
        let pointer = args.pointers()[index].cast::<T>();
        assert!(pointer.is_aligned());
        // SAFETY: the test stored a `T` there.
        unsafe { pointer.read() }
    }

    #[test]
    fn arguments_keep_value_and_alignment() {
        let args = LaunchArgs::new().arg(7u8).arg(1.5f64).arg((3u8, 9u32)).arg(5u128).arg(-1i16);
        assert_eq!(args.sizes().collect::<Vec<_>>(), [1, 8, 8, 16, 2]);
        assert_eq!(read::<u8>(&args, 0), 7);
        assert_eq!(read::<f64>(&args, 1), 1.5);
        assert_eq!(read::<(u8, u32)>(&args, 2), (3, 9));
        assert_eq!(read::<u128>(&args, 3), 5);
        assert_eq!(read::<i16>(&args, 4), -1);
    }

    #[test]
    fn many_arguments_spill_and_move() {
        let mut args = LaunchArgs::new();
        for i in 0..300u64 {
            args.push(i);
        }
        let moved = args;
        assert!((0..300).all(|i| read::<u64>(&moved, i) == i as u64));
    }
}
