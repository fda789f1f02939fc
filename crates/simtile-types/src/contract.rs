//! Launch contracts: what a kernel demands of every launch of it.
//!
//! A [`LaunchContractSpec`] is constant data beside a kernel. [`LaunchContractSpec::check`] compares it with a
//! configuration, [`DeviceLaunchLimits::check`] compares a configuration with a device; neither asks a driver. What
//! needs a driver (attributes of the loaded function, cluster support, residency) is checked by the
//! runtime, which reports it through the same [`LaunchContractError`].

use crate::LaunchConfig;
use core::fmt;

/// Which part of a geometry a number belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchDimension {
    /// Blocks.
    Grid,
    /// Threads of a block.
    Block,
    /// Blocks of a cluster.
    Cluster,
}

impl fmt::Display for LaunchDimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grid => "grid",
            Self::Block => "block",
            Self::Cluster => "cluster",
        })
    }
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum LaunchAxis {
    X,
    Y,
    Z,
}

impl LaunchAxis {
    /// The three axes in order.
    pub const ALL: [Self; 3] = [Self::X, Self::Y, Self::Z];
}

impl fmt::Display for LaunchAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X => "x",
            Self::Y => "y",
            Self::Z => "z",
        })
    }
}

/// A shape in x, y and z.
pub type Shape = (u32, u32, u32);

/// The axes of a shape with their values.
pub fn axes(shape: Shape) -> [(LaunchAxis, u32); 3] {
    [(LaunchAxis::X, shape.0), (LaunchAxis::Y, shape.1), (LaunchAxis::Z, shape.2)]
}

/// Product of a shape, or `None` beyond 64 bits.
pub const fn product(shape: Shape) -> Option<u64> {
    // Two 32-bit factors always fit; only the third can overflow.
    (shape.0 as u64 * shape.1 as u64).checked_mul(shape.2 as u64)
}

/// What a kernel demands of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockRequirement {
    /// Exactly this shape; another shape of equal product is refused.
    Exact(Shape),
    /// At most this many threads, in any shape.
    MaxThreads(u32),
}

/// What a kernel demands of its dynamic shared memory, in bytes per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicSharedMemoryRequirement {
    /// Exactly this much.
    Exact {
        /// Bytes.
        bytes: u32,
        /// Alignment the kernel assumes, a power of two.
        alignment: u32,
    },
    /// Any amount in a closed range.
    Range {
        /// Least bytes.
        min: u32,
        /// Most bytes.
        max: u32,
        /// Alignment the kernel assumes, a power of two.
        alignment: u32,
    },
}

impl DynamicSharedMemoryRequirement {
    /// No dynamic shared memory.
    pub const NONE: Self = Self::Exact { bytes: 0, alignment: 1 };

    /// The most that a launch under this contract may ask for.
    pub const fn max_bytes(self) -> u32 {
        match self {
            Self::Exact { bytes, .. } => bytes,
            Self::Range { max, .. } => max,
        }
    }

    /// The alignment that the kernel assumes.
    pub const fn alignment(self) -> u32 {
        match self {
            Self::Exact { alignment, .. } | Self::Range { alignment, .. } => alignment,
        }
    }
}

/// How a kernel computes its global coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoordinateRequirement {
    /// In the width the language gives (64-bit where it matters).
    Native,
    /// In 32 bits: grid times block may not exceed 2^32 on any axis.
    U32,
}

/// The static promise of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchContractSpec {
    name: &'static str,
    block: BlockRequirement,
    dynamic_shared_memory: DynamicSharedMemoryRequirement,
    cluster: Option<Shape>,
    cooperative: bool,
    min_compute_capability: Option<(u32, u32)>,
    coordinates: CoordinateRequirement,
}

impl LaunchContractSpec {
    /// A contract without cluster, cooperation, or least compute capability.
    pub const fn new(
        name: &'static str,
        block: BlockRequirement,
        dynamic_shared_memory: DynamicSharedMemoryRequirement,
    ) -> Self {
        Self {
            name,
            block,
            dynamic_shared_memory,
            cluster: None,
            cooperative: false,
            min_compute_capability: None,
            coordinates: CoordinateRequirement::Native,
        }
    }

