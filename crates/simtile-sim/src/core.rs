//! One simulated driver: its state, and contexts coming and going.

use crate::config::{Mode, SimConfig};
use crate::control::Control;
use crate::engine::order::Order;
use crate::engine::state::{ContextState, Primary, State};
use crate::engine::{self};
use crate::exec::DeviceTraits;
use crate::explore::{self, Schedule};
use crate::handles::{BadHandle, Handles, Kind};
use crate::heap::Heap;
use crate::lacks::Lacks;
use crate::memory::AddressSpace;
use crate::printf::Printf;
use crate::profile::Profile;
use crate::report::Report;
use simtile_driver::sys::{CUcontext, CUlimit, CUresult, CUstream};
use simtile_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use simtile_sync::{Arc, Condvar, Global, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// What entries return inside.
pub(crate) type Res<T = ()> = Result<T, CUresult>;

/// A live context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextRef {
    pub(crate) uid: u64,
    pub(crate) device: i32,
    pub(crate) handle: CUcontext,
    /// The green context through which it was named; it is the primary one then.
    pub(crate) green: Option<u64>,
}

/// A live stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRef {
    pub(crate) uid: u64,
    pub(crate) context: ContextRef,
    /// Its own handle, also for the default streams.
    pub(crate) handle: CUstream,
    pub(crate) legacy: bool,
}

/// Declared accesses by calling thread and stream uid.
type DeclaredBy = BTreeMap<(u64, u64), crate::check::Declared>;

/// A simulated driver.
pub(crate) struct Core {
    /// Number of this driver in the process; part of its handles.
    pub(crate) id: u64,
    pub(crate) config: SimConfig,
    pub(crate) profile: Profile,
    /// What entries answer that this driver lacks, by number.
    pub(crate) lacking: Option<Box<[Option<CUresult>]>>,
    pub(crate) initialised: AtomicBool,
    pub(crate) control: Control,
    /// All memory.
    pub(crate) space: AddressSpace,
    /// What the memory families keep. They may take its locks and then `state`, not the other way round.
    pub(crate) heap: Heap,
    pub(crate) modules: crate::modules::Modules,
    pub(crate) state: Mutex<State>,
    /// Host threads wait here for progress.
    pub(crate) changed: Condvar,
    /// Workers wait here for work.
    pub(crate) work: Condvar,
    pub(crate) printf: Printf,
    pub(crate) declared: Mutex<DeclaredBy>,
    reports: Mutex<Vec<Report>>,
    /// Calls so far.
    pub(crate) calls: AtomicU64,
    /// Numbers of the living threads that have called.
    pub(crate) callers: Global<BTreeSet<u64>>,
    /// The exploration that made it.
    pub(crate) home: Option<std::sync::Weak<Schedule>>,
    /// A thread outside of that has been reported.
    pub(crate) outsider_told: AtomicBool,
}

