//! What a submission touches, as a list that needs no heap for up to eight entries.
//!
//! A list of its own, because the borrows of a builder have to be able to shrink, which those in a `SmallVec` cannot.

use crate::memory::Allocation;
use core::mem::MaybeUninit;
use simtile_hazard::Mode;

/// Bytes that work touches.
#[derive(Clone, Copy)]
pub struct Touch<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) mode: Mode,
    /// Of a strided access: bytes that are touched from the start of each row on, and bytes from row to row.
    pub(crate) stride: Option<(usize, usize)>,
}

/// Entries without the heap.
const INLINE: usize = 8;

pub(crate) struct Touches<'a> {
    /// Everything, while it is somebody else's list as it stands.
    borrowed: &'a [Touch<'a>],
    inline: [MaybeUninit<Touch<'a>>; INLINE],
    len: usize,
    /// Everything, once there are more.
    spilled: Vec<Touch<'a>>,
}

impl<'a> Touches<'a> {
    #[inline]
    pub(crate) fn new() -> Self {
        let inline = [const { MaybeUninit::uninit() }; INLINE];
        Self { borrowed: &[], inline, len: 0, spilled: Vec::new() }
    }

    pub(crate) fn push(&mut self, touch: Touch<'a>) {
        for earlier in core::mem::take(&mut self.borrowed) {
            self.push(*earlier);
        }
        if let Some(place) = self.inline.get_mut(self.len) {
            place.write(touch);
            self.len += 1;
            return;
        }
        if self.spilled.is_empty() {
            let first = self.as_slice().to_vec();
            self.spilled = first;
        }
        self.spilled.push(touch);
    }

    /// All of these, too. A list that comes first is not copied.
    #[inline]
    pub(crate) fn append(&mut self, more: &'a [Touch<'a>]) {
        if self.as_slice().is_empty() {
            self.borrowed = more;
            return;
        }
        for touch in more {
            self.push(*touch);
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Touch<'a>] {
        if !self.borrowed.is_empty() {
            return self.borrowed;
        }
        if !self.spilled.is_empty() {
            return &self.spilled;
        }
        // SAFETY: the first `len` entries were written, and `len` is at most `INLINE`.
        unsafe { core::slice::from_raw_parts(self.inline.as_ptr().cast(), self.len) }
    }
}

impl core::fmt::Debug for Touch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (mode, name) = (super::mode_name(self.mode), self.allocation.name());
        write!(f, "{mode} of bytes {}..{} of {name}", self.start, self.end)
    }
}