    /// Demands clusters of this shape.
    pub const fn with_cluster(mut self, shape: Shape) -> Self {
        self.cluster = Some(shape);
        self
    }

    /// Demands a cooperative launch.
    pub const fn with_cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Demands a device of at least this compute capability.
    pub const fn with_min_compute_capability(mut self, major: u32, minor: u32) -> Self {
        self.min_compute_capability = Some((major, minor));
        self
    }

    /// States that the kernel computes coordinates in 32 bits.
    pub const fn with_u32_coordinates(mut self) -> Self {
        self.coordinates = CoordinateRequirement::U32;
        self
    }

    /// Name of the kernel.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The demand on blocks.
    pub const fn block(&self) -> BlockRequirement {
        self.block
    }

    /// The demand on dynamic shared memory.
    pub const fn dynamic_shared_memory(&self) -> DynamicSharedMemoryRequirement {
        self.dynamic_shared_memory
    }

    /// The demanded cluster shape.
    pub const fn cluster(&self) -> Option<Shape> {
        self.cluster
    }

    /// Whether launches must be cooperative.
    pub const fn cooperative(&self) -> bool {
        self.cooperative
    }

    /// The least compute capability, as (major, minor).
    pub const fn min_compute_capability(&self) -> Option<(u32, u32)> {
        self.min_compute_capability
    }

    /// How coordinates are computed.
    pub const fn coordinates(&self) -> CoordinateRequirement {
        self.coordinates
    }

    /// Checks a configuration against this contract. Asks no device.
    ///
    /// # Errors
    /// The first demand that does not hold, in the order of the contract's parts.
    pub fn check(&self, config: &LaunchConfig) -> Result<(), LaunchContractError> {
        use LaunchContractError as E;
        let kernel = self.name;
        if kernel.trim().is_empty() {
            return Err(E::EmptyKernelName);
        }
        let alignment = self.dynamic_shared_memory.alignment();
        if !alignment.is_power_of_two() {
            return Err(E::InvalidSharedMemoryAlignment { kernel, alignment });
        }
        if let DynamicSharedMemoryRequirement::Range { min, max, .. } = self.dynamic_shared_memory
            && min > max
        {
            return Err(E::InvalidSharedMemoryRange { kernel, min, max });
        }
        check_dimensions(kernel, LaunchDimension::Grid, config.grid_dim)?;
        let threads = check_dimensions(kernel, LaunchDimension::Block, config.block_dim)?;
        match self.block {
            BlockRequirement::Exact(required) if required != config.block_dim => {
                return Err(E::BlockShapeMismatch { kernel, required, actual: config.block_dim });
            }
            BlockRequirement::MaxThreads(limit) if threads > u64::from(limit) => {
                return Err(E::BlockThreadsExceedContract { kernel, threads, limit });
            }
            _ => {}
        }
        let actual = config.shared_mem_bytes;
        match self.dynamic_shared_memory {
            DynamicSharedMemoryRequirement::Exact { bytes, .. } if bytes != actual => {
                return Err(E::DynamicSharedMemoryExactMismatch { kernel, required: bytes, actual });
            }
            DynamicSharedMemoryRequirement::Range { min, max, .. } if !(min..=max).contains(&actual) => {
                return Err(E::DynamicSharedMemoryOutsideRange { kernel, min, max, actual });
            }
            _ => {}
        }
        if let CoordinateRequirement::U32 = self.coordinates {
            for ((axis, blocks), (_, threads)) in
                axes(config.grid_dim).into_iter().zip(axes(config.block_dim))
            {
                let positions = u64::from(blocks) * u64::from(threads);
                if positions > 1 << 32 {
                    return Err(E::CoordinateRangeExceedsU32 { kernel, axis, positions });
                }
            }
        }
        match self.cluster {
            Some(cluster) => check_cluster(kernel, config.grid_dim, cluster),
            None => Ok(()),
        }
    }
}

