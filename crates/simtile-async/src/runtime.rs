//! The runtime: devices, streams and settings in one value; and which one is in force where none was named.

use crate::worlds::Worlds;
use crate::{ExecutionContext, OpError, SchedulingPolicy, StreamPoolRoundRobin};
use core::cell::RefCell;
use core::fmt;
use core::time::Duration;
use simtile_core::{Context, Device, DeviceError, MemPool, Policy, Stream};
use simtile_driver::Driver;
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Streams of a device.
const STREAMS: usize = 4;
/// How long the first poll of a future asks for completion.
const SPIN: Duration = Duration::from_micros(20);

/// A driver, its devices, their streams, and how operations run on them.
///
/// A value, not a global; a program may have several. Cheap to clone. One may be made the process's default
/// ([`Runtime::set_default`]), or that of a scope ([`Runtime::enter`]): `.await` and `.sync()` take their stream from it.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    driver: Driver,
    devices: Vec<Slot>,
    spin: Duration,
}

/// A device that the runtime uses.
struct Slot {
    context: Arc<Context>,
    policy: Arc<dyn SchedulingPolicy>,
    pool: Option<Arc<MemPool>>,
}

impl Slot {
    /// Where its next operation runs.
    fn next(&self) -> Result<ExecutionContext, OpError> {
        let next = self.policy.next_execution()?;
        Ok(if next.pool().is_none() { next.with_pool(self.pool.clone()) } else { next })
    }
}

type MakePool = dyn Fn(&Arc<Context>) -> Result<Arc<MemPool>, OpError> + Send + Sync;
type MakePolicy = dyn Fn(&Arc<Context>) -> Result<Arc<dyn SchedulingPolicy>, OpError> + Send + Sync;

/// Settings of a [`Runtime`].
pub struct RuntimeBuilder {
    driver: Driver,
    devices: Option<Vec<usize>>,
    streams: usize,
    spin: Duration,
    conflicts: Policy,
    oom_wait: Option<Duration>,
    scheduling: Option<Box<MakePolicy>>,
    pools: Option<Box<MakePool>>,
}

impl Runtime {
    /// All devices of a driver, four streams each, in turn.
    ///
    /// # Errors
    /// As [`RuntimeBuilder::build`].
    pub fn with_driver(driver: Driver) -> Result<Self, OpError> {
        Self::builder(driver).build()
    }

    /// Settings.
    pub fn builder(driver: Driver) -> RuntimeBuilder {
        RuntimeBuilder {
            driver,
            devices: None,
            streams: STREAMS,
            spin: SPIN,
            conflicts: Policy::default(),
            oom_wait: None,
            scheduling: None,
            pools: None,
        }
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// The devices that it uses, in the order in which they were named.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = Device> + '_ {
        self.0.devices.iter().map(|slot| slot.context.device())
    }

    /// Ordinal of the first device.
    pub fn default_ordinal(&self) -> usize {
        // `build` makes no runtime without devices.
        self.0.devices[0].context.ordinal()
    }

    /// The context of a device.
    ///
    /// # Errors
    /// The runtime does not use the device.
    pub fn context(&self, ordinal: usize) -> Result<&Arc<Context>, OpError> {
        Ok(&self.slot(ordinal)?.context)
    }

    /// How streams of a device are chosen.
    ///
    /// # Errors
    /// The runtime does not use the device.
    pub fn policy(&self, ordinal: usize) -> Result<Arc<dyn SchedulingPolicy>, OpError> {
        Ok(self.slot(ordinal)?.policy.clone())
    }

    /// Where operations on a device get memory from; `None`: the context's own pool.
    ///
    /// # Errors
    /// The runtime does not use the device.
    pub fn pool(&self, ordinal: usize) -> Result<Option<&Arc<MemPool>>, OpError> {
        Ok(self.slot(ordinal)?.pool.as_ref())
    }

    /// How streams of the first device are chosen.
    pub fn default_policy(&self) -> Arc<dyn SchedulingPolicy> {
        // `build` makes no runtime without devices.
        self.0.devices[0].policy.clone()
    }

    /// All devices in turn, each with its own policy.
    pub fn across_devices(&self) -> AcrossDevices {
        AcrossDevices { runtime: self.clone(), next: AtomicUsize::new(0) }
    }

    /// How long the first poll of a future asks for completion before it gives its thread back.
    pub fn spin_budget(&self) -> Duration {
        self.0.spin
    }

    /// Makes it the process's default. Gives the one before.
    pub fn set_default(&self) -> Option<Runtime> {
        let default = DEFAULT.mine();
        SPIN_NANOS.store(nanos(self.0.spin), Ordering::Relaxed);
        default.0.lock().replace(self.clone())
    }

    /// No default any more. Gives the one before.
    pub fn clear_default() -> Option<Runtime> {
        let default = DEFAULT.mine();
        SPIN_NANOS.store(nanos(SPIN), Ordering::Relaxed);
        default.0.lock().take()
    }

