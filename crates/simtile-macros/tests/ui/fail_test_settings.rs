#[simtile_macros::test(sedes = 4)]
fn misspelt(_: &u32) {}

#[simtile_macros::test(seeds = 4)]
fn without_an_argument() {}

#[simtile_macros::test(devices = 100)]
fn more_devices_than_there_can_be(_: &u32) {}

#[simtile_macros::test(seeds = 0)]
fn never_run(_: &u32) {}

fn main() {}
