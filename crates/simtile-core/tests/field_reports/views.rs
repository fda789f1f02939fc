//! Area D: views, sizes, variables, foreign owners.

use super::*;

#[test]
fn fr_d5_d6_sizes_that_overflow_and_nothing_at_all() {
    let (sim, context, a, b) = checked();
    let before = sim.counts();
    assert!(matches!(DeviceBuffer::<u64>::zeroed(&a, usize::MAX / 2), Err(MemoryError::SizeOverflow { .. })));
    assert!(matches!(
        DeviceBuffer::<u64>::zeroed(&a, usize::MAX / 8 + 1),
        Err(MemoryError::SizeOverflow { .. })
    ));
    assert!(matches!(
        PinnedHostBuffer::<u64>::zeroed(&context, usize::MAX / 8 + 1),
        Err(MemoryError::SizeOverflow { .. })
    ));
    assert_eq!(sim.counts().since(&before).total(), 0);
    let kernel = saxpy(&context);
    for n in [0usize, 1] {
        let before = sim.counts();
        let x = DeviceBuffer::from_slice(&a, &vec![1.0f32; n]).unwrap();
        let mut y = DeviceBuffer::<f32>::zeroed(&b, n).unwrap();
        assert!(y.slice(0..0).unwrap().to_vec(&a).unwrap().is_empty());
        assert!(y.slice(n..n).unwrap().is_empty());
        y.copy_from(&b, &x).unwrap();
        y.copy_range_from(&a, n, &x, 0..0).unwrap();
        y.fill(&a, 2.0).unwrap();
        y.zero(&b).unwrap();
        launch(&a, &kernel, &x, &mut y).unwrap();
        assert_eq!(y.to_vec(&b).unwrap(), vec![1.0; n]);
        drop((x, y));
        let calls = sim.counts().since(&before);
        assert_eq!(calls.of(Entry::cuMemAllocFromPoolAsync), 2 * n as u64);
        assert_eq!(calls.of(Entry::cuLaunchKernel), n as u64);
    }
    clean(&sim);
}

#[test]
fn fr_d7_rows_of_one_buffer_do_not_wait_for_each_other() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 100]).unwrap();
    let mut rows = DeviceBuffer::<f32>::zeroed(&a, 200).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let (mut first, mut second) = rows.split_at_mut(100).unwrap();
    for (stream, row) in [(&a, &mut first), (&b, &mut second)] {
        let args = LaunchArgs::new().arg(100u32).arg(2.0f32).arg(&x).arg(row);
        // SAFETY: buffer and row have 100 elements.
        unsafe { stream.launch(&kernel, LaunchConfig::for_num_elems(100), args) }.unwrap();
    }
    b.synchronize().unwrap();
    assert!(!a.is_complete().unwrap());
    gate.open();
    assert_eq!(rows.to_vec(&b).unwrap(), [2.0; 200]);
    assert!(matches!(rows.slice(150..201), Err(MemoryError::OutOfRange { .. })));
    clean(&sim);
}

#[test]
fn fr_d10_a_variable_outlives_its_module_handle_and_checks_sizes() {
    let (_sim, context, a, b) = checked();
    let text = ".version 7.0 .target sm_70 .address_size 64\n.visible .const .u32 c = 1;\n.visible .entry k() { ret; }";
    let module = context.load_module_from_ptx_src(text).unwrap();
    let symbol = module.symbol("c").unwrap();
    drop(module);
    symbol.write(&a, 0, &[7u32]).unwrap();
    assert!(matches!(symbol.write(&a, 0, &[7u8; 5]), Err(MemoryError::OutOfRange { end: 5, len: 4, .. })));
    assert_eq!(symbol.read::<u32>(&b, 0, 1).unwrap(), [7]);
    assert_eq!(context.stats().retained_modules, 0);
}

#[test]
fn fr_d9_a_foreign_owner_is_let_go_once_and_after_the_gate() {
    let (sim, context, a, _b) = checked();
    let driver = sim.driver();
    set_current(driver, context.cu_ctx());
    let mut address = 0;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuMemAlloc(&mut address, 1000)) }.unwrap();
    let released = Arc::new(AtomicUsize::new(0));
    let lent = Lent(context.clone(), address, 1000, Token(released.clone()));
    let mut buffer = DeviceBuffer::<f32>::from_foreign(lent).unwrap();
    assert_eq!(buffer.len(), 250);
    // Ten rows of ten that lie 25 apart fit; 26 apart they do not.
    assert!(buffer.view().slice(0..9 * 25 + 10).is_ok());
    assert!(matches!(buffer.view().slice(0..9 * 27 + 10), Err(MemoryError::OutOfRange { .. })));
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 1.0).unwrap();
    drop(buffer);
    std::thread::sleep(A_WHILE);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    gate.open();
    until(|| released.load(Ordering::SeqCst) == 1);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(released.load(Ordering::SeqCst), 1);
    clean(&sim);
}

/// A kernel that says which block it is for takes no other; one that says how many threads it can have takes no more.
#[test]
fn fr_d8_a_kernel_gets_the_block_it_is_for() {
    let (sim, context, a, _) = checked();
    let module = context.load_module_from_ptx_src(BASIC).unwrap();
    let (exact, bounded) =
        (module.load_function("exactly_32_2").unwrap(), module.load_function("at_most_64").unwrap());
    assert_eq!(exact.required_block(), Some((32, 2, 1)));
    let run = |kernel: &Function, block| {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: the kernels touch nothing.
        unsafe { a.launch(kernel, config, LaunchArgs::new()) }
    };
    let before = sim.counts().of(Entry::cuLaunchKernel);
    for (kernel, block) in
        [(&exact, (8, 2, 1)), (&exact, (64, 1, 1)), (&bounded, (65, 1, 1)), (&bounded, (32, 4, 1))]
    {
        let error = run(kernel, block).unwrap_err();
        assert!(error.to_string().contains(kernel.name()), "{error}");
    }
    assert_eq!(sim.counts().of(Entry::cuLaunchKernel), before, "refused before the driver is asked");
    run(&exact, (32, 2, 1)).unwrap();
    run(&bounded, (64, 1, 1)).unwrap();
    a.synchronize().unwrap();
    clean(&sim);
}
