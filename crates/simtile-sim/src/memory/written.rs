//! One bit a byte: was it ever written.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of one backing, 64 bytes a word. Allocated zeroed like the bytes, so that untouched pages cost
/// nothing.
pub(super) struct Written {
    words: NonNull<AtomicU64>,
    count: usize,
}

impl Written {
    /// No byte of `bytes` was written. `None` if the host has not enough memory.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let count = bytes.div_ceil(64).max(1);
        let layout = Layout::array::<AtomicU64>(count).ok()?;
        // SAFETY: the size is not zero.
        let words = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { words: words.cast(), count })
    }

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        assert!((index as usize) < self.count);
        // SAFETY: inside the array, by the assertion; zeroed bits are a valid `AtomicU64`.
        unsafe { self.words.add(index as usize).as_ref() }
    }

    #[inline]
    pub(super) fn all(&self, offset: u64, bytes: u64) -> bool {
        let (first, shift) = (offset / 64, offset % 64);
        if bytes == 0 {
            return true;
        }
        if bytes <= 64 - shift {
            let mask = mask(shift, bytes);
            return self.word(first).load(Ordering::Relaxed) & mask == mask;
        }
        ranges(offset, bytes).all(|(word, mask)| self.word(word).load(Ordering::Relaxed) & mask == mask)
    }

    pub(super) fn first_missing(&self, offset: u64, bytes: u64) -> Option<u64> {
        ranges(offset, bytes).find_map(|(word, mask)| {
            let missing = !self.word(word).load(Ordering::Relaxed) & mask;
            (missing != 0).then(|| word * 64 + u64::from(missing.trailing_zeros()))
        })
    }

    #[inline]
    pub(super) fn mark(&self, offset: u64, bytes: u64) {
        let (first, shift) = (offset / 64, offset % 64);
        if bytes == 0 {
        } else if bytes <= 64 - shift {
            set(self.word(first), mask(shift, bytes));
        } else {
            ranges(offset, bytes).for_each(|(word, mask)| set(self.word(word), mask));
        }
    }

    pub(super) fn forget(&self, offset: u64, bytes: u64) {
        for (word, mask) in ranges(offset, bytes) {
            self.word(word).fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Takes over the bits of another range; the two may overlap in one bitmap.
    pub(super) fn copy(&self, offset: u64, from: &Written, from_offset: u64, bytes: u64) {
        if from.all(from_offset, bytes) {
            return self.mark(offset, bytes);
        }
        // Backwards where a forward pass would read what it has overwritten.
        let backwards = offset > from_offset;
        let steps = bytes.div_ceil(64);
        for i in 0..steps {
            let at = 64 * if backwards { steps - 1 - i } else { i };
            let len = (bytes - at).min(64);
            let bits = from.get(from_offset + at, len);
            self.put(offset + at, len, bits);
        }
    }

    /// Up to 64 bits from `offset`, lowest first.
    fn get(&self, offset: u64, len: u64) -> u64 {
        let (word, shift) = (offset / 64, offset % 64);
        let mut bits = self.word(word).load(Ordering::Relaxed) >> shift;
        if shift + len > 64 {
            bits |= self.word(word + 1).load(Ordering::Relaxed) << (64 - shift);
        }
        bits & mask(0, len)
    }

    fn put(&self, offset: u64, len: u64, bits: u64) {
        for (word, mask) in ranges(offset, len) {
            // The bits of the first word move up, those of the second come down.
            let here = if word == offset / 64 { bits << (offset % 64) } else { bits >> (64 - offset % 64) };
            self.word(word).fetch_or(here & mask, Ordering::Relaxed);
            self.word(word).fetch_and(here | !mask, Ordering::Relaxed);
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::array::<AtomicU64>(self.count) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { std::alloc::dealloc(self.words.as_ptr().cast(), layout) };
        }
    }
}

/// The words that hold a range, each with the range's bits in it.
fn ranges(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + bytes;
    let last = if bytes == 0 { offset / 64 } else { end.div_ceil(64) };
    (offset / 64..last).map(move |word| {
        let (low, high) = (offset.max(word * 64), end.min(word * 64 + 64));
        (word, mask(low % 64, high - low))
    })
}

#[inline]
fn mask(shift: u64, bytes: u64) -> u64 {
    if bytes >= 64 { u64::MAX } else { ((1 << bytes) - 1) << shift }
}

#[inline]
fn set(word: &AtomicU64, mask: u64) {
    // Most stores hit bytes that were written before: a plain load saves the locked operation.
    match word.load(Ordering::Relaxed) & mask == mask {
        true => {}
        false if mask == u64::MAX => word.store(mask, Ordering::Relaxed),
        false => {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(w: &Written, n: u64) -> Vec<bool> {
        (0..n).map(|i| w.all(i, 1)).collect()
    }

    proptest! {
        #[test]
        fn bits_agree_with_a_vector(
            steps in proptest::collection::vec((0u8..3, 0u64..300, 0u64..300, 0u64..300), 1..40)
        ) {
            let n = 600;
            let (a, other) = (Written::new(n).unwrap(), Written::new(n).unwrap());
            other.mark(7, 100);
            other.mark(250, 33);
            let other_model = bits(&other, n as u64);
            let mut model = vec![false; n];
            for (kind, at, len, from) in steps {
                let range = at as usize..(at + len) as usize;
                match kind {
                    0 => { a.mark(at, len); model[range.clone()].fill(true); }
                    1 => { a.forget(at, len); model[range.clone()].fill(false); }
                    _ if from % 2 == 0 => {
                        a.copy(at, &a, from, len);
                        model.copy_within(from as usize..(from + len) as usize, at as usize);
                    }
                    _ => {
                        a.copy(at, &other, from, len);
                        model[range.clone()].copy_from_slice(&other_model[from as usize..(from + len) as usize]);
                    }
                }
                prop_assert_eq!(&bits(&a, n as u64), &model);
                prop_assert_eq!(a.all(at, len), model[range.clone()].iter().all(|b| *b));
                let missing = model[range].iter().position(|b| !*b).map(|i| at + i as u64);
                prop_assert_eq!(a.first_missing(at, len), missing);
            }
        }
    }
}
