//! Many threads, streams and host functions at once, on many seeds: whoever makes work ready sees to it that somebody looks
//! at it, so that nothing stands still. In an exploration that would be a deadlock report, or at worst a hang, which a
//! watchdog in real time finds.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::explore::{Random, Strategy, explore};
use crate::{Mode, Simulator};
use simtile_driver::sys::*;
use simtile_sync::atomic::{AtomicU32, Ordering};
use simtile_sync::{Arc, Mutex, thread, time};
use std::ffi::c_void;
use std::sync::mpsc;
use std::time::Duration;

/// Seeds. `SIMTILE_SEEDS` says how many instead.
const SEEDS: u64 = 60;
/// How long one of them may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Host threads, streams of each, and calls of each.
const THREADS: usize = 3;
const STREAMS: usize = 4;
const STEPS: usize = 24;

/// What the threads share.
struct Crowd {
    rig: Rig,
    /// One for each thread and stream.
    streams: Vec<CUstream>,
    /// The last record on each stream.
    events: Mutex<Vec<Option<CUevent>>>,
    /// How many host functions have run.
    ran: AtomicU32,
    /// Device memory for memsets.
    memory: CUdeviceptr,
    /// Page-locked words: one that each thread writes for the waits of its own streams.
    words: *mut u32,
}

// SAFETY: the words are written and waited for by single stores and loads of the simulator and the program.
unsafe impl Send for Crowd {}
// SAFETY: as above.
unsafe impl Sync for Crowd {}

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: `say` passes a pointer to a counter that lives until the context is synchronised.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

/// A host function that takes its time, during which others go on.
unsafe extern "C" fn dawdle(data: *mut c_void) {
    time::sleep(Duration::from_micros(300));
    // SAFETY: as in `count`.
    unsafe { count(data) };
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let rig = Rig::with(Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::NONE));
        let streams = (0..THREADS * STREAMS)
            .map(|i| if i % 5 == 4 { rig.blocking_stream() } else { rig.stream() })
            .collect::<Vec<_>>();
        let mut words = std::ptr::null_mut();
        ok!(rig, cuMemHostAlloc(&mut words, 4 * THREADS, 0));
        let words = words.cast::<u32>();
        // SAFETY: so many words of our own.
        unsafe { words.write_bytes(0, THREADS) };
        let mut memory = 0;
        ok!(rig, cuMemAlloc(&mut memory, 256));
        let events = Mutex::new(vec![None; streams.len()]);
        Self { rig, streams, events, ran: AtomicU32::new(0), memory, words }
    }

    /// What a thread does; how many host functions it queued.
    fn run(&self, me: usize, choices: &mut Random) -> u32 {
        let (rig, mut queued) = (&self.rig, 0);
        ok!(rig, cuCtxSetCurrent(rig.context));
        let mut last = 0;
        for _ in 0..STEPS {
            let at = me * STREAMS + choices.below(STREAMS);
            let stream = self.streams[at];
            match choices.below(12) {
                0..=2 => {
                    let function = if choices.below(3) == 0 { dawdle } else { count };
                    let data = std::ptr::from_ref(&self.ran).cast_mut().cast();
                    ok!(rig, cuLaunchHostFunc(stream, Some(function), data));
                    queued += 1;
                }
                3 | 4 => ok!(rig, cuMemsetD8Async(self.memory + 8 * at as u64, 1, 8, stream)),
                5 => {
                    let event = rig.mark(stream);
                    self.events.lock()[at] = Some(event);
                }
                // Of another thread's stream: events were recorded before anybody waits for them, so no cycle is closed.
                6 | 7 => {
                    let event = self.events.lock()[choices.below(self.streams.len())];
                    if let Some(event) = event {
                        ok!(rig, cuStreamWaitEvent(stream, event, 0));
                    }
                }
                8 => {
                    let mut pointer = 0;
                    ok!(rig, cuMemAllocAsync(&mut pointer, 64, stream));
                    ok!(rig, cuMemFreeAsync(pointer, stream));
                }
                // One stream of each thread may sit in a wait-value, whose value comes with the next of these.
                9 => {
                    self.give(me, last);
                    last += 1;
                    let word = self.words.addr() as u64 + 4 * me as u64;
                    let at_least = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ.0;
                    ok!(rig, cuStreamWaitValue32(stream, word, last, at_least));
                }
                10 => time::sleep(Duration::from_micros(choices.below(400) as u64)),
                _ => {
                    self.give(me, last);
                    match choices.below(3) {
                        // Another thread's value may be long in coming; one's own streams may wait for it.
                        0 => drop(code!(rig, cuStreamQuery(stream))),
                        1 => thread::yield_now(),
                        _ => time::sleep(Duration::from_millis(1)),
                    }
                }
            }
        }
        self.give(me, last);
        queued
    }

    /// Writes the value that a stream of this thread may wait for.
    fn give(&self, me: usize, value: u32) {
        // SAFETY: one word a thread; in an exploration one thread runs at a time.
        unsafe { self.words.add(me).write_volatile(value) };
    }
}

/// Whether everything ran, and what the simulator reported.
fn program(seed: u64) -> (u32, u32, usize) {
    let crowd = Arc::new(Crowd::new(seed));
    let mut threads = Vec::new();
    for me in 0..THREADS {
        let crowd = crowd.clone();
        let body = move || {
            let mut choices = Random::new(seed.wrapping_mul(31).wrapping_add(me as u64));
            crowd.run(me, &mut choices)
        };
        threads.push(thread::spawn(&format!("crowd-{me}"), body).unwrap());
    }
    let queued = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let rig = &crowd.rig;
    ok!(rig, cuCtxSynchronize());
    (queued, crowd.ran.load(Ordering::SeqCst), rig.sim.take_reports().len())
}

#[test]
fn nothing_stands_still_in_a_crowd() {
    let seeds = std::env::var("SIMTILE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..seeds {
            let outcome = explore(seed, Strategy::of_seed(seed), || program(seed));
            let found = (outcome.deadlock, outcome.result.ok());
            if sender.send((seed, found)).is_err() {
                return;
            }
        }
    });
    for expected in 0..seeds {
        let (seed, (deadlock, result)) =
            receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("seed {expected} hangs"));
        assert_eq!(deadlock, None, "seed {seed}");
        let (queued, ran, reports) = result.unwrap_or_else(|| panic!("seed {seed} panics"));
        assert_eq!((queued, reports), (ran, 0), "seed {seed}: host functions queued and run, reports");
    }
}
