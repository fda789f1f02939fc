//! Bad input, by our API: drivers, symbols, devices, handles, ranges. Each error names what, value and limit.

use super::{Core, refused};
use crate::frame::{Check, Cx, Need};
use crate::{ensure, ensure_eq};
use simtile_core::{Context, Device, DeviceBuffer, MemoryError};
use simtile_driver::cuda::LoadError;
use simtile_driver::{Driver, Entry};
use simtile_sim::Simulator;

const OTHERS: Need = Need::Simulator("the driver is taken apart");

crate::frame::registry::tests! { Core, "bad_input";
    missing_library proves ["F2"],
    library_that_is_no_driver proves ["F2"],
    missing_symbol proves ["F2"] needs [OTHERS],
    no_device proves ["F2"] needs [OTHERS],
    wrong_ordinal proves ["F2"],
    handles_of_another_driver proves ["F2"] needs [OTHERS],
    driver_that_is_gone proves ["F2"] needs [OTHERS],
    ranges_outside_a_buffer proves ["F2"],
    lengths_that_differ proves ["F2"],
    symbol_ranges proves ["F2"],
}

fn missing_library(_: &Cx) -> Check {
    let path = "/no/such/folder/libcuda.so.1";
    let error = refused(Driver::open(path), &[path])?;
    ensure!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
    Ok(())
}

fn library_that_is_no_driver(_: &Cx) -> Check {
    // The C library is there, and has no driver in it.
    let error = refused(Driver::open("libc.so.6"), &["libc.so.6", "cuGetProcAddress", "12.0"])?;
    ensure!(matches!(error, LoadError::TooOld { .. }), "{error:?}");
    Ok(())
}

fn missing_symbol(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    if let Some(simulator) = cx.simulator() {
        simulator.mask(&[Entry::cuMemsetD32Async, Entry::cuCtxGetLimit, Entry::cuEventElapsedTime]);
    }
    let (major, minor) = cx.driver_version()?;
    let there = format!("CUDA {major}.{minor}");
    let error = refused(core.context.stack_size(), &["cuCtxGetLimit", "CUDA 3.1", &there])?;
    let driver = error.driver_error();
    ensure!(driver.is_some_and(|error| error.is_missing_entry()), "{error:?}");
    let start = core.stream.record_timed_event()?;
    let end = core.stream.record_timed_event()?;
    core.stream.synchronize()?;
    refused(start.elapsed_time(&end), &["cuEventElapsedTime"])?;
    Ok(())
}

fn no_device(_: &Cx) -> Check {
    let simulator = Simulator::builder().devices(0).quiet().build();
    match Device::count(simulator.driver()) {
        Ok(count) => {
            ensure_eq!(count, 0, "devices");
            refused(Device::new(simulator.driver(), 0), &["no device 0", "shows 0"])?;
        }
        Err(error) => {
            refused::<(), _>(Err(error), &["CUDA_ERROR_NO_DEVICE", "cuInit"])?;
        }
    }
    refused(Context::new(simulator.driver(), 0).map(|_| ()), &["evice"])?;
    Ok(())
}

fn wrong_ordinal(cx: &Cx) -> Check {
    let count = Device::count(cx.driver())?;
    refused(
        Context::new(cx.driver(), count).map(|_| ()),
        &[&format!("no device {count}"), &format!("shows {count}")],
    )?;
    Ok(())
}

fn handles_of_another_driver(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let simulator = Simulator::builder().quiet().build();
    let other = Device::new(simulator.driver(), 0)?.primary_context()?;
    ensure!(*other != *core.context, "contexts of two drivers are equal");
    let theirs = other.new_stream()?;
    refused(core.context.new_event()?.record(&theirs), &["context"])?;
    let mut buffer = DeviceBuffer::<u8>::zeroed(&core.stream, 4)?;
    refused(buffer.fill(&theirs, 1), &["context"])?;
    Ok(())
}

fn driver_that_is_gone(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let buffer = DeviceBuffer::<u8>::zeroed(&core.stream, 4)?;
    let event = core.stream.record_event()?;
    core.stream.synchronize()?;
    if let Some(simulator) = cx.simulator() {
        simulator.shut_down();
    }
    refused(core.stream.synchronize(), &["shut down"])?;
    refused(core.context.new_stream(), &["shut down"])?;
    refused(buffer.to_vec(&core.stream), &["shut down"])?;
    // Drops are silent.
    drop((buffer, event, core.stream, core.context));
    Ok(())
}

fn ranges_outside_a_buffer(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    let buffer = DeviceBuffer::from_slice(stream, &[1u32, 2, 3, 4])?.with_label("four words");
    for (range, start, end) in
        [(2..5, "2", "5"), (5..6, "5", "6"), (0..usize::MAX, "0", "18446744073709551615")]
    {
        let error =
            refused(buffer.range_to_vec(stream, range), &["four words", &format!("{start}..{end}"), "0..4"])?;
        ensure!(matches!(error, MemoryError::OutOfRange { .. }), "{error:?}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "that is the bad input")]
    refused(buffer.range_to_vec(stream, 3..2), &["four words", "3..2"])?;
    let mut target = DeviceBuffer::<u32>::zeroed(stream, 3)?.with_label("three words");
    refused(target.copy_range_from(stream, 1, &buffer, 0..3), &["three words", "1..4", "0..3"])?;
    refused(target.copy_range_from(stream, 0, &buffer, 3..5), &["four words", "3..5", "0..4"])?;
    refused(target.copy_from_slice_at(stream, 2, &[1, 2]), &["three words", "2..4", "0..3"])?;
    refused(target.copy_from_slice_at(stream, usize::MAX, &[1, 2]), &["three words"])?;
    let mut host = [0u32; 2];
    refused(buffer.copy_to_slice_at(stream, 3, &mut host), &["four words", "3..5", "0..4"])?;
    ensure_eq!(target.to_vec(stream)?, [0; 3], "target of refused copies");
    ensure_eq!(host, [0; 2], "host memory of a refused copy");
    Ok(())
}

fn lengths_that_differ(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    let source = DeviceBuffer::from_slice(stream, &[1u16; 5])?;
    let mut target = DeviceBuffer::<u16>::zeroed(stream, 4)?.with_label("four");
    for error in [
        refused(target.copy_from(stream, &source), &["four", "5", "4"])?,
        refused(target.copy_from_slice(stream, &[1; 3]), &["four", "3", "4"])?,
        refused(target.copy_to_slice(stream, &mut [0; 6]), &["four", "6", "4"])?,
    ] {
        ensure!(matches!(error, MemoryError::LengthMismatch { .. }), "{error:?}");
    }
    Ok(())
}

fn symbol_ranges(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let image = crate::kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default();
    let room = core.context.load_module(image)?.symbol("room")?;
    refused(room.write(&core.stream, 99, &[1u8, 2]), &["room", "99..101", "0..100"])?;
    refused(room.read::<u32>(&core.stream, 96, 2), &["room", "96..104", "0..100"])?;
    refused(room.read::<u32>(&core.stream, usize::MAX, 2), &["room"])?;
    refused(room.read::<u32>(&core.stream, 0, usize::MAX), &["18446744073709551615", "4 bytes"])?;
    Ok(())
}
