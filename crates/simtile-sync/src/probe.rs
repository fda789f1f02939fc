//! A cell whose accesses loom can see.
//!
//! The value lives in an ordinary `UnsafeCell`. Under loom a second, empty cell is touched at the start and at the
//! end of each access, so that loom reports two accesses without an order.

use core::cell::UnsafeCell;

#[derive(Debug)]
pub(crate) struct Probe<T> {
    value: UnsafeCell<T>,
    #[cfg(loom)]
    seen: loom::cell::UnsafeCell<()>,
}

impl<T> Probe<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            seen: loom::cell::UnsafeCell::new(()),
        }
    }

    /// The value's address.
    #[inline]
    pub(crate) fn get(&self) -> *mut T {
        self.value.get()
    }

    /// The value, by the unique owner.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// A shared access begins or ends here.
    #[inline]
    pub(crate) fn touch_shared(&self) {
        #[cfg(loom)]
        self.seen.with(|_| ());
    }

    /// An exclusive access begins or ends here.
    #[inline]
    pub(crate) fn touch_exclusive(&self) {
        #[cfg(loom)]
        self.seen.with_mut(|_| ());
    }
}
