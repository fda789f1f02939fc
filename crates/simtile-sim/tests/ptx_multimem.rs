//! `multimem` on a multicast object over two devices.

mod ptx_support;

use ptx_support::{Machine, shape};
use simtile_sim::exec::{FaultReason, KernelFault};
use simtile_sim::memory::{GRANULARITY, PhysicalRequest, Vmm};

/// A machine with a multicast mapping, and each device's memory mapped by itself.
struct Two {
    machine: Machine,
    vmm: Vmm,
    object: u64,
    all: u64,
    each: [u64; 2],
}

fn two(body: &str) -> Two {
    let machine = Machine::new(&format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 at, .param .u64 to) {{\n\
         .reg .b32 x<8>, t; .reg .b64 m, o, y<8>; .reg .b16 h<8>;\n\
         ld.param.u64 m, [at]; ld.param.u64 o, [to]; mov.u32 t, %tid.x; mad.wide.u32 o, t, 16, o;\n{body}\nret;\n}}"
    ));
    let vmm = Vmm::default();
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
    fn write(&self, first: &[u32], second: &[u32]) {
        self.machine.write(self.each[0], first);
        self.machine.write(self.each[1], second);
    }

    fn run(&self, offset: u64) -> Result<Vec<u32>, KernelFault> {
        let to = self.machine.upload(&[0u32; 32 * 4]);
        self.machine.launch("k", shape(1, 32), args![self.all + offset, to])?;
        Ok(self.machine.download(to, 4))
    }

    fn read(&self) -> [Vec<u32>; 2] {
        self.each.map(|at| self.machine.download(at, 4))
    }
}

/// What `multimem.ld_reduce` of a form gives of words on both devices.
fn joined(form: &str, first: &[u32], second: &[u32]) -> Vec<u32> {
    let (load, store) = match form {
        f if f.contains(".v8.") => ("mov.b32 x0, {h0, h1}; mov.b32 x1, {h2, h3};", "{x0, x1}"),
        f if f.contains(".v4.") || f.contains(".v2.") => ("", "{x0, x1}"),
        f if f.contains("64") => ("mov.b64 {x0, x1}, y0;", "{x0, x1}"),
        _ => ("mov.b32 x1, 0;", "{x0, x1}"),
    };
    let to = match form {
        f if f.contains(".v8.") => "{h0, h1, h2, h3, h4, h5, h6, h7}",
        f if f.contains(".v4.") => "{x0, x1, x2, x3}",
        f if f.contains(".v2.") => "{x0, x1}",
        f if f.contains("64") => "y0",
        _ => "x0",
    };
    let two = two(&format!("multimem.ld_reduce{form} {to}, [m]; {load} st.global.v2.b32 [o], {store};"));
    two.write(first, second);
    two.run(0).unwrap_or_else(|e| panic!("{form}: {e}"))[..2].to_vec()
}

#[test]
fn loads_join_what_all_devices_hold() {
    let f = f32::to_bits;
    let (a, b) = ([7, u32::MAX, 5, 5], [0xFFFF_FFF0, 3, 5, 5]);
    for (form, want) in [
        (".relaxed.gpu.global.add.u32", [0xFFFF_FFF7, 0]),
        (".min.u32", [7, 0]),
        (".min.s32", [0xFFFF_FFF0, 0]),
        (".global.max.s32", [7, 0]),
        (".and.b32", [7 & 0xFFFF_FFF0, 0]),
        (".or.b32", [0xFFFF_FFF7, 0]),
        (".xor.b64", [0xFFFF_FFF7, 0xFFFF_FFFC]),
        (".acquire.sys.global.add.u64", [0xFFFF_FFF7, 2]),
        (".min.s64", [7, u32::MAX]),
        (".max.u64", [7, u32::MAX]),
    ] {
        assert_eq!(joined(form, &a, &b), want, "{form}");
    }
    let (x, y) = ([f(1.5), f(-2.0), f(0.0), f(9.0)], [f(2.0), f(0.5), f(1.0), f(1.0)]);
    assert_eq!(joined(".global.add.f32", &x, &y), [f(3.5), 0]);
    assert_eq!(joined(".weak.global.add.v2.f32", &x, &y), [f(3.5), f(-1.5)]);
    assert_eq!(joined(".add.v4.f32", &x, &y), [f(3.5), f(-1.5)]);
    // A sum of two is rounded once with or without `.acc::f32`.
    let half = |low: f32, high: f32| {
        let bits = |v| u32::from(half::f16::from_f32(v).to_bits());
        bits(low) | bits(high) << 16
    };
    let (x, y) = ([half(1.0, 2.0); 4], [half(0.5, -3.0); 4]);
    for form in [".add.f16x2", ".add.acc::f32.f16x2", ".add.v4.f16x2", ".add.acc::f32.v8.f16"] {
        assert_eq!(joined(form, &x, &y)[0], half(1.5, -1.0), "{form}");
    }
    assert_eq!(joined(".min.f16x2", &x, &y)[0], half(0.5, -3.0));
    assert_eq!(joined(".max.v8.f16", &x, &y), [half(1.0, 2.0); 2]);
    let wide = |v: f64| [v.to_bits() as u32, (v.to_bits() >> 32) as u32, 0, 0];
    assert_eq!(joined(".add.f64", &wide(1.25), &wide(3.0)), wide(4.25)[..2]);
}

