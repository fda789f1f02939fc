//! Only the author knows that others have finished with what was exported.
use simtile_core::{Exported, Stream};
use std::sync::Arc;

fn ordered(stream: &Arc<Stream>, exported: Exported<f32>) {
    let _ = exported.take_back(stream); //~ E0133 take_back
}

fn unknown(exported: Exported<f32>) {
    let _ = exported.take_back_unknown(); //~ E0133 take_back_unknown
}

fn main() {}
