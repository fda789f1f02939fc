//! Arguments of a raw launch.

use super::KernelArgument;
use crate::memory::sealed::{Memory, MemoryMut};
use crate::memory::{DeviceBuffer, DeviceMemory, DeviceMemoryMut};
use crate::stream::{AtomicScope, Touch};
use core::ffi::c_void;
use core::fmt;
use core::mem::MaybeUninit;
use simtile_driver::sys::CUdeviceptr;
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

    /// Adds an argument: a value, or memory by reference. A pointer among the values, also inside a struct, is the launcher's duty.
    ///
    /// ```no_run
    /// # use simtile_core::{DeviceBuffer, LaunchArgs};
    /// # fn args<'a>(x: &'a DeviceBuffer<f32>, y: &'a mut DeviceBuffer<f32>) -> LaunchArgs<'a> {
    /// LaunchArgs::new().arg(1024u32).arg(x).arg(y)
    /// # }
    /// ```
    #[must_use]
    pub fn arg<Kind>(mut self, argument: impl KernelArgument<'a, Kind>) -> Self {
        argument.add_to(&mut self);
        self
    }

    /// Adds memory: its address, and how the kernel touches it.
    pub(crate) fn touch(&mut self, address: CUdeviceptr, touch: Touch<'a>) {
        self.push(address);
        self.touches.push(touch);
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

    /// Adds the address of a buffer that the kernel reads (of device atomics: updates). The launch follows everything that used the buffer before, and
    /// later uses follow the launch. An empty buffer passes address 0.
    #[must_use]
    pub fn buffer<T: DeviceCopy>(mut self, buffer: &'a DeviceBuffer<T>) -> Self {
        self.touch(buffer.cu_deviceptr(), buffer.touched(buffer.shared_mode()));
        self
    }

    /// Adds the address of a buffer that the kernel writes.
    #[must_use]
    pub fn buffer_mut<T: DeviceCopy>(mut self, buffer: &'a mut DeviceBuffer<T>) -> Self {
        self.touch(buffer.cu_deviceptr(), buffer.touched_mut());
        self
    }

    /// Adds the address of a view, or of any other device memory, that the kernel reads (of device atomics: updates).
    #[must_use]
    pub fn view<M: DeviceMemory + ?Sized>(mut self, memory: &'a M) -> Self {
        self.touch(memory.address(), memory.touched(memory.shared_mode()));
        self
    }

    /// Adds the address of an exclusive view, or of any other device memory, that the kernel writes.
    #[must_use]
    pub fn view_mut<M: DeviceMemoryMut + ?Sized>(mut self, memory: &'a mut M) -> Self {
        self.touch(memory.address(), memory.touched_mut());
        self
    }

    /// Adds the address of device memory that the kernel updates with device atomics of the element's size. Such launches
    /// do not wait for each other.
    #[must_use]
    pub fn accumulated<M: DeviceMemory + ?Sized>(mut self, memory: &'a M, scope: AtomicScope) -> Self {
        self.touch(memory.address(), memory.touched(scope.mode(memory.element_bytes())));
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

    #[test]
    fn the_inline_part_ends_at_256_bytes_and_sixteen_arguments() {
        let mut args = LaunchArgs::new();
        for i in 0..16u64 {
            args.push([i, !i]);
        }
        assert!(!args.slots.spilled() && !args.places.spilled());
        assert_eq!(args.used, 256);
        args.push(7u8);
        assert!(args.slots.spilled() && args.places.spilled());
        // Padding after a spill is as before it.
        args.push(1.5f64);
        assert_eq!((read::<u8>(&args, 16), read::<f64>(&args, 17)), (7, 1.5));
        assert!((0..16).all(|i| read::<[u64; 2]>(&args, i) == [i as u64, !(i as u64)]));
    }

    #[test]
    fn large_and_over_aligned_values_are_stored_whole() {
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[repr(C, align(256))]
        struct Aligned([u32; 64]);
        // SAFETY: integers without padding.
        unsafe impl DeviceCopy for Aligned {}
        let value = Aligned(core::array::from_fn(|i| i as u32));
        let args = LaunchArgs::new().arg(1u8).arg(value).arg([9u32; 1000]);
        assert_eq!(args.sizes().collect::<Vec<_>>(), [1, 256, 4000]);
        let pointers = args.pointers();
        // SAFETY: the test stored these there; the alignment is a slot's.
        let (stored, large) =
            unsafe { (pointers[1].cast::<[u32; 64]>().read(), pointers[2].cast::<[u32; 1000]>().read()) };
        assert_eq!((stored, large), (value.0, [9; 1000]));
    }

    #[test]
    fn boxed_values_are_given_back_as_what_they_are() {
        let boxed = Box::new([3u64; 500]);
        let at = boxed.as_ptr().addr();
        let args = LaunchArgs::new().boxed(boxed).arg(2u32);
        let moved = args;
        assert_eq!(moved.pointers()[0].addr(), at);
        assert_eq!(read::<[u64; 500]>(&moved, 0), [3; 500]);
        assert_eq!(moved.sizes().collect::<Vec<_>>(), [4000, 4]);
    }

    #[test]
    fn values_and_references_to_values_are_arguments() {
        let n = 5u32;
        let args = LaunchArgs::new().arg(n).arg(&n).arg(&2.5f32).arg(()).arg((1u8, 2u16));
        assert_eq!(args.sizes().collect::<Vec<_>>(), [4, 4, 4, 0, 4]);
        assert_eq!((read::<u32>(&args, 1), read::<f32>(&args, 2)), (5, 2.5));
    }
}
