//! Which driver the tests run on.

use simtile_driver::Driver;
use simtile_driver::cuda::LoadError;
use simtile_sim::{Builder, Checks, Lacks, Mode, Profile, Simulator};
use std::path::PathBuf;

/// Which seeds an exploration tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Default for Seeds {
    fn default() -> Self {
        Self { first: 0, count: 4 }
    }
}

/// How a masked simulator is less than the others. They run one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// No stream-ordered memory.
    NoPools,
    /// No virtual memory management.
    NoVmm,
    /// No clusters of blocks.
    NoClusters,
    /// Small limits, and 256 MiB of memory.
    Small,
    /// A driver of CUDA 12.0: what came later is not there.
    Driver12,
    /// Managed memory that host and devices cannot use at the same time, with every check on.
    ManagedExclusive,
    /// Compute capability 8.0.
    A100,
    /// Compute capability 8.9.
    Rtx4090,
    /// Compute capability 10.0.
    B200,
}

impl Mask {
    /// Every mask. The counts of all of them are committed.
    pub const ALL: &[Self] = &[
        Self::NoPools,
        Self::NoVmm,
        Self::NoClusters,
        Self::Small,
        Self::Driver12,
        Self::ManagedExclusive,
        Self::A100,
        Self::Rtx4090,
        Self::B200,
    ];

    /// The name of the driver.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPools => "sim-no-pools",
            Self::NoVmm => "sim-no-vmm",
            Self::NoClusters => "sim-no-clusters",
            Self::Small => "sim-small-limits",
            Self::Driver12 => "sim-driver-12.0",
            Self::ManagedExclusive => "sim-managed-exclusive",
            Self::A100 => "sim-a100",
            Self::Rtx4090 => "sim-rtx4090",
            Self::B200 => "sim-b200",
        }
    }

    fn apply(self, builder: Builder) -> Builder {
        let mut lacks = Lacks::NOTHING;
        match self {
            Self::NoPools => lacks.pools = true,
            Self::NoVmm => lacks.vmm = true,
            Self::NoClusters => lacks.clusters = true,
            Self::Small => return builder.profile(Profile::Small).memory(256 << 20),
            Self::Driver12 => return builder.driver_version(12000),
            Self::ManagedExclusive => return builder.concurrent_managed(false).checks(Checks::ALL),
            Self::A100 => return builder.profile(Profile::A100),
            Self::Rtx4090 => return builder.profile(Profile::Rtx4090),
            Self::B200 => return builder.profile(Profile::B200),
        }
        builder.without(lacks)
    }
}

/// A driver by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Simulated, worker threads.
    SimFast,
    /// Simulated, one thing at a time.
    SimFifo,
    /// Simulated, under exploration: each test with these seeds, which decide who runs when.
    SimExplore(Seeds),
    /// Simulated, with less than the others.
    SimMasked(Mask),
    /// NVIDIA's driver.
    Cuda,
    /// A driver library by path.
    Path(PathBuf),
}

impl Target {
    /// The target of this name; anything that is no known name is a path.
    pub fn parse(text: &str) -> Self {
        match text {
            "sim-fast" => Self::SimFast,
            "sim-fifo" => Self::SimFifo,
            "sim-explore" => Self::SimExplore(Seeds::default()),
            "cuda" => Self::Cuda,
            other => match Mask::ALL.iter().find(|mask| mask.name() == other) {
                Some(mask) => Self::SimMasked(*mask),
                None => Self::Path(other.into()),
            },
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        match self {
            Self::SimFast => "sim-fast".into(),
            Self::SimFifo => "sim-fifo".into(),
            Self::SimExplore(_) => "sim-explore".into(),
            Self::SimMasked(mask) => mask.name().into(),
            Self::Cuda => "cuda".into(),
            Self::Path(path) => path.display().to_string(),
        }
    }

    /// Whether each test gets a simulator of its own in this process.
    pub const fn is_simulator(&self) -> bool {
        matches!(self, Self::SimFast | Self::SimFifo | Self::SimExplore(_) | Self::SimMasked(_))
    }

    /// A driver for one test: a fresh simulator, or the process's library.
    ///
    /// # Errors
    /// What the loader said.
    pub fn open(&self, devices: u32, seed: u64) -> Result<(Driver, Option<Simulator>), LoadError> {
        let mode = match self {
            Self::SimFast => Mode::Fast,
            Self::SimFifo | Self::SimMasked(_) => Mode::Fifo,
            Self::SimExplore(_) => Mode::Explore,
            Self::Cuda => return Ok((Driver::cuda()?, None)),
            Self::Path(path) => return Ok((Driver::open(path)?, None)),
        };
        let mut builder =
            Simulator::builder().devices(devices.max(1)).mode(mode).seed(seed).capture_printf().quiet();
        if let Self::SimMasked(mask) = self {
            builder = mask.apply(builder);
        }
        let simulator = builder.build();
        Ok((simulator.driver(), Some(simulator)))
    }
}
