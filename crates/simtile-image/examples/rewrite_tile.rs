//! Reads Tile bytecode and writes it again at its own version.
//!
//!     cargo run -p simtile-image --features tile --example rewrite_tile -- IN OUT

use simtile_image::tile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(input), Some(output)) = (args.next(), args.next()) else {
        return Err("usage: rewrite_tile IN OUT".into());
    };
    let bytes = std::fs::read(&input)?;
    let version = tile::version(&bytes)?;
    let module = tile::read(&bytes)?;
    std::fs::write(output, cutile_ir::bytecode::write_bytecode_version(&module, version)?)?;
    Ok(())
}
