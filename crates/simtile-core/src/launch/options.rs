//! Geometry and attributes of a launch.

use simtile_driver::sys::*;
use simtile_types::{LaunchConfig, LaunchConfig1D, LaunchConfig2D, LaunchConfig3D};
use smallvec::SmallVec;

/// Geometry of a launch with CUDA's launch attributes. A plain [`LaunchConfig`] converts into it.
///
/// ```
/// use simtile_core::LaunchOptions;
/// use simtile_types::LaunchConfig;
/// let options = LaunchOptions::new(LaunchConfig::for_num_elems(1 << 20)).cluster(2, 1, 1).cooperative();
/// assert_eq!(options.config.grid_dim, (4096, 1, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchOptions {
    /// Blocks, threads and dynamic shared memory.
    pub config: LaunchConfig,
    /// Blocks of a cluster.
    pub cluster: Option<(u32, u32, u32)>,
    /// Whether all blocks must run at once, so that the grid may synchronise.
    pub cooperative: bool,
    /// Priority in place of the stream's. Smaller is more urgent.
    pub priority: Option<i32>,
    /// Programmatic dependent launch: may start before the kernel before it in the stream has finished, whose results
    /// it may read only after `griddepcontrol.wait`.
    pub programmatic: bool,
}

impl LaunchOptions {
    /// A plain launch.
    pub const fn new(config: LaunchConfig) -> Self {
        Self { config, cluster: None, cooperative: false, priority: None, programmatic: false }
    }

    /// With clusters of this shape.
    pub const fn cluster(mut self, x: u32, y: u32, z: u32) -> Self {
        self.cluster = Some((x, y, z));
        self
    }

    /// As a cooperative launch.
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// With a priority of its own.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// As a programmatic dependent launch.
    pub const fn programmatic(mut self) -> Self {
        self.programmatic = true;
        self
    }

    /// Everything but the geometry.
    pub(crate) fn attributes_only(&self) -> Self {
        Self { config: LaunchConfig::EMPTY, ..*self }
    }

    /// Whether the plain launch call does.
    pub(crate) fn is_plain(&self) -> bool {
        self.cluster.is_none() && !self.cooperative && self.priority.is_none() && !self.programmatic
    }

    /// What the extended launch call takes.
    pub(crate) fn attributes(self) -> Attributes {
        let mut list = SmallVec::new();
        let mut add = |id, value| list.push(CUlaunchAttribute { id, pad: [0; 4], value });
        if let Some((x, y, z)) = self.cluster {
            let value = CUlaunchAttributeValue { clusterDim: CUlaunchAttributeValue_clusterDim { x, y, z } };
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
        }
        if self.cooperative {
            let value = CUlaunchAttributeValue { cooperative: 1 };
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value);
        }
        if let Some(priority) = self.priority {
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, CUlaunchAttributeValue { priority });
        }
        if self.programmatic {
            let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
        }
        Attributes { config: self.config, list }
    }
}

impl From<LaunchConfig> for LaunchOptions {
    fn from(config: LaunchConfig) -> Self {
        Self::new(config)
    }
}

macro_rules! from_ranked {
    ($($name:ident)*) => { $(
        impl From<$name> for LaunchOptions {
            fn from(config: $name) -> Self {
                Self::new(config.into())
            }
        }
    )* };
}

from_ranked! { LaunchConfig1D LaunchConfig2D LaunchConfig3D }

/// Attributes in the driver's form.
pub(crate) struct Attributes {
    config: LaunchConfig,
    list: SmallVec<[CUlaunchAttribute; 4]>,
}

impl Attributes {
    pub(crate) fn list(&self) -> &[CUlaunchAttribute] {
        &self.list
    }

    /// The driver's configuration. It points into `self`.
    pub(crate) fn config(&mut self, stream: CUstream) -> CUlaunchConfig {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = self.config;
        CUlaunchConfig {
            gridDimX: grid_dim.0,
            gridDimY: grid_dim.1,
            gridDimZ: grid_dim.2,
            blockDimX: block_dim.0,
            blockDimY: block_dim.1,
            blockDimZ: block_dim.2,
            sharedMemBytes: shared_mem_bytes,
            hStream: stream,
            attrs: self.list.as_mut_ptr(),
            numAttrs: self.list.len() as u32,
        }
    }
}
