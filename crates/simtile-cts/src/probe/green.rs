//! Green contexts: sizes, codes, and which call takes which context.

use super::Sink;
use crate::frame::{Check, Cx};
use crate::gpu::{Args, Gpu, Shape};
use crate::{cu, kernels, ok};
use simtile_driver::sys::*;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

fn empty() -> CUdevResource {
    // SAFETY: zeros are valid in every field.
    unsafe { std::mem::zeroed() }
}

fn count(resource: &CUdevResource) -> u32 {
    // SAFETY: every resource here is zeroed or one of multiprocessors.
    unsafe { resource.u.sm.smCount }
}

fn text(resource: &CUdevResource) -> String {
    // SAFETY: as above.
    let sm = unsafe { resource.u.sm };
    format!(
        "type {} sm {} least {} step {}",
        resource.type_.0, sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment
    )
}

/// Codes and values, a line each.
///
/// # Errors
/// What all questions need could not be made.
pub fn lines(cx: &Cx, out: Sink<'_>) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut whole = empty();
    let code = cu!(cx, cuDeviceGetDevResource(0, &mut whole, SM));
    out(format!("cuDeviceGetDevResource: {} {}", code.0, text(&whole)));
    for kind in [0, 2, 1000, 7] {
        let code = cu!(cx, cuDeviceGetDevResource(0, &mut empty(), CUdevResourceType(kind)));
        out(format!("cuDeviceGetDevResource type {kind}: {}", code.0));
    }
    let mut other = empty();
    let code = cu!(cx, cuCtxGetDevResource(gpu.context, &mut other, SM));
    out(format!("cuCtxGetDevResource primary: {} {}", code.0, text(&other)));
    let code = cu!(cx, cuCtxGetDevResource(CUcontext::NULL, &mut empty(), SM));
    out(format!("cuCtxGetDevResource null context: {}", code.0));
    splits(cx, &whole, out);
    contexts(&gpu, &whole, out)
}

fn split(
    cx: &Cx,
    input: &CUdevResource,
    room: u32,
    flags: u32,
    least: u32,
) -> (CUresult, Vec<CUdevResource>, CUdevResource) {
    let (mut groups, mut n, mut rest) = (vec![empty(); 200], room, empty());
    let code =
        cu!(cx, cuDevSmResourceSplitByCount(groups.as_mut_ptr(), &mut n, input, &mut rest, flags, least));
    groups.truncate(if code.is_ok() { n as usize } else { 0 });
    (code, groups, rest)
}

fn splits(cx: &Cx, whole: &CUdevResource, out: Sink<'_>) {
    for flags in [0, 1, 2, 3, 4] {
        let mut all = Vec::new();
        for least in [
            0, 1, 2, 3, 4, 7, 8, 9, 12, 16, 17, 20, 24, 31, 32, 33, 40, 48, 64, 66, 67, 96, 120, 128, 129,
            131, 132, 133, 500,
        ] {
            let mut simulated = 200;
            let code = cu!(
                cx,
                cuDevSmResourceSplitByCount(null_mut(), &mut simulated, whole, null_mut(), flags, least)
            );
            let (real, groups, rest) = split(cx, whole, 200, flags, least);
            let size = groups.first().map_or(0, count);
            let same = if groups.iter().all(|group| count(group) == size) { "" } else { "~" };
            all.push(format!("{least}:{}/{}={}x{same}{size}+{}", code.0, real.0, groups.len(), count(&rest)));
            if code.is_ok() && simulated as usize != groups.len() {
                all.push(format!("(simulated {simulated})"));
            }
        }
        out(format!("split flags {flags} (least:simulated/real=groups x size + rest): {}", all.join(" ")));
    }
    let (code, groups, rest) = split(cx, whole, 2, 0, 8);
    out(format!("split 8 with room for 2: {} {} groups, rest {}", code.0, groups.len(), text(&rest)));
    if let Some(group) = groups.first() {
        out(format!("a group: {}", text(group)));
        out(format!("split of a group: {}", split(cx, group, 2, 0, 8).0.0));
    }
    let (code, parts, left) = split(cx, &rest, 2, 0, 8);
    out(format!("split of a rest: {} {} groups, rest {}", code.0, parts.len(), text(&left)));
    let (code, _, rest) = split(cx, whole, 200, 0, 8);
    out(format!("the rest of all: {} {}", code.0, text(&rest)));
    let mut n = 0;
    let code = cu!(cx, cuDevSmResourceSplitByCount(null_mut(), &mut n, whole, null_mut(), 0, 8));
    out(format!("split simulated with room 0: {} {n}", code.0));
    let code =
        cu!(cx, cuDevSmResourceSplitByCount([empty()].as_mut_ptr(), null_mut(), whole, null_mut(), 0, 8));
    out(format!("split without a count: {}", code.0));
    let mut n = 1;
    let code =
        cu!(cx, cuDevSmResourceSplitByCount([empty()].as_mut_ptr(), &mut n, &empty(), null_mut(), 0, 8));
    out(format!("split of an empty resource: {}", code.0));
}

