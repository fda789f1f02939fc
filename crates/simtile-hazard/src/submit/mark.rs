//! Marks: the end of everything that a stream holds, without work.
//!
//! A mark is a seal and nothing else. It takes no permit: the driver's queues are filled by work, not by records. What it costs is an
//! event, and those are bounded in another way: once [`Config::max_marks`](crate::Config) of them are unanswered behind work that has an event
//! already, the next one is given the newest of those.

use super::{Options, Stop};
use crate::backend::Backend;
use crate::error::{Busy, Step, SubmitError};
use crate::event::EventRef;
use crate::mutate::site;
use crate::stats::Rule;
use crate::stream::{Held, Later, Stream, StreamInner, StreamState};
use crate::tracker::{Inner, Tracker};

impl<B: Backend> Tracker<B> {
    /// An event behind everything that the stream holds now, tracked or not. Waits for no permit, only for other threads that are
    /// submitting to the stream, holding nothing. `thread` is the calling thread's token, for per-thread streams.
    ///
    /// # Errors
    /// The stream takes no work; [`SubmitError::Failed`] if nothing could be recorded.
    pub fn mark(&self, stream: &Stream<B>, thread: u64) -> Result<EventRef<B>, SubmitError<B>> {
        let inner = &*self.inner;
        inner.make_events();
        let later = Later::new(inner);
        let mut held = Held::wait(inner, &stream.inner, &later);
        inner.mark(&stream.inner, held.state(), thread, false)
    }

    /// As [`Tracker::mark`], but never waits. Where many marks are unanswered it may be the newest of them, which is behind everything
    /// that was submitted.
    ///
    /// # Errors
    /// As [`Tracker::mark`]; [`SubmitError::Busy`].
    pub fn try_mark(&self, stream: &Stream<B>, thread: u64) -> Result<EventRef<B>, SubmitError<B>> {
        let inner = &*self.inner;
        inner.make_events();
        let later = Later::new(inner);
        let Some(mut held) = Held::try_new(inner, &stream.inner, &later) else {
            inner.stats.fire(Rule::StreamBusy);
            return Err(SubmitError::Busy(Busy::Stream));
        };
        inner.mark(&stream.inner, held.state(), thread, true)
    }
}

impl<B: Backend> Inner<B> {
    fn mark(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        thread: u64,
        share: bool,
    ) -> Result<EventRef<B>, SubmitError<B>> {
        let failed = || SubmitError::Failed { axis: stream.axis };
        let slot = match self.takes_work(stream, state, &Options { thread, ..Options::default() }) {
            Ok(slot) => slot,
            Err(Stop::Error(error)) => return Err(error),
            // (Nothing else is asked.)
            Err(_) => return Err(SubmitError::Busy(Busy::Stream)),
        };
        if slot.recorded() >= state.last_used {
            if share
                && state.marks >= self.config.max_marks
                && let Some(newest) = slot.newest()
            {
                let fired = self.query(&newest);
                if !fired.map_err(|error| SubmitError::Driver { step: Step::HostWait, error })? {
                    self.stats.fire(Rule::SealNothing);
                    return Ok(newest);
                }
            }
            if slot.oldest().is_none() {
                state.marks = 0;
            }
            state.marks += 1;
        }
        // The tail of the stream is behind it, or the axis could end while what the tracker does not know still runs.
        let epoch = state.open;
        state.last_used = epoch;
        if site!(SealMark) && self.seal_epoch_asking(stream, state, epoch, false) {
            self.stats.fire(Rule::SealAsked);
        }
        slot.covering(epoch).ok_or_else(failed)
    }
}
