//! Loops, branches, limits, printing and assertions.

use super::*;
use crate::exec::FaultReason;
use std::sync::atomic::Ordering;

const WRAP: [(&str, i64); 1] = [("overflow", 0)];
const LESS: [(&str, i64); 2] = [("comparison_predicate", 2), ("signedness", 1)];

fn run_i32(k: K, args: &[i32]) -> i32 {
    let machine = Machine::new();
    let out = machine.alloc(4);
    let mut all = vec![Arg::Ptr(out)];
    all.extend(args.iter().map(|&v| Arg::I32(v)));
    machine.ok(&*k.program(), [1, 1, 1], &all);
    machine.get::<i32>(out, 1)[0]
}

fn scalar_kernel(name: &str, inputs: usize) -> K {
    let mut types = vec![ptr(&[], I32)];
    types.extend(vec![tile(&[], I32); inputs]);
    K::new(name, &types)
}

fn store(k: &mut K, value: Value) {
    let out = k.args[0];
    k.store_ptr(out, value);
}

#[test]
fn for_loops_count() {
    for (low, high, step, want) in [(0, 10, 1, 45), (0, 10, 3, 18), (5, 5, 1, 0), (-3, 4, 2, 0), (7, 3, 1, 0)]
    {
        let mut k = scalar_kernel("sum", 3);
        let zero = k.i32(0);
        let bounds = [k.args[1], k.args[2], k.args[3]];
        let sum = k.for_loop(bounds, &[zero], |k, i, v| vec![k.same(Opcode::AddI, &[v[0], i], &WRAP)]);
        store(&mut k, sum[0]);
        assert_eq!(run_i32(k, &[low, high, step]), want, "{low}..{high} by {step}");
    }
}

#[test]
fn a_step_of_zero_faults() {
    let mut k = scalar_kernel("step", 1);
    let (zero, ten) = (k.i32(0), k.i32(10));
    let step = k.args[1];
    k.for_loop([zero, ten, step], &[], |_, _, _| vec![]);
    let machine = Machine::new();
    let fault = machine.run(&*k.program(), [1, 1, 1], &[Arg::Ptr(0), Arg::I32(0)]).expect_err("endless");
    assert!(matches!(fault.reason, FaultReason::IllegalInstruction(_)), "{fault}");
}

#[test]
fn nested_loops_carry_values_inwards_and_outwards() {
    let mut k = scalar_kernel("nested", 0);
    let (zero, three, one) = (k.i32(0), k.i32(3), k.i32(1));
    let total = k.for_loop([zero, three, one], &[zero, one], |k, i, v| {
        let inner = k.for_loop([zero, three, one], &[v[0]], |k, j, w| {
            let product = k.same(Opcode::MulI, &[i, j], &WRAP);
            vec![k.same(Opcode::AddI, &[w[0], product], &WRAP)]
        });
        let doubled = k.same(Opcode::AddI, &[v[1], v[1]], &WRAP);
        vec![inner[0], doubled]
    });
    let sum = k.same(Opcode::AddI, &[total[0], total[1]], &WRAP);
    store(&mut k, sum);
    assert_eq!(run_i32(k, &[]), 9 + 8);
}

#[test]
fn branches_give_values() {
    for (x, want) in [(5, 50), (-5, 5)] {
        let mut k = scalar_kernel("abs", 1);
        let x_value = k.args[1];
        let (zero, ten) = (k.i32(0), k.i32(10));
        let negative = k.e(Opcode::CmpI, &[x_value, zero], tile(&[], I1), &LESS);
        let then = k.nested(&[], |k, _| {
            let v = k.same(Opcode::SubI, &[zero, x_value], &WRAP);
            k.end(Opcode::Yield, &[v]);
        });
        let otherwise = k.nested(&[], |k, _| {
            let v = k.same(Opcode::MulI, &[x_value, ten], &WRAP);
            k.end(Opcode::Yield, &[v]);
        });
        let op = K::op(Opcode::If).operand(negative).result(tile(&[], I32)).region(then).region(otherwise);
        let v = k.add(op)[0];
        store(&mut k, v);
        assert_eq!(run_i32(k, &[x]), want);
    }
}

