//! What kernels print.
//!
//! A simulator keeps it. The real driver writes it to the process's standard output, so that is sent to a file
//! meanwhile; tests on a GPU have a process of their own.

use super::{Check, Cx, Stop};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;

/// What kernels print during `work`, which ends with a synchronisation of the context.
///
/// # Errors
/// What `work` returns, or why the output could not be taken.
pub fn printed(cx: &Cx, work: impl FnOnce() -> Check) -> Check<String> {
    if let Some(simulator) = cx.simulator() {
        simulator.take_printf();
        work()?;
        return Ok(String::from_utf8_lossy(&simulator.take_printf()).into_owned());
    }
    let io = |error: std::io::Error| Stop::fail(format!("cannot take standard output: {error}"));
    let path = std::env::temp_dir().join(format!("simtile-cts-{}-printf", std::process::id()));
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).map_err(io)?;
    // The file lives on until it is closed.
    let _ = std::fs::remove_file(&path);
    std::io::stdout().flush().map_err(io)?;
    // SAFETY: plain calls on descriptors that this process owns; 1 is open, or the call says that it is not.
    let saved = unsafe { libc::dup(1) };
    if saved < 0 {
        return Err(io(std::io::Error::last_os_error()));
    }
    // SAFETY: both descriptors are open.
    let redirected = unsafe { libc::dup2(file.as_raw_fd(), 1) };
    let outcome = if redirected < 0 { Err(io(std::io::Error::last_os_error())) } else { work() };
    // SAFETY: flushing all C streams touches no memory of ours. The driver prints through them. `saved` is
    // the descriptor from above, open and used by nobody else.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::dup2(saved, 1);
        libc::close(saved);
    }
    outcome?;
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    file.read_to_end(&mut text).map_err(io)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