/// Checks that no axis is 0 and that the product fits 64 bits. Returns the product.
///
/// # Errors
/// [`LaunchContractError::ZeroDimension`], [`LaunchContractError::DimensionProductOverflow`].
pub fn check_dimensions(
    kernel: &'static str,
    dimension: LaunchDimension,
    shape: Shape,
) -> Result<u64, LaunchContractError> {
    for (axis, value) in axes(shape) {
        if value == 0 {
            return Err(LaunchContractError::ZeroDimension { kernel, dimension, axis });
        }
    }
    product(shape).ok_or(LaunchContractError::DimensionProductOverflow { kernel, dimension, shape })
}

/// Checks that a cluster shape is whole and divides the grid on every axis.
///
/// # Errors
/// As [`check_dimensions`], and [`LaunchContractError::ClusterDoesNotDivideGrid`].
pub fn check_cluster(kernel: &'static str, grid: Shape, cluster: Shape) -> Result<(), LaunchContractError> {
    check_dimensions(kernel, LaunchDimension::Cluster, cluster)?;
    for ((axis, grid), (_, cluster)) in axes(grid).into_iter().zip(axes(cluster)) {
        if grid % cluster != 0 {
            return Err(LaunchContractError::ClusterDoesNotDivideGrid { kernel, axis, grid, cluster });
        }
    }
    Ok(())
}

/// A kernel's launch contract as a type: the brand of its prepared launches.
pub trait KernelLaunchContract {
    /// The ranked configuration that launches of this kernel take.
    type Config: crate::KernelLaunchConfig;
    /// The contract.
    const SPEC: LaunchContractSpec;
}

/// What a device allows of any launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLaunchLimits {
    /// Most threads of a block.
    pub max_threads_per_block: u32,
    /// Most threads of a block on each axis.
    pub max_block_dim: Shape,
    /// Most blocks of a grid on each axis.
    pub max_grid_dim: Shape,
    /// Most shared memory of a block that needs no opt-in, bytes.
    pub max_shared_memory_per_block: u32,
}

impl DeviceLaunchLimits {
    /// Checks a configuration against these limits. Shared memory is left to [`check_shared_memory`], which
    /// knows the function's own.
    ///
    /// # Errors
    /// A zero axis, an axis above its limit, or too many threads in a block.
    #[inline]
    pub fn check(&self, kernel: &'static str, config: &LaunchConfig) -> Result<(), LaunchContractError> {
        let within = |shape: Shape, limits: Shape| {
            // Zero wraps around to the largest number.
            let axis = |value: u32, limit: u32| value.wrapping_sub(1) < limit;
            axis(shape.0, limits.0) & axis(shape.1, limits.1) & axis(shape.2, limits.2)
        };
        let threads =
            |(x, y, z): Shape| u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z));
        if within(config.grid_dim, self.max_grid_dim)
            && within(config.block_dim, self.max_block_dim)
            && threads(config.block_dim) <= u64::from(self.max_threads_per_block)
            && product(config.grid_dim).is_some()
        {
            return Ok(());
        }
        self.explain(kernel, config)
    }

    /// [`DeviceLaunchLimits::check`], with what is wrong.
    #[cold]
    fn explain(&self, kernel: &'static str, config: &LaunchConfig) -> Result<(), LaunchContractError> {
        use LaunchContractError as E;
        for (dimension, shape, limits) in [
            (LaunchDimension::Grid, config.grid_dim, self.max_grid_dim),
            (LaunchDimension::Block, config.block_dim, self.max_block_dim),
        ] {
            check_dimensions(kernel, dimension, shape)?;
            for ((axis, value), (_, limit)) in axes(shape).into_iter().zip(axes(limits)) {
                if value > limit {
                    return Err(E::DeviceDimensionExceeded { kernel, dimension, axis, value, limit });
                }
            }
        }
        let threads = product(config.block_dim).unwrap_or(u64::MAX);
        if threads > u64::from(self.max_threads_per_block) {
            let limit = self.max_threads_per_block;
            return Err(E::DeviceThreadsPerBlockExceeded { kernel, threads, limit });
        }
        Ok(())
    }
}

