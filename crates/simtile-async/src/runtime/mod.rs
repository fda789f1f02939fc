//! The runtime: driver, devices, streams and settings in one value; and which one is in force where none was named.
//!
//! A runtime is a description until something is run on it. The context of a device, its streams and its pool are made when
//! the first operation, [`Runtime::context`] or [`Runtime::prepare`] needs them. No lock is held meanwhile, since policies and pools
//! are made by the program's own code: of two threads that need them at the same moment both make them, and one's are dropped.

mod across;
mod ambient;
mod builder;
mod choice;
mod peers;

pub use across::AcrossDevices;
pub use ambient::Entered;
pub(crate) use ambient::spin_budget;
pub use builder::RuntimeBuilder;
pub use choice::RuntimeError;
pub use peers::{
    get_default_device, get_device_pool, global_policy, next_execution, with_cuda_context,
    with_default_device_policy, with_device, with_device_policy,
};

use crate::{ExecutionContext, OpError, SchedulingPolicy, StreamPoolRoundRobin};
use core::fmt;
use core::time::Duration;
use simtile_core::{Context, Device, DeviceError, MemPool, Policy, Stream};
use simtile_driver::{Driver, DriverKind};
use std::sync::{Arc, OnceLock};

/// Streams of a device.
const STREAMS: usize = 4;
/// How long the first poll of a future asks for completion.
const SPIN: Duration = Duration::from_micros(20);

/// A driver, its devices, their streams, and how operations run on them.
///
/// A value, not a global: a program may have several, and tests run in parallel each on its own. Cheap to clone; clones are the
/// same runtime. [`Runtime::new`] and [`Runtime::auto`] choose the driver, [`Runtime::builder`] also has all settings. One may be made the
/// process's default ([`Runtime::set_default`]), or that of a scope ([`Runtime::enter`]): `.await` and `.sync()` take their stream from
/// it. It is a [`SchedulingPolicy`]: the streams of its first device in turn, unless the builder said otherwise.
///
/// No context is retained before one is needed; [`Runtime::prepare`] makes all of them at a time of the program's choice.
///
/// ```
/// use simtile_async::{DeviceOp, Runtime, download, upload};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let simulator = simtile_sim::Simulator::builder().quiet().build();
/// let runtime = Runtime::builder().driver(simulator.driver()).streams(2).build()?;
/// let _entered = runtime.enter();
/// assert_eq!(upload(vec![1, 2, 3]).then(download).sync()?, [1, 2, 3]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

type MakePool = dyn Fn(&Arc<Context>) -> Result<Arc<MemPool>, OpError> + Send + Sync;
type MakePolicy = dyn Fn(&Arc<Context>) -> Result<Arc<dyn SchedulingPolicy>, OpError> + Send + Sync;

struct Inner {
    driver: Driver,
    /// Ordinals; `None`: all devices.
    chosen: Option<Vec<usize>>,
    settings: Settings,
    /// The devices, once somebody had to know which there are.
    slots: OnceLock<Box<[Slot]>>,
    /// Keeps a simulator running; the last to go.
    #[cfg(feature = "sim")]
    simulator: Option<simtile_sim::Simulator>,
}

/// How operations run.
struct Settings {
    streams: usize,
    spin: Duration,
    conflicts: Policy,
    oom_wait: Option<Duration>,
    scheduling: Option<Box<MakePolicy>>,
    pools: Option<Box<MakePool>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            streams: STREAMS,
            spin: SPIN,
            conflicts: Policy::default(),
            oom_wait: None,
            scheduling: None,
            pools: None,
        }
    }
}

/// A device that the runtime uses.
struct Slot {
    ordinal: usize,
    place: OnceLock<Place>,
}

/// Where operations on a device run.
struct Place {
    context: Arc<Context>,
    policy: Arc<dyn SchedulingPolicy>,
    pool: Option<Arc<MemPool>>,
}

impl Place {
    fn next(&self) -> Result<ExecutionContext, OpError> {
        let next = self.policy.next_execution()?;
        Ok(if next.pool().is_none() { next.with_pool(self.pool.clone()) } else { next })
    }
}

impl Runtime {
    /// The driver.
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// Whether a simulated driver stands behind it.
    pub fn is_simulated(&self) -> bool {
        self.0.driver.kind() != DriverKind::Cuda
    }

    /// The simulator behind it, if there is one in this process and the runtime was made with it: the one given to
    /// [`Runtime::simulated`], or the process's own. Stand-ins for libraries are registered there.
    #[cfg(feature = "sim")]
    pub fn simulator(&self) -> Option<&simtile_sim::Simulator> {
        self.0.simulator.as_ref()
    }

