//! Derives and the test attribute of simtile.
//!
//! * [`macro@DeviceCopy`], [`macro@PointerFree`]: structs and unions that cross the bus as plain bytes;
//! * [`macro@test`]: a test on a simulated driver of its own, on many schedules.
//!
//! What they write names the crate `::simtile`. Where that is not a dependency, say which crate or module has the same
//! names: `#[device_copy(crate = simtile_types)]`, `#[test(crate = my::simtile)]`.
//!
//! The macros never panic: what they cannot do is a compile error at the place that asked for it.

mod device_copy;
mod test;

use proc_macro::TokenStream;

/// Implements `DeviceCopy` for a struct or union whose fields all implement it.
///
/// The type must be `Copy`. Type parameters get bounds only where a field needs them. Fields may be padded; a type
/// without padding says so (`NO_PADDING`). Bytes that come from a device are checked field by field (`is_valid`);
/// any bytes are a valid union. Enums are refused: most bytes are not one.
///
/// Deriving says that the type has no invariant beyond the validity of its fields.
///
/// ```ignore
/// #[derive(Clone, Copy, DeviceCopy)]
/// #[repr(C)]
/// struct Particle {
///     position: [f32; 3],
///     alive: bool,
/// }
/// ```
#[proc_macro_derive(DeviceCopy, attributes(device_copy))]
pub fn derive_device_copy(input: TokenStream) -> TokenStream {
    device_copy::derive(input.into(), device_copy::Trait::DeviceCopy).into()
}

/// Implements `PointerFree` for a struct or union whose fields all implement it: no part of it is an address that a
/// kernel could follow.
#[proc_macro_derive(PointerFree, attributes(device_copy))]
pub fn derive_pointer_free(input: TokenStream) -> TokenStream {
    device_copy::derive(input.into(), device_copy::Trait::PointerFree).into()
}

/// A test on a simulated driver of its own.
///
/// The function takes `&Runtime`, or `&TestCx` for the simulator too, and returns nothing or a `Result`. It may be an `async fn`:
/// then `simtile::testing::block_on` runs it, whose waiting is part of the schedule. The runtime is in force in it, so operations can be
/// awaited without naming a stream. Settings, all optional:
///
/// | setting | meaning |
/// | --- | --- |
/// | `devices = 2` | how many devices (default 1, at most 64) |
/// | `seeds = 100` | runs seeds 0 to 99, each with another schedule of device work and host threads; without it one run, in order of submission |
/// | `mask = [cuMemAllocAsync]` | entries that the driver does not have |
/// | `faults = [Fault::fail(…)]` | calls that fail |
/// | `profile = "h200"` | what the devices look like |
/// | `memory = 1 << 28` | bytes of each device, from 1 MiB to 4 TiB; pools take theirs in pieces of 32 MiB, or of a sixteenth of less |
/// | `crate = path` | where `simtile` is |
///
/// Bounds, lifetime, initialisation and races are checked. The test fails if the function does, if the checker reports
/// anything, if work is left that cannot end, or if nobody can go on; the message has the command that repeats it. Settings outside of
/// their limits are compile errors where a number is written out, else they fail the test.
/// `SIMTILE_SEED=17` runs that seed only.
#[proc_macro_attribute]
pub fn test(settings: TokenStream, function: TokenStream) -> TokenStream {
    test::expand(settings.into(), function.into()).into()
}
