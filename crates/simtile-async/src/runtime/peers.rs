//! Questions to the runtime in force, by the names that peers give them.

use super::Runtime;
use crate::{ExecutionContext, OpError, SchedulingPolicy};
use simtile_core::{Context, MemPool};
use std::sync::Arc;

fn current() -> Result<Runtime, OpError> {
    Runtime::current().ok_or(OpError::NoRuntime)
}

/// Runs something with the current runtime's context of a device.
///
/// # Errors
/// [`OpError::NoRuntime`], else as [`Runtime::context`].
pub fn with_device<R>(ordinal: usize, run: impl FnOnce(&Arc<Context>) -> R) -> Result<R, OpError> {
    Ok(run(current()?.context(ordinal)?))
}

/// The same as [`with_device`], by the peers' name.
///
/// # Errors
/// As [`with_device`].
pub fn with_cuda_context<R>(ordinal: usize, run: impl FnOnce(&Arc<Context>) -> R) -> Result<R, OpError> {
    with_device(ordinal, run)
}

/// Runs something with the policy of a device of the current runtime.
///
/// # Errors
/// As [`with_device`].
pub fn with_device_policy<R>(
    ordinal: usize,
    run: impl FnOnce(&dyn SchedulingPolicy) -> R,
) -> Result<R, OpError> {
    let policy = current()?.policy(ordinal)?;
    Ok(run(&*policy))
}

/// Ordinal of the first device of the current runtime.
///
/// # Errors
/// [`OpError::NoRuntime`].
pub fn get_default_device() -> Result<usize, OpError> {
    Ok(current()?.default_ordinal())
}

/// Runs something with the policy of the first device of the current runtime.
///
/// # Errors
/// As [`with_device`].
pub fn with_default_device_policy<R>(run: impl FnOnce(&dyn SchedulingPolicy) -> R) -> Result<R, OpError> {
    let policy = current()?.default_policy()?;
    Ok(run(&*policy))
}

/// Where operations on a device of the current runtime get memory from; `None`: the context's own pool.
///
/// # Errors
/// As [`with_device`].
pub fn get_device_pool(ordinal: usize) -> Result<Option<Arc<MemPool>>, OpError> {
    Ok(current()?.pool(ordinal)?.cloned())
}

/// How streams of a device of the current runtime are chosen.
///
/// # Errors
/// As [`with_device`].
pub fn global_policy(ordinal: usize) -> Result<Arc<dyn SchedulingPolicy>, OpError> {
    current()?.policy(ordinal)
}

/// Where the next operation of the current runtime would run.
///
/// # Errors
/// [`OpError::NoRuntime`], or the policy's.
pub fn next_execution() -> Result<ExecutionContext, OpError> {
    current()?.next_execution()
}
