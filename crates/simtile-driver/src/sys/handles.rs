//! Opaque handles. In C they are pointers to incomplete types; here they are pointer-sized integers,
//! because nobody but the driver may dereference them and simulated drivers never do.

use core::ffi::{c_int, c_void};

macro_rules! handles {
    ($($name:ident)*) => { $(
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub usize);

        impl $name {
            /// The null handle.
            pub const NULL: Self = Self(0);

            /// Whether this is the null handle.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }

            /// The handle as C sees it.
            pub const fn as_ptr(self) -> *mut c_void {
                core::ptr::without_provenance_mut(self.0)
            }

            /// A handle that C code gave as a pointer.
            pub fn from_ptr<T>(ptr: *mut T) -> Self {
                Self(ptr as usize)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )* };
}

handles! {
    CUmemoryPool CUcontext CUdevResourceDesc CUgreenCtx CUstream CUevent CUgraphDeviceNode CUgraph
    CUgraphNode CUarray CUmodule CUfunction CUlibrary CUkernel CUlinkState CUexternalSemaphore
    CUgraphExec CUuserObject
}

impl CUstream {
    /// The legacy default stream, spelled out (handle value 0 means the same).
    pub const LEGACY: Self = Self(1);
    /// The calling thread's default stream.
    pub const PER_THREAD: Self = Self(2);
}

pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUmemGenericAllocationHandle = u64;
pub type CUgraphConditionalHandle = u64;
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(c_int) -> usize>;
pub type CUstreamAttrID = super::CUlaunchAttributeID;
pub type CUstreamAttrValue = super::CUlaunchAttributeValue;
pub type CUkernelNodeAttrID = super::CUlaunchAttributeID;
pub type CUkernelNodeAttrValue = super::CUlaunchAttributeValue;
