//! Launches: geometry, resources and parameters, checked as the real driver does.

use super::event::event_uid;
use super::function::{max_threads, occupancy};
use crate::core::{ContextRef, Res, StreamRef};
use crate::engine::capture::{LAUNCH_PORT, PROGRAMMATIC_PORT};
use crate::engine::launch::Launch;
use crate::engine::stale;
use crate::engine::work::Work;
use crate::entry::{Call, Out, entries, thread_number};
use crate::exec::{KernelInfo, KernelModel};
use crate::modules::Function;
use core::ffi::{c_uint, c_void};
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_CLUSTER: CUresult = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;

/// What a launch's attributes say.
#[derive(Default)]
pub(super) struct Attributes {
    pub(super) cluster: Option<[u32; 3]>,
    pub(super) cooperative: bool,
    pub(super) priority: Option<i32>,
    /// It may start while the kernel before it still runs.
    pub(super) programmatic: bool,
    /// Events to record after the kernel, each with the port that it stands for in a graph.
    pub(super) events: Vec<(CUevent, u8)>,
}

/// Reads the attributes of a launch configuration.
pub(super) fn attributes(config: &CUlaunchConfig) -> Res<Attributes> {
    let mut all = Attributes::default();
    if config.numAttrs > 0 && config.attrs.is_null() {
        return Err(INVALID);
    }
    for i in 0..config.numAttrs as usize {
        // SAFETY: the caller gives this many attributes.
        let attribute = unsafe { config.attrs.add(i).read_unaligned() };
        let value = attribute.value;
        type Id = CUlaunchAttributeID;
        match attribute.id {
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: the id says which variant was filled; integers have no invalid value.
                let dim = unsafe { value.clusterDim };
                all.cluster = Some([dim.x, dim.y, dim.z]);
            }
            Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: as above.
                all.cooperative = unsafe { value.cooperative } != 0;
            }
            Id::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                // SAFETY: as above.
                all.priority = Some(unsafe { value.priority });
            }
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
                // SAFETY: as above.
                let event = unsafe { value.programmaticEvent };
                all.events.push((event.event, PROGRAMMATIC_PORT));
            }
            Id::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                // SAFETY: as above.
                let event = unsafe { value.launchCompletionEvent };
                all.events.push((event.event, LAUNCH_PORT));
            }
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                // SAFETY: as above.
                unsafe { value.clusterSchedulingPolicyPreference }.name().ok_or(INVALID)?;
            }
            Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => {
                // SAFETY: as above.
                unsafe { value.memSyncDomain }.name().ok_or(INVALID)?;
            }
            // Only nodes of graphs can be updated from the device.
            Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                // SAFETY: as above.
                all.programmatic = unsafe { value.programmaticStreamSerializationAllowed } != 0;
            }
            // Preferences and hints.
            Id::CU_LAUNCH_ATTRIBUTE_IGNORE
            | Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION
            | Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            | Id::CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING => {}
            _ => return Err(INVALID),
        }
    }
    Ok(all)
}

/// Geometry of a launch.
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) dynamic: u32,
}

