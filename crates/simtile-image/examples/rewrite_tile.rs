//! Reads Tile bytecode and writes it again, at its own version or another.
//!
//!     cargo run -p simtile-image --features tile --example rewrite_tile -- IN OUT [13.2]

use cutile_ir::bytecode::{BytecodeVersion, write_bytecode_version};
use simtile_image::tile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(input), Some(output)) = (args.next(), args.next()) else {
        return Err("usage: rewrite_tile IN OUT [VERSION]".into());
    };
    let bytes = std::fs::read(&input)?;
    let version = match args.next() {
        None => tile::version(&bytes)?,
        Some(name) => BytecodeVersion::SUPPORTED
            .into_iter()
            .find(|v| v.to_string() == name)
            .ok_or_else(|| format!("{name} is not a version that can be written"))?,
    };
    let module = tile::read(&bytes)?;
    std::fs::write(output, write_bytecode_version(&module, version)?)?;
    Ok(())
}