/// Checks static plus dynamic shared memory against a limit.
///
/// # Errors
/// [`LaunchContractError::SharedMemoryTotalOverflow`], [`LaunchContractError::DeviceSharedMemoryExceeded`].
pub fn check_shared_memory(
    kernel: &'static str,
    static_bytes: u32,
    dynamic_bytes: u32,
    limit: u32,
    opt_in: bool,
) -> Result<(), LaunchContractError> {
    let total = static_bytes
        .checked_add(dynamic_bytes)
        .ok_or(LaunchContractError::SharedMemoryTotalOverflow { kernel, static_bytes, dynamic_bytes })?;
    if total > limit {
        return Err(LaunchContractError::DeviceSharedMemoryExceeded { kernel, total, limit, opt_in });
    }
    Ok(())
}

/// How two sides of a size relation compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum SizeComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Checks a size relation between lengths and scalars of a launch. A side that left 64 bits on the way is `None`.
///
/// # Errors
/// [`LaunchContractError::SizeRequirementOverflow`], [`LaunchContractError::SizeRequirementViolated`].
pub fn check_size_relation(
    kernel: &'static str,
    left: Option<u64>,
    comparison: SizeComparison,
    right: Option<u64>,
) -> Result<(), LaunchContractError> {
    use SizeComparison as C;
    let (Some(left), Some(right)) = (left, right) else {
        return Err(LaunchContractError::SizeRequirementOverflow { kernel });
    };
    let holds = match comparison {
        C::Equal => left == right,
        C::NotEqual => left != right,
        C::Less => left < right,
        C::LessOrEqual => left <= right,
        C::Greater => left > right,
        C::GreaterOrEqual => left >= right,
    };
    if holds { Ok(()) } else { Err(LaunchContractError::SizeRequirementViolated { kernel, left, right }) }
}

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident { $($field:ident: $ty:ty),* } => $text:literal;)*) => {
        /// A launch that breaks its kernel's contract or its device's limits.
        ///
        /// Failures of driver calls made while checking are not in here: this crate knows no driver. The
        /// runtime's launch error has them beside this one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the fields are the numbers that the message shows")]
        #[non_exhaustive]
        pub enum LaunchContractError {
            /// The contract's name is blank.
            EmptyKernelName,
            $($(#[$doc])* $variant { kernel: &'static str, $($field: $ty),* },)*
        }

        impl LaunchContractError {
            /// Name of the kernel, if the contract has one.
            pub const fn kernel(&self) -> Option<&'static str> {
                match self {
                    Self::EmptyKernelName => None,
                    $(Self::$variant { kernel, .. } => Some(kernel),)*
                }
            }
        }

        impl fmt::Display for LaunchContractError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::EmptyKernelName => f.write_str("the launch contract has no kernel name"),
                    $(Self::$variant { kernel, $($field),* } => {
                        // The runtime names kernels of its own around this error and leaves the name here empty.
                        if !kernel.is_empty() {
                            write!(f, "kernel {kernel}: ")?;
                        }
                        write!(f, $text)
                    })*
                }
            }
        }
    };
}

