use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::HashSet;

const MI: u64 = 1 << 20;
const ARENA: (u64, u64) = (1 << 48, 1 << 32);

/// An order that the test sets: how far each stream has come, and who follows what.
#[derive(Default)]
struct Clock {
    done: RefCell<HashMap<u64, u64>>,
    follows: RefCell<HashSet<(u64, u64)>>,
}

impl Order for Clock {
    fn finished(&self, point: Point) -> bool {
        self.done.borrow().get(&point.stream).is_some_and(|done| *done >= point.position)
    }
    fn follows(&self, stream: u64, point: Point) -> bool {
        self.follows.borrow().contains(&(stream, point.stream))
    }
}

fn pool(most: u64, memory: u64) -> (Pool, Arc<Budget>) {
    let budget = Budget::new(memory);
    (Pool::new(16, 0, ARENA, most, &budget, true).unwrap(), budget)
}

fn at(stream: u64, position: u64) -> Option<Point> {
    Some(Point { stream, position })
}

#[test]
fn reserved_and_used_are_counted_as_the_real_driver_counts() {
    let (pool, budget) = pool(64 * MI, 1 << 32);
    let clock = Clock::default();
    let stats = || {
        let s = pool.stats();
        (s.reserved / MI, s.reserved_high / MI, s.used, s.used_high)
    };
    let a = pool.allocate(1000, 1, &clock).unwrap().base;
    assert_eq!(stats(), (32, 32, 1000, 1000));
    let b = pool.allocate(40 * MI, 1, &clock).unwrap().base;
    let both = 40 * MI + 1000;
    assert_eq!(stats(), (64, 64, both, both));
    assert_eq!(pool.allocate(40 * MI, 1, &clock), Err(PoolError::Full));
    pool.free(b, at(1, 5)).unwrap();
    assert_eq!(pool.free(b, at(1, 5)), Err(PoolError::NotOurs), "twice");
    assert_eq!(stats(), (64, 64, 1000, both));
    assert_eq!(pool.allocate(40 * MI, 1, &clock), Ok(Grant { base: b, wait: None }), "same stream");
    pool.free(b, at(1, 6)).unwrap();
    pool.synchronised(&clock);
    assert_eq!(stats(), (64, 64, 1000, both), "the free has not run");
    clock.done.borrow_mut().insert(1, 6);
    pool.set_threshold(u64::MAX);
    pool.synchronised(&clock);
    assert_eq!(stats(), (64, 64, 1000, both), "under the threshold");
    pool.trim(0, &clock);
    assert_eq!(stats(), (32, 64, 1000, both));
    pool.reset_high(true);
    pool.reset_high(false);
    assert_eq!(stats(), (32, 32, 1000, 1000));
    pool.free(a, at(1, 6)).unwrap();
    pool.set_threshold(0);
    pool.synchronised(&clock);
    assert_eq!((stats(), budget.used()), ((0, 32, 0, 1000), 0));
    assert!(pool.is_idle() && pool.is_settled(&clock));
}

#[test]
fn other_streams_reuse_by_events_by_luck_or_by_waiting() {
    let (pool, _) = pool(32 * MI, 1 << 32);
    let clock = Clock::default();
    let bytes = 20 * MI;
    let a = pool.allocate(bytes, 1, &clock).unwrap().base;
    pool.free(a, at(1, 3)).unwrap();
    // No order yet, and no more memory: an internal wait, unless that is off.
    pool.set_reuse(|reuse| reuse.internal = false);
    assert_eq!(pool.allocate(bytes, 2, &clock), Err(PoolError::Full));
    pool.set_reuse(|reuse| reuse.internal = true);
    let grant = pool.allocate(bytes, 2, &clock).unwrap();
    assert_eq!(grant, Grant { base: a, wait: at(1, 3) });
    pool.free(a, at(2, 9)).unwrap();
    // Ordered by an event.
    clock.follows.borrow_mut().insert((3, 2));
    assert_eq!(pool.allocate(bytes, 3, &clock), Ok(Grant { base: a, wait: None }));
    pool.free(a, at(3, 1)).unwrap();
    clock.follows.borrow_mut().insert((4, 3));
    pool.set_reuse(|reuse| (reuse.follow_events, reuse.internal) = (false, false));
    assert_eq!(pool.allocate(bytes, 4, &clock), Err(PoolError::Full));
    // Finished.
    clock.done.borrow_mut().insert(3, 1);
    assert_eq!(pool.allocate(bytes, 4, &clock), Ok(Grant { base: a, wait: None }));
    pool.free(a, None).unwrap();
    pool.set_reuse(|reuse| reuse.opportunistic = false);
    assert_eq!(pool.allocate(bytes, 5, &clock), Ok(Grant { base: a, wait: None }), "freed already");
}

