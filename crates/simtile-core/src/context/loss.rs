//! The loss of a context: which failure, by which work, and who waits to hear of it.
//!
//! [`Link::note`](super::Link::note) is the one place that finds a loss. It asks the trails of all streams
//! (`stream/trail.rs`) what was in flight. Whoever waits for the loss ([`Context::lost`]) is woken then. As long as somebody does, a
//! watchdog asks an event that never fires every [`PERIOD`]: after a fault every query gives the fault, also while nobody
//! waits for work. No wait, no watchdog.

use super::link::{Link, query};
use super::{Context, Shared};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Poll, Waker};
use core::time::Duration;
use simtile_driver::sys::{CUevent, CUresult};
use simtile_driver::{DriverError, Entry};
use simtile_sync::Mutex;
use std::sync::{Arc, Weak};

/// How often the watchdog looks.
const PERIOD: Duration = Duration::from_millis(10);

/// How many pieces of work a message lists.
const LISTED: usize = 8;

/// Work that was in flight when a context was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostWork {
    /// What it was, such as `launch of saxpy`.
    pub what: String,
    /// The label of the operation, if it had one.
    pub label: Option<Arc<str>>,
    /// The stream.
    pub stream: String,
}

/// How a context was lost. Every error of a lost context has the same one.
///
/// A device fault names no kernel: it shows itself in the next driver call, whichever that is. What can have done it is what was
/// in flight and not known to have finished ([`ContextLoss::work`]): kernels, graphs, calls of other libraries and host
/// functions, and labelled transfers if there is nothing else. It is one piece of work whenever the program waits for each.
#[derive(Clone, Debug)]
pub struct ContextLoss {
    error: DriverError,
    work: Vec<LostWork>,
}

impl ContextLoss {
    /// The failure that told.
    pub fn error(&self) -> DriverError {
        self.error
    }

    /// Its code.
    pub fn code(&self) -> CUresult {
        self.error.code()
    }

    /// The driver call that told. The work that did it came before, unless the call itself failed.
    pub fn entry(&self) -> Entry {
        self.error.entry()
    }

    /// What can have lost the context, oldest first within each stream. Empty: nothing of this program's that runs code of its own was
    /// in flight (another library, another process, or the hardware did it).
    pub fn work(&self) -> &[LostWork] {
        &self.work
    }
}

impl fmt::Display for LostWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{label:?} ({} on {})", self.what, self.stream),
            None => write!(f, "{} on {}", self.what, self.stream),
        }
    }
}

impl fmt::Display for ContextLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work.as_slice() {
            [] => f.write_str("an earlier failure, with no kernel of this program in flight on this device (a fault takes every context of the process)")?,
            [one] => one.fmt(f)?,
            many => {
                write!(f, "one of {} in flight: ", many.len())?;
                for (at, work) in many.iter().take(LISTED).enumerate() {
                    write!(f, "{}{work}", if at == 0 { "" } else { ", " })?;
                }
                if many.len() > LISTED {
                    write!(f, " and {} more", many.len() - LISTED)?;
                }
            }
        }
        write!(f, " ({})", self.error)
    }
}

