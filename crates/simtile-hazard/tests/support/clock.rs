//! Vector clocks over the positions in streams.

/// The most streams in a world.
pub const STREAMS: usize = 24;

/// Per stream, the position up to which something is ordered after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock(pub [u32; STREAMS]);

impl Clock {
    pub const ZERO: Self = Self([0; STREAMS]);

    pub fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub fn covers(&self, stream: usize, position: u32) -> bool {
        self.0[stream] >= position
    }
}
