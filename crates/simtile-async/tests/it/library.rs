//! L6: a library of somebody else. Its kernels are machine code alone, so the simulator runs a stand-in for them; its calls take a raw
//! stream, a handle and a workspace, as vendor libraries' do.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{CudaGraph, download, external, upload, write};
use simtile_core::{DeviceBuffer, MemPool};
use simtile_driver::sys::*;
use simtile_driver::{Driver, call};
use simtile_sim::Simulator;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

static CUBIN: &[u8] = include_bytes!("../../../../artifacts/tile_rs/rs_vadd_f32.cubin");
const SOON: Duration = Duration::from_secs(10);
const SCRATCH: usize = 4096;

/// The library: what its handle holds.
struct Library {
    driver: Driver,
    module: CUmodule,
    add: CUfunction,
    closed: Arc<AtomicUsize>,
}

impl Library {
    /// `libraryCreate`.
    fn open(sim: &Simulator, closed: &Arc<AtomicUsize>) -> Arc<Self> {
        sim.register_stand_in("rs_vadd_f32", |call| {
            let pointer = |at| call.param(at).map(u64::from_le_bytes);
            let n = u64::from(u32::from_le_bytes(call.param(8)?));
            for i in 0..n {
                let (mut a, mut b) = ([0; 4], [0; 4]);
                call.read(pointer(0)? + 4 * i, &mut a)?;
                call.read(pointer(16)? + 4 * i, &mut b)?;
                let sum = f32::from_le_bytes(a) + f32::from_le_bytes(b);
                call.write(pointer(32)? + 4 * i, &sum.to_le_bytes())?;
            }
            Ok(())
        });
        let driver = sim.driver();
        let (mut module, mut add) = (CUmodule::NULL, CUfunction::NULL);
        // SAFETY: a context is current on this thread; the image is whole; the out-pointers are valid.
        unsafe {
            call!(driver, cuModuleLoadData(&mut module, CUBIN.as_ptr().cast())).unwrap();
            call!(driver, cuModuleGetFunction(&mut add, module, c"rs_vadd_f32".as_ptr())).unwrap();
        }
        Arc::new(Self { driver, module, add, closed: closed.clone() })
    }

    /// `libraryAdd`: c = a + b, by way of the workspace.
    fn add(
        &self,
        stream: CUstream,
        [a, b, c]: [CUdeviceptr; 3],
        n: u32,
        workspace: CUdeviceptr,
    ) -> Result<(), OpError> {
        let one = 1u32;
        let mut params: [*mut core::ffi::c_void; 9] = core::array::from_fn(|_| core::ptr::null_mut());
        let pointers = [a, workspace, c];
        for (at, pointer) in pointers.iter().enumerate() {
            params[3 * at] = core::ptr::from_ref(pointer).cast_mut().cast();
            params[3 * at + 1] = core::ptr::from_ref(&n).cast_mut().cast();
            params[3 * at + 2] = core::ptr::from_ref(&one).cast_mut().cast();
        }
        let failed = |error: simtile_driver::DriverError| OpError::user(error);
        // SAFETY: the caller's buffers have `n` floats each, the workspace as many at least; the function is loaded.
        unsafe {
            call!(self.driver, cuMemcpyDtoDAsync(workspace, b, 4 * n as usize, stream)).map_err(failed)?;
            let none = core::ptr::null_mut();
            call!(
                self.driver,
                cuLaunchKernel(self.add, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), none)
            )
            .map_err(failed)
        }
    }
}

