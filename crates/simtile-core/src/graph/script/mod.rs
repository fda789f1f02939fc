//! Chains that repeat: built once, followed and replayed afterwards.
//!
//! Between [`Script::begin`] and [`SubmitBuilder::script`](crate::SubmitBuilder::script) submissions to the script run nothing: each is
//! compared with the piece that was in its place the last time. What is equal costs the comparison. Other addresses, values or geometry
//! become an update of one node. Another kind of node has the executable built anew. Then everything is launched at once, as one
//! submission with the accesses of all pieces and a write of the executable.
//!
//! # Why this is right
//! * *The executable does what was submitted.* Before a launch each node has the parameters of its piece: a piece that changed is
//!   marked until its node was updated, also when the pass that changed it was given up. An update that fails, or a chain of another shape, is
//!   built anew from all pieces.
//! * *Nothing is touched without a claim.* The script keeps a handle of everything its pieces touch, until the next pass has replaced it and
//!   the executable was updated; the launch claims all of it. An executable whose pieces were given up in the middle is not launched.
//! * *Order.* The nodes form one row, as the pieces would in a stream. Between them nothing else runs that was submitted by others, so
//!   the union of their accesses orders at least what the pieces would have ordered.

mod build;
mod step;

use crate::context::SubmitError;
use crate::error::{CallError, GraphError, On, OnStream, StreamError};
use crate::stream::{Submission, Submit, Touch, What};
use crate::{Context, Function, LaunchArgs, LaunchOptions, Stream, SubmitBuilder};
use build::Built;
use core::fmt;
use simtile_driver::call;
use simtile_hazard::{Access, AccessUnion, Mode, Outside};
use simtile_sync::{Arc, Mutex};
use smallvec::SmallVec;
pub use step::KernelPiece;
use step::{Kept, Likeness, Step, Work, Wrong};
pub(crate) use step::{Kernel, Plain};

/// A chain of submissions that repeats. See the module's documentation.
///
/// One pass goes on at a time: beginning one gives another up. What the last pass touched is kept until the next one has replaced it,
/// until [`Script::forget`] or the end of the script.
pub struct Script {
    context: Arc<Context>,
    state: Mutex<State>,
    /// Beside the state, which a launch takes out. Locked after it.
    beside: Mutex<Beside>,
}

#[derive(Default)]
struct Beside {
    stats: ScriptStats,
    /// Calls of [`Script::forget`].
    forgets: u64,
}

#[derive(Default)]
struct State {
    /// The pass that goes on; 0: none.
    pass: u64,
    /// A piece of this pass failed.
    broken: bool,
    /// Whether a piece of this pass may wait for something that is no work of a stream.
    outside: Outside,
    steps: Vec<Step>,
    /// Pieces of this pass so far.
    cursor: usize,
    built: Option<Built>,
    /// The pieces are not those of the executable.
    reshaped: bool,
    /// The set is not that of the pieces.
    moved: bool,
    set: AccessUnion<(u32, u32)>,
    gone: Gone,
    /// How many pieces a launch has that has taken them out.
    elsewhere: usize,
}

/// What pieces were before this pass. It is kept until the executable no longer reaches it, and dropped with no lock held.
#[derive(Default)]
struct Gone {
    touches: Vec<Kept>,
    works: Vec<Work>,
}

/// What became of passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScriptStats {
    /// Launches of the whole chain.
    pub launches: u64,
    /// Of those, the ones for which an executable was built.
    pub built: u64,
    /// Nodes that were given other parameters.
    pub updated_nodes: u64,
}

impl Script {
    /// A chain of nothing.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), state: Mutex::default(), beside: Mutex::default() }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What became of its passes.
    pub fn stats(&self) -> ScriptStats {
        self.beside.lock().stats
    }

