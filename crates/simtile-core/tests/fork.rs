//! F3: in a forked child no driver call is made, and drops touch nothing.
#![cfg(unix)]

mod common;

use common::*;
use simtile_core::{Device, DeviceBuffer, DeviceError, MemoryError, StreamError};

/// Runs in a forked child; the child's answer.
fn in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs what follows alone and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(false);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => {
            assert!(child > 0, "fork failed");
            let mut status = 0;
            // SAFETY: the out-pointer is valid for the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

#[test]
fn fr_h7_f3_a_forked_child_makes_no_driver_call() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap();
    let event = stream.record_event().unwrap();
    stream.synchronize().unwrap();
    let before = sim.counts().total();
    let fine = in_child(|| {
        let refused = matches!(stream.synchronize(), Err(StreamError::Forked { .. }))
            && matches!(event.synchronize(), Err(StreamError::Forked { .. }))
            && matches!(buffer.fill(&stream, 1), Err(MemoryError::Forked { .. }))
            && matches!(DeviceBuffer::<u8>::zeroed(&stream, 1), Err(MemoryError::Forked { .. }))
            && matches!(Device::count(sim.driver()), Err(DeviceError::Forked { .. }));
        // SAFETY: the originals are not used in this process again: it ends.
        let copies = unsafe { (std::ptr::read(&buffer), std::ptr::read(&stream), std::ptr::read(&context)) };
        drop(copies);
        refused && sim.counts().total() == before
    });
    assert!(fine);
    // The parent goes on.
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 10]);
}