fn check_shape(call: &Call<'_>, function: &Function, shape: &Shape) -> Res {
    let (info, limits) = (function.info(), call.core.profile.limits());
    let in_limits =
        |given: &[u32; 3], most: &[u32; 3]| given.iter().zip(most).all(|(n, m)| (1..=*m).contains(n));
    if !in_limits(&shape.grid, &limits.grid) || !in_limits(&shape.block, &limits.block) {
        return Err(INVALID);
    }
    let threads = shape.block.iter().map(|&n| u64::from(n)).product::<u64>();
    if info.model == KernelModel::Tile && threads != 1 {
        return Err(INVALID);
    }
    let most = info.max_threads.unwrap_or(limits.threads_per_block).min(limits.threads_per_block);
    if threads > u64::from(most) || info.required_block.is_some_and(|block| block != shape.block) {
        return Err(INVALID);
    }
    if shape.dynamic > function.settings.max_dynamic_shared
        || info.static_shared_bytes.saturating_add(shape.dynamic) > limits.shared_per_block_optin
    {
        return Err(INVALID);
    }
    if threads > u64::from(max_threads(info, &limits)) {
        return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    Ok(())
}

/// The cluster of a launch: compiled in, set on the function, or given.
fn cluster(call: &Call<'_>, function: &Function, given: Option<[u32; 3]>, grid: [u32; 3]) -> Res<[u32; 3]> {
    let limits = call.core.profile.limits();
    let set = function.settings.cluster;
    let set = (set != [0; 3]).then(|| set.map(|n| n.max(1)));
    let shape = match (set, given) {
        (Some(set), Some(given)) if set != given => return Err(INVALID_CLUSTER),
        (set, given) => set.or(given).unwrap_or([1; 3]),
    };
    let blocks = shape.iter().map(|&n| u64::from(n)).product::<u64>();
    let most =
        if function.settings.non_portable_cluster { limits.max_cluster } else { limits.portable_cluster };
    if call.core.config.lacking().clusters && set.or(given).is_some_and(|shape| shape != [1; 3]) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let divides = shape.iter().zip(&grid).all(|(&n, &grid)| n > 0 && grid % n == 0);
    if !divides || blocks > u64::from(most) {
        return Err(INVALID_CLUSTER);
    }
    Ok(shape)
}

/// The cluster of a node's launch when an attribute changes it.
pub(super) fn checked_cluster(
    call: &Call<'_>,
    handle: CUfunction,
    shape: &Shape,
    given: [u32; 3],
) -> Res<[u32; 3]> {
    cluster(call, &call.core.modules.function(handle)?, Some(given), shape.grid)
}

/// Ends of the `extra` list, and what its parts are.
const EXTRA_END: usize = 0;
const EXTRA_POINTER: usize = 1;
const EXTRA_SIZE: usize = 2;

/// Copies the parameters of a launch.
fn params(info: &KernelInfo, list: &Out<*mut c_void>, extra: &Out<*mut c_void>) -> Res<Vec<u8>> {
    let total = info.params.iter().map(|p| p.offset as usize + p.bytes as usize).max().unwrap_or(0);
    match (list.is_null(), extra.is_null()) {
        (false, false) => Err(INVALID),
        (true, true) if total > 0 => Err(INVALID),
        (true, true) => Ok(Vec::new()),
        (false, true) => {
            let mut bytes = vec![0; total];
            for (i, param) in info.params.iter().enumerate() {
                let pointer = list.get_at(i)?.cast::<u8>().cast_const();
                if pointer.is_null() {
                    return Err(INVALID);
                }
                let target = &mut bytes[param.offset as usize..][..param.bytes as usize];
                // SAFETY: the caller gives a pointer to each parameter's value.
                unsafe { pointer.copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) };
            }
            Ok(bytes)
        }
        (true, false) => buffer(total, extra),
    }
}

/// The parameter buffer of the `extra` list.
fn buffer(total: usize, extra: &Out<*mut c_void>) -> Res<Vec<u8>> {
    let (mut pointer, mut size) = (core::ptr::null::<u8>(), None);
    let mut at = 0;
    loop {
        match extra.get_at(at)?.addr() {
            EXTRA_END => break,
            EXTRA_POINTER => pointer = extra.get_at(at + 1)?.cast::<u8>().cast_const(),
            EXTRA_SIZE => {
                let value = extra.get_at(at + 1)?.cast::<usize>().cast_const();
                if value.is_null() {
                    return Err(INVALID);
                }
                // SAFETY: the caller gives a pointer to the size.
                size = Some(unsafe { value.read_unaligned() });
            }
            _ => return Err(INVALID),
        }
        at += 2;
    }
    let size = size.ok_or(INVALID)?;
    // Trailing padding may be there or not.
    if size < total || size > total.next_multiple_of(16) || (pointer.is_null() && total > 0) {
        return Err(INVALID);
    }
    let mut bytes = vec![0; total];
    // SAFETY: the caller gives a buffer of `size` bytes, which is at least `total`.
    unsafe { pointer.copy_to_nonoverlapping(bytes.as_mut_ptr(), total) };
    Ok(bytes)
}

