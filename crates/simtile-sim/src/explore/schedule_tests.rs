use super::*;
use simtile_sync::atomic::{AtomicU32, Ordering};
use simtile_sync::{thread, time};

/// Three threads that count through a lock, wait for each other and sleep.
fn program() -> (u32, Vec<u32>) {
    let count = Arc::new(simtile_sync::Mutex::new((0, Vec::new())));
    let changed = Arc::new(simtile_sync::Condvar::new());
    let started = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|id| {
            let (count, changed, started) = (count.clone(), changed.clone(), started.clone());
            thread::spawn(&format!("t{id}"), move || {
                started.fetch_add(1, Ordering::Relaxed);
                for _ in 0..5 {
                    let mut guard = count.lock();
                    guard.0 += 1;
                    guard.1.push(id);
                    drop(guard);
                    changed.notify_all();
                }
                time::sleep(Duration::from_secs(u64::from(id)));
            })
            .unwrap()
        })
        .collect();
    let mut guard = count.lock();
    while guard.0 < 15 {
        changed.wait(&mut guard);
    }
    drop(guard);
    for thread in threads {
        thread.join().unwrap();
    }
    let guard = count.lock();
    (guard.0, guard.1.clone())
}

#[test]
fn the_same_seed_gives_the_same_trace_and_seeds_differ() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let run = || explore(seed, Strategy::of_seed(seed), program);
        let (a, b) = (run(), run());
        assert_eq!(a.deadlock, None);
        let (count, order) = a.result.unwrap();
        assert_eq!(count, 15);
        assert_eq!(a.trace.text(), b.trace.text(), "seed {seed}");
        assert!(a.trace.steps() > 20);
        orders.insert(order);
    }
    assert!(orders.len() > 20, "only {} different orders in 40 seeds", orders.len());
}

#[test]
fn time_is_virtual() {
    let real = std::time::Instant::now();
    let outcome = explore(1, Strategy::Interleaved, || {
        let before = time::now();
        time::sleep(Duration::from_secs(3600));
        time::now() - before
    });
    assert!(outcome.result.unwrap() >= Duration::from_secs(3600));
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_deadlock_is_reported_and_ends() {
    let outcome = explore(3, Strategy::Interleaved, || {
        let (lock, never) = (simtile_sync::Mutex::new(()), simtile_sync::Condvar::new());
        never.wait(&mut lock.lock());
    });
    assert!(outcome.result.is_err());
    assert_eq!(outcome.deadlock.as_deref(), Some("deadlock: nobody can go on; main waits"));
    assert!(outcome.trace.text().ends_with("schedule: deadlock: nobody can go on; main waits\n"));
}

#[test]
fn threads_outside_are_not_touched() {
    let outcome = explore(5, Strategy::Late, || {
        let outside = std::thread::spawn(|| {
            let lock = simtile_sync::Mutex::new(1);
            assert!(current().is_none());
            *lock.lock() + 1
        });
        outside.join().unwrap()
    });
    assert_eq!(outcome.result.unwrap(), 2);
}

/// The one that is woken gets its turn while the lock it waits with is still held.
#[test]
fn a_waker_that_gives_up_its_turn_with_the_lock_stops_nobody() {
    for seed in 0..40 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let shared =
                Arc::new((simtile_sync::Mutex::new(false), simtile_sync::Condvar::new(), AtomicU32::new(0)));
            let waker = {
                let shared = shared.clone();
                thread::spawn("waker", move || {
                    let other = simtile_sync::Mutex::new(());
                    let mut ready = shared.0.lock();
                    *ready = true;
                    shared.1.notify_all();
                    for _ in 0..4 {
                        drop(other.lock());
                        shared.2.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .unwrap()
            };
            let mut ready = shared.0.lock();
            while !*ready {
                shared.1.wait(&mut ready);
            }
            drop(ready);
            waker.join().unwrap();
            shared.2.load(Ordering::Relaxed)
        });
        assert_eq!(outcome.result.unwrap(), 4, "seed {seed}");
        assert_eq!(outcome.deadlock, None, "seed {seed}");
    }
}

/// Under the strategy `Late` a device worker gets no turn while a host thread can run. One that waits for a lock cannot.
#[test]
fn a_lock_that_a_starved_participant_holds_stops_nobody() {
    for seed in 0..40 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let shared = Arc::new((simtile_sync::Mutex::new(0), simtile_sync::RwLock::new(0)));
            let threads: Vec<_> = ["device-1", "host", "device-2"]
                .into_iter()
                .map(|name| {
                    let shared = shared.clone();
                    thread::spawn(name, move || {
                        for _ in 0..5 {
                            let mut both = (shared.0.lock(), shared.1.write());
                            thread::yield_now();
                            time::sleep(Duration::from_secs(1000));
                            *both.0 += 1;
                            *both.1 += 1;
                        }
                    })
                    .unwrap()
                })
                .collect();
            while *shared.1.read() < 15 {
                drop(shared.0.lock());
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            *shared.0.lock()
        });
        assert_eq!(outcome.deadlock, None, "seed {seed}");
        assert_eq!(outcome.result.unwrap(), 15, "seed {seed}");
    }
}

