//! Arguments that outlive their list: the bytes alone.

use super::LaunchArgs;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use smallvec::SmallVec;

/// One argument of a list.
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) pointer: *const u8,
    pub(crate) size: usize,
    /// Every byte is initialised.
    pub(crate) whole: bool,
}

/// Bytes of a kernel's arguments, each where its parameter type may lie.
#[derive(Default)]
pub(crate) struct StoredArgs {
    words: Vec<MaybeUninit<u128>>,
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    size: usize,
    whole: bool,
}

impl StoredArgs {
    /// Takes over what `args` holds. Without an allocation if there is as much as before.
    pub(crate) fn set(&mut self, args: &LaunchArgs<'_>) {
        self.places.clear();
        let mut end = 0usize;
        for Argument { size, whole, .. } in args.arguments() {
            // No parameter type needs more than sixteen.
            let offset = end.next_multiple_of(size.next_power_of_two().clamp(1, size_of::<u128>()));
            self.places.push(Place { offset, size, whole });
            end = offset + size;
        }
        self.words.resize(end.div_ceil(size_of::<u128>()), MaybeUninit::uninit());
        let base = self.words.as_mut_ptr().cast::<MaybeUninit<u8>>();
        for (place, argument) in self.places.iter().zip(args.arguments()) {
            let source = argument.pointer.cast::<MaybeUninit<u8>>();
            // SAFETY: the words were just made large enough, and the argument has so many bytes, of which some may be padding.
            unsafe { source.copy_to_nonoverlapping(base.add(place.offset), place.size) };
        }
    }

    /// Whether `args` has values of these sizes.
    pub(crate) fn same_sizes(&self, args: &LaunchArgs<'_>) -> bool {
        args.sizes().eq(self.places.iter().map(|place| place.size))
    }

    /// Whether these are the values of `args`. Values with padding never are: padding cannot be looked at.
    pub(crate) fn same(&self, args: &LaunchArgs<'_>) -> bool {
        let base = self.words.as_ptr().cast::<u8>();
        let same = |(place, argument): (&Place, Argument)| {
            if place.size != argument.size || !(place.whole && argument.whole) {
                return false;
            }
            // SAFETY: both have so many bytes, all initialised: they are values of types without padding.
            unsafe {
                core::slice::from_raw_parts(base.add(place.offset), place.size)
                    == core::slice::from_raw_parts(argument.pointer, argument.size)
            }
        };
        args.len() == self.places.len() && self.places.iter().zip(args.arguments()).all(same)
    }

    /// Pointers to the arguments, as the driver takes them. It only reads behind them.
    pub(crate) fn pointers(&self) -> SmallVec<[*mut c_void; 16]> {
        let base = self.words.as_ptr().cast::<u8>();
        self.places.iter().map(|place| base.wrapping_add(place.offset).cast_mut().cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_if_all_their_bytes_are() {
        let mut stored = StoredArgs::default();
        stored.set(&LaunchArgs::new().arg(7u8).arg(1.5f64).arg(9u128).boxed(Box::new([1u32; 3])));
        let same = |args: LaunchArgs<'_>| (stored.same_sizes(&args), stored.same(&args));
        assert_eq!(same(LaunchArgs::new().arg(7u8).arg(1.5f64).arg(9u128).arg([1u32; 3])), (true, true));
        assert_eq!(same(LaunchArgs::new().arg(7u8).arg(1.5f64).arg(8u128).arg([1u32; 3])), (true, false));
        assert_eq!(same(LaunchArgs::new().arg(7u8).arg(1.5f32).arg(9u128).arg([1u32; 3])), (false, false));
        assert_eq!(same(LaunchArgs::new().arg(7u8)), (false, false));
    }

    #[test]
    fn padding_is_not_looked_at() {
        let mut stored = StoredArgs::default();
        stored.set(&LaunchArgs::new().arg((1u8, 2u32)));
        assert!(!stored.same(&LaunchArgs::new().arg((1u8, 2u32))));
        assert!(!stored.same(&LaunchArgs::new().arg(5u64)));
    }

    #[test]
    fn pointers_lead_to_aligned_values() {
        let mut stored = StoredArgs::default();
        let args = LaunchArgs::new().arg(1u8).arg(2u64).arg(3u128).arg(());
        (0..2).for_each(|_| stored.set(&args));
        let pointers = stored.pointers();
        // SAFETY: values of these types were stored there.
        let values =
            unsafe { (*pointers[0].cast::<u8>(), *pointers[1].cast::<u64>(), *pointers[2].cast::<u128>()) };
        assert_eq!((values, pointers.len()), ((1, 2, 3), 4));
    }
}
