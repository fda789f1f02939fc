//! The driver value.

use crate::sys::CUresult;
use crate::{DriverError, Entry, Table};
use core::fmt;

/// What stands behind a driver value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverKind {
    /// NVIDIA's libcuda, or a library named by path that behaves like it.
    Cuda,
    /// A simulated driver.
    Simulated,
    /// The null driver: every call succeeds at once and does nothing.
    Null,
}

/// The state half of a driver value: an opaque address that only the table's functions understand.
///
/// States live as long as the process, so that a `Copy` driver value can never dangle. A simulated
/// driver that was shut down leaves a small shell that answers `CUDA_ERROR_DEINITIALIZED`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct State(*const ());

// SAFETY: a state is only an address; the functions of the table it belongs to may be called from any
// thread, as CUDA's may (the contract of `Driver::from_parts`).
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    /// A state that points to `value`, which lives for ever.
    pub const fn new<T: Sync>(value: &'static T) -> Self {
        Self(core::ptr::from_ref(value).cast())
    }

    /// The state of a driver that needs none.
    pub const fn none() -> Self {
        Self(core::ptr::null())
    }

    /// The value behind this state.
    ///
    /// # Safety
    /// The state was made by `State::new` from a `&'static T` of exactly this type.
    #[inline]
    pub const unsafe fn get<T: Sync>(self) -> &'static T {
        // SAFETY: the caller says that this address came from a `&'static T`.
        unsafe { &*self.0.cast::<T>() }
    }

    /// The address, for identity only.
    pub fn address(self) -> usize {
        self.0.addr()
    }
}

/// A CUDA driver as a value: a `Copy` handle to a table of entries and the state they work on.
///
/// Two driver values are equal if they are the same driver.
#[derive(Clone, Copy)]
pub struct Driver {
    table: &'static Table,
    state: State,
}

impl Driver {
    /// A driver from its two halves.
    ///
    /// # Safety
    /// Every function of `table` may be called with `state` and CUDA's arguments, from any thread, for
    /// the rest of the process.
    pub const unsafe fn from_parts(table: &'static Table, state: State) -> Self {
        Self { table, state }
    }

    /// The table.
    #[inline]
    pub const fn table(self) -> &'static Table {
        self.table
    }

    /// The state.
    #[inline]
    pub const fn state(self) -> State {
        self.state
    }

    /// What stands behind this value.
    pub const fn kind(self) -> DriverKind {
        self.table.kind
    }

    /// Turns the return code of `entry` into a result.
    ///
    /// # Errors
    /// [`DriverError`] with the entry and the code; for a missing entry also the version that has it
    /// and this driver's version.
    #[inline]
    pub fn check(self, entry: Entry, code: CUresult) -> Result<(), DriverError> {
        if code.is_ok() { Ok(()) } else { Err(self.error(entry, code)) }
    }

    #[cold]
    fn error(self, entry: Entry, code: CUresult) -> DriverError {
        if code == CUresult::SIMTILE_MISSING_ENTRY {
            DriverError::missing(entry, self.version().ok())
        } else {
            DriverError::new(entry, code)
        }
    }

    /// The driver's CUDA version: 13000 is CUDA 13.0.
    ///
    /// # Errors
    /// What `cuDriverGetVersion` returned.
    pub fn version(self) -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: the out-pointer is valid for the call.
        let code = unsafe { self.cuDriverGetVersion(&mut version) };
        if code.is_ok() { Ok(version) } else { Err(DriverError::new(Entry::cuDriverGetVersion, code)) }
    }
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.table, other.table) && self.state == other.state
    }
}

impl Eq for Driver {}

impl core::hash::Hash for Driver {
    fn hash<H: core::hash::Hasher>(&self, hasher: &mut H) {
        core::ptr::hash(self.table, hasher);
        self.state.hash(hasher);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("kind", &self.kind()).field("state", &self.state.0).finish()
    }
}

/// Calls a driver entry and turns its code into a `Result<(), DriverError>`:
/// `call!(driver, cuStreamDestroy(stream))?`.
///
/// Expands to an unsafe call; the caller writes the `unsafe` block and its reason around it.
#[macro_export]
macro_rules! call {
    ($driver:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let driver: $crate::Driver = $driver;
        let code = driver.$entry($($arg),*);
        driver.check($crate::Entry::$entry, code)
    }};
}
