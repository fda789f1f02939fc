//! How work touches bytes, and which pairs of touches conflict.

/// Who can take part in an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Scope {
    /// One block. Two launches never share a block, so this is a write to everybody else.
    Block,
    /// One device.
    Device,
    /// All devices and the host.
    System,
}

/// How a submission touches a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mode {
    /// Only reads.
    Read,
    /// Reads and writes.
    Write,
    /// Atomic updates of elements of `size` bytes, first element at the start of the range.
    Accumulate {
        /// Bytes in one element: a power of two up to 32, else the access counts as a write.
        size: u32,
        /// Who the operations are atomic for.
        scope: Scope,
    },
}

/// A mode in one word: read, write, or an accumulation with size, phase, scope and device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(u32);

const ACCUMULATE: u32 = 1 << 31;
const SYSTEM: u32 = 1 << 30;
/// Accumulation, size, phase.
const CLASS: u32 = 0xbf3f_0000;

impl Kind {
    pub(crate) const READ: Self = Self(1);
    pub(crate) const WRITE: Self = Self(2);

    /// The kind of an access that starts at byte `start` and runs on `device`.
    #[inline]
    pub(crate) fn new(mode: Mode, start: u64, device: u16) -> Self {
        match mode {
            Mode::Read => Self::READ,
            Mode::Write => Self::WRITE,
            Mode::Accumulate { size, scope } => {
                if scope == Scope::Block || !size.is_power_of_two() || size > 32 {
                    return Self::WRITE;
                }
                let phase = (start % u64::from(size)) as u32;
                let system = if scope == Scope::System { SYSTEM } else { 0 };
                Self(ACCUMULATE | system | (size << 24) | (phase << 16) | u32::from(device))
            }
        }
    }

    #[inline]
    pub(crate) fn is_accumulate(self) -> bool {
        self.0 & ACCUMULATE != 0
    }

    /// The mode that a person would recognise.
    pub(crate) fn mode(self) -> Mode {
        if self == Self::READ {
            Mode::Read
        } else if self.is_accumulate() {
            let scope = if self.0 & SYSTEM != 0 { Scope::System } else { Scope::Device };
            Mode::Accumulate { size: (self.0 >> 24) & 0x3f, scope }
        } else {
            Mode::Write
        }
    }

    /// The device of an accumulation.
    pub(crate) fn device(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// Whether two touches of the same byte need an order.
    #[inline]
    pub(crate) fn conflicts(self, other: Self) -> bool {
        if self == Self::READ && other == Self::READ {
            return false;
        }
        if !self.is_accumulate() {
            return true;
        }
        // The class says as well that it is an accumulation.
        let same_class = (self.0 ^ other.0) & CLASS == 0;
        let same_device = (self.0 ^ other.0) & 0xffff == 0;
        let both_system = self.0 & other.0 & SYSTEM != 0;
        !(same_class && (same_device || both_system))
    }

    /// Whether everything that conflicts with `old` conflicts with `self` too. Only then may a stamp of this
    /// kind stand for an older one that it is ordered after.
    #[inline]
    pub(crate) fn covers(self, old: Self) -> bool {
        self == Self::WRITE || self == old
    }

    /// One kind that covers both.
    pub(crate) fn join(self, other: Self) -> Self {
        if self == other { self } else { Self::WRITE }
    }

    /// The guard group: those who commute share it.
    #[inline]
    pub(crate) fn group(self) -> u32 {
        if self == Self::WRITE {
            simtile_sync::EXCLUSIVE
        } else if self.0 & SYSTEM != 0 && self.is_accumulate() {
            self.0 & !0xffff
        } else {
            self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accumulate(size: u32, scope: Scope, start: u64, device: u16) -> Kind {
        Kind::new(Mode::Accumulate { size, scope }, start, device)
    }

    #[test]
    fn accumulate_commutes_only_with_its_like() {
        let base = accumulate(4, Scope::Device, 0, 0);
        assert!(!base.conflicts(accumulate(4, Scope::Device, 8, 0)));
        assert!(!base.conflicts(accumulate(4, Scope::System, 8, 0)));
        assert!(base.conflicts(accumulate(8, Scope::Device, 0, 0)), "size");
        assert!(base.conflicts(accumulate(4, Scope::Device, 2, 0)), "phase");
        assert!(base.conflicts(accumulate(4, Scope::Device, 0, 1)), "two devices need system scope");
        assert!(base.conflicts(accumulate(4, Scope::System, 0, 1)), "both must be system");
        assert!(
            !accumulate(4, Scope::System, 0, 0).conflicts(accumulate(4, Scope::System, 0, 1)),
            "system covers two devices"
        );
        assert!(accumulate(4, Scope::Block, 0, 0) == Kind::WRITE);
        assert!(accumulate(3, Scope::Device, 0, 0) == Kind::WRITE);
        assert!(base.conflicts(Kind::READ) && Kind::READ.conflicts(base));
    }

    #[test]
    fn a_kind_remembers_its_mode_and_device() {
        for size in [1, 2, 8, 32] {
            for scope in [Scope::Device, Scope::System] {
                for device in [0, 1, 7, u16::MAX] {
                    let kind = accumulate(size, scope, 3, device);
                    assert_eq!(kind.mode(), Mode::Accumulate { size, scope });
                    assert_eq!(kind.device(), device);
                }
            }
        }
        assert_eq!((Kind::READ.mode(), Kind::WRITE.mode()), (Mode::Read, Mode::Write));
        // Those that commute share a guard.
        let group = |scope, device| accumulate(4, scope, 0, device).group();
        assert_eq!(group(Scope::System, 0), group(Scope::System, 1));
        assert_ne!(group(Scope::Device, 0), group(Scope::Device, 1));
    }

    #[test]
    fn cover_means_every_conflict_of_the_old_is_one_of_the_new() {
        let mut all = vec![Kind::READ, Kind::WRITE];
        for size in [1, 4, 8] {
            for start in [0, 2] {
                for device in [0, 1] {
                    all.push(accumulate(size, Scope::Device, start, device));
                    all.push(accumulate(size, Scope::System, start, device));
                }
            }
        }
        for &new in &all {
            for &old in &all {
                let implied = all.iter().all(|&third| !old.conflicts(third) || new.conflicts(third));
                assert!(!new.covers(old) || implied);
                assert!(new.join(old).covers(new) && new.join(old).covers(old));
                // Who shares a guard group commutes.
                if new.group() == old.group() && new != Kind::WRITE {
                    assert!(!new.conflicts(old));
                }
                assert_eq!(new.conflicts(old), old.conflicts(new));
            }
        }
    }
}
