//! Process-wide state, one for each world.
//!
//! Outside of explorations there is one world. Every explored program is one of its own, with threads that take turns: no
//! exploration may wait for another's threads.

use simtile_sync::{Global, hook};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct Worlds<T: 'static>(Global<BTreeMap<usize, Arc<T>>>);

impl<T: Default> Worlds<T> {
    pub(crate) const fn new() -> Self {
        Self(Global::new(BTreeMap::new()))
    }

    /// The calling thread's. Those that nobody uses any more go, but for the process's own.
    pub(crate) fn mine(&self) -> Arc<T> {
        let (mut worlds, mine) = (self.0.lock(), hook::world());
        if let Some(found) = worlds.get(&mine) {
            return found.clone();
        }
        worlds.retain(|&world, held| world == 0 || Arc::strong_count(held) > 1);
        worlds.entry(mine).or_default().clone()
    }
}