impl core::error::Error for ContextLoss {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Shared {
    /// What can have lost the context. Takes no lock under which anything is called.
    fn suspects(&self) -> Vec<LostWork> {
        let mut all = Vec::new();
        for (axis, name) in self.names.all() {
            let found = name.trail().suspects(axis, |stamp| self.tracker.is_complete(stamp));
            all.extend(found.into_iter().map(|suspect| (suspect, name.to_string())));
        }
        // A call that this thread is in tells of work before it, if there is any: a fault shows itself in the next call.
        if all.iter().any(|(suspect, _)| !suspect.queueing) {
            all.retain(|(suspect, _)| !suspect.queueing);
        }
        if all.iter().any(|(suspect, _)| suspect.what != crate::stream::What::OURS) {
            all.retain(|(suspect, _)| suspect.what != crate::stream::What::OURS);
        }
        let work = all.into_iter().map(|(suspect, stream)| LostWork {
            what: suspect.what.describe(|number| self.kernel_name(number)),
            label: suspect.label,
            stream,
        });
        work.collect()
    }
}

impl Link {
    /// What was lost by an error that says so.
    pub(super) fn loss_by(&self, error: DriverError) -> ContextLoss {
        // Whoever makes a call has the context, so this is not the last reference.
        let shared = self.shared.get().and_then(Weak::upgrade);
        ContextLoss { error, work: shared.map(|shared| shared.suspects()).unwrap_or_default() }
    }
}

/// Who waits to hear that the context is lost.
#[derive(Default)]
pub(super) struct Listeners {
    state: Mutex<Listening>,
}

#[derive(Default)]
struct Listening {
    waiting: Vec<(u64, Weak<Context>, Waker)>,
    next: u64,
    /// What the watchdog asks.
    event: Option<CUevent>,
    running: bool,
}

impl Listeners {
    /// Wakes everybody: the context was lost, or has ended. Nothing is held: the watchdog does it, not whoever found out.
    fn wake(&self) {
        let waiting = core::mem::take(&mut self.state.lock().waiting);
        for (_, context, waker) in waiting {
            super::drop_user_value(context);
            // Wakers are other people's code.
            let _ = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// A future that is ready when the context is lost. See [`Context::lost`].
#[must_use = "futures do nothing unless polled"]
pub struct Lost {
    link: Arc<Link>,
    context: Weak<Context>,
    place: Option<u64>,
}

impl Context {
    /// Ready when the context is lost, with how: also while nobody waits for any work. A supervisor awaits it beside the
    /// work and makes a new process then: a fault takes every context of this one.
    ///
    /// It does not keep the context. `None`: the context ended, or the driver went, without being lost. As long as somebody awaits
    /// it, a background thread asks the driver every 10 ms. If the system has no thread, it is ready when it is polled next.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let simulator = simtile_sim::Simulator::builder().quiet().build();
    /// let context = simtile_core::Context::new(simulator.driver(), 0)?;
    /// let lost = context.lost();
    /// assert!(context.loss().is_none());
    /// # drop(lost);
    /// # Ok(()) }
    /// ```
    pub fn lost(self: &Arc<Self>) -> Lost {
        Lost { link: self.link().clone(), context: Arc::downgrade(self), place: None }
    }

    /// How the context was lost, if it was. After that no driver call is made for it.
    pub fn loss(&self) -> Option<Arc<ContextLoss>> {
        self.link().health.loss().cloned()
    }
}

impl Lost {
    /// What is known now.
    fn known(&self) -> Option<Option<Arc<ContextLoss>>> {
        if let Some(loss) = self.link.health.loss() {
            return Some(Some(loss.clone()));
        }
        let over = self.link.health.is_over() || self.link.health.check().is_err();
        over.then_some(None)
    }

    fn leave(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut state = self.link.listeners.state.lock();
        let left: Vec<_> = state.waiting.extract_if(.., |(of, ..)| *of == place).collect();
        drop(state);
        super::drop_user_value(left);
    }
}

impl Future for Lost {
    type Output = Option<Arc<ContextLoss>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut core::task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(known) = this.known() {
            this.leave();
            return Poll::Ready(known);
        }
        let waker = cx.waker().clone();
        let mut state = this.link.listeners.state.lock();
        let place = *this.place.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let old = match state.waiting.iter_mut().find(|(of, ..)| *of == place) {
            Some((_, _, old)) => Some(core::mem::replace(old, waker)),
            None => {
                state.waiting.push((place, this.context.clone(), waker));
                None
            }
        };
        let start = !core::mem::replace(&mut state.running, true);
        drop(state);
        drop(old);
        if start {
            let link = this.link.clone();
            if simtile_sync::thread::spawn("simtile-watchdog", move || watch(&link)).is_err() {
                this.link.listeners.state.lock().running = false;
            }
        }
        // It may have been lost before the waker was in its place.
        match this.known() {
            Some(known) => {
                this.leave();
                Poll::Ready(known)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("known", &self.known()).finish()
    }
}

/// The watchdog: asks as long as somebody waits.
fn watch(link: &Arc<Link>) {
    loop {
        let mut state = link.listeners.state.lock();
        let over = link.health.is_over() || link.health.check().is_err();
        if state.waiting.is_empty() || over {
            state.running = false;
            drop(state);
            if over {
                link.listeners.wake();
            }
            return;
        }
        let mut contexts: Vec<Weak<Context>> =
            state.waiting.iter().map(|(_, context, _)| context.clone()).collect();
        let event = state.event;
        drop(state);
        // Any handle that lives is as good: they are of one CUDA context.
        let alive = contexts.drain(..).find_map(|context| context.upgrade());
        if let Some(alive) = alive {
            ask(link, event);
            // It may be the last handle by now, whose owner is a user's value.
            super::drop_user_value(alive);
        }
        drop(contexts);
        simtile_sync::time::sleep(PERIOD);
    }
}

/// One look. What it finds is noted by the link, and wakes everybody.
fn ask(link: &Link, event: Option<CUevent>) {
    let Some(_busy) = crate::sys::background() else { return };
    let event = match event {
        Some(event) => event,
        // It goes with the context. A failure that is no loss is no matter: the next look tries again.
        None => match link.make_event() {
            Ok(event) => {
                link.listeners.state.lock().event = Some(event);
                event
            }
            Err(_) => return,
        },
    };
    // SAFETY: the event lives as long as the context, of which the caller holds a handle.
    let _ = link.relaxed(|driver| unsafe { query(driver, event) });
}
