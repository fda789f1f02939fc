//! The smallest complete program: `y = a x + y` on the device.
#![deny(unsafe_code)]

use simtile::{DeviceBuffer, LaunchArgs, LaunchConfig, Runtime};
use std::error::Error;
use std::io::Write;

const SAXPY: &str = include_str!("../../../../artifacts/ptx/saxpy.ptx");

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::auto()?;
    let device = runtime.device(0)?;
    let context = device.primary_context()?;
    let stream = context.new_stream()?;
    let saxpy = context.load_module_from_ptx_src(SAXPY)?.load_function("saxpy")?;

    let n = 100_003u32;
    let a = 2.5f32;
    let x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    let y: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
    let device_x = DeviceBuffer::from_slice(&stream, &x)?;
    let mut device_y = DeviceBuffer::from_slice(&stream, &y)?;

    let args = LaunchArgs::new().arg(n).arg(a).buffer(&device_x).buffer_mut(&mut device_y);
    // SAFETY: both buffers have `n` initialised elements, and the kernel touches no others.
    #[allow(unsafe_code, reason = "a raw launch: the kernel's accesses are our word")]
    unsafe {
        stream.launch(&saxpy, LaunchConfig::for_num_elems(n), args)?;
    }
    let result = device_y.to_vec(&stream)?;

    // Every product and sum here is exact in f32, fused or not.
    if let Some(i) = (0..n as usize).find(|&i| result[i] != a * x[i] + y[i]) {
        return Err(format!("element {i}: got {}, want {}", result[i], a * x[i] + y[i]).into());
    }
    writeln!(std::io::stdout(), "{n} values computed on {} are right", device.name()?)?;
    Ok(())
}
