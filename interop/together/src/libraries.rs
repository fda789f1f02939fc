//! Libraries as operations: cuBLAS and NCCL, called through cudarc's bindings, eagerly and inside captured graphs.
//!
//! They run on a real GPU alone: no simulator can run their kernels.

use crate::{Check, Theirs, expect};
use cudarc::{cublas::sys as cublas, nccl::sys as nccl};
use simtile::driver::sys::CUstream;
use simtile::ops::{CudaGraph, DeviceOp, ExternalStream, OpError, external};
use simtile::{Context, DeviceBuffer, Runtime, Stream};
use std::sync::Arc;

/// Rows and columns of every matrix.
const SIDE: usize = 96;
const WORKSPACE: usize = 32 << 20;

fn blas_ok(what: &str, status: cublas::cublasStatus_t) -> Result<(), OpError> {
    match status {
        cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(OpError::user(format!("{what}: {status:?}"))),
    }
}

fn nccl_ok(what: &str, status: nccl::ncclResult_t) -> Result<(), OpError> {
    match status {
        nccl::ncclResult_t::ncclSuccess => Ok(()),
        status => Err(OpError::user(format!("{what}: {status:?}"))),
    }
}

/// A handle of cuBLAS. It is used under the lock of the stream that it is given, one call at a time.
struct Blas(cublas::cublasHandle_t);

// SAFETY: cuBLAS allows a handle on any thread, one call at a time.
unsafe impl Send for Blas {}

impl Blas {
    fn new() -> Result<Self, OpError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        blas_ok("cublasCreate", unsafe { cublas::cublasCreate_v2(&mut handle) })?;
        Ok(Self(handle))
    }

    /// `c = a b`, row by row: cuBLAS counts columns first, so it is told `c' = b' a'`.
    fn gemm(&self, stream: CUstream, workspace: u64, a: u64, b: u64, c: u64) -> Result<(), OpError> {
        let (one, zero, side) = (1.0f32, 0.0f32, SIDE as i32);
        let none = cublas::cublasOperation_t::CUBLAS_OP_N;
        // SAFETY: the handle is alive; the addresses are those of live matrices and of a workspace of that size, named to the runtime.
        unsafe {
            blas_ok("cublasSetStream", cublas::cublasSetStream_v2(self.0, stream.as_ptr().cast()))?;
            let own = std::ptr::without_provenance_mut(workspace as usize);
            blas_ok("cublasSetWorkspace", cublas::cublasSetWorkspace_v2(self.0, own, WORKSPACE))?;
            let at = |address: u64| std::ptr::without_provenance_mut::<f32>(address as usize);
            let status = cublas::cublasSgemm_v2(
                self.0,
                none,
                none,
                side,
                side,
                side,
                &one,
                at(b),
                side,
                at(a),
                side,
                &zero,
                at(c),
                side,
            );
            blas_ok("cublasSgemm", status)
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used any more.
        unsafe { cublas::cublasDestroy_v2(self.0) };
    }
}

/// `a`, `b`, `c`, and a workspace from the context's pool.
type Matrices = (DeviceBuffer<f32>, DeviceBuffer<f32>, DeviceBuffer<f32>, DeviceBuffer<u8>);

fn gemm(matrices: Matrices, blas: &Arc<std::sync::Mutex<Blas>>) -> impl DeviceOp<Output = Matrices> {
    let blas = blas.clone();
    let (a, b, c) = (matrices.0.cu_deviceptr(), matrices.1.cu_deviceptr(), matrices.2.cu_deviceptr());
    let workspace = matrices.3.cu_deviceptr();
    let queue = move |at: ExternalStream| match blas.lock() {
        Ok(blas) => blas.gemm(at.stream, workspace, a, b, c),
        Err(_) => Err(OpError::user("another call has panicked")),
    };
    // SAFETY: the product reads `a` and `b` and writes `c` and the workspace, on the stream that it is given. The handle is kept by
    // the caller until everything has finished.
    unsafe {
        external(
            "sgemm",
            matrices,
            |m, touches| touches.read(&m.0).read(&m.1).write(&mut m.2).write(&mut m.3),
            queue,
        )
    }
}

