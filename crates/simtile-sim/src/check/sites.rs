//! Which instruction of a kernel touched a byte.

use super::sparse::Sparse;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes that one chunk covers. A chunk takes half of that.
const CHUNK_BYTES: u64 = 4 << 10;
/// Bytes that share a note.
const GRAIN: u64 = 4;
const NOTES: usize = (CHUNK_BYTES / GRAIN) as usize;

/// The number of the last instruction that touched each 4 bytes; 0 where there was none, or where its number is not known.
pub(super) struct Sites(Sparse<[AtomicU16; NOTES]>);

impl Sites {
    pub(super) const fn new(bytes: u64) -> Self {
        Self(Sparse::new(bytes.div_ceil(CHUNK_BYTES)))
    }

    /// Notes an access by an instruction. 0 is nobody.
    #[inline]
    pub(super) fn note(&self, offset: u64, bytes: u64, site: u16) {
        if site == 0 || bytes == 0 {
            return;
        }
        let last = (offset + bytes - 1) / GRAIN;
        for grain in offset / GRAIN..=last {
            let chunk = self.0.get_or(grain / NOTES as u64, || std::array::from_fn(|_| AtomicU16::new(0)));
            chunk[(grain % NOTES as u64) as usize].store(site, Ordering::Relaxed);
        }
    }

    /// Who touched a byte last.
    pub(super) fn at(&self, offset: u64) -> u16 {
        let grain = offset / GRAIN;
        self.0
            .get(grain / NOTES as u64)
            .map_or(0, |chunk| chunk[(grain % NOTES as u64) as usize].load(Ordering::Relaxed))
    }

    pub(super) fn memory(&self) -> u64 {
        self.0.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::Sites;

    #[test]
    fn the_last_one_is_kept_for_each_four_bytes() {
        let sites = Sites::new(1 << 20);
        sites.note(4090, 12, 7);
        sites.note(4100, 1, 9);
        sites.note(0, 8, 0);
        assert_eq!([0, 4088, 4091, 4096, 4100, 4103, 4104].map(|at| sites.at(at)), [0, 7, 7, 7, 9, 9, 0]);
    }
}
