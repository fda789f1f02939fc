//! Random structured control flow against a plain reading of the same program: loops in loops, early `continue`, `break` and `return`,
//! values from outside used again and again. What a block gives up too early, or keeps too long, shows as a wrong number.

use super::machine::Random;
use super::*;

#[derive(Clone, Copy, Debug)]
enum Calculation {
    Add,
    Mul,
    Xor,
    /// The same value by way of a shape.
    Reshaped,
}

#[derive(Debug)]
enum Step {
    Constant(i32),
    /// A new value of two others.
    Calculate(Calculation, usize, usize),
    /// Gives `count` values.
    If {
        bit: (usize, i32),
        then: Part,
        otherwise: Part,
        count: usize,
    },
    For {
        from: i32,
        to: i32,
        step: i32,
        init: Vec<usize>,
        body: Part,
    },
    /// The first carried value counts down.
    Loop {
        turns: i32,
        init: Vec<usize>,
        body: Part,
    },
}

#[derive(Debug)]
enum End {
    Yield(Vec<usize>),
    Continue(Vec<usize>),
    Break(Vec<usize>),
    Return(usize),
}

#[derive(Debug)]
struct Part {
    steps: Vec<Step>,
    end: End,
}

/// The loop around a part that is being made.
#[derive(Clone)]
struct Around {
    /// Values that it carries besides a count, which is value `.0`.
    carried: usize,
    count: Option<usize>,
}

struct Maker<'a>(&'a mut Random);

impl Maker<'_> {
    fn picks(&mut self, known: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.0.below(known)).collect()
    }

    /// How a loop's next turn or its end carries values.
    fn carry(&mut self, known: usize, around: &Around) -> Vec<usize> {
        let mut values: Vec<usize> = around.count.into_iter().collect();
        values.extend(self.picks(known, around.carried));
        values
    }

    /// Steps behind `known` values; gives how many are known then.
    fn steps(&mut self, mut known: usize, depth: u32, around: Option<&Around>) -> (Vec<Step>, usize) {
        let mut steps = Vec::new();
        for _ in 0..1 + self.0.below(4) {
            let step = match self.0.below(if depth == 0 { 5 } else { 9 }) {
                0 => Step::Constant(self.0.next() as i32),
                1..=4 => {
                    use Calculation::{Add, Mul, Reshaped, Xor};
                    let calculation = [Add, Mul, Xor, Reshaped][self.0.below(4)];
                    Step::Calculate(calculation, self.0.below(known), self.0.below(known))
                }
                5 | 6 => {
                    let count = self.0.below(3);
                    let bit = (self.0.below(known), self.0.below(3) as i32);
                    let then = self.branch(known, depth - 1, around, count);
                    let otherwise = self.branch(known, depth - 1, around, count);
                    known += count;
                    steps.push(Step::If { bit, then, otherwise, count });
                    continue;
                }
                7 => {
                    let carried = self.0.below(3);
                    let (from, step) = (self.0.below(5) as i32 - 2, 1 + self.0.below(3) as i32);
                    let init = self.picks(known, carried);
                    let inner = Around { carried, count: None };
                    let (steps_inside, after) = self.steps(known + 1 + carried, depth - 1, Some(&inner));
                    let end = End::Continue(self.carry(after, &inner));
                    let to = from + self.0.below(5) as i32 - 1;
                    known += carried;
                    steps.push(Step::For { from, to, step, init, body: Part { steps: steps_inside, end } });
                    continue;
                }
                _ => {
                    let carried = self.0.below(3);
                    let init = self.picks(known, carried);
                    // The count, what is carried, and the count less one.
                    let inner = Around { carried, count: Some(known + 1 + carried) };
                    let (steps_inside, after) = self.steps(known + 2 + carried, depth - 1, Some(&inner));
                    let end = End::Continue(self.carry(after, &inner));
                    let turns = 1 + self.0.below(4) as i32;
                    known += 1 + carried;
                    steps.push(Step::Loop { turns, init, body: Part { steps: steps_inside, end } });
                    continue;
                }
            };
            known += 1;
            steps.push(step);
        }
        (steps, known)
    }

    fn branch(&mut self, known: usize, depth: u32, around: Option<&Around>, count: usize) -> Part {
        let (steps, known) = self.steps(known, depth, around);
        let end = match (self.0.below(6), around) {
            (0, Some(around)) => End::Continue(self.carry(known, around)),
            (1, Some(around)) if around.count.is_some() => End::Break(self.carry(known, around)),
            (2, _) if self.0.below(3) == 0 => End::Return(self.0.below(known)),
            _ => End::Yield(self.picks(known, count)),
        };
        Part { steps, end }
    }
}