/// Products of whole numbers: exact in `f32`.
fn product(a: &[f32], b: &[f32]) -> Vec<f32> {
    let at = |i: usize| {
        let (row, column) = (i / SIDE, i % SIDE);
        (0..SIDE).map(|k| a[row * SIDE + k] * b[k * SIDE + column]).sum()
    };
    (0..SIDE * SIDE).map(at).collect()
}

fn matrix(seed: usize) -> Vec<f32> {
    (0..SIDE * SIDE).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
}

/// A product eagerly, with a writer of another stream before it and a reader of another behind it; the same in a graph, replayed with
/// other values.
pub fn cublas() -> Check {
    let theirs = Theirs::new()?;
    theirs.context.bind_to_thread()?;
    let context = Runtime::new()?.device(0)?.primary_context()?;
    let blas = Arc::new(std::sync::Mutex::new(Blas::new()?));
    let (before, stream, behind) = (context.new_stream()?, context.new_stream()?, context.new_stream()?);
    let (a, b) = (matrix(1), matrix(2));
    let matrices: Matrices = (
        DeviceBuffer::from_slice(&before, &a)?,
        DeviceBuffer::from_slice(&before, &b)?,
        DeviceBuffer::zeroed(&behind, SIDE * SIDE)?,
        DeviceBuffer::zeroed(&stream, WORKSPACE)?,
    );
    let matrices = gemm(matrices, &blas).enqueue_on(&stream)?;
    expect("eager", &matrices.2.to_vec(&behind)?, &product(&a, &b))?;

    let graph = CudaGraph::capture(&stream, gemm(matrices, &blas))?;
    let Some(mut matrices) = graph.take_output() else { return Err("the graph has no output".into()) };
    for round in 3..6 {
        let a = matrix(round);
        // From another stream, between replays: the graph follows.
        matrices.0.copy_from_slice(&before, &a)?;
        graph.launch().enqueue_on(&stream)?;
        expect("graph", &matrices.2.to_vec(&behind)?, &product(&a, &b))?;
    }
    drop((graph, matrices));
    finish(&[context])
}

/// One rank of a communicator, used under the lock of its stream.
struct Rank(nccl::ncclComm_t);

// SAFETY: NCCL allows a communicator on any thread, one call at a time.
unsafe impl Send for Rank {}

