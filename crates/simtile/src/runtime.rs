//! The runtime: which driver a program runs on.

use simtile_async::{self as ops, OpError, SchedulingPolicy};
use simtile_core::{Device, DeviceError, Stream};
use simtile_driver::cuda::LoadError;
use simtile_driver::{Driver, DriverKind};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The environment variable that overrides [`Runtime::new`] and [`Runtime::auto`]: `cuda`, `sim`, or the path of a driver
/// library.
const VARIABLE: &str = "SIMTILE_DRIVER";

/// A driver and its devices.
///
/// A value, not a global: a program may have several, and tests run in parallel each on its own.
#[derive(Clone, Debug)]
pub struct Runtime {
    driver: Driver,
    /// Made when operations are first run on it.
    operations: Arc<OnceLock<ops::Runtime>>,
    /// Keeps a simulator of the caller's running.
    #[cfg(feature = "sim")]
    simulator: Option<simtile_sim::Simulator>,
}

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No CUDA device can be used. The text says how to ask for the simulator.
    #[error("no CUDA device: {why}. To run without a GPU, use Runtime::auto() or set {VARIABLE}=sim")]
    NoDevice {
        /// Why not.
        why: String,
    },
    /// The driver library that was asked for cannot be used.
    #[error("{VARIABLE}={path}: {source}")]
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
    /// The driver does not start.
    #[error(transparent)]
    Device(#[from] DeviceError),
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
}

impl Runtime {
    /// NVIDIA's driver with at least one device. `SIMTILE_DRIVER` overrides it.
    ///
    /// # Errors
    /// [`RuntimeError::NoDevice`], which says how to ask for the simulator; with `SIMTILE_DRIVER` also the others.
    pub fn new() -> Result<Self, RuntimeError> {
        match Choice::from_env() {
            Choice::Default | Choice::Cuda => Self::cuda(),
            choice => Self::chosen(choice),
        }
    }

    /// NVIDIA's driver if it has at least one device, else the simulator, with one notice on stderr.
    /// `SIMTILE_DRIVER` overrides it. For examples, templates and tests.
    ///
    /// # Errors
    /// [`RuntimeError::NoDevice`] only in a program without the simulator; with `SIMTILE_DRIVER` also the others.
    pub fn auto() -> Result<Self, RuntimeError> {
        match Choice::from_env() {
            Choice::Default => match Self::cuda() {
                Err(RuntimeError::NoDevice { why }) if cfg!(feature = "sim") => {
                    notice(&why);
                    Self::shared_simulator()
                }
                other => other,
            },
            choice => Self::chosen(choice),
        }
    }

    fn chosen(choice: Choice) -> Result<Self, RuntimeError> {
        match choice {
            Choice::Default | Choice::Cuda => Self::cuda(),
            Choice::Simulated => Self::shared_simulator(),
            Choice::Path(path) => match Driver::open(&path) {
                Ok(driver) => Self::with_devices(driver),
                Err(source) => Err(RuntimeError::Library { path: path.display().to_string(), source }),
            },
        }
    }

    fn cuda() -> Result<Self, RuntimeError> {
        match Driver::cuda() {
            Ok(driver) => Self::with_devices(driver),
            Err(error) => Err(RuntimeError::NoDevice { why: error.to_string() }),
        }
    }

    fn with_devices(driver: Driver) -> Result<Self, RuntimeError> {
        match Device::count(driver) {
            Ok(0) => Err(RuntimeError::NoDevice { why: "the driver shows none".into() }),
            Ok(_) => Ok(Self::with_driver(driver)),
            // A driver that does not start (no kernel module, a stub library) has no device to offer.
            Err(error) => Err(RuntimeError::NoDevice { why: error.to_string() }),
        }
    }

    /// The process's own simulator, made at first use with the settings in `SIMTILE_SIM`. As with libcuda, everyone who asks
    /// gets the same devices.
    #[cfg(feature = "sim")]
    fn shared_simulator() -> Result<Self, RuntimeError> {
        static SHARED: OnceLock<Result<simtile_sim::Simulator, String>> = OnceLock::new();
        // It lives as long as the process.
        let made = SHARED.get_or_init(|| {
            simtile_sim::Simulator::from_env("SIMTILE_SIM").map_err(|error| error.to_string())
        });
        match made {
            Ok(simulator) => {
                let found = Self::with_devices(simulator.driver())?;
                Ok(Self { simulator: Some(simulator.clone()), ..found })
            }
            Err(why) => Err(RuntimeError::SimulatorSettings { why: why.clone() }),
        }
    }

