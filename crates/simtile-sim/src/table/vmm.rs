//! Virtual memory, sharing between processes, multicast.

use crate::entry::entries;

entries! {}
