//! The method: batches of the raw driver and of a contender alternate in one process.
//!
//! Neighbouring measurements of the same call differ by up to a third on a busy machine, so two processes, or two
//! phases of one, cannot show 100 ns. A *pair* is one batch of raw calls and one batch of the contender's, right after one
//! another; which side goes first changes from pair to pair. The result is the median over pairs of
//! `(contender − raw) / batch`, with a 95 % interval from a block bootstrap: runs of 20 neighbouring pairs are drawn
//! with replacement, because neighbours are correlated.

use std::time::{Duration, Instant};

/// What every step may fail with: a text.
pub type Result<T = ()> = core::result::Result<T, String>;

/// Neighbours drawn together.
const BLOCK: usize = 20;
/// Bootstrap rounds.
const ROUNDS: usize = 2_000;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pairs.
    pub pairs: usize,
    /// Operations in a batch.
    pub batch: usize,
    /// Pairs before the first that counts.
    pub warm: usize,
    /// Wall time after which no further pair starts.
    pub limit: Duration,
}

/// One side of the pairs: `operation` is timed, `settle` (drain, undo) is not.
pub trait Side {
    /// One operation; the number counts within the batch.
    fn operation(&mut self, index: usize) -> Result;
    /// Waits until nothing is in flight. Not timed, except in [`whole`].
    fn settle(&mut self) -> Result;
    /// A batch. Sides with threads of their own replace it.
    fn batch(&mut self, operations: usize) -> Result<Duration> {
        let start = Instant::now();
        for index in 0..operations {
            self.operation(index)?;
        }
        Ok(start.elapsed())
    }
}

/// What a row gives.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Pairs measured.
    pub pairs: usize,
    /// Operations in a batch.
    pub batch: usize,
    /// Median of the raw side, ns per operation.
    pub raw: f64,
    /// Median of the contender, ns per operation.
    pub ours: f64,
    /// Median of the pairs' differences, ns per operation.
    pub difference: f64,
    /// 95 % interval of that median.
    pub interval: (f64, f64),
}

impl Row {
    /// 1 + difference / raw, and the same for the upper end of the interval.
    pub fn ratio(&self) -> (f64, f64) {
        (1.0 + self.difference / self.raw, 1.0 + self.interval.1 / self.raw)
    }

    /// One line of the table.
    pub fn line(&self) -> String {
        let (ratio, upper) = self.ratio();
        format!(
            "{:<34} raw {:>10.1} ns  ours {:>10.1} ns  difference {:>+9.1} [{:>+9.1}, {:>+9.1}]  ratio {:.3} (≤ {:.3})  {} pairs × {}",
            self.name,
            self.raw,
            self.ours,
            self.difference,
            self.interval.0,
            self.interval.1,
            ratio,
            upper,
            self.pairs,
            self.batch
        )
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        format!(
            r#"{{"row":"{}","pairs":{},"batch":{},"raw_ns":{:.1},"ours_ns":{:.1},"difference_ns":{:.1},"low_ns":{:.1},"high_ns":{:.1}}}"#,
            self.name,
            self.pairs,
            self.batch,
            self.raw,
            self.ours,
            self.difference,
            self.interval.0,
            self.interval.1
        )
    }
}

/// Measures `ours` beside `raw`.
///
/// # Errors
/// The first error of either side; no pair could be measured within the limit.
pub fn measure(name: &str, plan: Plan, raw: &mut impl Side, ours: &mut impl Side) -> Result<Row> {
    let batch = plan.batch.max(1);
    let one = |side: &mut dyn FnMut() -> Result<Duration>| -> Result<f64> {
        Ok(side()?.as_nanos() as f64 / batch as f64)
    };
    let start = Instant::now();
    let (mut raws, mut differences, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..plan.warm + plan.pairs {
        if start.elapsed() > plan.limit {
            break;
        }
        let mut raw_side = || {
            let time = raw.batch(batch)?;
            raw.settle()?;
            Ok(time)
        };
        let mut our_side = || {
            let time = ours.batch(batch)?;
            ours.settle()?;
            Ok(time)
        };
        let (r, o) = if pair % 2 == 0 {
            let r = one(&mut raw_side)?;
            (r, one(&mut our_side)?)
        } else {
            let o = one(&mut our_side)?;
            (one(&mut raw_side)?, o)
        };
        if pair >= plan.warm {
            raws.push(r);
            other.push(o);
            differences.push(o - r);
        }
    }
    if differences.is_empty() {
        return Err(format!("{name}: no pair within {:?}", plan.limit));
    }
    Ok(Row {
        name: name.to_owned(),
        pairs: differences.len(),
        batch,
        raw: median(&mut raws),
        ours: median(&mut other),
        interval: bootstrap(&differences),
        difference: median(&mut differences),
    })
}

/// The median; sorts partly.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// 95 % interval of the median by a block bootstrap. The generator is fixed: the same values give the same interval.
fn bootstrap(values: &[f64]) -> (f64, f64) {
    // With few values, shorter runs: else each draw would be the whole.
    let block = BLOCK.min(values.len().div_ceil(10));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut sample = Vec::with_capacity(values.len() + block);
    let mut medians: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            sample.clear();
            while sample.len() < values.len() {
                let at = next(values.len() - block + 1);
                sample.extend_from_slice(&values[at..at + block]);
            }
            median(&mut sample)
        })
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    (medians[ROUNDS * 25 / 1000], medians[ROUNDS * 975 / 1000])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_holds_the_median_and_shrinks_with_more_pairs() {
        let noise = |n: usize| (0..n).map(|i| 100.0 + ((i * 7919) % 101) as f64).collect::<Vec<_>>();
        let (low, high) = bootstrap(&noise(4_000));
        let (wide_low, wide_high) = bootstrap(&noise(200));
        assert!(low <= 150.0 && 150.0 <= high, "{low} {high}");
        assert!(high - low < wide_high - wide_low);
    }

    #[test]
    fn raw_against_itself_differs_by_nothing() {
        struct Spin;
        impl Side for Spin {
            fn operation(&mut self, index: usize) -> Result {
                std::hint::black_box(index);
                Ok(())
            }
            fn settle(&mut self) -> Result {
                Ok(())
            }
        }
        let plan = Plan { pairs: 200, batch: 64, warm: 10, limit: Duration::from_secs(10) };
        let row = measure("same", plan, &mut Spin, &mut Spin).unwrap();
        assert_eq!((row.pairs, row.batch), (200, 64));
        assert!(row.interval.0 <= row.difference && row.difference <= row.interval.1);
    }
}
