//! Errors: one small enum for each family of operations.
//!
//! Every family has the same four variants for what any driver call can meet, with the driver's error as
//! `source()`, and its own for what is refused before a call is made. `on` says what the operation worked on.

use crate::ContextLoss;
use simtile_driver::DriverError;
use simtile_types::contract::LaunchContractError;
use std::sync::Arc;

/// Why a call was not made, or how it failed. Inside the crate; families wrap it.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// The call was made and failed.
    Driver(DriverError),
    /// The context is lost.
    Lost {
        loss: Arc<ContextLoss>,
        /// This call found out; else none was made.
        first: bool,
    },
    /// The calling thread is inside a host function; no call was made.
    InHostFunction,
    /// The driver is gone; no call was made, or this one found out.
    Deinitialized,
    /// This process is a forked child; no call was made.
    Forked,
    /// A guard on managed memory holds all device work off; no call was made.
    HostHolds,
}

impl CallError {
    /// A failure of the driver that nobody was told of before.
    pub(crate) fn untold(&self) -> Option<DriverError> {
        match self {
            Self::Driver(error) => Some(*error),
            Self::Lost { loss, first: true } => Some(loss.error()),
            _ => None,
        }
    }
}

impl From<DriverError> for CallError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// A family of errors: made from a failed call and what the call worked on.
pub(crate) trait Family {
    fn from_call(error: CallError, on: String) -> Self;
}

/// Says what a failed call worked on. The text is made only on failure.
pub(crate) trait On<T> {
    fn on<E: Family>(self, on: impl FnOnce() -> String) -> Result<T, E>;
}

impl<T> On<T> for Result<T, CallError> {
    fn on<E: Family>(self, on: impl FnOnce() -> String) -> Result<T, E> {
        self.map_err(|error| E::from_call(error, on()))
    }
}

impl<T> On<T> for Result<T, DriverError> {
    fn on<E: Family>(self, on: impl FnOnce() -> String) -> Result<T, E> {
        self.map_err(|error| E::from_call(CallError::Driver(error), on()))
    }
}

