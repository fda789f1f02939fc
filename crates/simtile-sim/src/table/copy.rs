//! Copies and memsets.

use crate::entry::entries;

entries! {}
