//! Running a launch.
//!
//! * [`grid`]: clusters over worker threads, faults, limits;
//! * [`cluster`]: the blocks of a cluster, their warps in turns, block and cluster barriers;
//! * [`warp`]: groups of lanes with their program counters, divergence; [`calls`], [`barriers`];
//! * [`memory`], [`atomics`], [`copies`], [`multimem`], [`together`], [`special`], [`printf`]: what instructions do.
//!
//! A cluster runs on one worker, so shared memory needs no locks; global memory is atomic by itself. Lanes of
//! a warp are kept in *groups* of equal program counter and call depth. The group that is deepest and then
//! furthest behind runs first, which brings lanes together again where their paths meet; a group that spins
//! is set aside in favour of the others, so a lane that waits for another lane of its warp never starves it.

pub(super) mod atomics;
pub(super) mod barriers;
pub(super) mod calls;
pub(super) mod cluster;
pub(super) mod copies;
pub(super) mod grid;
pub(super) mod memory;
pub(super) mod multimem;
pub(super) mod printf;
pub(super) mod special;
pub(super) mod together;
pub(super) mod warp;

use crate::exec::FaultReason;

/// A fault of one lane.
pub(super) struct LaneFault {
    pub lane: u32,
    pub reason: FaultReason,
}

type Result<T> = std::result::Result<T, Box<LaneFault>>;

pub(super) fn fault<T>(lane: u32, reason: FaultReason) -> Result<T> {
    Err(Box::new(LaneFault { lane, reason }))
}

/// The lanes of a mask, in order.
pub(super) fn each_lane(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros();
            mask &= mask - 1;
            lane as usize
        })
    })
}