/// How a part ended, when it is read plainly.
enum Left {
    Yield(Vec<i32>),
    Continue(Vec<i32>),
    Break(Vec<i32>),
    Return(i32),
}

fn read(part: &Part, values: &mut Vec<i32>) -> Left {
    if let Some(result) = read_steps(&part.steps, values) {
        return result;
    }
    let all = |at: &[usize]| at.iter().map(|&i| values[i]).collect();
    match &part.end {
        End::Yield(at) => Left::Yield(all(at)),
        End::Continue(at) => Left::Continue(all(at)),
        End::Break(at) => Left::Break(all(at)),
        End::Return(at) => Left::Return(values[*at]),
    }
}

/// `None` is the end of the steps.
fn read_steps(steps: &[Step], values: &mut Vec<i32>) -> Option<Left> {
    for step in steps {
        let known = values.len();
        match step {
            Step::Constant(value) => values.push(*value),
            Step::Calculate(calculation, a, b) => {
                let (a, b) = (values[*a], values[*b]);
                values.push(match calculation {
                    Calculation::Add => a.wrapping_add(b),
                    Calculation::Mul => a.wrapping_mul(b),
                    Calculation::Xor => a ^ b,
                    Calculation::Reshaped => a,
                });
            }
            Step::If { bit, then, otherwise, count } => {
                let taken = if values[bit.0] >> bit.1 & 1 != 0 { then } else { otherwise };
                match read(taken, values) {
                    Left::Yield(results) => {
                        assert_eq!(results.len(), *count);
                        values.truncate(known);
                        values.extend(results);
                    }
                    left => return Some(left),
                }
            }
            Step::For { from, to, step, init, body } => {
                let mut carried: Vec<i32> = init.iter().map(|&i| values[i]).collect();
                let mut at = *from;
                while at < *to {
                    values.truncate(known);
                    values.push(at);
                    values.extend(&carried);
                    match read(body, values) {
                        Left::Continue(next) => carried = next,
                        left => return Some(left),
                    }
                    at += step;
                }
                values.truncate(known);
                values.extend(carried);
            }
            Step::Loop { turns, init, body } => {
                let mut carried = vec![*turns];
                carried.extend(init.iter().map(|&i| values[i]));
                loop {
                    values.truncate(known);
                    values.extend(&carried);
                    let left = carried[0] - 1;
                    values.push(left);
                    if left == 0 {
                        break;
                    }
                    match read(body, values) {
                        Left::Continue(next) => carried = next,
                        Left::Break(last) => {
                            carried = last;
                            break;
                        }
                        left => return Some(left),
                    }
                }
                values.truncate(known);
                values.extend(carried);
            }
        }
    }
    None
}

fn write(k: &mut K, part: &Part, values: &mut Vec<Value>) {
    write_steps(k, &part.steps, values);
    let all = |at: &[usize]| at.iter().map(|&i| values[i]).collect::<Vec<_>>();
    match &part.end {
        End::Yield(at) => k.end(Opcode::Yield, &all(at)),
        End::Continue(at) => k.end(Opcode::Continue, &all(at)),
        End::Break(at) => k.end(Opcode::Break, &all(at)),
        End::Return(at) => {
            k.output(0, values[*at]);
            k.end(Opcode::Return, &[]);
        }
    }
}

/// A condition: whether a value has a bit.
fn has_bit(k: &mut K, value: Value, bit: i32) -> Value {
    let mask = k.i32(1 << bit);
    let masked = k.same(Opcode::AndI, &[value, mask], &[]);
    let zero = k.i32(0);
    k.e(Opcode::CmpI, &[masked, zero], tile(&[], I1), &[("comparison_predicate", 1), ("signedness", 1)])
}