impl Drop for Library {
    /// `libraryDestroy`.
    fn drop(&mut self) {
        // SAFETY: we loaded it. The call waits for what still runs.
        let _ = unsafe { self.driver.cuModuleUnload(self.module) };
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

type Three = (DeviceBuffer<f32>, DeviceBuffer<f32>, DeviceBuffer<f32>);

/// The library's call as an operation.
fn add(library: Arc<Library>, three: Three) -> impl DeviceOp<Output = Three> + use<> {
    let n = three.0.len() as u32;
    let raw = [three.0.cu_deviceptr(), three.1.cu_deviceptr(), three.2.cu_deviceptr()];
    let handle = library.clone();
    // SAFETY: the call reads the first two buffers and writes the third, of `n` floats each, into the given stream.
    let call = unsafe {
        external(
            "libraryAdd",
            three,
            |three: &mut Three, touches| touches.read(&three.0).read(&three.1).write(&mut three.2),
            move |at| {
                assert!(at.workspace != 0 && at.workspace_bytes == SCRATCH);
                library.add(at.stream, raw, n, at.workspace)
            },
        )
    };
    call.workspace(SCRATCH).holding(handle)
}

fn three(rig: &Rig) -> Three {
    let buffer = |value: f32| DeviceBuffer::from_slice(&rig.stream, &[value; 100]).unwrap();
    (buffer(1.0), buffer(2.0), buffer(0.0))
}

#[test]
fn a_library_call_keeps_its_handle_and_its_workspace_until_the_work_ends() {
    let rig = rig();
    let closed = Arc::default();
    let buffers = three(&rig);
    rig.stream.synchronize().unwrap();
    let library = Library::open(&rig.sim, &closed);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let (a, b, c) = add(library, buffers).labelled("sum").enqueue_on(&rig.stream).unwrap();
    drop((a, b));
    // Whoever wants memory meanwhile gets other memory.
    let other = rig.context.new_stream().unwrap();
    for _ in 0..10 {
        assert_eq!(upload(vec![-1.0f32; 1024]).then(download).sync_on(&other).unwrap(), [-1.0; 1024]);
    }
    assert_eq!(closed.load(Ordering::SeqCst), 0, "the work may still use the handle");
    gate.open();
    assert_eq!(c.to_vec(&other).unwrap(), [3.0; 100]);
    drop(c);
    assert!(rig.context.drain(SOON).is_complete() && simtile_core::drain_background(SOON));
    assert_eq!(closed.load(Ordering::SeqCst), 1);
    assert_eq!((rig.context.stats().live_allocations, rig.context.stats().foreign_allocations), (0, 0));
    rig.clean();
}

#[test]
fn a_captured_library_call_keeps_them_as_long_as_the_graph() {
    let rig = rig();
    let closed = Arc::default();
    let library = Library::open(&rig.sim, &closed);
    let graph = CudaGraph::capture(&rig.stream, add(library, three(&rig))).unwrap();
    let (mut a, b, c) = graph.take_output().unwrap();
    for value in [5.0f32, 7.0] {
        write(&mut a, vec![value; 100]).sync_on(&rig.stream).unwrap();
        graph.launch().sync_on(&rig.stream).unwrap();
        assert_eq!(c.to_vec(&rig.stream).unwrap(), [value + 2.0; 100]);
    }
    let launch = graph.launch();
    drop(graph);
    assert_eq!(closed.load(Ordering::SeqCst), 0, "a launch of the graph is left");
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    launch.enqueue_on(&rig.stream).unwrap();
    assert_eq!(closed.load(Ordering::SeqCst), 0, "the replay runs");
    gate.open();
    drop((a, b, c));
    assert!(rig.context.drain(SOON).is_complete() && simtile_core::drain_background(SOON));
    until("the library to close", || closed.load(Ordering::SeqCst) == 1);
    rig.clean();
}

#[test]
fn a_workspace_comes_from_the_pool_of_where_the_call_runs() {
    let rig = rig();
    let closed = Arc::default();
    let library = Library::open(&rig.sim, &closed);
    let pools = |context: &_| MemPool::builder(context).limit(1 << 20).label("scratch").build();
    let runtime = Runtime::builder().driver(rig.sim.driver()).streams(1).pools(pools).build().unwrap();
    let pool = runtime.pool(0).unwrap().unwrap().clone();
    let buffers = three(&rig);
    rig.stream.synchronize().unwrap();
    let future = add(library.clone(), buffers).schedule(&runtime).unwrap();
    let (a, b, c) = block_on(future).unwrap();
    assert_eq!(c.to_vec(&rig.stream).unwrap(), [3.0; 100]);
    assert!(pool.stats().unwrap().used_high >= SCRATCH as u64, "{:?}", pool.stats());
    // A pool that is too small refuses, and nothing was queued.
    let small = |context: &_| MemPool::builder(context).limit(1024).label("small").build();
    let runtime = Runtime::builder().driver(rig.sim.driver()).streams(1).pools(small).build().unwrap();
    let future = add(library, (a, b, c)).schedule(&runtime).unwrap();
    let error = block_on(future).unwrap_err();
    assert!(error.to_string().contains("small"), "{error}");
    rig.clean();
}

crate::schedules::explored!(
    a_library_call_keeps_its_handle_and_its_workspace_until_the_work_ends
    a_captured_library_call_keeps_them_as_long_as_the_graph
    a_workspace_comes_from_the_pool_of_where_the_call_runs
);