errors! {
    /// An axis is 0.
    ZeroDimension { dimension: LaunchDimension, axis: LaunchAxis } => "{dimension} {axis} is 0";
    /// x·y·z of a shape overflows 64 bits.
    DimensionProductOverflow { dimension: LaunchDimension, shape: Shape }
        => "the {dimension} shape {shape:?} has more than 2^64 elements";
    /// A kernel with 32-bit coordinates and more than 2^32 positions on an axis.
    CoordinateRangeExceedsU32 { axis: LaunchAxis, positions: u64 }
        => "{positions} positions on {axis} exceed its 32-bit coordinates";
    /// The contract's alignment is not a power of two.
    InvalidSharedMemoryAlignment { alignment: u32 }
        => "the contract's shared memory alignment {alignment} is not a power of two";
    /// The contract's least shared memory is above its most.
    InvalidSharedMemoryRange { min: u32, max: u32 }
        => "the contract's shared memory range {min}..={max} is empty";
    /// The block differs from the exact shape that the contract demands.
    BlockShapeMismatch { required: Shape, actual: Shape }
        => "block {actual:?} is not the required {required:?}";
    /// More threads than the contract allows.
    BlockThreadsExceedContract { threads: u64, limit: u32 }
        => "{threads} threads a block exceed the contract's {limit}";
    /// Dynamic shared memory differs from the exact amount.
    DynamicSharedMemoryExactMismatch { required: u32, actual: u32 }
        => "{actual} bytes of dynamic shared memory are not the required {required}";
    /// Dynamic shared memory outside the contract's range.
    DynamicSharedMemoryOutsideRange { min: u32, max: u32, actual: u32 }
        => "{actual} bytes of dynamic shared memory are outside {min}..={max}";
    /// A grid axis is not a multiple of its cluster axis.
    ClusterDoesNotDivideGrid { axis: LaunchAxis, grid: u32, cluster: u32 }
        => "grid {axis} = {grid} is not a multiple of cluster {axis} = {cluster}";
    /// An axis above the device's limit.
    DeviceDimensionExceeded { dimension: LaunchDimension, axis: LaunchAxis, value: u32, limit: u32 }
        => "{dimension} {axis} = {value} exceeds the device's {limit}";
    /// More threads in a block than the device allows.
    DeviceThreadsPerBlockExceeded { threads: u64, limit: u32 }
        => "{threads} threads a block exceed the device's {limit}";
    /// More threads in a block than this function allows.
    FunctionThreadsPerBlockExceeded { threads: u64, limit: u32 }
        => "{threads} threads a block exceed the {limit} that this function was compiled for";
    /// Static and dynamic shared memory together overflow 32 bits.
    SharedMemoryTotalOverflow { static_bytes: u32, dynamic_bytes: u32 }
        => "{static_bytes} static and {dynamic_bytes} dynamic bytes of shared memory overflow";
    /// More shared memory than the device allows.
    DeviceSharedMemoryExceeded { total: u32, limit: u32, opt_in: bool }
        => "{total} bytes of shared memory exceed the device's {limit} (opt-in: {opt_in})";
    /// The device is too old.
    ComputeCapabilityTooLow { required: (u32, u32), actual: (u32, u32) }
        => "compute capability {actual:?} is below the required {required:?}";
    /// The device has no cooperative launch.
    CooperativeLaunchUnsupported {} => "the device has no cooperative launch";
    /// The device has no clusters.
    ClusterLaunchUnsupported {} => "the device has no thread block clusters";
    /// More blocks in a cluster than can be scheduled.
    ClusterSizeExceeded { blocks: u64, limit: u32 }
        => "{blocks} blocks a cluster exceed the possible {limit}";
    /// The contract's cluster shape is not the compiled one.
    FunctionClusterShapeMismatch { contract: Shape, function: Shape }
        => "cluster {contract:?} is not the compiled {function:?}";
    /// The contract has a cluster shape and the compiled function has none.
    RequiredClusterDimensionsMissing { contract: Shape }
        => "the function was not compiled for the cluster {contract:?} of its contract";
    /// The driver refuses this cluster shape.
    ClusterShapeUnsupported { cluster: Shape } => "the driver refuses the cluster {cluster:?}";
    /// No such cluster can be resident.
    ClusterHasNoResidency { cluster: Shape } => "no cluster {cluster:?} can be resident";
    /// A cooperative grid that cannot be resident at once.
    CooperativeGridTooLarge { blocks: u64, limit: u64 }
        => "a cooperative grid of {blocks} blocks exceeds the {limit} that can be resident";
    /// Stream and function are of different contexts.
    ContextMismatch {} => "stream and function belong to different contexts";
    /// A size relation of the contract is false.
    SizeRequirementViolated { left: u64, right: u64 }
        => "the size relation between {left} and {right} does not hold";
    /// Arithmetic of a size relation left the 64-bit range.
    SizeRequirementOverflow {} => "a size relation overflows 64 bits";
}

impl core::error::Error for LaunchContractError {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{DynamicSharedMemoryRequirement as Smem, LaunchContractError as E, *};
    use std::string::ToString;

