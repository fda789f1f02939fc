//! Which driver a program runs on.

use super::{Inner, Runtime, Settings};
use crate::OpError;
use core::fmt;
use simtile_core::{Device, DeviceError};
use simtile_driver::Driver;
use simtile_driver::cuda::LoadError;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The environment variable that overrides [`Runtime::new`] and [`Runtime::auto`]: `cuda`, `sim`, or the path of a driver
/// library.
const VARIABLE: &str = "SIMTILE_DRIVER";

/// Why there is no runtime.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No CUDA device can be used. The text says how to ask for the simulator.
    #[error("no CUDA device: {why}. To run without a GPU, use Runtime::auto() or set {VARIABLE}=sim")]
    NoDevice {
        /// Why not.
        why: String,
    },
    /// The driver library that was asked for cannot be used.
    #[error(
        "{VARIABLE}={path}, which is neither `cuda` nor `sim` and so the path of a driver library: {source}"
    )]
    Library {
        /// The path.
        path: String,
        /// Why not.
        source: LoadError,
    },
    /// The simulator was asked for, but this program was built without it.
    #[error("the simulated driver is not in this program; build with simtile's feature `sim`")]
    NoSimulator,
    /// The simulator's settings are wrong.
    #[error("SIMTILE_SIM: {why}")]
    SimulatorSettings {
        /// Which setting, and what is allowed.
        why: String,
    },
    /// A setting of the builder is wrong.
    #[error("runtime: {what}")]
    Setting {
        /// Which one, with the value and the limit.
        what: String,
    },
    /// The driver does not start, or has no such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The text, since that is what `main` and `unwrap` print of an error.
impl fmt::Debug for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<RuntimeError> for OpError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Device(error) => error.into(),
            error => Self::user(error),
        }
    }
}

/// What the environment asks for.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// Nothing: the caller's default.
    Default,
    Cuda,
    Simulated,
    Path(PathBuf),
}

impl Choice {
    fn from_setting(setting: Option<OsString>) -> Self {
        match setting {
            None => Self::Default,
            Some(text) if text.is_empty() => Self::Default,
            Some(text) if text == "cuda" => Self::Cuda,
            Some(text) if text == "sim" => Self::Simulated,
            Some(path) => Self::Path(path.into()),
        }
    }

    fn from_env() -> Self {
        Self::from_setting(std::env::var_os(VARIABLE))
    }

    fn find(self) -> Result<Found, RuntimeError> {
        match self {
            Self::Default | Self::Cuda => cuda(),
            Self::Simulated => shared_simulator(),
            Self::Path(path) => match Driver::open(&path) {
                Ok(driver) => with_devices(driver),
                Err(source) => Err(RuntimeError::Library { path: path.display().to_string(), source }),
            },
        }
    }
}

/// Where a runtime's driver comes from.
pub(super) enum Source {
    New,
    Auto,
    Driver(Driver),
    #[cfg(feature = "sim")]
    Simulator(simtile_sim::Simulator),
}

impl Source {
    pub(super) fn of(runtime: &Runtime) -> Self {
        #[cfg(feature = "sim")]
        if let Some(simulator) = runtime.simulator() {
            return Self::Simulator(simulator.clone());
        }
        Self::Driver(runtime.driver())
    }

    pub(super) fn find(self) -> Result<Found, RuntimeError> {
        match self {
            Self::New => Choice::from_env().find(),
            Self::Auto => match Choice::from_env() {
                Choice::Default => match cuda() {
                    Err(RuntimeError::NoDevice { why }) if cfg!(feature = "sim") => {
                        let found = shared_simulator()?;
                        notice(&why);
                        Ok(found)
                    }
                    other => other,
                },
                choice => choice.find(),
            },
            Self::Driver(driver) => Ok(driver.into()),
            #[cfg(feature = "sim")]
            Self::Simulator(simulator) => Ok(simulator.into()),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("as Runtime::new"),
            Self::Auto => f.write_str("as Runtime::auto"),
            Self::Driver(driver) => driver.fmt(f),
            #[cfg(feature = "sim")]
            Self::Simulator(simulator) => simulator.fmt(f),
        }
    }
}

/// A driver, and what keeps it running.
pub(super) struct Found {
    pub(super) driver: Driver,
    #[cfg(feature = "sim")]
    pub(super) simulator: Option<simtile_sim::Simulator>,
}

impl From<Driver> for Found {
    fn from(driver: Driver) -> Self {
        Self {
            driver,
            #[cfg(feature = "sim")]
            simulator: None,
        }
    }
}

#[cfg(feature = "sim")]
impl From<simtile_sim::Simulator> for Found {
    fn from(simulator: simtile_sim::Simulator) -> Self {
        Self { driver: simulator.driver(), simulator: Some(simulator) }
    }
}

impl Runtime {
    /// NVIDIA's driver with at least one device. `SIMTILE_DRIVER` overrides it.
    ///
    /// # Errors
    /// [`RuntimeError::NoDevice`], which says how to ask for the simulator; with `SIMTILE_DRIVER` also the others.
    pub fn new() -> Result<Self, RuntimeError> {
        Ok(Self::of(Source::New.find()?))
    }

