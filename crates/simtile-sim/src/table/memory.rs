//! Device memory: sizes, allocation, freeing, address ranges, pointer attributes.

use crate::entry::entries;

entries! {}
