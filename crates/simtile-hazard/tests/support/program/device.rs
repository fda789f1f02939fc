//! Streams, what the device and foreign code do, faults, synchronisations.

use super::*;

impl Program {
    pub(super) fn add_stream(&self) {
        let kind = if self.profile.strict {
            StreamKind::Owned
        } else {
            match self.below(10) {
                0 => StreamKind::Borrowed,
                1 => StreamKind::PerThread(self.below(self.profile.threads as usize) as u64),
                2 => StreamKind::Legacy,
                _ => StreamKind::Owned,
            }
        };
        let device = if self.chance(80) { 0 } else { 1 };
        let thread = if let StreamKind::PerThread(thread) = kind { Some(thread) } else { None };
        let sim = {
            let mut world = self.world();
            if world.streams.len() >= crate::support::STREAMS {
                return;
            }
            world.add_stream(kind != StreamKind::Owned, thread, device)
        };
        let stream = self.tracker.stream(sim, kind, device).expect("few streams");
        self.streams.borrow_mut().push(Some(Rc::new(TestStream { stream, sim })));
    }

    pub(super) fn close_stream(&self) {
        let stream = {
            let mut streams = self.streams.borrow_mut();
            let at = self.below(streams.len());
            streams[at].take()
        };
        // Dropped outside the borrow; if an operation still uses it, it closes with that one's end.
        drop(stream);
    }

    pub(super) fn advance(&self) {
        let mut world = self.world();
        if self.chance(10) {
            world.run();
            return;
        }
        let count = world.streams.len();
        for _ in 0..1 + self.below(12) {
            let stream = self.below(count);
            world.advance(stream);
        }
    }

    pub(super) fn observe(&self) {
        if self.chance(50) {
            return self.observe_event();
        }
        let stamp = self.take_one(&self.stamps);
        if let Some(stamp) = stamp
            && let Settled::Pending(event) = self.tracker.settle(stamp)
        {
            let _ = self.tracker.query(&event);
        }
    }

    /// Somebody asks for the end of a stream.
    pub(super) fn mark(&self) {
        let Some(stream) = self.a_stream() else { return };
        let thread = self.world().thread;
        // Who interrupts another may find its locks taken, and does not wait for them.
        let waits = self.depth.get() == 0 && self.chance(30);
        let marked = match waits {
            true => self.tracker.mark(&stream.stream, thread),
            false => self.tracker.try_mark(&stream.stream, thread),
        };
        let Ok(event) = marked else { return };
        self.stamps.borrow_mut().push(event.stamp());
        if self.chance(50) {
            self.events.borrow_mut().push(event);
        } else {
            let _ = self.tracker.query(&event);
        }
    }

    pub(super) fn observe_event(&self) {
        let event = self.take_one(&self.events);
        if let Some(event) = event {
            let _ = self.tracker.query(&event);
        }
    }

    pub(super) fn faulty(&self) -> bool {
        self.profile.faults || self.world().streams.iter().any(|stream| stream.dead)
    }

    /// The owner of a borrowed stream does something behind our back.
    pub(super) fn foreign(&self) {
        let Some(stream) = self.a_stream() else { return };
        if stream.stream.kind() != StreamKind::Borrowed {
            return;
        }
        let mut world = self.world();
        if self.chance(40) && self.depth.get() == 0 {
            let s = &mut world.streams[stream.sim];
            s.foreign_capture = !s.foreign_capture;
        } else if !world.streams[stream.sim].foreign_capture {
            world.foreign_work(stream.sim, &[]);
        }
    }

    pub(super) fn open_gate(&self) {
        let mut world = self.world();
        if let Some(gate) = world.gates.iter().position(|open| !open) {
            world.gates[gate] = true;
        }
    }

    pub(super) fn set_fault(&self) {
        if self.profile.faults {
            let fault = Fault { after: self.below(6) as u32, done_anyway: self.chance(50) };
            self.world().fault = Some(fault);
        }
    }

    pub(super) fn disaster(&self) {
        if !self.profile.faults || !self.chance(20) {
            return;
        }
        let Some(stream) = self.a_stream() else { return };
        if self.chance(50) {
            self.world().streams[stream.sim].dead = true;
        } else {
            self.tracker.fail(stream.stream.axis());
        }
    }

    pub(super) fn synchronize(&self) {
        if self.faulty() {
            return;
        }
        let mark = self.tracker.begin_synchronize_all();
        self.world().synchronize_all();
        self.tracker.end_synchronize_all(mark);
    }

    /// A synchronisation of everything begins; the program goes on.
    pub(super) fn begin_sync(&self) {
        if self.faulty() {
            return;
        }
        let before = self.world().queued();
        let mark = self.tracker.begin_synchronize_all();
        let after = self.world().queued();
        if before != after {
            // Others went on meanwhile: the oracle may think that the tracker knows of more than it does.
            self.inexact.set(true);
        }
        self.world().trace(|| format!("a synchronisation begins: {mark:?} {after:?}"));
        self.marks.borrow_mut().push((mark, after));
    }

    /// It ends: what was queued when it began is over, and both sides know.
    pub(super) fn end_sync(&self) {
        let mark = self.take_one(&self.marks);
        let Some((mark, queued)) = mark else { return };
        if self.faulty() {
            return;
        }
        self.world().synchronized(&queued);
        self.world().trace(|| format!("a synchronisation ends: {mark:?}"));
        self.tracker.end_synchronize_all(mark);
    }

    pub(super) fn drain(&self) {
        let tails = self.tracker.tails();
        self.stamps.borrow_mut().extend(tails);
    }
}
