//! Contexts by our API: identity, what mixes with what, and the current context.

use super::{Core, refused};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::{ensure, ensure_eq, ok};
use simtile_core::{Context, ContextError, DeviceBuffer, StreamError};
use simtile_driver::sys::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

crate::frame::registry::tests! { Core, "core_contexts";
    primary_handles_are_equal proves ["H1"],
    equal_devices_do_not_make_equal_contexts proves ["H1"],
    contexts_do_not_mix proves ["H1"],
    borrowed_contexts_stay proves ["H1"],
    borrowing_keeps_its_owner proves ["H1"],
    borrowing_checks_the_device proves ["H1", "F2"] needs [Need::Devices(2)],
    another_current_context_is_left_as_found proves ["H2"],
    a_created_context_is_not_left_current proves ["H2"],
    works_on_any_thread proves ["H2"],
    drop_of_the_last_handle_does_not_wait proves ["H4"],
    limits_are_read_back proves ["H1"],
    loss_is_seen_and_no_call_follows proves ["F3"],
}

fn primary_handles_are_equal(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let again = core.device.primary_context()?;
    ensure!(*again == *core.context, "two handles of the primary context differ");
    ensure_eq!(again.cu_ctx(), core.context.cu_ctx(), "their raw handle");
    // Dropping one does not end it for the other.
    drop(again);
    core.stream.synchronize()?;
    Ok(())
}

fn equal_devices_do_not_make_equal_contexts(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let created = core.device.create_context()?;
    ensure_eq!(created.device(), core.context.device(), "devices of both contexts");
    ensure!(*created != *core.context, "a created context equals the primary one");
    ensure!(created.cu_ctx() != core.context.cu_ctx(), "a created context has the primary one's handle");
    Ok(())
}

fn contexts_do_not_mix(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let created = core.device.create_context()?;
    let theirs = created.new_stream()?;
    // Recording and measuring need one context; the error names both.
    let event = core.context.new_event()?;
    let names = [format!("{created}"), format!("{}", core.context)];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let error = refused(event.record(&theirs), &names)?;
    ensure!(matches!(error, StreamError::OtherContext { .. }), "{error:?}");
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 4)?;
    // Host copies and fills reach memory of any context; kernels do not.
    buffer.fill(&theirs, 1)?;
    ensure_eq!(buffer.to_vec(&theirs)?, [1; 4], "buffer read in another context");
    buffer.fill(&core.stream, 2)?;
    ensure_eq!(buffer.to_vec(&theirs)?, [2; 4], "buffer written in its own context, read in another");
    Ok(())
}

fn raw_context(cx: &Cx) -> Check<CUcontext> {
    let mut raw = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut raw, 0, 0))?;
    Ok(raw)
}

fn borrowed_contexts_stay(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let raw = raw_context(cx)?;
    // SAFETY: the context is alive and is destroyed by nobody.
    let borrowed = unsafe { Context::borrow_raw(core.device, raw) }?;
    let stream = borrowed.new_stream()?;
    ensure_eq!(
        DeviceBuffer::from_slice(&stream, &[1u8, 2])?.to_vec(&stream)?,
        [1, 2],
        "bytes through a borrowed context"
    );
    drop((stream, borrowed));
    let mut version = 0;
    ok!(cx, cuCtxGetApiVersion(raw, &mut version))?;
    // SAFETY: null is refused.
    let refused_null = unsafe { Context::borrow_raw(core.device, CUcontext::NULL) };
    let error = refused(refused_null, &["null handle"])?;
    ensure!(matches!(error, ContextError::NullHandle), "{error:?}");
    Ok(())
}

fn borrowing_keeps_its_owner(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let raw = raw_context(cx)?;
    let owner = Arc::new(());
    // SAFETY: the context is alive and is destroyed by nobody.
    let borrowed = unsafe { Context::borrow_with_owner(core.device, raw, owner.clone()) }?;
    let stream = borrowed.new_stream()?;
    drop(borrowed);
    ensure!(Arc::strong_count(&owner) > 1, "the owner is let go while a stream of the context lives");
    drop(stream);
    let _ = simtile_core::drain_background(crate::gpu::SOON);
    ensure_eq!(Arc::strong_count(&owner), 1, "holders of the owner after everything was dropped");
    Ok(())
}

