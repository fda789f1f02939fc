//! F3: a child that was forked before the runtime was used works like any process.
#![cfg(unix)]

mod common;

use common::start;
use simtile_core::DeviceBuffer;

#[test]
fn fr_h7_a_child_forked_before_the_first_use_works() {
    // SAFETY: the child runs what follows alone and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let works = std::panic::catch_unwind(|| {
                let (_sim, _context, stream) = start();
                DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap().to_vec(&stream).unwrap() == [1; 10]
            });
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!works.unwrap_or(false))) }
        }
        child => {
            assert!(child > 0, "fork failed");
            let mut status = 0;
            // SAFETY: the out-pointer is valid for the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
    }
    // And so does the parent, whose child never was in the way.
    let (_sim, _context, stream) = start();
    assert_eq!(DeviceBuffer::from_slice(&stream, &[2u32; 4]).unwrap().to_vec(&stream).unwrap(), [2; 4]);
}
