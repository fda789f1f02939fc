//! Counting calls per entry, over any driver.
//!
//! [`Counted`] is a driver in front of another one: each call bumps a counter and goes on. Counters
//! are per thread and owned by it, so a call costs no atomic read-modify-write; reading sums the threads'.

use crate::sys::*;
use crate::{Driver, Entry, State, Table};
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// One thread's counters for one counted driver. Written by that thread only.
struct Block {
    calls: [AtomicU64; Entry::COUNT],
}

struct Inner {
    driver: Driver,
    /// Every block ever handed out, and those whose thread ended. A block is never freed while the
    /// driver lives (for ever), so a thread may keep a plain reference to it.
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    all: Vec<&'static Block>,
    idle: Vec<&'static Block>,
}

impl Inner {
    #[inline]
    fn bump(&'static self, entry: Entry) {
        let block = match CURRENT.get() {
            Some((owner, block)) if core::ptr::eq(owner, self) => block,
            _ => match self.adopt() {
                Some(block) => block,
                None => return,
            },
        };
        let counter = &block.calls[entry as usize];
        // Only this thread writes the block, so a load and a store do not lose counts.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Finds or makes this thread's block. `None` while the thread is being torn down.
    #[cold]
    fn adopt(&'static self) -> Option<&'static Block> {
        OWNED
            .try_with(|owned| {
                let mut list = owned.0.take();
                let block = match list.iter().find(|(owner, _)| core::ptr::eq(*owner, self)) {
                    Some((_, block)) => *block,
                    None => {
                        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
                        let block = blocks.idle.pop().unwrap_or_else(|| {
                            let block: &'static Block = Box::leak(Box::new(Block {
                                calls: [const { AtomicU64::new(0) }; Entry::COUNT],
                            }));
                            blocks.all.push(block);
                            block
                        });
                        drop(blocks);
                        list.push((self, block));
                        block
                    }
                };
                owned.0.set(list);
                CURRENT.set(Some((self, block)));
                block
            })
            .ok()
    }
}

/// The blocks a thread owns; given back for reuse when the thread ends.
struct Owned(Cell<Vec<(&'static Inner, &'static Block)>>);

impl Drop for Owned {
    fn drop(&mut self) {
        CURRENT.set(None);
        for (owner, block) in self.0.take() {
            owner.blocks.lock().unwrap_or_else(PoisonError::into_inner).idle.push(block);
        }
    }
}

thread_local! {
    static CURRENT: Cell<Option<(&'static Inner, &'static Block)>> = const { Cell::new(None) };
    static OWNED: Owned = const { Owned(Cell::new(Vec::new())) };
}

/// A driver that counts the calls made through it.
///
/// # Leaks
/// A few kilobytes for each counted driver and each thread that used it at the same time as others:
/// driver values live for ever.
#[derive(Clone, Copy)]
pub struct Counted {
    inner: &'static Inner,
}

impl Counted {
    /// Puts a counting layer in front of `driver`.
    pub fn new(driver: Driver) -> Self {
        let inner = Box::leak(Box::new(Inner { driver, blocks: Mutex::default() }));
        Self { inner }
    }

    /// The counted driver: calls through this value are counted, calls through the one below are not.
    pub fn driver(self) -> Driver {
        let table = match self.inner.driver.kind() {
            crate::DriverKind::Cuda => &TABLE_CUDA,
            crate::DriverKind::Null => &TABLE_NULL,
            crate::DriverKind::Simulated => match self.inner.driver.table().extras {
                Some(_) => &TABLE_SIMULATED,
                None => &TABLE_PLAIN,
            },
        };
        // SAFETY: the counting tables expect exactly this state.
        unsafe { Driver::from_parts(table, State::new(self.inner)) }
    }

