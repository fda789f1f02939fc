//! A driver that does nothing, for counting and timing the tracker alone.

use simtile_hazard::{Backend, EventRef, Quarantine, Stamp};
use smallvec::SmallVec;

pub struct Null;

impl Backend for Null {
    type Stream = ();
    type Event = ();
    type Memory = ();
    type Error = ();

    fn create_event(&self) -> Result<(), ()> {
        Ok(())
    }
    fn is_capturing(&self, _: &()) -> Result<bool, ()> {
        Ok(false)
    }
    fn record(&self, _: &(), _: &()) -> Result<(), ()> {
        Ok(())
    }
    fn wait(&self, _: &(), _: &()) -> Result<(), ()> {
        Ok(())
    }
    fn query(&self, _: &()) -> Result<bool, ()> {
        // Completion is withheld, so that work stays in flight.
        Ok(false)
    }
    fn wait_any(&self, _: &[EventRef<Self>]) -> Result<(), ()> {
        Err(())
    }
    fn free(&self, _: &(), _: ()) -> Result<(), ()> {
        Ok(())
    }
    fn reclaim(&self, _: (), _: SmallVec<[Stamp; 4]>) {}
    fn quarantine(&self, _: (), _: Quarantine) {}
    fn closed(&self, _: ()) {}
}
