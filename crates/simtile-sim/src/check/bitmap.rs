//! A sparse, concurrent set of byte offsets.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one chunk covers. A chunk takes an eighth of that.
const CHUNK_BYTES: u64 = 16 << 10;
const CHUNK_WORDS: usize = (CHUNK_BYTES / 64) as usize;

/// One bit a byte, in chunks that are made when first touched.
///
/// Setting is lock-free and may race; the bits are read after everybody who sets has finished.
pub struct Bitmap {
    chunks: Box<[OnceLock<Box<[AtomicU64; CHUNK_WORDS]>>]>,
}

impl Bitmap {
    /// An empty set over `bytes` offsets.
    pub fn new(bytes: u64) -> Self {
        let chunks = (0..bytes.div_ceil(CHUNK_BYTES)).map(|_| OnceLock::new()).collect();
        Self { chunks }
    }

    fn chunk(&self, index: u64) -> &[AtomicU64; CHUNK_WORDS] {
        self.chunks[index as usize].get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK_WORDS]))
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

    /// The words that are not zero: (offset of the first byte of the word, bits).
    pub fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.chunks.iter().enumerate().filter_map(|(i, chunk)| Some((i, chunk.get()?))).flat_map(
            |(index, chunk)| {
                chunk.iter().enumerate().filter_map(move |(i, word)| {
                    let bits = word.load(Ordering::Relaxed);
                    (bits != 0).then_some((index as u64 * CHUNK_BYTES + i as u64 * 64, bits))
                })
            },
        )
    }

    /// The bits of the word that starts at `offset` (a multiple of 64).
    pub fn word(&self, offset: u64) -> u64 {
        let chunk = self.chunks.get((offset / CHUNK_BYTES) as usize).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[(offset % CHUNK_BYTES / 64) as usize].load(Ordering::Relaxed))
    }

    /// Adds bits of the word that starts at `offset` (a multiple of 64).
    pub fn set_word(&self, offset: u64, bits: u64) {
        set_bits(&self.chunk(offset / CHUNK_BYTES)[(offset % CHUNK_BYTES / 64) as usize], bits);
    }

    /// Removes bits from the word that starts at `offset`.
    pub fn clear_word(&self, offset: u64, bits: u64) {
        if let Some(chunk) = self.chunks.get((offset / CHUNK_BYTES) as usize).and_then(OnceLock::get) {
            chunk[(offset % CHUNK_BYTES / 64) as usize].fetch_and(!bits, Ordering::Relaxed);
        }
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.words().next().is_none()
    }

    /// First offset that is in both sets.
    pub fn first_common(&self, other: &Bitmap) -> Option<u64> {
        self.words().find_map(|(offset, bits)| {
            let common = bits & other.word(offset);
            (common != 0).then(|| offset + u64::from(common.trailing_zeros()))
        })
    }

    /// Memory that the chunks take, bytes.
    pub fn memory(&self) -> u64 {
        self.chunks.iter().filter(|chunk| chunk.get().is_some()).count() as u64 * CHUNK_BYTES / 8
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
        assert_eq!(set.memory(), 2048 * 4, "only touched chunks take memory");
    }

    #[test]
    fn finds_and_clears_what_two_sets_share() {
        let (a, b) = (Bitmap::new(4096), Bitmap::new(4096));
        a.set(100, 50);
        b.set(140, 100);
        assert_eq!(a.first_common(&b), Some(140));
        for (offset, bits) in b.words() {
            a.clear_word(offset, bits);
        }
        assert_eq!(a.first_common(&b), None);
        assert_eq!(members(&a), (100..140).collect::<Vec<_>>());
        assert!(!a.is_empty() && Bitmap::new(64).is_empty());
    }
}