    /// The counts so far, summed over threads. Calls that run meanwhile may or may not be in it.
    pub fn counts(self) -> Counts {
        let blocks = self.inner.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = Box::new([0; Entry::COUNT]);
        for block in &blocks.all {
            for (sum, counter) in calls.iter_mut().zip(&block.calls) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        Counts { calls }
    }
}

/// Calls per entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Counts {
    calls: Box<[u64; Entry::COUNT]>,
}

impl Counts {
    /// Calls of one entry.
    pub fn of(&self, entry: Entry) -> u64 {
        self.calls[entry as usize]
    }

    /// Calls of all entries.
    pub fn total(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Calls made since `earlier` was taken.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let mut calls = self.calls.clone();
        for (now, before) in calls.iter_mut().zip(earlier.calls.iter()) {
            *now = now.saturating_sub(*before);
        }
        Counts { calls }
    }

    /// The entries that were called, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Entry, u64)> + '_ {
        Entry::ALL.iter().map(|&entry| (entry, self.of(entry))).filter(|&(_, count)| count > 0)
    }
}

impl core::fmt::Debug for Counts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_map().entries(self.iter().map(|(entry, count)| (entry.name(), count))).finish()
    }
}

macro_rules! counting_table {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        const COUNTING: Table = Table {
            kind: crate::DriverKind::Simulated,
            extras: None,
            $($name: {
                #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                unsafe fn call(state: State, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the counting tables are only paired with states of type `Inner`.
                    let inner = unsafe { state.get::<Inner>() };
                    inner.bump(Entry::$name);
                    // SAFETY: the arguments are the caller's duty.
                    unsafe { inner.driver.$name($($arg),*) }
                }
                call
            },)*
        };
    };
}

driver_entries!(counting_table);

static TABLE_CUDA: Table = Table { kind: crate::DriverKind::Cuda, ..COUNTING };
static TABLE_NULL: Table = Table { kind: crate::DriverKind::Null, ..COUNTING };
static TABLE_PLAIN: Table = COUNTING;
static TABLE_SIMULATED: Table = Table { extras: Some(&EXTRAS), ..COUNTING };

/// Extras go on to the driver below and are not counted: they are no driver calls.
static EXTRAS: crate::Extras = crate::Extras {
    label: |state, target, text| {
        // SAFETY: as in the table; `TABLE_SIMULATED` is only used over a driver that has extras.
        let driver = unsafe { state.get::<Inner>() }.driver;
        match driver.table().extras {
            // SAFETY: the extras of a table take its driver's state.
            Some(extras) => unsafe { (extras.label)(driver.state(), target, text) },
            None => CUresult::SIMTILE_MISSING_ENTRY,
        }
    },
    declare: |state, stream, accesses| {
        // SAFETY: as above.
        let driver = unsafe { state.get::<Inner>() }.driver;
        match driver.table().extras {
            // SAFETY: as above.
            Some(extras) => unsafe { (extras.declare)(driver.state(), stream, accesses) },
            None => CUresult::SIMTILE_MISSING_ENTRY,
        }
    },
    declare_named: |state, stream, accesses| {
        // SAFETY: as above.
        let driver = unsafe { state.get::<Inner>() }.driver;
        match driver.table().extras {
            // SAFETY: as above.
            Some(extras) => unsafe { (extras.declare_named)(driver.state(), stream, accesses) },
            None => CUresult::SIMTILE_MISSING_ENTRY,
        }
    },
    stream_number: |state, stream| {
        // SAFETY: as above.
        let driver = unsafe { state.get::<Inner>() }.driver;
        match driver.table().extras {
            // SAFETY: as above.
            Some(extras) => unsafe { (extras.stream_number)(driver.state(), stream) },
            None => 0,
        }
    },
    host_access: |state, address, bytes, mode| {
        // SAFETY: as above.
        let driver = unsafe { state.get::<Inner>() }.driver;
        match driver.table().extras {
            // SAFETY: as above.
            Some(extras) => unsafe { (extras.host_access)(driver.state(), address, bytes, mode) },
            None => CUresult::SIMTILE_MISSING_ENTRY,
        }
    },
};
