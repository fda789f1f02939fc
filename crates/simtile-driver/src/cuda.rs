//! Finding, checking and opening libcuda.
//!
//! The library is opened at run time, in this order: a path given by the caller; `libcuda.so.1` by
//! the loader's own search; the folders where WSL2 and distributions put it; `libcuda.so`. A library that
//! exports our marker symbol is simtile's own simulated libcuda: it is refused unless named by path, so
//! that a program never simulates by accident.
//!
//! Symbols resolve on first use through `cuGetProcAddress`, each at the version whose ABI this crate
//! declares. The first call of an entry costs that lookup; later calls one load and one jump.

use crate::sys::*;
use crate::{Driver, DriverKind, Entry, State, Table};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Exported by simtile's simulated libcuda, so that the loader can tell it from the driver.
pub const MARKER_SYMBOL: &str = "simtile_libcuda_marker";

/// Why no driver could be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No candidate could be opened.
    NotFound {
        /// Each name or path tried, with the loader's message.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library is simtile's own simulated libcuda and was not named by path.
    SimulatedLibrary {
        /// Where it was found.
        path: PathBuf,
    },
    /// The library has no `cuGetProcAddress`: it is older than CUDA 12.0, or no CUDA driver at all.
    TooOld {
        /// Where it was found.
        path: PathBuf,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => {
                f.write_str("no CUDA driver library could be opened")?;
                match tried.as_slice() {
                    [] => Ok(()),
                    // The loader's message names the file already.
                    [(_, why)] => write!(f, " ({why})"),
                    [(_, why), rest @ ..] => write!(f, " ({why}; nor in {} other places)", rest.len()),
                }
            }
            Self::SimulatedLibrary { path } => write!(
                f,
                "{} is simtile's simulated libcuda, not a driver; name it by path to use it",
                path.display()
            ),
            Self::TooOld { path } => write!(
                f,
                "{} has no cuGetProcAddress: simtile needs a driver of CUDA 12.0 or newer",
                path.display()
            ),
        }
    }
}

impl core::error::Error for LoadError {}

type GetProcAddress = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    u64,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// Newer versions of an entry with the very signature that this crate declares: a driver that has only those will do.
const SAME_SIGNATURE: &[(Entry, c_int)] = &[(Entry::cuEventElapsedTime, 12080)];

/// An opened libcuda: the library and the slots of its symbols.
struct CudaLib {
    get_proc_address: GetProcAddress,
    slots: [AtomicPtr<c_void>; Entry::COUNT],
    // Never unloaded: driver values are `Copy` and live as long as the process.
    library: Library,
}

impl CudaLib {
    /// The function for `entry`, or null if the driver has none.
    #[inline]
    fn slot(&self, entry: Entry) -> *mut c_void {
        // Acquire is not needed for the code behind the pointer, which the loader mapped before this
        // process could see any symbol; the pointer itself is all we publish.
        let pointer = self.slots[entry as usize].load(Ordering::Relaxed);
        if pointer.is_null() { self.resolve(entry) } else { pointer }
    }

    #[cold]
    fn resolve(&self, entry: Entry) -> *mut c_void {
        if entry.base() != entry.name() {
            // The exported name says which ABI it is; a base name would not.
            // SAFETY: nothing is called here, the symbol is only looked up.
            let symbol = unsafe { self.library.get::<*mut c_void>(entry.symbol().as_bytes()) };
            let pointer = symbol.map_or(core::ptr::null_mut(), |symbol| *symbol);
            self.slots[entry as usize].store(pointer, Ordering::Relaxed);
            return pointer;
        }
        let same = SAME_SIGNATURE.iter().filter(|(of, _)| *of == entry).map(|&(_, version)| version);
        let versions = core::iter::once(entry.since()).chain(same);
        let found = versions.map(|version| self.look_up(entry, version)).find(|pointer| !pointer.is_null());
        let pointer = found.unwrap_or(core::ptr::null_mut());
        self.slots[entry as usize].store(pointer, Ordering::Relaxed);
        pointer
    }

    /// The function that `entry`'s name stands for at a version, or null.
    fn look_up(&self, entry: Entry, version: c_int) -> *mut c_void {
        let mut name = [0u8; 96];
        name[..entry.name().len()].copy_from_slice(entry.name().as_bytes());
        let mut pointer = core::ptr::null_mut();
        let mut status = CUdriverProcAddressQueryResult::default();
        // SAFETY: the name is NUL-terminated (every entry name is shorter than the array), the
        // out-pointers are valid, and the function was looked up under this signature's symbol.
        let code =
            unsafe { (self.get_proc_address)(name.as_ptr().cast(), &mut pointer, version, 0, &mut status) };
        if code.is_ok() { pointer } else { core::ptr::null_mut() }
    }
}