    #[cfg(not(feature = "sim"))]
    fn shared_simulator() -> Result<Self, RuntimeError> {
        Err(RuntimeError::NoSimulator)
    }

    /// Any driver value.
    pub fn with_driver(driver: Driver) -> Self {
        Self {
            driver,
            operations: Arc::default(),
            #[cfg(feature = "sim")]
            simulator: None,
        }
    }

    /// A simulator of the caller's. It runs as long as this value or another handle of it lives; what uses it later gets
    /// `Deinitialized`.
    #[cfg(feature = "sim")]
    pub fn simulated(simulator: &simtile_sim::Simulator) -> Self {
        Self { driver: simulator.driver(), operations: Arc::default(), simulator: Some(simulator.clone()) }
    }

    /// The simulator behind it, if there is one in this process: the one given to [`Runtime::simulated`], or the process's own. Stand-ins for
    /// libraries are registered there.
    #[cfg(feature = "sim")]
    pub fn simulator(&self) -> Option<&simtile_sim::Simulator> {
        self.simulator.as_ref()
    }

    /// What operations run on: contexts and streams of all devices, made at the first call. [`Runtime::builder`] makes one with
    /// other settings.
    ///
    /// # Errors
    /// The driver's.
    pub fn operations(&self) -> Result<&ops::Runtime, OpError> {
        if let Some(made) = self.operations.get() {
            return Ok(made);
        }
        let made = self.builder().build()?;
        Ok(self.operations.get_or_init(|| made))
    }

    /// Settings of a runtime for operations on this driver: devices, streams, policies, spin budget.
    pub fn builder(&self) -> ops::RuntimeBuilder {
        ops::Runtime::builder(self.driver)
    }

    /// Makes it what `.await` and `.sync()` run on where nothing else was said, in the whole process.
    ///
    /// # Errors
    /// As [`Runtime::operations`].
    pub fn set_default(&self) -> Result<(), OpError> {
        drop(self.operations()?.set_default());
        Ok(())
    }

    /// The same for the calling thread, until the guard ends.
    ///
    /// # Errors
    /// As [`Runtime::operations`].
    pub fn enter(&self) -> Result<ops::runtime::Entered, OpError> {
        Ok(self.operations()?.enter())
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Whether a simulated driver stands behind it.
    pub fn is_simulated(&self) -> bool {
        self.driver.kind() != DriverKind::Cuda
    }

    /// The device of this ordinal.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`], or the driver's.
    pub fn device(&self, ordinal: usize) -> Result<Device, DeviceError> {
        Device::new(self.driver, ordinal)
    }

    /// All devices, in ordinal order.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        Device::all(self.driver)
    }
}

impl SchedulingPolicy for Runtime {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        self.operations()?.next_stream()
    }
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
        let error = Runtime::chosen(Choice::Path("/nowhere/libcuda.so".into())).unwrap_err();
        assert!(matches!(&error, RuntimeError::Library { path, .. } if path == "/nowhere/libcuda.so"));
    }

    #[test]
    fn no_device_says_how_to_simulate() {
        let text = RuntimeError::NoDevice { why: "no driver".into() }.to_string();
        assert!(text.contains("Runtime::auto()") && text.contains("SIMTILE_DRIVER=sim"), "{text}");
    }

    #[cfg(feature = "sim")]
    #[test]
    fn a_simulator_without_devices_is_no_device() {
        let simulator = simtile_sim::Simulator::builder().devices(0).quiet().build();
        let found = Runtime::with_devices(simulator.driver());
        assert!(matches!(found, Err(RuntimeError::NoDevice { .. })), "{found:?}");
        let two = simtile_sim::Simulator::builder().devices(2).quiet().build();
        let runtime = Runtime::simulated(&two);
        assert_eq!(runtime.devices().unwrap().len(), 2);
        assert!(runtime.is_simulated() && runtime.device(1).unwrap().is_simulated());
        assert!(runtime.device(2).is_err());
    }
}