fn describe(cx: &Cx, resources: &mut [CUdevResource]) -> (CUresult, CUdevResourceDesc) {
    let mut desc = CUdevResourceDesc::NULL;
    let code = cu!(cx, cuDevResourceGenerateDesc(&mut desc, resources.as_mut_ptr(), resources.len() as u32));
    (code, desc)
}

fn create(cx: &Cx, desc: CUdevResourceDesc, flags: u32) -> (CUresult, CUgreenCtx) {
    let mut green = CUgreenCtx::NULL;
    let code = cu!(cx, cuGreenCtxCreate(&mut green, desc, 0, flags));
    (code, green)
}

fn contexts(gpu: &Gpu<'_>, whole: &CUdevResource, out: Sink<'_>) -> Check {
    let cx = gpu.cx();
    let (_, groups, rest) = split(cx, whole, 4, 0, 8);
    let [a, b, ..] = groups[..] else {
        out("no groups".into());
        return Ok(());
    };
    out(format!("desc of an empty resource: {}", describe(cx, &mut [empty()]).0.0));
    out(format!("desc of a group twice: {}", describe(cx, &mut [a, a]).0.0));
    let two = describe(cx, &mut [a, b]);
    out(format!("desc of two groups: {}", two.0.0));
    for (name, resource) in [("whole", *whole), ("rest", rest)] {
        let (code, desc) = describe(cx, &mut [resource]);
        let (made, green) = create(cx, desc, 1);
        let mut found = empty();
        let asked = cu!(cx, cuGreenCtxGetDevResource(green, &mut found, SM));
        out(format!(
            "desc, context, resource of the {name}: {} {} {} {}",
            code.0,
            made.0,
            asked.0,
            text(&found)
        ));
    }
    let (_, desc) = describe(cx, &mut [a]);
    for flags in [0, 2, 3] {
        out(format!("cuGreenCtxCreate flags {flags}: {}", create(cx, desc, flags).0.0));
    }
    out(format!("cuGreenCtxCreate null desc: {}", create(cx, CUdevResourceDesc::NULL, 1).0.0));
    let (code, green) = create(cx, desc, 1);
    out(format!("cuGreenCtxCreate: {}", code.0));
    let (code, again) = create(cx, desc, 1);
    out(format!("cuGreenCtxCreate with the same desc: {}", code.0));
    if two.0.is_ok() {
        let (code, both) = create(cx, two.1, 1);
        let mut found = empty();
        let asked = cu!(cx, cuGreenCtxGetDevResource(both, &mut found, SM));
        out(format!("context of two groups: {} {} {}", code.0, asked.0, text(&found)));
    }
    let mut context = CUcontext::NULL;
    let code = cu!(cx, cuCtxFromGreenCtx(&mut context, green));
    out(format!("cuCtxFromGreenCtx: {}, is the primary: {}", code.0, context == gpu.context));
    let mut second = CUcontext::NULL;
    let code = cu!(cx, cuCtxFromGreenCtx(&mut second, green));
    out(format!("cuCtxFromGreenCtx again: {}, same: {}", code.0, context == second));
    streams(gpu, green, context, out)?;
    work(gpu, green, context, out)?;
    ends(gpu, green, again, context, out)
}

fn green_of(cx: &Cx, stream: CUstream, green: CUgreenCtx) -> String {
    let mut found = CUgreenCtx(1);
    let code = cu!(cx, cuStreamGetGreenCtx(stream, &mut found));
    let what = match found {
        CUgreenCtx::NULL => "none",
        found if found == green => "it",
        _ => "other",
    };
    format!("{} {what}", code.0)
}

fn context_of(cx: &Cx, stream: CUstream, context: CUcontext, primary: CUcontext) -> String {
    let mut found = CUcontext(1);
    let code = cu!(cx, cuStreamGetCtx(stream, &mut found));
    let what = match found {
        found if found == context => "it",
        found if found == primary => "primary",
        CUcontext::NULL => "none",
        CUcontext(1) => "unset",
        _ => "other",
    };
    format!("{} {what}", code.0)
}

