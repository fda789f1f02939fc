//! What the loader takes for a driver, and what it refuses.
//!
//! Each test builds a small library with `rustc` and looks from a child process whose loader search path
//! starts with it, because a process opens libcuda once.

use simtile_driver::cuda::LoadError;
use simtile_driver::sys::CUresult;
use simtile_driver::{Driver, Entry};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A libcuda with our marker, and a `cuGetProcAddress` that knows `cuInit` and `cuDriverGetVersion`.
const STUB: &str = r#"
#![allow(non_snake_case)]
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
MARKER
extern "C" fn init(_: c_uint) -> c_int { 0 }
extern "C" fn version(out: *mut c_int) -> c_int { unsafe { *out = 12040 }; 0 }
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char, out: *mut *const c_void, _version: c_int, _flags: u64, status: *mut c_int,
) -> c_int {
    let found = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"cuInit" => init as *const c_void,
        b"cuDriverGetVersion" => version as *const c_void,
        _ => { unsafe { *out = std::ptr::null(); *status = 1 }; return 500 }
    };
    unsafe { *out = found; *status = 0 };
    0
}
"#;

const MARKER: &str = "#[unsafe(no_mangle)] pub static simtile_libcuda_marker: u32 = 1;";

/// Where the parent put the stub, in a child process.
const FOLDER: &str = "SIMTILE_LOADER_FOLDER";

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("simtile-loader-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Builds a library from Rust source under the given file names.
    fn library(&self, source: &str, names: &[&str]) -> PathBuf {
        let rs = self.0.join("stub.rs");
        std::fs::write(&rs, source).unwrap();
        let built = self.0.join(names[0]);
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let status = Command::new(rustc)
            .args(["--edition=2024", "--crate-type=cdylib", "-Awarnings", "-o"])
            .arg(&built)
            .arg(&rs)
            .status()
            .unwrap();
        assert!(status.success());
        for name in &names[1..] {
            std::fs::copy(&built, self.0.join(name)).unwrap();
        }
        built
    }

    /// Runs the named test again in a child process with this folder first on the loader's search path,
    /// and gives what it printed.
    fn child(&self, test: &str) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("LD_LIBRARY_PATH", &self.0)
            .env(FOLDER, &self.0)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn marked_library_is_refused_on_the_search_path() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        let folder = Folder::new("marked");
        folder.library(&STUB.replace("MARKER", MARKER), &["libcuda.so", "libcuda.so.1"]);
        let printed = folder.child("marked_library_is_refused_on_the_search_path");
        assert!(printed.contains("refused and opened by path"), "{printed}");
        return;
    };
    match Driver::cuda() {
        Err(error @ LoadError::SimulatedLibrary { .. }) => {
            assert!(error.to_string().contains("name it by path"), "{error}");
        }
        // A machine with a real driver in a standard folder: that one is taken, never ours.
        Ok(driver) => assert_ne!(driver, Driver::open(folder.join("libcuda.so")).unwrap()),
        other => panic!("{other:?}"),
    }
    let named = Driver::open(folder.join("libcuda.so")).unwrap();
    assert_eq!(named.version().unwrap(), 12040);
    assert_eq!(named, Driver::open(folder.join("libcuda.so")).unwrap(), "opened once");
    println!("refused and opened by path");
}

