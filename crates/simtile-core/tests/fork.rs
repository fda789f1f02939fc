//! F3: in a forked child no driver call is made, and drops touch nothing.
#![cfg(unix)]

#[path = "common/child.rs"]
mod child;
mod common;

use child::in_child;
use common::*;
use simtile_core::{
    Device, DeviceBuffer, DeviceError, Error, GraphError, JitOptions, MemoryError, ModuleCache, ModuleError,
    StreamError,
};
use simtile_driver::Entry;
use std::time::Duration;

#[test]
fn fr_h7_f3_a_forked_child_makes_no_driver_call() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap();
    let event = stream.record_event().unwrap();
    stream.synchronize().unwrap();
    let before = sim.counts().total();
    let fine = in_child(|| {
        let refused = matches!(stream.synchronize(), Err(StreamError::Forked { .. }))
            && matches!(event.synchronize(), Err(StreamError::Forked { .. }))
            && matches!(buffer.fill(&stream, 1), Err(MemoryError::Forked { .. }))
            && matches!(DeviceBuffer::<u8>::zeroed(&stream, 1), Err(MemoryError::Forked { .. }))
            && matches!(Device::count(sim.driver()), Err(DeviceError::Forked { .. }));
        // SAFETY: the originals are not used in this process again: it ends.
        let copies = unsafe { (std::ptr::read(&buffer), std::ptr::read(&stream), std::ptr::read(&context)) };
        drop(copies);
        refused && sim.counts().total() == before
    });
    assert!(fine);
    // The parent goes on.
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 10]);
}

/// A thread of the parent was at work on it, and the child does not have that thread.
#[test]
fn f3_a_forked_child_waits_for_no_thread_of_the_parent() {
    const PTX: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n ret;\n}\n";
    const SOON: Duration = Duration::from_secs(20);
    let (sim, context, stream) = start();
    let cache = ModuleCache::new();
    let pause = sim.pause_at(Entry::cuModuleLoadDataEx, 1);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| cache.load(&context, PTX).map(drop));
        assert!(pause.wait_reached(SOON));
        let fine = in_child(|| {
            let refused = cache.load(&context, PTX).map(drop);
            cache.get(&context, PTX, &JitOptions::new()).is_none()
                && matches!(refused, Err(error) if matches!(&*error, Error::Module(ModuleError::Forked { .. })))
        });
        pause.release();
        assert!(fine && loading.join().unwrap().is_ok());
    });
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let capture = stream.begin_capture().unwrap();
    let pause = sim.pause_at(Entry::cuMemsetD32Async, 1);
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| capture.submit(&stream).fill(&mut buffer, 7).map(drop));
        assert!(pause.wait_reached(SOON));
        let fine = in_child(|| {
            capture.abandon();
            matches!(capture.end().map(drop), Err(GraphError::Forked { .. }))
        });
        pause.release();
        assert!(fine && recording.join().unwrap().is_ok());
    });
    drop(capture);
    buffer.fill(&stream, 1).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 8]);
}