fn streams(gpu: &Gpu<'_>, green: CUgreenCtx, context: CUcontext, out: Sink<'_>) -> Check {
    let cx = gpu.cx();
    for (flags, priority) in [(0, 0), (1, 0), (1, -2), (1, -99), (3, 0)] {
        let mut stream = CUstream::NULL;
        let code = cu!(cx, cuGreenCtxStreamCreate(&mut stream, green, flags, priority));
        if !code.is_ok() {
            out(format!("cuGreenCtxStreamCreate flags {flags} priority {priority}: {}", code.0));
            continue;
        }
        let (mut shown, mut level) = (99, 99);
        let codes = (
            cu!(cx, cuStreamGetFlags(stream, &mut shown)).0,
            cu!(cx, cuStreamGetPriority(stream, &mut level)).0,
        );
        let (green, owner) = (green_of(cx, stream, green), context_of(cx, stream, context, gpu.context));
        out(format!(
            "cuGreenCtxStreamCreate flags {flags} priority {priority}: 0; flags {} {shown}, priority {} {level}, green {green}, context {owner}",
            codes.0, codes.1
        ));
    }
    out(format!("green context of a primary's stream: {}", green_of(cx, gpu.stream()?, green)));
    out(format!("green context of legacy, primary current: {}", green_of(cx, CUstream::NULL, green)));
    let code = cu!(cx, cuCtxSetCurrent(context));
    let mut now = CUcontext::NULL;
    let asked = cu!(cx, cuCtxGetCurrent(&mut now));
    out(format!(
        "set current: {} {}, is the green one: {}, is the primary: {}",
        code.0,
        asked.0,
        now == context,
        now == gpu.context
    ));
    for (name, handle) in [("legacy", CUstream::NULL), ("per-thread", CUstream::PER_THREAD)] {
        let (g, c) = (green_of(cx, handle, green), context_of(cx, handle, context, gpu.context));
        out(format!("{name}, green current: green {g}, context {c}"));
    }
    for flags in [0, 1] {
        let mut stream = CUstream::NULL;
        let code = cu!(cx, cuStreamCreate(&mut stream, flags));
        let (g, c) = (green_of(cx, stream, green), context_of(cx, stream, context, gpu.context));
        out(format!("cuStreamCreate {flags}, green current: {}; green {g}, context {c}", code.0));
    }
    let (mut id, mut primary, mut device, mut flags, mut version) = (0, 0, 9, 99, 0);
    let codes = [
        cu!(cx, cuCtxGetId(context, &mut id)),
        cu!(cx, cuCtxGetId(gpu.context, &mut primary)),
        cu!(cx, cuCtxGetDevice(&mut device)),
        cu!(cx, cuCtxGetFlags(&mut flags)),
        cu!(cx, cuCtxGetApiVersion(context, &mut version)),
    ]
    .map(|code| code.0);
    out(format!(
        "green current: ids, device, flags, version {codes:?}; same id {}, device {device}, flags {flags}, version {version}",
        id == primary
    ));
    let mut resource = empty();
    let code = cu!(cx, cuCtxGetDevResource(context, &mut resource, SM));
    out(format!("cuCtxGetDevResource green: {} {}", code.0, text(&resource)));
    let (mut limit, mut sms) = (0, 0);
    let code = cu!(cx, cuCtxGetLimit(&mut limit, CUlimit::CU_LIMIT_STACK_SIZE));
    let attribute = cu!(
        cx,
        cuDeviceGetAttribute(&mut sms, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)
    );
    out(format!("limit {} {limit}, multiprocessors {} {sms}", code.0, attribute.0));
    let code = cu!(cx, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 2048));
    gpu.enter()?;
    let asked = cu!(cx, cuCtxGetLimit(&mut limit, CUlimit::CU_LIMIT_STACK_SIZE));
    out(format!("cuCtxSetLimit in the green one: {}, seen in the primary {} {limit}", code.0, asked.0));
    Ok(())
}

/// Runs the call on another thread with this context current; how it ended within a while.
fn waits(gpu: &Gpu<'_>, context: CUcontext, held: CUstream, call: fn(&Cx) -> CUresult) -> Check<String> {
    let gate = gpu.gate(held)?;
    let cx = gpu.cx();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let _ = cu!(cx, cuCtxSetCurrent(context));
            call(cx)
        });
        let end = Instant::now() + Duration::from_millis(300);
        while !other.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let early = other.is_finished();
        gate.open();
        let code = other.join().map_or(-1, |code| code.0 as i64 as i32);
        Ok(format!("{code} {}", if early { "at once" } else { "waits" }))
    })
}