#[test]
fn a_loop_breaks_and_continues_from_inside_a_branch() {
    // Collatz steps: the loop carries (x, steps) and gives steps.
    let mut k = scalar_kernel("collatz", 1);
    let (zero, one, two, three) = (k.i32(0), k.i32(1), k.i32(2), k.i32(3));
    let start = k.args[1];
    let signed = [("signedness", 1), ("rounding", 1)];
    let body = k.nested(&[tile(&[], I32), tile(&[], I32)], |k, v| {
        let (x, steps) = (v[0], v[1]);
        let done =
            k.e(Opcode::CmpI, &[x, one], tile(&[], I1), &[("comparison_predicate", 0), ("signedness", 1)]);
        let stop = k.nested(&[], |k, _| k.end(Opcode::Break, &[steps]));
        let go = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
        k.add(K::op(Opcode::If).operand(done).region(stop).region(go));
        let next = k.same(Opcode::AddI, &[steps, one], &WRAP);
        let odd = k.same(Opcode::RemI, &[x, two], &[("signedness", 1)]);
        let even =
            k.e(Opcode::CmpI, &[odd, zero], tile(&[], I1), &[("comparison_predicate", 0), ("signedness", 1)]);
        let half = k.nested(&[], |k, _| {
            let h = k.same(Opcode::DivI, &[x, two], &signed);
            k.end(Opcode::Continue, &[h, next]);
        });
        let go = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
        k.add(K::op(Opcode::If).operand(even).region(half).region(go));
        let t = k.same(Opcode::MulI, &[x, three], &WRAP);
        let t = k.same(Opcode::AddI, &[t, one], &WRAP);
        k.end(Opcode::Continue, &[t, next]);
    });
    let steps = k.add(K::op(Opcode::Loop).operands([start, zero]).result(tile(&[], I32)).region(body))[0];
    store(&mut k, steps);
    assert_eq!(run_i32(k, &[27]), 111);
}

#[test]
fn return_ends_the_block_early() {
    let mut k = scalar_kernel("early", 1);
    let (zero, one) = (k.i32(0), k.i32(1));
    store(&mut k, one);
    let x = k.args[1];
    let negative = k.e(Opcode::CmpI, &[x, zero], tile(&[], I1), &LESS);
    let then = k.nested(&[], |k, _| k.end(Opcode::Return, &[]));
    let otherwise = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
    k.add(K::op(Opcode::If).operand(negative).region(then).region(otherwise));
    let two = k.i32(2);
    store(&mut k, two);
    let program = k.program();
    for (x, want) in [(-1, 1), (1, 2)] {
        let machine = Machine::new();
        let out = machine.alloc(4);
        machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(out), Arg::I32(x)]);
        assert_eq!(machine.get::<i32>(out, 1), [want]);
    }
}

fn endless() -> K {
    let mut k = K::new("endless", &[]);
    let body = k.nested(&[], |k, _| k.end(Opcode::Continue, &[]));
    k.add(K::op(Opcode::Loop).region(body));
    k
}

#[test]
fn endless_kernels_end() {
    let Ok(program) = endless().load() else { panic!("loads") };
    let machine = Machine::new();
    let fault = machine.run(&*program, [3, 1, 1], &[]).expect_err("step limit");
    assert_eq!(fault.reason, FaultReason::StepLimit(1_000_000));
    assert_eq!(fault.site.block, [0, 0, 0]);
    let machine = Machine { steps: u64::MAX, ..Machine::new() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            machine.cancel.store(true, Ordering::Relaxed);
        });
        let fault = machine.run(&*program, [1, 1, 1], &[]).expect_err("cancelled");
        assert_eq!(fault.reason, FaultReason::Cancelled);
    });
}