    /// In force on the calling thread until the guard ends, whatever the default is.
    pub fn enter(&self) -> Entered {
        ENTERED.with_borrow_mut(|entered| entered.push(self.clone()));
        Entered { depth: ENTERED.with_borrow(Vec::len), thread: core::marker::PhantomData }
    }

    /// The one in force on the calling thread: the innermost that was entered, else the process's default.
    pub fn current() -> Option<Runtime> {
        let entered = ENTERED.try_with(|entered| entered.borrow().last().cloned()).ok().flatten();
        entered.or_else(|| DEFAULT.mine().0.lock().clone())
    }

    fn slot(&self, ordinal: usize) -> Result<&Slot, OpError> {
        let found = self.0.devices.iter().find(|slot| slot.context.ordinal() == ordinal);
        found.ok_or_else(|| DeviceError::NoSuchDevice { ordinal, count: self.0.devices.len() }.into())
    }
}

impl SchedulingPolicy for Runtime {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        self.0.devices[0].policy.next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        self.0.devices[0].next()
    }
}

/// See [`Runtime::across_devices`].
pub struct AcrossDevices {
    runtime: Runtime,
    next: AtomicUsize,
}

impl AcrossDevices {
    fn slot(&self) -> &Slot {
        let devices = &self.runtime.0.devices;
        &devices[self.next.fetch_add(1, Ordering::Relaxed) % devices.len()]
    }
}

impl SchedulingPolicy for AcrossDevices {
    fn next_stream(&self) -> Result<Arc<Stream>, OpError> {
        self.slot().policy.next_stream()
    }

    fn next_execution(&self) -> Result<ExecutionContext, OpError> {
        self.slot().next()
    }
}

/// See [`Runtime::enter`].
#[derive(Debug)]
#[must_use = "the runtime is in force as long as this value lives"]
pub struct Entered {
    depth: usize,
    /// It ends on the thread on which it began.
    thread: core::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Those that were entered later and whose guards were forgotten end with it.
        let ended = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let keep = (self.depth - 1).min(entered.len());
            entered.split_off(keep)
        });
        drop(ended);
    }
}

/// The default of one world.
#[derive(Default)]
struct InForce(Mutex<Option<Runtime>>);

static DEFAULT: Worlds<InForce> = Worlds::new();
static SPIN_NANOS: AtomicU64 = AtomicU64::new(20_000);

