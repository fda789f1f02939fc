//! Asynchronous copies and mbarriers.
//!
//! A copy is complete as soon as it is issued, which is one of the times that PTX allows. An mbarrier is
//! eight bytes of shared memory: expected and pending arrivals (20 bits each), pending bytes (signed, 21 bits),
//! and the number of the phase modulo 8.

use super::memory::{Memory, Place};
use super::{Result, fault};
use crate::exec::FaultReason;
use crate::ptx::code::{MbarOp, Space};

const COUNT: u64 = (1 << 20) - 1;
const PHASE: u64 = 7;

#[derive(Clone, Copy)]
struct State {
    expected: u64,
    pending: u64,
    bytes: i64,
    phase: u64,
}

impl State {
    fn unpack(word: u64) -> Self {
        Self {
            expected: word & COUNT,
            pending: word >> 20 & COUNT,
            bytes: (word << 3) as i64 >> 43,
            phase: word >> 61,
        }
    }

    fn pack(self) -> u64 {
        self.expected & COUNT
            | (self.pending & COUNT) << 20
            | (self.bytes as u64 & ((1 << 21) - 1)) << 40
            | (self.phase & PHASE) << 61
    }

    /// Ends the phase if nothing is pending.
    fn settle(mut self) -> Self {
        if self.pending == 0 && self.bytes == 0 {
            self.phase = (self.phase + 1) & PHASE;
            self.pending = self.expected;
        }
        self
    }
}

/// What `mbarrier.pending_count` says of a state.
pub(super) fn pending_count(state: u64) -> u64 {
    State::unpack(state).pending
}

impl Memory<'_, '_> {
    /// One lane's mbarrier operation. Returns the state before it, or 1 and 0 for a test.
    pub(super) fn mbarrier(
        &mut self,
        op: MbarOp,
        space: Space,
        address: u64,
        arg: u64,
        lane: usize,
    ) -> Result<u64> {
        let place = self.resolve(space, address);
        let Place::Shared(..) = place else {
            let text = format!("an mbarrier at {address:#x}, which is not in shared memory");
            return fault(lane as u32, FaultReason::IllegalInstruction(text));
        };
        if !address.is_multiple_of(8) {
            return fault(lane as u32, Self::misaligned(address, 8));
        }
        let illegal = |text: &str| {
            let text = format!("mbarrier at {address:#x}: {text}");
            fault(lane as u32, FaultReason::IllegalInstruction(text))
        };
        if op == MbarOp::Init {
            if arg == 0 || arg > COUNT {
                return illegal(&format!("a count of {arg}, the limits are 1 and {COUNT}"));
            }
            let state = State { expected: arg, pending: arg, bytes: 0, phase: 0 };
            self.store_one(place, 0, 8, state.pack(), lane, 0)?;
            return Ok(0);
        }
        let word = self.load_one(place, 0, 8, lane, 0)?;
        let mut state = State::unpack(word);
        if state.expected == 0 && op != MbarOp::Inval {
            return illegal("used before mbarrier.init");
        }
        let arrive = |state: &mut State, count: u64, drop: bool| {
            if count == 0 || count > state.pending {
                return false;
            }
            state.pending -= count;
            if drop {
                state.expected -= count.min(state.expected);
            }
            true
        };
        let fine = match op {
            MbarOp::Test { parity: true, .. } => return Ok(u64::from(state.phase & 1 != arg & 1)),
            MbarOp::Test { .. } => return Ok(u64::from(state.phase != State::unpack(arg).phase)),
            MbarOp::Inval => {
                self.store_one(place, 0, 8, 0, lane, 0)?;
                return Ok(0);
            }
            MbarOp::ExpectTx => {
                state.bytes += arg as i64;
                true
            }
            MbarOp::CompleteTx => {
                state.bytes -= arg as i64;
                true
            }
            MbarOp::Arrive { drop } => arrive(&mut state, arg, drop),
            MbarOp::ArriveExpect { drop } => {
                state.bytes += arg as i64;
                arrive(&mut state, 1, drop)
            }
            MbarOp::AsyncArrive { noinc } => {
                if !noinc {
                    state.pending += 1;
                }
                arrive(&mut state, 1, false)
            }
            MbarOp::Init | MbarOp::PendingCount => true,
        };
        if !fine {
            return illegal("more arrivals than it expects");
        }
        if state.bytes.abs() >= 1 << 20 {
            return illegal("more than 2^20 - 1 pending bytes");
        }
        // After a drop to zero the barrier stays usable for nobody; its phase still ends.
        let settled = match op {
            MbarOp::ExpectTx => state,
            _ => state.settle(),
        };
        self.store_one(place, 0, 8, settled.pack(), lane, 0)?;
        Ok(word)
    }

    /// Copies bytes between spaces for one lane; zeros from `read` on.
    #[allow(clippy::too_many_arguments, reason = "two ends of a copy")]
    pub(super) fn copy(
        &mut self,
        to: (Space, u64),
        from: (Space, u64),
        bytes: u64,
        read: u64,
        align: u64,
        reduce: Option<(crate::ptx::code::AtomOp, simtile_image::ptx::Type)>,
        lane: usize,
        cache: u32,
    ) -> Result<()> {
        for address in [to.1, from.1, bytes] {
            if !address.is_multiple_of(align) {
                return fault(lane as u32, Self::misaligned(address, align));
            }
        }
        let limit = 1 << 20;
        if bytes >= limit {
            let text = format!("a bulk copy of {bytes} bytes, the limit is {limit}");
            return fault(lane as u32, FaultReason::IllegalInstruction(text));
        }
        let (to, from) = (self.resolve(to.0, to.1), self.resolve(from.0, from.1));
        let read = read.min(bytes);
        if read > 0 {
            self.check_written(from, read, lane, cache)?;
        }
        // A window a side would be faster; copies are few and wide.
        let step = match reduce {
            Some((_, ty)) => ty.bytes(),
            None => 8,
        };
        let mut at = 0;
        while at < bytes {
            let n = step.min(bytes - at);
            let have = read.saturating_sub(at).min(n);
            let value = if have == 0 { 0 } else { self.load_one(from, at, have as u32, lane, cache)? };
            match reduce {
                Some((op, ty)) => {
                    let change = |old| super::atomics::combine(op, ty, old, value, 0);
                    self.update(to, at, n as u32, lane, cache, change)?;
                }
                None => self.store_one(to, at, n as u32, value, lane, cache)?,
            }
            at += n;
        }
        Ok(())
    }
}
