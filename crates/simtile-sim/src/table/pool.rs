//! Stream-ordered memory and pools.

use crate::entry::entries;

entries! {}