    /// How many pieces the last pass had.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        if state.steps.is_empty() { state.elsewhere } else { state.steps.len() }
    }

    /// Whether the last pass had none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins a pass: its number, which no other pass or capture of the process has.
    pub fn begin(&self) -> u64 {
        let pass = super::next_world();
        let mut state = self.state.lock();
        let gone = state.give_up();
        state.pass = pass;
        drop(state);
        drop(gone);
        pass
    }

    /// Gives a pass up: nothing of it runs.
    pub fn abandon(&self) {
        let gone = self.state.lock().give_up();
        drop(gone);
    }

    /// Takes the only piece of a pass, which is a launch, and ends the pass: nothing runs.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: the pass is over, failed, or has other pieces.
    pub fn take_kernel(&self, pass: u64) -> Result<KernelPiece, GraphError> {
        let mut state = self.state.lock();
        let (right, pieces) = (state.pass == pass && !state.broken, state.cursor);
        let old = core::mem::take(&mut *state);
        drop(state);
        let State { mut steps, outside, .. } = old;
        steps.truncate(pieces);
        match (right, steps.pop(), steps.is_empty()) {
            (true, Some(Step { work: Work::Kernel(kernel), touches, .. }), true) => {
                Ok(KernelPiece { kernel, touches, outside })
            }
            _ => {
                let why = format!("{pieces} pieces were recorded, and one launch was expected");
                Err(GraphError::NotUpdatable { what: "a kernel of a graph".into(), why })
            }
        }
    }

    /// Gives up the executable and everything that is kept; while a pass is being launched, when that is over. The next pass builds another
    /// one.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        self.beside.lock().forgets += 1;
        let old = core::mem::take(&mut *state);
        drop(state);
        drop(old);
    }

    /// Begins a submission that becomes a piece of this pass: a launch, a copy or a fill of contiguous memory of the script's
    /// context. Others are refused.
    pub fn submit<'a>(&'a self, pass: u64, stream: &'a Arc<Stream>) -> SubmitBuilder<'a> {
        stream.submit().into_script(self, pass)
    }

    /// A launch as the next piece.
    #[allow(clippy::too_many_arguments, reason = "all of a launch")]
    pub(crate) fn launch<E: OnStream>(
        &self,
        pass: u64,
        stream: &Arc<Stream>,
        outside: Outside,
        touches: &[Touch<'_>],
        function: &Function,
        options: &LaunchOptions,
        args: &LaunchArgs<'_>,
    ) -> Result<(), E> {
        if options.programmatic {
            let what = format!("a programmatic dependent launch of {function} cannot be memoised");
            return Err(refused(stream, what));
        }
        let likeness = |work: &mut Work| match work {
            Work::Kernel(kernel) => {
                let likeness = kernel.likeness(function, options, args);
                if likeness == Likeness::Parameters {
                    kernel.options = *options;
                    kernel.args.set(args);
                }
                likeness
            }
            Work::Plain(_) => Likeness::Other,
        };
        let make = || Work::Kernel(Kernel::new(function, options, args));
        self.step(pass, stream, outside, touches, likeness, make)
    }

    /// Other work as the next piece.
    pub(crate) fn plain<E: OnStream>(
        &self,
        pass: u64,
        stream: &Arc<Stream>,
        outside: Outside,
        touches: &[Touch<'_>],
        plain: Plain,
    ) -> Result<(), E> {
        let plain = plain.widened();
        let likeness = |work: &mut Work| match work {
            Work::Plain(old) => {
                let likeness = old.likeness(&plain);
                if likeness == Likeness::Parameters {
                    *old = plain;
                }
                likeness
            }
            Work::Kernel(_) => Likeness::Other,
        };
        self.step(pass, stream, outside, touches, likeness, || Work::Plain(plain))
    }

    fn step<E: OnStream>(
        &self,
        pass: u64,
        stream: &Arc<Stream>,
        outside: Outside,
        touches: &[Touch<'_>],
        likeness: impl FnOnce(&mut Work) -> Likeness,
        make: impl FnOnce() -> Work,
    ) -> Result<(), E> {
        if let Some(touch) = touches.iter().find(|touch| touch.stride.is_some()) {
            let what = format!("strided access to {} cannot be memoised", touch.allocation.name());
            return Err(refused(stream, what));
        }
        let mut state = self.state.lock();
        if state.pass != pass {
            drop(state);
            return Err(refused(stream, "the pass of the memoised chain is over".into()));
        }
        state.outside = state.outside.max(outside);
        let stepped = state.step(touches, likeness, make);
        drop(state);
        stepped.map_err(|wrong| E::from_stream(wrong.on(stream)))
    }

    /// Launches the pass. After a refusal for want of room the same may be tried again.
    pub(crate) fn finish(
        &self,
        pass: u64,
        stream: &Arc<Stream>,
        submit: Submit<'_>,
    ) -> Result<Submission, GraphError> {
        stream.same_context(&self.context, || self.to_string()).map_err(GraphError::from_stream)?;
        let mut slot = self.state.lock();
        if slot.pass != pass || slot.broken {
            drop(slot);
            let why = "this pass is over, or a piece of it failed".into();
            return Err(GraphError::NotUpdatable { what: self.to_string(), why });
        }
        // Taken out, so that nobody waits for a lock while this waits for room. A pass that is begun meanwhile is over at once.
        let elsewhere = slot.cursor;
        let mut state = core::mem::replace(&mut *slot, State { elsewhere, ..State::default() });
        let forgets = self.beside.lock().forgets;
        drop(slot);
        let done = self.launch_all(&mut state, stream, submit);
        if done.is_ok() {
            // The executable reaches nothing of it any more.
            state.gone.touches.clear();
            state.gone.works.clear();
            state.pass = 0;
            self.beside.lock().stats.launches += 1;
        }
        let mut slot = self.state.lock();
        let other = match self.beside.lock().forgets == forgets {
            true => core::mem::replace(&mut *slot, state),
            false => state,
        };
        drop(slot);
        drop(other);
        done
    }

    fn launch_all(
        &self,
        state: &mut State,
        stream: &Arc<Stream>,
        mut submit: Submit<'_>,
    ) -> Result<Submission, GraphError> {
        state.cut();
        if state.steps.is_empty() {
            return Ok(Submission::nothing(stream));
        }
        self.bring_up_to_date(state).on::<GraphError>(|| self.to_string())?;
        state.join(u16::try_from(self.context.ordinal()).unwrap_or(u16::MAX - 1));
        let Some(built) = &state.built else {
            let why = "there is no executable".into();
            return Err(GraphError::NotUpdatable { what: self.to_string(), why });
        };
        let mut accesses: SmallVec<[Access<'_>; 16]> = SmallVec::new();
        for (piece, (step, touch)) in state.set.set() {
            let owner = &state.steps[*step as usize].touches[*touch as usize].owner;
            if let Some(region) = owner.region() {
                accesses.push(Access::new(region, piece.start, piece.end, piece.mode));
            }
        }
        accesses.push(Access::whole(&built.region, Mode::Write));
        submit.outside = submit.outside.max(state.outside);
        let exec = built.exec;
        let launched = stream.submit_tracked(
            &accesses,
            Submit { current: false, what: What::GRAPH, ..submit },
            |driver, raw| {
                // SAFETY: executable and stream are alive and of one context.
                unsafe { call!(driver, cuGraphLaunch(exec, raw)) }
            },
        );
        let used = || state.steps.iter().flat_map(|step| step.touches.iter().map(|kept| &*kept.owner));
        match launched {
            Ok(done) => Ok(Submission::of(stream, done)),
            Err(error @ SubmitError::Driver { .. }) => {
                Err(stream.refused(error, &[], || format!("{self} on {stream}")))
            }
            Err(error) => Err(stream.refused(error, &used().collect::<Vec<_>>(), || self.to_string())),
        }
    }

    /// Has the executable do what the pieces say.
    fn bring_up_to_date(&self, state: &mut State) -> Result<(), CallError> {
        if let (false, Some(built)) = (state.reshaped, &mut state.built)
            && built.len() == state.steps.len()
        {
            match built.update(&mut state.steps) {
                Ok(updated) => {
                    self.beside.lock().stats.updated_nodes += updated as u64;
                    return Ok(());
                }
                // What the driver does not update is built anew.
                Err(CallError::Driver(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // Until there is another one.
        state.reshaped = true;
        drop(state.built.take());
        state.built = Some(Built::new(&self.context, &state.steps)?);
        state.steps.iter_mut().for_each(|step| step.stale = false);
        state.reshaped = false;
        self.beside.lock().stats.built += 1;
        Ok(())
    }
}

impl State {
    /// Ends a pass that was not launched. What comes back is dropped with no lock held.
    fn give_up(&mut self) -> Gone {
        (self.pass, self.cursor, self.broken, self.outside) = (0, 0, false, Outside::Never);
        // Without a reason its room stays.
        if self.gone.touches.is_empty() && self.gone.works.is_empty() {
            return Gone::default();
        }
        core::mem::take(&mut self.gone)
    }

    fn step(
        &mut self,
        touches: &[Touch<'_>],
        likeness: impl FnOnce(&mut Work) -> Likeness,
        make: impl FnOnce() -> Work,
    ) -> Result<(), Wrong> {
        if self.cursor == self.steps.len() {
            self.steps.push(Step { work: make(), touches: SmallVec::new(), stale: false });
            self.reshaped = true;
        } else {
            let step = &mut self.steps[self.cursor];
            match likeness(&mut step.work) {
                Likeness::Same => {}
                Likeness::Parameters => step.stale = true,
                Likeness::Other => {
                    self.gone.works.push(core::mem::replace(&mut step.work, make()));
                    self.reshaped = true;
                }
            }
        }
        let step = &mut self.steps[self.cursor];
        self.cursor += 1;
        if step.touches(touches) {
            return Ok(());
        }
        self.moved = true;
        let moved = step::aliased(touches).and_then(|()| step.retarget(touches, &mut self.gone.touches));
        self.broken |= moved.is_err();
        moved
    }

    /// Gives up pieces that this pass does not have.
    fn cut(&mut self) {
        for step in self.steps.drain(self.cursor..) {
            self.gone.touches.extend(step.touches);
            self.gone.works.push(step.work);
            (self.reshaped, self.moved) = (true, true);
        }
    }

    fn join(&mut self, device: u16) {
        if !self.moved {
            return;
        }
        self.set.clear();
        for (i, step) in self.steps.iter().enumerate() {
            for (j, kept) in step.touches.iter().enumerate() {
                let (start, end) = (kept.start as u64, kept.end as u64);
                self.set.add(kept.region, start, end, kept.mode, device, (i as u32, j as u32));
            }
        }
        self.set.join();
        self.moved = false;
    }
}

fn refused<E: OnStream>(stream: &Stream, what: String) -> E {
    E::from_stream(StreamError::Refused { stream: stream.to_string(), what })
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memoised chain of {} pieces", self.len())
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("pieces", &self.len()).field("stats", &self.stats()).finish()
    }
}
