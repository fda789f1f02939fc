//! How often each rule fired.

use simtile_sync::atomic::{AtomicU64, Ordering};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule of the tracker. None of them is part of a warm launch on private buffers, so counting is free there.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// All rules.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];
        }
    };
}

rules! {
    /// A stream was made to wait for another.
    Wait,
    /// A conflicting stamp was skipped: the stream is ordered after it already.
    SkipDominated,
    /// A conflicting stamp was skipped: its work is complete.
    SkipCompleted,
    /// A wait was skipped because another wait of the same submission implies it.
    SkipTransitive,
    /// A stamp stood for the oldest of too many readers.
    ReaderLimit,
    /// A foreign stream was sealed because its work had to be followed.
    SealForeign,
    /// A stream was sealed after 32 submissions.
    SealCheckpoint,
    /// A stream was sealed because two streams had met on a range.
    SealEager,
    /// A borrowed, per-thread or legacy stream was sealed after a submission.
    SealTainted,
    /// A stream was sealed after a submission under `Policy::Reject`.
    SealReject,
    /// A stream was sealed because somebody waits for the submission.
    SealAsked,
    /// A stream was sealed before work that waits for the outside.
    SealBeforeOutside,
    /// A stream was sealed before a wait for something that may wait for the outside.
    SealBeforeWait,
    /// The tail of a closing stream was sealed.
    SealTail,
    /// Nothing was recorded because there was nothing new to cover.
    SealNothing,
    /// A record failed.
    RecordFailed,
    /// An epoch whose record failed was sealed again.
    SealedAgain,
    /// An axis failed.
    AxisFailed,
    /// Work was refused because it would follow a failed axis.
    RefusedFailed,
    /// A wait failed; nothing was stamped or enqueued.
    WaitFailed,
    /// An enqueue failed; the stamp stayed.
    EnqueueFailed,
    /// A range was cut.
    Cut,
    /// Neighbouring ranges were joined.
    Joined,
    /// Ranges were joined over the limit (over-ordered).
    Folded,
    /// A write replaced a stamp that it was ordered after.
    Replaced,
    /// A stamp stood for another of its kind that it was ordered after.
    PruneDominated,
    /// A completed stamp was pruned.
    PruneCompleted,
    /// Completed axes left a frontier.
    PruneFrontier,
    /// A submission gave everything up and started again because of a busy stream.
    StreamBusy,
    /// A submission found a guard taken.
    GuardBusy,
    /// A request was left on a stream.
    Requested,
    /// A request was served by a holder of the stream.
    Served,
    /// Memory was freed on its stream at once.
    FreedInline,
    /// Memory was freed by a request.
    FreedByRequest,
    /// Memory went to the reclaimer.
    Reclaimed,
    /// Memory is kept for ever.
    Quarantined,
    /// The host claimed a range.
    HostClaim,
    /// A submission met a host claim.
    HostConflict,
    /// A conflict was reported.
    Conflict,
    /// A conflict was not reported because the work turned out to be complete.
    ConflictCompleted,
    /// A region was exported.
    Exported,
    /// An exported region came back.
    Returned,
    /// An exported region came back from nobody knows which stream.
    ReturnedUnknown,
    /// A quarantine ended at a synchronisation of everything.
    Unquarantined,
    /// A capture began.
    CaptureBegan,
    /// A stream in a capture was made to wait for another.
    CaptureWait,
    /// A stream was joined to the origin at the end of a capture.
    CaptureJoined,
    /// Work outside a capture was refused on a captured stream.
    RefusedCapturing,
    /// A borrowed stream was found capturing.
    RefusedBorrowed,
    /// A permit of a stream was missing.
    StreamFull,
    /// A permit of the context was missing.
    ContextFull,
    /// Permits were given back by an idle stream.
    LeaseReturned,
    /// A fifth stream wanted to sit in a wait-value.
    WaitValueFull,
    /// A stream was closed.
    Closed,
    /// An axis ended and its place became free.
    AxisEnded,
    /// Work of another axis completed because an event ordered after it fired.
    CompletedByFrontier,
    /// Events were made ahead of need.
    EventsMade,
    /// An event had to be made with locks held.
    EventMadeLate,
    /// Two accesses of one submission collided.
    Aliased,
    /// A stream was used by a thread that is not its own.
    WrongThread,
    /// A submission ran unchecked past a conflict.
    Unchecked,
}

/// The counters.
pub struct Stats {
    counts: Box<[AtomicU64]>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self { counts: Rule::ALL.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    #[inline]
    pub(crate) fn add(&self, rule: Rule, times: u64) {
        #[cfg(loom)]
        let _ = (rule, times);
        #[cfg(not(loom))]
        if times != 0 {
            self.counts[rule as usize].fetch_add(times, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn fire(&self, rule: Rule) {
        self.add(rule, 1);
    }

    /// How often a rule fired.
    pub fn get(&self, rule: Rule) -> u64 {
        self.counts[rule as usize].load(Ordering::Relaxed)
    }
}

impl core::fmt::Debug for Stats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_map().entries(Rule::ALL.iter().map(|&rule| (rule, self.get(rule)))).finish()
    }
}
