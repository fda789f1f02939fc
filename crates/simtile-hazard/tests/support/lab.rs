//! A small laboratory for tests of single rules: streams and regions over the mock, with the oracle watching.

use super::{Context, Failed, Fault, Mock, Touch, Use, World};
use simtile_hazard::*;
use std::cell::Cell;

pub struct Lab {
    pub tracker: Tracker<Mock>,
}

pub struct LabStream {
    pub stream: Stream<Mock>,
    pub sim: usize,
}

pub struct LabRegion {
    pub region: Region,
    pub memory: usize,
}

/// An access in short: region, start, end, mode.
pub type A<'a> = (&'a LabRegion, u64, u64, Mode);

thread_local! {
    static NEXT_CALL: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Runs once, inside the next driver call of this thread.
pub fn at_next_call(run: impl FnOnce() + 'static) {
    NEXT_CALL.set(Some(Box::new(run)));
}

/// A driver call is a place where a model may switch threads.
fn at_call() {
    #[cfg(shuttle)]
    simtile_sync::thread::yield_now();
    if let Some(run) = NEXT_CALL.take() {
        run();
    }
}

impl Lab {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let tracker = Tracker::new(Mock::new(at_call), config);
        tracker.backend().world.lock().strict = true;
        Self { tracker }
    }

    pub fn world(&self) -> super::plain::MutexGuard<'_, World> {
        self.tracker.backend().world.lock()
    }

    pub fn stream(&self) -> LabStream {
        self.stream_of(StreamKind::Owned)
    }

    pub fn stream_of(&self, kind: StreamKind) -> LabStream {
        let thread = if let StreamKind::PerThread(thread) = kind { Some(thread) } else { None };
        let sim = self.world().add_stream(kind != StreamKind::Owned, thread, 0);
        LabStream { stream: self.tracker.stream(sim, kind, 0).expect("few streams"), sim }
    }

    pub fn region(&self, len: u64) -> LabRegion {
        let memory = self.world().add_memory(len);
        LabRegion { region: self.tracker.region(len), memory }
    }

    pub fn submit(&self, stream: &LabStream, accesses: &[A<'_>]) -> Submitted<Mock, ()> {
        self.try_with(stream, accesses, &Options::default()).expect("submission")
    }

    pub fn try_with(
        &self,
        stream: &LabStream,
        accesses: &[A<'_>],
        options: &Options,
    ) -> Result<Submitted<Mock, ()>, SubmitError<Mock>> {
        self.submit_running(stream, accesses, options, || {})
    }

    /// Submits, and runs `during` inside the enqueue, with everything held.
    pub fn submit_running(
        &self,
        stream: &LabStream,
        accesses: &[A<'_>],
        options: &Options,
        during: impl FnOnce(),
    ) -> Result<Submitted<Mock, ()>, SubmitError<Mock>> {
        let list: Vec<Access<'_>> =
            accesses.iter().map(|a| Access::new(&a.0.region, a.1, a.2, a.3)).collect();
        let touches: Vec<Touch> = accesses
            .iter()
            .filter(|a| a.1 < a.2)
            .map(|a| Touch { region: a.0.memory, start: a.1, end: a.2, how: Use::of(a.3, a.1, 0) })
            .collect();
        let unchecked = options.policy == Policy::Unchecked;
        let context = Context { stream: stream.sim, touches: touches.clone(), ..Context::default() };
        self.world().contexts.push(context);
        let gate = if options.outside == Outside::Never { None } else { Some(self.world().gate()) };
        let result = self.tracker.try_submit(&stream.stream, &list, options, |sim| {
            during();
            let mut world = self.world();
            let fault = world.take_fault();
            if fault != Some(false) {
                world.enqueue(*sim, &touches, gate, unchecked);
            }
            if fault.is_some() { Err(Failed("launch")) } else { Ok(()) }
        });
        self.world().contexts.pop();
        result
    }

    /// The n-th fallible driver call from now fails.
    pub fn fail_call(&self, after: u32) {
        self.world().fault = Some(Fault { after, done_anyway: false });
    }

    /// Runs all that can run.
    pub fn run(&self) {
        self.world().run();
    }

    pub fn records(&self) -> u64 {
        self.world().records
    }

    pub fn waits(&self) -> u64 {
        self.world().waits
    }

    pub fn fired(&self, rule: Rule) -> u64 {
        self.tracker.stats().get(rule)
    }

    /// The oracle has nothing to say.
    pub fn clean(&self) {
        let violations = std::mem::take(&mut self.world().violations);
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

pub fn whole(region: &LabRegion, mode: Mode) -> A<'_> {
    (region, 0, region.region.len(), mode)
}

pub fn write(region: &LabRegion) -> A<'_> {
    whole(region, Mode::Write)
}

pub fn read(region: &LabRegion) -> A<'_> {
    whole(region, Mode::Read)
}
