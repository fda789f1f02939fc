//! The list of entries, the table, errors and counting.

use simtile_driver::count::Counted;
use simtile_driver::sys::{CUresult, CUstream};
use simtile_driver::{Driver, DriverError, DriverKind, Entry, Severity, State, Table};
use std::sync::atomic::{AtomicU64, Ordering};

/// A driver that knows two entries and counts its own calls.
fn small_driver(calls: &'static AtomicU64) -> Driver {
    static TABLE: Table = Table {
        kind: DriverKind::Null,
        cuInit: |state, _| {
            // SAFETY: the table is only paired with an `AtomicU64` below.
            unsafe { state.get::<AtomicU64>() }.fetch_add(1, Ordering::Relaxed);
            CUresult::CUDA_SUCCESS
        },
        cuStreamQuery: |_, _| CUresult::CUDA_ERROR_NOT_READY,
        ..Table::MISSING
    };
    // SAFETY: the functions of the table take exactly this state.
    unsafe { Driver::from_parts(&TABLE, State::new(calls)) }
}

#[test]
fn entries_are_consistent() {
    const { assert!(Entry::COUNT > 250) };
    for (i, entry) in Entry::ALL.iter().enumerate() {
        assert_eq!(*entry as usize, i);
        assert!(entry.symbol().starts_with(entry.name()), "{}", entry.symbol());
        assert!(entry.name().starts_with(entry.base()) && !entry.base().contains("_v"), "{}", entry.base());
        assert!((2000..=13000).contains(&entry.since()), "{}", entry.name());
        assert!(entry.name().len() < 96, "fits the loader's buffer");
    }
    let mut names: Vec<_> = Entry::ALL.iter().map(|entry| entry.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Entry::COUNT, "no entry twice");
}

#[test]
fn a_call_goes_through_table_and_state() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let driver = small_driver(&CALLS);
    // SAFETY: plain integers only.
    unsafe {
        assert!(driver.cuInit(0).is_ok());
        assert_eq!(driver.cuStreamQuery(CUstream(7)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(driver.cuCtxSynchronize(), CUresult::SIMTILE_MISSING_ENTRY);
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn errors_name_the_call_the_code_and_what_to_do() {
    let error = DriverError::new(Entry::cuModuleLoadDataEx, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert_eq!(
        error.to_string(),
        "cuModuleLoadDataEx failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the PTX is newer than this \
         driver; use an older toolkit or a newer driver"
    );
    let unknown = DriverError::new(Entry::cuInit, CUresult(123_456));
    assert_eq!(unknown.to_string(), "cuInit failed: CUresult(123456) (123456)");
}

#[test]
fn severity_tells_calls_contexts_and_drivers_apart() {
    let severity = |code| DriverError::new(Entry::cuLaunchKernel, code).severity();
    assert_eq!(severity(CUresult::CUDA_ERROR_INVALID_VALUE), Severity::Call);
    assert_eq!(severity(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Severity::Call);
    assert_eq!(severity(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), Severity::Context);
    assert_eq!(severity(CUresult::CUDA_ERROR_ASSERT), Severity::Context);
    assert_eq!(severity(CUresult::CUDA_ERROR_DEINITIALIZED), Severity::Driver);
}

#[test]
fn counting_counts_each_thread_once_and_keeps_counts_of_ended_threads() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let below = small_driver(&CALLS);
    let counted = Counted::new(below);
    let driver = counted.driver();
    assert_eq!(driver.kind(), below.kind());
    assert_ne!(driver, below);
    let before = counted.counts();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    // SAFETY: plain integers only.
                    unsafe { assert!(driver.cuInit(0).is_ok()) };
                }
            });
        }
    });
    // SAFETY: plain integers only.
    unsafe { driver.cuStreamQuery(CUstream(1)) };
    let counts = counted.counts().since(&before);
    assert_eq!(counts.of(Entry::cuInit), 4000);
    assert_eq!(counts.of(Entry::cuStreamQuery), 1);
    assert_eq!(counts.total(), 4001);
    assert_eq!(counts.iter().count(), 2);
    assert_eq!(CALLS.load(Ordering::Relaxed), 4000);
}

#[test]
fn two_counted_drivers_on_one_thread_do_not_mix() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let (a, b) = (Counted::new(small_driver(&CALLS)), Counted::new(small_driver(&CALLS)));
    for _ in 0..10 {
        // SAFETY: plain integers only.
        unsafe {
            assert!(a.driver().cuInit(0).is_ok());
            assert!(b.driver().cuInit(0).is_ok());
            assert!(b.driver().cuInit(0).is_ok());
        }
    }
    assert_eq!((a.counts().total(), b.counts().total()), (10, 20));
}

#[test]
fn unknown_enum_values_are_kept() {
    assert_eq!(CUresult(999).name(), Some("CUDA_ERROR_UNKNOWN"));
    assert_eq!(CUresult(4242).name(), None);
    assert_eq!(format!("{:?}", CUresult(4242)), "CUresult(4242)");
}

/// An attribute of a launch lies where the driver looks: 72 bytes, the id first, the value at byte 8, the flag of a dependent launch at the
/// value's first byte.
#[test]
fn attributes_of_launches_lie_where_the_driver_looks() {
    use core::mem::{align_of, offset_of, size_of};
    use simtile_driver::sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue};
    assert_eq!((size_of::<CUlaunchAttribute>(), align_of::<CUlaunchAttribute>()), (72, 8));
    assert_eq!((offset_of!(CUlaunchAttribute, id), offset_of!(CUlaunchAttribute, value)), (0, 8));
    assert_eq!(size_of::<CUlaunchAttributeValue>(), 64);
    assert_eq!(offset_of!(CUlaunchAttributeValue, programmaticStreamSerializationAllowed), 0);
    assert_eq!(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.0, 6);
}