#[test]
fn stores_and_reductions_reach_every_device() {
    let store =
        two(".reg .pred p; setp.ne.u32 p, t, 0; @p ret; multimem.st.global.v4.f32 [m], {t, t, t, t};\n\
         multimem.st.u32 [m+4], 77;");
    store.write(&[9; 4], &[8; 4]);
    store.run(0).unwrap();
    assert_eq!(store.read(), [vec![0, 77, 0, 0], vec![0, 77, 0, 0]]);
    // All 32 lanes add their number.
    let sum = two(
        "multimem.red.release.gpu.global.add.u32 [m], t; multimem.red.max.s32 [m+4], t; multimem.red.xor.b64 [m+8], m;",
    );
    sum.write(&[1, 100, 5, 5], &[2, 3, 6, 6]);
    sum.run(0).unwrap();
    // An even number of equal bits is none.
    assert_eq!(sum.read(), [vec![497, 100, 5, 5], vec![498, 31, 6, 6]]);
    let halves = two("mov.b32 x0, 0x3C004000; multimem.red.add.v4.f16x2 [m], {x0, x0, x0, x0};");
    halves.write(&[0; 4], &[0x3C00; 4]);
    halves.run(0).unwrap();
    // 32 times 2 below and 32 times 1 above; the second device began with 1 below.
    assert_eq!(halves.read(), [vec![0x5000_5400; 4], vec![0x5000_5410; 4]]);
}

#[test]
fn other_memory_and_missing_devices_are_faults() {
    let t = two("multimem.ld_reduce.add.u32 x0, [m];");
    t.write(&[1; 4], &[1; 4]);
    let text = |result: Result<Vec<u32>, KernelFault>| match result.unwrap_err().reason {
        FaultReason::IllegalInstruction(text) => text,
        other => format!("{other:?}"),
    };
    assert!(text(t.run(1)).contains("isaligned"));
    assert!(text(t.run(GRANULARITY)).contains("Unmapped"));
    let plain = t.machine.launch("k", shape(1, 1), args![t.each[0], t.each[0]]).map(|()| Vec::new());
    assert!(text(plain).contains("no mapping of a multicast object"));
    t.vmm.multicast(t.object).unwrap().unbind(1, 0, GRANULARITY).unwrap();
    assert!(text(t.run(0)).contains("1 of 2 devices"));
}

#[test]
fn forms_that_there_are_not() {
    for text in [
        "multimem.ld_reduce.add.s64 y0, [m];",
        "multimem.ld_reduce.min.f32 x0, [m];",
        "multimem.ld_reduce.add.f16 h0, [m];",
        "multimem.ld_reduce.release.gpu.add.u32 x0, [m];",
        "multimem.ld_reduce.weak.gpu.add.u32 x0, [m];",
        "multimem.ld_reduce.shared.add.u32 x0, [m];",
        "multimem.ld_reduce.add.acc::f32.f32 x0, [m];",
        "multimem.ld_reduce.u32 x0, [m];",
        "multimem.red.weak.add.u32 [m], x0;",
        "multimem.red.and.u32 [m], x0;",
        "multimem.st.add.u32 [m], x0;",
        "multimem.st.v2.b64 [m], {y0, y1};",
        "multimem.atom.add.u32 x0, [m], x1;",
    ] {
        let module = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n\
             .reg .b32 x<4>; .reg .b64 m, y<4>; .reg .b16 h<4>;\n{text}\nret;\n}}"
        );
        assert!(Machine::load(&module).is_err(), "{text}");
    }
}
