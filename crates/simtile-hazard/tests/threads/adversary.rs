//! An adversarial driver: it blocks every call that the real driver may block, for as long as it may.
//!
//! The real driver, as measured: a launch blocks on a full stream, and on any stream while the context is full; meanwhile
//! record, wait, free and questions on that stream block, and making an event blocks anywhere in the context. Loading a
//! module (and its like) waits for the pending work of all streams, and every launch blocks meanwhile. Queries of events
//! never block. Whatever may block is also slow here, so that threads meet in every call. A program that CUDA itself would run
//! must run: nothing here may wait for a stream that only the waiter could move.

use simtile_hazard::*;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Entries that a stream of this driver holds before a launch blocks.
const DEPTH: usize = 24;
/// Entries that all streams hold together before a launch blocks on any.
const CONTEXT_DEPTH: usize = 80;

#[derive(Default)]
struct Queues {
    /// Per stream: what is queued. `Some(n)`: a wait for position n of a stream.
    streams: Vec<Queue>,
    events: Vec<Option<(usize, u64)>>,
    gates: Vec<bool>,
    /// Launches that are blocked, and those that ever were.
    blocked: usize,
    ever_blocked: usize,
    launches: usize,
    /// A module is being loaded.
    loading: bool,
    ended: bool,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    queued: u64,
    done: u64,
    launches: usize,
    /// A launch is blocked on this stream.
    blocked: bool,
}

enum Item {
    Launch(Option<usize>),
    Record,
    Wait(usize, u64),
}

#[derive(Clone, Default)]
struct Adversary(Arc<(Mutex<Queues>, Condvar)>);

impl Adversary {
    /// Runs `step` under the lock once `ready` holds; blocks until then.
    fn when<R>(&self, ready: impl Fn(&Queues) -> bool, step: impl FnOnce(&mut Queues) -> R) -> R {
        std::thread::yield_now();
        let (lock, bell) = &*self.0;
        let mut queues = lock.lock().expect("lock");
        while !ready(&queues) {
            queues = bell.wait(queues).expect("lock");
        }
        let result = step(&mut queues);
        bell.notify_all();
        result
    }

    fn push(queues: &mut Queues, stream: usize, item: Item) -> u64 {
        let launches = usize::from(matches!(item, Item::Launch(_)));
        queues.launches += launches;
        let queue = &mut queues.streams[stream];
        queue.launches += launches;
        queue.items.push_back(item);
        queue.queued += 1;
        queue.queued
    }

    fn launch(&self, stream: usize, gate: Option<usize>) {
        let full = |queues: &Queues| {
            queues.loading || queues.streams[stream].launches >= DEPTH || queues.launches >= CONTEXT_DEPTH
        };
        let (lock, bell) = &*self.0;
        let mut queues = lock.lock().expect("lock");
        if full(&queues) {
            queues.ever_blocked += usize::from(!queues.loading);
            queues.streams[stream].blocked = true;
            queues.blocked += 1;
            // Some tests wait for this.
            bell.notify_all();
            while full(&queues) {
                queues = bell.wait(queues).expect("lock");
            }
            queues.blocked -= 1;
            queues.streams[stream].blocked = false;
        }
        Self::push(&mut queues, stream, Item::Launch(gate));
        bell.notify_all();
    }

    /// Loads a module: waits for all that is pending, and no launch goes through meanwhile.
    fn load_module(&self) {
        self.when(|queues| !queues.loading, |queues| queues.loading = true);
        let idle = |queues: &Queues| queues.streams.iter().all(|queue| queue.items.is_empty());
        self.when(idle, |queues| queues.loading = false);
    }

    /// The device: moves everything that can move until the test ends.
    fn device(&self) {
        let (lock, bell) = &*self.0;
        let mut queues = lock.lock().expect("lock");
        while !queues.ended {
            let mut moved = false;
            for at in 0..queues.streams.len() {
                let runs = match queues.streams[at].items.front() {
                    None => false,
                    Some(Item::Wait(other, position)) => queues.streams[*other].done >= *position,
                    Some(Item::Launch(Some(gate))) => queues.gates[*gate],
                    Some(_) => true,
                };
                if runs {
                    if let Some(Item::Launch(_)) = queues.streams[at].items.pop_front() {
                        queues.streams[at].launches -= 1;
                        queues.launches -= 1;
                    }
                    queues.streams[at].done += 1;
                    moved = true;
                }
            }
            if moved {
                bell.notify_all();
            }
            // Slow, so that queues fill.
            queues = bell.wait_timeout(queues, Duration::from_micros(20)).expect("lock").0;
        }
    }

