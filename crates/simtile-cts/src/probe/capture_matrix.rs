//! What calls answer while a stream captures: by call, by the capture's mode, and by thread.
//!
//! Each cell captures on a stream of its own, makes one call, looks whether the capture survived, and ends it. A cell
//! reads as the call's code, then `x` if the capture is dead, or `n` if it is gone; then `e` and the code of the
//! capture's end, if that is not the one that follows (0, or 901 for a dead one).

use super::Sink;
use super::capture_rows::{ROWS, Row, Shared};
use crate::frame::{Check, Cx, Stop};
use crate::gpu::Gpu;
use crate::{cu, ensure_eq, ok};

use crate::frame::threads;
use simtile_driver::sys::*;
use std::collections::BTreeMap;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Modes of the capture, and of the thread that makes the call.
const MODES: [CUstreamCaptureMode; 3] = [GLOBAL, LOCAL, RELAXED];

/// What the columns are, for whoever reads the table.
const HEAD: &str = "# capture mode: global, thread-local, relaxed; in each the calling thread: the capturing one \
                    in mode global, thread-local, relaxed, another one in mode global, thread-local, relaxed";

/// The table: a line a call, `name: 18 cells`. A line that could not be measured says why.
///
/// # Errors
/// What all calls need could not be made.
pub fn lines(cx: &Cx, out: Sink<'_>) -> Check {
    let gpu = Gpu::new(cx)?;
    let shared = Shared::new(&gpu)?;
    out(HEAD.to_owned());
    for row in ROWS {
        out(match line(&shared, row) {
            Ok(cells) => format!("{}: {}", row.name, cells.join(" ")),
            Err(Stop::Fail(why) | Stop::Unsupported(why)) => format!("{}: not measured: {why}", row.name),
        });
    }
    Ok(())
}

fn line(shared: &Shared<'_>, row: &Row) -> Check<Vec<String>> {
    let mut cells = Vec::new();
    for capture in MODES {
        for own in [true, false] {
            for thread in MODES {
                cells.push(cell(shared, row, capture, own, thread)?);
            }
        }
    }
    Ok(cells)
}

/// What was measured.
const MEASURED: &str = include_str!("../../capture-matrix.txt");

/// Every cell against what was measured, on a device that shares managed memory with the host. One that does not refuses
/// prefetches, whatever the capture.
///
/// # Errors
/// A cell that differs.
pub fn compare(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let shared = Shared::new(&gpu)?;
    let shares = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? != 0;
    let refused =
        vec![CUresult::CUDA_ERROR_INVALID_DEVICE.0.to_string(); 2 * MODES.len() * MODES.len()].join(" ");
    let measured: BTreeMap<&str, &str> = MEASURED.lines().filter_map(|line| line.rsplit_once(": ")).collect();
    for row in ROWS {
        let expected = match measured.get(row.name) {
            Some(_) if !shares && row.name.contains("cuMemPrefetchAsync") => refused.as_str(),
            Some(cells) => cells,
            None => return Err(Stop::fail(format!("{} was not measured", row.name))),
        };
        let found = line(&shared, row).map_err(|stop| stop.within(row.name))?;
        ensure_eq!(found.join(" "), expected, "{}", row.name);
    }
    Ok(())
}

/// Switches the calling thread's mode and gives the old one.
fn switch(cx: &Cx, mode: CUstreamCaptureMode) -> Check<CUstreamCaptureMode> {
    let mut mode = mode;
    ok!(cx, cuThreadExchangeStreamCaptureMode(&mut mode))?;
    Ok(mode)
}

fn cell(
    shared: &Shared<'_>,
    row: &Row,
    capture: CUstreamCaptureMode,
    own: bool,
    mode: CUstreamCaptureMode,
) -> Check<String> {
    let (cx, gpu) = (shared.cx, shared.gpu);
    let flags =
        if row.blocking { CUstream_flags::CU_STREAM_DEFAULT } else { CUstream_flags::CU_STREAM_NON_BLOCKING };
    let stream = gpu.stream_with(flags)?;
    let prepared = (row.prepare)(shared)?;
    ok!(cx, cuStreamBeginCapture(stream, capture))?;
    let call = || {
        let before = switch(cx, mode)?;
        let code = (row.run)(shared, stream, prepared);
        switch(cx, before)?;
        Ok(code)
    };
    let code = if own {
        call()?
    } else {
        threads::scope(|scope| {
            let other = scope.spawn(|| {
                gpu.enter()?;
                call()
            });
            other.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
        })?
    };
    let mut status = CUstreamCaptureStatus(99);
    let asked = cu!(cx, cuStreamIsCapturing(stream, &mut status));
    let (mark, follows) = match (asked, status.0) {
        (CUresult::CUDA_SUCCESS, 1) => ("", CUresult::CUDA_SUCCESS),
        (CUresult::CUDA_SUCCESS, 2) => ("x", CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (CUresult::CUDA_SUCCESS, _) => ("n", CUresult::CUDA_ERROR_ILLEGAL_STATE),
        _ => ("?", CUresult::CUDA_SUCCESS),
    };
    let mut graph = CUgraph::NULL;
    let end = cu!(cx, cuStreamEndCapture(stream, &mut graph));
    let end = if end == follows { String::new() } else { format!("e{}", end.0) };
    if !graph.is_null() {
        ok!(cx, cuGraphDestroy(graph))?;
    }
    shared.quiet()?;
    Ok(format!("{}{mark}{end}", code.0))
}