fn work(gpu: &Gpu<'_>, green: CUgreenCtx, context: CUcontext, out: Sink<'_>) -> Check {
    let cx = gpu.cx();
    let mut stream = CUstream::NULL;
    let code = cu!(cx, cuGreenCtxStreamCreate(&mut stream, green, 1, 0));
    if !code.is_ok() {
        return Ok(());
    }
    let module = gpu.module(kernels::MULTIPROCESSORS)?;
    let function = gpu.function(module, c"where")?;
    let blocks = 264u32;
    let places = gpu.zeroed(4 * blocks as usize + 4)?;
    let args = Args::new().with(places).with(100u32);
    let launch = |stream, function| {
        cu!(
            cx,
            cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                32,
                1,
                1,
                0,
                stream,
                args.pointers().as_mut_ptr(),
                null_mut()
            )
        )
    };
    let seen = |what: &str, code: CUresult| {
        let synced = cu!(cx, cuCtxSynchronize());
        let mut found = gpu.read::<u32>(places, blocks as usize + 1)?;
        let all = found.pop();
        found.sort_unstable();
        found.dedup();
        Ok::<_, crate::frame::Stop>(format!(
            "{what}: {} {}, nsmid {all:?}, {} different: {found:?}",
            code.0,
            synced.0,
            found.len()
        ))
    };
    let code = launch(stream, function);
    let _ = cu!(cx, cuStreamSynchronize(stream));
    out(seen("primary's function on a green stream", code)?);
    let _ = cu!(cx, cuCtxSetCurrent(context));
    let code = launch(stream, function);
    out(seen("the same, green current", code)?);
    let code = launch(CUstream::NULL, function);
    out(seen("legacy stream, green current", code)?);
    let mut own = CUmodule::NULL;
    let loaded = cu!(cx, cuModuleLoadData(&mut own, kernels::MULTIPROCESSORS.as_ptr().cast()));
    let function_here = gpu.function(own, c"where").unwrap_or(CUfunction::NULL);
    out(format!("module loaded with green current: {}", loaded.0));
    gpu.enter()?;
    let primary_stream = gpu.stream()?;
    let code = launch(primary_stream, function_here);
    let _ = cu!(cx, cuStreamSynchronize(primary_stream));
    out(format!("green's function on a primary stream: {}", code.0));
    let cooperative = |stream, blocks| {
        let code = cu!(
            cx,
            cuLaunchCooperativeKernel(
                function,
                blocks,
                1,
                1,
                1024,
                1,
                1,
                0,
                stream,
                args.pointers().as_mut_ptr()
            )
        );
        let _ = cu!(cx, cuStreamSynchronize(stream));
        code.0
    };
    out(format!(
        "cooperative of 1024 threads on 8 multiprocessors, 8 16 17 18 264 265 blocks: {:?}",
        [8, 16, 17, 18, 264, 265].map(|n| cooperative(stream, n))
    ));
    let event = gpu.event()?;
    let code = cu!(cx, cuEventRecord(event, stream));
    out(format!(
        "primary's event on a green stream: {}, query {}",
        code.0,
        {
            let _ = cu!(cx, cuCtxSynchronize());
            cu!(cx, cuEventQuery(event))
        }
        .0
    ));
    let _ = cu!(cx, cuCtxSetCurrent(context));
    let own_event = gpu.event()?;
    let own_memory = gpu.alloc(64)?;
    gpu.enter()?;
    let code = cu!(cx, cuEventRecord(own_event, primary_stream));
    out(format!("green's event on a primary stream: {}", code.0));
    let code = cu!(cx, cuMemsetD8Async(own_memory, 1, 64, primary_stream));
    out(format!(
        "green's memory on a primary stream: {} {}",
        code.0,
        cu!(cx, cuStreamSynchronize(primary_stream)).0
    ));
    let recorded = gpu.event()?;
    let gate = gpu.gate(stream)?;
    let code = cu!(cx, cuGreenCtxRecordEvent(green, recorded));
    out(format!(
        "cuGreenCtxRecordEvent with a gated stream: {}, query {}",
        code.0,
        cu!(cx, cuEventQuery(recorded)).0
    ));
    gate.open();
    out(format!(
        "then synchronize: {}, query {}",
        cu!(cx, cuEventSynchronize(recorded)).0,
        cu!(cx, cuEventQuery(recorded)).0
    ));
    let gate = gpu.gate(primary_stream)?;
    ok!(cx, cuEventRecord(event, primary_stream))?;
    let code = cu!(cx, cuGreenCtxWaitEvent(green, event));
    let after = cu!(cx, cuMemsetD8Async(own_memory, 2, 64, stream));
    let done = cu!(cx, cuEventRecord(recorded, stream));
    std::thread::sleep(Duration::from_millis(20));
    out(format!(
        "cuGreenCtxWaitEvent on a gated event: {} {} {}, later work is done: {}",
        code.0,
        after.0,
        done.0,
        cu!(cx, cuEventQuery(recorded)).0
    ));
    gate.open();
    out(format!("then: {}", cu!(cx, cuStreamSynchronize(stream)).0));
    out(format!(
        "cuCtxSynchronize green, primary's stream gated: {}",
        waits(gpu, context, primary_stream, |cx| cu!(cx, cuCtxSynchronize()))?
    ));
    out(format!(
        "cuCtxSynchronize primary, green stream gated: {}",
        waits(gpu, gpu.context, stream, |cx| cu!(cx, cuCtxSynchronize()))?
    ));
    out(format!(
        "legacy sync in primary, green stream gated: {}",
        waits(gpu, gpu.context, stream, |cx| cu!(cx, cuStreamSynchronize(CUstream::NULL)))?
    ));
    out(format!(
        "legacy sync in green, green stream gated: {}",
        waits(gpu, context, stream, |cx| cu!(cx, cuStreamSynchronize(CUstream::NULL)))?
    ));
    let _ = cu!(cx, cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
    let code = cu!(cx, cuGreenCtxRecordEvent(green, recorded));
    let mut graph = CUgraph::NULL;
    let end = cu!(cx, cuStreamEndCapture(stream, &mut graph));
    out(format!("cuGreenCtxRecordEvent while a stream of it captures: {}, end {}", code.0, end.0));
    let _ = cu!(cx, cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
    let code = cu!(cx, cuGreenCtxWaitEvent(green, event));
    let end = cu!(cx, cuStreamEndCapture(stream, &mut graph));
    out(format!("cuGreenCtxWaitEvent while a stream of it captures: {}, end {}", code.0, end.0));
    let mut exec = CUgraphExec::NULL;
    let _ = cu!(cx, cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
    let code = launch(stream, function);
    let end = cu!(cx, cuStreamEndCapture(stream, &mut graph));
    let made = cu!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    out(format!("captured on a green stream: {} {} {}", code.0, end.0, made.0));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    out(seen("that graph on the green stream", code)?);
    let code = cu!(cx, cuGraphLaunch(exec, primary_stream));
    out(seen("that graph on a primary stream", code)?);
    let _ = Shape::ONE;
    Ok(())
}

fn ends(gpu: &Gpu<'_>, green: CUgreenCtx, again: CUgreenCtx, context: CUcontext, out: Sink<'_>) -> Check {
    let cx = gpu.cx();
    out(format!("cuCtxDestroy of a green one's context: {}", cu!(cx, cuCtxDestroy(context)).0));
    let _ = gpu.enter();
    let mut stream = CUstream::NULL;
    let made = cu!(cx, cuGreenCtxStreamCreate(&mut stream, again, 1, 0));
    let gate = gpu.gate(stream)?;
    let done = gpu.event()?;
    let _ = cu!(cx, cuEventRecord(done, stream));
    let started = Instant::now();
    let destroyed = std::thread::scope(|scope| {
        let other = scope.spawn(|| cu!(cx, cuGreenCtxDestroy(again)));
        while !other.is_finished() && started.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let early = other.is_finished();
        gate.open();
        (other.join().map_or(-1, |code| code.0 as i32), early)
    });
    out(format!(
        "cuGreenCtxDestroy with gated work (stream {}): {} {}",
        made.0,
        destroyed.0,
        if destroyed.1 { "at once" } else { "waits" }
    ));
    out(format!("its event afterwards: {}", cu!(cx, cuEventSynchronize(done)).0));
    let mut current = CUcontext::NULL;
    let _ = cu!(cx, cuCtxSetCurrent(context));
    let code = cu!(cx, cuGreenCtxDestroy(green));
    let asked = cu!(cx, cuCtxGetCurrent(&mut current));
    out(format!(
        "cuGreenCtxDestroy while current: {}; current {} {}",
        code.0,
        asked.0,
        if current == context {
            "still it"
        } else if current.is_null() {
            "none"
        } else {
            "other"
        }
    ));
    let _ = gpu.enter();
    out(format!("cuCtxSynchronize of the primary afterwards: {}", cu!(cx, cuCtxSynchronize()).0));
    let (mut flags, mut active) = (0, 9);
    let first = cu!(cx, cuDevicePrimaryCtxRelease(0));
    let code = cu!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    out(format!("primary released with green contexts alive: {} {}, active {active}", first.0, code.0));
    Ok(())
}
