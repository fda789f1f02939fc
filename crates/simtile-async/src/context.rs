//! Where an operation runs, and how it may wait while it is submitted.

use crate::error::{MayWait, Refused, refused};
use crate::graph::Recording;
use crate::output::HostBudget;
use crate::reactor::{self, Ticket};
use crate::{OpError, worker};
use core::cell::Cell;
use core::task::{Poll, Waker};
use simtile_core::{Capture, Context, MemPool, Script, Stream, Submission, SubmitBuilder};
use std::sync::Arc;

/// The stream that an operation runs on. Everything that one operation is made of runs on one stream.
#[derive(Clone, Debug)]
pub struct ExecutionContext {
    stream: Arc<Stream>,
    /// It records a graph.
    recording: Option<Arc<Recording>>,
    /// Where memory that operations make comes from; `None`: the context's own pool.
    pool: Option<Arc<MemPool>>,
}

impl ExecutionContext {
    /// Operations on this stream.
    pub fn new(stream: &Arc<Stream>) -> Self {
        Self { stream: stream.clone(), recording: None, pool: None }
    }

    pub(crate) fn recording(stream: &Arc<Stream>, recording: Arc<Recording>) -> Self {
        Self { stream: stream.clone(), recording: Some(recording), pool: None }
    }

    /// Memory that operations make here comes from this pool. One of another context is refused when they make some.
    #[must_use]
    pub fn with_pool(mut self, pool: Option<Arc<MemPool>>) -> Self {
        self.pool = pool;
        self
    }

    /// Where memory that operations make comes from; `None`: the context's own pool.
    pub fn pool(&self) -> Option<&Arc<MemPool>> {
        self.pool.as_ref()
    }

    /// The same as [`ExecutionContext::pool`].
    pub fn get_pool(&self) -> Option<&Arc<MemPool>> {
        self.pool()
    }

    /// The capture that goes on, and the stream on which memory is made meanwhile.
    pub(crate) fn capture(&self) -> Option<(&Capture, &Arc<Stream>)> {
        match self.recording.as_deref()? {
            Recording::Capture { capture, outside } => Some((capture, outside)),
            Recording::Pass { .. } => None,
        }
    }

    /// The pass of a memoised chain that goes on.
    pub(crate) fn pass(&self) -> Option<(&Script, u64)> {
        match self.recording.as_deref()? {
            Recording::Pass { script, pass } => Some((script, *pass)),
            Recording::Capture { .. } => None,
        }
    }

    pub(crate) fn into_shared_recording(self) -> Option<Arc<Recording>> {
        self.recording
    }

    /// The same world, on another stream.
    pub(crate) fn on_stream(&self, stream: &Arc<Stream>) -> Self {
        Self { stream: stream.clone(), recording: self.recording.clone(), pool: self.pool.clone() }
    }

