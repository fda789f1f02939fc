//! Raw launches: arguments, options, checks.

mod args;
mod argument;
mod call;
mod check;
mod options;
mod prepared;
mod stored;

pub use args::LaunchArgs;
pub use argument::{ByAddress, ByReference, ByValue, KernelArgument};
pub(crate) use call::launch;
pub(crate) use check::check;
pub use options::LaunchOptions;
pub use prepared::PreparedLaunch;
pub(crate) use stored::StoredArgs;
