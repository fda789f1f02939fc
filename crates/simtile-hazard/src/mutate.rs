//! Run-time switches for the mutation check.
//!
//! Every wait, guard, bump, seal, merge, prune and request of the protocol asks [`site!`] first. In ordinary builds the answer
//! is a constant. With the feature `mutate` the environment variable `SIMTILE_HAZARD_OFF` names one site that is left
//! out; `cargo run --release -p xtask -- mutate-hazard` runs the tests once for each and expects them to fail.

macro_rules! sites {
    ($($name:ident),* $(,)?) => {
        /// A step of the protocol that can be switched off.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Site { $(#[allow(missing_docs)] $name),* }

        /// The names of all sites.
        pub const SITES: &[&str] = &[$(stringify!($name)),*];
    };
}

sites! {
    // Waits
    WaitForeign, WaitReaderLimit, WaitHost, WaitCapture, WaitCaptureJoin, WaitAddStream,
    // Guards and locks
    GuardShared, GuardExclusive, GuardHost, GuardExport, OrderBeforeEnqueue,
    // Bumps and seals
    Bump, BumpCapture, BumpSync, SealForeign, SealAgain, SealCheckpoint, SealEager, SealTainted, SealReject, SealAsked, SealMark,
    SealBeforeOutside, SealBeforeWait, SealTail, SealCapture, SealReclaim, SealExportReturn,
    // Merges
    MergeWait, MergeSelf, MergeCapture, MergeComplete, MergeFold,
    // Prunes
    PruneCompleted, PruneDominated, PruneFrontier, PruneJoin, PruneFold, PruneRecords,
    // Requests
    RequestSeal, RequestFree, RequestClose, ServeSeal, ServeBefore, ServeAfter,
    // Refusals and bounds
    RefuseCapturing, RefuseBorrowedCapturing, RefuseFailed, RefuseHost, RefuseExported, RefuseThread, RefuseAlias,
    PermitStream, PermitContext, PermitWaitValue, QueryBeforeConflict, TaintedFrontier, QuarantineFailed,
    QuarantineHost, FreeFollows, FreeTainted, FreeCapturing, FailAxis, ReturnLease,
}

#[cfg(feature = "mutate")]
pub(crate) fn on(site: Site) -> bool {
    use std::sync::OnceLock;
    static OFF: OnceLock<Option<usize>> = OnceLock::new();
    let off = OFF.get_or_init(|| {
        let name = std::env::var("SIMTILE_HAZARD_OFF").ok()?;
        SITES.iter().position(|site| *site == name)
    });
    *off != Some(site as usize)
}

#[cfg(not(feature = "mutate"))]
#[inline(always)]
pub(crate) const fn on(_site: Site) -> bool {
    true
}

/// Whether a step of the protocol is to be done: always, unless the mutation check left it out.
macro_rules! site {
    ($name:ident) => {
        crate::mutate::on(crate::mutate::Site::$name)
    };
}
pub(crate) use site;
