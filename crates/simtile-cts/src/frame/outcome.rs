//! What a test ends with, and the assertions that end it.
//!
//! A test returns [`Check`]: `Ok(())` passes, [`Stop`] carries a failure or the reason why this driver
//! cannot run it. No assertion panics; each says what was expected and what was found.

use simtile_driver::sys::CUresult;
use simtile_driver::{Driver, DriverError, Entry};
use std::fmt::{Debug, Display};

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Pass,
    /// It does not; expected and actual.
    Fail(String),
    /// This driver or device cannot run it; why.
    Unsupported(String),
}

/// Why a test stopped early.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The guarantee does not hold.
    Fail(String),
    /// This driver or device cannot run the test.
    Unsupported(String),
}

/// A step of a test.
pub type Check<T = ()> = Result<T, Stop>;

impl Stop {
    /// A failure with a message.
    pub fn fail(message: impl Display) -> Self {
        Self::Fail(message.to_string())
    }

    /// A reason why this driver or device cannot run the test.
    pub fn unsupported(reason: impl Display) -> Self {
        Self::Unsupported(reason.to_string())
    }

    /// Adds where or with what input it happened, in front.
    pub fn within(self, what: impl Display) -> Self {
        match self {
            Self::Fail(text) => Self::Fail(format!("{what}: {text}")),
            other => other,
        }
    }
}

impl From<Check> for Outcome {
    fn from(check: Check) -> Self {
        match check {
            Ok(()) => Self::Pass,
            Err(Stop::Fail(text)) => Self::Fail(text),
            Err(Stop::Unsupported(reason)) => Self::Unsupported(reason),
        }
    }
}

/// The call has to succeed. A driver that lacks the entry cannot run the test.
///
/// # Errors
/// [`Stop`] with the call, its code and the place.
pub fn succeeded(driver: Driver, entry: Entry, code: CUresult, at: &str) -> Check {
    if code.is_ok() {
        return Ok(());
    }
    Err(stopped(driver, entry, code, "CUDA_SUCCESS", at))
}

/// The call has to return one of these codes.
///
/// # Errors
/// [`Stop`] with the call, what was expected and the code.
pub fn returned(driver: Driver, entry: Entry, code: CUresult, expected: &[CUresult], at: &str) -> Check {
    if expected.contains(&code) {
        return Ok(());
    }
    let names: Vec<String> = expected.iter().map(|code| format!("{code:?}")).collect();
    Err(stopped(driver, entry, code, &names.join(" or "), at))
}

#[cold]
fn stopped(driver: Driver, entry: Entry, code: CUresult, expected: &str, at: &str) -> Stop {
    match driver.check(entry, code) {
        Err(error) if error.is_missing_entry() => Stop::Unsupported(error.to_string()),
        _ => {
            Stop::Fail(format!("{at}: {} returned {code:?} ({}), expected {expected}", entry.name(), code.0))
        }
    }
}

/// The code of an error has to be this one.
///
/// # Errors
/// [`Stop`] with both.
pub fn has_code(error: &DriverError, entry: Entry, code: CUresult) -> Check {
    if error.entry() == entry && error.code() == code {
        return Ok(());
    }
    Err(Stop::Fail(format!("expected {} to fail with {code:?}, got: {error}", entry.name())))
}

/// Compares two slices and reports the first difference with its index.
///
/// # Errors
/// [`Stop`] with index, expected and actual value, or both lengths.
pub fn same<T: PartialEq + Debug>(what: &str, actual: &[T], expected: &[T]) -> Check {
    if actual.len() != expected.len() {
        return Err(Stop::Fail(format!("{what}: {} values, expected {}", actual.len(), expected.len())));
    }
    match actual.iter().zip(expected).position(|(a, e)| a != e) {
        None => Ok(()),
        Some(i) => Err(Stop::Fail(format!(
            "{what}: value {i} of {} is {:?}, expected {:?}",
            actual.len(),
            actual[i],
            expected[i]
        ))),
    }
}

/// Calls a driver entry and gives its code.
///
/// A test that passes a wrong handle or number does so on purpose, and only where CUDA defines the answer;
/// pointers given to the driver are valid for the call in every use of this macro.
macro_rules! cu {
    ($cx:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let driver: simtile_driver::Driver = $cx.driver();
        // SAFETY: the tests pass pointers that are valid for what the call reads and writes; memory
        // given to queued work outlives it, because tests synchronise or keep it to their end.
        unsafe { driver.$entry($($arg),*) }
    }};
}

/// Calls a driver entry that has to succeed: `ok!(cx, cuInit(0))?`.
macro_rules! ok {
    ($cx:expr, $entry:ident($($arg:expr),* $(,)?)) => {
        $crate::frame::succeeded(
            $cx.driver(),
            simtile_driver::Entry::$entry,
            $crate::cu!($cx, $entry($($arg),*)),
            concat!(file!(), ":", line!()),
        )
    };
}

/// Calls a driver entry that has to return one of some codes, named without their prefix:
/// `code!(cx, [INVALID_VALUE], cuInit(1))?`.
macro_rules! code {
    ($cx:expr, [$($code:ident),+ $(,)?], $entry:ident($($arg:expr),* $(,)?)) => {
        $crate::frame::returned(
            $cx.driver(),
            simtile_driver::Entry::$entry,
            $crate::cu!($cx, $entry($($arg),*)),
            &[$(simtile_driver::sys::CUresult::$code),+],
            concat!(file!(), ":", line!()),
        )
    };
}

/// Ends the test with a failure unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {{
        let holds: bool = $condition;
        if !holds {
            return Err($crate::frame::Stop::Fail(format!(
                "{}:{}: {}", file!(), line!(), format_args!($($message)+)
            )));
        }
    }};
}

/// Ends the test with a failure unless both are equal: actual, expected, what it is.
macro_rules! ensure_eq {
    ($actual:expr, $expected:expr, $($what:tt)+) => {{
        let (actual, expected) = (&$actual, &$expected);
        if *actual != *expected {
            return Err($crate::frame::Stop::Fail(format!(
                "{}:{}: {}: {:?}, expected {:?}", file!(), line!(), format_args!($($what)+), actual, expected
            )));
        }
    }};
}

pub(crate) use {code, cu, ensure, ensure_eq, ok};