    const LIMITS: DeviceLaunchLimits = DeviceLaunchLimits {
        max_threads_per_block: 1024,
        max_block_dim: (1024, 1024, 64),
        max_grid_dim: (i32::MAX as u32, 65535, 65535),
        max_shared_memory_per_block: 49152,
    };

    fn config(grid_dim: Shape, block_dim: Shape, shared_mem_bytes: u32) -> LaunchConfig {
        LaunchConfig { grid_dim, block_dim, shared_mem_bytes }
    }

    #[test]
    fn a_zero_axis_is_named() {
        let spec = LaunchContractSpec::new("k", BlockRequirement::MaxThreads(256), Smem::NONE);
        let error = spec.check(&config((4, 0, 1), (1, 1, 1), 0)).unwrap_err();
        assert_eq!(error.to_string(), "kernel k: grid y is 0");
        let error = LIMITS.check("k", &config((1, 1, 1), (1, 1, 0), 0)).unwrap_err();
        assert_eq!(error.to_string(), "kernel k: block z is 0");
    }

    #[test]
    fn an_exact_block_is_a_shape_not_a_product() {
        let spec = LaunchContractSpec::new("k", BlockRequirement::Exact((256, 1, 1)), Smem::NONE);
        assert!(spec.check(&config((9, 1, 1), (256, 1, 1), 0)).is_ok());
        assert!(matches!(
            spec.check(&config((9, 1, 1), (16, 16, 1), 0)),
            Err(E::BlockShapeMismatch { actual: (16, 16, 1), .. })
        ));
    }

    #[test]
    fn shared_memory_demands() {
        let exact = LaunchContractSpec::new(
            "k",
            BlockRequirement::MaxThreads(32),
            Smem::Exact { bytes: 64, alignment: 16 },
        );
        assert!(exact.check(&config((1, 1, 1), (32, 1, 1), 64)).is_ok());
        assert!(matches!(
            exact.check(&config((1, 1, 1), (32, 1, 1), 63)),
            Err(E::DynamicSharedMemoryExactMismatch { required: 64, actual: 63, .. })
        ));
        let with = |requirement| LaunchContractSpec::new("k", BlockRequirement::MaxThreads(32), requirement);
        let range = with(Smem::Range { min: 16, max: 32, alignment: 4 });
        for (bytes, ok) in [(15, false), (16, true), (32, true), (33, false)] {
            assert_eq!(range.check(&config((1, 1, 1), (1, 1, 1), bytes)).is_ok(), ok);
        }
        assert!(matches!(
            with(Smem::Range { min: 2, max: 1, alignment: 4 }).check(&config((1, 1, 1), (1, 1, 1), 1)),
            Err(E::InvalidSharedMemoryRange { .. })
        ));
        assert!(matches!(
            with(Smem::Exact { bytes: 0, alignment: 12 }).check(&config((1, 1, 1), (1, 1, 1), 0)),
            Err(E::InvalidSharedMemoryAlignment { alignment: 12, .. })
        ));
        assert!(matches!(
            check_shared_memory("k", u32::MAX, 1, 49152, false),
            Err(E::SharedMemoryTotalOverflow { .. })
        ));
        assert!(check_shared_memory("k", 16, 49136, 49152, false).is_ok());
        assert!(check_shared_memory("k", 17, 49136, 49152, false).is_err());
    }

    #[test]
    fn blocks_and_clusters_have_their_products() {
        let most = LaunchContractSpec::new("k", BlockRequirement::MaxThreads(64), Smem::NONE);
        assert!(most.check(&config((1, 1, 1), (8, 4, 2), 0)).is_ok());
        assert_eq!(
            most.check(&config((1, 1, 1), (8, 4, 3), 0)),
            Err(E::BlockThreadsExceedContract { kernel: "k", threads: 96, limit: 64 })
        );
        let huge = (u32::MAX, u32::MAX, u32::MAX);
        assert!(matches!(
            most.check(&config((1, 1, 1), huge, 0)),
            Err(E::DimensionProductOverflow { dimension: LaunchDimension::Block, .. })
        ));
        let hollow = most.with_cluster((2, 0, 1));
        assert_eq!(
            hollow.check(&config((2, 1, 1), (1, 1, 1), 0)).unwrap_err().to_string(),
            "kernel k: cluster y is 0"
        );
    }

