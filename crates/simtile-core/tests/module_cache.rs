//! L6: an image is loaded once, however many threads ask for it.

mod common;

use common::*;
use simtile_core::{Context, Error, JitOptions, ModuleCache, ModuleError};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// A kernel of its own for each number.
fn image(number: usize) -> Vec<u8> {
    format!(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k{number}()\n{{\n ret;\n}}\n")
        .into()
}

fn loads(sim: &Simulator) -> u64 {
    sim.counts().of(Entry::cuModuleLoadDataEx) + sim.counts().of(Entry::cuModuleLoadData)
}

#[test]
fn fr_l6_sixty_four_threads_load_eight_images_eight_times() {
    let (sim, context, _stream) = start();
    let (cache, before) = (ModuleCache::new(), loads(&sim));
    let barrier = Barrier::new(64);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (cache, context, barrier) = (&cache, &context, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let module = cache.load(context, &image(thread % 8)).unwrap();
                module.load_function(&format!("k{}", thread % 8)).unwrap();
            });
        }
    });
    assert_eq!((loads(&sim) - before, cache.len()), (8, 8));
    let again = cache.get(&context, &image(3), &JitOptions::new()).unwrap();
    assert!(Arc::ptr_eq(&again, &cache.load(&context, &image(3)).unwrap()));
    assert_eq!(loads(&sim) - before, 8);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn fr_l6_a_failure_is_everybodys_who_waited_and_the_next_call_tries_again() {
    let (sim, context, _stream) = start();
    let cache = ModuleCache::new();
    let image = image(1);
    let pause = sim.pause_at(Entry::cuModuleLoadDataEx, 1);
    sim.fail(Entry::cuModuleLoadDataEx, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let asking = AtomicUsize::new(0);
    let errors: Vec<Arc<Error>> = std::thread::scope(|scope| {
        let load = || {
            asking.fetch_add(1, Ordering::SeqCst);
            cache.load(&context, &image).map(drop).unwrap_err()
        };
        let first = scope.spawn(load);
        assert!(pause.wait_reached(Duration::from_secs(20)));
        let others: Vec<_> = (0..7).map(|_| scope.spawn(load)).collect();
        while asking.load(Ordering::SeqCst) < 8 {
            std::thread::yield_now();
        }
        // Long enough that they wait for it; one that came later would load by itself, and succeed.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(cache.len(), 1);
        assert!(cache.get(&context, &image, &JitOptions::new()).is_none());
        pause.release();
        std::iter::once(first).chain(others).map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(errors.len(), 8);
    for error in &errors {
        assert!(Arc::ptr_eq(error, &errors[0]));
        assert!(matches!(&**error, Error::Module(ModuleError::Load { .. })), "{error}");
    }
    assert!(cache.is_empty());
    cache.load(&context, &image).unwrap();
    assert_eq!(cache.len(), 1);
}

#[test]
fn contexts_and_options_have_modules_of_their_own() {
    let sim = Simulator::builder().devices(2).quiet().build();
    let (one, two) = (context(&sim, 0), context(&sim, 1));
    let other = Simulator::builder().quiet().build();
    let elsewhere = context(&other, 0);
    let cache = ModuleCache::new();
    let load = |context: &Arc<Context>| cache.load(context, &image(1)).unwrap();
    let (a, b, c) = (load(&one), load(&two), load(&elsewhere));
    assert!(a.context() == &one && b.context() == &two && c.context() == &elsewhere);
    let options = JitOptions::new().max_registers(32);
    let d = cache.load_with(&one, &image(1), &options).unwrap();
    assert!(!Arc::ptr_eq(&a, &d));
    assert!(cache.load(&one, b"no image").is_err());
    assert_eq!(cache.len(), 4);
    let unloads = || sim.counts().of(Entry::cuModuleUnload) + other.counts().of(Entry::cuModuleUnload);
    drop((b, c, d));
    assert!(simtile_core::drain_background(Duration::from_secs(10)));
    assert_eq!(unloads(), 0, "the cache has them");
    cache.clear();
    assert!(simtile_core::drain_background(Duration::from_secs(10)));
    assert_eq!(unloads(), 3, "somebody has one of them");
    assert!(a.load_function("k1").is_ok());
    drop((a, one, two, elsewhere));
}

#[test]
fn in_a_host_function_it_refuses_and_waits_for_nobody() {
    let (_sim, context, stream) = start();
    let cache = Arc::new(ModuleCache::new());
    let (tell, told) = std::sync::mpsc::channel();
    let (there, within) = (context.clone(), cache.clone());
    stream
        .launch_host_function(move || tell.send(within.load(&there, &image(1)).map(drop)).unwrap())
        .unwrap();
    let refused = told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
    assert!(matches!(&*refused, Error::Module(ModuleError::InHostFunction { .. })), "{refused}");
    assert!(cache.is_empty());
    stream.synchronize().unwrap();
}
