//! Issue 7, must 1: a launch future that is dropped after some polls, forgotten or aborted in a task, and its buffers dropped or reused at
//! once from another stream, on explored schedules: ordered, kept, and nothing left over when the work ends.
//!
//! `SIMTILE_DROP_SEEDS=5000` runs so many schedules; without it a share of them. `SIMTILE_DROP_FIRST=n` begins at another seed.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{download, fill, upload};
use simtile_core::{Context, DeviceBuffer, Function, Stream};
use simtile_sim::explore::{Strategy, explore};
use simtile_sim::{Checks, Mode, Simulator};
use simtile_sync::{Condvar, Mutex, thread};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const N: usize = 64;

/// A thread that waits for its waker, in turn with the others.
#[derive(Default)]
struct Parked {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.bell.notify_one();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = parked.woken.lock();
        while !std::mem::take(&mut *woken) {
            parked.bell.wait(&mut woken);
        }
    }
}

/// Digits of the seed choose what happens.
struct Choices(u64);

impl Choices {
    fn of(&mut self, n: u64) -> u64 {
        let chosen = self.0 % n;
        self.0 /= n;
        chosen
    }
}

struct Scene {
    sim: Simulator,
    context: Arc<Context>,
    own: Arc<Stream>,
    other: Arc<Stream>,
    kernel: Function,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let sim = Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::ALL).quiet().build();
        let context = Context::new(sim.driver(), 0).unwrap();
        let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let kernel = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
        Self { sim, context, own, other, kernel }
    }

    fn pair(&self) -> Pair {
        let x = DeviceBuffer::from_slice(&self.own, &[1.0f32; N]).unwrap();
        (x, DeviceBuffer::from_slice(&self.own, &[2.0f32; N]).unwrap())
    }

    /// What the buffers are used for as soon as nobody borrows them.
    fn afterwards(&self, choices: &mut Choices, (x, mut y): Pair) {
        match choices.of(4) {
            0 => drop((x, y)),
            1 => {
                drop(x);
                y.fill(&self.other, 9.0).unwrap();
                assert_eq!(y.to_vec(&self.other).unwrap(), [9.0; N], "the fill follows the launch");
            }
            2 => {
                // Whatever of the launch was submitted comes before.
                let before = saxpy(&self.kernel, 1.0, &x, &mut y).sync_on(&self.other);
                before.unwrap();
                let found = y.to_vec(&self.other).unwrap();
                assert!(found == [3.0; N] || found == [6.0; N], "{found:?}");
            }
            _ => {
                // Reused by another allocation, not by this handle.
                drop((x, y));
                for value in [5u32, 6] {
                    let buffer = DeviceBuffer::from_slice(&self.other, &[value; N]).unwrap();
                    assert_eq!(buffer.to_vec(&self.other).unwrap(), [value; N]);
                }
            }
        }
    }

    /// Nothing is left over.
    fn end(self) {
        assert!(self.context.drain(SOON).is_complete());
        let stats = self.context.stats();
        assert_eq!((stats.live_allocations, stats.quarantined, stats.failed_frees), (0, 0, 0));
        assert!(self.sim.reports().is_empty(), "{:?}", self.sim.reports());
    }
}

fn on_schedules(scenario: impl Fn(Scene, Choices)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SIMTILE_DROP_FIRST").unwrap_or(0);
    let seeds = number("SIMTILE_DROP_SEEDS").unwrap_or(40);
    for seed in first..first + seeds {
        let outcome =
            explore(seed, Strategy::of_seed(seed), || scenario(Scene::new(seed), Choices(seed / 4)));
        assert!(outcome.deadlock.is_none(), "seed {seed}: {}", outcome.deadlock.unwrap());
        if let Err(payload) = outcome.result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(payload);
        }
    }
}

#[test]
fn borrowed_launches_dropped_or_forgotten_after_some_polls() {
    on_schedules(|scene, mut choices| {
        let (x, mut y) = scene.pair();
        let mut future = saxpy(&scene.kernel, 3.0, &x, &mut y).on(&scene.own);
        let waker = Arc::default();
        for _ in 0..1 + choices.of(3) {
            if poll_once(&mut future, &waker).is_ready() {
                break;
            }
        }
        match choices.of(2) {
            0 => drop(future),
            _ => std::mem::forget(future),
        }
        scene.afterwards(&mut choices, (x, y));
        scene.end();
    });
}

#[test]
fn owned_launches_dropped_or_forgotten_after_some_polls() {
    on_schedules(|scene, mut choices| {
        let mut future = saxpy_owned(&scene.kernel, 3.0, scene.pair()).on(&scene.own);
        let waker = Arc::default();
        let mut done = None;
        for _ in 0..1 + choices.of(3) {
            if let Poll::Ready(pair) = poll_once(&mut future, &waker) {
                done = Some(pair.unwrap());
                break;
            }
        }
        let forgotten = choices.of(2) == 1 && done.is_none();
        if forgotten {
            std::mem::forget(future);
        } else {
            drop(future);
        }
        let pair = done.unwrap_or_else(|| scene.pair());
        scene.afterwards(&mut choices, pair);
        assert!(scene.context.drain(SOON).is_complete());
        // The values inside of a forgotten future are forgotten with it, and nothing else.
        assert_eq!(scene.context.stats().live_allocations, if forgotten { 2 } else { 0 });
        assert!(scene.sim.reports().is_empty(), "{:?}", scene.sim.reports());
    });
}

#[test]
fn launches_aborted_in_a_task() {
    on_schedules(|scene, mut choices| {
        let scene = Arc::new(scene);
        let (mine, polls) = (scene.clone(), choices.of(3));
        let (abort, registration) = futures::future::AbortHandle::new_pair();
        let back = Arc::new(Mutex::new(None));
        let slot = back.clone();
        let task = async move {
            let (x, mut y) = mine.pair();
            let kernel = mine.kernel.clone();
            saxpy(&kernel, 3.0, &x, &mut y).on(&mine.own).await.unwrap();
            // A second one behind it.
            saxpy(&kernel, 0.0, &x, &mut y).on(&mine.own).await.unwrap();
            *slot.lock() = Some((x, y));
        };
        let task = futures::future::Abortable::new(task, registration);
        let runner = thread::spawn("task", move || block_on(task).is_ok()).unwrap();
        for _ in 0..polls {
            thread::yield_now();
        }
        abort.abort();
        let finished = runner.join().unwrap();
        let pair = back.lock().take();
        assert_eq!(finished, pair.is_some());
        let pair = pair.unwrap_or_else(|| scene.pair());
        scene.other.synchronize().unwrap();
        scene.afterwards(&mut choices, pair);
        drop(back);
        Arc::into_inner(scene).unwrap().end();
    });
}

#[test]
fn chains_given_up_while_they_are_submitted() {
    on_schedules(|scene, mut choices| {
        let op = upload(vec![1u8; 100]).then(|b| fill(b, 2)).then(|b| fill(b, 3)).then(download);
        let mut future = Some(op.on(&scene.own));
        let waker = Arc::default();
        for _ in 0..choices.of(12) {
            let polled = future.as_mut().map(Pin::new).map(|mut f| poll_once(&mut f, &waker));
            if polled.is_some_and(|polled| polled.is_ready()) {
                break;
            }
            thread::yield_now();
        }
        drop(future.take());
        // A worker may still be making the buffer that nobody wants any more: time goes by when nobody can go on.
        simtile_sync::time::sleep(Duration::from_millis(50));
        scene.end();
    });
}
