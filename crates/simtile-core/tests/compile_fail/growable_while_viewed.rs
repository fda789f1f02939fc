//! A buffer does not shrink or grow under its views.
use simtile_core::{GrowableBuffer, MemoryError, Stream};
use std::sync::Arc;

fn grow(stream: &Arc<Stream>, buffer: &mut GrowableBuffer<f32>) -> Result<(), MemoryError> {
    let view = buffer.view();
    buffer.resize(stream, 10)?; //~ E0502
    let _ = view.len();
    Ok(())
}

fn main() {}
