//! The committed kernels of `artifacts/`, embedded, so that the binary runs anywhere.

use crate::frame::{Check, Stop};

const FILES: &[(&str, &[u8])] = include!("../../../artifacts/files.rs");

/// The bytes of an artifact.
///
/// # Errors
/// There is none of this name.
pub fn bytes(name: &str) -> Check<&'static [u8]> {
    FILES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
        .ok_or_else(|| Stop::fail(format!("no artifact {name} is embedded")))
}

/// The text of an artifact, with the NUL that the driver wants at its end.
///
/// # Errors
/// There is none of this name.
pub fn text(name: &str) -> Check<Vec<u8>> {
    let mut text = bytes(name)?.to_vec();
    text.push(0);
    Ok(text)
}
