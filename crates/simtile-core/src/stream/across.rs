//! Submissions that touch memory of another context: buffers used from two devices.
//!
//! Each CUDA context has a tracker of its own, with its own axes and events. For a stream *S* of one context that touches memory
//! of another context *A*, an *agent* stands in A: a stream of ours in A, made for S alone at its first such use. To A's
//! tracker the work is the agent's: the agent follows what conflicts there, leaves its stamp, and frees memory of A like any owned
//! stream. What ties both together are two events: the work on S waits for the agent, and the agent waits for the work.
//!
//! # Why this is right
//! * *Order.* The agent's waits, the event behind them, S's wait for it, the work, the event behind the work and the agent's wait for
//!   that are queued while A's guards and the agent are held. Whoever sees the agent's stamp in A seals the agent later, so the event
//!   that it gets is behind the work. Whatever S was told to follow in A is before the event that S waits for.
//! * *No false order.* An agent serves one stream, whose own order makes everything that the agent waits for wait anyway.
//! * *No deadlock.* A's guards are held while S's context is asked, but never waited with: all but the outermost step is a
//!   *try*, and whoever fails gives everything back and starts again. Of two threads that go opposite ways one could make the
//!   other fail for ever, so a short lock of each context involved, taken in the order of their addresses, lets one through at a time.
//!   Nothing else takes those locks, and nobody waits for the device with them.
//! * *Failure.* A tie behind work that may have been queued is tried twice. If the agent cannot be made to wait for such work, the
//!   agent's axis is failed: A's memory that it stamped is quarantined. If the work is on the agent and S cannot be made to wait for
//!   it, both are failed. If S's context is lost, its agents elsewhere are failed by whoever looks next.

use super::touches::Touch;
use super::trail::Trace;
use super::{Stream, Submit};
use crate::Context;
use crate::context::{CoreBackend, Link, Shared, SubmitError};
use crate::error::{CallError, On, OnStream, StreamError};
use simtile_driver::sys::{CUevent, CUresult, CUstream};
use simtile_driver::{Driver, DriverError, Entry, call};
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{Access, AxisId, Epoch, Options, Stamp, Step, Submitted};
use simtile_sync::{Arc, Mutex};
use smallvec::SmallVec;
use std::sync::Weak;

/// Streams of other contexts that stand for one stream.
#[derive(Default)]
pub(super) struct Agents(Mutex<SmallVec<[Arc<Agent>; 1]>>);

/// Stands for a stream in another context.
pub(super) struct Agent {
    stream: Arc<Stream>,
    /// Recorded on the agent, in its context.
    before: CUevent,
    /// Recorded on the stream that it stands for, in that one's context.
    after: CUevent,
    home: Arc<Link>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Waits that are queued stand, whatever becomes of their event.
        self.stream.context().link().destroy_event(self.before);
        self.home.destroy_event(self.after);
    }
}

/// Axes that stand for streams of other contexts, with the link of those.
pub(crate) type Standing = Mutex<Vec<(Weak<Link>, AxisId)>>;

/// What may reach memory of another context, and who runs it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Kernels: the memory has to be granted to their device. They run on the stream itself.
    Kernel,
    /// Copies that name both contexts. They run on the stream itself.
    Copy,
    /// Work on memory of one context only, which an agent can do there.
    Local,
    /// Nothing is done.
    Order,
}

impl Stream {
    /// The agent's stream in another context.
    pub(crate) fn agent(&self, context: &Arc<Context>) -> Result<Arc<Stream>, StreamError> {
        self.agent_in(context).map(|agent| agent.stream.clone())
    }

