//! Two results of one case side by side.

#[cfg(test)]
use super::record::Rows;
use super::record::{Elem, Entry, Output, Tolerance};

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every bit is the same.
    Same,
    /// Within the tolerance of the case.
    Within,
    /// Both gave NaN everywhere one did, with other bits.
    NanBits,
    Differs,
    /// One of the two did not run it.
    NotRun,
}

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub verdict: Verdict,
    pub elements: usize,
    /// Elements with any other bit.
    pub bits: usize,
    /// Those where both are NaN.
    pub nans: usize,
    /// Elements out of tolerance, NaN of other bits aside.
    pub out: usize,
    /// Largest distance of two finite floats in units of the last place.
    pub ulp: u64,
    /// Where elements are out of tolerance or NaN bits differ: output, index, ours, theirs.
    pub examples: Vec<(usize, usize, u64, u64)>,
    pub note: String,
}

/// Most examples of a row.
const EXAMPLES: usize = 12;

fn value(elem: Elem, bits: u64) -> f64 {
    match elem {
        Elem::F16 => half::f16::from_bits(bits as u16).to_f64(),
        Elem::Bf16 => half::bf16::from_bits(bits as u16).to_f64(),
        Elem::F32 => f32::from_bits(bits as u32).into(),
        Elem::F64 => f64::from_bits(bits),
        _ => bits as f64,
    }
}

/// Distance in representable values; the two zeros are one.
fn ulps(elem: Elem, a: u64, b: u64) -> u64 {
    let width = 8 * elem.bytes() as u32;
    let order = |v: u64| {
        let magnitude = (v & (u64::MAX >> (65 - width))) as i128;
        if v >> (width - 1) & 1 != 0 { -magnitude } else { magnitude }
    };
    u64::try_from((order(a) - order(b)).unsigned_abs()).unwrap_or(u64::MAX)
}

fn within(elem: Elem, tolerance: Tolerance, a: u64, b: u64) -> bool {
    if !elem.is_float() {
        return false;
    }
    let (x, y) = (value(elem, a), value(elem, b));
    if !x.is_finite() || !y.is_finite() {
        return tolerance.ulps > 0 && ulps(elem, a, b) <= tolerance.ulps.into() && !x.is_nan() && !y.is_nan();
    }
    tolerance.ulps > 0 && ulps(elem, a, b) <= tolerance.ulps.into()
        || (x - y).abs() <= tolerance.absolute + tolerance.relative * y.abs() && tolerance != Tolerance::EXACT
}

fn words(output: &Output) -> impl Iterator<Item = u64> + '_ {
    output.bytes.chunks(output.elem.bytes()).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// Compares our result with the reference.
