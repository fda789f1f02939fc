//! The seam between the simulated driver and the kernel interpreters.
//!
//! The driver loads an image into a [`Program`] (`ptx::load`, `tile::load`), places its globals, and runs
//! a launch by [`Program::run`]. A program knows nothing of streams, contexts or handles; it gets
//! the memory as its device sees it, its arguments as bytes, and what bounds it ([`ExecContext`]).

use crate::memory::{DeviceView, MemoryFault};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Which kernel model an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelModel {
    /// Per thread. Blocks have any shape the device allows.
    Simt,
    /// Per tile. Launched with block (1,1,1).
    Tile,
}

/// One kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Offset in the parameter buffer, bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// What a program knows about one of its kernels.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// Name of the entry.
    pub name: String,
    /// Kernel model.
    pub model: KernelModel,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Static shared memory, bytes.
    pub static_shared_bytes: u32,
    /// Local memory per thread, bytes.
    pub local_bytes: u32,
    /// Registers per thread (an estimate where the source does not say).
    pub registers: u32,
    /// Constant memory, bytes.
    pub const_bytes: u32,
    /// Architecture that the source was written for, as 90 for `sm_90`; `None`: the device's.
    pub virtual_architecture: Option<u32>,
    /// `.maxntid`: most threads per block.
    pub max_threads: Option<u32>,
    /// `.reqntid`: exact block shape.
    pub required_block: Option<[u32; 3]>,
    /// `.reqnctapercluster`: compiled-in cluster shape.
    pub required_cluster: Option<[u32; 3]>,
}

/// A module-scope variable.
#[derive(Clone, Debug)]
pub struct GlobalInfo {
    /// Its name.
    pub name: String,
    /// Size in bytes. 0 for an extern array of unknown size.
    pub bytes: u64,
    /// Alignment in bytes, a power of two.
    pub align: u64,
    /// First bytes; the rest is zero.
    pub init: Vec<u8>,
    /// Pointers to other globals inside the initial value: (offset, index of the global, addend).
    pub relocations: Vec<(u64, usize, i64)>,
    /// Whether it lies in constant memory.
    pub constant: bool,
    /// Whether it lies in managed memory (`.attribute(.managed)`): one address for the host and every device.
    pub managed: bool,
}

/// One launch, geometry already checked against the device.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSpec<'a> {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block; (1,1,1) for Tile kernels.
    pub block: [u32; 3],
    /// Blocks per cluster; (1,1,1) without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared_bytes: u32,
    /// Whether all blocks are resident at once, so that grid barriers work.
    pub cooperative: bool,
    /// Parameter bytes, laid out by [`KernelInfo::params`].
    pub params: &'a [u8],
    /// Number of this launch in its simulated driver, for reports and seeds.
    pub launch_id: u64,
}

/// Virtual time that some thousand instructions take in an exploration.
const SLICE_TIME: Duration = Duration::from_micros(100);

/// A kernel has run for a while. In an exploration time passes, and others get their turn: the kernel may wait for
/// them.
#[inline]
pub(crate) fn slice_over() {
    if let Some(hook) = simtile_sync::hook::current() {
        // Nobody wakes key 0.
        (hook.block)(0, Some(SLICE_TIME));
    }
}

/// What a running kernel may use and what bounds it.
pub struct ExecContext<'a> {
    /// Global memory as the device sees it.
    pub memory: DeviceView<'a>,
    /// Addresses of the program's globals, in the order of [`Program::globals`].
    pub globals: &'a [u64],
    /// Address of the zeroed workspace of cooperative grids (at least 64 KiB), or 0.
    pub grid_workspace: u64,
    /// Most instructions (SIMT: of one thread; Tile: operations of one block) before
    /// [`FaultReason::StepLimit`].
    pub step_limit: u64,
    /// Set when the driver wants the kernel to end (shutdown, context destroyed).
    pub cancel: &'a AtomicBool,
    /// Chooses the order in which warps and blocks run.
    pub seed: u64,
    /// How many host threads the interpreter may use.
    pub workers: usize,
    /// Whether reads of bytes that nobody wrote are reported.
    pub check_uninitialised: bool,
    /// Where `printf` goes. Called with whole formatted pieces, in the order of one block's calls.
    pub print: &'a (dyn Fn(&[u8]) + Sync),
    /// Where findings go that do not stop the kernel.
    pub report: &'a (dyn Fn(Finding) + Sync),
    /// Sets the condition of a graph's conditional node (`cudaGraphSetConditional`); false if there is none of this
    /// handle that the kernel may set.
    pub set_condition: &'a (dyn Fn(u64, u32) -> bool + Sync),
    /// Attributes that device code can read.
    pub device: DeviceTraits,
}

