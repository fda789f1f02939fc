//! M4: uniqueness is exact, whatever runs beside the question.

mod common;

use common::start;
use simtile_core::{DeviceBuffer, MemoryError, drain_background};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Asks so often whether a buffer is the only handle, while other threads submit work on it, retire memory, take pictures, and
/// while a view of the answer is known: every other round a lease is held.
fn checks(rounds: u32) {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    let stop = AtomicBool::new(false);
    let (mut wrong, work) = (0, AtomicU32::new(0));
    std::thread::scope(|scope| {
        // Submissions and retirements of others.
        for _ in 0..2 {
            scope.spawn(|| {
                let own = context.new_stream().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let mut short = DeviceBuffer::from_slice(&own, &[1u8; 16]).unwrap();
                    short.fill(&own, 2).unwrap();
                    drop(short);
                    work.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Whoever looks at what is alive holds it for a moment.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = context.snapshot();
                std::thread::yield_now();
            }
        });
        // At least so many answers, and until the others have submitted and retired a good deal meanwhile.
        let mut round = 0;
        while round < rounds || work.load(Ordering::Relaxed) < rounds / 200 {
            round += 1;
            // Work on the buffer itself is in flight at any time, and does not count.
            if round % 256 == 0 {
                buffer.fill(&stream, round).unwrap();
            }
            if round % 2 == 0 {
                wrong += u32::from(!buffer.is_unique());
            } else {
                let lease = buffer.lease();
                wrong += u32::from(buffer.is_unique());
                drop(lease);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "wrong answers");
    drop(buffer);
    assert!(
        context.drain(Duration::from_secs(20)).is_complete() && drain_background(Duration::from_secs(20))
    );
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// Tries so often to take an aliased buffer over, in every way there is, while the aliases themselves come and go in another thread.
fn attempts(rounds: u32) {
    let (_sim, _context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 8]).unwrap();
    let lease = buffer.lease();
    let (stop, work) = (AtomicBool::new(false), AtomicU32::new(0));
    let buffer = std::thread::scope(|scope| {
        let (held, stop, work, mut buffer) = (&lease, &stop, &work, buffer);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // One lease is always there.
                drop((held.clone(), held.clone()));
                work.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut round = 0;
        while round < rounds || work.load(Ordering::Relaxed) < rounds / 10 {
            round += 1;
            let not_unique =
                |error: &MemoryError| matches!(error, MemoryError::NotUnique { handles: 2.., .. });
            buffer = match round % 5 {
                0 => {
                    let refused = buffer.cast_elem::<f32>().unwrap_err();
                    assert!(not_unique(&refused.error), "{refused}");
                    refused.handle
                }
                1 => {
                    let refused = buffer.cast_chunks::<u8>().unwrap_err();
                    assert!(not_unique(&refused.error), "{refused}");
                    refused.handle
                }
                2 => {
                    let refused = buffer.into_raw().unwrap_err();
                    assert!(not_unique(&refused.error), "{refused}");
                    refused.handle
                }
                3 => {
                    let refused = buffer.wrap_elem::<core::num::Wrapping<u32>>().unwrap_err();
                    assert!(not_unique(&refused.error), "{refused}");
                    refused.handle
                }
                _ => {
                    assert!(!buffer.is_unique());
                    buffer
                }
            };
        }
        stop.store(true, Ordering::Relaxed);
        buffer
    });
    // Unharmed, and free as soon as the last alias is gone.
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 8]);
    drop(lease);
    assert_eq!(buffer.cast_elem::<f32>().unwrap().len(), 8);
}

#[test]
fn m4_no_answer_about_uniqueness_is_wrong() {
    checks(1_000_000);
}

#[test]
fn m3_m4_no_attempt_to_take_over_an_aliased_buffer_succeeds() {
    attempts(100_000);
}
