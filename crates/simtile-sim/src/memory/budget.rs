//! How much memory a device has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a device's memory: all of them, and those that are used.
#[derive(Debug)]
pub struct Budget {
    total: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    pub(super) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total: AtomicU64::new(total), used: AtomicU64::new(0) })
    }

    pub(super) fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes left.
    pub fn free(&self) -> u64 {
        self.total().saturating_sub(self.used())
    }

    /// Uses bytes until the charge is dropped. `None` if there are not so many left.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let mut charge = Charge { budget: self.clone(), bytes: 0 };
        charge.grow(bytes).then_some(charge)
    }
}

/// Bytes that are in use as long as this lives.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Uses more. False, and nothing has changed, if there are not so many left.
    pub fn grow(&mut self, more: u64) -> bool {
        let total = self.budget.total();
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|&used| used <= total)
        });
        self.bytes += if taken.is_ok() { more } else { 0 };
        taken.is_ok()
    }

    /// Gives some back.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.used.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_lasts_until_it_is_dropped() {
        let budget = Budget::new(100);
        let mut a = budget.charge(60).unwrap();
        assert!(budget.charge(41).is_none());
        assert!(budget.charge(u64::MAX).is_none());
        assert!(a.grow(40) && !a.grow(1));
        assert_eq!((budget.free(), a.bytes()), (0, 100));
        a.shrink(30);
        assert_eq!(budget.free(), 30);
        drop(a);
        assert_eq!((budget.used(), budget.total()), (0, 100));
    }
}
