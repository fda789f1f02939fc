//! How processes end: a child for each way to end with objects of the runtime still there, on any driver.
//!
//! A driver is torn down while destructors of statics, of thread-locals and of threads that go on still run (`field-reports` H5, H6). Each way
//! runs in a process of its own, which has to end with the code 0 and say nothing on stderr.

use crate::frame::Target;
use crate::frame::child::Ended;
use core::fmt;
use simtile_core::{Context, Device, DeviceBuffer, Event, PinnedHostBuffer, Stream};
use simtile_driver::Driver;
use std::cell::RefCell;
use std::error::Error;
use std::process::Command;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// How long a child may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the buffer that work runs on when the process ends.
const BYTES: usize = 64 << 20;

/// A way to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Objects in a static that is never dropped.
    Static,
    /// Objects on a thread that goes on using them.
    Detached,
    /// `exit` in the middle of work.
    Exit,
    /// Objects in a thread-local.
    Local {
        /// A local of the program's own, which uses the runtime as it ends, is made before the runtime's; else after them.
        users_first: bool,
        /// They are on the thread's default stream.
        per_thread: bool,
        /// The thread is not the one that `main` runs on.
        worker: bool,
    },
}

impl Way {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let local = |bits: u32| Self::Local {
            users_first: bits & 1 != 0,
            per_thread: bits & 2 != 0,
            worker: bits & 4 != 0,
        };
        [Self::Static, Self::Detached, Self::Exit].into_iter().chain((0..8).map(local))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Static => f.write_str("static"),
            Self::Detached => f.write_str("detached"),
            Self::Exit => f.write_str("exit"),
            Self::Local { users_first, per_thread, worker } => {
                let thread = if worker { "worker" } else { "main" };
                let stream = if per_thread { "per-thread" } else { "owned" };
                write!(f, "local-{thread}-{stream}-{}", if users_first { "first" } else { "last" })
            }
        }
    }
}

/// One of everything, as a static or a thread keeps it.
struct Everything {
    buffer: DeviceBuffer<u8>,
    _event: Event,
    _pinned: PinnedHostBuffer<u32>,
    stream: Arc<Stream>,
}

impl Everything {
    fn new(context: &Arc<Context>, per_thread: bool) -> Result<Self, Box<dyn Error>> {
        let stream = if per_thread { context.per_thread_default_stream() } else { context.new_stream()? };
        let buffer = DeviceBuffer::zeroed(&stream, BYTES)?;
        let (event, pinned) = (stream.record_event()?, PinnedHostBuffer::zeroed(context, 16)?);
        Ok(Self { buffer, _event: event, _pinned: pinned, stream })
    }

    /// Work that still runs when the process ends.
    fn work(&mut self) -> Result<(), Box<dyn Error>> {
        for value in 0..20 {
            self.stream.submit().fill(&mut self.buffer, value)?;
        }
        Ok(())
    }
}

/// A local of the program's own, which uses the runtime as its thread ends: whatever it is answered, it must not crash.
struct Users(OnceLock<Arc<Context>>);

impl Drop for Users {
    fn drop(&mut self) {
        if let Some(context) = self.0.get()
            && let Ok(stream) = context.new_stream()
        {
            drop(DeviceBuffer::<u8>::zeroed(&stream, 1 << 10));
        }
    }
}

static KEPT: OnceLock<Everything> = OnceLock::new();

thread_local! {
    static USERS: Users = const { Users(OnceLock::new()) };
    static OF_THREAD: RefCell<Option<Everything>> = const { RefCell::new(None) };
}

/// Ends this process in one way, by returning from here or not at all. `name` is what [`Way`] displays.
///
/// # Errors
/// There is no such way; or something failed before the end.
pub fn end(target: &Target, name: &str) -> Result<(), Box<dyn Error>> {
    let way =
        Way::all().find(|way| way.to_string() == name).ok_or_else(|| format!("no way {name} to end"))?;
    let (driver, simulator) = target.open(1, 0)?;
    // A driver lasts as long as the process.
    if let Some(simulator) = simulator {
        let _: Driver = simulator.leak();
    }
    let context = Device::new(driver, 0)?.primary_context()?;
    match way {
        Way::Static => {
            let mut everything = Everything::new(&context, false)?;
            everything.work()?;
            drop(KEPT.set(everything));
        }
        Way::Exit => {
            Everything::new(&context, false)?.work()?;
            std::process::exit(0);
        }
        Way::Detached => {
            let (ready, started) = mpsc::channel();
            std::thread::spawn(move || {
                let mine = Everything::new(&context, false).map_err(|error| error.to_string());
                let told = ready.send(mine.as_ref().map(drop).map_err(String::clone)).is_ok();
                // Until the driver is gone.
                while told && mine.as_ref().is_ok_and(|mine| mine.buffer.to_vec(&mine.stream).is_ok()) {}
            });
            started.recv()??;
        }
        Way::Local { users_first, per_thread, worker } => {
            let keep = move || -> Result<(), String> {
                let users = || USERS.with(|users| drop(users.0.set(context.clone())));
                if users_first {
                    users();
                }
                let made = Everything::new(&context, per_thread).and_then(|mut everything| {
                    everything.work()?;
                    Ok(everything)
                });
                let made = made.map_err(|error| error.to_string())?;
                OF_THREAD.with(|kept| *kept.borrow_mut() = Some(made));
                users();
                Ok(())
            };
            if worker {
                std::thread::spawn(keep).join().map_err(|_| "the thread panicked")??;
            } else {
                keep()?;
            }
        }
    }
    Ok(())
}

/// Ends `times` children in every way, and tells `line` of each. How many ended badly.
///
/// # Errors
/// No child could be started.
pub fn all(target: &Target, times: u32, line: &mut dyn FnMut(String)) -> Result<u32, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut bad = 0;
    for way in Way::all() {
        let (mut worst, mut wrong) = (Duration::ZERO, Vec::new());
        for _ in 0..times {
            let begun = Instant::now();
            let mut command = Command::new(&program);
            command.args(["endings", "--driver", &target.name(), "--way", &way.to_string()]);
            let ended = Ended::of(command, PATIENCE, begun)?;
            worst = worst.max(begun.elapsed());
            if !ended.status.is_some_and(|status| status.success()) || !ended.stderr.is_empty() {
                wrong.push(ended);
            }
        }
        bad += wrong.len() as u32;
        line(format!("{way:32} {times} ended, {} badly, at most {:.2} s", wrong.len(), worst.as_secs_f64()));
        if let Some(first) = wrong.first() {
            let status = first.status.map_or("killed by the watchdog".into(), |status| status.to_string());
            line(format!("    {status}, stderr: {}", first.stderr.trim_end()));
        }
    }
    Ok(bad)
}
