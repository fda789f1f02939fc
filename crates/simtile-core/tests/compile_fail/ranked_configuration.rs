//! A ranked configuration is what its constructor made it.
use simtile_types::{LaunchConfig, LaunchConfig1D};

fn built(config: LaunchConfig) -> LaunchConfig1D {
    LaunchConfig1D { config }
}

fn changed(mut ranked: LaunchConfig1D) {
    ranked.config.grid_dim = (1, 2, 3); //~ E0616 config
}

fn rank(ranked: LaunchConfig1D) -> simtile_types::LaunchConfig2D {
    ranked //~ E0308
}

fn main() {}
