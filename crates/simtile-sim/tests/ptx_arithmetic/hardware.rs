//! Results of real hardware, where PTX leaves them open or programs can see more than it says.

use super::run;

/// A number from a row.
fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Runs the instructions of a family and hands each row to `judge`: instruction, operands, result, the hardware's.
fn family(name: &str, judge: impl Fn(&str, [u64; 3], u64, u64)) {
    let text = include_str!("hardware.txt");
    let (_, rest) = text
        .split_once(&format!(
            "
= {name}
"
        ))
        .expect("a family of this name");
    let lines = || rest.lines().take_while(|line| !line.starts_with('='));
    let mut instructions = 0;
    for (at, line) in lines().enumerate() {
        let Some((body, widths)) = line.split_once(" | ") else { continue };
        let widths: Vec<u32> = widths.split(' ').map(|w| w.parse().unwrap()).collect();
        let rows: Vec<Vec<u64>> = lines()
            .skip(at + 1)
            .map_while(|line| line.strip_prefix("  "))
            .map(|row| row.split(' ').map(hex).collect())
            .collect();
        assert!(!rows.is_empty(), "{body}");
        let inputs: Vec<[u64; 3]> = rows.iter().map(|row| [row[0], row[1], row[2]]).collect();
        let mask = u64::MAX >> (64 - widths[3]);
        let results = run(body, widths.try_into().unwrap(), &inputs);
        for ((got, operands), row) in results.iter().zip(inputs).zip(&rows) {
            judge(body, operands, got & mask, row[3]);
        }
        instructions += 1;
    }
    assert!(instructions > 0);
}

fn exact(name: &str) {
    family(name, |body, operands, got, want| {
        assert_eq!(got, want, "{body} {operands:#x?}: {got:#x}, the hardware gives {want:#x}");
    });
}

#[test]
fn bit_fields_of_64_bits_read_all_of_position_and_length() {
    exact("bit_fields_of_64_bits_read_all_of_position_and_length");
}

#[test]
fn video_saturation_and_second_operation() {
    exact("video_saturation_and_second_operation");
}

#[test]
fn zero_is_normal() {
    exact("zero_is_normal");
}

#[test]
fn nan_becomes_an_integer() {
    exact("nan_becomes_an_integer");
}

#[test]
fn nan_becomes_another_float() {
    exact("nan_becomes_another_float");
}

#[test]
fn half_conversions_do_not_flush() {
    exact("half_conversions_do_not_flush");
}

#[test]
fn nan_of_double_arithmetic() {
    exact("nan_of_double_arithmetic");
}

#[test]
fn ftz_of_what_24_digits_hold() {
    exact("ftz_of_what_24_digits_hold");
}

#[test]
fn division_by_huge_numbers() {
    exact("division_by_huge_numbers");
}

/// Within PTX's bound of 2^-20.5, at any angle.
#[test]
fn angles() {
    family("angles", |body, [a, ..], got, want| {
        let value = |bits: u64| f64::from(f32::from_bits(bits as u32));
        let error = (value(got) - value(want)).abs();
        assert!(error <= (-20.5f64).exp2(), "{body} {a:#x}: {got:#x}, the hardware gives {want:#x}");
    });
}

/// NaNs, zeros and infinities bit by bit; else one unit of the upper half apart at most.
#[test]
fn coarse_reciprocals() {
    family("coarse_reciprocals", |body, [a, ..], got, want| {
        let unit = if f64::from_bits(want).is_normal() { 1 << 32 } else { 0 };
        let near = got.abs_diff(want) <= unit && got as u32 == 0;
        assert!(near, "{body} {a:#x}: {got:#x}, the hardware gives {want:#x}");
    });
}

#[test]
fn video_parts_scales_and_limits() {
    exact("video_parts_scales_and_limits");
}

#[test]
fn fused_products_out_of_bounds() {
    exact("fused_products_out_of_bounds");
}