    fn agent_in(&self, context: &Arc<Context>) -> Result<Arc<Agent>, StreamError> {
        let known = |agents: &SmallVec<[Arc<Agent>; 1]>| {
            agents
                .iter()
                .find(|agent| Arc::ptr_eq(agent.stream.context().shared(), context.shared()))
                .cloned()
        };
        if let Some(agent) = known(&self.agents.0.lock()) {
            return Ok(agent);
        }
        let on = || format!("{self} in {context}");
        // Made with nothing locked; another thread may be as far, and then one of both goes.
        let stream = context.new_stream()?;
        stream.set_label(&format!("for {self}"));
        let before = context.link().make_loose_event().on::<StreamError>(on)?;
        let home = self.context.link().clone();
        let after = match home.make_loose_event() {
            Ok(after) => after,
            Err(error) => {
                context.link().destroy_event(before);
                return Err(error).on(on);
            }
        };
        let agent = Arc::new(Agent { stream, before, after, home });
        let mut agents = self.agents.0.lock();
        if let Some(earlier) = known(&agents) {
            drop(agents);
            return Ok(earlier);
        }
        if let Some(tracked) = &agent.stream.tracked {
            let entry = (Arc::downgrade(&agent.home), tracked.axis());
            let mut standing = context.shared().standing.lock();
            // An axis that has ended is complete to its end.
            let ended = |axis: AxisId| context.tracker().is_complete(Stamp { axis, epoch: Epoch::MAX });
            standing.retain(|&(_, axis)| !ended(axis));
            standing.push(entry);
        }
        agents.push(agent.clone());
        Ok(agent)
    }