    /// Whether operations become nodes of a graph, or pieces of a memoised chain, and do not run now.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// 0 for work that runs, else a number of the capture or of the pass of a chain.
    pub(crate) fn world(&self) -> u64 {
        self.recording.as_ref().map_or(0, |recording| recording.world())
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The same as [`ExecutionContext::stream`].
    pub fn get_cuda_stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The stream's context.
    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// Ordinal of the stream's device.
    pub fn get_device_id(&self) -> usize {
        self.stream.context().device().ordinal()
    }
}

/// What keeps a call from going on that waits for nothing; without it, that is room in a queue.
#[derive(Default)]
pub(crate) struct Refusal(Cell<Option<&'static str>>);

impl Refusal {
    pub fn into_error(self, stream: &Stream) -> OpError {
        match self.0.get() {
            Some(what) => OpError::WouldWait { what },
            None => OpError::QueueFull { stream: stream.to_string() },
        }
    }
}

/// How a submission may wait.
#[derive(Clone, Copy)]
enum Patience<'c> {
    /// On this thread, holding nothing.
    Thread,
    /// Not at all: it is told when to come again.
    Task(&'c Waker),
    /// Not at all, and nobody says when to come again. Where it would have to, the operation is `Pending`, as in a poll: so it loses nothing,
    /// and others who share it may go on.
    None(&'c Refusal),
}

/// What an operation is given when it is submitted: where it runs, and how it may wait.
///
/// [`DeviceOp::poll_submit`](crate::DeviceOp::poll_submit) may be called on any thread, several times until it is ready. Under
/// `sync` and `enqueue_on` it may wait in place; under a poll it may not, and says `Pending` after it has seen to it that it is
/// called again: [`SubmitContext::settle`] and [`SubmitContext::offload`] do that.
#[derive(Debug)]
pub struct SubmitContext<'c> {
    execution: &'c ExecutionContext,
    patience: Patience<'c>,
    /// Conflicts are the caller's business.
    unordered: bool,
    /// The operation's name.
    label: Option<&'c Arc<str>>,
}

impl core::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Thread => "Thread",
            Self::Task(_) => "Task",
            Self::None(_) => "None",
        })
    }
}

impl<'c> SubmitContext<'c> {
    pub(crate) fn patient(execution: &'c ExecutionContext) -> Self {
        Self { execution, patience: Patience::Thread, unordered: false, label: None }
    }

    pub(crate) fn task(execution: &'c ExecutionContext, waker: &'c Waker) -> Self {
        Self { execution, patience: Patience::Task(waker), unordered: false, label: None }
    }

    pub(crate) fn impatient(execution: &'c ExecutionContext, refusal: &'c Refusal) -> Self {
        Self { execution, patience: Patience::None(refusal), unordered: false, label: None }
    }

