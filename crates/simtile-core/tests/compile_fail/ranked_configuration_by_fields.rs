//! A ranked configuration is made by its constructor.
use simtile_types::{LaunchConfig, LaunchConfig1D};

fn built(config: LaunchConfig) -> LaunchConfig1D {
    LaunchConfig1D { config } //~ E0451 config
}

fn main() {}
