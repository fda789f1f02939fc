//! The control handle of a simulated driver.

use crate::config::{Checks, ConfigError, Mode, SimConfig};
use crate::control::Pause;
use crate::core::Core;
use crate::engine::work::{GateState, Work};
use crate::entry::Call;
use crate::explore::Recording;
use crate::lacks::Lacks;
use crate::modules::{StandInCall, StandInError};
use crate::profile::Profile;
use crate::report::Report;
use crate::tile::{TileCall, TileValue};
use simtile_driver::count::{Counted, Counts};
use simtile_driver::sys::{CUresult, CUstream};
use simtile_driver::{Driver, Entry, State};
use simtile_sync::{Arc, RwLock};
use std::fmt;
use std::time::Duration;

/// What a driver value's state points to: lives for ever, and answers for a driver that is gone.
pub(crate) struct Shell {
    core: RwLock<Option<Arc<Core>>>,
}

impl Shell {
    #[inline]
    pub(crate) fn core(&self) -> Option<Arc<Core>> {
        self.core.read().clone()
    }
}

/// A simulated CUDA driver: make it, hand its [`Driver`] value to host code, look inside.
///
/// Clones are the same driver. When the last is dropped the driver shuts down: calls through driver values
/// that are still around answer `CUDA_ERROR_DEINITIALIZED`. [`Simulator::leak`] keeps it for the process.
///
/// Any number of simulators live in one process, each with its own devices, handles, memory, current
/// contexts and counters.
///
/// ```
/// let sim = simtile_sim::Simulator::builder().devices(2).build();
/// let driver = sim.driver();
/// let mut count = 0;
/// // SAFETY: the out-pointer is valid for the call.
/// unsafe {
///     simtile_driver::call!(driver, cuInit(0)).unwrap();
///     simtile_driver::call!(driver, cuDeviceGetCount(&mut count)).unwrap();
/// }
/// assert_eq!(count, 2);
/// ```
#[derive(Clone)]
pub struct Simulator {
    owner: Arc<Owner>,
}

/// Shuts the driver down with the last handle.
struct Owner {
    core: Arc<Core>,
    shell: &'static Shell,
    counted: Counted,
}

impl Drop for Owner {
    fn drop(&mut self) {
        shut_down(&self.core, self.shell);
    }
}

fn shut_down(core: &Core, shell: &Shell) {
    *shell.core.write() = None;
    core.shut_down();
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("id", &self.core().id).field("config", &self.core().config).finish()
    }
}

impl Default for Simulator {
    fn default() -> Self {
        Self::new(SimConfig::default())
    }
}

impl Simulator {
    /// A simulated driver with these settings. Numbers outside what [`SimConfig`] documents count as the nearest one inside.
    ///
    /// # Leaks
    /// A few hundred bytes for each simulator, and its call counters: driver values live for ever.
    pub fn new(config: SimConfig) -> Self {
        let config = config.clamped();
        let core = Core::new(config);
        let shell: &'static Shell = Box::leak(Box::new(Shell { core: RwLock::new(Some(core.clone())) }));
        // SAFETY: every function of the table takes a `Shell` as state and may be called from any thread.
        let plain = unsafe { Driver::from_parts(&crate::table::TABLE, State::new(shell)) };
        Self { owner: Arc::new(Owner { core, shell, counted: Counted::new(plain) }) }
    }

    /// Settings by method.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Settings from an environment variable, by convention `SIMTILE_SIM`.
    ///
    /// # Errors
    /// [`ConfigError`] with key, value and what is allowed.
    pub fn from_env(variable: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(SimConfig::from_env(variable)?))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    /// The driver value. Calls through it are counted.
    pub fn driver(&self) -> Driver {
        self.owner.counted.driver()
    }

    /// Calls per entry so far, over all threads.
    pub fn counts(&self) -> Counts {
        self.owner.counted.counts()
    }

    /// The settings.
    pub fn config(&self) -> &SimConfig {
        &self.core().config
    }

    /// The driver value, for the rest of the process.
    ///
    /// # Leaks
    /// The simulator is never shut down.
    pub fn leak(self) -> Driver {
        let driver = self.driver();
        std::mem::forget(self.owner);
        driver
    }

    /// What went wrong so far.
    pub fn reports(&self) -> Vec<Report> {
        self.core().reports()
    }

    /// What went wrong since the last call.
    pub fn take_reports(&self) -> Vec<Report> {
        self.core().take_reports()
    }

    /// What kernels printed and a synchronisation has shown, since the last call. Empty unless the
    /// simulator was built with [`Builder::capture_printf`].
    pub fn take_printf(&self) -> Vec<u8> {
        self.core().printf.take()
    }