    fn fired(queues: &Queues, event: usize) -> bool {
        queues.events[event].is_none_or(|(stream, position)| queues.streams[stream].done >= position)
    }
}

impl Backend for Adversary {
    type Stream = usize;
    type Event = usize;
    type Memory = usize;
    type Error = ();

    fn create_event(&self) -> Result<usize, ()> {
        self.when(
            |queues| queues.blocked == 0,
            |queues| {
                queues.events.push(None);
                Ok(queues.events.len() - 1)
            },
        )
    }
    fn is_capturing(&self, stream: &usize) -> Result<bool, ()> {
        self.when(|queues| !queues.streams[*stream].blocked, |_| Ok(false))
    }
    fn record(&self, stream: &usize, event: &usize) -> Result<(), ()> {
        self.when(
            |queues| !queues.streams[*stream].blocked,
            |queues| {
                let position = Self::push(queues, *stream, Item::Record);
                queues.events[*event] = Some((*stream, position));
                Ok(())
            },
        )
    }
    fn wait(&self, stream: &usize, event: &usize) -> Result<(), ()> {
        self.when(
            |queues| !queues.streams[*stream].blocked,
            |queues| {
                if let Some((other, position)) = queues.events[*event] {
                    Self::push(queues, *stream, Item::Wait(other, position));
                }
                Ok(())
            },
        )
    }
    fn query(&self, event: &usize) -> Result<bool, ()> {
        self.when(|_| true, |queues| Ok(Self::fired(queues, *event)))
    }
    fn wait_any(&self, events: &[EventRef<Self>]) -> Result<(), ()> {
        self.when(|queues| events.iter().any(|event| Self::fired(queues, *event.event())), |_| Ok(()))
    }
    fn free(&self, stream: &usize, _: usize) -> Result<(), usize> {
        self.when(|queues| !queues.streams[*stream].blocked, |_| Ok(()))
    }
    fn reclaim(&self, _: usize, _: SmallVec<[Stamp; 4]>) {}
    fn quarantine(&self, _: usize, _: Quarantine) {}
    fn closed(&self, _: usize) {}
}

fn set_up(config: Config, streams: usize) -> (Tracker<Adversary>, Adversary, Vec<Stream<Adversary>>) {
    let adversary = Adversary::default();
    let tracker = Tracker::new(adversary.clone(), config);
    let streams = (0..streams)
        .map(|at| {
            adversary.when(|_| true, |queues| queues.streams.push(Queue::default()));
            tracker.stream(at, StreamKind::Owned, 0).expect("few streams")
        })
        .collect();
    (tracker, adversary, streams)
}

/// Runs `program` against a device thread and fails if it does not end in time.
fn ends_in_time(name: &str, adversary: &Adversary, program: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let device = adversary.clone();
        scope.spawn(move || device.device());
        let (tell, told) = std::sync::mpsc::channel();
        let watch = adversary.clone();
        scope.spawn(move || {
            let ended = told.recv_timeout(Duration::from_secs(110)).is_ok();
            watch.when(|_| true, |queues| queues.ended = true);
            if !ended {
                // The threads of the program cannot be stopped.
                eprintln!("the program did not end");
                std::process::exit(101);
            }
        });
        program();
        tell.send(()).unwrap_or_else(|_| panic!("{name}: too late"));
    });
}

#[test]
fn permits_below_the_drivers_limit_never_block_a_call_under_a_guard() {
    let config = Config { stream_permits: 16, context_permits: 64, event_reserve: 2, ..Config::default() };
    let (tracker, adversary, streams) = set_up(config, 4);
    let regions: Vec<_> = (0..4).map(|_| tracker.region(64)).collect();
    ends_in_time("permits", &adversary, || {
        std::thread::scope(|scope| {
            for thread in 0..6usize {
                let (tracker, streams, regions, adversary) = (&tracker, &streams, &regions, &adversary);
                scope.spawn(move || {
                    for n in 0..120usize {
                        let stream = &streams[(thread + n) % 4];
                        let mode = if n % 3 == 0 { Mode::Write } else { Mode::Read };
                        let accesses = [
                            Access::whole(&regions[n % 4], mode),
                            Access::whole(&regions[(n + thread) % 4], Mode::Read),
                        ];
                        let list = if (n + thread) % 4 == n % 4 { &accesses[..1] } else { &accesses[..] };
                        tracker
                            .submit(stream, list, &Options::default(), |sim| {
                                adversary.launch(*sim, None);
                                Ok(())
                            })
                            .expect("submitted");
                    }
                });
            }
        });
    });
    assert!(tracker.stats().get(Rule::StreamFull) > 0, "the queues did fill");
    assert_eq!(adversary.when(|_| true, |queues| queues.ever_blocked), 0, "and yet no launch was blocked");
}