/// A launch with everything resolved and checked; `context` is the stream's, or the one that a node names. A
/// null handle of a context means the function's own.
pub(super) fn prepare(
    call: &Call<'_>,
    handle: CUfunction,
    shape: &Shape,
    context: Option<ContextRef>,
    attributes: &Attributes,
    list: &Out<*mut c_void>,
    extra: &Out<*mut c_void>,
) -> Res<Launch> {
    let function = match call.core.modules.function(handle) {
        Ok(function) => function,
        // A library's kernel: its function in the stream's context.
        Err(code) => {
            let kernel = CUkernel(handle.0);
            call.core.modules.kernel(kernel).map_err(|_| code)?;
            let context = match context {
                Some(context) => context,
                None => call.context()?,
            };
            let function = call.core.modules.kernel_function(call.core, kernel, context)?;
            call.core.modules.function(function)?
        }
    };
    if context.is_some_and(|context| context.uid != function.context.uid) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    check_shape(call, &function, shape)?;
    let cluster = cluster(call, &function, attributes.cluster, shape.grid)?;
    let info = function.info();
    let params = params(info, list, extra)?;
    let limits = call.core.profile.limits();
    let multiprocessors = call.core.state.lock().multiprocessors(context.and_then(|context| context.green));
    if attributes.cooperative {
        let threads = shape.block.iter().product();
        let each = occupancy(info, &limits, threads, shape.dynamic as usize);
        let blocks = shape.grid.iter().map(|&n| u64::from(n)).product::<u64>();
        let all = multiprocessors.unwrap_or(limits.multiprocessors);
        if blocks > u64::from(each) * u64::from(all) {
            return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    let places = info.params.iter().map(|param| (param.offset as usize, param.bytes as usize));
    let pointers = stale::pointers(call.core, &params, places);
    Ok(Launch {
        function: handle,
        context: function.context.uid,
        loaded: function.loaded.clone(),
        kernel: function.kernel,
        grid: shape.grid,
        block: shape.block,
        cluster,
        dynamic_shared_bytes: shape.dynamic,
        cooperative: attributes.cooperative,
        programmatic: attributes.programmatic,
        params,
        priority: attributes.priority,
        hints: Default::default(),
        multiprocessors,
        declared: None,
        pointers,
    })
}

fn launch(
    call: &Call<'_>,
    handle: CUfunction,
    shape: &Shape,
    stream: CUstream,
    attributes: Attributes,
    list: &Out<*mut c_void>,
    extra: &Out<*mut c_void>,
) -> Res {
    let stream: StreamRef = call.stream(stream)?;
    // Of this launch, also if it is refused.
    let declared = call.core.declared.lock().remove(&(thread_number(), stream.uid));
    let mut launch = prepare(call, handle, shape, Some(stream.context), &attributes, list, extra)?;
    let resolve = |&(event, port)| Ok((event_uid(call, event)?, port));
    let events = attributes.events.iter().map(resolve).collect::<Res<Vec<((u64, u64), u8)>>>()?;
    if events.iter().any(|&((_, context), _)| context != stream.context.uid) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    if !call.core.captures(&stream) {
        let kernel = launch.loaded.program.kernels().get(launch.kernel);
        grow_local_memory(call, &stream, kernel.map_or(0, |kernel| kernel.local_bytes))?;
    }
    launch.declared = declared;
    call.core.enqueue(&stream, Work::Launch(Arc::new(launch)))?;
    for ((event, _), port) in events {
        call.core.enqueue(&stream, Work::Record(event))?;
        if call.core.captures(&stream) {
            call.core.state.lock().captured_at_port(event, port);
        }
    }
    Ok(())
}

/// The first launch with more local memory than the context has had waits for everything.
fn grow_local_memory(call: &Call<'_>, stream: &StreamRef, bytes: u32) -> Res {
    let grows = {
        let state = call.core.state.lock();
        state.contexts.get(&stream.context.uid).is_some_and(|context| {
            let stack = context.limit(CUlimit::CU_LIMIT_STACK_SIZE).unwrap_or(0);
            bytes > context.local_bytes && bytes as usize > stack
        })
    };
    if grows {
        call.core.stall(&stream.context)?;
        let mut state = call.core.state.lock();
        if let Some(context) = state.contexts.get_mut(&stream.context.uid) {
            context.local_bytes = context.local_bytes.max(bytes);
        }
    }
    Ok(())
}

entries! {
    fn cuLaunchKernel(call, function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, dynamic: c_uint, stream: CUstream, list: *mut *mut c_void, extra: *mut *mut c_void) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], dynamic };
        launch(call, function, &shape, stream, Attributes::default(), &list, &extra)
    }

    fn cuLaunchKernelEx(call, config: *const CUlaunchConfig, function: CUfunction, list: *mut *mut c_void, extra: *mut *mut c_void) {
        let config = config.get()?;
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            dynamic: config.sharedMemBytes,
        };
        let attributes = attributes(&config)?;
        launch(call, function, &shape, config.hStream, attributes, &list, &extra)
    }

    fn cuLaunchCooperativeKernel(call, function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, dynamic: c_uint, stream: CUstream, list: *mut *mut c_void) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], dynamic };
        let attributes = Attributes { cooperative: true, ..Attributes::default() };
        launch(call, function, &shape, stream, attributes, &list, &Out::null())
    }
}