    /// The same patience, somewhere else.
    pub(crate) fn elsewhere<'e>(&self, execution: &'e ExecutionContext) -> SubmitContext<'e>
    where
        'c: 'e,
    {
        SubmitContext { execution, ..*self }
    }

    pub(crate) fn unordered(mut self) -> Self {
        self.unordered = true;
        self
    }

    /// The same; a task is woken by this waker.
    pub(crate) fn woken_by<'s>(&'s self, waker: &'s Waker) -> SubmitContext<'s> {
        let patience = match self.patience {
            Patience::Task(_) => Patience::Task(waker),
            other => other,
        };
        SubmitContext { patience, ..*self }
    }

    /// Where nothing may be waited for: `Pending`, and the call is told that `what` may wait.
    pub(crate) fn would_wait(&self, what: &'static str) -> bool {
        if let Patience::None(refusal) = self.patience {
            refusal.0.set(Some(what));
            return true;
        }
        false
    }

    /// The same, for an operation of this name.
    pub(crate) fn labelled<'s>(&'s self, label: &'s Arc<str>) -> SubmitContext<'s> {
        SubmitContext { label: Some(label), ..*self }
    }

    /// Where it runs.
    pub fn execution(&self) -> &'c ExecutionContext {
        self.execution
    }

    /// The stream.
    pub fn stream(&self) -> &'c Arc<Stream> {
        &self.execution.stream
    }

    /// Whether the calling thread may be held while something is waited for.
    pub fn may_block(&self) -> bool {
        matches!(self.patience, Patience::Thread)
    }

    /// Begins a submission that waits as this context may. Its outcome goes through [`SubmitContext::settle`].
    pub fn submit(&self) -> SubmitBuilder<'c> {
        if let Some(recording) = &self.execution.recording {
            return recording.submit(&self.execution.stream);
        }
        let builder = self.execution.stream.submit();
        let builder = match self.unordered {
            // SAFETY: `async_on` says that its caller orders the work.
            true => unsafe { builder.unchecked() },
            false => builder,
        };
        let builder = match self.label {
            Some(label) => builder.labelled(label),
            None => builder,
        };
        if self.may_block() { builder } else { builder.no_wait() }
    }

    /// What a submission gave, or `Pending` if it was refused for want of room: then the operation is polled again when
    /// there is room, and submits again.
    pub fn settle<T, E: MayWait>(&mut self, outcome: Result<T, E>) -> Poll<Result<T, OpError>> {
        let error = match outcome {
            Ok(value) => return Poll::Ready(Ok(value)),
            Err(error) => error,
        };
        match (refused(error), self.patience) {
            (Refused::Error(error), _) => Poll::Ready(Err(error)),
            (Refused::Full(room), Patience::Task(waker)) => {
                reactor::watch_room(room, waker.clone());
                Poll::Pending
            }
            (Refused::Busy, Patience::Task(waker)) => {
                waker.wake_by_ref();
                Poll::Pending
            }
            (_, Patience::None(_)) => Poll::Pending,
            _ => Poll::Ready(Err(OpError::QueueFull { stream: self.execution.stream.to_string() })),
        }
    }

    /// Waits for submitted work, as this context may. `ticket` keeps the place in the reactor between polls.
    ///
    /// # Errors
    /// The failure of the work.
    pub fn wait(&mut self, done: &Submission, ticket: &mut Option<Arc<Ticket>>) -> Poll<Result<(), OpError>> {
        let waker = match self.patience {
            Patience::Task(waker) => Some(waker),
            Patience::None(_) => None,
            Patience::Thread => return Poll::Ready(done.wait().map_err(Into::into)),
        };
        if done.is_complete()? {
            *ticket = None;
            return Poll::Ready(Ok(()));
        }
        let Some(waker) = waker else { return Poll::Pending };
        if ticket.as_ref().is_none_or(|ticket| ticket.poll(waker)) {
            reactor::watch(done, ticket.insert(Ticket::new(waker)));
        }
        Poll::Pending
    }

    /// How much of the host's memory this call may copy.
    pub(crate) fn host_budget(&self) -> HostBudget {
        HostBudget::new(if self.waker().is_some() { HostBudget::POLL } else { usize::MAX })
    }

    /// Has the operation polled again soon, because this poll has done its share.
    pub fn again(&self) {
        if let Patience::Task(waker) = self.patience {
            waker.wake_by_ref();
        }
    }

    /// Runs `work`, which may take long (a module load, an allocation): here, if the calling thread may be held, else on a
    /// thread of the runtime, and the operation is polled again when it has been done. `slot` keeps the work between polls. What it submits
    /// waits for no room in a queue there, since many share those threads, and under `try_enqueue_on`, where it runs here, for nothing: its outcome
    /// goes through [`SubmitContext::settle`].
    ///
    /// # Errors
    /// [`OpError::NoThread`]; a panic of `work` is [`OpError::Panicked`].
    pub fn offload<T: Send + 'static>(
        &mut self,
        slot: &mut Option<worker::Job<T>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Poll<Result<T, OpError>> {
        // What a poll has started is waited for, whoever asks now.
        let job = match (slot.as_mut(), self.patience) {
            (Some(job), _) => job,
            (None, Patience::Thread) => return Poll::Ready(Ok(work())),
            (None, Patience::None(_)) => return Poll::Ready(Ok(simtile_core::without_waiting(work))),
            (None, Patience::Task(_)) => match worker::start(|| simtile_core::without_waiting_for_room(work))
            {
                Ok(job) => slot.insert(job),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        let polled = match self.patience {
            Patience::Task(waker) => job.poll(waker),
            Patience::Thread => Poll::Ready(job.wait()),
            Patience::None(_) => job.done().map_or(Poll::Pending, Poll::Ready),
        };
        if polled.is_ready() {
            *slot = None;
        }
        polled
    }

    /// The waker of the task that submits; `None` if a thread waits in place.
    pub fn waker(&self) -> Option<&'c Waker> {
        match self.patience {
            Patience::Task(waker) => Some(waker),
            _ => None,
        }
    }
}
