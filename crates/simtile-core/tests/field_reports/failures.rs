//! Area H: losses, failures, memory that runs out.

use super::*;

#[test]
fn fr_h1_h2_h10_a_lost_context_makes_no_calls_and_no_panics() {
    let sim = sim(2);
    let (context, other) = (context(&sim, 0), context(&sim, 1));
    let stream = context.new_stream().unwrap();
    let buffers: Vec<_> = (0..100).map(|_| DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap()).collect();
    let event = stream.record_event().unwrap();
    sim.lose_at(None, 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let first = stream.synchronize().unwrap_err();
    assert!(
        first.driver_error().is_some_and(|e| e.code() == CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        "{first:?}"
    );
    let before = sim.counts();
    for buffer in &buffers {
        assert!(matches!(buffer.to_vec(&stream), Err(MemoryError::ContextLost { .. })));
    }
    drop(buffers);
    drop((event, stream));
    let calls = sim.counts().since(&before);
    assert_eq!(calls.total(), 0, "{calls:?}");
    assert!(context.loss().is_some());
    drop((context, other));
}

#[test]
fn fr_h8_a_call_that_fails_is_told() {
    // Every call of a small program failed once: it sees an error, or the failure is kept where drops leave theirs.
    let program = |sim: &Simulator| -> Result<bool, simtile_core::Error> {
        let context = simtile_core::Context::new(sim.driver(), 0)?;
        let (a, b) = (context.new_stream()?, context.new_stream()?);
        let pool = MemPool::builder(&context).build()?;
        let mut x = pool.from_slice(&a, &[1u32; 100])?;
        x.fill(&b, 2)?;
        let right = x.to_vec(&a)? == [2; 100];
        drop((x, pool, a, b));
        simtile_core::drain_background(SOON);
        let kept = context.take_errors();
        Ok(right && kept.is_empty())
    };
    let clean = sim(1);
    assert!(program(&clean).unwrap());
    let total = clean.counts().total();
    let mut told = 0;
    for nth in 1..=total {
        let sim = sim(1);
        sim.fail_any(nth, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        match program(&sim) {
            Err(_) => told += 1,
            Ok(false) => told += 1,
            // A question whose answer made no difference.
            Ok(true) => {}
        }
        simtile_core::drain_background(SOON);
    }
    assert!(told * 2 > total, "{told} of {total} failures were told");
}

#[test]
fn fr_h9_a_free_that_reports_something_else_is_told_apart() {
    let (sim, context, a, _b) = checked();
    let buffer = DeviceBuffer::<u32>::zeroed(&a, 10).unwrap().with_label("kept");
    sim.fail(Entry::cuMemFreeAsync, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    drop(buffer);
    assert!(simtile_core::drain_background(SOON));
    let errors = context.take_errors();
    assert!(errors.iter().any(|error| error.during.contains("kept")), "{errors:?}");
    assert_eq!(context.stats().failed_frees, 1);
    // Nobody else hears of it.
    assert_eq!(DeviceBuffer::from_slice(&a, &[1u32]).unwrap().to_vec(&a).unwrap(), [1]);
}

#[test]
fn fr_h11_memory_that_runs_out_leaves_nothing_behind() {
    for failing in 1..=5u64 {
        let (sim, context, a, _b) = checked();
        context.set_oom_wait(Duration::ZERO);
        let made = |context: &Arc<Context>| -> Result<Vec<DeviceBuffer<u32>>, MemoryError> {
            let _ = context;
            (0..5).map(|i| DeviceBuffer::from_slice(&a, &[i; 100])).collect()
        };
        // Each failure counts once for the attempt and once for the one after giving back.
        for nth in [failing, failing, failing] {
            sim.fail(Entry::cuMemAllocFromPoolAsync, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let first = made(&context);
        if let Err(error) = &first {
            assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error:?}");
            assert_eq!(context.stats().live_allocations, 0);
        }
        let again = made(&context).unwrap();
        assert_eq!(again[4].to_vec(&a).unwrap(), [4; 100]);
        clean(&sim);
    }
}

/// An attribute that could not be set is not taken for set, and belongs to one function of one context.
#[test]
fn fr_h4_an_attribute_that_failed_is_set_again() {
    let (sim, context, a, _) = checked();
    let function = |context: &Arc<Context>| {
        context.load_module_from_ptx_src(BASIC).unwrap().load_function("dynamic_shared").unwrap()
    };
    let kernel = function(&context);
    let set = |sim: &Simulator| sim.counts().of(Entry::cuFuncSetAttribute);
    let before = set(&sim);
    sim.fail(Entry::cuFuncSetAttribute, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(kernel.allow_dynamic_shared_memory(96 << 10).is_err());
    let mut out = DeviceBuffer::<u32>::zeroed(&a, 256).unwrap();
    let mut run = |bytes: u32| {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: bytes };
        let args = LaunchArgs::new().buffer_mut(&mut out).arg(bytes);
        // SAFETY: the kernel writes a word of its buffer.
        unsafe { a.launch(&kernel, config, args) }
    };
    run(1 << 10).unwrap();
    assert!(run(96 << 10).is_err(), "it was not allowed");
    kernel.allow_dynamic_shared_memory(96 << 10).unwrap();
    run(96 << 10).unwrap();
    assert_eq!(set(&sim) - before, 2);
    let other = common::context(&sim, 1);
    function(&other).allow_dynamic_shared_memory(96 << 10).unwrap();
    assert_eq!(set(&sim) - before, 3);
    a.synchronize().unwrap();
    clean(&sim);
}

/// One of everything, as a static or a thread keeps it.
struct Everything {
    _buffer: DeviceBuffer<u32>,
    _event: simtile_core::Event,
    _pinned: PinnedHostBuffer<u32>,
    stream: Arc<Stream>,
    context: Arc<Context>,
}

impl Everything {
    fn new(context: Arc<Context>, stream: Arc<Stream>) -> Self {
        let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 16]).unwrap();
        let (event, pinned) =
            (stream.record_event().unwrap(), PinnedHostBuffer::zeroed(&context, 16).unwrap());
        Self { _buffer: buffer, _event: event, _pinned: pinned, stream, context }
    }
}

thread_local! {
    static OF_THREAD: std::cell::RefCell<Option<Everything>> = const { std::cell::RefCell::new(None) };
}

/// Runs this test alone in a process of its own, in one of its ways to end. Its exit code and what it wrote to stderr.
fn ended(test: &str, way: &str) -> (Option<i32>, String) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env("SIMTILE_TEST_END", way).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Objects in statics, in thread-locals, on a thread that goes on, and an exit in the middle of work: no panic, no abort, the right code.
#[test]
fn fr_h5_a_process_ends_with_objects_in_statics_and_threads() {
    static KEPT: std::sync::OnceLock<Everything> = std::sync::OnceLock::new();
    let make = || {
        // Kept for the process, as a real driver is.
        let driver = Simulator::builder().quiet().build().leak();
        let context = simtile_core::Device::new(driver, 0).unwrap().primary_context().unwrap();
        let stream = context.new_stream().unwrap();
        Everything::new(context, stream)
    };
    match std::env::var("SIMTILE_TEST_END").as_deref() {
        Ok("static") => drop(KEPT.get_or_init(make).context.stats()),
        Ok("thread-local") => OF_THREAD.with(|kept| *kept.borrow_mut() = Some(make())),
        Ok("detached") => {
            let (ready, started) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mine = make();
                ready.send(()).unwrap();
                loop {
                    match DeviceBuffer::<u32>::zeroed(&mine.stream, 100) {
                        Ok(_) => {}
                        // The process ends, and its driver before this thread.
                        Err(MemoryError::Deinitialized { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            started.recv().unwrap();
        }
        Ok("exit") => {
            let mine = KEPT.get_or_init(make);
            for _ in 0..50 {
                DeviceBuffer::<u32>::zeroed(&mine.stream, 1000).unwrap();
            }
            std::process::exit(0);
        }
        _ => {
            for way in ["static", "thread-local", "detached", "exit"] {
                for _ in 0..5 {
                    let name = "failures::fr_h5_a_process_ends_with_objects_in_statics_and_threads";
                    let (code, stderr) = ended(name, way);
                    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{way}");
                }
            }
        }
    }
}

/// The order of thread-locals does not matter: a thread that ends gives back what it had, whichever of its destructors comes first.
#[test]
fn fr_h6_threads_end_in_any_order_of_their_locals() {
    for (user_first, per_thread) in [(false, false), (false, true), (true, false), (true, true)] {
        let (sim, context, _, _) = checked();
        let worker = context.clone();
        std::thread::spawn(move || {
            if user_first {
                // The user's local is made before the runtime is used on this thread.
                OF_THREAD.with(|kept| assert!(kept.borrow().is_none()));
            }
            let stream =
                if per_thread { worker.per_thread_default_stream() } else { worker.new_stream().unwrap() };
            let everything = Everything::new(worker, stream);
            OF_THREAD.with(|kept| *kept.borrow_mut() = Some(everything));
        })
        .join()
        .unwrap();
        assert!(context.drain(SOON).is_complete());
        assert!(simtile_core::drain_background(SOON));
        let stats = context.stats();
        assert_eq!((stats.live_allocations, stats.failed_frees, stats.failed_destroys), (0, 0, 0));
        assert!(context.take_errors().is_empty());
        clean(&sim);
    }
}
