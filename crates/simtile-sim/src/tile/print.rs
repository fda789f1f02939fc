//! `print_tko`: C format strings over tiles.
//!
//! A scalar prints as C's `printf` would. A tile prints all its elements, each by the same conversion, as `[a, b, c]`, nested by
//! dimension. Length modifiers are read and ignored: the operand's type says how wide it is.

use super::data::Data;
use super::elementwise::signed;
use super::float::decode;
use super::types::{Elem, TileTy};
use std::fmt::Write;

/// Widest field and longest precision that are honoured.
const MAX_FIELD: usize = 512;

/// A part of a format string.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Text as it is.
    Text(String),
    /// The next operand.
    Value(Conversion),
}

/// Most bytes that one call prints; the rest is cut off.
const MAX_TEXT: usize = 1 << 20;

/// One conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Conversion {
    minus: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    /// The letter; 0 for "as the type suggests".
    letter: u8,
}

/// Splits a format string.
pub(super) fn parse(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        if rest.peek() == Some(&'%') {
            rest.next();
            text.push('%');
            continue;
        }
        let mut conversion = Conversion {
            minus: false,
            plus: false,
            space: false,
            zero: false,
            alternate: false,
            width: 0,
            precision: None,
            letter: 0,
        };
        while let Some(&flag) = rest.peek() {
            match flag {
                '-' => conversion.minus = true,
                '+' => conversion.plus = true,
                ' ' => conversion.space = true,
                '0' => conversion.zero = true,
                '#' => conversion.alternate = true,
                _ => break,
            }
            rest.next();
        }
        let mut number = || {
            let mut value = None;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                value = Some((value.unwrap_or(0) * 10 + digit as usize).min(MAX_FIELD));
                rest.next();
            }
            value
        };
        conversion.width = number().unwrap_or(0);
        if rest.peek() == Some(&'.') {
            rest.next();
            let mut value = 0;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                value = (value * 10 + digit as usize).min(MAX_FIELD);
                rest.next();
            }
            conversion.precision = Some(value);
        }
        while rest.peek().is_some_and(|c| "hlLqjzt".contains(*c)) {
            rest.next();
        }
        if let Some(&letter) = rest.peek()
            && "diouxXeEfFgGaAcp".contains(letter)
        {
            rest.next();
            conversion.letter = letter as u8;
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Value(conversion));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

/// The text of a call.
pub(super) fn render(pieces: &[Piece], args: &[(&TileTy, &Data)]) -> String {
    let mut out = String::new();
    let mut args = args.iter();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Value(conversion) => {
                if let Some((ty, data)) = args.next() {
                    tile(&mut out, conversion, ty.elem, &ty.shape, data, 0);
                }
            }
        }
    }
    out
}

fn tile(out: &mut String, conversion: &Conversion, elem: Elem, shape: &[usize], data: &Data, at: usize) {
    let Some((&extent, inner)) = shape.split_first() else {
        out.push_str(&value(conversion, elem, data.get(at)));
        return;
    };
    let step: usize = inner.iter().product();
    out.push('[');
    for i in 0..extent {
        if out.len() > MAX_TEXT {
            return;
        }
        if i > 0 {
            out.push_str(", ");
        }
        tile(out, conversion, elem, inner, data, at + i * step);
    }
    out.push(']');
}

fn value(c: &Conversion, elem: Elem, bits: u64) -> String {
    let float = elem.scalar().filter(|s| s.is_float());
    let letter = match c.letter {
        0 if float.is_some() => b'f',
        0 if matches!(elem, Elem::Pointer(_)) => b'p',
        0 => b'd',
        letter => letter,
    };
    let (negative, body) = match letter {
        b'd' | b'i' | b'c' => {
            let number = match float {
                Some(s) => decode(s, bits) as i64,
                // A boolean prints as 0 or 1.
                None if elem.bits() == 1 => bits as i64,
                None => signed(bits, elem.bits()),
            };
            if letter == b'c' {
                return pad(c, false, &char::from(number as u8).to_string(), false);
            }
            (number < 0, digits(c, number.unsigned_abs().to_string()))
        }
        b'u' | b'o' | b'x' | b'X' | b'p' => {
            let number = float.map_or(bits, |s| decode(s, bits) as u64);
            let prefix = c.alternate && number != 0;
            let text = match letter {
                b'u' => number.to_string(),
                b'o' => format!("{}{number:o}", if prefix { "0" } else { "" }),
                b'X' => format!("{}{}", if prefix { "0X" } else { "" }, digits(c, format!("{number:X}"))),
                b'p' => format!("0x{number:x}"),
                _ => format!("{}{}", if prefix { "0x" } else { "" }, digits(c, format!("{number:x}"))),
            };
            (false, if matches!(letter, b'u' | b'o') { digits(c, text) } else { text })
        }
        _ => {
            let number = match float {
                Some(s) => decode(s, bits),
                None => signed(bits, elem.bits()) as f64,
            };
            let magnitude = number.abs();
            let upper = letter.is_ascii_uppercase();
            if !number.is_finite() {
                let text = if number.is_nan() { "nan" } else { "inf" };
                let text = if upper { text.to_uppercase() } else { text.into() };
                return pad(c, number.is_sign_negative() && !number.is_nan(), &text, false);
            }
            let text = match letter.to_ascii_lowercase() {
                b'e' => exponent(magnitude, c.precision.unwrap_or(6)),
                b'g' => general(magnitude, c.precision.unwrap_or(6).max(1), c.alternate),
                b'a' => hexadecimal(magnitude),
                _ => format!("{magnitude:.*}", c.precision.unwrap_or(6)),
            };
            (number.is_sign_negative(), if upper { text.to_uppercase() } else { text })
        }
    };
    pad(
        c,
        negative,
        &body,
        c.zero && (c.precision.is_none() || !matches!(letter, b'd' | b'i' | b'u' | b'o' | b'x' | b'X')),
    )
}

