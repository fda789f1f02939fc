//! Captures and replays.

use super::*;

impl Program {
    pub(super) fn capture(&self) {
        let Some(origin) = self.a_stream() else { return };
        let thread = self.world().thread;
        let begin = |sim: &usize| {
            let mut world = self.world();
            if world.take_fault().is_some() {
                return Err(Failed("begin capture"));
            }
            world.begin_capture(*sim);
            Ok(())
        };
        let Ok(capture) = self.tracker.begin_capture(&origin.stream, thread, begin) else { return };
        let mut members = vec![Rc::clone(&origin)];
        let mut kept: Vec<Rc<TestRegion>> = Vec::new();
        for _ in 0..self.below(10) {
            if self.chance(20)
                && let Some(other) = self.a_stream()
                && members.iter().all(|member| member.sim != other.sim)
                && other.stream.kind() == StreamKind::Owned
            {
                match capture.add_stream(&other.stream, thread) {
                    Ok(()) => members.push(other),
                    Err(SubmitError::Driver { .. }) => {
                        // The stream may have joined all the same: only ending the capture tells.
                        capture.abandon(|sim| self.world().end_capture(*sim));
                        return;
                    }
                    Err(_) => {}
                }
                continue;
            }
            if self.chance(15) {
                // Life outside goes on.
                self.depth.set(self.depth.get() + 1);
                self.as_thread(|p| p.step());
                self.depth.set(self.depth.get() - 1);
                continue;
            }
            let member = Rc::clone(&members[self.below(members.len())]);
            let mut list: Vec<Rc<TestRegion>> = Vec::new();
            for _ in 0..1 + self.below(3) {
                if let Some(region) = self.a_region()
                    && list.iter().all(|other| !Rc::ptr_eq(other, &region))
                {
                    list.push(region);
                }
            }
            let modes = self.random_accesses(&list);
            let accesses: Vec<_> = list
                .iter()
                .zip(&modes)
                .map(|(region, m)| Access::new(&region.region, m.0, m.1, m.2))
                .collect();
            let memories: Vec<usize> = list.iter().map(|region| region.memory).collect();
            let device = self.world().streams[member.sim].device;
            let touches = Self::touches(&accesses, &memories, device);
            let _ = capture.submit(&member.stream, &accesses, |sim| {
                let mut world = self.world();
                let fault = world.take_fault();
                if fault != Some(false) {
                    world.enqueue(*sim, &touches, None, false);
                }
                if fault.is_some() { Err(Failed("captured launch")) } else { Ok(()) }
            });
            kept.extend(list);
        }
        if self.chance(15) {
            capture.abandon(|sim| self.world().end_capture(*sim));
            return;
        }
        let ended = capture.finish(|sim| {
            let mut world = self.world();
            let ended = world.end_capture(*sim);
            if world.all_calls_fail && world.take_fault().is_some() {
                Err(Failed("end capture"))
            } else {
                Ok(ended)
            }
        });
        let Ok((joined, set)) = ended else { return };
        if joined.is_none() {
            self.violation("a capture ended with a stream that was not joined".into());
        }
        if set.accesses().is_empty() {
            return;
        }
        let memory = self.world().add_memory(16);
        let executable = TestRegion { region: self.tracker.region(16), memory };
        self.graphs.borrow_mut().push(Graph { executable, set, regions: kept });
    }

    pub(super) fn replay(&self) {
        let Some(stream) = self.a_stream() else { return };
        let graph = self.take_one(&self.graphs);
        let Some(graph) = graph else { return };
        let find =
            |id| graph.regions.iter().find(|region| region.region.id() == id).map(|region| &region.region);
        let accesses = graph.set.replay(&graph.executable.region, find).expect("the graph keeps its regions");
        let memories: Vec<usize> = accesses
            .iter()
            .map(|access| {
                let found = graph.regions.iter().find(|region| region.region.id() == access.region.id());
                found.map_or(graph.executable.memory, |region| region.memory)
            })
            .collect();
        let policy = self.profile.policy.unwrap_or_default();
        self.submit_accesses(&stream, &accesses, &memories, policy, Outside::Never);
        if self.chance(85) {
            self.graphs.borrow_mut().push(graph);
        } else {
            self.tracker.retire(graph.executable.region, graph.executable.memory);
        }
    }
}
