//! Pinned, registered and managed host memory.

use crate::entry::entries;

entries! {}
