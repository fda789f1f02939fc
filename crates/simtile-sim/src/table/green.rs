//! Green contexts: a primary context's work held to some of the device's multiprocessors.
//!
//! A green context is no context of its own here: its handle names the primary context, and streams made through it
//! remember it. Memory, modules, events and faults are the primary's.

use crate::core::Res;
use crate::engine::green::{GreenState, Part};
use crate::engine::work::Work;
use crate::entry::{Call, Out, entries};
use core::ffi::{c_int, c_uint};
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const BAD_TYPE: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE;
const BAD_SHAPE: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;

/// Least size and step of groups, and what they are without regard to clusters (compute capability 9.0).
const STEP: u32 = 8;
const FREE_STEP: u32 = 2;

const IGNORE: u32 = CUdevSmResourceSplit_flags::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING.0;
const CLUSTERS: u32 = CUdevSmResourceSplit_flags::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE.0;

/// Where a resource says which multiprocessors it is: in the bytes that are the driver's.
const MARK: [u8; 8] = *b"simtile1";

fn resource(device: i32, part: Part) -> CUdevResource {
    let mut padding = [0; 92];
    padding[..8].copy_from_slice(&MARK);
    padding[8..12].copy_from_slice(&device.to_ne_bytes());
    padding[12..16].copy_from_slice(&part.first.to_ne_bytes());
    padding[16..20].copy_from_slice(&part.count.to_ne_bytes());
    padding[20] = u8::from(part.whole);
    CUdevResource {
        type_: CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM,
        _internal_padding: padding,
        u: CUdevResource_u {
            sm: CUdevSmResource {
                smCount: part.count,
                minSmPartitionSize: part.step,
                smCoscheduledAlignment: part.step,
            },
        },
    }
}

/// What a resource from here stands for.
fn part(call: &Call<'_>, resource: &CUdevResource) -> Res<(i32, Part)> {
    if resource.type_ != CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM {
        return Err(BAD_TYPE);
    }
    let padding = &resource._internal_padding;
    let word =
        |at: usize| u32::from_ne_bytes([padding[at], padding[at + 1], padding[at + 2], padding[at + 3]]);
    let (device, first, count) = (word(8) as i32, word(12), word(16));
    call.core.device(device).map_err(|_| BAD_SHAPE)?;
    // SAFETY: the type says which variant was filled; integers have no invalid value.
    let sm = unsafe { resource.u.sm };
    let all = call.core.profile.limits().multiprocessors;
    if padding[..8] != MARK || sm.smCount != count || first.checked_add(count).is_none_or(|end| end > all) {
        return Err(BAD_SHAPE);
    }
    Ok((device, Part { first, count, step: sm.minSmPartitionSize, whole: padding[20] != 0 }))
}

fn whole(call: &Call<'_>) -> Part {
    Part { first: 0, count: call.core.profile.limits().multiprocessors, step: STEP, whole: true }
}

fn only_multiprocessors(kind: CUdevResourceType) -> Res {
    match kind {
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM => Ok(()),
        _ => Err(BAD_TYPE),
    }
}

fn split(
    call: &Call<'_>,
    result: &Out<CUdevResource>,
    groups: &Out<c_uint>,
    input: &CUdevResource,
    remaining: &Out<CUdevResource>,
    flags: u32,
    least: u32,
) -> Res {
    groups.check()?;
    // Measured: both at once are refused, unknown flags are ignored.
    if flags & (IGNORE | CLUSTERS) == IGNORE | CLUSTERS {
        return Err(INVALID);
    }
    let (device, from) = part(call, input)?;
    // The output of a split cannot be split again before there is a context of it.
    if !from.whole || least > from.count {
        return Err(BAD_SHAPE);
    }
    let free = flags & IGNORE != 0;
    let step = if free { FREE_STEP } else { STEP };
    let size = least.max(step).next_multiple_of(step).min(from.count);
    // Of all multiprocessors one group of 8 less is made than there is room for: not every cluster of processors has two.
    let uneven = !free && size == STEP && from.count == call.core.profile.limits().multiprocessors;
    let most = from.count / size - u32::from(uneven);
    if result.is_null() {
        return groups.set(most);
    }
    let made = groups.get()?.min(most);
    for i in 0..made {
        let group = Part { first: from.first + i * size, count: size, step: 0, whole: false };
        result.set_at(i as usize, resource(device, group))?;
    }
    groups.set(made)?;
    let used = made * size;
    let rest = Part { first: from.first + used, count: from.count - used, step: 0, whole: false };
    if rest.count == 0 {
        remaining.set_if(CUdevResource {
            type_: CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID,
            ..resource(device, rest)
        });
    } else {
        remaining.set_if(resource(device, rest));
    }
    Ok(())
}

/// A green context by handle: its uid and what it is.
fn green<T>(call: &Call<'_>, handle: CUgreenCtx, get: impl FnOnce(u64, &GreenState) -> T) -> Res<T> {
    let state = call.core.state.lock();
    let uid = *state.green_handles.get(handle.0).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    let found = state.greens.get(&uid).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
    call.core.context_health(&state, found.primary)?;
    Ok(get(uid, found))
}