/// More streams than the context's queue has room for at the permits of each: the context's permits hold.
#[test]
fn a_full_context_blocks_no_launch_either() {
    let config = Config { stream_permits: 20, context_permits: 64, event_reserve: 2, ..Config::default() };
    let (tracker, adversary, streams) = set_up(config, 8);
    ends_in_time("context", &adversary, || {
        std::thread::scope(|scope| {
            for thread in 0..6usize {
                let (tracker, streams, adversary) = (&tracker, &streams, &adversary);
                scope.spawn(move || {
                    let region = tracker.region(64);
                    for n in 0..200usize {
                        let write = [Access::whole(&region, Mode::Write)];
                        let launch = |sim: &usize| {
                            adversary.launch(*sim, None);
                            Ok(())
                        };
                        let stream = &streams[(thread * 3 + n / 25) % 8];
                        tracker.submit(stream, &write, &Options::default(), launch).expect("submitted");
                    }
                    tracker.retire(region, 0);
                });
            }
        });
    });
    assert!(tracker.stats().get(Rule::ContextFull) > 0, "the context did fill");
    assert_eq!(adversary.when(|_| true, |queues| queues.ever_blocked), 0, "and yet no launch was blocked");
}

/// Somebody waits for a permit of a gated stream; everybody else goes on, also with what that submission will touch, and opens
/// the gate in the end.
#[test]
fn who_waits_for_a_permit_holds_nothing() {
    let config = Config { stream_permits: 16, context_permits: 64, event_reserve: 2, ..Config::default() };
    let (tracker, adversary, streams) = set_up(config, 2);
    let (x, y, z) = (tracker.region(64), tracker.region(64), tracker.region(64));
    adversary.when(|_| true, |queues| queues.gates.push(false));
    let outside = Options { outside: Outside::Waits, ..Options::default() };
    ends_in_time("gated", &adversary, || {
        let launch = |gate| {
            let adversary = adversary.clone();
            move |sim: &usize| {
                adversary.launch(*sim, gate);
                Ok(())
            }
        };
        tracker.submit(&streams[0], &[], &outside, launch(Some(0))).expect("the gate");
        for _ in 1..16 {
            tracker.submit(&streams[0], &[], &Options::default(), launch(None)).expect("behind the gate");
        }
        std::thread::scope(|scope| {
            let list = [Access::whole(&x, Mode::Write), Access::whole(&y, Mode::Write)];
            let waiting = scope.spawn({
                let (tracker, stream, launch) = (&tracker, &streams[0], launch(None));
                move || tracker.submit(stream, &list, &Options::default(), launch).map(|done| done.stamp)
            });
            while tracker.stats().get(Rule::StreamFull) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..10 {
                let list = [Access::whole(&x, Mode::Write), Access::whole(&z, Mode::Read)];
                tracker.submit(&streams[1], &list, &Options::default(), launch(None)).expect("X is free");
            }
            let claim = tracker.host(&Access::whole(&x, Mode::Write)).expect("so it is for the host");
            tracker.host_release(&x, claim);
            tracker.retire(z, 0);
            assert!(!tracker.tails().is_empty());
            let full = tracker.try_submit(&streams[0], &[], &Options::default(), launch(None));
            assert!(matches!(full, Err(SubmitError::Full { .. } | SubmitError::Busy(_))));
            adversary.when(|_| true, |queues| queues.gates[0] = true);
            let stamp = waiting.join().expect("no panic").expect("in the end");
            tracker.wait(stamp).expect("complete");
        });
    });
}

