//! Launch geometry.

use core::fmt;

/// Threads per block that the `for_num_elems` family uses.
const THREADS: u32 = 256;

/// Geometry of one launch: blocks, threads per block, dynamic shared memory.
///
/// Inert data with public fields; it is checked when it is launched. There an explicit 0 on any axis is an
/// error that names the axis. The one exception is [`LaunchConfig::EMPTY`], zero on all axes: nothing is
/// launched, and order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid_dim: (u32, u32, u32),
    /// Threads per block in x, y and z. Tile kernels always take (1, 1, 1).
    pub block_dim: (u32, u32, u32),
    /// Dynamic shared memory per block, bytes.
    pub shared_mem_bytes: u32,
}

/// Geometry that does not fit what CUDA can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// More elements than a one-dimensional grid of 256-thread blocks can cover.
    TooManyElements {
        /// What was asked for.
        elements: u64,
        /// The most a grid covers.
        limit: u64,
    },
    /// A block of no threads cannot cover anything.
    ZeroThreads,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyElements { elements, limit } => {
                write!(f, "{elements} elements exceed the {limit} that one grid covers")
            }
            Self::ZeroThreads => f.write_str("a block needs at least one thread"),
        }
    }
}

impl core::error::Error for GeometryError {}

impl LaunchConfig {
    /// The launch of nothing: no block, no thread. Launching it makes no driver call.
    pub const EMPTY: Self = Self { grid_dim: (0, 0, 0), block_dim: (0, 0, 0), shared_mem_bytes: 0 };

    /// Largest grid in x, the same on every device.
    pub const MAX_GRID_X: u32 = i32::MAX as u32;

    /// Largest grid in y and z, the same on every device.
    pub const MAX_GRID_YZ: u32 = 65_535;

