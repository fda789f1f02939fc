//! Wrappers with the layout of what they wrap.

use core::num::Wrapping;

/// A type whose values may stand wherever a `W` is stored.
///
/// A buffer of `W` may become a buffer of the implementor and back without touching a byte
/// (`wrap_elem`, `peel_elem`).
///
/// # Safety
/// Size and alignment equal `W`'s, every value of the implementor is a valid `W`, and every `W` is a
/// valid value of the implementor.
pub unsafe trait DeviceRepr<W> {}

// SAFETY: `Wrapping` is `repr(transparent)` and adds no invariant.
unsafe impl<T> DeviceRepr<T> for Wrapping<T> {}
