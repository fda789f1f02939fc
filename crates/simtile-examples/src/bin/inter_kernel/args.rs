//! Command line.

pub const HELP: &str = "\
usage: inter_kernel [--rows N] [--cols N]

  --rows N   rows of the matrix, 1 to 2147483647 (default 512); memory is the limit
  --cols N   columns, 1 to 1024 (default 1000): the Tile kernel holds a row in one tile
";

use simtile_examples::Shape;

/// The shape that the arguments ask for; `None` if they ask for help.
pub fn parse(args: impl Iterator<Item = String>) -> Result<Option<Shape>, String> {
    let (mut rows, mut cols) = (512, 1000);
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name.to_string(), Some(value.to_string())),
            None => (arg, None),
        };
        let target = match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--rows" => &mut rows,
            "--cols" => &mut cols,
            other => return Err(format!("unknown argument {other:?}")),
        };
        let value = value.or_else(|| args.next()).ok_or_else(|| format!("{name} needs a number"))?;
        *target = value.parse().map_err(|_| format!("{name} {value:?} is not a number"))?;
    }
    Shape::new(rows, cols).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Shape>, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn strides_are_padded_to_sixteen() {
        for (cols, stride) in [(1, 16), (16, 16), (17, 32), (1000, 1008), (1024, 1024)] {
            assert_eq!(Shape::new(3, cols), Ok(Shape { rows: 3, cols: cols as u32, stride }));
        }
    }

    #[test]
    fn sizes_outside_their_limits_are_named() {
        assert_eq!(parsed("--cols 1025").unwrap_err(), "--cols 1025 is outside 1 to 1024");
        assert_eq!(parsed("--cols 0").unwrap_err(), "--cols 0 is outside 1 to 1024");
        assert_eq!(parsed("--rows=0").unwrap_err(), "--rows 0 is outside 1 to 2147483647");
        assert_eq!(parsed("--rows 5000000000").unwrap_err(), "--rows 5000000000 is outside 1 to 2147483647");
        assert_eq!(parsed("--rows -1").unwrap_err(), "--rows \"-1\" is not a number");
        assert_eq!(parsed("--rows").unwrap_err(), "--rows needs a number");
        assert_eq!(parsed("--wors 3").unwrap_err(), "unknown argument \"--wors\"");
    }

    #[test]
    fn defaults_and_help() {
        assert_eq!(parsed("").map(|s| s.map(|s| (s.rows, s.cols))), Ok(Some((512, 1000))));
        assert_eq!(parsed("--rows=7 --cols 9").map(|s| s.map(|s| (s.rows, s.cols))), Ok(Some((7, 9))));
        assert_eq!(parsed("--help"), Ok(None));
    }
}
