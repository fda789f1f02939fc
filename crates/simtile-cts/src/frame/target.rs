//! Which driver the tests run on.

use simtile_driver::Driver;
use simtile_driver::cuda::LoadError;
use simtile_sim::{Mode, Simulator};
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

/// A driver by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Simulated, worker threads.
    SimFast,
    /// Simulated, one thing at a time.
    SimFifo,
    /// Simulated, under exploration: each test with these seeds, which decide who runs when.
    SimExplore(Seeds),
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
            path => Self::Path(path.into()),
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        match self {
            Self::SimFast => "sim-fast".into(),
            Self::SimFifo => "sim-fifo".into(),
            Self::SimExplore(_) => "sim-explore".into(),
            Self::Cuda => "cuda".into(),
            Self::Path(path) => path.display().to_string(),
        }
    }

    /// Whether each test gets a simulator of its own in this process.
    pub const fn is_simulator(&self) -> bool {
        matches!(self, Self::SimFast | Self::SimFifo | Self::SimExplore(_))
    }

    /// A driver for one test: a fresh simulator, or the process's library.
    ///
    /// # Errors
    /// What the loader said.
    pub fn open(&self, devices: u32, seed: u64) -> Result<(Driver, Option<Simulator>), LoadError> {
        let mode = match self {
            Self::SimFast => Mode::Fast,
            Self::SimFifo => Mode::Fifo,
            Self::SimExplore(_) => Mode::Explore,
            Self::Cuda => return Ok((Driver::cuda()?, None)),
            Self::Path(path) => return Ok((Driver::open(path)?, None)),
        };
        let simulator = Simulator::builder()
            .devices(devices.max(1))
            .mode(mode)
            .seed(seed)
            .capture_printf()
            .quiet()
            .build();
        Ok((simulator.driver(), Some(simulator)))
    }
}