impl Core {
    pub(crate) fn new(config: SimConfig) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = State {
            next_uid: 1,
            next_seq: 1,
            steps: 0,
            order: Order::default(),
            watches: Default::default(),
            kernel_watches: Default::default(),
            kernels: Default::default(),
            primaries: (0..config.devices).map(|_| Primary::default()).collect(),
            context_handles: Handles::new(Kind::Context, id),
            contexts: BTreeMap::new(),
            stream_handles: Handles::new(Kind::Stream, id),
            streams: BTreeMap::new(),
            event_handles: Handles::new(Kind::Event, id),
            events: BTreeMap::new(),
            graphs: engine::graphs::GraphStore::new(id),
            green_handles: Handles::new(Kind::GreenContext, id),
            greens: BTreeMap::new(),
            desc_handles: Handles::new(Kind::ResourceDesc, id),
            active: BTreeSet::new(),
            running: Vec::new(),
            policy: engine::policy::of(&config),
            workers: 0,
            workers_started: 0,
            starting: 0,
            idle: 0,
            polling: false,
            waiting: 0,
            given_up: false,
            down: false,
        };
        let space = AddressSpace::new();
        (0..config.devices as i32).for_each(|device| space.set_memory(device, config.memory));
        space.set_reuse(config.reuse_addresses);
        Arc::new(Self {
            id,
            profile: config.profile,
            lacking: config.lacking().answers(config.driver_version),
            initialised: AtomicBool::new(false),
            control: Control::default(),
            space,
            heap: Heap::new(id),
            modules: crate::modules::Modules::new(id),
            state: Mutex::new(state),
            changed: Condvar::new(),
            work: Condvar::new(),
            printf: Printf::default(),
            declared: Mutex::default(),
            reports: Mutex::default(),
            calls: AtomicU64::new(0),
            callers: Global::default(),
            home: explore::current().map(|schedule| Arc::downgrade(&schedule)),
            outsider_told: AtomicBool::new(false),
            config,
        })
    }

    /// The devices as kernels see them, and what may be loaded.
    pub(crate) fn traits(&self) -> DeviceTraits {
        let newest_ptx = Lacks::newest_ptx(self.config.driver_version);
        DeviceTraits { newest_ptx, ..self.profile.traits() }
    }

    /// Files a report.
    pub(crate) fn report(&self, mut report: Report) {
        report.seed = self.config.seed;
        report.replay = format!("SIMTILE_SIM={}", self.config);
        let mut reports = self.reports.lock();
        if self.config.print_reports {
            // A loop with a fault in it would fill the screen with one line. Every report is kept all the same.
            let alike = reports
                .iter()
                .rev()
                .take(LOOKED_BACK)
                .filter(|earlier| **earlier == report)
                .take(PRINTED_ALIKE)
                .count();
            let more = if alike + 1 == PRINTED_ALIKE { " (printed no more)" } else { "" };
            if alike < PRINTED_ALIKE {
                // Nothing to be done if stderr is closed or full.
                let _ = writeln!(std::io::stderr(), "simtile: {report}{more}");
            }
        }
        reports.push(report);
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        self.reports.lock().clone()
    }

    pub(crate) fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports.lock())
    }

    /// Host threads one kernel may use.
    pub(crate) fn kernel_workers(&self) -> usize {
        match (self.config.workers, self.config.mode) {
            (0, Mode::Fifo | Mode::Explore) => 1,
            (0, Mode::Fast) => std::thread::available_parallelism().map_or(1, |n| n.get().min(8)),
            (n, _) => n,
        }
    }

    /// Checks a device number.
    pub(crate) fn device(&self, device: i32) -> Res<i32> {
        if u32::try_from(device).is_ok_and(|n| n < self.config.devices) {
            Ok(device)
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
        }
    }

    /// The code of a context that may not be used.
    pub(crate) fn context_health(&self, state: &State, context: u64) -> Res {
        match state.contexts.get(&context) {
            Some(context) => match context.lost {
                Some(code) => Err(code),
                None if context.ending => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
                None => Ok(()),
            },
            None => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }

    /// The context behind a handle, lost or not.
    pub(crate) fn context_of(&self, state: &State, handle: CUcontext) -> Res<ContextRef> {
        match state.context_handles.get(handle.0) {
            Ok(&uid) => {
                if let Some(green) = state.greens.get(&uid) {
                    let (uid, device, green) = (green.primary, green.device, Some(uid));
                    return Ok(ContextRef { uid, device, handle, green });
                }
                let device = state.contexts.get(&uid).map_or(0, |context| context.device);
                Ok(ContextRef { uid, device, handle, green: None })
            }
            Err(BadHandle::Stale) => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            Err(_) => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// Makes a context on a device.
    pub(crate) fn add_context(&self, device: i32, flags: u32, primary: bool) -> Res<ContextRef> {
        let mut state = self.state.lock();
        self.add_context_locked(&mut state, device, flags, primary)
    }

    pub(crate) fn add_context_locked(
        &self,
        state: &mut State,
        device: i32,
        flags: u32,
        primary: bool,
    ) -> Res<ContextRef> {
        // Measured: after a fault the process cannot use the device again, whatever it resets.
        if let Some(code) = state.primaries.get(device as usize).and_then(|primary| primary.lost) {
            return Err(code);
        }
        let uid = state.uid();
        let handle = state.context_handles.insert(uid).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let handle = CUcontext(handle);
        let limits = DEFAULT_LIMITS.iter().map(|&(limit, value)| (limit.0, value)).collect();
        let context = ContextState {
            handle,
            device,
            primary,
            flags,
            limits,
            lost: None,
            legacy: 0,
            per_thread: BTreeMap::new(),
            streams: BTreeSet::new(),
            counted: 0,
            stalls: 0,
            blocked: 0,
            cancel: Arc::new(AtomicBool::new(false)),
            ending: false,
            peers: BTreeSet::new(),
            local_bytes: 0,
        };
        state.contexts.insert(uid, context);
        let (legacy, _) =
            self.add_stream(state, uid, 0, 0, true).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Some(context) = state.contexts.get_mut(&uid) {
            context.legacy = legacy;
        }
        Ok(ContextRef { uid, device, handle, green: None })
    }

    /// Ends a context: waits for its work, as the real driver does, and takes away all that belongs to it. A
    /// lost context has no work to wait for.
    pub(crate) fn end_context(&self, context: &ContextRef) -> Res {
        let uid = context.uid;
        let mut state = self.state.lock();
        let Some(ending) = state.contexts.get_mut(&uid) else {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        };
        if ending.ending {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        ending.ending = true;
        let lost = ending.lost.is_some();
        if lost {
            ending.cancel.store(true, Ordering::Relaxed);
        }
        let _ = state.context_handles.remove(context.handle.0);
        self.changed.notify_all();
        let waited = self.wait_until(&mut state, |state| engine::is_idle(state, uid, u64::MAX));
        let streams: Vec<u64> =
            state.contexts.get(&uid).map(|c| c.streams.iter().copied().collect()).unwrap_or_default();
        for stream in streams {
            self.drop_stream(&mut state, stream);
        }
        let State { event_handles, events, .. } = &mut *state;
        events.retain(|_, event| {
            let keep = event.context != uid;
            if !keep {
                let _ = event_handles.remove(event.handle.0);
            }
            keep
        });
        state.contexts.remove(&uid);
        self.drop_greens_of(&mut state, uid);
        drop(state);
        self.printf.flush(uid);
        self.modules.context_ended(self, uid);
        self.heap.context_ended(self, uid, context.device);
        self.changed.notify_all();
        waited
    }

    /// Ends everything: later calls answer `CUDA_ERROR_DEINITIALIZED`, waiting threads return so.
    pub(crate) fn shut_down(&self) {
        self.control.clear();
        let mut state = self.state.lock();
        state.down = true;
        for context in state.contexts.values_mut() {
            context.cancel.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.changed.notify_all();
        self.work.notify_all();
    }
}

/// How often the same report is printed, of the last so many.
const PRINTED_ALIKE: usize = 3;
const LOOKED_BACK: usize = 1_000;

/// Read from an H200.
const DEFAULT_LIMITS: &[(CUlimit, usize)] = &[
    (CUlimit::CU_LIMIT_STACK_SIZE, 1024),
    (CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 8_650_752),
    (CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20),
    (CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048),
    (CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64),
    (CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 11_796_480),
    (CUlimit::CU_LIMIT_SHMEM_SIZE, 232_448),
    (CUlimit::CU_LIMIT_CIG_ENABLED, 0),
];