/// Everything at once: launches that meet, drops, the host, waits, and a module load that stalls the context again and again.
#[test]
fn nobody_stops_while_module_loads_stall_every_launch() {
    let config = Config { stream_permits: 16, context_permits: 64, event_reserve: 1, ..Config::default() };
    let (tracker, adversary, streams) = set_up(config, 3);
    let shared: Vec<_> = (0..3).map(|_| tracker.region(64)).collect();
    ends_in_time("loads", &adversary, || {
        std::thread::scope(|scope| {
            for thread in 0..5usize {
                let (tracker, streams, shared, adversary) = (&tracker, &streams, &shared, &adversary);
                scope.spawn(move || {
                    let launch = |sim: &usize| {
                        adversary.launch(*sim, None);
                        Ok(())
                    };
                    for n in 0..60usize {
                        let own = tracker.region(64);
                        let mode = if n % 3 == 0 { Mode::Write } else { Mode::Read };
                        let list = [Access::whole(&shared[n % 3], mode), Access::whole(&own, Mode::Write)];
                        let stream = &streams[(thread + n) % 3];
                        let options = Options { seal: n % 5 == 0, ..Options::default() };
                        let done = tracker.submit(stream, &list, &options, launch).expect("submitted");
                        match n % 6 {
                            0 => tracker.wait(done.stamp).expect("complete"),
                            1 => {
                                let claim = tracker.host(&Access::whole(&own, Mode::Read)).expect("own");
                                tracker.host_release(&own, claim);
                            }
                            2 => drop(tracker.tails()),
                            _ => {}
                        }
                        tracker.retire(own, 0);
                    }
                });
            }
            let adversary = &adversary;
            scope.spawn(move || (0..12).for_each(|_| adversary.load_module()));
        });
    });
    assert_eq!(adversary.when(|_| true, |queues| queues.ever_blocked), 0, "no launch but by the loads");
}

/// CUDA runs this: A waits for the host; B has work of its own, and work behind A. The host waits for B's own work and then
/// lets A go.
#[test]
fn the_host_may_wait_for_work_in_front_of_a_wait_for_the_outside() {
    let (tracker, adversary, streams) = set_up(Config::default(), 2);
    let (x, y) = (tracker.region(64), tracker.region(64));
    adversary.when(|_| true, |queues| queues.gates.push(false));
    ends_in_time("outside", &adversary, || {
        let outside = Options { outside: Outside::Waits, ..Options::default() };
        let launch = |gate| {
            let adversary = adversary.clone();
            move |sim: &usize| {
                adversary.launch(*sim, gate);
                Ok(())
            }
        };
        let write = |region| [Access::whole(region, Mode::Write)];
        tracker.submit(&streams[0], &write(&x), &outside, launch(Some(0))).expect("A");
        tracker.submit(&streams[1], &write(&y), &Options::default(), launch(None)).expect("B's own");
        tracker.submit(&streams[1], &write(&x), &Options::default(), launch(None)).expect("B behind A");
        let claim = tracker.host(&Access::whole(&y, Mode::Read)).expect("B's own work ends");
        tracker.host_release(&y, claim);
        adversary.when(|_| true, |queues| queues.gates[0] = true);
        let claim = tracker.host(&Access::whole(&x, Mode::Read)).expect("and the rest");
        tracker.host_release(&x, claim);
    });
}

/// Another stream's full queue is nobody else's business, and drops wait for nobody.
#[test]
fn drops_requests_and_other_streams_go_on_while_a_launch_is_blocked() {
    // A foreign library fills the driver's queue: the documented limit. Ours blocks under its guards, others do not.
    let (tracker, adversary, mut streams) = set_up(Config { event_reserve: 64, ..Config::default() }, 3);
    adversary.when(|_| true, |queues| queues.gates.push(false));
    adversary.launch(0, Some(0));
    (1..DEPTH).for_each(|_| adversary.launch(0, None));
    let (x, y, z) = (tracker.region(64), tracker.region(64), tracker.region(64));
    let extra = streams.pop();
    ends_in_time("foreign", &adversary, || {
        let launch = |sim: &usize| {
            adversary.launch(*sim, None);
            Ok(())
        };
        tracker
            .submit(&streams[1], &[Access::whole(&y, Mode::Write)], &Options::default(), launch)
            .expect("Y is used");
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| {
                tracker
                    .submit(&streams[0], &[Access::whole(&x, Mode::Write)], &Options::default(), launch)
                    .expect("in the end")
                    .stamp
            });
            adversary.when(|queues| queues.blocked > 0, |_| ());
            // Reads, queries, drops, seals and other streams.
            for _ in 0..20 {
                tracker
                    .submit(&streams[1], &[Access::whole(&z, Mode::Write)], &Options::default(), launch)
                    .expect("another stream");
            }
            let busy = tracker.try_submit(&streams[0], &[], &Options::default(), launch);
            assert!(matches!(busy, Err(SubmitError::Busy(Busy::Stream))));
            assert!(!tracker.tails().is_empty());
            tracker.retire(y, 0);
            drop(extra);
            adversary.when(|_| true, |queues| queues.gates[0] = true);
            let stamp = blocked.join().expect("no panic");
            tracker.wait(stamp).expect("complete");
        });
    });
}
