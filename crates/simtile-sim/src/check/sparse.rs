//! An array whose parts are made when first used, so that a large memory that is hardly touched costs hardly anything.

use std::sync::OnceLock;

const FANOUT: u64 = 64;
/// Chunks below one entry of the top.
const BELOW: u64 = FANOUT * FANOUT;

type Part<C> = OnceLock<Box<C>>;
type Row<C> = Box<[Part<C>]>;
type Table<C> = Box<[OnceLock<Row<C>>]>;

/// Chunks by number, in three levels. Getting one is lock-free.
pub(super) struct Sparse<C> {
    len: u64,
    top: OnceLock<Box<[OnceLock<Table<C>>]>>,
}

fn empty<T>(len: u64) -> Box<[OnceLock<T>]> {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl<C> Sparse<C> {
    /// For chunks with numbers below `len`.
    pub(super) const fn new(len: u64) -> Self {
        Self { len, top: OnceLock::new() }
    }

    /// A chunk that was made.
    #[inline]
    pub(super) fn get(&self, index: u64) -> Option<&C> {
        let table = self.top.get()?.get((index / BELOW) as usize)?.get()?;
        let row = table.get((index / FANOUT % FANOUT) as usize)?.get()?;
        row.get((index % FANOUT) as usize)?.get().map(|chunk| &**chunk)
    }

    /// A chunk, made if need be. Its number must be below the length.
    #[inline]
    pub(super) fn get_or(&self, index: u64, make: impl FnOnce() -> C) -> &C {
        let top = self.top.get_or_init(|| empty(self.len.div_ceil(BELOW)));
        let table = top[(index / BELOW) as usize].get_or_init(|| empty(FANOUT));
        let row = table[(index / FANOUT % FANOUT) as usize].get_or_init(|| empty(FANOUT));
        row[(index % FANOUT) as usize].get_or_init(|| Box::new(make()))
    }

    /// The chunks that were made, with their numbers, in order.
    pub(super) fn made(&self) -> impl Iterator<Item = (u64, &C)> {
        let tables = (0..).zip(self.top.get().into_iter().flatten());
        let tables = tables.filter_map(|(i, table): (u64, _)| Some((i * BELOW, table.get()?)));
        let rows = tables.flat_map(|(at, table)| {
            let rows = (0..).zip(table.iter());
            rows.filter_map(move |(i, row): (u64, _)| Some((at + i * FANOUT, row.get()?)))
        });
        rows.flat_map(|(at, row)| {
            let chunks = (0..).zip(row.iter());
            chunks.filter_map(move |(i, chunk): (u64, _)| Some((at + i, &**chunk.get()?)))
        })
    }

    /// Bytes that all of it takes.
    pub(super) fn memory(&self) -> u64 {
        let top = self.top.get();
        let tables: Vec<_> = top.into_iter().flatten().filter_map(OnceLock::get).collect();
        let rows: Vec<_> = tables.iter().flat_map(|table| table.iter()).filter_map(OnceLock::get).collect();
        let chunks = rows.iter().flat_map(|row| row.iter()).filter(|chunk| chunk.get().is_some()).count();
        let slots = top.map_or(0, |top| top.len() * size_of::<OnceLock<Table<C>>>())
            + tables.len() * FANOUT as usize * size_of::<OnceLock<Row<C>>>()
            + rows.len() * FANOUT as usize * size_of::<Part<C>>();
        (slots + chunks * size_of::<C>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_made_once_and_found_in_order() {
        let sparse = Sparse::<u64>::new(1 << 20);
        let numbers = [0, 1, 63, 64, 4095, 4096, 70_000, (1 << 20) - 1];
        for number in numbers.into_iter().rev() {
            assert!(sparse.get(number).is_none());
            assert_eq!(*sparse.get_or(number, || number * 2), number * 2);
            assert_eq!(*sparse.get_or(number, || unreachable!()), number * 2);
        }
        assert_eq!(sparse.made().map(|(i, &c)| (i, c)).collect::<Vec<_>>(), numbers.map(|n| (n, n * 2)));
        assert_eq!(Sparse::<u64>::new(1 << 40).memory(), 0);
        assert!(sparse.get(1 << 30).is_none());
    }
}