fn borrowing_checks_the_device(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut raw = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut raw, 0, 1))?;
    // SAFETY: the context is alive and is destroyed by nobody.
    let borrowed = unsafe { Context::borrow_raw(core.device, raw) };
    let error = refused(borrowed, &["device"])?;
    ensure!(matches!(error, ContextError::WrongDevice { .. }), "{error:?}");
    Ok(())
}

fn current(cx: &Cx) -> Check<CUcontext> {
    let mut context = CUcontext(1);
    ok!(cx, cuCtxGetCurrent(&mut context))?;
    Ok(context)
}

/// A bit of everything in one context.
fn work(context: &Arc<Context>) -> Check {
    let stream = context.new_stream()?;
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3])?;
    buffer.fill(&stream, 7)?;
    let event = stream.record_event()?;
    event.synchronize()?;
    let module = context.load_module(crate::kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default())?;
    module.load_function("use_globals")?;
    ensure_eq!(buffer.to_vec(&stream)?, [7; 3], "buffer");
    Ok(())
}

fn another_current_context_is_left_as_found(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = raw_context(cx)?;
    ensure_eq!(current(cx)?, other, "current context before");
    work(&core.context)?;
    ensure_eq!(current(cx)?, other, "current context after work in another one");
    // Errors leave it too.
    let _ = core.context.load_module(b"no image");
    ensure_eq!(current(cx)?, other, "current context after an error");
    Ok(())
}

fn a_created_context_is_not_left_current(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let before = current(cx)?;
    let created = core.device.create_context()?;
    ensure_eq!(current(cx)?, before, "current context after creating one");
    work(&created)?;
    drop(created);
    ensure_eq!(current(cx)?, before, "current context after dropping it");
    Ok(())
}

fn works_on_any_thread(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let checks: Vec<Check> = threads::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| work(&core.context))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked"))))
            .collect()
    });
    checks.into_iter().collect()
}

fn drop_of_the_last_handle_does_not_wait(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let context = core.device.create_context()?;
    let stream = context.new_stream()?;
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000)?;
    // A kernel as gate would belong to another context: a host function holds the stream.
    let opened = Arc::new(AtomicBool::new(false));
    let held = opened.clone();
    stream.launch_host_function(move || {
        let end = threads::now() + crate::gpu::SOON;
        while !held.load(Ordering::SeqCst) && threads::now() < end {
            threads::sleep(Duration::from_millis(1));
        }
    })?;
    let event = stream.record_event()?;
    ensure!(!event.is_complete()?, "an event behind a gate is complete");
    // If a drop waited for the device, it would never return: the gate opens after it.
    drop((buffer, event, stream, context));
    opened.store(true, Ordering::SeqCst);
    ensure!(simtile_core::drain_background(crate::gpu::SOON), "dropped handles were not given back in time");
    Ok(())
}

fn limits_are_read_back(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let before = core.context.stack_size()?;
    let set = core.context.set_stack_size(before + 1024)?;
    ensure!(set >= before + 1024, "stack of {set} bytes after asking for {}", before + 1024);
    ensure_eq!(core.context.stack_size()?, set, "stack read back");
    Ok(())
}

fn loss_is_seen_and_no_call_follows(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let store = core.basic()?.load_function("store_one")?;
    let buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 4)?;
    core.stream.synchronize()?;
    let args = simtile_core::LaunchArgs::new().arg(0x10_0000u64).arg(1u32);
    let one = simtile_core::LaunchOptions::new(super::launches::shape(1, 1));
    // SAFETY: the kernel writes to an address that nobody owns, which costs the context: that is the test.
    unsafe { core.stream.launch(&store, one, &args) }?;
    let error = refused(core.stream.synchronize(), &["ILLEGAL_ADDRESS"])?;
    ensure!(error.driver_error().is_some(), "{error:?}");
    ensure!(core.context.loss().is_some(), "the context does not know that it is lost");
    let before = cx.calls();
    refused(core.stream.synchronize(), &["lost"])?;
    refused(core.context.new_stream(), &["lost"])?;
    refused(buffer.to_vec(&core.stream), &["lost"])?;
    drop(buffer);
    ensure_eq!(cx.calls() - before, 0, "driver calls for a lost context");
    Ok(())
}
