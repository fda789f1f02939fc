//! A library of somebody else, as far as this program knows it: a handle, and a call that takes a raw stream and a workspace.
//!
//! Its kernel is machine code. On a GPU it runs; on a simulated device, which cannot run it, a Rust function stands in for it.
#![allow(unsafe_code, reason = "a library calls the driver")]

use simtile::driver::call;
use simtile::driver::sys::{CUdeviceptr, CUstream};
use simtile::{Context, Driver, DriverError, Function, Module, ModuleError, OpError, Runtime};
use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The library's code: adds two vectors.
static CODE: &[u8] = include_bytes!("../../../../../artifacts/tile_rs/rs_vadd_f32.cubin");

/// Elements of a block.
const TILE: u32 = 1024;

/// What the library's handle holds.
pub struct Library {
    driver: Driver,
    add: Function,
    calls: AtomicUsize,
}

impl Library {
    /// Opens it; `None` if it has no code for the device.
    pub fn open(runtime: &Runtime, context: &Arc<Context>) -> Result<Option<Arc<Self>>, Box<dyn Error>> {
        if let Some(simulator) = runtime.simulator() {
            simulator.register_stand_in("rs_vadd_f32", |call| {
                let pointer = |at| call.param(at).map(u64::from_le_bytes);
                let (a, b, c) = (pointer(0)?, pointer(16)?, pointer(32)?);
                let len = u64::from(u32::from_le_bytes(call.param(8)?));
                for at in (0..4 * len).step_by(4) {
                    let (mut left, mut right) = ([0; 4], [0; 4]);
                    call.read(a + at, &mut left)?;
                    call.read(b + at, &mut right)?;
                    let sum = f32::from_le_bytes(left) + f32::from_le_bytes(right);
                    call.write(c + at, &sum.to_le_bytes())?;
                }
                Ok(())
            });
        }
        let module: Arc<Module> = match context.load_module(CODE) {
            Ok(module) => module,
            Err(ModuleError::WrongArchitecture { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (driver, add) = (context.driver(), module.load_function("rs_vadd_f32")?);
        Ok(Some(Arc::new(Self { driver, add, calls: AtomicUsize::new(0) })))
    }

    /// How often its code has been queued.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// `to = from + from`, by way of the workspace. It only queues.
    pub fn doubled(
        &self,
        stream: CUstream,
        from: CUdeviceptr,
        to: CUdeviceptr,
        len: u32,
        workspace: CUdeviceptr,
    ) -> Result<(), OpError> {
        let stride = 1u32;
        let pointers = [from, workspace, to];
        let mut params: Vec<*mut c_void> = Vec::new();
        for pointer in &pointers {
            params.push(std::ptr::from_ref(pointer).cast_mut().cast());
            params.push(std::ptr::from_ref(&len).cast_mut().cast());
            params.push(std::ptr::from_ref(&stride).cast_mut().cast());
        }
        let failed = |error: DriverError| OpError::user(error);
        let (driver, blocks) = (self.driver, len.div_ceil(TILE));
        // SAFETY: all three have `len` floats; the parameters are those of the kernel, and are read before the call returns.
        unsafe {
            call!(driver, cuMemcpyDtoDAsync(workspace, from, 4 * len as usize, stream)).map_err(failed)?;
            let (function, none) = (self.add.cu_function(), std::ptr::null_mut());
            call!(
                driver,
                cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), none)
            )
            .map_err(failed)?;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