/// Two threads that take two locks in opposite orders: some seeds are a deadlock, none a hang.
#[test]
fn locks_in_a_circle_are_a_deadlock() {
    let run = |seed| {
        explore(seed, Strategy::Interleaved, || {
            let locks = Arc::new((simtile_sync::Mutex::new(()), simtile_sync::Mutex::new(())));
            let theirs = locks.clone();
            let other = thread::spawn("other", move || {
                let _b = theirs.1.lock();
                let _a = theirs.0.lock();
            })
            .unwrap();
            {
                let _a = locks.0.lock();
                let _b = locks.1.lock();
            }
            other.join().is_ok()
        })
    };
    let outcomes: Vec<_> = (0..200).map(run).take_while(|outcome| outcome.deadlock.is_none()).collect();
    assert!(outcomes.len() < 200, "no seed found it");
    let found = run(outcomes.len() as u64);
    let text = found.deadlock.unwrap();
    assert!(text.contains("main waits for a lock; other waits for a lock"), "{text}");
    // Whoever left first by a panic let the other one go on.
    assert!(!found.result.unwrap_or(false));
}

/// What a participant waits for in std keeps the turn from everybody; it ends as a report.
#[test]
fn blocking_outside_the_schedule_is_a_report() {
    let outcome = explore(2, Strategy::Interleaved, || {
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = thread::spawn("other", move || {
            time::sleep(Duration::from_secs(1));
            sender.send(7).unwrap();
        })
        .unwrap();
        let got = receiver.recv().unwrap();
        let _ = other.join();
        got
    });
    let text = outcome.deadlock.unwrap();
    assert!(text.starts_with("blocked outside the exploration: main has not come back"), "{text}");
    assert_eq!(outcome.result.unwrap(), 7, "once turns have ended the sender goes on");
}

/// A lock that a thread outside holds for a while is waited for; the trace does not show it.
#[test]
fn a_lock_held_outside_for_a_while_is_waited_for() {
    let outcome = explore(4, Strategy::Interleaved, || {
        let lock = Arc::new(simtile_sync::Mutex::new(0));
        let (theirs, (ready, go)) = (lock.clone(), std::sync::mpsc::channel());
        let outside = std::thread::spawn(move || {
            let mut guard = theirs.lock();
            ready.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            *guard = 5;
        });
        go.recv().unwrap();
        let got = *lock.lock();
        outside.join().unwrap();
        got
    });
    assert_eq!((outcome.result.unwrap(), outcome.deadlock), (5, None));
}

#[test]
fn those_that_are_left_go_on_to_their_end_before_explore_returns() {
    let ends = Arc::new(AtomicU32::new(0));
    for seed in 0..8 {
        let theirs = ends.clone();
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            thread::spawn("left", move || {
                time::sleep(Duration::from_secs(100));
                theirs.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        });
        assert_eq!(ends.load(Ordering::Relaxed), seed as u32 + 1);
        assert!(!outcome.trace.text().contains("left: ends"), "{}", outcome.trace);
    }
}

#[test]
fn a_trace_is_replayed_and_a_failure_shrinks() {
    // Fails if `t2` counts first and `t0` last.
    let fails = |order: &[u32]| order[0] == 2 && order.last() == Some(&0);
    let mut found = None;
    for seed in 0..500 {
        let outcome = explore(seed, Strategy::of_seed(seed), program);
        let again = replay(&outcome.trace.text().parse().unwrap(), program);
        assert_eq!(again.trace.text(), outcome.trace.text(), "seed {seed}");
        if fails(&outcome.result.unwrap().1) {
            found = Some(outcome.recording);
            break;
        }
    }
    let found = found.expect("one of the seeds fails");
    let small = super::super::shrink(&found, 500, |tried| fails(&replay(tried, program).result.unwrap().1));
    assert!(fails(&replay(&small, program).result.unwrap().1));
    assert!(small.switches() <= 6 && small.switches() < found.switches(), "{found} became {small}");
}

#[test]
fn whoever_asks_for_ever_is_a_report() {
    for seed in 0..4 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let lock = Arc::new(simtile_sync::Mutex::new(false));
            let theirs = lock.clone();
            let asks = thread::spawn("asks", move || {
                while !*theirs.lock() {
                    thread::yield_now();
                }
            });
            // It waits for the thread, which waits for a sign that nobody gives.
            asks.unwrap().join().is_err()
        });
        let text = outcome.deadlock.expect("an end");
        assert!(text.contains("ask again and again"), "seed {seed}: {text}");
    }
}

/// The flag of std is no point at which turns change, so the thread that would set it never has one.
#[test]
fn whoever_spins_for_ever_is_a_report_and_comes_back() {
    static FLAG: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let outcome = explore(1, Strategy::Early, || {
        let sets = thread::spawn("sets", || FLAG.store(true, Ordering::SeqCst));
        while !FLAG.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        sets.is_ok()
    });
    let text = outcome.deadlock.expect("an end");
    assert!(text.contains("main has not come back") && text.contains("it runs"), "{text}");
    assert!(outcome.result.unwrap());
}

/// Threads that come and go one after the other: a turn looks at those that are there.
#[test]
fn ended_participants_cost_nothing() {
    let outcome = explore(3, Strategy::Starving, || {
        for _ in 0..600 {
            thread::spawn("short", || ()).unwrap().join().unwrap();
        }
        with_current(|schedule, _| schedule.state.lock().live.len()).unwrap()
    });
    // The last one may still be on its way out.
    assert!(outcome.result.unwrap() <= 2);
    assert_eq!(outcome.deadlock, None);
}
