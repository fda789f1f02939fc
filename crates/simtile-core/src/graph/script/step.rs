//! One piece of a chain: what is done, and what it touches.

use crate::error::StreamError;
use crate::launch::StoredArgs;
use crate::memory::{Owner, Word};
use crate::stream::Touch;
use crate::{Function, LaunchArgs, LaunchOptions, Stream};
use core::ffi::c_void;
use simtile_driver::sys::{CUDA_KERNEL_NODE_PARAMS_v2, CUcontext, CUdeviceptr, CUkernel};
use simtile_hazard::{Mode, Outside, RegionId};
use smallvec::SmallVec;

/// What is done.
pub(super) enum Work {
    Kernel(Kernel),
    Plain(Plain),
}

/// A launch that was written down.
pub(crate) struct Kernel {
    pub function: Function,
    pub options: LaunchOptions,
    pub args: StoredArgs,
}

/// Work that is numbers alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    /// So many bytes are set.
    Fill { to: CUdeviceptr, word: Word, bytes: usize },
    /// So many bytes of the device are copied.
    Copy { to: CUdeviceptr, from: CUdeviceptr, bytes: usize },
    /// So many bytes of pinned memory, at this host address, are copied.
    Upload { to: CUdeviceptr, from: usize, bytes: usize },
    /// Nothing is done; what comes later is ordered.
    Order,
}

/// What a piece of a chain is, against the one that is in its place.
#[derive(PartialEq, Eq)]
pub(super) enum Likeness {
    Same,
    /// The same node with other parameters.
    Parameters,
    /// Another node.
    Other,
}

impl Kernel {
    pub fn new(function: &Function, options: &LaunchOptions, args: &LaunchArgs<'_>) -> Self {
        let mut stored = StoredArgs::default();
        stored.set(args);
        Self { function: function.clone(), options: *options, args: stored }
    }

    /// What its node is given. `pointers` lead to the arguments, and are in use as long as the parameters are.
    pub fn params(&self, pointers: &mut [*mut c_void]) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        let config = self.options.config;
        CUDA_KERNEL_NODE_PARAMS_v2 {
            func: self.function.cu_function(),
            gridDimX: config.grid_dim.0,
            gridDimY: config.grid_dim.1,
            gridDimZ: config.grid_dim.2,
            blockDimX: config.block_dim.0,
            blockDimY: config.block_dim.1,
            blockDimZ: config.block_dim.2,
            sharedMemBytes: config.shared_mem_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: core::ptr::null_mut(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        }
    }

    pub(super) fn likeness(
        &self,
        function: &Function,
        options: &LaunchOptions,
        args: &LaunchArgs<'_>,
    ) -> Likeness {
        // The function is kept, so its handle is nobody else's.
        if self.function.cu_function() != function.cu_function() {
            return Likeness::Other;
        }
        if self.options == *options && self.args.same(args) {
            return Likeness::Same;
        }
        let attributes = self.options.attributes_only() == options.attributes_only();
        match attributes && self.args.same_sizes(args) {
            true => Likeness::Parameters,
            false => Likeness::Other,
        }
    }
}

impl Plain {
    /// The same in words as wide as can be, so that fills of one buffer are alike whatever the value.
    pub(super) fn widened(self) -> Self {
        match self {
            Self::Fill { to, word, bytes } if to.is_multiple_of(4) && bytes.is_multiple_of(4) => {
                Self::Fill { to, word: word.widened(), bytes }
            }
            other => other,
        }
    }

    pub(super) fn likeness(&self, new: &Self) -> Likeness {
        match (self, new) {
            (a, b) if a == b => Likeness::Same,
            (Self::Fill { word: a, .. }, Self::Fill { word: b, .. }) if a.bytes() == b.bytes() => {
                Likeness::Parameters
            }
            (Self::Copy { .. }, Self::Copy { .. }) | (Self::Upload { .. }, Self::Upload { .. }) => {
                Likeness::Parameters
            }
            _ => Likeness::Other,
        }
    }
}

/// Bytes that a piece touches, and the handle that keeps them.
pub(in crate::graph) struct Kept {
    pub owner: Owner,
    pub region: RegionId,
    pub start: usize,
    pub end: usize,
    pub mode: Mode,
}

/// Why a piece is refused.
pub(super) enum Wrong {
    NotKept(String),
    Aliased { buffer: String, start: u64, end: u64 },
}

impl Wrong {
    #[cold]
    pub fn on(self, stream: &Stream) -> StreamError {
        let stream = stream.to_string();
        match self {
            Self::NotKept(name) => {
                StreamError::Refused { stream, what: format!("{name} cannot be kept by a memoised chain") }
            }
            Self::Aliased { buffer, start, end } => StreamError::Aliased { stream, buffer, start, end },
        }
    }
}

/// Refuses two touches of one piece that overlap and do not commute.
pub(super) fn aliased(touches: &[Touch<'_>]) -> Result<(), Wrong> {
    for (at, a) in touches.iter().enumerate() {
        for b in &touches[at + 1..] {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if !core::ptr::eq(a.allocation, b.allocation) || start >= end {
                continue;
            }
            let commute = match (a.mode, b.mode) {
                (Mode::Read, Mode::Read) => true,
                (Mode::Accumulate { size, .. }, other) => {
                    a.mode == other && a.start.abs_diff(b.start).is_multiple_of(size.max(1) as usize)
                }
                _ => false,
            };
            if !commute {
                let buffer = a.allocation.name();
                return Err(Wrong::Aliased { buffer, start: start as u64, end: end as u64 });
            }
        }
    }
    Ok(())
}

/// One launch that was written down, with what it touches: what a kernel of a graph is given anew.
pub struct KernelPiece {
    pub(in crate::graph) kernel: Kernel,
    pub(in crate::graph) touches: SmallVec<[Kept; 4]>,
    pub(in crate::graph) outside: Outside,
}

pub(super) struct Step {
    pub work: Work,
    pub touches: SmallVec<[Kept; 4]>,
    /// The executable's node has other parameters.
    pub stale: bool,
}

/// What of this has to be ordered.
pub(super) fn ordered<'a>(touches: &'a [Touch<'a>]) -> impl Iterator<Item = &'a Touch<'a>> {
    touches.iter().filter(|touch| touch.start < touch.end && touch.allocation.region().is_some())
}

impl Step {
    /// Whether it touches exactly this.
    pub fn touches(&self, touches: &[Touch<'_>]) -> bool {
        let mut kept = self.touches.iter();
        for touch in ordered(touches) {
            let same = kept.next().is_some_and(|kept| {
                core::ptr::eq(&raw const *kept.owner, touch.allocation)
                    && (kept.start, kept.end, kept.mode) == (touch.start, touch.end, touch.mode)
            });
            if !same {
                return false;
            }
        }
        kept.next().is_none()
    }

    /// Has it touch this. What it touched before goes to `gone`.
    pub fn retarget(&mut self, touches: &[Touch<'_>], gone: &mut Vec<Kept>) -> Result<(), Wrong> {
        gone.extend(self.touches.drain(..));
        for touch in ordered(touches) {
            let Some(region) = touch.allocation.region().map(simtile_hazard::Region::id) else { continue };
            let owner =
                touch.allocation.another_owner().ok_or_else(|| Wrong::NotKept(touch.allocation.name()))?;
            let (start, end, mode) = (touch.start, touch.end, touch.mode);
            self.touches.push(Kept { owner, region, start, end, mode });
        }
        Ok(())
    }
}

impl core::fmt::Debug for KernelPiece {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "KernelPiece({})", self.kernel.function)
    }
}
