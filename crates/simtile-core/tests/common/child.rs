//! What runs in a forked child.

/// Runs in a forked child; the child's answer. One that waits for ever ends by a signal.
pub fn in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs what follows alone and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: it asks for a signal.
            unsafe { libc::alarm(20) };
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
