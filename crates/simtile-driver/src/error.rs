//! Errors of driver calls.

use crate::Entry;
use crate::sys::CUresult;
use core::fmt;

/// A driver call that did not succeed: which call, with which code.
///
/// For an entry that the driver lacks, [`DriverError::code`] is `CUDA_ERROR_NOT_SUPPORTED` and
/// [`DriverError::is_missing_entry`] is true.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DriverError {
    entry: Entry,
    code: CUresult,
    missing_in: Option<i32>,
}

/// What an error code says about the context it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Severity {
    /// This call failed; the context is as usable as before.
    Call,
    /// The context is lost: every later call on it returns the same code.
    Context,
    /// The driver is gone or was never there.
    Driver,
}

impl DriverError {
    /// The error of `entry` returning `code`.
    pub const fn new(entry: Entry, code: CUresult) -> Self {
        Self { entry, code, missing_in: None }
    }

    pub(crate) fn missing(entry: Entry, driver_version: Option<i32>) -> Self {
        Self {
            entry,
            code: CUresult::CUDA_ERROR_NOT_SUPPORTED,
            missing_in: Some(driver_version.unwrap_or(0)),
        }
    }

    /// The call that failed.
    pub const fn entry(&self) -> Entry {
        self.entry
    }

    /// Its return code.
    pub const fn code(&self) -> CUresult {
        self.code
    }

    /// Whether the driver does not have this entry at all.
    pub const fn is_missing_entry(&self) -> bool {
        self.missing_in.is_some()
    }

    /// What the code says about the context.
    pub const fn severity(&self) -> Severity {
        match self.code {
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED => Severity::Context,
            CUresult::CUDA_ERROR_NOT_INITIALIZED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_STUB_LIBRARY
            | CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED
            | CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY => Severity::Driver,
            _ => Severity::Call,
        }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverError({self})")
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(version) = self.missing_in {
            let since = self.entry.since();
            write!(
                f,
                "the driver has no {} (symbol {}, needs CUDA {}.{}",
                self.entry.name(),
                self.entry.symbol(),
                since / 1000,
                since % 1000 / 10
            )?;
            return match version {
                0 => f.write_str(")"),
                v => write!(f, "; this driver is CUDA {}.{})", v / 1000, v % 1000 / 10),
            };
        }
        write!(f, "{} failed: {:?} ({})", self.entry.name(), self.code, self.code.0)?;
        if let Some(text) = self.code.explain() {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

impl core::error::Error for DriverError {}

impl CUresult {
    /// A sentence on the codes that people meet most.
    pub const fn explain(self) -> Option<&'static str> {
        Some(match self {
            Self::CUDA_ERROR_INVALID_VALUE => "an argument is out of its range",
            Self::CUDA_ERROR_OUT_OF_MEMORY => "not enough memory",
            Self::CUDA_ERROR_NOT_INITIALIZED => "the driver was not initialised",
            Self::CUDA_ERROR_DEINITIALIZED => "the driver is shutting down",
            Self::CUDA_ERROR_NO_DEVICE => "no CUDA device is visible",
            Self::CUDA_ERROR_INVALID_DEVICE => "no such device",
            Self::CUDA_ERROR_INVALID_IMAGE => "the kernel image is broken",
            Self::CUDA_ERROR_INVALID_CONTEXT => "no context is current, or it is not the right one",
            Self::CUDA_ERROR_NO_BINARY_FOR_GPU => "the image holds no code for this GPU",
            Self::CUDA_ERROR_INVALID_PTX => "the PTX does not compile",
            Self::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                "the PTX is newer than this driver; use an older toolkit or a newer driver"
            }
            Self::CUDA_ERROR_INVALID_HANDLE => "a handle does not name a live object",
            Self::CUDA_ERROR_NOT_FOUND => "no such name",
            Self::CUDA_ERROR_NOT_READY => "the work has not finished",
            Self::CUDA_ERROR_ILLEGAL_ADDRESS => {
                "a kernel touched memory that it may not touch; the context is lost"
            }
            Self::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                "the launch needs more threads, registers or shared memory than the device has"
            }
            Self::CUDA_ERROR_MISALIGNED_ADDRESS => "a kernel made a misaligned access; the context is lost",
            Self::CUDA_ERROR_LAUNCH_FAILED => "a kernel died; the context is lost",
            Self::CUDA_ERROR_LAUNCH_TIMEOUT => "a kernel ran too long; the context is lost",
            Self::CUDA_ERROR_HARDWARE_STACK_ERROR => "a kernel overran its stack; the context is lost",
            Self::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
                "a kernel executed what the device refuses; the context is lost"
            }
            Self::CUDA_ERROR_UNSUPPORTED_LIMIT => "the device has no such limit",
            Self::CUDA_ERROR_INVALID_CLUSTER_SIZE => "the device cannot run clusters of this shape",
            Self::CUDA_ERROR_UNKNOWN => "the driver gives no reason",
            Self::CUDA_ERROR_ASSERT => "a device assertion failed; the context is lost",
            Self::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
                "a cooperative grid must fit on the device at once"
            }
            Self::CUDA_ERROR_NOT_PERMITTED => "not permitted here (for example inside a host function)",
            Self::CUDA_ERROR_NOT_SUPPORTED => "not supported on this device or driver",
            Self::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => "not allowed while a stream captures",
            Self::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => "the capture was invalidated by an earlier call",
            Self::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => "captured work would wait for outside work",
            Self::CUDA_ERROR_CAPTURED_EVENT => "the event was recorded in a capture",
            _ => return None,
        })
    }
}