#[test]
fn unmarked_library_is_a_driver_and_its_gaps_are_named() {
    if std::env::var_os(FOLDER).is_none() {
        let folder = Folder::new("plain");
        folder.library(&STUB.replace("MARKER", ""), &["libcuda.so.1"]);
        let printed = folder.child("unmarked_library_is_a_driver_and_its_gaps_are_named");
        assert!(printed.contains("missing symbol named"), "{printed}");
        return;
    }
    let driver = Driver::cuda().unwrap();
    // SAFETY: `cuInit` takes a plain integer.
    assert!(unsafe { driver.cuInit(0) }.is_ok());
    // SAFETY: the stub has no such entry, so nothing is called.
    let code = unsafe { driver.cuMulticastUnbind(0, 0, 0, 0) };
    assert_eq!(code, CUresult::SIMTILE_MISSING_ENTRY);
    let error = driver.check(Entry::cuMulticastUnbind, code).unwrap_err();
    assert!(error.is_missing_entry());
    assert_eq!(error.code(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        error.to_string(),
        "the driver has no cuMulticastUnbind (symbol cuMulticastUnbind, needs CUDA 12.1; this driver is CUDA 12.4)"
    );
    println!("missing symbol named");
}

#[test]
fn a_library_without_get_proc_address_is_too_old() {
    let folder = Folder::new("old");
    let path = folder.library("#[unsafe(no_mangle)] pub extern \"C\" fn cuInit() {}", &["libcuda.so"]);
    let error = Driver::open(&path).unwrap_err();
    assert!(matches!(error, LoadError::TooOld { .. }), "{error}");
    assert!(error.to_string().contains("CUDA 12.0"), "{error}");
}

#[test]
fn a_missing_library_is_an_error_with_the_loaders_words() {
    let error = Driver::open(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
    let LoadError::NotFound { tried } = &error else { panic!("{error}") };
    assert_eq!(tried.len(), 1);
    assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
}

/// A libcuda whose `cuEventElapsedTime` has one version or two, as drivers before and after CUDA 12.8.
const VERSIONED: &str = r#"
#![allow(non_snake_case)]
use std::ffi::{c_char, c_int, c_void, CStr};
extern "C" fn elapsed(out: *mut f32, _: usize, _: usize) -> c_int { unsafe { *out = 1.5 }; 0 }
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char, out: *mut *const c_void, version: c_int, _flags: u64, status: *mut c_int,
) -> c_int {
    let known = unsafe { CStr::from_ptr(name) } == c"cuEventElapsedTime";
    if known && (FIRST..LAST).contains(&version) {
        unsafe { *out = elapsed as *const c_void; *status = 0 };
        0
    } else {
        unsafe { *out = std::ptr::null(); *status = 1 };
        500
    }
}
"#;

/// The version of the driver, not that of any header, decides which function of a name is called; the result is the same.
/// Only the first version, only the second, both.
#[test]
fn fr_n2_versions_of_an_entry_give_the_same_result() {
    let folder = Folder::new("versions");
    for (name, first, last) in
        [("one.so", "2000", "12080"), ("two.so", "12080", "99999"), ("both.so", "2000", "99999")]
    {
        let source = VERSIONED.replace("FIRST", first).replace("LAST", last);
        let driver = Driver::open(folder.library(&source, &[name])).unwrap();
        let (mut millis, event) = (0.0, simtile_driver::sys::CUevent(16));
        // SAFETY: the out-pointer is valid for the call; the stub looks at no handle.
        let code = unsafe { driver.cuEventElapsedTime(&mut millis, event, event) };
        assert_eq!((code, millis), (CUresult::CUDA_SUCCESS, 1.5), "{name}");
    }
    // Neither: an error of the call that names it.
    let source = VERSIONED.replace("FIRST", "0").replace("LAST", "0");
    let driver = Driver::open(folder.library(&source, &["none.so"])).unwrap();
    let (mut millis, event) = (0.0, simtile_driver::sys::CUevent(16));
    // SAFETY: the entry is missing, so nothing is called.
    let code = unsafe { driver.cuEventElapsedTime(&mut millis, event, event) };
    let error = driver.check(Entry::cuEventElapsedTime, code).unwrap_err();
    assert!(error.is_missing_entry() && error.to_string().contains("cuEventElapsedTime"), "{error}");
}

/// Nothing is linked against the driver: a binary without one runs, and says what is missing when it is asked for.
#[test]
fn fr_n1_a_driver_that_is_not_there_is_an_error() {
    let error = Driver::open("/nonexistent/folder/libcuda.so.1").unwrap_err();
    assert!(matches!(error, LoadError::NotFound { .. }), "{error}");
}