thread_local! {
    static ENTERED: RefCell<Vec<Runtime>> = const { RefCell::new(Vec::new()) };
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The stream of an operation that was given none.
pub(crate) fn next_stream() -> Result<Arc<Stream>, OpError> {
    Runtime::current().ok_or(OpError::NoRuntime)?.next_stream()
}

/// The spin budget in force.
pub(crate) fn spin_budget() -> Duration {
    let entered =
        ENTERED.try_with(|entered| entered.borrow().last().map(Runtime::spin_budget)).ok().flatten();
    entered.unwrap_or_else(|| Duration::from_nanos(SPIN_NANOS.load(Ordering::Relaxed)))
}

impl RuntimeBuilder {
    /// These devices alone, by ordinal; the first is the default one. Else all.
    pub fn devices(mut self, ordinals: impl IntoIterator<Item = usize>) -> Self {
        self.devices = Some(ordinals.into_iter().collect());
        self
    }

    /// So many streams a device, in turn.
    pub fn streams(mut self, streams: usize) -> Self {
        self.streams = streams;
        self
    }

    /// How long the first poll of a future asks for completion before it gives its thread back; may be 0.
    pub fn spin_budget(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// What its streams do about conflicting work of others.
    pub fn conflict_policy(mut self, policy: Policy) -> Self {
        self.conflicts = policy;
        self
    }

    /// How long an allocation waits for memory that is still in use.
    pub fn oom_wait(mut self, wait: Duration) -> Self {
        self.oom_wait = Some(wait);
        self
    }

    /// How streams are chosen, made once for each device, in place of [`RuntimeBuilder::streams`] in turn.
    pub fn scheduling<P: SchedulingPolicy + 'static>(
        mut self,
        make: impl Fn(&Arc<Context>) -> Result<P, OpError> + Send + Sync + 'static,
    ) -> Self {
        self.scheduling = Some(Box::new(move |context| Ok(Arc::new(make(context)?))));
        self
    }

    /// Where operations that this runtime places get memory from, made once for each device; else from the context's own pool.
    /// Operations on a stream that was named ([`DeviceOp::sync_on`](crate::DeviceOp::sync_on)) are not placed by it.
    pub fn pools<E: Into<OpError>>(
        mut self,
        make: impl Fn(&Arc<Context>) -> Result<Arc<MemPool>, E> + Send + Sync + 'static,
    ) -> Self {
        self.pools = Some(Box::new(move |context| make(context).map_err(Into::into)));
        self
    }

    /// The runtime. Retains the primary context of each device.
    ///
    /// # Errors
    /// No device; a device named that there is not, or named twice; the driver's.
    pub fn build(self) -> Result<Runtime, OpError> {
        let count = Device::count(self.driver)?;
        let ordinals = self.devices.unwrap_or_else(|| (0..count).collect());
        if ordinals.is_empty() {
            return Err(DeviceError::NoSuchDevice { ordinal: 0, count: 0 }.into());
        }
        let mut devices: Vec<Slot> = Vec::new();
        for ordinal in ordinals {
            if devices.iter().any(|slot| slot.context.ordinal() == ordinal) {
                return Err(OpError::user(format!("device {ordinal} was named twice")));
            }
            let context = Device::new(self.driver, ordinal)?.primary_context()?;
            if let Some(wait) = self.oom_wait {
                context.set_oom_wait(wait);
            }
            let policy: Arc<dyn SchedulingPolicy> = match &self.scheduling {
                Some(make) => make(&context)?,
                None => {
                    let pool = StreamPoolRoundRobin::new(&context, self.streams)?;
                    for stream in pool.streams() {
                        stream.set_policy(self.conflicts);
                    }
                    Arc::new(pool)
                }
            };
            let pool = self.pools.as_ref().map(|make| make(&context)).transpose()?;
            if let Some(pool) = &pool
                && **pool.context() != *context
            {
                return Err(OpError::user(format!("{pool} is of {}, not of {context}", pool.context())));
            }
            devices.push(Slot { context, policy, pool });
        }
        Ok(Runtime(Arc::new(Inner { driver: self.driver, devices, spin: self.spin })))
    }
}

/// Runs something with the current runtime's context of a device.
///
/// # Errors
/// [`OpError::NoRuntime`], or the runtime does not use the device.
pub fn with_device<R>(ordinal: usize, run: impl FnOnce(&Arc<Context>) -> R) -> Result<R, OpError> {
    let runtime = Runtime::current().ok_or(OpError::NoRuntime)?;
    Ok(run(runtime.context(ordinal)?))
}

/// The same as [`with_device`], by the peers' name.
///
/// # Errors
/// As [`with_device`].
pub fn with_cuda_context<R>(ordinal: usize, run: impl FnOnce(&Arc<Context>) -> R) -> Result<R, OpError> {
    with_device(ordinal, run)
}

/// Runs something with the policy of a device of the current runtime.
///
/// # Errors
/// As [`with_device`].
pub fn with_device_policy<R>(
    ordinal: usize,
    run: impl FnOnce(&dyn SchedulingPolicy) -> R,
) -> Result<R, OpError> {
    let runtime = Runtime::current().ok_or(OpError::NoRuntime)?;
    let policy = runtime.policy(ordinal)?;
    Ok(run(&*policy))
}

/// Ordinal of the first device of the current runtime.
///
/// # Errors
/// [`OpError::NoRuntime`].
pub fn get_default_device() -> Result<usize, OpError> {
    Ok(Runtime::current().ok_or(OpError::NoRuntime)?.default_ordinal())
}

/// Runs something with the policy of the first device of the current runtime.
///
/// # Errors
/// [`OpError::NoRuntime`].
pub fn with_default_device_policy<R>(run: impl FnOnce(&dyn SchedulingPolicy) -> R) -> Result<R, OpError> {
    let policy = Runtime::current().ok_or(OpError::NoRuntime)?.default_policy();
    Ok(run(&*policy))
}

/// Where operations on a device of the current runtime get memory from; `None`: the context's own pool.
///
/// # Errors
/// As [`with_device`].
pub fn get_device_pool(ordinal: usize) -> Result<Option<Arc<MemPool>>, OpError> {
    Ok(Runtime::current().ok_or(OpError::NoRuntime)?.pool(ordinal)?.cloned())
}

/// How streams of a device of the current runtime are chosen.
///
/// # Errors
/// As [`with_device`].
pub fn global_policy(ordinal: usize) -> Result<Arc<dyn SchedulingPolicy>, OpError> {
    Runtime::current().ok_or(OpError::NoRuntime)?.policy(ordinal)
}

/// Where the next operation of the current runtime would run.
///
/// # Errors
/// [`OpError::NoRuntime`], or the policy's.
pub fn next_execution() -> Result<ExecutionContext, OpError> {
    Runtime::current().ok_or(OpError::NoRuntime)?.next_execution()
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("driver", &self.0.driver)
            .field("devices", &self.0.devices.iter().map(|slot| slot.context.ordinal()).collect::<Vec<_>>())
            .field("spin", &self.0.spin)
            .finish()
    }
}

impl fmt::Debug for AcrossDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AcrossDevices({})", self.runtime.0.devices.len())
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("devices", &self.devices)
            .field("streams", &self.streams)
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}
