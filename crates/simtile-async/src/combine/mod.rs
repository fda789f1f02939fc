//! Operations made of operations. Each is a small state machine that goes on where it stopped.

mod boxed;
mod join;
mod labelled;
mod leaf;
mod map;
mod once;
mod shared;
mod then;
mod unzip;
mod vec;
mod zip;

pub(crate) use boxed::Boxed;
pub use boxed::BoxedDeviceOp;
pub use join::{Join, Joinable};
pub use labelled::Labelled;
pub use leaf::{Empty, Value, WithContext, empty, value, with_context};
pub use map::{Arced, Inspect, Map, MapReady, TryMap, UnwrapArc};
pub use shared::{SharedDeviceOp, shared};
pub use then::{AndThenWithContext, Then};
pub use unzip::{First, Last, Part, Unzippable};
pub use vec::DeviceOpVec;
pub use zip::{Zip, Zippable};
