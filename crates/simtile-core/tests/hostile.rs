//! What only a hostile caller does: nothing panics, nothing aborts, nothing takes for ever.

mod common;

use common::*;
use simtile_core::{Context, DeviceBuffer, Event, ModuleError, Stream, drain_background};
use simtile_sim::Simulator;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("dropped"));
        }
    }
}

#[test]
fn a_host_function_may_panic_with_a_payload_that_panics() {
    let (_sim, context, stream) = start();
    stream.launch_host_function(|| std::panic::resume_unwind(Box::new(Bomb))).unwrap();
    stream.synchronize().unwrap();
    let captured = Bomb;
    stream.launch_host_function(move || drop(captured)).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(context.stats().host_function_panics, 2);
}

#[test]
fn an_owner_that_panics_in_a_host_function_is_caught() {
    let (_sim, context, _stream) = start();
    // SAFETY: `context` outlives what is borrowed from it.
    let lent = unsafe { Context::borrow_with_owner(context.device(), context.cu_ctx(), Arc::new(Bomb)) };
    let lent = lent.unwrap();
    let stream = lent.new_stream().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    stream.launch_host_function(move || wait.recv().unwrap_or_default()).unwrap();
    drop((stream, lent));
    drop(go);
    context.synchronize_all().unwrap();
    assert!(drain_background(Duration::from_secs(10)));
    context.new_stream().unwrap().synchronize().unwrap();
}

#[test]
fn any_number_of_values_without_bytes_can_be_copied() {
    let (sim, _context, stream) = start();
    let before = sim.counts().total();
    let buffer = DeviceBuffer::<()>::zeroed(&stream, usize::MAX).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap().len(), usize::MAX);
    assert_eq!(buffer.range_to_vec(&stream, 5..usize::MAX).unwrap().len(), usize::MAX - 5);
    assert_eq!(sim.counts().total(), before);
}

#[test]
fn a_kernel_without_a_name_is_not_found() {
    let (_sim, context, _stream) = start();
    let module = context.load_module_from_ptx_src(SAXPY).unwrap();
    let error = module.load_function("").unwrap_err();
    assert!(matches!(&error, ModuleError::NotFound { known, .. } if known == &["saxpy"]), "{error}");
}

/// Works and is dropped while its thread's locals are being destroyed.
struct Late {
    buffer: DeviceBuffer<u32>,
    _event: Event,
    stream: Arc<Stream>,
    context: Arc<Context>,
    sim: Simulator,
    seen: std::sync::mpsc::Sender<Result<Vec<u32>, String>>,
}

impl Drop for Late {
    fn drop(&mut self) {
        let work = || {
            let own = self.context.per_thread_default_stream();
            self.context.new_stream()?.launch_host_function(|| ())?;
            let mut more = DeviceBuffer::from_slice(&own, &[1u32, 2])?;
            more.copy_from(&self.stream, &self.buffer)?;
            self.context.device().create_context()?;
            Ok::<_, simtile_core::Error>(more.to_vec(&own)?)
        };
        let seen = work().map_err(|error| error.to_string());
        let _ = self.seen.send(seen);
        let _ = self.sim.counts();
    }
}

#[test]
fn handles_work_and_drop_while_their_thread_ends() {
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    for first in [true, false] {
        let (seen, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            if first {
                // Registered before the simulator's own thread-locals, so destroyed after them.
                LATE.with_borrow_mut(|late| *late = None);
            }
            let (sim, context, stream) = start();
            let buffer = DeviceBuffer::from_slice(&stream, &[7u32, 8]).unwrap();
            let _event = stream.record_event().unwrap();
            LATE.with_borrow_mut(|late| *late = Some(Late { buffer, _event, stream, context, sim, seen }));
        });
        thread.join().unwrap();
        assert_eq!(receiver.recv().unwrap(), Ok(vec![7, 8]));
    }
}

#[test]
fn waiting_as_long_as_it_takes_is_no_overflow() {
    let (_sim, context, stream) = start();
    drop(simtile_core::DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap());
    assert!(context.drain(std::time::Duration::MAX).is_complete());
    assert!(simtile_core::drain_background(std::time::Duration::MAX));
    context.set_oom_wait(std::time::Duration::MAX);
}
