//! Reports about Tile kernels name the line of the source, from the bytecode's debug information.

use cutile_ir::bytecode::write_bytecode_version;
use cutile_ir::ir::{Location, Module, OpId};
use simtile_driver::sys::*;
use simtile_driver::{AccessMode, DeclaredAccess, Driver};
use simtile_image::tile;
use simtile_sim::{Checks, Mode, Report, ReportKind, Simulator};

/// `c = a + b` by cuTile Python, with debug information.
const VADD: &[u8] = include_bytes!("../../../artifacts/cutile_python/vadd_f32.tileirbc");
/// Elements of a tile.
const TILE: usize = 1024;

macro_rules! ok {
    ($driver:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let driver: Driver = $driver;
        // SAFETY: the tests pass handles and pointers that are valid for the call.
        let code = unsafe { driver.$entry($($arg),*) };
        assert_eq!(code, CUresult::CUDA_SUCCESS, stringify!($entry));
    }};
}

/// The operations of the kernel that read or write memory, in order: two loads and a store.
fn memory_operations(module: &Module) -> Vec<OpId> {
    let entry = module.op(module.functions[0]);
    let block = module.region(entry.regions[0]).blocks[0];
    let touches = |op: &OpId| {
        let name = format!("{:?}", module.op(*op).opcode);
        name.contains("LoadView") || name.contains("StoreView")
    };
    module.block(block).ops.iter().copied().filter(touches).collect()
}

fn line(module: &Module, op: OpId) -> (String, u32) {
    match &module.op(op).location {
        Location::DebugInfo(debug) => (debug.filename.clone(), debug.line),
        Location::FileLineCol { filename, line, .. } => (filename.clone(), *line),
        other => panic!("no line: {other:?}"),
    }
}

/// A simulator with everything checked, and the kernel of a module.
struct Rig {
    sim: Simulator,
    driver: Driver,
    function: CUfunction,
}

impl Rig {
    fn new(image: &[u8]) -> Self {
        let sim = Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL).quiet().build();
        let driver = sim.driver();
        ok!(driver, cuInit(0));
        let (mut context, mut module, mut function) = (CUcontext::NULL, CUmodule::NULL, CUfunction::NULL);
        ok!(driver, cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(driver, cuCtxSetCurrent(context));
        ok!(driver, cuModuleLoadData(&mut module, image.as_ptr().cast()));
        ok!(driver, cuModuleGetFunction(&mut function, module, c"vadd_f32".as_ptr()));
        Self { sim, driver, function }
    }

    fn stream(&self) -> CUstream {
        let mut stream = CUstream::NULL;
        ok!(self.driver, cuStreamCreate(&mut stream, 1));
        stream
    }

    /// Memory of this many elements, written if asked for.
    fn memory(&self, elements: usize, written: bool) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(self.driver, cuMemAlloc(&mut pointer, elements * 4));
        if written {
            ok!(self.driver, cuMemsetD32(pointer, 0, elements));
            ok!(self.driver, cuCtxSynchronize());
        }
        pointer
    }

    /// One tile of a sum. Waits for nothing.
    fn add(&self, stream: CUstream, [a, b, c]: [CUdeviceptr; 3]) {
        let (extent, stride) = (TILE as i32, 1i32);
        let mut list = Vec::new();
        for pointer in [&a, &b, &c] {
            list.push(std::ptr::from_ref(pointer).cast_mut().cast());
            list.push((&raw const extent).cast_mut().cast());
            list.push((&raw const stride).cast_mut().cast());
        }
        let none = std::ptr::null_mut();
        ok!(self.driver, cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, list.as_mut_ptr(), none));
    }

    /// The only report of this kind, when all work has ended.
    fn report(&self, kind: ReportKind) -> Report {
        // SAFETY: a call without arguments.
        let _ = unsafe { self.driver.cuCtxSynchronize() };
        let reports = self.sim.take_reports();
        let mut found = reports.iter().filter(|report| report.kind == kind);
        match (found.next(), found.next()) {
            (Some(report), None) => report.clone(),
            _ => panic!("not one report of {kind:?}: {reports:?}"),
        }
    }
}

