//! Device `printf` and assertions.

use super::Result;
use super::memory::Memory;
use crate::ptx::code::Space;

/// Longest string that is followed.
const LONGEST: u64 = 64 << 10;
/// Largest width and precision.
const WIDEST: usize = 4096;

/// A NUL-terminated string at a generic address; empty for a null pointer.
fn text(memory: &mut Memory<'_, '_>, address: u64, lane: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if address == 0 {
        return Ok(bytes);
    }
    for at in 0..LONGEST {
        let place = memory.resolve(Space::Generic, address.wrapping_add(at));
        match memory.load_one(place, 0, 1, lane, 0)? as u8 {
            0 => break,
            byte => bytes.push(byte),
        }
    }
    Ok(bytes)
}

/// `__assertfail(message, file, line, function, char size)`.
pub(super) fn assertion(memory: &mut Memory<'_, '_>, args: &[u64], lane: usize) -> Result<String> {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    let mut string = |i: usize| -> Result<String> {
        Ok(String::from_utf8_lossy(&text(memory, arg(i), lane)?).into_owned())
    };
    let (message, file, function) = (string(0)?, string(1)?, string(3)?);
    Ok(format!("{file}:{}: {function}: Assertion `{message}` failed", arg(2) as u32))
}

/// `vprintf(format, arguments)`: prints and returns the number of arguments, or −1 without a format.
pub(super) fn vprintf(memory: &mut Memory<'_, '_>, args: &[u64], lane: usize) -> Result<u32> {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    if arg(0) == 0 {
        return Ok(u32::MAX);
    }
    let format = text(memory, arg(0), lane)?;
    let mut reader = Reader { memory, at: arg(1), lane, count: 0 };
    let printed = render(&format, &mut reader)?;
    let count = reader.count;
    (memory.worker.run.ctx.print)(&printed);
    Ok(count)
}

/// Arguments in the packed buffer, each at a multiple of its size.
struct Reader<'m, 'a, 'r> {
    memory: &'m mut Memory<'a, 'r>,
    at: u64,
    lane: usize,
    count: u32,
}

impl Reader<'_, '_, '_> {
    fn next(&mut self, bytes: u32) -> Result<u64> {
        self.at = self.at.wrapping_add(u64::from(bytes) - 1) & !(u64::from(bytes) - 1);
        let place = self.memory.resolve(Space::Generic, self.at);
        let value = self.memory.load_one(place, 0, bytes, self.lane, 0)?;
        self.at = self.at.wrapping_add(bytes.into());
        self.count += 1;
        Ok(value)
    }
}

/// One conversion specification.
#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

fn render(format: &[u8], reader: &mut Reader<'_, '_, '_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = format;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let start = rest;
        let mut spec = Spec::default();
        while let Some((flag, tail)) = rest.split_first() {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            rest = tail;
        }
        let (width, tail) = number(rest, reader)?;
        rest = tail;
        if let Some(width) = width {
            spec.left |= width < 0;
            spec.width = (width.unsigned_abs() as usize).min(WIDEST);
        }
        if let Some(tail) = rest.strip_prefix(b".") {
            let (precision, tail) = number(tail, reader)?;
            rest = tail;
            spec.precision = usize::try_from(precision.unwrap_or(0)).ok().map(|p| p.min(WIDEST));
        }
        let mut bytes = 4;
        let mut narrow = 0;
        while let Some((length, tail)) = rest.split_first() {
            match length {
                b'l' | b'j' | b'z' | b't' | b'q' => bytes = 8,
                b'h' => narrow += 1,
                b'L' => {}
                _ => break,
            }
            rest = tail;
        }
        let Some((&conversion, tail)) = rest.split_first() else {
            out.push(b'%');
            out.extend_from_slice(start);
            break;
        };
        rest = tail;
        match conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let raw = reader.next(bytes)?;
                let value = match (bytes, narrow) {
                    (8, _) => raw as i64,
                    (_, 0) => (raw as i32).into(),
                    (_, 1) => (raw as i16).into(),
                    _ => (raw as i8).into(),
                };
                integer(&mut out, spec, value < 0, true, value.unsigned_abs().to_string(), "");
            }
            b'u' | b'x' | b'X' | b'o' => {
                let raw = reader.next(bytes)?;
                let value = match narrow {
                    0 => raw,
                    1 => raw & 0xFFFF,
                    _ => raw & 0xFF,
                };
                let digits = match conversion {
                    b'x' => format!("{value:x}"),
                    b'X' => format!("{value:X}"),
                    b'o' => format!("{value:o}"),
                    _ => value.to_string(),
                };
                let prefix = match conversion {
                    b'x' if spec.alternate && value != 0 => "0x",
                    b'X' if spec.alternate && value != 0 => "0X",
                    b'o' if spec.alternate && value != 0 => "0",
                    _ => "",
                };
                integer(&mut out, spec, false, false, digits, prefix);
            }
            b'c' => {
                let value = reader.next(4)? as u8;
                pad(&mut out, Spec { zero: false, ..spec }, "", &[value]);
            }
            b'p' => {
                let value = reader.next(8)?;
                pad(&mut out, Spec { zero: false, ..spec }, "", format!("{value:#x}").as_bytes());
            }
            b's' => {
                let address = reader.next(8)?;
                let mut bytes = match address {
                    0 => b"(null)".to_vec(),
                    _ => text(reader.memory, address, reader.lane)?,
                };
                bytes.truncate(spec.precision.unwrap_or(usize::MAX));
                pad(&mut out, Spec { zero: false, ..spec }, "", &bytes);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(reader.next(8)?);
                float(&mut out, spec, conversion, value);
            }
            _ => {
                // Not a conversion: printed as it stands.
                out.push(b'%');
                let length = start.len() - rest.len();
                out.extend_from_slice(&start[..length]);
            }
        }
    }
    Ok(out)
}

