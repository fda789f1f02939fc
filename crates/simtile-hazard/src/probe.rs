//! A window for benchmarks: the plan of a submission alone, with its locks already held.

use crate::backend::Backend;
use crate::plan::Plan;
use crate::stream::{Held, Later, Stream};
use crate::submit::{Access, Options, Taken};
use crate::tracker::Tracker;
use simtile_sync::EXCLUSIVE;
use smallvec::SmallVec;

/// Repeats the plan and the stamps of one submission.
pub struct Warm<'a> {
    pub(crate) run: &'a mut dyn FnMut() -> bool,
}

impl Warm<'_> {
    /// Once: ranges, waits, stamps. Whether something would have to be waited for.
    #[inline]
    pub fn once(&mut self) -> bool {
        (self.run)()
    }
}

impl<B: Backend> Tracker<B> {
    /// Takes all locks of a submission and lets `body` repeat its plan. For benchmarks.
    #[doc(hidden)]
    pub fn warm<R>(
        &self,
        stream: &Stream<B>,
        accesses: &[Access<'_>],
        body: impl FnOnce(&mut Warm<'_>) -> R,
    ) -> R {
        let inner = &*self.inner;
        let later = Later::new(inner);
        let list: SmallVec<[&Access<'_>; 8]> = accesses.iter().collect();
        let mut guards: SmallVec<[Taken<'_>; 8]> = SmallVec::new();
        for (at, access) in (0u32..).zip(&list) {
            // no site: for benchmarks.
            guards.push(Taken { guard: access.region.guard.lock(EXCLUSIVE), first: at, end: at + 1 });
        }
        let mut held = Held::wait(inner, &stream.inner, &later);
        let options = Options::default();
        let mut run = || {
            let state = held.state();
            let mut plan = Plan::default();
            let planned = inner.plan(&stream.inner, state, &list, &mut guards, &options, &mut plan);
            let seal = inner.stamp(&stream.inner, state, &list, &mut guards, plan.met);
            planned.is_err() | seal | !plan.follow.is_empty()
        };
        body(&mut Warm { run: &mut run })
    }
}