/// The stream's error that an error of another family wraps.
fn of_stream<'a>(error: &'a (dyn core::error::Error + 'static)) -> Option<&'a StreamError> {
    error.source()?.downcast_ref()
}

macro_rules! family {
    ($(#[$meta:meta])* $name:ident { $($body:tt)* }) => {
        $(#[$meta])*
        #[derive(thiserror::Error)]
        #[non_exhaustive]
        pub enum $name {
            /// A driver call failed.
            #[error("{on}: {source}")]
            Driver {
                /// What the operation worked on.
                on: String,
                /// Which call, and its code.
                source: DriverError,
            },
            /// The context is lost. Only the call that found out was made.
            #[error("{on}: the context was lost by {by}")]
            ContextLost {
                /// What the operation worked on.
                on: String,
                /// The failure that told of the loss.
                source: DriverError,
                /// What lost the context; the same in every error.
                by: Arc<ContextLoss>,
            },
            /// The calling thread is inside a host function, where CUDA allows no calls. None was made.
            #[error("{on}: no driver call may be made inside a host function")]
            InHostFunction {
                /// What the operation worked on.
                on: String,
            },
            /// The driver has shut down.
            #[error("{on}: the driver has shut down")]
            Deinitialized {
                /// What the operation worked on.
                on: String,
            },
            /// This process was forked from one that used the driver, which does not work in the child. No call was made.
            #[error("{on}: the driver does not work in a forked child")]
            Forked {
                /// What the operation worked on.
                on: String,
            },
            /// A guard on managed memory lives, and on this platform no device work may run meanwhile. No call was made.
            #[error("{on}: a guard on managed memory holds all device work of the context off")]
            HostHolds {
                /// What the operation worked on.
                on: String,
            },
            $($body)*
        }

        /// The text, since that is what `main` and `unwrap` print of an error.
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }

        impl Family for $name {
            fn from_call(error: CallError, on: String) -> Self {
                match error {
                    CallError::Driver(source) => Self::Driver { on, source },
                    CallError::Lost { loss, .. } => {
                        Self::ContextLost { on, source: loss.error(), by: loss }
                    }
                    CallError::InHostFunction => Self::InHostFunction { on },
                    CallError::Deinitialized => Self::Deinitialized { on },
                    CallError::Forked => Self::Forked { on },
                    CallError::HostHolds => Self::HostHolds { on },
                }
            }
        }

        impl $name {
            /// The driver call that failed, or that lost the context.
            pub fn driver_error(&self) -> Option<DriverError> {
                match self {
                    Self::Driver { source, .. } | Self::ContextLost { source, .. } => Some(*source),
                    other => of_stream(other).and_then(StreamError::driver_error),
                }
            }

            /// How the context was lost, if that is the error.
            pub fn loss(&self) -> Option<&Arc<ContextLoss>> {
                match self {
                    Self::ContextLost { by, .. } => Some(by),
                    other => of_stream(other).and_then(StreamError::loss),
                }
            }
        }
    };
}

family! {
    /// Errors of naming and asking devices.
    DeviceError {
        /// No device has this ordinal.
        #[error("there is no device {ordinal}; the driver shows {count}")]
        NoSuchDevice {
            /// What was asked for.
            ordinal: usize,
            /// How many devices there are.
            count: usize,
        },
        /// A runtime was given its devices, and this is none of them.
        #[error("device {ordinal} is none of the runtime's devices, {devices:?}")]
        NotOfTheRuntime {
            /// What was asked for.
            ordinal: usize,
            /// Which ones it has.
            devices: Vec<usize>,
        },
    }
}

family! {
    /// Errors of contexts.
    ContextError {
        /// The null handle names no context.
        #[error("the null handle names no context")]
        NullHandle,
        /// The context belongs to another device than the caller said.
        #[error("the borrowed context belongs to device handle {actual}, not to {expected}")]
        WrongDevice {
            /// The device that was named.
            expected: String,
            /// The driver's handle of the context's device.
            actual: i32,
        },
        /// Kernels of one device cannot be given memory of the other.
        #[error("no peer access of {from} to {to}: {why}")]
        NoPeerAccess {
            /// Whose kernels.
            from: String,
            /// Whose memory.
            to: String,
            /// Why not.
            why: String,
        },
        /// Memory that would change hands is held by a guard on the host, or by foreign code.
        #[error("{context}: {why}")]
        InUse {
            /// The context.
            context: String,
            /// Which memory, and who holds it.
            why: String,
        },
        /// What was called would spoil the captures of graphs that go on.
        #[error("{context}: captures of graphs go on ({captures}), and waiting for everything would spoil them")]
        Capturing {
            /// The context.
            context: String,
            /// How many captures have not ended.
            captures: u64,
        },
        /// The device cannot be divided so.
        #[error("{device} has room for {limit} green contexts of at least {multiprocessors} multiprocessors, not for {count}")]
        TooManyGreen {
            /// The device.
            device: String,
            /// How many were asked for.
            count: u32,
            /// How many multiprocessors each was to have.
            multiprocessors: u32,
            /// How many there can be.
            limit: u32,
        },
    }
}

family! {
    /// Errors of streams and events.
    StreamError {
        /// Handles of different contexts were used together.
        #[error("{user} belongs to {user_context}, but {used} belongs to {used_context}")]
        OtherContext {
            /// What the operation ran on.
            user: String,
            /// Its context.
            user_context: String,
            /// What it was given.
            used: String,
            /// That one's context.
            used_context: String,
        },
        /// Handle 0 means the default stream of whatever context is current.
        #[error("raw stream handle 0 is refused: use Context::legacy_default_stream or \
                 Context::per_thread_default_stream")]
        RawNull,
        /// The stream is recording a graph, so waiting for it or asking it would end the capture.
        #[error("{stream} is capturing a graph")]
        Capturing {
            /// The stream.
            stream: String,
        },
        /// A per-thread default stream was used on another thread than the one it was made on.
        #[error("{stream} belongs to another thread")]
        WrongThread {
            /// The stream.
            stream: String,
        },
        /// Work on another stream (or the host, or foreign code) uses the same bytes, and the policy says not to wait for it.
        #[error("{stream}: {what}")]
        Conflict {
            /// The stream that wanted to.
            stream: String,
            /// Which buffer, how, and who is in the way.
            what: String,
            /// Whether a guard on the host is in the way.
            host: bool,
        },
        /// One submission touches the same bytes twice, and not only to read them.
        #[error("{stream}: one submission touches bytes {start}..{end} of {buffer} twice")]
        Aliased {
            /// The stream.
            stream: String,
            /// The buffer.
            buffer: String,
            /// First byte in both accesses.
            start: u64,
            /// Byte after the last.
            end: u64,
        },
        /// The submission would follow work whose end can never be known, because a stream failed.
        #[error("{stream} would follow {leader}, which has failed")]
        Failed {
            /// The stream.
            stream: String,
            /// The stream that failed; it may be the same.
            leader: String,
        },
        /// As much work is in flight as may be; only from calls that must not wait.
        #[error("{stream}: as much work is in flight as may be")]
        QueueFull {
            /// The stream.
            stream: String,
            /// When there will be room.
            room: crate::Room,
        },
        /// Another thread is submitting to the same stream or buffer; only from calls that must not wait. Try again.
        #[error("{stream}: another thread is submitting")]
        Busy {
            /// The stream.
            stream: String,
        },
        /// The stream takes no such work now.
        #[error("{stream}: {what}")]
        Refused {
            /// The stream.
            stream: String,
            /// Why.
            what: String,
        },
        /// Time was asked between events that have not both happened.
        #[error("the time between {start} and {end} is not known yet")]
        NotReady {
            /// The earlier event.
            start: String,
            /// The later event.
            end: String,
        },
    }
}

family! {
    /// Errors of buffers and copies.
    MemoryError {
        /// Handles of different contexts were used together.
        #[error("{user} belongs to {user_context}, but {used} belongs to {used_context}")]
        OtherContext {
            /// What the operation ran on.
            user: String,
            /// Its context.
            user_context: String,
            /// What it was given.
            used: String,
            /// That one's context.
            used_context: String,
        },
        /// A length times an element size, or an end of a range, does not fit.
        #[error("{count} elements of {element_bytes} bytes exceed what can be addressed ({limit} bytes)")]
        SizeOverflow {
            /// Elements.
            count: usize,
            /// Bytes of one.
            element_bytes: usize,
            /// Most bytes an allocation can have.
            limit: usize,
        },
        /// The device has not enough memory.
        #[error("{label}: out of device memory allocating {bytes} bytes ({free} of {total} bytes free): {source}{holders}")]
        OutOfMemory {
            /// What was being allocated.
            label: String,
            /// Bytes asked for.
            bytes: usize,
            /// Bytes that were free afterwards, 0 if unknown.
            free: usize,
            /// Bytes of the device, 0 if unknown.
            total: usize,
            /// The largest allocations that handles own, by name and bytes; empty if there are none.
            holders: String,
            /// The call that failed.
            source: DriverError,
        },
        /// An allocation would exceed its pool's limit.
        #[error("{pool}: {bytes} bytes are wanted, {live} are in use, {limit} is the limit")]
        PoolLimit {
            /// The pool.
            pool: String,
            /// Bytes asked for.
            bytes: u64,
            /// Bytes that handles own, or that wait for their last use.
            live: u64,
            /// The most there may be.
            limit: u64,
        },
        /// A pool cannot be ended yet.
        #[error("{pool} is in use: {bytes} bytes, {handles} other handles")]
        PoolInUse {
            /// The pool.
            pool: String,
            /// Bytes that are in use.
            bytes: u64,
            /// Other handles of the pool, those of its buffers among them.
            handles: usize,
        },
        /// Memory of somebody else cannot be taken, or not be given.
        #[error("{what}: {why}")]
        Foreign {
            /// The memory.
            what: String,
            /// Why not.
            why: String,
        },
        /// The device, or the driver, cannot do this at all.
        #[error("{what} is not supported: {why}")]
        Unsupported {
            /// What was asked for.
            what: String,
            /// Why not.
            why: String,
        },
        /// Two sides of a copy have different lengths.
        #[error("{buffer}: {argument} has {actual} elements, but {expected} are needed")]
        LengthMismatch {
            /// The buffer.
            buffer: String,
            /// Which argument.
            argument: &'static str,
            /// Elements needed.
            expected: usize,
            /// Elements given.
            actual: usize,
        },
        /// A range reaches outside its buffer.
        #[error("{buffer}: range {start}..{end} is outside 0..{len}")]
        OutOfRange {
            /// The buffer or symbol.
            buffer: String,
            /// First element (of symbols: byte).
            start: usize,
            /// One past the last.
            end: usize,
            /// Length.
            len: usize,
        },
        /// The device wrote bytes that are no value of the element type (a `bool` of 2, say).
        #[error("{buffer}: element {index} holds bytes that are no valid {type_name}")]
        InvalidElement {
            /// The buffer.
            buffer: String,
            /// First such element.
            index: usize,
            /// The element type.
            type_name: &'static str,
        },
        /// The memory has another user: handles, views that were kept, exports.
        #[error("{buffer}: {what} needs the only handle, but there are {handles}")]
        NotUnique {
            /// The buffer.
            buffer: String,
            /// What was asked for.
            what: &'static str,
            /// Handles that can reach the memory.
            handles: usize,
        },
        /// The bytes do not make up elements of another type.
        #[error("{buffer}: {bytes} bytes from offset {offset} on are no {type_name} of {size} bytes, alignment {align}")]
        Cast {
            /// The buffer.
            buffer: String,
            /// Bytes.
            bytes: usize,
            /// First byte in the allocation.
            offset: usize,
            /// The type asked for.
            type_name: &'static str,
            /// Its size.
            size: usize,
            /// Its alignment.
            align: usize,
        },
        /// A shape does not fit into a buffer, or an axis of it is empty.
        #[error("{buffer}: {what}")]
        Shape {
            /// The buffer.
            buffer: String,
            /// Which number, and its limit.
            what: String,
        },
        /// The stream cannot be used here.
        #[error("{0}")]
        Stream(#[from] StreamError),
    }
}

family! {
    /// Errors of modules, functions and symbols.
    ModuleError {
        /// The image was refused before the driver saw it.
        #[error("{image}: {why}")]
        BadImage {
            /// What was loaded.
            image: String,
            /// Why it is no loadable image.
            why: String,
        },
        /// The driver could not load the image.
        #[error("{image}: {source}{}", log_suffix(log))]
        Load {
            /// What was loaded.
            image: String,
            /// The driver's log, empty if it wrote none.
            log: String,
            /// The call that failed.
            source: DriverError,
        },
        /// The image is whole, but its code is for other devices.
        #[error("{image} is for {made_for}, which {device} does not run ({source})")]
        WrongArchitecture {
            /// What was loaded.
            image: String,
            /// The architecture of its code, such as `sm_100a`.
            made_for: String,
            /// The architecture of the device, such as `sm_90`.
            device: String,
            /// The call that failed.
            source: DriverError,
        },
        /// None of several images can be loaded here.
        #[error("no image of {} fits {device}: {}", refused.len(), refused.join("; "))]
        NoImageFits {
            /// The architecture of the device, such as `sm_90`.
            device: String,
            /// Why each was refused, best first.
            refused: Vec<String>,
        },
        /// An option of the compiler does not apply, or has no such value.
        #[error("{image}: the option {option} {why}")]
        BadOption {
            /// What was loaded.
            image: String,
            /// The option and its value.
            option: String,
            /// What is wrong.
            why: String,
        },
        /// Tile IR bytecode was given to a driver that takes only compiled code.
        #[error("{image}: this driver does not load Tile IR bytecode; compile it with tileiras for {target}")]
        NeedsTileCompiler {
            /// What was loaded.
            image: String,
            /// The device's architecture, such as `sm_90`.
            target: String,
        },
        /// The file could not be read.
        #[error("{path}: {source}")]
        File {
            /// The path.
            path: String,
            /// Why.
            source: std::io::Error,
        },
        /// The module has no such kernel or variable.
        #[error("{module} has no {kind} `{name}`{}", known_suffix(known))]
        NotFound {
            /// The module.
            module: String,
            /// `kernel` or `variable`.
            kind: &'static str,
            /// The name.
            name: String,
            /// Names of this kind that the image has, as far as known.
            known: Vec<String>,
        },
        /// A name holds a NUL and can name nothing.
        #[error("the name {name:?} holds a NUL")]
        NulInName {
            /// The name.
            name: String,
        },
        /// A symbol's size is not its type's.
        #[error("{symbol} has {actual} bytes, but {type_name} has {expected}")]
        SymbolSize {
            /// The symbol.
            symbol: String,
            /// The type asked for.
            type_name: &'static str,
            /// Bytes of that type.
            expected: usize,
            /// Bytes of the symbol.
            actual: usize,
        },
    }
}

family! {
    /// Errors of raw launches.
    LaunchError {
        /// Handles of different contexts were used together.
        #[error("{user} belongs to {user_context}, but {used} belongs to {used_context}")]
        OtherContext {
            /// The stream.
            user: String,
            /// Its context.
            user_context: String,
            /// The function or buffer.
            used: String,
            /// That one's context.
            used_context: String,
        },
        /// The geometry breaks a limit of the device or of the function.
        #[error("kernel {kernel}: {source}")]
        Geometry {
            /// The kernel.
            kernel: String,
            /// Which number breaks which limit.
            source: LaunchContractError,
        },
        /// The geometry breaks the kernel's contract, or what device and function allow of it.
        #[error("{0}")]
        Contract(#[from] LaunchContractError),
        /// Too many or too few arguments.
        #[error("kernel {kernel} takes {expected} arguments, but {actual} were given")]
        ArgumentCount {
            /// The kernel.
            kernel: String,
            /// Parameters of the kernel.
            expected: usize,
            /// Arguments given.
            actual: usize,
        },
        /// An argument has another size than its parameter.
        #[error("kernel {kernel}: argument {index} has {actual} bytes, but its parameter has {expected}")]
        ArgumentSize {
            /// The kernel.
            kernel: String,
            /// Which argument, from 0.
            index: usize,
            /// Bytes of the parameter.
            expected: usize,
            /// Bytes of the argument.
            actual: usize,
        },
        /// The stream or a buffer cannot be used here.
        #[error("{0}")]
        Stream(#[from] StreamError),
    }
}

family! {
    /// Errors of captures and graphs.
    GraphError {
        /// Handles of different contexts were used together.
        #[error("{user} belongs to {user_context}, but {used} belongs to {used_context}")]
        OtherContext {
            /// What the operation ran on.
            user: String,
            /// Its context.
            user_context: String,
            /// What it was given.
            used: String,
            /// That one's context.
            used_context: String,
        },
        /// Something that may not happen during a capture ended it.
        #[error("{on}: the capture was ended by something else, and gave no graph")]
        Invalidated {
            /// The capture.
            on: String,
        },
        /// The executable cannot become what was asked for.
        #[error("{what}: {why}")]
        NotUpdatable {
            /// The executable.
            what: String,
            /// Why not.
            why: String,
        },
        /// The stream cannot be used here.
        #[error("{0}")]
        Stream(#[from] StreamError),
    }
}

/// A family whose operations run on streams.
pub(crate) trait OnStream: Family {
    /// A stream's refusal, as an error of the family.
    fn from_stream(error: StreamError) -> Self;
}

impl OnStream for StreamError {
    fn from_stream(error: StreamError) -> Self {
        error
    }
}

macro_rules! on_stream {
    ($($name:ident)*) => { $(
        impl OnStream for $name {
            fn from_stream(error: StreamError) -> Self {
                match error {
                    StreamError::OtherContext { user, user_context, used, used_context } => {
                        Self::OtherContext { user, user_context, used, used_context }
                    }
                    StreamError::Driver { on, source } => Self::Driver { on, source },
                    StreamError::ContextLost { on, source, by } => Self::ContextLost { on, source, by },
                    StreamError::InHostFunction { on } => Self::InHostFunction { on },
                    StreamError::Deinitialized { on } => Self::Deinitialized { on },
                    StreamError::Forked { on } => Self::Forked { on },
                    StreamError::HostHolds { on } => Self::HostHolds { on },
                    other => Self::Stream(other),
                }
            }
        }
    )* };
}

on_stream! { MemoryError LaunchError GraphError }

fn log_suffix(log: &str) -> String {
    if log.trim().is_empty() { String::new() } else { format!("\n{}", log.trim()) }
}

fn known_suffix(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) }
}

/// Any error of this crate.
#[derive(thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the families say it")]
pub enum Error {
    Device(#[from] DeviceError),
    Context(#[from] ContextError),
    Stream(#[from] StreamError),
    Memory(#[from] MemoryError),
    Module(#[from] ModuleError),
    Launch(#[from] LaunchError),
    Graph(#[from] GraphError),
}

/// The text, since that is what `main` and `unwrap` print of an error.
impl core::fmt::Debug for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::error::Error as _;
    use simtile_driver::{Entry, sys::CUresult};

    #[test]
    fn the_driver_error_is_the_source() {
        let driver = DriverError::new(Entry::cuEventRecord, CUresult::CUDA_ERROR_INVALID_HANDLE);
        let error: StreamError = Err::<(), _>(driver).on(|| "stream 7".into()).unwrap_err();
        let source = error.source().and_then(|s| s.downcast_ref::<DriverError>());
        assert_eq!(source, Some(&driver));
        assert!(error.to_string().starts_with("stream 7: cuEventRecord failed"), "{error}");
        let outer = Error::from(error);
        assert!(outer.source().is_some_and(|s| s.is::<DriverError>()));
    }

    #[test]
    fn a_load_error_shows_its_log() {
        let error = ModuleError::Load {
            image: "PTX image".into(),
            log: "ptxas error : line 3\n".into(),
            source: DriverError::new(Entry::cuModuleLoadDataEx, CUresult::CUDA_ERROR_INVALID_PTX),
        };
        assert!(error.to_string().ends_with("\nptxas error : line 3"), "{error}");
    }
}