    #[test]
    fn a_contract_keeps_what_diagnostics_show() {
        let range = Smem::Range { min: 16, max: 64, alignment: 8 };
        let spec = LaunchContractSpec::new("k", BlockRequirement::Exact((8, 4, 1)), range)
            .with_cluster((2, 1, 1))
            .with_cooperative()
            .with_min_compute_capability(9, 0)
            .with_u32_coordinates();
        assert_eq!((spec.name(), spec.block()), ("k", BlockRequirement::Exact((8, 4, 1))));
        assert_eq!((spec.cluster(), spec.cooperative()), (Some((2, 1, 1)), true));
        assert_eq!(spec.min_compute_capability(), Some((9, 0)));
        assert_eq!(spec.coordinates(), CoordinateRequirement::U32);
        let room = spec.dynamic_shared_memory();
        assert_eq!((room, room.max_bytes(), room.alignment()), (range, 64, 8));
    }

    #[test]
    fn size_relations() {
        use SizeComparison as C;
        let holds = [
            (3, C::Equal, 3),
            (3, C::NotEqual, 4),
            (3, C::Less, 4),
            (4, C::LessOrEqual, 4),
            (5, C::Greater, 4),
            (4, C::GreaterOrEqual, 4),
        ];
        for (left, comparison, right) in holds {
            assert!(check_size_relation("k", Some(left), comparison, Some(right)).is_ok(), "{comparison:?}");
        }
        let no = check_size_relation("k", Some(4), C::Less, Some(4)).unwrap_err();
        assert_eq!(no.to_string(), "kernel k: the size relation between 4 and 4 does not hold");
        let over = check_size_relation("k", u64::MAX.checked_add(1), C::Less, Some(4));
        assert!(matches!(over, Err(E::SizeRequirementOverflow { .. })));
    }

    #[test]
    fn limits_of_the_device() {
        assert!(LIMITS.check("k", &config((i32::MAX as u32, 1, 1), (1024, 1, 1), 0)).is_ok());
        assert_eq!(
            LIMITS.check("k", &config((1, 65536, 1), (1, 1, 1), 0)).unwrap_err().to_string(),
            "kernel k: grid y = 65536 exceeds the device's 65535"
        );
        assert!(matches!(
            LIMITS.check("k", &config((1, 1, 1), (64, 32, 1), 0)),
            Err(E::DeviceThreadsPerBlockExceeded { threads: 2048, limit: 1024, .. })
        ));
    }

    #[test]
    fn coordinates_and_products_do_not_wrap() {
        let spec = LaunchContractSpec::new("k", BlockRequirement::MaxThreads(1024), Smem::NONE)
            .with_u32_coordinates();
        assert!(spec.check(&config((1 << 22, 1, 1), (1024, 1, 1), 0)).is_ok());
        assert!(matches!(
            spec.check(&config(((1 << 22) + 1, 1, 1), (1024, 1, 1), 0)),
            Err(E::CoordinateRangeExceedsU32 { axis: LaunchAxis::X, .. })
        ));
        assert!(matches!(
            spec.check(&config((u32::MAX, u32::MAX, u32::MAX), (1, 1, 1), 0)),
            Err(E::DimensionProductOverflow { dimension: LaunchDimension::Grid, .. })
        ));
    }

    #[test]
    fn clusters_divide_the_grid() {
        let spec = LaunchContractSpec::new("k", BlockRequirement::MaxThreads(32), Smem::NONE)
            .with_cluster((2, 1, 1));
        assert!(spec.check(&config((4, 3, 1), (32, 1, 1), 0)).is_ok());
        assert_eq!(
            spec.check(&config((5, 3, 1), (32, 1, 1), 0)).unwrap_err().to_string(),
            "kernel k: grid x = 5 is not a multiple of cluster x = 2"
        );
        let none = LaunchContractSpec::new(" ", BlockRequirement::MaxThreads(1), Smem::NONE);
        assert_eq!(none.check(&config((1, 1, 1), (1, 1, 1), 0)), Err(E::EmptyKernelName));
    }
}