/// The kernel as it was compiled, and once more with a line of its own for every operation.
fn images() -> [(Vec<u8>, Module); 2] {
    let compiled = tile::read(VADD).unwrap();
    let mut numbered = tile::read(VADD).unwrap();
    let entry = numbered.op(numbered.functions[0]);
    let block = numbered.region(entry.regions[0]).blocks[0];
    for (number, op) in numbered.block(block).ops.clone().into_iter().enumerate() {
        let (filename, line) = ("kernels/sum.py".into(), 100 + number as u32);
        numbered.op_mut(op).location = Location::FileLineCol { filename, line, column: 1 };
    }
    let version = tile::version(VADD).unwrap().without_preview();
    let bytes = write_bytecode_version(&numbered, version).unwrap();
    // What was written is what is loaded.
    let numbered = tile::read(&bytes).unwrap();
    [(VADD.to_vec(), compiled), (bytes, numbered)]
}

/// The bytecode's operations that touch memory stand on different lines, else the tests below would show little.
#[test]
fn loads_and_store_have_lines_of_their_own() {
    for (_, module) in images() {
        let operations = memory_operations(&module);
        assert_eq!(operations.len(), 3, "two loads and a store");
        assert!(line(&module, operations[1]).1 != line(&module, operations[2]).1);
    }
}

#[test]
fn an_access_out_of_bounds_names_its_line() {
    for (image, module) in images() {
        let operations = memory_operations(&module);
        // The first load, the second one, the store: each in turn finds half of a tile.
        for (short, &operation) in operations.iter().enumerate() {
            let rig = Rig::new(&image);
            let mut buffers = [0; 3];
            for (at, buffer) in buffers.iter_mut().enumerate() {
                *buffer = rig.memory(if at == short { TILE / 2 } else { TILE }, true);
            }
            rig.add(rig.stream(), buffers);
            let report = rig.report(ReportKind::KernelFault);
            let (file, number) = line(&module, operation);
            let site = report.site.as_ref().expect("a fault has a place");
            assert_eq!(site.source, Some((file.clone(), number)), "buffer {short}: {report}");
            let text = report.to_string();
            assert!(text.contains("vadd_f32") && text.contains(&format!("{file}:{number}")), "{text}");
        }
    }
}

#[test]
fn a_read_of_what_nothing_wrote_names_its_line() {
    for (image, module) in images() {
        let operations = memory_operations(&module);
        for (unwritten, &operation) in operations.iter().enumerate().take(2) {
            let rig = Rig::new(&image);
            let mut buffers = [0; 3];
            for (at, buffer) in buffers.iter_mut().enumerate() {
                *buffer = rig.memory(TILE, at != unwritten);
            }
            rig.add(rig.stream(), buffers);
            let report = rig.report(ReportKind::UninitialisedRead);
            let (file, number) = line(&module, operation);
            let site = report.site.as_ref().expect("a finding has a place");
            assert_eq!(site.source, Some((file.clone(), number)), "buffer {unwritten}: {report}");
            assert!(report.to_string().contains(&format!("{file}:{number}")), "{report}");
        }
    }
}

#[test]
fn a_race_names_the_lines_of_both_sides() {
    for (image, module) in images() {
        let operations = memory_operations(&module);
        let rig = Rig::new(&image);
        let [a, b, c, d] = [0; 4].map(|_| rig.memory(TILE, true));
        rig.add(rig.stream(), [a, b, c]);
        // Reads what the other stream's kernel writes, as its second operand.
        rig.add(rig.stream(), [a, c, d]);
        let text = rig.report(ReportKind::Race).to_string();
        for (operation, side) in [(operations[1], "reads"), (operations[2], "writes")] {
            let (file, number) = line(&module, operation);
            assert!(text.contains(&format!("{file}:{number}")), "{side} at {file}:{number}: {text}");
        }
    }
}

#[test]
fn an_undeclared_access_names_its_line() {
    for (image, module) in images() {
        let operations = memory_operations(&module);
        let rig = Rig::new(&image);
        let [a, b, c] = [0; 3].map(|_| rig.memory(TILE, true));
        let stream = rig.stream();
        let read = |address| DeclaredAccess { address, bytes: 4 * TILE as u64, mode: AccessMode::Read };
        let extras = rig.driver.table().extras.expect("the simulator has extras");
        // SAFETY: the extras of a table take its driver's state; the stream is alive.
        let code = unsafe { (extras.declare)(rig.driver.state(), stream, &[read(a), read(b), read(c)]) };
        assert!(code.is_ok());
        rig.add(stream, [a, b, c]);
        let text = rig.report(ReportKind::Undeclared).to_string();
        let (file, number) = line(&module, operations[2]);
        assert!(text.contains("writes") && text.contains(&format!("{file}:{number}")), "{text}");
    }
}