    /// Whether everything is of this stream's context.
    #[inline]
    pub(crate) fn is_home(&self, touches: &[Touch<'_>]) -> bool {
        touches.iter().all(|touch| core::ptr::eq(&**touch.allocation.context(), &*self.context))
            || touches.iter().all(|touch| **touch.allocation.context() == *self.context)
    }

    /// Whether work of this kind on this stream reaches the memory.
    pub(crate) fn reaches(&self, touch: &Touch<'_>, reach: Reach) -> Result<(), StreamError> {
        let (memory, owner) = (touch.allocation, touch.allocation.context());
        if **owner == *self.context || reach == Reach::Order {
            return Ok(());
        }
        let same_driver = owner.driver() == self.context.driver();
        let granted = match reach {
            Reach::Kernel => self.context.is_granted(memory),
            _ => true,
        };
        if same_driver && granted {
            return Ok(());
        }
        // The refusal names both.
        self.same_context(owner, || memory.name())
    }

    /// Submits work on bytes of one allocation, which may be of another context.
    pub(crate) fn submit_local<R>(
        &self,
        touch: Option<Touch<'_>>,
        submit: Submit<'_>,
        calls: impl FnOnce(Driver, CUstream) -> Result<R, DriverError>,
    ) -> Result<Submitted<CoreBackend, R>, Across> {
        if self.is_home(touch.as_slice()) {
            let access = touch.and_then(|touch| touch.allocation.access(touch.start, touch.end, touch.mode));
            let done = self.submit_tracked(access.as_slice(), submit, calls);
            return done.map_err(|error| Across::Failed(self.context.shared().clone(), error));
        }
        self.submit_across(touch.as_slice(), false, Reach::Local, submit, calls)
    }

    /// Submits work that touches memory of other contexts.
    pub(crate) fn submit_across<R>(
        &self,
        touches: &[Touch<'_>],
        strided: bool,
        reach: Reach,
        submit: Submit<'_>,
        calls: impl FnOnce(Driver, CUstream) -> Result<R, DriverError>,
    ) -> Result<Submitted<CoreBackend, R>, Across> {
        for touch in touches {
            self.reaches(touch, reach).map_err(Across::Refused)?;
        }
        self.on_its_thread().map_err(Across::Refused)?;
        let mut contexts: SmallVec<[&Arc<Context>; 2]> = SmallVec::new();
        for touch in touches {
            let owner = touch.allocation.context();
            if **owner != *self.context && !contexts.iter().any(|known| ***known == **owner) {
                contexts.push(owner);
            }
        }
        let mut agents: SmallVec<[(Arc<Agent>, Accesses<'_>); 2]> = SmallVec::new();
        for context in contexts {
            let agent = self.agent_in(context).map_err(Across::Refused)?;
            agents.push((agent, accesses(touches, context, strided)));
        }
        let own = accesses(touches, &self.context, strided);
        let mut calls = Some(calls);
        loop {
            let tried = self.cross(touches, &agents, &own, reach, submit, &mut calls);
            let (shared, error) = match tried {
                Ok(done) => return Ok(done),
                Err(Across::Refused(error)) => return Err(Across::Refused(error)),
                Err(Across::Failed(shared, error)) => (shared, error),
            };
            match error {
                error @ (SubmitError::Busy(_) | SubmitError::Full { .. })
                    if !submit.patient || super::waits_for_no_room() =>
                {
                    return Err(Across::Failed(shared, error));
                }
                SubmitError::Busy(_) => simtile_sync::thread::yield_now(),
                SubmitError::Full { events } if events.is_empty() => simtile_sync::thread::yield_now(),
                SubmitError::Full { events } => {
                    let tracker = &shared.tracker;
                    let waited = simtile_hazard::Backend::wait_any(tracker.backend(), &events);
                    waited.map_err(|error| {
                        Across::Failed(shared.clone(), SubmitError::Driver { step: Step::HostWait, error })
                    })?;
                    // What an answer says beyond that is found out by the next attempt.
                    for event in &events {
                        let _ = tracker.query(event);
                    }
                }
                error => return Err(Across::Failed(shared, error)),
            }
        }
    }

    /// One attempt.
    fn cross<R>(
        &self,
        touches: &[Touch<'_>],
        agents: &[(Arc<Agent>, Accesses<'_>)],
        own: &[Access<'_>],
        reach: Reach,
        submit: Submit<'_>,
        calls: &mut Option<impl FnOnce(Driver, CUstream) -> Result<R, DriverError>>,
    ) -> Result<Submitted<CoreBackend, R>, Across> {
        let mut locks: SmallVec<[&Arc<Shared>; 3]> =
            agents.iter().map(|(agent, _)| agent.stream.context().shared()).collect();
        locks.push(self.context.shared());
        locks.sort_by_key(|shared| Arc::as_ptr(shared).addr());
        let _turns: SmallVec<[_; 3]> = locks.iter().map(|shared| shared.crossing.lock()).collect();
        // Again: who takes a grant away does so with these locks, and then waits for what was submitted before.
        for touch in touches {
            self.reaches(touch, reach).map_err(Across::Refused)?;
        }
        let mut links = Links { agents, untied: None, there: false };
        let result = self.enter(agents, own, reach, submit, calls, &mut links);
        if let Some(error) = links.untied {
            // The work may be running, and nothing in the other context says when it ends.
            for (agent, _) in agents {
                agent.fail();
            }
            if links.there
                && let Some(tracked) = &self.tracked
            {
                self.context.tracker().fail(tracked.axis());
            }
            let error = SubmitError::Driver { step: Step::Enqueue, error };
            return Err(Across::Failed(self.context.shared().clone(), error));
        }
        result.map_err(|(shared, error)| Across::Failed(shared, error))
    }

    /// Goes through the agents' trackers, outermost first, then submits on the stream itself.
    fn enter<R>(
        &self,
        rest: &[(Arc<Agent>, Accesses<'_>)],
        own: &[Access<'_>],
        reach: Reach,
        submit: Submit<'_>,
        calls: &mut Option<impl FnOnce(Driver, CUstream) -> Result<R, DriverError>>,
        links: &mut Links<'_, '_>,
    ) -> Result<Submitted<CoreBackend, R>, (Arc<Shared>, SubmitError)> {
        let Some(((agent, accesses), rest)) = rest.split_first() else {
            let options = self.options(submit);
            let Some(tracked) = &self.tracked else {
                return Err((self.context.shared().clone(), SubmitError::Closed));
            };
            let link = self.context.link();
            let trace = Trace::new(&self.name.trail, &submit);
            let done = self.context.tracker().try_submit(tracked, own, &options, |handle| {
                trace.queue(|| {
                    links.run(link, handle.raw(), reach, |driver, raw| match calls.take() {
                        Some(calls) => calls(driver, raw),
                        // An attempt that enqueues is the last one.
                        None => Err(DriverError::new(Entry::cuStreamWaitEvent, CUresult::CUDA_ERROR_UNKNOWN)),
                    })
                })
            });
            if let Ok(done) = &done {
                trace.stamped(done.stamp.epoch);
            }
            return done.map_err(|error| (self.context.shared().clone(), error));
        };
        let Some(tracked) = &agent.stream.tracked else {
            return Err((agent.stream.context().shared().clone(), SubmitError::Closed));
        };
        let context = agent.stream.context();
        // What this stream does about conflicts counts; who waits for the work waits for it here, not for the agent.
        let options = Options { seal: false, thread: 0, ..self.options(submit) };
        let mut inner = None;
        let outer = context.tracker().try_submit(tracked, accesses, &options, |_| {
            inner = Some(self.enter(rest, own, reach, submit, calls, links));
            Ok(())
        });
        match outer {
            Err(error) => return Err((context.shared().clone(), error)),
            Ok(outer) if !outer.waits.is_empty() => {
                context.shared().note_waits(self, tracked.axis(), &outer.waits, options.policy);
            }
            Ok(_) => {}
        }
        inner.unwrap_or_else(|| Err((context.shared().clone(), SubmitError::Closed)))
    }
}

/// The ties between a stream and its agents.
struct Links<'a, 'b> {
    agents: &'a [(Arc<Agent>, Accesses<'b>)],
    /// An agent could not be made to wait for work that may be queued.
    untied: Option<CallError>,
    /// The work is on the agent.
    there: bool,
}

/// Makes `follower` wait for what `leader` holds, by an event of the leader's context. Tried twice.
fn tie(
    (leader, leading): (&Link, CUstream),
    event: CUevent,
    (follower, following): (&Link, CUstream),
) -> Result<(), CallError> {
    let attempt = || {
        // SAFETY: stream and event are alive and of one context.
        leader.with_handles(|driver| unsafe { call!(driver, cuEventRecord(event, leading)) })?;
        // SAFETY: both are alive; CUDA lets streams of any context wait.
        follower.with_handles(|driver| unsafe { call!(driver, cuStreamWaitEvent(following, event, 0)) })
    };
    attempt().or_else(|_| attempt())
}

impl Links<'_, '_> {
    /// Queues the work and the ties. Everything is held.
    fn run<R>(
        &mut self,
        home: &Link,
        raw: CUstream,
        reach: Reach,
        work: impl FnOnce(Driver, CUstream) -> Result<R, DriverError>,
    ) -> Result<R, CallError> {
        if is_planted(Bug::PeerWithoutOrder) {
            return home.with_current(|driver| work(driver, raw));
        }
        home.host_allows()?;
        self.agents.iter().try_for_each(|(agent, _)| agent.link().host_allows())?;
        if let (Reach::Local, [(agent, _)]) = (reach, self.agents) {
            return self.run_there(home, raw, agent, work);
        }
        for (agent, _) in self.agents {
            let (theirs, event) = (agent.stream.raw, agent.before);
            // SAFETY: stream and event are alive and of one context.
            agent.link().with_handles(|driver| unsafe { call!(driver, cuEventRecord(event, theirs)) })?;
            // SAFETY: both are alive; CUDA lets streams of any context wait.
            home.with_handles(|driver| unsafe { call!(driver, cuStreamWaitEvent(raw, event, 0)) })?;
        }
        let result = home.with_current(|driver| work(driver, raw));
        for (agent, _) in self.agents {
            if let Err(error) = tie((home, raw), agent.after, (agent.link(), agent.stream.raw)) {
                self.untied = Some(error);
            }
        }
        result
    }

    /// The same with the work on the agent: it starts after everything on the stream, which goes on after it.
    fn run_there<R>(
        &mut self,
        home: &Link,
        raw: CUstream,
        agent: &Agent,
        work: impl FnOnce(Driver, CUstream) -> Result<R, DriverError>,
    ) -> Result<R, CallError> {
        let (there, theirs) = (agent.link(), agent.stream.raw);
        // SAFETY: stream and event are alive and of one context.
        home.with_handles(|driver| unsafe { call!(driver, cuEventRecord(agent.after, raw)) })?;
        // SAFETY: both are alive; CUDA lets streams of any context wait.
        there.with_handles(|driver| unsafe { call!(driver, cuStreamWaitEvent(theirs, agent.after, 0)) })?;
        let result = there.with_current(|driver| work(driver, theirs));
        if let Err(error) = tie((there, theirs), agent.before, (home, raw)) {
            (self.untied, self.there) = (Some(error), true);
        }
        result
    }
}

impl Agent {
    fn link(&self) -> &Link {
        self.stream.context().link()
    }

    fn fail(&self) {
        if let Some(tracked) = &self.stream.tracked {
            self.stream.context().tracker().fail(tracked.axis());
        }
    }
}

/// Why a submission across contexts did not happen.
pub(crate) enum Across {
    /// Refused before any tracker was asked.
    Refused(StreamError),
    /// By the tracker of this context.
    Failed(Arc<Shared>, SubmitError),
}

impl Across {
    /// As an error of a family.
    #[cold]
    pub(crate) fn explain<E: OnStream>(
        self,
        stream: &Stream,
        touches: &[Touch<'_>],
        on: impl FnOnce() -> String,
    ) -> E {
        match self {
            Self::Refused(error) => E::from_stream(error),
            Self::Failed(shared, error) => {
                // Axes and regions are names of one tracker.
                let used: SmallVec<[_; 8]> = touches
                    .iter()
                    .map(|touch| touch.allocation)
                    .filter(|memory| Arc::ptr_eq(memory.context().shared(), &shared))
                    .collect();
                let agent = used.first().and_then(|memory| stream.agent(memory.context()).ok());
                match agent {
                    Some(agent) if !Arc::ptr_eq(stream.context.shared(), &shared) => {
                        agent.refused(error, &used, on)
                    }
                    _ => stream.refused(error, &used, on),
                }
            }
        }
    }
}

type Accesses<'a> = SmallVec<[Access<'a>; 8]>;

/// The accesses to memory of one context.
fn accesses<'a>(touches: &[Touch<'a>], context: &Context, strided: bool) -> Accesses<'a> {
    let mine: SmallVec<[Touch<'a>; 8]> =
        touches.iter().filter(|touch| **touch.allocation.context() == *context).copied().collect();
    if strided {
        return super::strides::merge(&mine);
    }
    let mut accesses = Accesses::new();
    for touch in &mine {
        accesses.extend(touch.allocation.access(touch.start, touch.end, touch.mode));
    }
    accesses
}

impl Shared {
    /// Fails what stands here for streams of contexts that were lost: nothing of theirs will be known to end.
    pub(crate) fn fail_lost_agents(&self) {
        let mut standing = self.standing.lock();
        if standing.is_empty() {
            return;
        }
        let mut lost: SmallVec<[AxisId; 2]> = SmallVec::new();
        standing.retain(|(link, axis)| match link.upgrade() {
            None => false,
            Some(link) if link.health.loss().is_some() => {
                lost.push(*axis);
                false
            }
            Some(_) => true,
        });
        drop(standing);
        for axis in lost {
            self.tracker.fail(axis);
        }
    }
}
