//! A device behind the driver's table: enough to load a module, launch its kernels and read memory back.

use bytemuck::Pod;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_sim::Simulator;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};

/// Device 0 of a driver, its primary context current on this thread.
pub struct Device {
    driver: Driver,
    simulator: Option<Simulator>,
    capability: (i32, i32),
    live: RefCell<Vec<CUdeviceptr>>,
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    pub cooperative: bool,
    /// Blocks of a cluster along x, if the launch says so.
    pub cluster: Option<u32>,
}

impl Launch {
    pub const fn of(grid: u32, block: u32) -> Self {
        Self { grid: [grid, 1, 1], block: [block, 1, 1], shared: 0, cooperative: false, cluster: None }
    }
}

fn text(error: DriverError) -> String {
    error.to_string()
}

impl Device {
    /// `cuda`, `sim`, or the path of a driver library.
    pub fn open(name: &str) -> Result<Self, String> {
        let (driver, simulator) = match name {
            "cuda" => (Driver::cuda().map_err(|e| e.to_string())?, None),
            "sim" => {
                // Without a bound of its own, a simulated kernel that never ends would hang the run.
                let simulator = Simulator::builder().seed(1).quiet().build();
                (simulator.driver(), Some(simulator))
            }
            path => (Driver::open(path).map_err(|e| e.to_string())?, None),
        };
        let mut device = 0;
        let mut context = CUcontext::NULL;
        let mut capability = (0, 0);
        // SAFETY: every out-pointer is valid for its call.
        unsafe {
            call!(driver, cuInit(0)).map_err(text)?;
            call!(driver, cuDeviceGet(&mut device, 0)).map_err(text)?;
            call!(driver, cuDevicePrimaryCtxRetain(&mut context, device)).map_err(text)?;
            call!(driver, cuCtxSetCurrent(context)).map_err(text)?;
            let major = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
            let minor = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
            call!(driver, cuDeviceGetAttribute(&mut capability.0, major, device)).map_err(text)?;
            call!(driver, cuDeviceGetAttribute(&mut capability.1, minor, device)).map_err(text)?;
        }
        Ok(Self { driver, simulator, capability, live: RefCell::default() })
    }

    /// Whether the simulator runs in this process.
    pub fn is_simulated(&self) -> bool {
        self.simulator.is_some()
    }

    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// What the simulator's checks found since the last call.
    pub fn findings(&self) -> Vec<String> {
        let reports = self.simulator.as_ref().map(Simulator::take_reports).unwrap_or_default();
        reports.iter().map(ToString::to_string).collect()
    }

    /// Loads a binary, or text that ends with a NUL.
    pub fn load(&self, image: &[u8]) -> Result<CUmodule, String> {
        let mut module = CUmodule::NULL;
        let mut log = vec![0u8; 4096];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        // SAFETY: the image and the option arrays live through the call, and the log has the size given.
        let loaded = unsafe {
            call!(
                self.driver,
                cuModuleLoadDataEx(
                    &mut module,
                    image.as_ptr().cast(),
                    2,
                    options.as_mut_ptr(),
                    values.as_mut_ptr()
                )
            )
        };
        loaded.map_err(|error| {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            format!("{error}: {}", log.trim().replace('\n', " | "))
        })?;
        Ok(module)
    }

    pub fn unload(&self, module: CUmodule) -> Result<(), String> {
        // SAFETY: the caller launches nothing of this module any more, and everything launched was waited for.
        unsafe { call!(self.driver, cuModuleUnload(module)).map_err(text) }
    }

    pub fn function(&self, module: CUmodule, name: &str) -> Result<CUfunction, String> {
        let name = CString::new(name).map_err(|e| e.to_string())?;
        let mut function = CUfunction::NULL;
        // SAFETY: the out-pointer and the name are valid for the call.
        unsafe {
            call!(self.driver, cuModuleGetFunction(&mut function, module, name.as_ptr())).map_err(text)?
        };
        Ok(function)
    }

    /// Device memory with these values, freed by [`release`](Self::release).
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<CUdeviceptr, String> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut pointer = 0;
        // SAFETY: the out-pointer is valid, and the copy reads the slice's bytes.
        unsafe {
            call!(self.driver, cuMemAlloc(&mut pointer, bytes.len().max(1))).map_err(text)?;
            self.live.borrow_mut().push(pointer);
            if !bytes.is_empty() {
                call!(self.driver, cuMemcpyHtoD(pointer, bytes.as_ptr().cast(), bytes.len()))
                    .map_err(text)?;
            }
        }
        Ok(pointer)
    }

    /// Bytes of device memory, after everything before.
    pub fn read(&self, pointer: CUdeviceptr, bytes: usize) -> Result<Vec<u8>, String> {
        let mut values = vec![0u8; bytes];
        // SAFETY: the copy writes this many bytes of the vector.
        unsafe {
            call!(self.driver, cuMemcpyDtoH(values.as_mut_ptr().cast(), pointer, bytes)).map_err(text)?;
        }
        Ok(values)
    }

    /// Waits for everything.
    pub fn wait(&self) -> Result<(), String> {
        // SAFETY: no pointers are passed.
        unsafe { call!(self.driver, cuCtxSynchronize()).map_err(text) }
    }

    /// Frees everything uploaded. A lost context gives nothing back, and its process ends soon.
    pub fn release(&self) {
        for pointer in self.live.borrow_mut().drain(..) {
            // SAFETY: this pointer was allocated here and is freed once.
            let _ = unsafe { self.driver.cuMemFree(pointer) };
        }
    }

    /// Launches and waits.
    pub fn run(&self, function: CUfunction, launch: Launch, args: &[Vec<u8>]) -> Result<(), String> {
        let mut pointers: Vec<*mut c_void> = args.iter().map(|a| a.as_ptr().cast_mut().cast()).collect();
        let mut attributes = Vec::new();
        if launch.cooperative {
            attributes.push(CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                value: CUlaunchAttributeValue { cooperative: 1 },
                pad: [0; 4],
            });
        }
        if let Some(x) = launch.cluster {
            attributes.push(CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                value: CUlaunchAttributeValue {
                    clusterDim: CUlaunchAttributeValue_clusterDim { x, y: 1, z: 1 },
                },
                pad: [0; 4],
            });
        }
        let config = CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared,
            hStream: CUstream::NULL,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the configuration, its attributes and the arguments live through the call; each argument has
        // the size of its parameter (the cases are written for these kernels).
        unsafe {
            call!(
                self.driver,
                cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut())
            )
            .map_err(text)?;
        }
        self.wait()
    }
}

/// The bytes of one kernel argument.
pub fn arg<T: Pod>(value: T) -> Vec<u8> {
    bytemuck::bytes_of(&value).to_vec()
}
