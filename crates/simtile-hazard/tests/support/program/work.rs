//! Submissions, and what the oracle says to their outcome.

use super::*;

impl Program {
    pub(super) fn random_accesses(&self, list: &[Rc<TestRegion>]) -> Vec<(u64, u64, Mode)> {
        list.iter()
            .map(|region| {
                let cells = region.region.len() / 4;
                let (start, end) = match self.below(4) {
                    0 | 1 => (0, cells),
                    2 => {
                        // A fixed half, so that ranges meet again.
                        let half = cells / 2;
                        if self.chance(50) { (0, half) } else { (half, cells) }
                    }
                    _ => {
                        let start = self.below(cells as usize) as u64;
                        (start, start + 1 + self.below((cells - start) as usize) as u64)
                    }
                };
                let mode = match self.below(10) {
                    0..=4 => Mode::Read,
                    5..=7 => Mode::Write,
                    _ => {
                        let size = if self.profile.strict || self.chance(70) { 4 } else { 8 };
                        let scope = if self.chance(50) { Scope::Device } else { Scope::System };
                        let scope = if self.profile.strict { Scope::System } else { scope };
                        Mode::Accumulate { size, scope }
                    }
                };
                (start * 4, end * 4, mode)
            })
            .collect()
    }

    pub(super) fn submit(&self) {
        let Some(stream) = self.a_stream() else { return };
        let mut list: Vec<Rc<TestRegion>> = Vec::new();
        for _ in 0..1 + self.below(4) {
            if let Some(region) = self.a_region()
                && (self.chance(3) || list.iter().all(|other| !Rc::ptr_eq(other, &region)))
            {
                list.push(region);
            }
        }
        let modes = self.random_accesses(&list);
        let accesses: Vec<_> = list
            .iter()
            .zip(&modes)
            .map(|(region, (start, end, mode))| Access::new(&region.region, *start, *end, *mode))
            .collect();
        let memories: Vec<usize> = list.iter().map(|region| region.memory).collect();
        if self.profile.space == Space::Single {
            let policy = if self.chance(80) { Policy::Order } else { Policy::OrderAndReport };
            return self.submit_accesses(&stream, &accesses, &memories, policy, Outside::Never);
        }
        let policy = self.profile.policy.unwrap_or_else(|| match self.below(20) {
            0 if !self.profile.strict => Policy::Unchecked,
            1..=3 => Policy::Reject,
            4 => Policy::OrderAndReport,
            _ => Policy::Order,
        });
        let outside = match self.below(30) {
            0 => Outside::Waits,
            1 => Outside::WaitValue,
            _ => Outside::Never,
        };
        self.submit_accesses(&stream, &accesses, &memories, policy, outside);
    }

    /// A region split in two, both halves in one submission, each in a way of its own.
    pub(super) fn submit_halves(&self) {
        let (Some(stream), Some(region)) = (self.a_stream(), self.a_region()) else { return };
        let cells = region.region.len() / 4;
        let cut = 4 * (1 + self.below(cells as usize - 1) as u64);
        let pair = [Rc::clone(&region), Rc::clone(&region)];
        let modes = self.random_accesses(&pair);
        let accesses = [
            Access::new(&region.region, 0, cut, modes[0].2),
            Access::new(&region.region, cut, region.region.len(), modes[1].2),
        ];
        let policy = self.profile.policy.unwrap_or_default();
        self.submit_accesses(&stream, &accesses, &[region.memory; 2], policy, Outside::Never);
    }

    pub(super) fn touches(accesses: &[Access<'_>], memories: &[usize], device: u16) -> Vec<Touch> {
        accesses
            .iter()
            .zip(memories)
            .map(|(a, &region)| Touch {
                region,
                start: a.start,
                end: a.end,
                how: Use::of(a.mode, a.start, device),
            })
            .collect()
    }

    pub(super) fn submit_accesses(
        &self,
        stream: &TestStream,
        accesses: &[Access<'_>],
        memories: &[usize],
        policy: Policy,
        outside: Outside,
    ) {
        let (device, thread) = {
            let world = self.world();
            (world.streams[stream.sim].device, world.thread)
        };
        let touches = Self::touches(accesses, memories, device);
        let unchecked = policy == Policy::Unchecked;
        let seal = self.profile.space != Space::Single && self.chance(10);
        let options = Options { policy, outside, seal, thread };
        let gate = if outside == Outside::Never { None } else { Some(self.world().gate()) };
        let context = Context { stream: stream.sim, touches: touches.clone(), needless: 0, unchecked };
        self.world().contexts.push(context);
        let enqueue = |sim: &usize| {
            at_call();
            let mut world = self.world();
            let fault = world.take_fault();
            if fault != Some(false) {
                world.enqueue(*sim, &touches, gate, unchecked);
            }
            if fault.is_some() { Err(Failed("launch")) } else { Ok(()) }
        };
        let patient = self.depth.get() == 0 && self.chance(80);
        self.world().trace(|| format!("submit s{} {policy:?} {touches:?}", stream.sim));
        let result = if patient {
            self.tracker.submit(&stream.stream, accesses, &options, enqueue)
        } else {
            self.tracker.try_submit(&stream.stream, accesses, &options, enqueue)
        };
        let context = self.world().contexts.pop().expect("pushed above");
        self.world().trace(|| match &result {
            Ok(done) => format!("-> {:?}", done.stamp),
            Err(error) => format!("-> {error}"),
        });
        match result {
            Ok(done) => {
                let excused = done.waits.iter().filter(|wait| wait.reader_limit).count() as u32;
                if !self.inexact.get() && context.needless > excused {
                    self.violation(format!("{} needless waits: {:?}", context.needless, done.waits));
                }
                self.stamps.borrow_mut().push(done.stamp);
                self.events.borrow_mut().extend(done.event);
            }
            Err(SubmitError::Conflict(conflict)) => self.judge_conflict(&conflict, &touches, stream.sim),
            Err(SubmitError::Busy(_)) if patient => self.violation("a patient submission was busy".into()),
            Err(SubmitError::Full { .. }) if patient => {
                self.violation("a patient submission was full".into())
            }
            Err(SubmitError::Full { events }) => self.events.borrow_mut().extend(events),
            Err(SubmitError::Driver { .. }) if !self.profile.faults => {
                if !self.inexact.get() {
                    self.violation("a driver error without a fault".into());
                }
            }
            Err(_) => {}
        }
    }

    /// A conflict is reported for somebody who is still there.
    pub(super) fn judge_conflict(&self, conflict: &Conflict, touches: &[Touch], sim: usize) {
        let world = self.world();
        let real = match conflict.with {
            Party::Host => touches.iter().any(|touch| {
                world.memory[touch.region]
                    .host
                    .iter()
                    .any(|c| c.1 < touch.end && touch.start < c.2 && c.3.clashes(touch.how))
            }),
            Party::Foreign => {
                self.unknown.get()
                    || touches.iter().any(|touch| world.memory[touch.region].exported.is_some())
            }
            // Exact only if everybody seals after each submission.
            Party::Stream(_) if self.profile.policy != Some(Policy::Reject) || self.inexact.get() => true,
            Party::Stream(_) => touches.iter().any(|touch| {
                world.memory[touch.region]
                    .clashes(touch)
                    .any(|past| past.stream != sim && world.streams[past.stream].done < past.position)
            }),
        };
        drop(world);
        if !real {
            self.violation(format!("a conflict with nobody: {conflict}"));
        }
    }
}
