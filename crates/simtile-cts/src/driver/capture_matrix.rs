//! Which calls a capture forbids, by its mode and by thread: every cell of a table that was measured on an H200.

use crate::probe::capture_matrix::compare;

crate::frame::registry::tests! { Driver, "capture_matrix";
    compare,
}
