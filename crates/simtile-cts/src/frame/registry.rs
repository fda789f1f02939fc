//! What a test declares.

use super::{Check, Cx};
use simtile_driver::sys::CUdevice_attribute;

/// Which API a test calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The driver's table: the test states a guarantee of CUDA.
    Driver,
    /// Our API: the test names a promise.
    Core,
    /// Operations on it: as the core's.
    Async,
}

impl Layer {
    /// Its name in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Core => "core",
            Self::Async => "async",
        }
    }
}

/// The promises of the design, each a test.
pub const PROMISES: &[&str] = &[
    "H1", "H2", "H3", "H4", "H5", "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "A1", "A2", "A3", "A4",
    "A5", "A6", "A7", "O1", "O2", "O3", "O4", "O5", "O6", "L1", "L2", "L3", "L4", "L5", "L6", "G1", "G2",
    "G3", "G4", "F1", "F2", "F3",
];

/// What a test needs of the driver; where it is missing the outcome is `unsupported`.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// At least this many devices.
    Devices(u32),
    /// At least this compute capability on device 0.
    Capability(i32, i32),
    /// A non-zero attribute of device 0, and what it stands for.
    Attribute(CUdevice_attribute, &'static str),
    /// At least this version of CUDA in the driver, and what for.
    Driver(i32, i32, &'static str),
    /// A simulated driver in this process, because CUDA leaves the behaviour undefined; why.
    Simulator(&'static str),
}

impl Need {
    /// Stream-ordered memory.
    pub const POOLS: Self =
        Self::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory pools");
    /// A driver that takes the PTX and the Tile bytecode of `artifacts/`.
    pub const ARTIFACTS: Self = Self::Driver(13, 0, "what the artifacts are written in");
}

/// One test.
pub struct Test {
    /// `family::name`, unique.
    pub name: &'static str,
    /// Which API it calls.
    pub layer: Layer,
    /// What it is about.
    pub family: &'static str,
    /// The promises it proves (core layer).
    pub promises: &'static [&'static str],
    /// What it needs.
    pub needs: &'static [Need],
    /// How many seeds it runs with; it passes if every seed passes, and counts once.
    pub seeds: u64,
    /// The body.
    pub run: fn(&Cx) -> Check,
}

/// Declares the tests of a family as `pub const TESTS`: for each its function, optionally its promises, its
/// needs and its number of seeds.
macro_rules! tests {
    (@promises) => { &[] };
    (@promises [$($promise:literal),*]) => { &[$($promise),*] };
    (@needs) => { &[] };
    (@needs [$($need:expr),*]) => { &[$($need),*] };
    (@seeds) => { 1 };
    (@seeds $seeds:literal) => { $seeds };
    ($layer:ident, $family:literal;
     $($name:ident $(proves [$($promise:literal),*])? $(needs [$($need:expr),* $(,)?])? $(seeds $seeds:literal)?),* $(,)?) => {
        /// The tests of this family.
        pub const TESTS: &[$crate::frame::Test] = &[$(
            $crate::frame::Test {
                name: concat!($family, "::", stringify!($name)),
                layer: $crate::frame::Layer::$layer,
                family: $family,
                promises: $crate::frame::registry::tests!(@promises $([$($promise),*])?),
                needs: $crate::frame::registry::tests!(@needs $([$($need),*])?),
                seeds: $crate::frame::registry::tests!(@seeds $($seeds)?),
                run: $name,
            },
        )*];
    };
}

pub(crate) use tests;
