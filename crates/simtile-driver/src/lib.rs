//! The CUDA driver API as one table of function pointers behind a driver *value*.
//!
//! A [`Driver`] is a `Copy` pair of a [`Table`] and a [`State`]. The real driver ([`Driver::cuda`]), every
//! simulated driver and the layers in between (call counting) are such values, so a process may hold
//! any number of independent drivers and everything above this crate works on all of them.
//!
//! * [`sys`]: types and constants under CUDA's names;
//! * [`Entry`], [`Table`]: the list of driver entries, generated from one macro;
//! * [`Driver`]: the value, with one method an entry and checked calls ([`Driver::check`]);
//! * [`cuda`]: finding, checking and opening libcuda; symbols resolve on first use;
//! * [`count`]: a layer that counts calls per entry;
//! * [`Extras`]: what a simulated driver takes beyond CUDA (labels, declared accesses).
//!
//! # Missing symbols
//!
//! A driver that lacks an entry answers [`CUresult::SIMTILE_MISSING_ENTRY`](sys::CUresult), a value no CUDA
//! driver returns; [`Driver::check`] turns it into an error that names the symbol, the version that has it
//! and the driver's version.

#[macro_use]
mod entries;
pub mod count;
pub mod cuda;
mod driver;
mod error;
mod extras;
pub mod sys;
mod table;

pub use driver::{Driver, DriverKind, State};
pub use error::{DriverError, Severity};
pub use extras::{AccessMode, DeclaredAccess, Extras, LabelTarget};
pub use table::{Entry, Table};