/// The sum over all devices (two if there are two), eagerly, and inside a graph if there is one device.
///
/// A collective waits for the other devices: it says so ([`simtile::ops::External::waits_outside`]). Refuses to start unless
/// NCCL's use of NVLink multicast is off, which may take devices out of service that others use.
pub fn nccl() -> Check {
    if std::env::var("NCCL_NVLS_ENABLE").as_deref() != Ok("0") {
        return Err("set NCCL_NVLS_ENABLE=0: this program does not use NVLink multicast".into());
    }
    let runtime = Runtime::new()?;
    let count = runtime.devices()?.len().min(2);
    let devices: Vec<i32> = (0..count as i32).collect();
    let mut raw: Vec<nccl::ncclComm_t> = vec![std::ptr::null_mut(); count];
    let theirs = Theirs::new()?;
    theirs.context.bind_to_thread()?;
    // SAFETY: both lists have `count` places.
    nccl_ok("ncclCommInitAll", unsafe {
        nccl::ncclCommInitAll(raw.as_mut_ptr(), count as i32, devices.as_ptr())
    })?;
    let ranks: Vec<_> = raw.iter().map(|&rank| Arc::new(std::sync::Mutex::new(Rank(rank)))).collect();
    let contexts = (0..count)
        .map(|i| Ok(runtime.device(i)?.primary_context()?))
        .collect::<Result<Vec<_>, simtile::core::Error>>();
    let contexts: Vec<Arc<Context>> = contexts?;
    let streams: Vec<Arc<Stream>> =
        contexts.iter().map(|context| context.new_stream()).collect::<Result<_, _>>()?;
    let values = |rank: usize| -> Vec<f32> { (0..10_000).map(|i| (i % 100 + rank) as f32).collect() };
    let sum: Vec<f32> = (0..10_000).map(|i| (0..count).map(|rank| (i % 100 + rank) as f32).sum()).collect();
    let mut pairs = Vec::new();
    for (rank, stream) in streams.iter().enumerate() {
        pairs.push((
            DeviceBuffer::from_slice(stream, &values(rank))?,
            DeviceBuffer::<f32>::zeroed(stream, 10_000)?,
        ));
    }
    // Each rank from a thread of its own: a call may wait for the others.
    let pairs: Vec<Result<(DeviceBuffer<f32>, DeviceBuffer<f32>), OpError>> = std::thread::scope(|scope| {
        let handles: Vec<_> = pairs
            .into_iter()
            .zip(&ranks)
            .zip(&streams)
            .map(|((pair, rank), stream)| scope.spawn(move || all_reduce(pair, rank).enqueue_on(stream)))
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err(OpError::user("a rank has panicked"))))
            .collect()
    });
    let mut pairs = pairs.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (pair, context) in pairs.iter().zip(&contexts) {
        // Another stream: behind the collective.
        expect("sum", &pair.1.to_vec(&context.new_stream()?)?, &sum)?;
    }
    if let (1, Some(mut pair)) = (count, pairs.pop()) {
        pair.1.zero(&streams[0])?;
        let graph = CudaGraph::capture(&streams[0], all_reduce(pair, &ranks[0]))?;
        let Some(pair) = graph.take_output() else { return Err("the graph has no output".into()) };
        graph.launch().enqueue_on(&streams[0])?;
        expect("sum in a graph", &pair.1.to_vec(&streams[0])?, &sum)?;
    }
    println!("nccl: {count} device{}", if count == 1 { "" } else { "s" });
    drop((pairs, streams));
    finish(&contexts)?;
    for rank in raw {
        // SAFETY: made above; all its work has finished.
        nccl_ok("ncclCommDestroy", unsafe { nccl::ncclCommDestroy(rank) })?;
    }
    Ok(())
}

type Pair = (DeviceBuffer<f32>, DeviceBuffer<f32>);

fn all_reduce(pair: Pair, rank: &Arc<std::sync::Mutex<Rank>>) -> impl DeviceOp<Output = Pair> + use<> {
    let (rank, from, to, len) = (rank.clone(), pair.0.cu_deviceptr(), pair.1.cu_deviceptr(), pair.0.len());
    let queue = move |at: ExternalStream| {
        let Ok(rank) = rank.lock() else { return Err(OpError::user("another call has panicked")) };
        let (kind, sum) = (nccl::ncclDataType_t::ncclFloat32, nccl::ncclRedOp_t::ncclSum);
        let source = std::ptr::without_provenance(from as usize);
        let target = std::ptr::without_provenance_mut(to as usize);
        // SAFETY: the communicator is alive; both addresses are those of `len` values, named to the runtime.
        nccl_ok("ncclAllReduce", unsafe {
            nccl::ncclAllReduce(source, target, len, kind, sum, rank.0, at.stream.as_ptr().cast())
        })
    };
    // SAFETY: the collective reads the first buffer and writes the second, on the stream that it is given; the communicator is kept by
    // the caller until everything has finished.
    unsafe { external("all-reduce", pair, |pair, touches| touches.read(&pair.0).write(&mut pair.1), queue) }
        .waits_outside()
}

fn finish(contexts: &[Arc<Context>]) -> Check {
    for context in contexts {
        let drained = context.drain(std::time::Duration::from_secs(20));
        if !drained.is_complete() {
            return Err(format!("work is left over: {drained:?}").into());
        }
    }
    Ok(())
}
