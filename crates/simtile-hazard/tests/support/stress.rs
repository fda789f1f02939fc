//! Threads on shared streams and regions, judged by the oracle.
//!
//! The mock is asked under its own lock, so the oracle sees the driver calls in one order; what happens between them is up to
//! the machine, or to the model's scheduler.

use super::lab::Lab;
use super::{Failed, Mock, Rng, Touch, Use};
use simtile_hazard::*;
use std::sync::{Arc, Mutex};

pub struct Shared {
    streams: Vec<(Stream<Mock>, usize)>,
    regions: Mutex<Vec<Arc<(Region, usize)>>>,
}

/// Some streams and regions.
pub fn shared(lab: &Lab, streams: usize, regions: usize) -> Shared {
    lab.world().strict = false;
    let streams = (0..streams).map(|_| lab.stream()).map(|s| (s.stream, s.sim)).collect();
    let regions = (0..regions).map(|_| lab.region(64)).map(|r| Arc::new((r.region, r.memory))).collect();
    Shared { streams, regions: Mutex::new(regions) }
}

/// What one thread does.
pub fn run(lab: &Lab, shared: &Shared, seed: u64, steps: usize) {
    let mut rng = Rng(seed);
    let mut stamps = Vec::new();
    for _ in 0..steps {
        match rng.below(20) {
            0..=12 => submit(lab, shared, &mut rng, &mut stamps),
            13..=14 => {
                lab.world().advance(rng.below(shared.streams.len()));
            }
            15..=16 => {
                if let Some(stamp) = stamps.pop()
                    && let Settled::Pending(event) = lab.tracker.settle(stamp)
                {
                    let _ = lab.tracker.query(&event);
                }
            }
            17 => drop_one(lab, shared, &mut rng),
            18 => {
                let fresh = lab.region(64);
                shared.regions.lock().expect("lock").push(Arc::new((fresh.region, fresh.memory)));
            }
            _ => {
                let region = pick(shared, &mut rng);
                if let Some(region) = region
                    && let Ok(claim) = lab.tracker.try_host(&Access::whole(&region.0, Mode::Read))
                {
                    let world = lab.world();
                    let touch = Touch { region: region.1, start: 0, end: 64, how: Use::Read };
                    let pending = world.memory[region.1]
                        .clashes(&touch)
                        .find(|p| world.streams[p.stream].done < p.position);
                    drop(world);
                    if let Some(past) = pending {
                        lab.world().violation(format!("the host reads while {past:?} is pending"));
                    }
                    lab.tracker.host_release(&region.0, claim);
                }
            }
        }
    }
}

fn pick(shared: &Shared, rng: &mut Rng) -> Option<Arc<(Region, usize)>> {
    let regions = shared.regions.lock().expect("lock");
    if regions.is_empty() { None } else { Some(Arc::clone(&regions[rng.below(regions.len())])) }
}

fn submit(lab: &Lab, shared: &Shared, rng: &mut Rng, stamps: &mut Vec<Stamp>) {
    let mut list: Vec<Arc<(Region, usize)>> = Vec::new();
    for _ in 0..1 + rng.below(3) {
        if let Some(region) = pick(shared, rng)
            && list.iter().all(|other| !Arc::ptr_eq(other, &region))
        {
            list.push(region);
        }
    }
    let four = Mode::Accumulate { size: 4, scope: Scope::Device };
    let eight = Mode::Accumulate { size: 8, scope: Scope::Device };
    let modes: Vec<Mode> =
        list.iter().map(|_| [Mode::Read, Mode::Read, Mode::Write, four, eight][rng.below(5)]).collect();
    let halves: Vec<(u64, u64)> = list.iter().map(|_| [(0, 64), (0, 32), (32, 64)][rng.below(3)]).collect();
    let accesses: Vec<_> = list
        .iter()
        .zip(modes.iter().zip(&halves))
        .map(|(region, (mode, half))| Access::new(&region.0, half.0, half.1, *mode))
        .collect();
    let touches: Vec<_> = accesses
        .iter()
        .zip(&list)
        .map(|(a, region)| Touch {
            region: region.1,
            start: a.start,
            end: a.end,
            how: Use::of(a.mode, a.start, 0),
        })
        .collect();
    let stream = &shared.streams[rng.below(shared.streams.len())];
    let options = Options { seal: rng.chance(10), ..Options::default() };
    let done = lab.tracker.submit(&stream.0, &accesses, &options, |sim| {
        lab.world().enqueue(*sim, &touches, None, false);
        Ok::<(), Failed>(())
    });
    match done {
        Ok(done) => stamps.push(done.stamp),
        // A host claim of another thread is the only thing that may stand in the way.
        Err(SubmitError::Conflict(conflict)) if conflict.host() => {}
        Err(error) => lab.world().violation(format!("refused: {error}")),
    }
}

fn drop_one(lab: &Lab, shared: &Shared, rng: &mut Rng) {
    let region = {
        let mut regions = shared.regions.lock().expect("lock");
        let at = rng.below(regions.len().max(1));
        if regions.len() < 3 { None } else { Some(regions.swap_remove(at)) }
    };
    if let Some(region) = region {
        match Arc::try_unwrap(region) {
            Ok((region, memory)) => {
                lab.tracker.retire(region, memory);
            }
            Err(region) => shared.regions.lock().expect("lock").push(region),
        }
    }
}

/// Everything is freed, closed, and without a violation.
pub fn finish(lab: &Lab, shared: Shared) {
    for region in shared.regions.into_inner().expect("lock") {
        let (region, memory) = Arc::into_inner(region).expect("all threads have ended");
        lab.tracker.retire(region, memory);
    }
    lab.run();
    let left = std::mem::take(&mut lab.world().reclaim);
    for (memory, stamps) in left {
        for stamp in stamps {
            lab.tracker.wait(stamp).expect("all work ends");
        }
        lab.world().free_on_host(memory);
    }
    drop(shared.streams);
    let count = lab.world().memory.iter().filter(|memory| !memory.freed).count();
    assert_eq!(count, 0, "all memory is freed");
    assert!(lab.world().streams.iter().all(|stream| stream.closed));
    lab.clean();
}
