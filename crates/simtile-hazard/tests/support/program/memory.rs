//! Regions: made, dropped, claimed by the host, exported and taken back, reclaimed.

use super::*;

impl Program {
    pub(super) fn add_region(&self) {
        let len = 16 + 16 * self.below(8) as u64;
        let memory = self.world().add_memory(len);
        let region = self.tracker.region(len);
        self.regions.borrow_mut().push(Rc::new(TestRegion { region, memory }));
    }

    pub(super) fn drop_region(&self) {
        let region = self.take_one(&self.regions);
        match region.map(Rc::try_unwrap) {
            Some(Ok(region)) => {
                self.tracker.retire(region.region, region.memory);
            }
            Some(Err(region)) => self.regions.borrow_mut().push(region),
            None => {}
        }
    }

    pub(super) fn claim(&self) {
        let Some(region) = self.a_region() else { return };
        let (start, end, mode) = self.random_accesses(std::slice::from_ref(&region))[0];
        let access = Access::new(&region.region, start, end, mode);
        let result = if self.depth.get() == 0 && self.chance(50) && !self.faulty() {
            self.tracker.host(&access).map_err(|_| ())
        } else {
            match self.tracker.try_host(&access) {
                Ok(claim) => Ok(claim),
                Err(HostBusy::Pending(stamps)) => {
                    self.stamps.borrow_mut().extend(stamps);
                    Err(())
                }
                Err(_) => Err(()),
            }
        };
        let Ok(claim) = result else { return };
        let touch = Touch { region: region.memory, start, end, how: Use::of(mode, start, u16::MAX) };
        let id = self.next_claim.get();
        self.next_claim.set(id + 1);
        let mut world = self.world();
        let pending = world.memory[region.memory]
            .clashes(&touch)
            .find(|past| world.streams[past.stream].done < past.position);
        if let Some(past) = pending {
            world.violation(format!("the host holds {touch:?} while {past:?} is pending"));
        }
        let met = world.memory[region.memory]
            .host
            .iter()
            .any(|c| c.1 < end && start < c.2 && c.3.clashes(touch.how));
        if met {
            world.violation(format!("two claims of the host on {touch:?}"));
        }
        world.memory[region.memory].host.push((id, start, end, touch.how));
        drop(world);
        if self.chance(95) {
            self.claims.borrow_mut().push((region, claim, id));
        }
        // Else forgotten: it refuses for ever.
    }

    pub(super) fn release(&self) {
        let claim = self.take_one(&self.claims);
        if let Some((region, claim, id)) = claim {
            self.world().memory[region.memory].host.retain(|claim| claim.0 != id);
            self.tracker.host_release(&region.region, claim);
        }
    }

    pub(super) fn export(&self) {
        if self.profile.strict {
            return;
        }
        let Some(region) = self.a_region() else { return };
        let shared = self.chance(50);
        // Set before: others may run in the driver calls that follow the refusal's start.
        let before = self.world().memory[region.memory].exported.replace(shared);
        match self.tracker.export(&region.region, shared) {
            Ok(stamps) => {
                self.stamps.borrow_mut().extend(stamps);
                self.exports.borrow_mut().push((region, shared));
            }
            Err(_) => self.world().memory[region.memory].exported = before,
        }
    }

    /// Foreign code uses an exported region on a borrowed stream, and gives it back.
    pub(super) fn take_back(&self) {
        let export = self.take_one(&self.exports);
        let Some((region, shared)) = export else { return };
        let stream = self.a_stream().filter(|stream| {
            let world = self.world();
            let s = &world.streams[stream.sim];
            stream.stream.kind() == StreamKind::Borrowed && !s.foreign_capture && !s.dead
        });
        self.world().trace(|| format!("take back {} shared {shared}", region.memory));
        let mut known = false;
        if let Some(stream) = &stream {
            known = self.foreign_use(stream, &region, shared);
        }
        let consumer = stream.as_ref().filter(|_| known).map(|stream| &stream.stream);
        if self.tracker.return_export(&region.region, consumer).is_err() || consumer.is_none() {
            self.unknown.set(true);
        }
        self.world().memory[region.memory].exported = None;
    }

    pub(super) fn foreign_use(&self, stream: &TestStream, region: &TestRegion, shared: bool) -> bool {
        for (_, _, stamp) in region.region.stamps() {
            if stamp.axis == stream.stream.axis() {
                continue;
            }
            match self.tracker.event_of(stamp) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    if self.tracker.backend().wait(&stream.sim, event.event()).is_err() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        let how = if shared { Use::Read } else { Use::Write };
        let touch = Touch { region: region.memory, start: 0, end: region.region.len(), how };
        self.world().foreign_work(stream.sim, &[touch]);
        true
    }

    /// The reclaimer looks at one entry.
    pub(super) fn reclaim(&self) {
        let entry = {
            let mut world = self.world();
            let count = world.reclaim.len();
            if count == 0 { None } else { Some(world.reclaim.swap_remove(self.below(count))) }
        };
        let Some((memory, stamps)) = entry else { return };
        let mut open = false;
        for &stamp in &stamps {
            match self.tracker.settle(stamp) {
                Settled::Complete => {}
                Settled::Pending(event) => {
                    open |= !matches!(self.tracker.query(&event), Ok(true));
                }
                Settled::Unsealed => open = true,
                Settled::Failed => {
                    self.world().quarantined.push((memory, Quarantine::FailedAxis));
                    return;
                }
            }
        }
        if open {
            self.world().reclaim.push((memory, stamps));
        } else {
            self.world().free_on_host(memory);
        }
    }
}