/// A precision on integers is a least number of digits.
fn digits(c: &Conversion, text: String) -> String {
    let least = c.precision.unwrap_or(0);
    if text.len() < least { format!("{}{text}", "0".repeat(least - text.len())) } else { text }
}

fn pad(c: &Conversion, negative: bool, body: &str, zeros: bool) -> String {
    let sign = if negative {
        "-"
    } else if c.plus {
        "+"
    } else if c.space {
        " "
    } else {
        ""
    };
    let fill = c.width.saturating_sub(sign.len() + body.len());
    if c.minus {
        format!("{sign}{body}{}", " ".repeat(fill))
    } else if zeros {
        format!("{sign}{}{body}", "0".repeat(fill))
    } else {
        format!("{}{sign}{body}", " ".repeat(fill))
    }
}

fn exponent(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let number: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if number < 0 { '-' } else { '+' }, number.abs())
}

fn general(x: f64, precision: usize, keep_zeros: bool) -> String {
    let scientific = exponent(x, precision - 1);
    let power: i32 = scientific.rsplit_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if keep_zeros || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if power < -4 || power >= precision as i32 {
        let (mantissa, tail) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        format!("{}e{tail}", trim(mantissa.to_owned()))
    } else {
        trim(format!("{x:.*}", (precision as i32 - 1 - power).max(0) as usize))
    }
}

fn hexadecimal(x: f64) -> String {
    let bits = x.to_bits();
    let (field, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let (lead, power) = match field {
        0 if fraction == 0 => (0, 0),
        0 => (0, -1022),
        field => (1, field - 1023),
    };
    let mut out = format!("0x{lead}");
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    if !digits.is_empty() {
        let _ = write!(out, ".{digits}");
    }
    let _ = write!(out, "p{power:+}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cutile_ir::ir::ScalarType;

    fn show(format: &str, scalar: ScalarType, shape: &[usize], values: &[u64]) -> String {
        let ty = TileTy { shape: shape.into(), elem: Elem::Scalar(scalar) };
        let data = Data::collect(ty.elem, values.iter().copied());
        render(&parse(format), &[(&ty, &data)])
    }

    #[test]
    fn formats_like_c() {
        let f = |format, x: f32| show(format, ScalarType::F32, &[], &[u64::from(x.to_bits())]);
        assert_eq!(f("v=%f\n", 1.5), "v=1.500000\n");
        assert_eq!(f("%+08.3f|", 1.5), "+001.500|");
        assert_eq!(f("%e", 12345.678), "1.234568e+04");
        assert_eq!(f("%g", 0.0001), "0.0001");
        assert_eq!(f("%g", 1e10), "1e+10");
        assert_eq!(f("%a", 1.5), "0x1.8p+0");
        assert_eq!(f("%-8.1f|", -2.25), "-2.2    |");
        assert_eq!(f("%F", f32::INFINITY), "INF");
        let i = |format, x: i32| show(format, ScalarType::I32, &[], &[u64::from(x as u32)]);
        assert_eq!(i("%d%%", -7), "-7%");
        assert_eq!(i("%u", -1), "4294967295");
        assert_eq!(i("%#x", 255), "0xff");
        assert_eq!(i("%05d", -42), "-0042");
        assert_eq!(i("%.4lld", 42), "0042");
        assert_eq!(i("%", 3), "3");
    }

    #[test]
    fn tiles_are_nested() {
        assert_eq!(show("%d", ScalarType::I8, &[2, 2], &[1, 2, 3, 255]), "[[1, 2], [3, -1]]");
        assert_eq!(show("%d", ScalarType::I1, &[2], &[0, 1]), "[0, 1]");
    }
}