/// Digits, or `*` and the next argument.
fn number<'f>(text: &'f [u8], reader: &mut Reader<'_, '_, '_>) -> Result<(Option<i64>, &'f [u8])> {
    if let Some(tail) = text.strip_prefix(b"*") {
        return Ok((Some((reader.next(4)? as i32).into()), tail));
    }
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let value =
        text[..digits].iter().fold(0i64, |v, b| v.saturating_mul(10).saturating_add((b - b'0').into()));
    Ok(((digits > 0).then_some(value), &text[digits..]))
}

fn integer(out: &mut Vec<u8>, spec: Spec, negative: bool, signed: bool, digits: String, prefix: &str) {
    let sign = match (negative, signed) {
        (true, _) => "-",
        (false, true) if spec.plus => "+",
        (false, true) if spec.space => " ",
        _ => "",
    };
    let digits = match spec.precision {
        Some(0) if digits == "0" => String::new(),
        Some(p) => format!("{digits:0>p$}"),
        None => digits,
    };
    // A precision switches zero padding off.
    let zero = spec.zero && spec.precision.is_none();
    pad(out, Spec { zero, ..spec }, &format!("{sign}{prefix}"), digits.as_bytes());
}

fn pad(out: &mut Vec<u8>, spec: Spec, head: &str, body: &[u8]) {
    let fill = spec.width.saturating_sub(head.len() + body.len());
    let blanks = |out: &mut Vec<u8>, byte: u8| out.extend(std::iter::repeat_n(byte, fill));
    if !spec.left && !spec.zero {
        blanks(out, b' ');
    }
    out.extend_from_slice(head.as_bytes());
    if !spec.left && spec.zero {
        blanks(out, b'0');
    }
    out.extend_from_slice(body);
    if spec.left {
        blanks(out, b' ');
    }
}

fn float(out: &mut Vec<u8>, spec: Spec, conversion: u8, value: f64) {
    let sign = match () {
        () if value.is_sign_negative() && !value.is_nan() => "-",
        () if spec.plus => "+",
        () if spec.space => " ",
        () => "",
    };
    let x = value.abs();
    let upper = conversion.is_ascii_uppercase();
    let body = if !x.is_finite() {
        if x.is_nan() { "nan".to_owned() } else { "inf".to_owned() }
    } else {
        match conversion.to_ascii_lowercase() {
            b'f' => point(format!("{:.*}", spec.precision.unwrap_or(6), x), spec),
            b'e' => exponent(x, spec.precision.unwrap_or(6), spec),
            b'g' => general(x, spec),
            _ => hexadecimal(x, spec),
        }
    };
    let body = if upper { body.to_ascii_uppercase() } else { body };
    let zero = spec.zero && x.is_finite();
    pad(out, Spec { zero, ..spec }, sign, body.as_bytes());
}

/// `#` keeps the point of a number without decimals.
fn point(digits: String, spec: Spec) -> String {
    if spec.alternate && !digits.contains('.') { digits + "." } else { digits }
}

fn exponent(x: f64, precision: usize, spec: Spec) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", point(mantissa.to_owned(), spec), power.abs())
}

fn general(x: f64, spec: Spec) -> String {
    let precision = spec.precision.unwrap_or(6).max(1);
    // The exponent after rounding decides the form.
    let rounded = format!("{x:.*e}", precision - 1);
    let power: i32 = rounded.split_once('e').and_then(|(_, p)| p.parse().ok()).unwrap_or(0);
    let text = if power < -4 || power >= precision as i32 {
        exponent(x, precision - 1, spec)
    } else {
        format!("{x:.*}", (precision as i32 - 1 - power).max(0) as usize)
    };
    if spec.alternate || !text.contains('.') {
        return text;
    }
    let (mantissa, tail) = match text.find('e') {
        Some(at) => text.split_at(at),
        None => (&text[..], ""),
    };
    format!("{}{tail}", mantissa.trim_end_matches('0').trim_end_matches('.'))
}

fn hexadecimal(x: f64, spec: Spec) -> String {
    let bits = x.to_bits();
    let (field, mut fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let mut lead = u64::from(field != 0);
    let power = match (field, fraction) {
        (0, 0) => 0,
        (0, _) => -1022,
        _ => field - 1023,
    };
    let digits = match spec.precision {
        Some(p) if p < 13 => {
            let drop = 4 * (13 - p as u32);
            let whole = lead << 52 | fraction;
            let (kept, lost) = (whole >> drop, whole & ((1 << drop) - 1));
            let half = 1u64 << (drop - 1);
            let kept = kept + u64::from(lost > half || lost == half && kept & 1 == 1);
            lead = kept >> (4 * p);
            fraction = kept & ((1 << (4 * p)) - 1);
            if p == 0 { String::new() } else { format!("{fraction:0p$x}") }
        }
        Some(p) => format!("{fraction:013x}{}", "0".repeat(p - 13)),
        None => format!("{fraction:013x}").trim_end_matches('0').to_owned(),
    };
    let dot = if digits.is_empty() && !spec.alternate { "" } else { "." };
    format!("0x{lead}{dot}{digits}p{power:+}")
}
