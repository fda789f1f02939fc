//! The same on the CPU.

use crate::Shape;

/// Largest difference of a softmax value, relative to 1 plus the value.
const TOLERANCE: f32 = 1e-5;

/// A matrix of values between -4 and 4, zeros in the padding. The same every time.
///
/// # Errors
/// The host has no memory for it.
pub fn input(shape: Shape) -> Result<Vec<f32>, std::collections::TryReserveError> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut values = Vec::new();
    values.try_reserve_exact(shape.floats())?;
    values.resize(shape.floats(), 0.0);
    for row in values.chunks_exact_mut(shape.stride as usize) {
        for value in &mut row[..shape.cols as usize] {
            // Knuth's MMIX generator; the upper bits are good enough here.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *value = (state >> 40) as f32 / (1 << 21) as f32 - 4.0;
        }
    }
    Ok(values)
}

fn rows(shape: Shape, values: &[f32]) -> impl Iterator<Item = &[f32]> {
    values.chunks_exact(shape.stride as usize).map(move |row| &row[..shape.cols as usize])
}

/// Compares every value with the softmax of its row. Returns the largest difference.
///
/// # Errors
/// The first value that is wrong, and where.
pub fn check_softmax(shape: Shape, input: &[f32], output: &[f32]) -> Result<f32, String> {
    let mut worst = 0f32;
    for (r, (x, y)) in rows(shape, input).zip(rows(shape, output)).enumerate() {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
        for (c, (&x, &got)) in x.iter().zip(y).enumerate() {
            let want = (f64::from(x - max).exp() / sum) as f32;
            let difference = (got - want).abs() / (1.0 + want.abs());
            // A NaN is not within the tolerance either.
            if difference.is_nan() || difference > TOLERANCE {
                return Err(format!("softmax at row {r}, column {c}: got {got}, want {want}"));
            }
            worst = worst.max(difference);
        }
    }
    check_padding(shape, output)?;
    Ok(worst)
}

/// Compares every value with what scaling makes of it, bit for bit. Returns how many were scaled.
///
/// # Errors
/// The first value that is wrong, and where.
pub fn check_scaled(
    shape: Shape,
    before: &[f32],
    after: &[f32],
    threshold: f32,
    factor: f32,
) -> Result<usize, String> {
    let mut scaled = 0;
    for (r, (before, after)) in rows(shape, before).zip(rows(shape, after)).enumerate() {
        for (c, (&x, &got)) in before.iter().zip(after).enumerate() {
            let over = x > threshold;
            let want = if over { x * factor } else { x };
            if got.to_bits() != want.to_bits() {
                return Err(format!("scale_over at row {r}, column {c}: got {got}, want {want}"));
            }
            scaled += usize::from(over);
        }
    }
    check_padding(shape, after)?;
    Ok(scaled)
}

/// No kernel may touch what lies between the rows.
fn check_padding(shape: Shape, values: &[f32]) -> Result<(), String> {
    for (r, row) in values.chunks_exact(shape.stride as usize).enumerate() {
        if let Some(c) = row[shape.cols as usize..].iter().position(|v| v.to_bits() != 0) {
            return Err(format!("the padding of row {r} was written, {c} elements behind its end"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_found_wherever_they_are() {
        let shape = Shape::new(5, 19).unwrap();
        let x = input(shape).unwrap();
        let mut y = vec![0f32; x.len()];
        for (x, y) in x.chunks_exact(32).zip(y.chunks_exact_mut(32)) {
            let sum: f32 = x[..19].iter().map(|v| v.exp()).sum();
            (0..19).for_each(|c| y[c] = x[c].exp() / sum);
        }
        assert!(check_softmax(shape, &x, &y).unwrap() < TOLERANCE);
        for (place, what) in [(0, "row 0, column 0"), (4 * 32 + 18, "row 4, column 18")] {
            let mut wrong = y.clone();
            wrong[place] += 1e-4;
            assert!(check_softmax(shape, &x, &wrong).unwrap_err().contains(what));
            wrong[place] = f32::NAN;
            assert!(check_softmax(shape, &x, &wrong).unwrap_err().contains(what));
        }
        let mut touched = y.clone();
        touched[2 * 32 + 20] = 1.0;
        assert!(check_softmax(shape, &x, &touched).unwrap_err().contains("padding of row 2"));
        let threshold = 1.0 / 19.0;
        let scaled: Vec<f32> = y.iter().map(|&v| if v > threshold { v * 2.0 } else { v }).collect();
        let count = check_scaled(shape, &y, &scaled, threshold, 2.0).unwrap();
        assert!(count > 0 && count < 95);
        assert!(check_scaled(shape, &y, &y, threshold, 2.0).is_err());
    }
}
