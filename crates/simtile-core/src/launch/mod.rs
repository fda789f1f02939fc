//! Raw launches: arguments, options, checks.

mod args;
mod call;
mod check;
mod options;

pub use args::LaunchArgs;
pub(crate) use call::launch;
pub(crate) use check::check;
pub use options::LaunchOptions;