macro_rules! cuda_table {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        static CUDA_TABLE: Table = Table {
            kind: DriverKind::Cuda,
            extras: None,
            $($name: {
                #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                unsafe fn call(state: State, $($arg: $ty),*) -> CUresult {
                    // SAFETY: this table is only paired with states of type `CudaLib` (`open`).
                    let library = unsafe { state.get::<CudaLib>() };
                    let function = library.slot(Entry::$name);
                    if function.is_null() {
                        return CUresult::SIMTILE_MISSING_ENTRY;
                    }
                    // SAFETY: the driver handed this pointer out for this name at this version, whose
                    // C signature is the one of this entry; the arguments are the caller's duty.
                    unsafe {
                        let function = core::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($ty),*) -> CUresult,
                        >(function);
                        function($($arg),*)
                    }
                }
                call
            },)*
        };
    };
}

driver_entries!(cuda_table);

/// Where the driver may be, in the order of trying. The first goes through the loader's own search.
fn candidates() -> &'static [&'static str] {
    sys_paths::CANDIDATES
}

mod sys_paths {
    //! Platform: names and folders of the driver library.

    #[cfg(windows)]
    pub const CANDIDATES: &[&str] = &["nvcuda.dll"];

    #[cfg(not(windows))]
    pub const CANDIDATES: &[&str] = &[
        "libcuda.so.1",
        // WSL2
        "/usr/lib/wsl/lib/libcuda.so.1",
        // Debian and Ubuntu, Fedora and RHEL, Arch and SUSE, NixOS
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
        #[cfg(target_arch = "aarch64")]
        "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
        "/usr/lib64/libcuda.so.1",
        "/usr/lib/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/run/opengl-driver/lib/libcuda.so.1",
        "libcuda.so",
    ];
}

impl Driver {
    /// NVIDIA's driver. Opened once in a process; later calls return the same value.
    ///
    /// # Errors
    /// [`LoadError`]: no library, simtile's own simulated one, or one older than CUDA 12.0.
    ///
    /// # Leaks
    /// The library stays loaded for the rest of the process.
    pub fn cuda() -> Result<Driver, LoadError> {
        static CUDA: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = CUDA.get() {
            return Ok(*driver);
        }
        let mut tried = Vec::new();
        let mut refused = None;
        for candidate in candidates() {
            match open(Path::new(candidate), false) {
                Ok(driver) => return Ok(*CUDA.get_or_init(|| driver)),
                Err(OpenError::Loader(why)) => tried.push((PathBuf::from(candidate), why)),
                Err(OpenError::Refused(why)) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.unwrap_or(LoadError::NotFound { tried }))
    }

    /// The driver library at `path`, which may be simtile's simulated libcuda.
    /// Each path is opened once in a process.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] with the loader's message, or [`LoadError::TooOld`].
    ///
    /// # Leaks
    /// The library stays loaded for the rest of the process.
    pub fn open(path: impl AsRef<Path>) -> Result<Driver, LoadError> {
        static OPENED: Mutex<Vec<(PathBuf, Driver)>> = Mutex::new(Vec::new());
        let path = path.as_ref();
        let key = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, driver)) = opened.iter().find(|(known, _)| *known == key) {
            return Ok(*driver);
        }
        match open(path, true) {
            Ok(driver) => {
                opened.push((key, driver));
                Ok(driver)
            }
            Err(OpenError::Loader(why)) => {
                Err(LoadError::NotFound { tried: vec![(path.to_path_buf(), why)] })
            }
            Err(OpenError::Refused(why)) => Err(why),
        }
    }
}

enum OpenError {
    /// The loader could not open it; another candidate may be there.
    Loader(String),
    /// It was opened and is not what was asked for.
    Refused(LoadError),
}

fn open(path: &Path, named_by_path: bool) -> Result<Driver, OpenError> {
    // SAFETY: opening a library runs its initialisers. libcuda's are meant for this; a library that
    // the user named is the user's choice.
    let library = unsafe { Library::new(path) }.map_err(|error| OpenError::Loader(error.to_string()))?;
    // SAFETY: only the presence of the symbol is asked; it is never used.
    let is_ours = unsafe { library.get::<*const c_void>(MARKER_SYMBOL.as_bytes()) }.is_ok();
    if is_ours && !named_by_path {
        return Err(OpenError::Refused(LoadError::SimulatedLibrary { path: path.to_path_buf() }));
    }
    // SAFETY: `cuGetProcAddress_v2` has this signature in every driver that has it (CUDA 12.0).
    let get_proc_address = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0") }
        .map(|symbol| *symbol)
        .map_err(|_| OpenError::Refused(LoadError::TooOld { path: path.to_path_buf() }))?;
    let lib: &'static CudaLib = Box::leak(Box::new(CudaLib {
        get_proc_address,
        slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; Entry::COUNT],
        library,
    }));
    // SAFETY: `CUDA_TABLE` expects exactly this state, and the library is never unloaded.
    Ok(unsafe { Driver::from_parts(&CUDA_TABLE, State::new(lib)) })
}
