//! The memories of all devices behind a multicast object.

use super::*;
use crate::exec::{FaultReason, FindingKind, LoadFault};
use crate::memory::{GRANULARITY, PhysicalRequest, Vmm};

fn multicast(ty: Type) -> Type {
    ty.with_pointer_attribute(PointerAttribute::Multicast)
}

/// Eight elements: joins, adds to or stores over those of all devices. `reduction` and order are attributes.
fn kernel(opcode: Opcode, scalar: ScalarType, reduction: i64, order: i64) -> K {
    let load = opcode == Opcode::MultimemLoadReduceViewTko;
    let mut k = K::new("multimem", &[multicast(ptr(&[], scalar)), ptr(&[], scalar)]);
    let ty = tensor(scalar, &[Some(7)], &[Some(1)]);
    let base = k.args[0];
    let view = k.add(
        K::op(Opcode::MakeTensorView)
            .operand(base)
            .attr("operandSegmentSizes", groups(&[1, 0, 0]))
            .result(multicast(Type::TensorView(ty.clone()))),
    )[0];
    let part = Type::PartitionView(partition(&[8], &ty, Some(PaddingValue::Zero)));
    let view = k.view(Opcode::MakePartitionView, view, multicast(part));
    let zero = k.i32(0);
    let value = if load { None } else { Some(k.input(1, scalar, &[8])) };
    let mut op = K::op(opcode).operand(view);
    if let Some(value) = value {
        op = op.operand(value);
    }
    op = op.operand(zero).attr("memory_ordering_semantics", Attribute::i32(order));
    if order != 0 {
        op = op.attr("memory_scope", Attribute::i32(2));
    }
    if opcode != Opcode::MultimemStoreViewTko {
        op = op.attr("reduction", Attribute::i32(reduction));
    }
    let sizes: &[i64] = if load { &[1, 1, 0] } else { &[1, 1, 1, 0] };
    op = op.attr("operandSegmentSizes", groups(sizes));
    if load {
        op = op.result(tile(&[8], scalar));
    }
    let results = k.add(op.result(Type::Token));
    if load {
        k.output(1, results[0]);
    }
    k
}

/// A multicast mapping and the memory of each of two devices.
struct Two {
    machine: Machine,
    vmm: Vmm,
    object: u64,
    all: u64,
    each: [u64; 2],
}

fn two() -> Two {
    let (machine, vmm) = (Machine::new(), Vmm::default());
    let space = &machine.space;
    let object = vmm.create_multicast(GRANULARITY, 2).unwrap();
    let multicast = vmm.multicast(object).unwrap();
    (0..2).for_each(|device| multicast.add_device(device).unwrap());
    let map = |handle: u64| {
        let base = vmm.reserve(space, GRANULARITY, 0, 0).unwrap();
        vmm.map(space, base, GRANULARITY, 0, handle).unwrap();
        vmm.set_access(space, base, GRANULARITY, &[(0, 3), (1, 3)]).unwrap();
        base
    };
    let each = [0, 1].map(|device| {
        let request = PhysicalRequest { bytes: GRANULARITY, device, ..PhysicalRequest::default() };
        let handle = vmm.create(space, request).unwrap();
        multicast.bind(0, &vmm.physical(handle).unwrap(), 0, GRANULARITY).unwrap();
        map(handle)
    });
    let all = map(object);
    Two { machine, vmm, object, all, each }
}

impl Two {
    fn write<T: bytemuck::Pod>(&self, device: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let memory = self.machine.space.locate(self.each[device], bytes.len() as u64).unwrap();
        let (backing, offset) = memory.backing();
        backing.write(offset, bytes);
        backing.mark_written(offset, bytes.len() as u64);
    }
}

#[test]
fn loads_add_what_all_devices_hold() {
    let t = two();
    let program = kernel(Opcode::MultimemLoadReduceViewTko, I32, 0, 1).program();
    t.write(0, &[1i32, 2, 3, 4, 5, 6, 7, 100]);
    t.write(1, &[10i32, 20, 30, 40, 50, 60, i32::MAX, 100]);
    let out = t.machine.alloc(32);
    t.machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(t.all), Arg::Ptr(out)]);
    // The eighth element lies outside of the tensor.
    assert_eq!(t.machine.get::<i32>(out, 8), [11, 22, 33, 44, 55, 66, i32::MIN + 6, 0]);
    let program = kernel(Opcode::MultimemLoadReduceViewTko, F16, 0, 0).program();
    let halves = |v: f32| [half::f16::from_f32(v).to_bits(); 8];
    t.write(0, &halves(1.5));
    t.write(1, &halves(2.0));
    t.machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(t.all), Arg::Ptr(out)]);
    assert_eq!(t.machine.get::<u16>(out, 7), halves(3.5)[..7]);
}

