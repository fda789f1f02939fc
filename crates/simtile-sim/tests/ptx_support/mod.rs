//! A loaded PTX module with memory: enough of a driver to launch its kernels.
#![allow(dead_code, reason = "each test binary uses a part")]

use simtile_sim::check::AccessLog;
use simtile_sim::exec::{DeviceTraits, ExecContext, Finding, KernelFault, LaunchSpec, LoadFault, Program};
use simtile_sim::memory::{AddressSpace, DeviceView, MemoryKind};
use simtile_sim::ptx;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

pub const H200: DeviceTraits =
    DeviceTraits { compute_capability: (9, 0), multiprocessors: 132, warp_size: 32, newest_ptx: (9, 0) };

/// Every file of `artifacts/ptx`.
pub const FILES: &[(&str, &str)] = &[
    ("async_copy", include_str!("../../../../artifacts/ptx/async_copy.ptx")),
    ("cluster", include_str!("../../../../artifacts/ptx/cluster.ptx")),
    ("dyn_shared", include_str!("../../../../artifacts/ptx/dyn_shared.ptx")),
    ("grid_sync", include_str!("../../../../artifacts/ptx/grid_sync.ptx")),
    ("histogram", include_str!("../../../../artifacts/ptx/histogram.ptx")),
    ("math", include_str!("../../../../artifacts/ptx/math.ptx")),
    ("printf", include_str!("../../../../artifacts/ptx/printf.ptx")),
    ("reduce_shared", include_str!("../../../../artifacts/ptx/reduce_shared.ptx")),
    ("rust_kernels", include_str!("../../../../artifacts/ptx/rust_kernels.ptx")),
    ("rust_saxpy", include_str!("../../../../artifacts/ptx/rust_saxpy.ptx")),
    ("saxpy", include_str!("../../../../artifacts/ptx/saxpy.ptx")),
    ("sgemm", include_str!("../../../../artifacts/ptx/sgemm.ptx")),
    ("warp_reduce", include_str!("../../../../artifacts/ptx/warp_reduce.ptx")),
    ("wmma", include_str!("../../../../artifacts/ptx/wmma.ptx")),
];

pub fn artifact(name: &str) -> Machine {
    let (_, text) = FILES.iter().find(|(n, _)| *n == name).expect("an artifact of this name");
    Machine::new(text)
}

/// Values that lie in memory as bytes.
pub trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn from(bytes: &[u8]) -> Self;
    const SIZE: usize;
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Plain for $t {
            fn bytes(self) -> Vec<u8> { self.to_le_bytes().to_vec() }
            fn from(bytes: &[u8]) -> Self { <$t>::from_le_bytes(bytes.try_into().unwrap()) }
            const SIZE: usize = size_of::<$t>();
        }
    )*};
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Random numbers for tests: the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A float of ordinary size.
    pub fn f32(&mut self) -> f32 {
        (self.next() as i32 as f32) / (1 << 28) as f32
    }
}

pub struct Machine {
    pub program: Box<dyn Program>,
    pub space: AddressSpace,
    pub globals: Vec<u64>,
    pub workspace: u64,
    pub printed: Mutex<Vec<u8>>,
    pub findings: Mutex<Vec<Finding>>,
    pub seed: u64,
    pub workers: usize,
    pub step_limit: u64,
}

/// One launch.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    pub dynamic: u32,
    pub cooperative: bool,
}

pub fn shape(grid: u32, block: u32) -> Shape {
    Shape { grid: [grid, 1, 1], block: [block, 1, 1], cluster: [1, 1, 1], dynamic: 0, cooperative: false }
}

impl Machine {
    pub fn new(text: &str) -> Self {
        Self::load(text).unwrap_or_else(|e| panic!("{e}"))
    }

    pub fn load(text: &str) -> Result<Self, LoadFault> {
        let program = ptx::load(text, H200)?;
        let space = AddressSpace::new();
        let mut globals = Vec::new();
        for info in program.globals() {
            let kind = MemoryKind::ModuleGlobal;
            let memory = space.allocate(kind, 0, info.bytes.max(info.init.len() as u64)).unwrap();
            let (backing, offset) = memory.backing();
            backing.write(offset, &info.init);
            backing.mark_written(offset, memory.bytes);
            globals.push(memory.base);
        }
        for (info, &address) in program.globals().iter().zip(&globals) {
            let memory = space.locate(address, 0).unwrap();
            for &(at, index, addend) in &info.relocations {
                let (backing, offset) = memory.backing();
                backing.write(offset + at, &globals[index].wrapping_add_signed(addend).to_le_bytes());
            }
        }
        let memory = space.allocate(MemoryKind::Internal, 0, 64 << 10).unwrap();
        let (backing, offset) = memory.backing();
        backing.mark_written(offset, memory.bytes);
        Ok(Self {
            program,
            globals,
            workspace: memory.base,
            space,
            printed: Mutex::default(),
            findings: Mutex::default(),
            seed: 0,
            workers: 2,
            step_limit: 10_000_000,
        })
    }

    /// Device memory with these values.
    pub fn upload<T: Plain>(&self, values: &[T]) -> u64 {
        let address = self.blank((values.len() * T::SIZE) as u64);
        self.write(address, values);
        address
    }

    /// Device memory that nobody has written.
    pub fn blank(&self, bytes: u64) -> u64 {
        self.space.allocate(MemoryKind::Device, 0, bytes).unwrap().base
    }

