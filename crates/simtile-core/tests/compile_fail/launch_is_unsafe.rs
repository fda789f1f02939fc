//! A raw launch is a promise of its author.
use simtile_core::{Function, LaunchArgs, Stream};
use simtile_types::LaunchConfig;
use std::sync::Arc;

fn launch(stream: &Arc<Stream>, function: &Function) {
    let _ = stream.launch(function, LaunchConfig::for_num_elems(1), LaunchArgs::new()); //~ E0133 launch
    let _ = stream.submit().launch(function, LaunchConfig::for_num_elems(1), LaunchArgs::new()); //~ E0133 launch
}

fn main() {}
