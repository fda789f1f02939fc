//! Raw launches: arguments, options, checks.

mod args;
mod check;
mod options;

pub use args::LaunchArgs;
pub(crate) use check::check;
pub use options::LaunchOptions;