#[test]
fn stores_and_sums_reach_every_device() {
    let t = two();
    let value = t.machine.put(&[1i64, 2, 3, 4, 5, 6, 7, 8]);
    t.write(0, &[100i64; 8]);
    t.write(1, &[-1i64; 8]);
    let add = kernel(Opcode::MultimemReduceViewTko, I64, 0, 3).program();
    // Sixteen blocks add the same.
    t.machine.ok(&*add, [16, 1, 1], &[Arg::Ptr(t.all), Arg::Ptr(value)]);
    assert_eq!(t.machine.get::<i64>(t.each[0], 8), [116, 132, 148, 164, 180, 196, 212, 100]);
    assert_eq!(t.machine.get::<i64>(t.each[1], 8), [15, 31, 47, 63, 79, 95, 111, -1]);
    let store = kernel(Opcode::MultimemStoreViewTko, I64, 0, 0).program();
    t.machine.ok(&*store, [1, 1, 1], &[Arg::Ptr(t.all), Arg::Ptr(value)]);
    assert_eq!(t.machine.get::<i64>(t.each[0], 8), [1, 2, 3, 4, 5, 6, 7, 100]);
    assert_eq!(t.machine.get::<i64>(t.each[1], 8), [1, 2, 3, 4, 5, 6, 7, -1]);
}

#[test]
fn other_memory_missing_devices_and_unwritten_bytes() {
    let t = two();
    let load = kernel(Opcode::MultimemLoadReduceViewTko, F32, 0, 0).program();
    let out = t.machine.alloc(32);
    t.write(0, &[1f32; 8]);
    t.machine.run(&*load, [1, 1, 1], &[Arg::Ptr(t.all), Arg::Ptr(out)]).unwrap();
    assert!(matches!(t.machine.found()[0], FindingKind::UninitialisedRead { .. }));
    let text = |at: u64| match t.machine.run(&*load, [1, 1, 1], &[Arg::Ptr(at), Arg::Ptr(out)]) {
        Err(fault) => match fault.reason {
            FaultReason::IllegalInstruction(text) => text,
            other => format!("{other:?}"),
        },
        Ok(()) => String::new(),
    };
    assert!(text(t.each[0]).contains("no mapping of a multicast object"));
    assert!(text(t.all + 2).contains("Misaligned"));
    t.vmm.multicast(t.object).unwrap().unbind(1, 0, GRANULARITY).unwrap();
    assert!(text(t.all).contains("1 of 2 devices"));
}

#[test]
fn what_is_refused_at_load() {
    for reduction in 1..=7 {
        let fault = kernel(Opcode::MultimemReduceViewTko, I32, reduction, 1).load().err().unwrap();
        let LoadFault::Unsupported { what, .. } = fault else { panic!("{fault}") };
        assert!(what.contains("multimem_reduce_view_tko") && what.contains("not published"), "{what}");
    }
    for (opcode, scalar, order) in [
        (Opcode::MultimemReduceViewTko, I32, 0),
        (Opcode::MultimemReduceViewTko, I32, 2),
        (Opcode::MultimemStoreViewTko, I32, 2),
        (Opcode::MultimemLoadReduceViewTko, I32, 3),
        (Opcode::MultimemStoreViewTko, I8, 0),
    ] {
        let fault = kernel(opcode, scalar, 0, order).load().err();
        assert!(matches!(fault, Some(LoadFault::Malformed { .. })), "{opcode:?} {scalar:?} {order}");
    }
    // Ordinary accesses do not reach multicast memory.
    let mut k = K::new("plain", &[multicast(ptr(&[], F32)), ptr(&[], F32)]);
    let value = k.input(1, F32, &[1]);
    let at = k.e(Opcode::Reshape, &[k.args[0]], multicast(ptr(&[1], F32)), &[]);
    k.store_ptr(at, value);
    let Some(LoadFault::Malformed { what, .. }) = k.load().err() else { panic!("malformed") };
    assert!(what.contains("only multimem operations reach"), "{what}");
}