fn write_steps(k: &mut K, steps: &[Step], values: &mut Vec<Value>) {
    let number = || tile(&[], I32);
    for step in steps {
        match step {
            Step::Constant(value) => values.push(k.i32(*value)),
            Step::Calculate(calculation, a, b) => {
                let (a, b) = (values[*a], values[*b]);
                values.push(match calculation {
                    Calculation::Add => k.same(Opcode::AddI, &[a, b], &[("overflow", 0)]),
                    Calculation::Mul => k.same(Opcode::MulI, &[a, b], &[("overflow", 0)]),
                    Calculation::Xor => k.same(Opcode::XOrI, &[a, b], &[]),
                    Calculation::Reshaped => {
                        let wide = k.e(Opcode::Reshape, &[a], tile(&[1, 1], I32), &[]);
                        k.e(Opcode::Reshape, &[wide], number(), &[])
                    }
                });
            }
            Step::If { bit, then, otherwise, count } => {
                let condition = has_bit(k, values[bit.0], bit.1);
                let mut inner = values.clone();
                let then = k.nested(&[], |k, _| write(k, then, &mut inner));
                let mut inner = values.clone();
                let otherwise = k.nested(&[], |k, _| write(k, otherwise, &mut inner));
                values.extend(
                    k.add(
                        K::op(Opcode::If)
                            .operand(condition)
                            .results(vec![number(); *count])
                            .region(then)
                            .region(otherwise),
                    ),
                );
            }
            Step::For { from, to, step, init, body } => {
                let bounds = [k.i32(*from), k.i32(*to), k.i32(*step)];
                let init: Vec<Value> = init.iter().map(|&i| values[i]).collect();
                let mut inner = values.clone();
                let region = k.nested(&vec![number(); 1 + init.len()], |k, args| {
                    inner.extend(args);
                    write(k, body, &mut inner);
                });
                values.extend(
                    k.add(
                        K::op(Opcode::For)
                            .operands(bounds)
                            .operands(init.iter().copied())
                            .results(vec![number(); init.len()])
                            .region(region),
                    ),
                );
            }
            Step::Loop { turns, init, body } => {
                let mut start = vec![k.i32(*turns)];
                start.extend(init.iter().map(|&i| values[i]));
                let mut inner = values.clone();
                let region = k.nested(&vec![number(); start.len()], |k, args| {
                    inner.extend(args);
                    let one = k.i32(-1);
                    let left = k.same(Opcode::AddI, &[args[0], one], &[("overflow", 0)]);
                    inner.push(left);
                    let zero = k.i32(0);
                    let over = k.e(
                        Opcode::CmpI,
                        &[left, zero],
                        tile(&[], I1),
                        &[("comparison_predicate", 0), ("signedness", 1)],
                    );
                    let then = k.nested(&[], |k, _| k.end(Opcode::Break, args));
                    let otherwise = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
                    k.add(K::op(Opcode::If).operand(over).region(then).region(otherwise));
                    write(k, body, &mut inner);
                });
                values.extend(
                    k.add(
                        K::op(Opcode::Loop)
                            .operands(start.iter().copied())
                            .results(vec![number(); start.len()])
                            .region(region),
                    ),
                );
            }
        }
    }
}

#[test]
fn random_programs_give_what_a_plain_reading_gives() {
    let times = std::env::var("SIMTILE_FUZZ").ok().and_then(|v| v.parse::<u64>().ok()).unwrap_or(1);
    let mut early = 0;
    for seed in 1..=250 * times {
        let mut random = Random(seed);
        random.next();
        let (steps, known) = Maker(&mut random).steps(3, 4, None);
        let mut k = K::new("flow", &[ptr(&[], I32)]);
        let mut values = k.block_id();
        write_steps(&mut k, &steps, &mut values);
        assert_eq!(values.len(), known);
        // Everything that is still visible counts.
        let sum = values[1..].to_vec().iter().fold(values[0], |sum, &value| {
            let three = k.i32(3);
            let times = k.same(Opcode::MulI, &[sum, three], &[("overflow", 0)]);
            k.same(Opcode::AddI, &[times, value], &[("overflow", 0)])
        });
        k.output(0, sum);
        let program = k.program();
        let machine = Machine::new();
        let out = machine.alloc(4);
        machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(out)]);
        let mut plain = vec![0; 3];
        let expected = match read_steps(&steps, &mut plain) {
            Some(Left::Return(value)) => {
                early += 1;
                value
            }
            Some(_) => panic!("left what is not there"),
            None => plain[1..].iter().fold(plain[0], |sum, &v| sum.wrapping_mul(3).wrapping_add(v)),
        };
        assert_eq!(machine.get::<i32>(out, 1), [expected], "seed {seed}: {steps:#?}");
    }
    assert!(early > 0, "no program returned early");
}
