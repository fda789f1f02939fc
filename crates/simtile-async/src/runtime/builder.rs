//! Settings of a runtime.

use super::choice::Source;
use super::{Inner, Runtime, RuntimeError, Settings};
use crate::{OpError, SchedulingPolicy};
use core::fmt;
use core::time::Duration;
use simtile_core::{Context, Device, DeviceError, MemPool, Policy};
use simtile_driver::Driver;
use std::sync::{Arc, OnceLock};

/// Settings of a [`Runtime`]. See [`Runtime::builder`].
#[must_use = "`build` makes the runtime"]
pub struct RuntimeBuilder {
    source: Source,
    devices: Option<Vec<usize>>,
    settings: Settings,
}

impl Runtime {
    /// Settings: the driver, which is that of [`Runtime::new`] if none is named, devices, streams, policies, pools, spin budget.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder { source: Source::New, devices: None, settings: Settings::default() }
    }
}

impl RuntimeBuilder {
    /// The driver of [`Runtime::auto`].
    pub fn auto(mut self) -> Self {
        self.source = Source::Auto;
        self
    }

    /// This driver.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.source = Source::Driver(driver);
        self
    }

    /// This simulator, which runs as long as the runtime or another handle of it lives.
    #[cfg(feature = "sim")]
    pub fn simulator(mut self, simulator: &simtile_sim::Simulator) -> Self {
        self.source = Source::Simulator(simulator.clone());
        self
    }

    /// The driver of another runtime.
    pub fn driver_of(mut self, runtime: &Runtime) -> Self {
        self.source = Source::of(runtime);
        self
    }

    /// These devices alone, by ordinal; the first is the default one. Else all.
    pub fn devices(mut self, ordinals: impl IntoIterator<Item = usize>) -> Self {
        self.devices = Some(ordinals.into_iter().collect());
        self
    }

    /// So many streams a device, in turn.
    pub fn streams(mut self, streams: usize) -> Self {
        self.settings.streams = streams;
        self
    }

    /// How long the first poll of a future asks for completion before it gives its thread back; may be 0.
    pub fn spin_budget(mut self, budget: Duration) -> Self {
        self.settings.spin = budget;
        self
    }

    /// What its streams do about conflicting work of others.
    pub fn conflict_policy(mut self, policy: Policy) -> Self {
        self.settings.conflicts = policy;
        self
    }

    /// How long an allocation waits for memory that is still in use.
    pub fn oom_wait(mut self, wait: Duration) -> Self {
        self.settings.oom_wait = Some(wait);
        self
    }

    /// How streams are chosen, made for each device when it is first needed, in place of [`RuntimeBuilder::streams`] in turn.
    pub fn scheduling<P: SchedulingPolicy + 'static>(
        mut self,
        make: impl Fn(&Arc<Context>) -> Result<P, OpError> + Send + Sync + 'static,
    ) -> Self {
        self.settings.scheduling = Some(Box::new(move |context| Ok(Arc::new(make(context)?))));
        self
    }

    /// Where operations that this runtime places get memory from, made for each device when it is first needed; else from the
    /// context's own pool. Operations on a stream that was named ([`DeviceOp::sync_on`](crate::DeviceOp::sync_on)) are not placed by it.
    pub fn pools<E: Into<OpError>>(
        mut self,
        make: impl Fn(&Arc<Context>) -> Result<Arc<MemPool>, E> + Send + Sync + 'static,
    ) -> Self {
        self.settings.pools = Some(Box::new(move |context| make(context).map_err(Into::into)));
        self
    }

    /// The runtime. Retains no context; [`Runtime::prepare`] does.
    ///
    /// # Errors
    /// Those of the choice of the driver ([`Runtime::new`], [`Runtime::auto`]); no device; a device named that there is not, or named
    /// twice; 0 streams; the driver's.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        let Self { source, devices, settings } = self;
        let found = source.find()?;
        let count = Device::count(found.driver)?;
        let missing = |ordinal| RuntimeError::Device(DeviceError::NoSuchDevice { ordinal, count });
        let refused = |what| Err(RuntimeError::Setting { what });
        if settings.streams == 0 && settings.scheduling.is_none() {
            return refused("0 streams a device; the least is 1".to_owned());
        }
        match &devices {
            None if count == 0 => return Err(missing(0)),
            None => {}
            Some(ordinals) if ordinals.is_empty() => {
                return refused("a list of 0 devices; the least is 1".to_owned());
            }
            Some(ordinals) => {
                for (at, &ordinal) in ordinals.iter().enumerate() {
                    if ordinal >= count {
                        return Err(missing(ordinal));
                    }
                    if ordinals[..at].contains(&ordinal) {
                        return refused(format!("device {ordinal} was named twice; the limit is once"));
                    }
                }
            }
        }
        Ok(Runtime(Arc::new(Inner {
            driver: found.driver,
            chosen: devices,
            settings,
            slots: OnceLock::new(),
            #[cfg(feature = "sim")]
            simulator: found.simulator,
        })))
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("source", &self.source)
            .field("devices", &self.devices)
            .field("streams", &self.settings.streams)
            .field("spin", &self.settings.spin)
            .finish_non_exhaustive()
    }
}
