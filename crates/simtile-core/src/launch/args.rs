//! Arguments of a raw launch.

mod values;

use super::KernelArgument;
use super::stored::Argument;
use crate::memory::sealed::{Memory, MemoryMut};
use crate::memory::{DeviceBuffer, DeviceMemory, DeviceMemoryMut};
use crate::stream::{AtomicScope, Touch};
use core::cell::RefCell;
use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use simtile_driver::sys::CUdeviceptr;
use simtile_types::DeviceCopy;
use smallvec::SmallVec;

/// Sixteen bytes at sixteen-byte alignment: what the most demanding parameter types need.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Slot(#[allow(dead_code, reason = "read through a pointer")] [MaybeUninit<u8>; 16]);

/// Where an argument lies, and its size.
#[derive(Clone, Copy)]
struct Place {
    /// In the slots; of a value in a box, in the addresses of boxes.
    at: u32,
    size: u32,
    /// Every byte is initialised.
    whole: bool,
}

/// The bit of [`Place::at`] that says that the value lies in a box. (A kernel has at most 32 764 bytes of parameters.)
const BOXED: u32 = 1 << 31;

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
/// They lie in a block on the heap that is used again by the thread's next launches, so that moving them (into a builder, a
/// future, another thread) moves one pointer, and launching again and again allocates nothing.
pub struct LaunchArgs<'a> {
    block: ManuallyDrop<Box<Block>>,
    /// The borrows in the block.
    borrowed: PhantomData<(Touch<'a>, Box<dyn Held + Send + Sync + 'a>)>,
}

/// What is behind [`LaunchArgs`]. Its borrows live at least as long as the `LaunchArgs` that it is behind, which empties it
/// when it is dropped.
#[derive(Default)]
struct Block {
    slots: Vec<Slot>,
    /// Bytes of `slots` in use.
    used: usize,
    places: Vec<Place>,
    touches: Vec<Touch<'static>>,
    /// Values that do not lie in the slots, with their addresses.
    boxed: Vec<(usize, Box<dyn Held + Send + Sync>)>,
}

/// Blocks that a thread keeps for its next launches, and the largest one that is worth keeping, in arguments.
const KEPT: usize = 8;
const KEPT_PLACES: usize = 256;

/// Slots that a block has at least, once it has any.
const LEAST_SLOTS: usize = 8;

thread_local! {
    #[allow(clippy::vec_box, reason = "the boxes are handed out as they are")]
    static BLOCKS: RefCell<Vec<Box<Block>>> = const { RefCell::new(Vec::new()) };
}

impl Block {
    /// An empty one.
    #[inline]
    fn take() -> Box<Self> {
        // A thread that is ending has none left.
        let kept = BLOCKS.try_with(|blocks| blocks.borrow_mut().pop()).ok().flatten();
        kept.unwrap_or_default()
    }

    /// Makes room for so many bytes.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        self.slots.resize(bytes.div_ceil(size_of::<Slot>()).max(LEAST_SLOTS), EMPTY);
    }

    /// Keeps an emptied one. (Its slots stay: nobody reads what was not written again.)
    #[inline]
    fn keep(self: Box<Self>) {
        if self.places.capacity() > KEPT_PLACES || self.slots.capacity() > KEPT_PLACES {
            return;
        }
        let _ = BLOCKS.try_with(|blocks| {
            let mut blocks = blocks.borrow_mut();
            if blocks.len() < KEPT {
                blocks.push(self);
            }
        });
    }
}

impl Default for LaunchArgs<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for LaunchArgs<'_> {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nobody sees the field afterwards.
        let mut block = unsafe { ManuallyDrop::take(&mut self.block) };
        block.used = 0;
        block.places.clear();
        block.touches.clear();
        // Last: destructors of values may panic, and then the block goes, without anything borrowed in it.
        block.boxed.clear();
        block.keep();
    }
}

impl<'a> LaunchArgs<'a> {
    /// No arguments.
    #[inline]
    pub fn new() -> Self {
        Self { block: ManuallyDrop::new(Block::take()), borrowed: PhantomData }
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
    #[inline]
    pub(crate) fn touch(&mut self, address: CUdeviceptr, touch: Touch<'a>) {
        self.push(address);
        // SAFETY: the borrow stays alive until `self` is dropped, whose destructor counts as a use of `'a`; that removes the entry.
        // Until then it is handed out with lifetimes of at most `'a` alone (`touches`).
        let touch = unsafe { core::mem::transmute::<Touch<'a>, Touch<'static>>(touch) };
        self.block.touches.push(touch);
    }

    /// Adds a value.
    #[inline]
    pub fn push<T: DeviceCopy>(&mut self, value: T) -> &mut Self {
        let size = size_of::<T>();
        let block = &mut **self.block;
        // Drivers copy arguments byte by byte, so alignment above a slot's own does not matter.
        let offset = block.used.next_multiple_of(align_of::<T>().min(align_of::<Slot>()));
        if offset + size > block.slots.len() * size_of::<Slot>() {
            block.grow(offset + size);
        }
        let target = block.slots.as_mut_ptr().cast::<MaybeUninit<u8>>().wrapping_add(offset);
        // SAFETY: the slots were just made large enough; padding may be uninitialised, as the slots may.
        unsafe {
            let source = core::ptr::from_ref(&value).cast::<MaybeUninit<u8>>();
            source.copy_to_nonoverlapping(target, size);
        }
        block.used = offset + size;
        // More than 2 GiB of arguments are never launched: the size is refused where it is checked.
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let at = u32::try_from(offset).unwrap_or(u32::MAX) & !BOXED;
        block.places.push(Place { at, size, whole: T::NO_PADDING });
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
        let size = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
        let at = self.block.boxed.len() as u32 | BOXED;
        let value: Box<dyn Held + Send + Sync + 'a> = value;
        // SAFETY: as in `touch`; the box is only dropped, with `self`.
        let value = unsafe {
            core::mem::transmute::<Box<dyn Held + Send + Sync + 'a>, Box<dyn Held + Send + Sync>>(value)
        };
        self.block.boxed.push((address, value));
        self.block.places.push(Place { at, size, whole: T::NO_PADDING });
        self
    }

    /// Arguments so far.
    pub fn len(&self) -> usize {
        self.block.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.block.places.is_empty()
    }

    /// Size of each argument in bytes.
    #[inline]
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.block.places.iter().map(|place| place.size as usize)
    }