    /// Holds a stream at this point until the gate is opened: what was submitted before runs, what comes
    /// after waits. Default streams are those of the calling thread's current context.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` for no stream of this driver, or the code of its context's fault.
    pub fn gate(&self, stream: CUstream) -> Result<Gate, CUresult> {
        let call = Call { core: self.core(), entry: Entry::cuStreamWaitEvent };
        let stream = call.stream(stream)?;
        let state = Arc::new(GateState::default());
        self.core().enqueue(&stream, Work::Gate(state.clone()))?;
        Ok(Gate { core: self.core().clone(), state })
    }

    /// Stops the calling thread inside the `nth` call (1 is the next) of an entry, before it does anything.
    pub fn pause_at(&self, entry: Entry, nth: u64) -> Pause {
        self.core().control.pause(entry, nth)
    }

    /// Lets the `nth` call (1 is the next) of an entry fail with `code`, without any effect.
    pub fn fail(&self, entry: Entry, nth: u64, code: CUresult) {
        self.core().control.fail(Some(entry), nth, code, false);
    }

    /// Lets the `nth` call (1 is the next) of any entry fail with `code`, without any effect.
    pub fn fail_any(&self, nth: u64, code: CUresult) {
        self.core().control.fail(None, nth, code, false);
    }

    /// From the `nth` call of an entry (`None`: any) on, all contexts are lost with `code`, as after a
    /// kernel's fault.
    pub fn lose_at(&self, entry: Option<Entry>, nth: u64, code: CUresult) {
        self.core().control.fail(entry, nth, code, true);
    }

    /// Each call of an entry (`None`: any) takes this much longer.
    pub fn slow(&self, entry: Option<Entry>, by: Duration) {
        self.core().control.slow(entry, by);
    }

    /// The entries that this driver does not have from now on, instead of those named before.
    pub fn mask(&self, entries: &[Entry]) {
        self.core().control.mask(entries);
    }

    /// Takes all masks, failures, delays and pause points away.
    pub fn clear_rules(&self) {
        self.core().control.clear();
    }