#[test]
fn blocks_may_wait_for_blocks_that_start_later() {
    // Block 0 spins until block 1 has set a flag, with one worker.
    let mut k = K::new("handshake", &[ptr(&[], I32)]);
    let id = k.block_id()[0];
    let (zero, one) = (k.i32(0), k.i32(1));
    let flag = k.args[0];
    let first =
        k.e(Opcode::CmpI, &[id, zero], tile(&[], I1), &[("comparison_predicate", 0), ("signedness", 1)]);
    let atomic = |k: &mut K, mode: i64, value: Value| {
        let op = K::op(Opcode::AtomicRMW)
            .operands([flag, value])
            .attr("memory_ordering_semantics", Attribute::i32(4))
            .attr("memory_scope", Attribute::i32(1))
            .attr("mode", Attribute::i32(mode))
            .attr("operandSegmentSizes", groups(&[1, 1, 0, 0]))
            .result(tile(&[], I32))
            .result(Type::Token);
        k.add(op)[0]
    };
    let wait = k.nested(&[], |k, _| {
        let body = k.nested(&[], |k, _| {
            let seen = atomic(k, 3, zero);
            let set = k.e(
                Opcode::CmpI,
                &[seen, zero],
                tile(&[], I1),
                &[("comparison_predicate", 1), ("signedness", 1)],
            );
            let stop = k.nested(&[], |k, _| k.end(Opcode::Break, &[]));
            let go = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
            k.add(K::op(Opcode::If).operand(set).region(stop).region(go));
            k.end(Opcode::Continue, &[]);
        });
        k.add(K::op(Opcode::Loop).region(body));
        k.end(Opcode::Yield, &[]);
    });
    let signal = k.nested(&[], |k, _| {
        atomic(k, 9, one);
        k.end(Opcode::Yield, &[]);
    });
    k.add(K::op(Opcode::If).operand(first).region(wait).region(signal));
    let program = k.program();
    let machine = Machine { workers: 1, steps: u64::MAX, ..Machine::new() };
    let address = machine.put(&[0i32]);
    machine.ok(&*program, [2, 1, 1], &[Arg::Ptr(address)]);
    assert_eq!(machine.get::<i32>(address, 1), [1]);
}

#[test]
fn printing() {
    let mut k = K::new("hello", &[tile(&[], I32)]);
    let x = k.args[0];
    let v = k.e(Opcode::Iota, &[], tile(&[4], I32), &[]);
    k.add(
        K::op(Opcode::Print)
            .operand(x)
            .operand(v)
            .attr("str", Attribute::String("x = %d, v = %d\n".into()))
            .attr("operandSegmentSizes", groups(&[2, 0]))
            .result(Type::Token),
    );
    let machine = Machine::new();
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::I32(-4)]);
    assert_eq!(*machine.printed.lock(), "x = -4, v = [0, 1, 2, 3]\n");
}

#[test]
fn assertions() {
    let mut k = K::new("asserts", &[tile(&[], I32)]);
    let x = k.args[0];
    let x = k.e(Opcode::Reshape, &[x], tile(&[1], I32), &[]);
    let x = k.e(Opcode::Broadcast, &[x], tile(&[4], I32), &[]);
    let v = k.e(Opcode::Iota, &[], tile(&[4], I32), &[]);
    let less = k.e(Opcode::CmpI, &[v, x], tile(&[4], I1), &LESS);
    k.add(K::op(Opcode::Assert).operand(less).attr("message", Attribute::String("too small".into())));
    let program = k.program();
    let machine = Machine::new();
    machine.ok(&*program, [1, 1, 1], &[Arg::I32(4)]);
    let fault = machine.run(&*program, [1, 1, 1], &[Arg::I32(2)]).expect_err("assertion");
    assert_eq!(fault.reason, FaultReason::Assert("too small at [2]".into()));
}

#[test]
fn geometry_and_arguments_are_checked() {
    let Ok(program) = endless().load() else { panic!("loads") };
    let machine = Machine::new();
    let mut k = scalar_kernel("args", 1);
    let x = k.args[1];
    store(&mut k, x);
    let two = k.program();
    let fault = machine.run(&*two, [1, 1, 1], &[Arg::Ptr(0)]).expect_err("too few");
    assert!(fault.to_string().contains("too few"), "{fault}");
    assert!(program.kernels()[0].params.is_empty());
}
