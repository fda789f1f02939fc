//! The call log: a driver in front of another one that notes who called what, in order; and which calls wait.

use core::ffi::{c_char, c_int, c_uint, c_void};
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverKind, Entry, State, Table};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

/// A driver that notes its calls.
///
/// # Leaks
/// All of it: driver values live for ever.
pub struct CallLog {
    over: Driver,
    calls: Mutex<Vec<(ThreadId, Entry)>>,
}

impl CallLog {
    pub fn over(driver: Driver) -> &'static Self {
        Box::leak(Box::new(Self { over: driver, calls: Mutex::default() }))
    }

    pub fn driver(&'static self) -> Driver {
        // SAFETY: the functions of this table take such a log as state, and may be called from any thread.
        unsafe { Driver::from_parts(&TABLE, State::new(self)) }
    }

    fn note(&self, entry: Entry) {
        let call = (std::thread::current().id(), entry);
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// What the calling thread called while it ran this.
    pub fn during<T>(&self, run: impl FnOnce() -> T) -> (T, Vec<Entry>) {
        let before = self.calls.lock().unwrap_or_else(PoisonError::into_inner).len();
        let result = run();
        let (calls, me) =
            (self.calls.lock().unwrap_or_else(PoisonError::into_inner), std::thread::current().id());
        let mine = calls[before..].iter().filter(|call| call.0 == me).map(|call| call.1);
        (result, mine.collect())
    }
}

/// Whether a call may hold its thread until work of the device has finished, or stop other threads' launches until then: waits and
/// synchronous copies by their definition, the rest as an H200 was seen to do. The end of a stream waits for nothing, but takes long
/// while the stream has work.
pub fn may_wait(entry: Entry) -> bool {
    matches!(
        entry,
        Entry::cuCtxSynchronize
            | Entry::cuStreamSynchronize
            | Entry::cuEventSynchronize
            | Entry::cuCtxDestroy
            | Entry::cuGreenCtxDestroy
            | Entry::cuDevicePrimaryCtxRelease
            | Entry::cuDevicePrimaryCtxReset
            | Entry::cuStreamDestroy
            | Entry::cuCtxSetLimit
            | Entry::cuMemFree
            | Entry::cuMemFreeHost
            | Entry::cuMemHostRegister
            | Entry::cuMemHostUnregister
            | Entry::cuMemUnmap
            | Entry::cuMulticastUnbind
            | Entry::cuModuleLoad
            | Entry::cuModuleLoadData
            | Entry::cuModuleLoadDataEx
            | Entry::cuModuleLoadFatBinary
            | Entry::cuModuleUnload
            | Entry::cuLibraryLoadData
            | Entry::cuLibraryLoadFromFile
            | Entry::cuLibraryUnload
            | Entry::cuMemcpy
            | Entry::cuMemcpyHtoD
            | Entry::cuMemcpyDtoH
            | Entry::cuMemcpyDtoD
            | Entry::cuMemcpyPeer
            | Entry::cuMemcpy2D
            | Entry::cuMemcpy2DUnaligned
            | Entry::cuMemcpy3D
    )
}

macro_rules! noting_table {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        static TABLE: Table = Table {
            kind: DriverKind::Simulated,
            extras: None,
            $($name: {
                #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                unsafe fn call(state: State, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the table is only paired with states of this type.
                    let log = unsafe { state.get::<CallLog>() };
                    log.note(Entry::$name);
                    // SAFETY: the arguments are the caller's duty.
                    unsafe { log.over.$name($($arg),*) }
                }
                call
            },)*
        };
    };
}

simtile_driver::driver_entries!(noting_table);