/// Device properties visible to device code.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTraits {
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Threads per warp (32).
    pub warp_size: u32,
    /// The newest PTX that is taken.
    pub newest_ptx: (u32, u32),
}

/// Where in a kernel something happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Entry name.
    pub kernel: String,
    /// Source file and line, from `.loc` or Tile debug information.
    pub source: Option<(String, u32)>,
    /// Line in the PTX text, or the operation's name and number in Tile IR.
    pub instruction: String,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Thread coordinates; (0,0,0) for Tile kernels.
    pub thread: [u32; 3],
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel {}, block {:?}, thread {:?}, {}",
            self.kernel, self.block, self.thread, self.instruction
        )?;
        if let Some((file, line)) = &self.source {
            write!(f, " ({file}:{line})")?;
        }
        Ok(())
    }
}

/// Something wrong that does not stop the kernel.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Where.
    pub site: Site,
    /// What.
    pub kind: FindingKind,
}

/// Kinds of [`Finding`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// A load of bytes that nothing wrote.
    UninitialisedRead {
        /// First such byte: its address and space.
        address: u64,
        /// Size of the load in bytes.
        bytes: u64,
        /// `global`, `shared` or `local`.
        space: &'static str,
        /// Label of the buffer, if it is global and has one.
        label: Option<String>,
    },
    /// A Tile `assume` that does not hold, so that a real GPU may do anything.
    FalseAssume {
        /// The predicate, as text.
        predicate: String,
        /// The value that breaks it.
        value: String,
    },
    /// Threads of a block wait at different barriers, or some ended; or a thread executes an instruction for lanes of its warp to
    /// which it does not belong.
    BarrierDivergence {
        /// Which barrier, and who is where; or for which lanes.
        detail: String,
    },
}

/// Why a kernel ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultReason {
    /// An access that the memory refused.
    Memory(MemoryFault),
    /// A shared or local access outside its window.
    Space {
        /// `shared`, `local`, `const` or `param`.
        space: &'static str,
        /// Offset in the space.
        address: u64,
        /// Size of the access.
        bytes: u64,
        /// Size of the space.
        limit: u64,
    },
    /// `trap`.
    Trap,
    /// A device assertion, with its text.
    Assert(String),
    /// More steps than [`ExecContext::step_limit`].
    StepLimit(u64),
    /// All threads wait for something that cannot happen.
    Deadlock(String),
    /// A call stack deeper than the device has.
    StackOverflow,
    /// A stand-in panicked, or gave what it may not.
    StandIn {
        /// The kernel or function that it stands for.
        symbol: String,
        /// What it did.
        problem: String,
    },
    /// Undefined in the ISA in a way that the simulator cannot go on from.
    IllegalInstruction(String),
    /// The driver asked for the end.
    Cancelled,
}

/// A kernel that did not finish.
#[derive(Clone, Debug)]
pub struct KernelFault {
    /// Where. Boxed, because faults travel in `Result`s on hot paths.
    pub site: Box<Site>,
    /// Why.
    pub reason: FaultReason,
}

impl fmt::Display for KernelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            FaultReason::Memory(fault) => write!(f, "{fault}")?,
            FaultReason::Space { space, address, bytes, limit } => {
                write!(
                    f,
                    "{space} access out of bounds: {bytes} bytes at {address:#x}, the space has {limit} bytes"
                )?;
            }
            FaultReason::Trap => f.write_str("trap")?,
            FaultReason::Assert(text) => write!(f, "device assertion failed: {text}")?,
            FaultReason::StepLimit(limit) => write!(
                f,
                "the kernel ran more than {limit} steps (the limit is the simulator's setting `steps`)"
            )?,
            FaultReason::Deadlock(text) => write!(f, "deadlock: {text}")?,
            FaultReason::StackOverflow => f.write_str("stack overflow")?,
            FaultReason::StandIn { symbol, problem } => write!(f, "the stand-in for {symbol} {problem}")?,
            FaultReason::IllegalInstruction(text) => write!(f, "illegal instruction: {text}")?,
            FaultReason::Cancelled => f.write_str("cancelled")?,
        }
        write!(f, " in {}", self.site)
    }
}

