//! The table, the entry ids and the driver's methods, generated from the list of entries.

use crate::sys::*;
use crate::{Driver, DriverKind, Extras, State};
use core::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! define_table {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        /// One entry of the driver API.
        #[allow(non_camel_case_types, missing_docs, reason = "the names are CUDA's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Entry { $($name),* }

        impl Entry {
            /// Every entry, in table order: `ALL[e as usize] == e`.
            pub const ALL: &'static [Entry] = &[$(Entry::$name),*];
            /// How many entries there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Name as in CUDA's manual: `cuMemAlloc`. With an ABI suffix only where an older ABI has an entry too:
            /// `cuGraphGetEdges_v2`.
            pub const fn name(self) -> &'static str {
                match self { $(Entry::$name => stringify!($name)),* }
            }

            /// The name without ABI suffix.
            pub const fn base(self) -> &'static str {
                let name = self.name();
                match name.as_bytes() {
                    [.., b'_', b'v', b'2' | b'3'] => name.split_at(name.len() - 3).0,
                    _ => name,
                }
            }

            /// Exported C name of exactly this signature: `cuMemAlloc_v2`.
            pub const fn symbol(self) -> &'static str {
                match self { $(Entry::$name => $symbol),* }
            }

            /// CUDA version in which this signature appeared: 3020 is CUDA 3.2.
            pub const fn since(self) -> i32 {
                match self { $(Entry::$name => $since),* }
            }
        }

        /// One function pointer per driver entry. Each takes the [`State`] of its driver first.
        #[allow(non_snake_case, missing_docs, reason = "the names are CUDA's")]
        #[derive(Clone, Copy)]
        pub struct Table {
            pub kind: DriverKind,
            pub extras: Option<&'static Extras>,
            $(pub $name: unsafe fn(State, $($ty),*) -> CUresult,)*
        }

        impl Table {
            /// A table that has nothing: every entry answers
            /// [`CUresult::SIMTILE_MISSING_ENTRY`]. The base of partial tables.
            pub const MISSING: Table = Table {
                kind: DriverKind::Simulated,
                extras: None,
                $($name: {
                    #[allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                    unsafe fn missing(_: State, $(_: $ty),*) -> CUresult {
                        CUresult::SIMTILE_MISSING_ENTRY
                    }
                    missing
                },)*
            };
        }

        /// The driver's entries. Arguments, return codes and duties are CUDA's; see its manual.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
        impl Driver {
            $(
                #[doc = concat!("Calls `", $symbol, "`.\n\n# Safety\nAs CUDA's manual says for `", stringify!($name), "`: pointers must be valid for what the call reads or writes, and handles must belong to this driver.")]
                #[inline]
                pub unsafe fn $name(self, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the table and the state belong together (`Driver::from_parts`); the
                    // arguments are the caller's duty.
                    unsafe { (self.table().$name)(self.state(), $($arg),*) }
                }
            )*
        }
    };
}

driver_entries!(define_table);

impl CUresult {
    /// Answer of an entry that this driver does not have. Not a CUDA code; it never leaves Rust.
    pub const SIMTILE_MISSING_ENTRY: Self = Self(0x7351_0001);

    /// Whether this is `CUDA_SUCCESS`.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}
