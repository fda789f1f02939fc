//! A prepared launch is one kernel's, and takes a configuration of its rank.
use simtile_core::{Function, LaunchError, PreparedLaunch};
use simtile_types::contract::{
    BlockRequirement, DynamicSharedMemoryRequirement, KernelLaunchContract, LaunchContractSpec,
};
use simtile_types::{LaunchConfig1D, LaunchConfig2D};

const SPEC: LaunchContractSpec =
    LaunchContractSpec::new("k", BlockRequirement::MaxThreads(1), DynamicSharedMemoryRequirement::NONE);

struct First;
impl KernelLaunchContract for First {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec = SPEC;
}

struct Second;
impl KernelLaunchContract for Second {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec = SPEC;
}

fn launch_second(_: &PreparedLaunch<Second>) {}

fn brand(prepared: &PreparedLaunch<First>) {
    launch_second(prepared); //~ E0308
}

fn rank(function: &Function, config: LaunchConfig2D) -> Result<PreparedLaunch<First>, LaunchError> {
    PreparedLaunch::prepare(function, config) //~ E0271
}

fn cloned_whatever_the_brand(prepared: &PreparedLaunch<First>) -> PreparedLaunch<First> {
    prepared.clone()
}

fn main() {}