    /// NVIDIA's driver if it has at least one device, else the simulator, with one notice on stderr.
    /// `SIMTILE_DRIVER` overrides it. For examples, templates and tests.
    ///
    /// # Errors
    /// [`RuntimeError::NoDevice`] only in a program without the simulator; with `SIMTILE_DRIVER` also the others.
    pub fn auto() -> Result<Self, RuntimeError> {
        Ok(Self::of(Source::Auto.find()?))
    }

    /// Any driver value, with the default settings.
    pub fn with_driver(driver: Driver) -> Self {
        Self::of(driver.into())
    }

    /// A simulator of the caller's, with the default settings. It runs as long as this value or another handle of it lives; what
    /// uses it later gets `Deinitialized`.
    #[cfg(feature = "sim")]
    pub fn simulated(simulator: &simtile_sim::Simulator) -> Self {
        Self::of(simulator.clone().into())
    }

    fn of(found: Found) -> Self {
        Self(Arc::new(Inner {
            driver: found.driver,
            chosen: None,
            settings: Settings::default(),
            slots: OnceLock::new(),
            #[cfg(feature = "sim")]
            simulator: found.simulator,
        }))
    }
}

fn cuda() -> Result<Found, RuntimeError> {
    match Driver::cuda() {
        Ok(driver) => with_devices(driver),
        Err(error) => Err(RuntimeError::NoDevice { why: error.to_string() }),
    }
}

fn with_devices(found: impl Into<Found>) -> Result<Found, RuntimeError> {
    let found = found.into();
    match Device::count(found.driver) {
        Ok(0) => Err(RuntimeError::NoDevice { why: "the driver shows none".into() }),
        Ok(_) => Ok(found),
        // A driver that does not start (no kernel module, a stub library) has no device to offer.
        Err(error) => Err(RuntimeError::NoDevice { why: error.to_string() }),
    }
}

/// The process's own simulator, made at first use with the settings in `SIMTILE_SIM`. As with libcuda, everyone who asks
/// gets the same devices.
#[cfg(feature = "sim")]
fn shared_simulator() -> Result<Found, RuntimeError> {
    static SHARED: OnceLock<Result<simtile_sim::Simulator, String>> = OnceLock::new();
    // It lives as long as the process.
    let made = SHARED
        .get_or_init(|| simtile_sim::Simulator::from_env("SIMTILE_SIM").map_err(|error| error.to_string()));
    match made {
        Ok(simulator) => with_devices(simulator.clone()).map_err(|error| match error {
            RuntimeError::NoDevice { .. } => {
                RuntimeError::SimulatorSettings { why: "devices=0 leaves nothing to run on".into() }
            }
            other => other,
        }),
        Err(why) => Err(RuntimeError::SimulatorSettings { why: why.clone() }),
    }
}

#[cfg(not(feature = "sim"))]
fn shared_simulator() -> Result<Found, RuntimeError> {
    Err(RuntimeError::NoSimulator)
}

/// Says once a process that nothing of what follows runs on a GPU.
fn notice(why: &str) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        // What was tried and how it failed is for `Runtime::new`, which fails with it.
        let why = why.split([';', '(']).next().unwrap_or(why).trim_end();
        // A notice that cannot be written is no reason to stop.
        let _ = writeln!(
            std::io::stderr(),
            "simtile: running on the simulated driver ({why}). Set {VARIABLE}=cuda to insist on a GPU."
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_names_a_driver_or_a_path() {
        let choice = |text: &str| Choice::from_setting(Some(text.into()));
        assert_eq!(Choice::from_setting(None), Choice::Default);
        assert_eq!(choice(""), Choice::Default);
        assert_eq!(choice("cuda"), Choice::Cuda);
        assert_eq!(choice("sim"), Choice::Simulated);
        assert_eq!(choice("./libcuda.so"), Choice::Path("./libcuda.so".into()));
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Choice::Path("/nowhere/libcuda.so".into()).find().map(drop).unwrap_err();
        assert!(matches!(&error, RuntimeError::Library { path, .. } if path == "/nowhere/libcuda.so"));
    }

    #[test]
    fn no_device_says_how_to_simulate() {
        let text = RuntimeError::NoDevice { why: "no driver".into() }.to_string();
        assert!(text.contains("Runtime::auto()") && text.contains("SIMTILE_DRIVER=sim"), "{text}");
    }

    #[test]
    fn a_simulator_without_devices_is_no_device() {
        let simulator = simtile_sim::Simulator::builder().devices(0).quiet().build();
        let found = with_devices(simulator.driver()).map(drop);
        assert!(matches!(found, Err(RuntimeError::NoDevice { .. })), "{found:?}");
        let built = Runtime::builder().driver(simulator.driver()).build();
        let none = DeviceError::NoSuchDevice { ordinal: 0, count: 0 };
        assert_eq!(built.unwrap_err().to_string(), none.to_string());
        let runtime = Runtime::with_driver(simulator.driver());
        assert_eq!(runtime.prepare().unwrap_err().to_string(), none.to_string());
    }
}