    pub fn write<T: Plain>(&self, address: u64, values: &[T]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.bytes()).collect();
        let memory = self.space.locate(address, bytes.len() as u64).unwrap();
        let at = memory.offset_of(address, 0).unwrap();
        memory.backing().0.write(at, &bytes);
        memory.backing().0.mark_written(at, bytes.len() as u64);
    }

    pub fn download<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * T::SIZE];
        let memory = self.space.locate(address, bytes.len() as u64).unwrap();
        memory.backing().0.read(memory.offset_of(address, 0).unwrap(), &mut bytes);
        bytes.chunks(T::SIZE).map(T::from).collect()
    }

    /// Launches a kernel with arguments as bytes, one piece a parameter.
    pub fn launch(&self, name: &str, shape: Shape, args: &[&[u8]]) -> Result<(), KernelFault> {
        self.launch_in(DeviceView::new(&self.space, 0), name, shape, args)
    }

    /// As [`Machine::launch`], in a view of the memory.
    pub fn launch_in(
        &self,
        memory: DeviceView<'_>,
        name: &str,
        shape: Shape,
        args: &[&[u8]],
    ) -> Result<(), KernelFault> {
        let number =
            self.program.kernels().iter().position(|k| k.name == name).expect("a kernel of this name");
        let info = &self.program.kernels()[number];
        assert_eq!(info.params.len(), args.len(), "{name}");
        let mut params = Vec::new();
        for (param, arg) in info.params.iter().zip(args) {
            assert_eq!(param.bytes as usize, arg.len(), "{name}");
            params.resize(param.offset as usize, 0);
            params.extend_from_slice(arg);
        }
        let launch = LaunchSpec {
            grid: shape.grid,
            block: shape.block,
            cluster: shape.cluster,
            dynamic_shared_bytes: shape.dynamic,
            cooperative: shape.cooperative,
            params: &params,
            launch_id: 1,
        };
        let cancel = AtomicBool::new(false);
        let print = |bytes: &[u8]| self.printed.lock().unwrap().extend_from_slice(bytes);
        let report = |finding: Finding| self.findings.lock().unwrap().push(finding);
        let context = ExecContext {
            memory,
            globals: &self.globals,
            grid_workspace: self.workspace,
            step_limit: self.step_limit,
            cancel: &cancel,
            seed: self.seed,
            workers: self.workers,
            check_uninitialised: true,
            print: &print,
            set_condition: &|_, _| false,
            report: &report,
            device: H200,
        };
        self.program.run(number, &launch, &context)
    }

    /// As [`Machine::clean`], with every access logged as for the race checker.
    pub fn logged(&self, name: &str, shape: Shape, args: &[&[u8]]) {
        let log = AccessLog::new();
        let view = DeviceView::new(&self.space, 0).logged(&log);
        if let Err(fault) = self.launch_in(view, name, shape, args) {
            panic!("{name}: {fault}");
        }
        assert!(!log.into_maps().1.is_empty(), "{name} touches memory");
    }

    /// As [`Machine::launch`]; any fault or finding fails the test.
    pub fn clean(&self, name: &str, shape: Shape, args: &[&[u8]]) {
        if let Err(fault) = self.launch(name, shape, args) {
            panic!("{name}: {fault}");
        }
        if let Some(finding) = self.findings.lock().unwrap().first() {
            panic!("{name}: {:?} at {}", finding.kind, finding.site);
        }
    }
}

/// The bytes of some values, for arguments.
#[macro_export]
macro_rules! args {
    ($($v:expr),* $(,)?) => { &[$(&$v.to_le_bytes()[..]),*][..] };
}

/// Runs `body` once for each triple of inputs. It reads `a`, `b`, `c` of the given widths in bits and writes `d`.
pub fn run(body: &str, widths: [u32; 4], inputs: &[[u64; 3]]) -> Vec<u64> {
    let [wa, wb, wc, wd] = widths;
    let narrow = |name: &str, w: u32, from: &str| match w {
        64 => format!("mov.b64 {name}, {from};"),
        w => format!("cvt.u{w}.u64 {name}, {from};"),
    };
    let wide = match wd {
        64 => "mov.b64 %o, d;".to_owned(),
        w => format!("cvt.u64.u{w} %o, d;"),
    };
    let text = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n\
        .visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n) {{\n\
        .reg .b64 %i<4>, %q<6>, %o; .reg .b32 %t<6>, n; .reg .pred go, p, q, r;\n\
        .reg .b{wa} a; .reg .b{wb} b; .reg .b{wc} c; .reg .b{wd} d; .reg .b32 x<8>; .reg .b64 y<8>; .reg .b16 h<8>;\n\
        mov.u32 %t0, %tid.x; mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.u32 %t0, %t1, %t2, %t0;\n\
        ld.param.u32 n, [n_]; setp.ge.u32 go, %t0, n; @go ret;\n\
        ld.param.u64 %q0, [in]; ld.param.u64 %q1, [out];\n\
        mad.wide.u32 %q0, %t0, 24, %q0; mad.wide.u32 %q1, %t0, 8, %q1;\n\
        ld.global.u64 %i0, [%q0]; ld.global.u64 %i1, [%q0+8]; ld.global.u64 %i2, [%q0+16];\n\
        {} {} {}\n{body}\n{wide} st.global.u64 [%q1], %o; ret; }}",
        narrow("a", wa, "%i0"),
        narrow("b", wb, "%i1"),
        narrow("c", wc, "%i2"),
    )
    .replace(".param .u32 n)", ".param .u32 n_)");
    let m = Machine::load(&text).unwrap_or_else(|e| panic!("{body}: {e}"));
    let flat: Vec<u64> = inputs.iter().flatten().copied().collect();
    let (din, dout) = (m.upload(&flat), m.blank(8 * inputs.len() as u64));
    let n = inputs.len() as u32;
    m.clean("k", shape(n.div_ceil(128), 128), &[&din.to_le_bytes(), &dout.to_le_bytes(), &n.to_le_bytes()]);
    m.download(dout, inputs.len())
}