    /// Enough blocks of 256 threads for one thread an element; [`LaunchConfig::EMPTY`] for none.
    pub const fn for_num_elems(n: u32) -> Self {
        if n == 0 {
            return Self::EMPTY;
        }
        Self { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }

    /// As [`LaunchConfig::for_num_elems`], for counts that need not fit 32 bits.
    ///
    /// # Errors
    /// [`GeometryError::TooManyElements`] above 256 * (2^31 - 1).
    pub const fn try_for_num_elems(n: u64) -> Result<Self, GeometryError> {
        Self::covering(n, THREADS)
    }

    /// Enough blocks of `threads` threads for one thread an element; [`LaunchConfig::EMPTY`] for none.
    ///
    /// # Errors
    /// [`GeometryError::ZeroThreads`], or [`GeometryError::TooManyElements`] if the grid would exceed 2^31 - 1.
    pub const fn covering(n: u64, threads: u32) -> Result<Self, GeometryError> {
        if threads == 0 {
            return Err(GeometryError::ZeroThreads);
        }
        if n == 0 {
            return Ok(Self::EMPTY);
        }
        let blocks = n.div_ceil(threads as u64);
        if blocks > Self::MAX_GRID_X as u64 {
            return Err(GeometryError::TooManyElements {
                elements: n,
                limit: Self::MAX_GRID_X as u64 * threads as u64,
            });
        }
        Ok(Self { grid_dim: (blocks as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 })
    }

    /// Enough blocks of this shape for one thread an element of a rectangle, width and height; [`LaunchConfig::EMPTY`] if one of them
    /// is 0.
    ///
    /// # Errors
    /// [`GeometryError::ZeroThreads`], or [`GeometryError::TooManyElements`], with the axis's elements, if the grid would exceed
    /// 2^31 - 1 blocks in x or 65 535 in y.
    pub const fn covering_2d(extent: (u64, u64), block: (u32, u32)) -> Result<Self, GeometryError> {
        Self::covering_3d((extent.0, extent.1, 1), (block.0, block.1, 1))
    }

    /// As [`LaunchConfig::covering_2d`], of a box: width, height, depth.
    ///
    /// # Errors
    /// As there; at most 65 535 blocks in z, too.
    pub const fn covering_3d(extent: (u64, u64, u64), block: (u32, u32, u32)) -> Result<Self, GeometryError> {
        if block.0 == 0 || block.1 == 0 || block.2 == 0 {
            return Err(GeometryError::ZeroThreads);
        }
        if extent.0 == 0 || extent.1 == 0 || extent.2 == 0 {
            return Ok(Self::EMPTY);
        }
        const fn blocks(elements: u64, threads: u32, most: u32) -> Result<u32, GeometryError> {
            let blocks = elements.div_ceil(threads as u64);
            if blocks > most as u64 {
                return Err(GeometryError::TooManyElements { elements, limit: most as u64 * threads as u64 });
            }
            Ok(blocks as u32)
        }
        let x = match blocks(extent.0, block.0, Self::MAX_GRID_X) {
            Ok(x) => x,
            Err(error) => return Err(error),
        };
        let y = match blocks(extent.1, block.1, Self::MAX_GRID_YZ) {
            Ok(y) => y,
            Err(error) => return Err(error),
        };
        let z = match blocks(extent.2, block.2, Self::MAX_GRID_YZ) {
            Ok(z) => z,
            Err(error) => return Err(error),
        };
        Ok(Self { grid_dim: (x, y, z), block_dim: block, shared_mem_bytes: 0 })
    }

    /// As many blocks as [`LaunchConfig::covering`] would take, but at most `blocks`: for kernels whose threads go on by the size of the
    /// grid until everything is done.
    ///
    /// # Errors
    /// [`GeometryError::ZeroThreads`] for blocks without threads, or none of them.
    pub const fn grid_stride(n: u64, threads: u32, blocks: u32) -> Result<Self, GeometryError> {
        if threads == 0 || blocks == 0 {
            return Err(GeometryError::ZeroThreads);
        }
        if n == 0 {
            return Ok(Self::EMPTY);
        }
        let most = if blocks > Self::MAX_GRID_X { Self::MAX_GRID_X } else { blocks };
        let wanted = n.div_ceil(threads as u64);
        let blocks = if wanted > most as u64 { most } else { wanted as u32 };
        Ok(Self { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 })
    }

    /// The launch of a Tile kernel over this grid of tiles: one thread a block, as Tile IR demands.
    pub const fn tiles(x: u32, y: u32, z: u32) -> Self {
        Self { grid_dim: (x, y, z), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
    }

    /// The same with this much dynamic shared memory.
    pub const fn with_shared_mem_bytes(mut self, bytes: u32) -> Self {
        self.shared_mem_bytes = bytes;
        self
    }

    /// Whether this is [`LaunchConfig::EMPTY`].
    pub const fn is_empty(&self) -> bool {
        matches!((self.grid_dim, self.block_dim), ((0, 0, 0), (0, 0, 0)))
    }

    /// Blocks in all.
    pub const fn num_blocks(&self) -> u128 {
        self.grid_dim.0 as u128 * self.grid_dim.1 as u128 * self.grid_dim.2 as u128
    }

    /// Threads per block.
    pub const fn threads_per_block(&self) -> u128 {
        self.block_dim.0 as u128 * self.block_dim.1 as u128 * self.block_dim.2 as u128
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A launch configuration whose rank is part of its type.
pub trait KernelLaunchConfig: sealed::Sealed + Copy + fmt::Debug {
    /// How many axes may differ from 1.
    const RANK: usize;

    /// The plain configuration.
    fn to_config(self) -> LaunchConfig;
}

macro_rules! ranked {
    ($($(#[$doc:meta])* $name:ident, $rank:literal, $shape:ty, |$s:ident| $full:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            config: LaunchConfig,
        }

        impl $name {
            /// Blocks, threads per block, and dynamic shared memory in bytes.
            pub const fn new(grid: $shape, block: $shape, shared_mem_bytes: u32) -> Self {
                const fn full($s: $shape) -> (u32, u32, u32) { $full }
                Self { config: LaunchConfig { grid_dim: full(grid), block_dim: full(block), shared_mem_bytes } }
            }
        }

        impl sealed::Sealed for $name {}

        impl KernelLaunchConfig for $name {
            const RANK: usize = $rank;

            fn to_config(self) -> LaunchConfig {
                self.config
            }
        }

        impl From<$name> for LaunchConfig {
            fn from(ranked: $name) -> Self {
                ranked.config
            }
        }
    )* };
}

ranked! {
    /// Geometry along x; y and z are 1.
    LaunchConfig1D, 1, u32, |s| (s, 1, 1);
    /// Geometry along x and y; z is 1.
    LaunchConfig2D, 2, (u32, u32), |s| (s.0, s.1, 1);
    /// Geometry along all axes.
    LaunchConfig3D, 3, (u32, u32, u32), |s| s;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_every_element_and_no_block_more() {
        assert!(LaunchConfig::for_num_elems(0).is_empty());
        for (n, blocks) in [(1, 1), (256, 1), (257, 2), (u32::MAX, 1 << 24)] {
            assert_eq!(LaunchConfig::for_num_elems(n).grid_dim, (blocks, 1, 1));
        }
    }

    #[test]
    fn counts_beyond_32_bits() {
        let five_billion = LaunchConfig::try_for_num_elems(5_000_000_000);
        assert_eq!(five_billion.map(|c| c.grid_dim.0), Ok(19_531_250));
        let limit = 256 * (u64::from(u32::MAX) >> 1);
        assert!(LaunchConfig::try_for_num_elems(limit).is_ok());
        for n in [limit + 1, u64::MAX] {
            assert_eq!(
                LaunchConfig::try_for_num_elems(n),
                Err(GeometryError::TooManyElements { elements: n, limit })
            );
        }
        assert_eq!(LaunchConfig::covering(8, 0), Err(GeometryError::ZeroThreads));
    }

    #[test]
    fn rectangles_boxes_and_strides() {
        let config = LaunchConfig::covering_2d((1000, 33), (32, 8)).unwrap();
        assert_eq!((config.grid_dim, config.block_dim), ((32, 5, 1), (32, 8, 1)));
        let config = LaunchConfig::covering_3d((5, 5, 5), (4, 2, 1)).unwrap();
        assert_eq!(config.grid_dim, (2, 3, 5));
        assert!(LaunchConfig::covering_3d((5, 0, 5), (4, 2, 1)).unwrap().is_empty());
        assert_eq!(LaunchConfig::covering_2d((5, 5), (0, 2)), Err(GeometryError::ZeroThreads));
        let (elements, limit) = (65_536 * 8, 65_535 * 8);
        assert_eq!(
            LaunchConfig::covering_2d((1, elements), (32, 8)),
            Err(GeometryError::TooManyElements { elements, limit })
        );
        assert_eq!(LaunchConfig::grid_stride(1 << 40, 256, 132).map(|c| c.grid_dim.0), Ok(132));
        assert_eq!(LaunchConfig::grid_stride(257, 256, 132).map(|c| c.grid_dim.0), Ok(2));
        assert!(LaunchConfig::grid_stride(0, 256, 132).unwrap().is_empty());
        assert_eq!(LaunchConfig::grid_stride(1, 256, 0), Err(GeometryError::ZeroThreads));
    }

    #[test]
    fn an_explicit_zero_is_not_empty() {
        let config = LaunchConfig { grid_dim: (0, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        assert!(!config.is_empty());
        assert_eq!(config.num_blocks(), 0);
    }

    #[test]
    fn ranked_configurations_fix_the_unused_axes() {
        let config = LaunchConfig2D::new((7, 3), (16, 8), 64).to_config();
        assert_eq!(config.grid_dim, (7, 3, 1));
        assert_eq!(config.block_dim, (16, 8, 1));
        assert_eq!(config.threads_per_block(), 128);
        let huge = LaunchConfig { grid_dim: (u32::MAX, u32::MAX, u32::MAX), ..config };
        assert_eq!(huge.num_blocks(), u128::from(u32::MAX).pow(3));
    }
}
