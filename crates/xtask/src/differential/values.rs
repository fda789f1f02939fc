//! Inputs: random numbers that are the same on every machine, and the special values of each type.

/// A generator seeded by a name.
pub struct Random(u64);

impl Random {
    pub fn new(name: &str, seed: u64) -> Self {
        let mut hash = 0xCBF2_9CE4_8422_2325u64 ^ seed;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
        Self(hash)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// From -4 to 4.
    pub fn float(&mut self) -> f32 {
        (self.bits() as i32 as f32) / (1 << 29) as f32
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub fn halves(&mut self, n: usize) -> Vec<u16> {
        (0..n).map(|_| half::f16::from_f32(self.float()).to_bits()).collect()
    }
}

/// What one operand of a generated kernel is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An integer of this many bits.
    Int(u32),
    /// The same, but not 0: dividing by 0 has no defined result.
    NonZero(u32),
    /// A shift or a position.
    Amount,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
    /// Every NaN of a format of 16 bits with this many digits.
    Nan16(u32),
    /// Always this.
    Fixed(u64),
    /// Not used.
    None,
}

const INTS: [u64; 12] = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0x8000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX,
];
const F16S: [u16; 14] = [
    0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7FFF, 0x7D01, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x3800,
];
const BF16S: [u16; 14] = [
    0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7FFF, 0x7F81, 0x0001, 0x807F, 0x0080, 0x7F7F, 0x3F00,
];
const F32S: [u32; 30] = [
    0,
    0x8000_0000,
    0x3F80_0000,
    0xBF80_0000,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0x7FFF_FFFF,
    0xFF80_0001,
    0x0000_0001,
    0x807F_FFFF,
    0x0080_0000,
    0x7F7F_FFFF,
    0x3F00_0000,
    0x4020_0000,
    0xC060_0000,
    0x4EFF_FFFF,
    0x4F00_0000,
    0xCF00_0000,
    0x4F80_0000,
    0x5F00_0000,
    0x5F80_0000,
    0x477F_F000,
    0x43E8_0000,
    // Products and sums next to the least normal number, where flushing asks how a result was rounded.
    0x3F7F_FFFF,
    0x3F7F_FFFE,
    0xBF7F_FFFC,
    0x0080_0001,
    0x8080_0002,
    0x007F_FFFF,
];
const F64S: [u64; 20] = [
    0,
    0x8000_0000_0000_0000,
    0x3FF0_0000_0000_0000,
    0xBFF0_0000_0000_0000,
    0x7FF0_0000_0000_0000,
    0xFFF0_0000_0000_0000,
    0x7FF8_0000_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x0000_0000_0000_0001,
    0x800F_FFFF_FFFF_FFFF,
    0x0010_0000_0000_0000,
    0x7FEF_FFFF_FFFF_FFFF,
    0x3FE0_0000_0000_0000,
    0x4004_0000_0000_0000,
    0xC00C_0000_0000_0000,
    0x41DF_FFFF_FFC0_0000,
    0x41E0_0000_0000_0000,
    0x43E0_0000_0000_0000,
    0x43F0_0000_0000_0000,
    0x36A0_0000_0000_0000,
];

fn half(special: &[u16], ones: (u32, u64), random: &mut Random) -> u64 {
    let (mantissa, middle) = ones;
    match random.below(8) {
        0 => special[random.below(special.len() as u64) as usize].into(),
        1..=3 => random.bits() & 0xFFFF,
        // Exponents near each other, so that sums cancel.
        _ => {
            let exponent = middle - 4 + random.below(8);
            random.bits() & 0x8000 | exponent << mantissa | random.bits() & ((1 << mantissa) - 1)
        }
    }
}

impl Kind {
    /// The special values.
    fn special(self) -> Vec<u64> {
        match self {
            Self::Int(_) | Self::NonZero(_) => INTS.to_vec(),
            Self::Amount => vec![0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256, 0x8000_0000],
            Self::F16 => F16S.map(u64::from).to_vec(),
            Self::Bf16 => BF16S.map(u64::from).to_vec(),
            Self::F16x2 => F16S.map(|v| u64::from(v) | u64::from(F16S[usize::from(v) % 14]) << 16).to_vec(),
            Self::Bf16x2 => {
                BF16S.map(|v| u64::from(v) | u64::from(BF16S[usize::from(v) % 14]) << 16).to_vec()
            }
            Self::F32 => F32S.map(u64::from).to_vec(),
            Self::F64 => F64S.to_vec(),
            Self::Nan16(digits) => {
                let infinity = 0x7FFF & !0u64 << digits;
                let nans = infinity + 1..0x8000;
                nans.clone().chain(nans.map(|nan| nan | 0x8000)).collect()
            }
            Self::Fixed(value) => vec![value],
            Self::None => vec![0],
        }
    }

    fn random(self, random: &mut Random) -> u64 {
        match self {
            Self::Int(_) | Self::NonZero(_) => match random.below(4) {
                0 => INTS[random.below(12) as usize],
                1 => random.bits() & 0xFF,
                _ => random.bits(),
            },
            Self::Amount => match random.below(4) {
                0 => random.bits() & 0xFFFF_FFFF,
                _ => random.below(70),
            },
            Self::F16 => half(&F16S, (10, 15), random),
            Self::Bf16 => half(&BF16S, (7, 127), random),
            Self::F16x2 => half(&F16S, (10, 15), random) | half(&F16S, (10, 15), random) << 16,
            Self::Bf16x2 => half(&BF16S, (7, 127), random) | half(&BF16S, (7, 127), random) << 16,
            Self::F32 => match random.below(8) {
                0 => F32S[random.below(F32S.len() as u64) as usize].into(),
                1..=3 => random.bits() & 0xFFFF_FFFF,
                _ => {
                    let exponent = 116 + random.below(24);
                    random.bits() & 0x8000_0000 | exponent << 23 | random.bits() & 0x7F_FFFF
                }
            },
            Self::F64 => match random.below(8) {
                0 => F64S[random.below(20) as usize],
                1..=3 => random.bits(),
                _ => {
                    let exponent = 1000 + random.below(48);
                    random.bits() & 1 << 63 | exponent << 52 | random.bits() & ((1 << 52) - 1)
                }
            },
            Self::Nan16(digits) => random.bits() & 0xFFFF | (0x7FFF & !0u64 << digits) | 1,
            Self::Fixed(value) => value,
            Self::None => 0,
        }
    }

    fn fit(self, value: u64) -> u64 {
        match self {
            Self::Int(bits) => value & u64::MAX >> (64 - bits),
            Self::NonZero(bits) => match value & u64::MAX >> (64 - bits) {
                0 => 3,
                value => value,
            },
            _ => value,
        }
    }
}

/// Inputs of `lanes` threads: first the special values of `a` and `b` with each other, then random ones.
pub fn inputs(name: &str, kinds: [Kind; 3], lanes: usize) -> Vec<[u64; 3]> {
    let mut random = Random::new(name, 0);
    let special = kinds.map(Kind::special);
    let mut all = Vec::with_capacity(lanes);
    'pairs: for &a in &special[0] {
        for &b in &special[1] {
            if all.len() == lanes {
                break 'pairs;
            }
            let c = special[2][random.below(special[2].len() as u64) as usize];
            all.push([a, b, c]);
        }
    }
    while all.len() < lanes {
        all.push(kinds.map(|kind| kind.random(&mut random)));
    }
    for row in &mut all {
        for (value, kind) in row.iter_mut().zip(kinds) {
            *value = kind.fit(*value);
        }
    }
    all
}
