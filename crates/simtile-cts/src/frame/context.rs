//! What a test is given: a driver of its own, and its seed.

use super::{Check, Need, Stop};
use crate::{cu, ok};
use simtile_driver::count::Counted;
use simtile_driver::sys::{CUdevice, CUdevice_attribute, CUresult};
use simtile_driver::{Driver, Entry};
use simtile_sim::{Mode, Simulator};

/// The driver a test runs on, counted, and the seed of this run.
pub struct Cx {
    counted: Counted,
    simulator: Option<Simulator>,
    seed: u64,
}

impl Cx {
    /// Puts a test's surroundings together.
    pub fn new(counted: Counted, simulator: Option<Simulator>, seed: u64) -> Self {
        Self { counted, simulator, seed }
    }

    /// The driver. Its calls are counted.
    pub fn driver(&self) -> Driver {
        self.counted.driver()
    }

    /// Calls of the driver so far.
    pub fn calls(&self) -> u64 {
        self.counted.counts().total()
    }

    /// Calls of one entry so far.
    pub fn calls_of(&self, entry: Entry) -> u64 {
        self.counted.counts().of(entry)
    }

    /// The control handle, if the driver is a simulator in this process.
    pub fn simulator(&self) -> Option<&Simulator> {
        self.simulator.as_ref()
    }

    /// Whether this run explores schedules: every step of every thread is a decision then, so that big numbers cost minutes.
    pub fn is_explored(&self) -> bool {
        self.simulator.as_ref().is_some_and(|simulator| simulator.config().mode == Mode::Explore)
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers, the same in every run of this seed; `salt` tells sequences of one test apart.
    pub fn random(&self, salt: u64) -> Random {
        Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The CUDA version that the driver says it has, major and minor.
    ///
    /// # Errors
    /// [`Stop`] if it does not say.
    pub fn driver_version(&self) -> Check<(i32, i32)> {
        let mut version = 0;
        ok!(self, cuDriverGetVersion(&mut version))?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// How many devices there are. Initialises the driver.
    ///
    /// # Errors
    /// [`Stop`] if the driver cannot be initialised.
    pub fn devices(&self) -> Check<u32> {
        let mut count = 0;
        let code = cu!(self, cuInit(0));
        if !code.is_ok() {
            return Err(Stop::fail(format!("cuInit(0) returned {code:?}")));
        }
        ok!(self, cuDeviceGetCount(&mut count))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// An attribute of a device.
    ///
    /// # Errors
    /// [`Stop`] if the driver refuses.
    pub fn attribute(&self, device: CUdevice, attribute: CUdevice_attribute) -> Check<i32> {
        let mut value = 0;
        ok!(self, cuDeviceGetAttribute(&mut value, attribute, device))
            .map_err(|stop| stop.within(format!("{attribute:?}")))?;
        Ok(value)
    }

    /// Compute capability of device 0 as (major, minor).
    ///
    /// # Errors
    /// [`Stop`] if the driver refuses.
    pub fn capability(&self) -> Check<(i32, i32)> {
        Ok((
            self.attribute(0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Stops with `unsupported` where something that the test needs is missing.
    ///
    /// # Errors
    /// [`Stop`] with the reason.
    pub fn require(&self, needs: &[Need]) -> Check {
        for need in needs {
            match *need {
                Need::Devices(wanted) => {
                    let there = self.devices()?;
                    if there < wanted {
                        return Err(Stop::unsupported(format!(
                            "needs {wanted} devices, the driver has {there}"
                        )));
                    }
                }
                Need::Capability(major, minor) => {
                    self.devices()?;
                    let there = self.capability()?;
                    if there < (major, minor) {
                        return Err(Stop::unsupported(format!(
                            "needs compute capability {major}.{minor}, device 0 has {}.{}",
                            there.0, there.1
                        )));
                    }
                }
                Need::Attribute(attribute, what) => {
                    self.devices()?;
                    let mut value = 0;
                    match cu!(self, cuDeviceGetAttribute(&mut value, attribute, 0)) {
                        CUresult::CUDA_SUCCESS if value != 0 => {}
                        CUresult::CUDA_SUCCESS => {
                            return Err(Stop::unsupported(format!("device 0 has no {what}")));
                        }
                        // As an older driver answers to an attribute of a newer one.
                        CUresult::CUDA_ERROR_INVALID_VALUE => {
                            let text =
                                format!("the driver does not know {attribute:?}, so that it has no {what}");
                            return Err(Stop::unsupported(text));
                        }
                        code => return Err(Stop::fail(format!("cuDeviceGetAttribute: {code:?}"))),
                    }
                }
                Need::Driver(major, minor, what) => {
                    let there = self.driver_version()?;
                    if there < (major, minor) {
                        return Err(Stop::unsupported(format!(
                            "needs a driver of CUDA {major}.{minor} for {what}, this one is of {}.{}",
                            there.0, there.1
                        )));
                    }
                }
                Need::Simulator(why) => {
                    if self.simulator.is_none() {
                        return Err(Stop::unsupported(format!("needs a simulator: {why}")));
                    }
                }
            }
        }
        Ok(())
    }
}

/// A small random number generator (SplitMix64).
pub struct Random(u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is not 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// A float in [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` floats in [-1, 1).
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}
