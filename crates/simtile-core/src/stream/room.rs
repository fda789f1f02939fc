//! Waiting for room in the queues, for callers that may not wait inside a submission.

use crate::Context;
use crate::context::TrackedEvent;
use crate::error::{On, StreamError};
use core::fmt;
use simtile_sync::Arc;
use smallvec::SmallVec;

/// What has to finish before a refused submission fits. Given by [`StreamError::QueueFull`].
#[derive(Clone)]
pub struct Room {
    pub(super) context: Arc<Context>,
    /// Any of them; without one, another thread is about to say.
    pub(super) events: SmallVec<[TrackedEvent; 4]>,
}

impl Room {
    /// There is room when any of these has fired.
    pub(crate) fn of(context: &Arc<Context>, events: SmallVec<[TrackedEvent; 4]>) -> Self {
        Self { context: context.clone(), events }
    }

    /// Whether it is worth trying again. Never waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_there(&self) -> Result<bool, StreamError> {
        self.context.usable().on::<StreamError>(|| "room in a queue".into())?;
        for event in &self.events {
            if self.context.tracker().query(event).on::<StreamError>(|| "room in a queue".into())? {
                return Ok(true);
            }
        }
        Ok(self.events.is_empty())
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({} events of {})", self.events.len(), self.context)
    }
}
