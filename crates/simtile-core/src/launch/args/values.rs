//! Values that were given first, and arguments that follow them.

use super::{BOXED, Block, EMPTY, LaunchArgs, Place, Slot};
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};

impl LaunchArgs<'_> {
    /// The same values in a list that borrows nothing. `None` if there is memory among the arguments.
    #[must_use]
    pub fn values(&self) -> Option<LaunchArgs<'static>> {
        if !self.touches().is_empty() {
            return None;
        }
        let mut block = Block::take();
        // Those of the launch before.
        block.slots.clear();
        for (argument, place) in self.arguments().zip(&self.block.places) {
            let at = block.slots.len() * size_of::<Slot>();
            block.slots.resize(block.slots.len() + argument.size.div_ceil(size_of::<Slot>()), EMPTY);
            let target = block.slots.as_mut_ptr().cast::<MaybeUninit<u8>>().wrapping_add(at);
            // SAFETY: the argument has so many bytes, the slots were just made large enough, and a value that may be copied to a
            // device may be copied here; its padding may be uninitialised, as the slots may.
            unsafe {
                argument.pointer.cast::<MaybeUninit<u8>>().copy_to_nonoverlapping(target, argument.size)
            };
            let at = u32::try_from(at).unwrap_or(u32::MAX) & !BOXED;
            block.places.push(Place { at, ..*place });
        }
        block.used = block.slots.len() * size_of::<Slot>();
        Some(LaunchArgs { block: ManuallyDrop::new(block), borrowed: PhantomData })
    }
}

impl<'a> LaunchArgs<'a> {
    /// These arguments behind `first`: values, of [`LaunchArgs::values`].
    #[must_use]
    pub fn after(self, first: &LaunchArgs<'static>) -> LaunchArgs<'a> {
        let Some(mut joined) = first.values() else { return self };
        let mut this = self;
        let (block, rest) = (&mut *joined.block, &mut *this.block);
        let (bytes, boxes) = (block.used, block.boxed.len() as u32);
        block.slots.extend_from_slice(&rest.slots);
        block.used += rest.used;
        block.places.extend(rest.places.iter().map(|place| {
            let at = match place.at & BOXED {
                0 => u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(place.at) & !BOXED,
                _ => place.at + boxes,
            };
            Place { at, ..*place }
        }));
        // What these borrow is borrowed by the result, whose lifetime is theirs.
        block.boxed.append(&mut rest.boxed);
        block.touches.append(&mut rest.touches);
        joined
    }
}

#[cfg(test)]
mod tests {
    use crate::LaunchArgs;
    use simtile_types::DeviceCopy;

    fn read<T: DeviceCopy>(args: &LaunchArgs<'_>, index: usize) -> T {
        // SAFETY: the test stored a `T` there, at a slot's alignment or a box's.
        unsafe { args.pointers()[index].cast::<T>().read_unaligned() }
    }

    #[test]
    fn values_come_before_what_follows_them() {
        let text = [7u8; 9];
        let first = LaunchArgs::new().arg(1u8).boxed(Box::new(text)).arg(2.5f64).values().unwrap();
        for _ in 0..2 {
            let rest = LaunchArgs::new().arg(3u16).boxed(Box::new([4u64; 500])).arg(5u128);
            let all = rest.after(&first);
            assert_eq!(all.sizes().collect::<Vec<_>>(), [1, 9, 8, 2, 4000, 16]);
            assert_eq!((read::<u8>(&all, 0), read::<[u8; 9]>(&all, 1), read::<f64>(&all, 2)), (1, text, 2.5));
            assert_eq!((read::<u16>(&all, 3), read::<u128>(&all, 5)), (3, 5));
            assert_eq!(read::<[u64; 500]>(&all, 4), [4; 500]);
            assert!(all.pointers()[5].cast::<u128>().is_aligned());
        }
        assert_eq!(LaunchArgs::new().values().unwrap().arg(1u32).after(&first).len(), 4);
    }
}