pub fn compare(ours: &Entry, theirs: &Entry) -> Row {
    let mut row = Row {
        name: ours.name.clone(),
        verdict: Verdict::Same,
        elements: 0,
        bits: 0,
        nans: 0,
        out: 0,
        ulp: 0,
        examples: Vec::new(),
        note: String::new(),
    };
    let (a, b) = match (&ours.result, &theirs.result) {
        (Ok(a), Ok(b)) => (a, b),
        (a, b) => {
            let text = |side: &str, r: &Result<_, String>| match r {
                Ok(_) => format!("{side} runs it"),
                Err(why) => format!("{side}: {why}"),
            };
            row.verdict = Verdict::NotRun;
            row.note = format!(
                "{}; {}",
                text("first", &a.as_ref().map_err(Clone::clone)),
                text("second", &b.as_ref().map_err(Clone::clone))
            );
            return row;
        }
    };
    if a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.bytes.len() != b.bytes.len() || a.elem != b.elem)
    {
        row.verdict = Verdict::Differs;
        row.note = "outputs of other number, type or length".into();
        if let ([a], [b]) = (&a[..], &b[..])
            && a.elem == Elem::U8
        {
            row.note = format!(
                "{:?} and {:?}",
                String::from_utf8_lossy(&a.bytes),
                String::from_utf8_lossy(&b.bytes)
            );
        }
        return row;
    }
    for (number, (a, b)) in a.iter().zip(b).enumerate() {
        for (index, (x, y)) in words(a).zip(words(b)).enumerate() {
            if !a.rows.holds(index) {
                continue;
            }
            row.elements += 1;
            if x == y {
                continue;
            }
            row.bits += 1;
            let (elem, float) = (a.elem, a.elem.is_float());
            let nan = |v| float && value(elem, v).is_nan();
            let ok = if nan(x) && nan(y) {
                row.nans += 1;
                false
            } else {
                if float && value(elem, x).is_finite() && value(elem, y).is_finite() {
                    row.ulp = row.ulp.max(ulps(elem, x, y));
                }
                let ok = within(elem, a.tolerance, x, y);
                row.out += usize::from(!ok);
                ok
            };
            if !ok && row.examples.len() < EXAMPLES {
                row.examples.push((number, index, x, y));
            }
        }
    }
    row.verdict = match (row.bits, row.out, row.nans) {
        (0, ..) => Verdict::Same,
        (_, 0, 0) => Verdict::Within,
        (_, 0, _) => Verdict::NanBits,
        _ => Verdict::Differs,
    };
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(elem: Elem, tolerance: Tolerance, words: &[u32]) -> Entry {
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Entry { name: "k".into(), result: Ok(vec![Output { elem, tolerance, rows: Rows::ALL, bytes }]) }
    }

    #[test]
    fn tells_bits_ulps_and_nans_apart() {
        let row = |t, a: &[u32], b: &[u32]| compare(&entry(Elem::F32, t, a), &entry(Elem::F32, t, b));
        let one = 1f32.to_bits();
        assert_eq!(row(Tolerance::EXACT, &[one], &[one]).verdict, Verdict::Same);
        let off = row(Tolerance::EXACT, &[one, one], &[one + 2, one]);
        assert_eq!((off.verdict, off.bits, off.ulp, off.elements), (Verdict::Differs, 1, 2, 2));
        assert_eq!(off.examples, [(0, 0, one.into(), u64::from(one) + 2)]);
        assert_eq!(row(Tolerance::ulps(2), &[one], &[one + 2]).verdict, Verdict::Within);
        assert_eq!(row(Tolerance::ulps(2), &[one], &[one + 3]).verdict, Verdict::Differs);
        assert_eq!(row(Tolerance::readme(1e-6), &[one], &[one + 3]).verdict, Verdict::Within);
        // A tolerance lets no NaN and no infinity pass for a number.
        assert_eq!(row(Tolerance::readme(1.0), &[0x7FC0_0000], &[one]).verdict, Verdict::Differs);
        assert_eq!(row(Tolerance::readme(1.0), &[0x7F80_0000], &[one]).verdict, Verdict::Differs);
        assert_eq!(row(Tolerance::EXACT, &[0x7FC0_0000], &[0x7FFF_FFFF]).verdict, Verdict::NanBits);
        // The zeros are different bits and 0 ulp apart.
        let zeros = row(Tolerance::EXACT, &[0], &[0x8000_0000]);
        assert_eq!((zeros.verdict, zeros.bits, zeros.ulp), (Verdict::Differs, 1, 0));
    }

    #[test]
    fn padding_of_rows_does_not_count() {
        let padded = |words: &[u32]| {
            let mut entry = entry(Elem::F32, Tolerance::EXACT, words);
            entry.result.as_mut().unwrap()[0].rows = Rows { cols: 2, stride: 3 };
            entry
        };
        let row = compare(&padded(&[1, 2, 3, 4, 5, 6]), &padded(&[1, 2, 0, 4, 5, 0]));
        assert_eq!((row.verdict, row.elements), (Verdict::Same, 4));
        let row = compare(&padded(&[1, 2, 3, 4, 5, 6]), &padded(&[1, 2, 3, 4, 0, 6]));
        assert_eq!((row.verdict, row.bits), (Verdict::Differs, 1));
    }

    #[test]
    fn what_did_not_run_never_passes() {
        let ran = entry(Elem::F32, Tolerance::EXACT, &[0]);
        let not = Entry { name: "k".into(), result: Err("refused".into()) };
        let row = compare(&not, &ran);
        assert_eq!(row.verdict, Verdict::NotRun);
        assert!(row.note.contains("refused"));
        let longer = entry(Elem::F32, Tolerance::EXACT, &[0, 0]);
        assert_eq!(compare(&ran, &longer).verdict, Verdict::Differs);
    }
}