    /// The device memory among them, and how it is touched.
    #[inline]
    pub(crate) fn touches(&self) -> &[Touch<'a>] {
        &self.block.touches
    }

    /// Pointers to the arguments, as the driver takes them. It only reads behind them.
    #[inline]
    pub(crate) fn pointers(&self) -> SmallVec<[*mut c_void; 16]> {
        let base = self.block.slots.as_ptr().cast::<u8>();
        if self.block.boxed.is_empty() {
            let places = self.block.places.iter();
            return places.map(|place| base.wrapping_add(place.at as usize).cast_mut().cast()).collect();
        }
        self.arguments().map(|argument| argument.pointer.cast_mut().cast()).collect()
    }

    /// The arguments as bytes.
    #[inline]
    pub(crate) fn arguments(&self) -> impl Iterator<Item = Argument> + '_ {
        let base = self.block.slots.as_ptr().cast::<u8>();
        self.block.places.iter().map(move |place| {
            let pointer = match place.at & BOXED {
                0 => base.wrapping_add(place.at as usize),
                _ => core::ptr::with_exposed_provenance(self.block.boxed[(place.at & !BOXED) as usize].0),
            };
            Argument { pointer, size: place.size as usize, whole: place.whole }
        })
    }
}

impl fmt::Debug for LaunchArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchArgs")
            .field("sizes", &self.sizes().collect::<Vec<_>>())
            .field("buffers", &self.touches().len())
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

    /// Aligned as no parameter is.
    #[derive(Clone, Copy)]
    #[repr(align(256))]
    struct Aligned(#[allow(dead_code, reason = "read through a pointer")] u32);

    // SAFETY: a number and padding; every pattern of the number is one.
    unsafe impl DeviceCopy for Aligned {}

    #[test]
    fn an_over_aligned_value_keeps_its_place_in_the_order() {
        let mut args = LaunchArgs::new().arg(1u8).arg(Aligned(7)).arg(2u16);
        for i in 0..40u64 {
            args.push(i);
        }
        let args = args.boxed(Box::new(Aligned(9))).arg(3u8);
        let sizes: Vec<_> = args.sizes().collect();
        assert_eq!((sizes[..3].to_vec(), sizes[43..].to_vec()), (vec![1, 256, 2], vec![256, 1]));
        // Drivers copy byte by byte: a slot's alignment is enough for them, but not for a reference.
        let word = |index: usize| {
            let pointer = args.pointers()[index].cast::<u32>();
            // SAFETY: the test stored an `Aligned` there, which begins with its number.
            unsafe { pointer.read() }
        };
        assert_eq!((word(1), word(43)), (7, 9));
        assert_eq!((read::<u8>(&args, 0), read::<u16>(&args, 2), read::<u64>(&args, 42)), (1, 2, 39));
        assert_eq!(read::<u8>(&args, 44), 3);
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
    fn padding_is_the_same_wherever_the_block_has_grown() {
        let mut args = LaunchArgs::new();
        for i in 0..16u64 {
            args.push([i, !i]);
        }
        args.push(7u8);
        args.push(1.5f64);
        assert_eq!((read::<u8>(&args, 16), read::<f64>(&args, 17)), (7, 1.5));
        assert!((0..16).all(|i| read::<[u64; 2]>(&args, i) == [i as u64, !(i as u64)]));
    }

    #[test]
    fn a_block_is_used_again_and_empty() {
        let first = LaunchArgs::new().arg(1u64).boxed(Box::new([1u8; 9]));
        let at = first.pointers()[0].addr();
        drop(first);
        let second = LaunchArgs::new().arg(2u32);
        assert_eq!(second.pointers()[0].addr(), at);
        assert_eq!((second.sizes().collect::<Vec<_>>(), read::<u32>(&second, 0)), (vec![4], 2));
        assert!(second.touches().is_empty());
        // One that is moved to another thread is that thread's from then on: it is not among those kept here.
        let kept = || BLOCKS.with(|blocks| blocks.borrow().len());
        let before = kept();
        std::thread::spawn(move || drop(second)).join().expect("no panic");
        assert_eq!(kept(), before);
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
