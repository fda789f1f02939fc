//! Every interleaving of small models, up to the preemptions that each model names (`LOOM_MAX_PREEMPTIONS` changes that for all).
//!
//! Events are made ahead and the driver's part is not a place to switch (each is one step to the oracle): what is tried is the
//! protocol's own atomics and locks.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p simtile-hazard --test loom`

#![cfg(loom)]

mod support;

use loom::thread;
use simtile_hazard::*;
use std::sync::Arc;
use support::lab::{Lab, LabRegion, LabStream, read, write};

/// `preemptions`: what fits. One more multiplies the time by twenty.
fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 50_000;
    builder.check(body);
}

struct Set {
    lab: Lab,
    a: LabStream,
    b: LabStream,
    x: LabRegion,
}

fn set() -> Set {
    let lab = Lab::with(Config { event_reserve: 3, ..Config::default() });
    lab.world().strict = false;
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    Set { lab, a, b, x }
}

fn submit(set: &Set, stream: &LabStream, accesses: &[support::lab::A<'_>]) -> Stamp {
    let touches: Vec<_> = accesses
        .iter()
        .map(|a| support::Touch {
            region: a.0.memory,
            start: a.1,
            end: a.2,
            how: support::Use::of(a.3, a.1, 0),
        })
        .collect();
    let list: Vec<_> = accesses.iter().map(|a| Access::new(&a.0.region, a.1, a.2, a.3)).collect();
    set.lab
        .tracker
        .submit(&stream.stream, &list, &Options::default(), |sim| {
            set.lab.world().enqueue(*sim, &touches, None, false);
            Ok(())
        })
        .expect("submitted")
        .stamp
}

/// Guards: two launches that conflict, from two threads, and a third thread that reads.
#[test]
fn launch_launch_launch() {
    model(3, || {
        let set = Arc::new(set());
        let one = Arc::clone(&set);
        let two = Arc::clone(&set);
        let t1 = thread::spawn(move || submit(&one, &one.a, &[write(&one.x)]));
        let t2 = thread::spawn(move || submit(&two, &two.b, &[read(&two.x)]));
        submit(&set, &set.a, &[read(&set.x)]);
        t1.join().expect("no panic");
        t2.join().expect("no panic");
        set.lab.clean();
    });
}

/// Seals and requests: two threads wait for work on A while a third launches there.
#[test]
fn launch_seal_request() {
    model(2, || {
        let set = Arc::new(set());
        let stamp = submit(&set, &set.a, &[write(&set.x)]);
        let one = Arc::clone(&set);
        let two = Arc::clone(&set);
        let t1 = thread::spawn(move || submit(&one, &one.a, &[]));
        let t2 = thread::spawn(move || drop(two.lab.tracker.settle(stamp)));
        drop(set.lab.tracker.settle(stamp));
        t1.join().expect("no panic");
        t2.join().expect("no panic");
        // Nobody waits for a request that nobody serves.
        assert!(matches!(set.lab.tracker.settle(stamp), Settled::Pending(_)));
        set.lab.clean();
    });
}

/// A drop finds the stream held: it is freed by the holder or at once, and never lost.
#[test]
fn launch_drop_seal() {
    model(3, || {
        let set = Arc::new(set());
        let y = set.lab.region(64);
        submit(&set, &set.a, &[write(&y)]);
        let stamp = submit(&set, &set.a, &[write(&set.x)]);
        let one = Arc::clone(&set);
        let two = Arc::clone(&set);
        let t1 = thread::spawn(move || submit(&one, &one.a, &[read(&one.x)]));
        let t2 = thread::spawn(move || drop(two.lab.tracker.settle(stamp)));
        set.lab.tracker.retire(y.region, y.memory);
        t1.join().expect("no panic");
        t2.join().expect("no panic");
        assert_eq!(set.lab.world().freed, 1);
        assert!(matches!(set.lab.tracker.settle(stamp), Settled::Pending(_)));
        set.lab.clean();
    });
}

/// A stream closes while another follows its last work and a third waits for it.
#[test]
fn close_launch_seal() {
    model(2, || {
        let set = Arc::new(set());
        let c = set.lab.stream();
        let stamp = submit(&set, &c, &[write(&set.x)]);
        let sim = c.sim;
        let one = Arc::clone(&set);
        let two = Arc::clone(&set);
        let t1 = thread::spawn(move || drop(c.stream));
        let t2 = thread::spawn(move || submit(&two, &two.b, &[read(&two.x)]));
        drop(one.lab.tracker.settle(stamp));
        t1.join().expect("no panic");
        t2.join().expect("no panic");
        assert!(set.lab.world().streams[sim].closed);
        assert!(matches!(set.lab.tracker.settle(stamp), Settled::Pending(_)));
        set.lab.clean();
    });
}

/// A read that gives up if somebody is in its way.
fn try_read(set: &Set, stream: &LabStream) {
    let list = [Access::whole(&set.x.region, Mode::Read)];
    let touch = support::Touch { region: set.x.memory, start: 0, end: 64, how: support::Use::Read };
    let _ = set.lab.tracker.try_submit(&stream.stream, &list, &Options::default(), |sim| {
        set.lab.world().enqueue(*sim, &[touch], None, false);
        Ok(())
    });
}

/// The host claims while two launches are between their plans and their stamps.
#[test]
fn launch_host_launch() {
    model(3, || {
        let set = Arc::new(set());
        let one = Arc::clone(&set);
        let two = Arc::clone(&set);
        let t1 = thread::spawn(move || {
            if let Ok(claim) = one.lab.tracker.try_host(&Access::whole(&one.x.region, Mode::Write)) {
                let pending = one.lab.world().memory[one.x.memory].all().count();
                assert_eq!(pending, 0, "nothing was submitted yet");
                one.lab.tracker.host_release(&one.x.region, claim);
            }
        });
        let t2 = thread::spawn(move || try_read(&two, &two.b));
        try_read(&set, &set.a);
        t1.join().expect("no panic");
        t2.join().expect("no panic");
        set.lab.clean();
    });
}