entries! {
    fn cuDeviceGetDevResource(call, device: CUdevice, out: *mut CUdevResource, kind: CUdevResourceType) {
        out.check()?;
        let device = call.core.device(device)?;
        only_multiprocessors(kind)?;
        out.set(resource(device, whole(call)))
    }

    fn cuCtxGetDevResource(call, context: CUcontext, out: *mut CUdevResource, kind: CUdevResourceType) {
        out.check()?;
        let context = call.context_from(context)?;
        only_multiprocessors(kind)?;
        let state = call.core.state.lock();
        let part = context.green.and_then(|green| state.greens.get(&green)).map(|green| green.part);
        out.set(resource(context.device, part.unwrap_or_else(|| whole(call))))
    }

    fn cuGreenCtxGetDevResource(call, handle: CUgreenCtx, out: *mut CUdevResource, kind: CUdevResourceType) {
        out.check()?;
        let (device, part) = green(call, handle, |_, green| (green.device, green.part))?;
        only_multiprocessors(kind)?;
        out.set(resource(device, part))
    }

    fn cuDevSmResourceSplitByCount(call, result: *mut CUdevResource, groups: *mut c_uint, input: *const CUdevResource, remaining: *mut CUdevResource, flags: c_uint, least: c_uint) {
        split(call, &result, &groups, &input.get()?, &remaining, flags, least)
    }

    fn cuDevResourceGenerateDesc(call, out: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint) {
        out.check()?;
        if count == 0 {
            return Err(INVALID);
        }
        let parts = (0..count as usize).map(|i| part(call, &resources.get_at(i)?)).collect::<Res<Vec<_>>>()?;
        let desc = merge(&parts)?;
        let mut state = call.core.state.lock();
        let handle = state.desc_handles.insert(desc).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        out.set(CUdevResourceDesc(handle))
    }

    fn cuGreenCtxCreate(call, out: *mut CUgreenCtx, desc: CUdevResourceDesc, device: CUdevice, flags: c_uint) {
        out.check()?;
        let device = call.core.device(device)?;
        if flags != CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0 {
            return Err(INVALID);
        }
        let (owner, part) = *call.core.state.lock().desc_handles.get(desc.0).map_err(|_| BAD_SHAPE)?;
        if owner != device {
            return Err(BAD_SHAPE);
        }
        let primary = super::context::retain_primary(call, device)?;
        match call.core.add_green(primary, device, part) {
            Ok(handle) => out.set(handle),
            Err(code) => {
                super::context::release_primary(call, device)?;
                Err(code)
            }
        }
    }

    fn cuGreenCtxDestroy(call, handle: CUgreenCtx) {
        let device = call.core.drop_green(handle)?;
        super::context::release_primary(call, device)
    }

    fn cuCtxFromGreenCtx(call, out: *mut CUcontext, handle: CUgreenCtx) {
        out.check()?;
        out.set(green(call, handle, |_, green| green.context)?)
    }

    fn cuGreenCtxStreamCreate(call, out: *mut CUstream, handle: CUgreenCtx, flags: c_uint, priority: c_int) {
        out.check()?;
        let (uid, primary) = green(call, handle, |uid, green| (uid, green.primary))?;
        if flags != CUstream_flags::CU_STREAM_NON_BLOCKING.0 {
            return Err(INVALID);
        }
        let (low, high) = call.core.profile.priorities();
        let mut state = call.core.state.lock();
        let made = call.core.add_stream(&mut state, primary, flags, priority.clamp(high, low), false);
        let (stream, handle) = made.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Some(stream) = state.streams.get_mut(&stream) {
            stream.green = Some(uid);
        }
        out.set(handle)
    }

    fn cuStreamGetGreenCtx(call, stream: CUstream, out: *mut CUgreenCtx) {
        out.check()?;
        let stream = call.stream(stream)?;
        let state = call.core.state.lock();
        let green = state.streams.get(&stream.uid).and_then(|stream| stream.green);
        out.set(green.and_then(|green| state.greens.get(&green)).map_or(CUgreenCtx::NULL, |green| green.handle))
    }

    fn cuGreenCtxRecordEvent(call, handle: CUgreenCtx, event: CUevent) {
        let uid = green(call, handle, |uid, _| uid)?;
        let (event, context) = super::event::event_uid(call, event)?;
        let state = call.core.state.lock();
        let primary = state.greens.get(&uid).map(|green| green.primary);
        drop(state);
        if primary != Some(context) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        call.core.record_green(uid, event)
    }

    fn cuGreenCtxWaitEvent(call, handle: CUgreenCtx, event: CUevent) {
        let uid = green(call, handle, |uid, _| uid)?;
        let (event, _) = super::event::event_uid(call, event)?;
        for stream in call.core.green_streams(uid)? {
            call.core.enqueue(&stream, Work::Wait(event))?;
        }
        Ok(())
    }
}

/// The multiprocessors of several resources of one device: side by side, none twice.
fn merge(parts: &[(i32, Part)]) -> Res<(i32, Part)> {
    let mut sorted = parts.to_vec();
    sorted.sort_by_key(|(_, part)| part.first);
    let (device, mut all) = *sorted.first().ok_or(INVALID)?;
    for (owner, part) in &sorted[1..] {
        if *owner != device || part.first != all.first + all.count {
            return Err(BAD_SHAPE);
        }
        all.count += part.count;
    }
    Ok((device, all))
}
