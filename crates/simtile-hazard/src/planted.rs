//! Bugs planted for the explorer, which has to find each of them. Only with the feature `planted`; otherwise none exists.
//!
//! The switch is one for the process and is set at run time. It is no part of any protocol, so it is an atomic of core's own, which
//! no exploration sees.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Bug {
    /// A stream is not made to wait for conflicting work of another.
    MissingWait,
    /// A stream waits for the event of the wait before.
    WrongEvent,
    /// The last access of a submission leaves no stamp.
    StampNotWritten,
    /// Memory is freed on the first stream that used it, whoever else did.
    FreeWithoutLooking,
    /// Guards are given up between the plan and the stamp.
    GuardNotTaken,
    /// The event that stands for an epoch is recorded before the work of that epoch is queued.
    SealTooEarly,
    /// A view is tracked as one byte shorter than it is.
    ViewTooShort,
    /// A write does not follow reads.
    WriteAfterReadLost,
    /// Memory is given back once the first of its streams has finished.
    FreedBeforeSecondStream,
    /// Work on memory of another context is not ordered with that context.
    PeerWithoutOrder,
    /// A guard on the host does not wait for the device.
    HostGuardWithoutWait,
    /// A graph does not keep what its nodes reach.
    GraphKeepsNothing,
    /// A staging block is used again while its transfer runs.
    StagingReused,
}

impl Bug {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::MissingWait,
        Self::WrongEvent,
        Self::StampNotWritten,
        Self::FreeWithoutLooking,
        Self::GuardNotTaken,
        Self::SealTooEarly,
        Self::ViewTooShort,
        Self::WriteAfterReadLost,
        Self::FreedBeforeSecondStream,
        Self::PeerWithoutOrder,
        Self::HostGuardWithoutWait,
        Self::GraphKeepsNothing,
        Self::StagingReused,
    ];
}

#[cfg(feature = "planted")]
static ACTIVE: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Plants a bug in place of the one before, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    ACTIVE.store(bug.map_or(0, |bug| bug as usize + 1), core::sync::atomic::Ordering::Relaxed);
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
#[inline]
pub fn is_planted(bug: Bug) -> bool {
    ACTIVE.load(core::sync::atomic::Ordering::Relaxed) == bug as usize + 1
}

/// Whether this bug is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}
