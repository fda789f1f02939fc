//! Counts of atomic operations and lock acquisitions, per thread, for gates on cost.
//!
//! Only with the feature `count`, or (lock acquisitions alone) `count-locks`. A lock of `parking_lot` counts as one acquisition (two read-modify-writes inside);
//! our own locks count as an acquisition and as the operations that they do.

use std::cell::Cell;

/// What one thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Atomic loads.
    pub loads: u64,
    /// Atomic stores.
    pub stores: u64,
    /// Atomic read-modify-writes outside `parking_lot`.
    pub rmws: u64,
    /// Lock acquisitions, `parking_lot`'s and ours.
    pub locks: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { loads: 0, stores: 0, rmws: 0, locks: 0 }) };
}

fn add(change: impl FnOnce(&mut Counts)) {
    COUNTS.with(|cell| {
        let mut counts = cell.get();
        change(&mut counts);
        cell.set(counts);
    });
}

/// The calling thread's counts since the last [`take`].
pub fn take() -> Counts {
    COUNTS.with(Cell::take)
}

pub(crate) fn lock() {
    add(|c| c.locks += 1);
}

/// Atomic types that count.
#[cfg(feature = "count")]
pub mod atomic {
    use super::add;
    pub use core::sync::atomic::{AtomicPtr, Ordering, fence};

    macro_rules! counted {
        ($name:ident, $value:ty $(, $fetch:ident)*) => {
            /// The std type of this name, counted.
            #[derive(Debug, Default)]
            pub struct $name(core::sync::atomic::$name);

            #[allow(missing_docs)]
            impl $name {
                pub const fn new(value: $value) -> Self {
                    Self(core::sync::atomic::$name::new(value))
                }
                #[inline]
                pub fn load(&self, order: Ordering) -> $value {
                    add(|c| c.loads += 1);
                    self.0.load(order)
                }
                #[inline]
                pub fn store(&self, value: $value, order: Ordering) {
                    add(|c| c.stores += 1);
                    self.0.store(value, order);
                }
                #[inline]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    add(|c| c.rmws += 1);
                    self.0.swap(value, order)
                }
                #[inline]
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    ok: Ordering,
                    err: Ordering,
                ) -> Result<$value, $value> {
                    add(|c| c.rmws += 1);
                    self.0.compare_exchange(old, new, ok, err)
                }
                #[inline]
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    ok: Ordering,
                    err: Ordering,
                ) -> Result<$value, $value> {
                    add(|c| c.rmws += 1);
                    self.0.compare_exchange_weak(old, new, ok, err)
                }
                $(
                    #[inline]
                    pub fn $fetch(&self, value: $value, order: Ordering) -> $value {
                        add(|c| c.rmws += 1);
                        self.0.$fetch(value, order)
                    }
                )*
                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }
            }
        };
    }

    counted!(AtomicBool, bool, fetch_and, fetch_or, fetch_xor);
    counted!(AtomicU8, u8, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
    counted!(AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
    counted!(AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
    counted!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
}
