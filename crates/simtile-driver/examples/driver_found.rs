//! Says which libcuda the loader takes, and where the system looks for it.

use simtile_driver::Driver;
use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    writeln!(out, "search path: {}", path.to_string_lossy())?;
    match Driver::cuda() {
        Ok(driver) => writeln!(out, "driver: {:?}", driver.table().kind),
        Err(error) => writeln!(out, "no driver: {error}"),
    }
}