    /// The devices that it uses, in the order in which they were named, else of their ordinals.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        match &self.0.chosen {
            None => Device::all(self.0.driver),
            Some(chosen) => chosen.iter().map(|&ordinal| Device::new(self.0.driver, ordinal)).collect(),
        }
    }

    /// The device of this ordinal.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`]; [`DeviceError::NotOfTheRuntime`] if it was given others; or the driver's.
    pub fn device(&self, ordinal: usize) -> Result<Device, DeviceError> {
        if let Some(chosen) = &self.0.chosen
            && !chosen.contains(&ordinal)
        {
            return Err(DeviceError::NotOfTheRuntime { ordinal, devices: chosen.clone() });
        }
        Device::new(self.0.driver, ordinal)
    }

    /// Ordinal of the first device.
    pub fn default_ordinal(&self) -> usize {
        self.0.chosen.as_ref().and_then(|chosen| chosen.first().copied()).unwrap_or(0)
    }

    /// The context of a device: its primary one. Retained at the first call, with the streams of the device.
    ///
    /// # Errors
    /// The runtime does not use the device; the driver's; those of [`RuntimeBuilder::scheduling`] and
    /// [`RuntimeBuilder::pools`].
    pub fn context(&self, ordinal: usize) -> Result<&Arc<Context>, OpError> {
        Ok(&self.place(ordinal)?.context)
    }

    /// How streams of a device are chosen.
    ///
    /// # Errors
    /// As [`Runtime::context`].
    pub fn policy(&self, ordinal: usize) -> Result<Arc<dyn SchedulingPolicy>, OpError> {
        Ok(self.place(ordinal)?.policy.clone())
    }

    /// Where operations on a device get memory from; `None`: the context's own pool.
    ///
    /// # Errors
    /// As [`Runtime::context`].
    pub fn pool(&self, ordinal: usize) -> Result<Option<&Arc<MemPool>>, OpError> {
        Ok(self.place(ordinal)?.pool.as_ref())
    }

    /// How streams of the first device are chosen.
    ///
    /// # Errors
    /// As [`Runtime::context`].
    pub fn default_policy(&self) -> Result<Arc<dyn SchedulingPolicy>, OpError> {
        Ok(self.first()?.policy.clone())
    }

    /// Makes now what the first operation on each device would make: contexts, streams, pools. Retaining a context takes a GPU a
    /// tenth of a second and more.
    ///
    /// # Errors
    /// As [`Runtime::context`].
    pub fn prepare(&self) -> Result<(), OpError> {
        self.slots()?.iter().try_for_each(|slot| self.placed(slot).map(drop))
    }

    /// All devices in turn, each with its own policy.
    pub fn across_devices(&self) -> AcrossDevices {
        AcrossDevices::new(self)
    }

    /// How long the first poll of a future asks for completion before it gives its thread back.
    pub fn spin_budget(&self) -> Duration {
        self.0.settings.spin
    }

    /// Whether the next operation finds everything made.
    pub(crate) fn is_prepared(&self) -> bool {
        self.0.slots.get().and_then(|slots| slots.first()).is_some_and(|slot| slot.place.get().is_some())
    }

    fn slots(&self) -> Result<&[Slot], OpError> {
        if let Some(slots) = self.0.slots.get() {
            return Ok(slots);
        }
        let ordinals = match &self.0.chosen {
            Some(chosen) => chosen.clone(),
            None => (0..Device::count(self.0.driver)?).collect(),
        };
        if ordinals.is_empty() {
            return Err(DeviceError::NoSuchDevice { ordinal: 0, count: 0 }.into());
        }
        let made = ordinals.into_iter().map(|ordinal| Slot { ordinal, place: OnceLock::new() }).collect();
        Ok(self.0.slots.get_or_init(|| made))
    }

    fn first(&self) -> Result<&Place, OpError> {
        // `slots` gives no empty list.
        self.placed(&self.slots()?[0])
    }

    fn place(&self, ordinal: usize) -> Result<&Place, OpError> {
        let slots = self.slots()?;
        match slots.iter().find(|slot| slot.ordinal == ordinal) {
            Some(slot) => self.placed(slot),
            None if self.0.chosen.is_none() => {
                Err(DeviceError::NoSuchDevice { ordinal, count: slots.len() }.into())
            }
            None => {
                let devices = slots.iter().map(|slot| slot.ordinal).collect();
                Err(DeviceError::NotOfTheRuntime { ordinal, devices }.into())
            }
        }
    }

    fn placed<'s>(&self, slot: &'s Slot) -> Result<&'s Place, OpError> {
        if let Some(place) = slot.place.get() {
            return Ok(place);
        }
        let made = self.make(slot.ordinal)?;
        // The first one stays.
        Ok(slot.place.get_or_init(|| made))
    }

    fn make(&self, ordinal: usize) -> Result<Place, OpError> {
        let settings = &self.0.settings;
        let context = Device::new(self.0.driver, ordinal)?.primary_context()?;
        if let Some(wait) = settings.oom_wait {
            context.set_oom_wait(wait);
        }
        let policy: Arc<dyn SchedulingPolicy> = match &settings.scheduling {
            Some(make) => make(&context)?,
            None => {
                let pool = StreamPoolRoundRobin::new(&context, settings.streams)?;
                for stream in pool.streams() {
                    stream.set_policy(settings.conflicts);
                }
                Arc::new(pool)
            }
        };
        let pool = settings.pools.as_ref().map(|make| make(&context)).transpose()?;
        if let Some(pool) = &pool
            && **pool.context() != *context
        {
            return Err(OpError::user(format!("{pool} is of {}, not of {context}", pool.context())));
        }
        Ok(Place { context, policy, pool })
    }
}

impl SchedulingPolicy for Runtime {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        self.first()?.policy.next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        self.first()?.next()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("driver", &self.0.driver)
            .field("devices", &self.0.chosen)
            .field("spin", &self.0.settings.spin)
            .field("prepared", &self.is_prepared())
            .finish_non_exhaustive()
    }
}