#[test]
fn finished_memory_is_given_up_before_the_device_is_out_of_memory() {
    let (pool, budget) = pool(0, 96 * MI);
    let clock = Clock::default();
    let a = pool.allocate(30 * MI, 1, &clock).unwrap().base;
    let b = pool.allocate(30 * MI, 1, &clock).unwrap().base;
    pool.free(a, None).unwrap();
    // Does not fit into what is cached; together with it the device has room.
    let big = pool.allocate(60 * MI, 1, &clock).unwrap();
    assert_eq!((big.wait, budget.free()), (None, 0));
    assert_eq!(pool.allocate(10 * MI, 1, &clock), Err(PoolError::Short(Shortage::Device)));
    assert_eq!(pool.allocate(u64::MAX, 1, &clock), Err(PoolError::Short(Shortage::Device)));
    pool.free(b, None).unwrap();
    assert!(pool.allocate(10 * MI, 1, &clock).is_ok());
}

#[test]
fn trimming_keeps_what_it_is_told_to() {
    let (pool, _) = pool(0, 1 << 32);
    let clock = Clock::default();
    let a = pool.allocate(200 * MI, 1, &clock).unwrap().base;
    pool.free(a, None).unwrap();
    assert_eq!(pool.stats().reserved, 224 * MI);
    pool.trim(64 * MI, &clock);
    assert_eq!(pool.stats().reserved, 64 * MI);
    pool.trim(u64::MAX, &clock);
    assert_eq!(pool.stats().reserved, 64 * MI);
    assert_eq!(pool.allocate(60 * MI, 1, &clock).unwrap().base, a);
}

#[test]
fn without_reuse_no_address_comes_twice() {
    let budget = Budget::new(64 * MI);
    let pool = Pool::new(16, 0, ARENA, 0, &budget, false).unwrap();
    let clock = Clock::default();
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let base = pool.allocate(20 * MI, 1, &clock).unwrap().base;
        assert!(seen.insert(base));
        pool.free(base, None).unwrap();
    }
}

proptest! {
    /// No two allocations overlap or lose their gap; memory that another stream's work may still use is only handed
    /// out with an order; the counts add up; all memory comes back.
    #[test]
    fn nothing_is_handed_out_twice(
        steps in proptest::collection::vec((0u8..6, 0u64..3, 1u64..3_000_000, any::<prop::sample::Index>()), 1..120),
        internal in any::<bool>(), opportunistic in any::<bool>(),
    ) {
        let (pool, budget) = pool(0, 64 * MI);
        let clock = Clock::default();
        pool.set_reuse(|reuse| (reuse.internal, reuse.opportunistic) = (internal, opportunistic));
        let mut live: Vec<(u64, u64)> = Vec::new();
        // Ranges that were freed, with their points: who reuses them must be ordered after all that overlap.
        let mut freed: Vec<(u64, u64, Point)> = Vec::new();
        let mut position = 0;
        for (kind, stream, bytes, pick) in steps {
            position += 1;
            match kind {
                0..=2 => if let Ok(grant) = pool.allocate(bytes, stream, &clock) {
                    let (base, end) = (grant.base, grant.base + bytes);
                    prop_assert!(base % GRANULE == 0 && base >= ARENA.0);
                    for &(other, len) in &live {
                        prop_assert!(base >= (other + len).next_multiple_of(GRANULE) + GRANULE
                            || other >= end.next_multiple_of(GRANULE) + GRANULE);
                    }
                    for &(start, len, point) in &freed {
                        let overlaps = base < start + len && start < end;
                        let waited = grant.wait.is_some_and(|w| w.stream == point.stream && w.position >= point.position);
                        prop_assert!(!overlaps || point.stream == stream || clock.finished(point) || waited);
                    }
                    // From here on whoever frees it is ordered after this allocation, and so after those points.
                    freed = freed.into_iter().flat_map(|(start, len, point)| {
                        let before = (start, base.clamp(start, start + len) - start, point);
                        // With what was rounded up, the gap, and a rest too small to be cut off.
                        let rest = (end.next_multiple_of(GRANULE) + 3 * GRANULE).clamp(start, start + len);
                        [before, (rest, start + len - rest, point)]
                    }).filter(|(_, len, _)| *len > 0).collect();
                    prop_assert!(grant.wait.is_none() || internal);
                    live.push((base, bytes));
                },
                3 if !live.is_empty() => {
                    let (base, bytes) = live.swap_remove(pick.index(live.len()));
                    pool.free(base, at(stream, position)).unwrap();
                    freed.push((base, bytes, Point { stream, position }));
                }
                4 => { clock.done.borrow_mut().insert(stream, position); }
                _ => pool.synchronised(&clock),
            }
            let stats = pool.stats();
            prop_assert_eq!(stats.used, live.iter().map(|(_, len)| len).sum::<u64>());
            prop_assert!(stats.reserved >= stats.used && stats.reserved == budget.used());
            prop_assert!(stats.reserved % RESERVE_STEP == 0);
        }
        for (base, _) in live {
            pool.free(base, None).unwrap();
        }
        for stream in 0..3 {
            clock.done.borrow_mut().insert(stream, u64::MAX);
        }
        pool.synchronised(&clock);
        prop_assert_eq!((pool.stats().reserved, budget.used()), (0, 0));
        pool.set_reuse(|reuse| reuse.opportunistic = true);
        prop_assert_eq!(pool.allocate(60 * MI, 0, &clock).unwrap().base, ARENA.0);
    }
}
