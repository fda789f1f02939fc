//! What a simulated driver takes beyond CUDA's API.
//!
//! The runtime tells a simulated driver three things that CUDA has no call for: labels, so that reports
//! can name buffers and streams; the accesses that the next launch declares, so that the checker can
//! compare them with what the kernel does; and the host's own accesses to memory that devices reach too. A driver without them has `Table::extras == None`, so the
//! runtime pays one test of a static.

use crate::State;
use crate::sys::{CUdeviceptr, CUresult, CUstream};

/// What [`Extras::label`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelTarget {
    /// The allocation that contains this address.
    Allocation(CUdeviceptr),
    /// A stream.
    Stream(CUstream),
}

/// How a declared access uses its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AccessMode {
    /// The work reads the range.
    Read = 0,
    /// The work may write (and read) the range.
    Write = 1,
    /// The work updates the range with device atomics that commute.
    Accumulate = 2,
}

/// One range that the next submission on a stream declares.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeclaredAccess {
    /// First byte.
    pub address: CUdeviceptr,
    /// Length in bytes.
    pub bytes: u64,
    /// What the work does with it.
    pub mode: AccessMode,
}

/// Entries that only simulated drivers have.
///
/// All strings and slices are borrowed for the call.
#[derive(Clone, Copy)]
pub struct Extras {
    /// Names an allocation or a stream in the reports of the checker.
    pub label: unsafe fn(State, LabelTarget, &str) -> CUresult,
    /// Declares what the calling thread's next launch on this stream accesses. A launch that declares
    /// is checked against it; one that does not is not.
    pub declare: unsafe fn(State, CUstream, &[DeclaredAccess]) -> CUresult,
    /// The same of the named ranges alone: what else the launch accesses is the caller's business, and is not checked.
    pub declare_named: unsafe fn(State, CUstream, &[DeclaredAccess]) -> CUresult,
    /// The number by which reports call this stream when it has no label; 0 if there is no such stream.
    pub stream_number: unsafe fn(State, CUstream) -> u64,
    /// Tells that the calling host thread accesses this range (first byte, length) itself now: the checker cannot see that by
    /// itself. Page-locked, managed and any other memory that the driver knows.
    pub host_access: unsafe fn(State, CUdeviceptr, u64, AccessMode) -> CUresult,
}
