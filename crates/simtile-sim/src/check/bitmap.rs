//! A sparse, concurrent set of byte offsets.

use super::sparse::Sparse;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one chunk covers. A chunk takes an eighth of that.
const CHUNK_BYTES: u64 = 4 << 10;
const CHUNK_WORDS: usize = (CHUNK_BYTES / 64) as usize;

/// One bit a byte, in chunks that are made when first touched.
///
/// Setting is lock-free and may race; the bits are read after everybody who sets has finished.
pub struct Bitmap {
    /// Offsets that are in the set where there is no chunk: a range costs no memory until it is cut.
    implied: std::ops::Range<u64>,
    chunks: Sparse<[AtomicU64; CHUNK_WORDS]>,
}

impl Bitmap {
    /// An empty set over `bytes` offsets.
    pub fn new(bytes: u64) -> Self {
        Self::range(bytes, 0, 0)
    }

    /// One range of a set over `bytes` offsets.
    pub fn range(bytes: u64, offset: u64, len: u64) -> Self {
        Self { implied: offset..offset + len, chunks: Sparse::new(bytes.div_ceil(CHUNK_BYTES)) }
    }

    /// Bits of a word that has no chunk.
    fn implied_word(&self, offset: u64) -> u64 {
        let (low, high) = (self.implied.start.max(offset), self.implied.end.min(offset + 64));
        if low < high { mask(low - offset, high - low) } else { 0 }
    }

    fn chunk(&self, index: u64) -> &[AtomicU64; CHUNK_WORDS] {
        self.chunks.get_or(index, || {
            let first = index * CHUNK_BYTES;
            std::array::from_fn(|i| AtomicU64::new(self.implied_word(first + i as u64 * 64)))
        })
    }

    /// Adds the range. It must lie inside the set's offsets.
    #[inline]
    pub fn set(&self, offset: u64, bytes: u64) {
        let shift = offset % 64;
        if shift + bytes <= 64 && bytes > 0 {
            let word = &self.chunk(offset / CHUNK_BYTES)[(offset % CHUNK_BYTES / 64) as usize];
            set_bits(word, mask(shift, bytes));
        } else {
            self.set_long(offset, bytes);
        }
    }

    #[cold]
    fn set_long(&self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let next = (at / 64 * 64 + 64).min(end);
            let word = &self.chunk(at / CHUNK_BYTES)[(at % CHUNK_BYTES / 64) as usize];
            set_bits(word, mask(at % 64, next - at));
            at = next;
        }
    }

    /// The words that are not zero: (offset of the first byte of the word, bits), in order.
    pub fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let implied = self.implied.start / CHUNK_BYTES..self.implied.end.div_ceil(CHUNK_BYTES);
        let implied = if self.implied.is_empty() { 0..0 } else { implied };
        // Chunks that were made, and between them those of the implied range that were not.
        let mut made = self.chunks.made().peekable();
        let mut bare = implied.filter(|&index| self.chunks.get(index).is_none()).peekable();
        let chunks = std::iter::from_fn(move || match (made.peek(), bare.peek()) {
            (Some((m, _)), Some(b)) if b < m => bare.next().map(|index| (index, None)),
            (Some(_), _) => made.next().map(|(index, chunk)| (index, Some(chunk))),
            (None, _) => bare.next().map(|index| (index, None)),
        });
        chunks.flat_map(move |(index, chunk)| {
            (0..CHUNK_WORDS).filter_map(move |i| {
                let offset = index * CHUNK_BYTES + i as u64 * 64;
                let bits = match chunk {
                    Some(chunk) => chunk[i].load(Ordering::Relaxed),
                    None => self.implied_word(offset),
                };
                (bits != 0).then_some((offset, bits))
            })
        })
    }

    /// The bits of the word that starts at `offset` (a multiple of 64).
    pub fn word(&self, offset: u64) -> u64 {
        match self.chunks.get(offset / CHUNK_BYTES) {
            Some(chunk) => chunk[(offset % CHUNK_BYTES / 64) as usize].load(Ordering::Relaxed),
            None => self.implied_word(offset),
        }
    }

    /// Adds bits of the word that starts at `offset` (a multiple of 64).
    pub fn set_word(&self, offset: u64, bits: u64) {
        set_bits(&self.chunk(offset / CHUNK_BYTES)[(offset % CHUNK_BYTES / 64) as usize], bits);
    }

    /// How many words [`Bitmap::words`] looks at, about.
    pub fn span(&self) -> u64 {
        let chunks = self.chunks.made().count() as u64;
        (self.implied.end - self.implied.start) / 64 + chunks * CHUNK_WORDS as u64
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.words().next().is_none()
    }

    /// First offset that is in both sets.
    pub fn first_common(&self, other: &Bitmap) -> Option<u64> {
        if other.span() < self.span() {
            return other.first_common(self);
        }
        self.words().find_map(|(offset, bits)| {
            let common = bits & other.word(offset);
            (common != 0).then(|| offset + u64::from(common.trailing_zeros()))
        })
    }

    /// Memory that it takes, bytes.
    pub fn memory(&self) -> u64 {
        self.chunks.memory()
    }
}

#[inline]
fn mask(shift: u64, bytes: u64) -> u64 {
    if bytes >= 64 { u64::MAX } else { ((1 << bytes) - 1) << shift }
}

#[inline]
fn set_bits(word: &AtomicU64, mask: u64) {
    // Most accesses repeat: a plain load saves the locked operation.
    if word.load(Ordering::Relaxed) & mask != mask {
        word.fetch_or(mask, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Bitmap;

    fn members(set: &Bitmap) -> Vec<u64> {
        set.words()
            .flat_map(|(at, bits)| (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| at + b))
            .collect()
    }

    #[test]
    fn sets_ranges_of_any_length_and_place() {
        let set = Bitmap::new(100_000);
        for (offset, bytes) in [(0, 1), (60, 8), (1000, 4), (16_380, 10), (50_000, 300), (99_999, 1), (7, 0)]
        {
            set.set(offset, bytes);
        }
        let mut expected: Vec<u64> = vec![0];
        for range in [60..68, 1000..1004, 16_380..16_390, 50_000..50_300, 99_999..100_000] {
            expected.extend(range);
        }
        assert_eq!(members(&set), expected);
        assert_eq!(set.chunks.made().count(), 5, "only touched chunks take memory");
    }

    #[test]
    fn finds_what_two_sets_share() {
        let (a, b) = (Bitmap::new(4096), Bitmap::new(4096));
        a.set(100, 50);
        assert_eq!(a.first_common(&b), None);
        b.set(140, 100);
        assert_eq!(a.first_common(&b), Some(140));
        assert!(!a.is_empty() && Bitmap::new(64).is_empty());
    }

    #[test]
    fn a_range_takes_no_memory_until_it_is_cut() {
        let range = Bitmap::range(1 << 20, 1000, 60_000);
        assert_eq!(members(&range), (1000..61_000).collect::<Vec<_>>());
        assert_eq!(range.memory(), 0);
        range.set(500, 4);
        let expected: Vec<u64> = (500..504).chain(1000..61_000).collect();
        assert_eq!(members(&range), expected);
        assert_eq!(range.chunks.made().count(), 1);
        assert!(Bitmap::range(100, 50, 0).is_empty());
    }
}
