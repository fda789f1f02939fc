#[simtile_macros::test(sedes = 4)]
fn misspelt(_: &u32) {}

#[simtile_macros::test(seeds = 4)]
fn without_an_argument() {}

#[simtile_macros::test]
async fn not_async(_: &u32) {}

fn main() {}