    /// Runs a Rust function wherever a kernel of this name is launched whose image holds only machine code
    /// (a cubin). Modules that are loaded already keep what they have.
    pub fn register_stand_in(
        &self,
        symbol: &str,
        function: impl Fn(&StandInCall<'_>) -> Result<(), StandInError> + Send + Sync + 'static,
    ) {
        self.core().modules.stand_ins.register(symbol, Arc::new(function));
    }

    /// Runs a Rust function wherever Tile code calls a function of this name that a tile library supplies (`preview$call`).
    /// Modules that are loaded already keep what they have; one that calls a function which is not registered is refused.
    ///
    /// The function gets the operand tiles and gives the result tiles; it may run on several blocks at once. Tiles of another
    /// number or type than the call has as results, and a panic, end the kernel as a fault of the stand-in
    /// (`CUDA_ERROR_LAUNCH_FAILED`); an error that it returns ends it as a kernel's bad access or assertion does.
    ///
    /// ```
    /// # use simtile_sim::{Simulator, TileValue};
    /// # let simulator = Simulator::builder().quiet().build();
    /// simulator.register_tile_function("twice", |call| {
    ///     let [x] = call.operands else { return Err("one operand".to_owned().into()) };
    ///     let doubled: Vec<f32> = x.values::<f32>()?.iter().map(|x| 2.0 * x).collect();
    ///     Ok(vec![TileValue::from_values(x.tile_type(), &doubled)?])
    /// });
    /// ```
    pub fn register_tile_function(
        &self,
        symbol: &str,
        function: impl Fn(&TileCall<'_>) -> Result<Vec<TileValue>, StandInError> + Send + Sync + 'static,
    ) {
        self.core().modules.stand_ins.register_tile(symbol, std::sync::Arc::new(function));
    }

    /// Whether handle values of destroyed objects are handed out again at once, as the real driver may do: contexts,
    /// streams, events, modules and what is in them, graphs, their nodes and executables, memory pools, and memory handles
    /// of which no mapping is left.
    pub fn recycle_handles(&self, recycle: bool) {
        self.core().modules.recycle_handles(recycle);
        self.core().heap.pools.recycle_handles(recycle);
        self.core().heap.vmm.recycle_handles(recycle);
        let mut state = self.core().state.lock();
        state.context_handles.set_recycling(recycle);
        state.stream_handles.set_recycling(recycle);
        state.event_handles.set_recycling(recycle);
        let graphs = &mut state.graphs;
        graphs.graph_handles.set_recycling(recycle);
        graphs.node_handles.set_recycling(recycle);
        graphs.execs.set_recycling(recycle);
    }

    /// Ends the driver, as at process exit: waiting threads return, and every call answers
    /// `CUDA_ERROR_DEINITIALIZED`.
    pub fn shut_down(&self) {
        shut_down(self.core(), self.owner.shell);
    }

    /// The choices of [`Mode::Explore`] outside of an exploration so far, for [`Builder::replay`]. `None` in the
    /// other modes. Inside an exploration its [`Outcome`](crate::explore::Outcome) has them.
    pub fn recording(&self) -> Option<Recording> {
        self.core().state.lock().policy.recording()
    }

    /// What its users have made and not ended, and allocated and not freed.
    pub fn holdings(&self) -> crate::Holdings {
        self.core().holdings()
    }

    /// How many pieces of work are queued or running, over all streams.
    pub fn pending(&self) -> usize {
        self.core().state.lock().streams.values().map(|stream| stream.items.len()).sum()
    }
}

/// Holds a stream until opened. Dropping it opens it.
pub struct Gate {
    core: Arc<Core>,
    state: Arc<GateState>,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(&self) {
        self.state.open();
        let mut state = self.core.state.lock();
        self.core.kick(&mut state);
    }

    /// Waits until the stream has got here, at most `limit`. Returns whether it has.
    pub fn wait_reached(&self, limit: Duration) -> bool {
        self.state.wait_reached(limit)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Settings of a simulator, by method.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: SimConfig,
    capture: bool,
    quiet: bool,
}

impl Builder {
    /// Starts from settings made elsewhere.
    pub fn config(mut self, config: SimConfig) -> Self {
        self.config = config;
        self
    }

    /// How many devices, at most [`SimConfig::MOST_DEVICES`].
    pub fn devices(mut self, devices: u32) -> Self {
        self.config.devices = devices;
        self
    }

    /// How work is scheduled.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// The seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Which checks run.
    pub fn checks(mut self, checks: Checks) -> Self {
        self.config.checks = checks;
        self
    }

    /// What the devices look like.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.config.profile = profile;
        self
    }

    /// What the devices lack of what their profile has.
    pub fn without(mut self, lacks: Lacks) -> Self {
        self.config.lacks = lacks;
        self
    }

    /// The driver's version, as 1000 times the major and 10 times the minor number, from 12000 to 13000.
    pub fn driver_version(mut self, version: i32) -> Self {
        self.config.driver_version = version;
        self
    }

    /// Memory of each device in bytes, see [`SimConfig::memory`].
    pub fn memory(mut self, bytes: u64) -> Self {
        self.config.memory = bytes;
        self
    }

    /// Whether addresses of freed memory are handed out again, as on a GPU (the default).
    pub fn reuse_addresses(mut self, reuse: bool) -> Self {
        self.config.reuse_addresses = reuse;
        self
    }

    /// Whether frees without a stream wait for the whole context, as the real driver does (the default). If
    /// not, memory is gone at once, and work that still uses it faults.
    pub fn frees_wait(mut self, wait: bool) -> Self {
        self.config.frees_wait = wait;
        self
    }

    /// Whether asynchronous copies from and to pageable memory return at once and touch it later, as CUDA
    /// allows, instead of staging or waiting as the real driver does (the default).
    pub fn pageable_async(mut self, later: bool) -> Self {
        self.config.pageable_async = later;
        self
    }

    /// Whether host and devices may use managed memory at the same time.
    pub fn concurrent_managed(mut self, concurrent: bool) -> Self {
        self.config.concurrent_managed = concurrent;
        self
    }

    /// After how many seconds without anything happening a waiting host thread counts as stuck; 0 for never.
    pub fn patience(mut self, seconds: u32) -> Self {
        self.config.patience = seconds;
        self
    }

    /// Most steps of one thread or Tile block before a kernel counts as endless.
    pub fn step_limit(mut self, steps: u64) -> Self {
        self.config.step_limit = steps.max(1);
        self
    }

    /// Host threads that one kernel may use; 0 chooses.
    pub fn workers(mut self, workers: usize) -> Self {
        self.config.workers = workers;
        self
    }

    /// Keeps what kernels print for [`Simulator::take_printf`] instead of writing it to stdout.
    pub fn capture_printf(mut self) -> Self {
        self.capture = true;
        self
    }

    /// Makes the same choices again, see [`SimConfig::replay`].
    pub fn replay(mut self, recording: Recording) -> Self {
        self.config.replay = Some(recording);
        self
    }

    /// Reports are kept, but not printed to stderr.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// As [`Builder::build`], if every setting is allowed.
    ///
    /// # Errors
    /// As [`SimConfig::check`].
    pub fn try_build(self) -> Result<Simulator, ConfigError> {
        self.config.check()?;
        Ok(self.build())
    }

    /// Makes the simulator. Numbers outside of what [`SimConfig`] documents count as the nearest one inside.
    pub fn build(self) -> Simulator {
        let mut config = self.config;
        config.print_reports &= !self.quiet;
        let simulator = Simulator::new(config);
        if self.capture {
            simulator.core().printf.capture();
        }
        simulator
    }
}