impl std::error::Error for KernelFault {}

/// A call of a function that is not in its image, and that nobody has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFunction {
    /// The function.
    pub symbol: String,
    /// The kernel that calls it.
    pub kernel: String,
    /// Number of the operation that calls it first.
    pub operation: u32,
    /// Its file and line, if the image says them.
    pub source: Option<(String, u32)>,
}

impl fmt::Display for MissingFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (kernel {}, operation {}", self.symbol, self.kernel, self.operation)?;
        if let Some((file, line)) = &self.source {
            write!(f, ", {file}:{line}")?;
        }
        f.write_str(")")
    }
}

/// Why an image was refused at load.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadFault {
    /// Not a well-formed image of its kind.
    Malformed {
        /// Where.
        at: At,
        /// What is wrong there.
        what: String,
    },
    /// Well-formed, but an instruction or feature that is not built.
    Unsupported {
        /// Where.
        at: At,
        /// Its name.
        what: String,
    },
    /// A version the simulated driver does not take.
    Version {
        /// The image's version, as text.
        found: String,
        /// The newest (or the range) that is taken.
        supported: String,
    },
    /// Calls of functions that are not in the image and not registered.
    MissingFunctions {
        /// The first call of each.
        calls: Vec<MissingFunction>,
    },
    /// Built for a GPU that the simulated one is not.
    Target {
        /// The image's target.
        found: String,
        /// The device's.
        device: String,
    },
}

/// A place in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A line of the text, from 1.
    Line(u64),
    /// A byte of a binary, from 0.
    Byte(u64),
    /// An operation of a Tile module, by its number.
    Operation(u64),
    /// The whole of it.
    Module,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
            Self::Operation(number) => write!(f, "operation {number}"),
            Self::Module => f.write_str("the module as a whole"),
        }
    }
}

impl fmt::Display for LoadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { at, what } => write!(f, "malformed at {at}: {what}"),
            Self::Unsupported { at, what } => write!(f, "not supported by the simulator, at {at}: {what}"),
            Self::Version { found, supported } => write!(f, "version {found}; this driver takes {supported}"),
            Self::MissingFunctions { calls } => {
                f.write_str("the image calls functions that it does not have")?;
                for (i, call) in calls.iter().enumerate() {
                    write!(f, "{} {call}", if i == 0 { ":" } else { "," })?;
                }
                Ok(())
            }
            Self::Target { found, device } => write!(f, "built for {found}; the device is {device}"),
        }
    }
}

impl std::error::Error for LoadFault {}

/// What a kernel does about programmatic dependent launch.
#[derive(Clone, Debug, Default)]
pub struct GridDependency {
    /// It lets the next kernel start before it ends (`griddepcontrol.launch_dependents`).
    pub launches_dependents: bool,
    /// By the number of a memory instruction's [`Window`](crate::memory::Window): whether it runs before the kernel waits for
    /// the one before it (`griddepcontrol.wait`). Those that are not in it count as behind the wait.
    pub early: std::sync::Arc<[bool]>,
}

/// A loaded image.
pub trait Program: Send + Sync {
    /// Its kernels.
    fn kernels(&self) -> &[KernelInfo];

    /// Its module-scope variables. The driver places them and passes the addresses to
    /// [`Program::run`].
    fn globals(&self) -> &[GlobalInfo];

    /// What and where a memory instruction of a kernel is, by the number of its [`Window`](crate::memory::Window).
    fn place(&self, _kernel: usize, _site: u16) -> Option<String> {
        None
    }

    /// What a kernel does about the kernels before and behind it. By default nothing, and all of it comes after those before.
    fn dependency(&self, _kernel: usize) -> GridDependency {
        GridDependency::default()
    }

    /// Runs one launch of kernel number `kernel` to its end.
    ///
    /// # Errors
    /// The first fault, by block number where several blocks fault.
    fn run(
        &self,
        kernel: usize,
        launch: &LaunchSpec<'_>,
        context: &ExecContext<'_>,
    ) -> Result<(), KernelFault>;
}
