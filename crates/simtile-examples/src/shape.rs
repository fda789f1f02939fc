//! The size of a matrix.

/// The kernels hold a row in one tile of this many columns.
const MAX_COLS: u32 = 1024;

/// The Tile kernel assumes that rows start at multiples of this many elements.
const ROW_ALIGNMENT: u32 = 16;

/// A matrix of floats in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: u32,
    /// Floats of a row.
    pub cols: u32,
    /// Floats from one row to the next.
    pub stride: u32,
}

impl Shape {
    /// Checks what the kernels only assume.
    ///
    /// # Errors
    /// Which number is outside of which limits.
    pub fn new(rows: u64, cols: u64) -> Result<Self, String> {
        let limited = |name: &str, value: u64, limit: u32| match u32::try_from(value) {
            Ok(v) if (1..=limit).contains(&v) => Ok(v),
            _ => Err(format!("{name} {value} is outside 1 to {limit}")),
        };
        let rows = limited("--rows", rows, i32::MAX as u32)?;
        let cols = limited("--cols", cols, MAX_COLS)?;
        let stride = cols.next_multiple_of(ROW_ALIGNMENT);
        (rows as usize)
            .checked_mul(stride as usize * size_of::<f32>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| format!("--rows {rows} with --cols {cols} is more than can be addressed"))?;
        Ok(Self { rows, cols, stride })
    }

    /// Floats in all, with those between the rows.
    pub fn floats(self) -> usize {
        self.rows as usize * self.stride as usize
    }
}
