//! Functions that Tile code calls and that a library supplies, through the driver: registration, refusals, faults, races.

use cutile_ir::builder::{OpBuilder, append_op, build_single_block_region};
use cutile_ir::bytecode::{BytecodeVersion, Opcode, write_bytecode_version};
use cutile_ir::ir::{
    Attribute, FuncType, Location, Module, PointerType, ScalarType, TileElementType, TileType, Type,
};
use simtile_driver::Driver;
use simtile_driver::sys::*;
use simtile_sim::{Checks, Mode, Report, ReportKind, Simulator, StandInError, TileCall};

macro_rules! code {
    ($driver:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let driver: Driver = $driver;
        // SAFETY: the tests pass handles and pointers that are valid for the call.
        unsafe { driver.$entry($($arg),*) }
    }};
}

macro_rules! ok {
    ($driver:expr, $entry:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(code!($driver, $entry($($arg),*)), CUresult::CUDA_SUCCESS, stringify!($entry))
    };
}

/// Bytecode of `kernel(pointer)`, which calls `symbol(pointer)` at line 12.
fn image(symbol: &str) -> Vec<u8> {
    let pointer = Type::Tile(TileType {
        shape: vec![],
        element_type: TileElementType::Pointer(Box::new(PointerType { pointee: ScalarType::I32 })),
    });
    let at = |line| Location::FileLineCol { filename: "library.py".into(), line, column: 1 };
    let mut module = Module::new("calls");
    let (region, block, args) = build_single_block_region(&mut module, std::slice::from_ref(&pointer));
    let (call, _) = OpBuilder::new(Opcode::PreviewCall, at(12))
        .operand(args[0])
        .attr("callee", Attribute::String(symbol.into()))
        .attr("const_args", Attribute::Array(vec![]))
        .build(&mut module);
    append_op(&mut module, block, call);
    let (end, _) = OpBuilder::new(Opcode::Return, at(13)).build(&mut module);
    append_op(&mut module, block, end);
    let signature = FuncType { inputs: vec![pointer], results: vec![] };
    let (entry, _) = OpBuilder::new(Opcode::Entry, at(10))
        .attr("sym_name", Attribute::String("kernel".into()))
        .attr("function_type", Attribute::Type(Type::Func(signature)))
        .region(region)
        .build(&mut module);
    module.functions.push(entry);
    write_bytecode_version(&module, BytecodeVersion::V13_5).unwrap()
}

struct Rig {
    sim: Simulator,
    driver: Driver,
    memory: CUdeviceptr,
}

impl Rig {
    fn new() -> Self {
        let sim = Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL).quiet().build();
        let driver = sim.driver();
        ok!(driver, cuInit(0));
        let (mut context, mut memory) = (CUcontext::NULL, 0);
        ok!(driver, cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(driver, cuCtxSetCurrent(context));
        ok!(driver, cuMemAlloc(&mut memory, 64));
        Self { sim, driver, memory }
    }

    fn register(
        &self,
        symbol: &str,
        function: impl Fn(&TileCall<'_>, u64) -> Result<(), StandInError> + Send + Sync + 'static,
    ) {
        self.sim.register_tile_function(symbol, move |call| {
            function(call, call.operands[0].values::<u64>()?[0]).map(|()| vec![])
        });
    }

    fn load(&self, symbol: &str) -> Result<CUfunction, CUresult> {
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        match code!(self.driver, cuModuleLoadData(&mut module, image(symbol).as_ptr().cast())) {
            CUresult::CUDA_SUCCESS => {}
            other => return Err(other),
        }
        ok!(self.driver, cuModuleGetFunction(&mut function, module, c"kernel".as_ptr()));
        Ok(function)
    }

    fn stream(&self) -> CUstream {
        let mut stream = CUstream::NULL;
        ok!(self.driver, cuStreamCreate(&mut stream, 1));
        stream
    }

    fn launch(&self, function: CUfunction, stream: CUstream) {
        let mut list = [std::ptr::from_ref(&self.memory).cast_mut().cast()];
        let none = std::ptr::null_mut();
        ok!(self.driver, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list.as_mut_ptr(), none));
    }

    /// The only report, when all work has ended with this code.
    fn report(&self, code: CUresult) -> Report {
        assert_eq!(code!(self.driver, cuCtxSynchronize()), code);
        let mut reports = self.sim.take_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }
}

#[test]
fn a_missing_function_is_refused_with_the_line_that_registers_it() {
    let rig = Rig::new();
    assert_eq!(rig.load("lib_add"), Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU));
    let reports = rig.sim.take_reports();
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(report.kind, ReportKind::Image);
    assert!(report.text.contains("lib_add (kernel kernel, operation 0, library.py:12)"), "{report}");
    let hint = report.hint.as_deref().unwrap_or_default();
    assert!(hint.contains("simulator.register_tile_function(\"lib_add\", |call| {"), "{hint}");

    rig.register("lib_add", |call, at| {
        let mut word = [0; 4];
        call.read(at, &mut word)?;
        call.write(at, &(u32::from_le_bytes(word) + 1).to_le_bytes())
    });
    let function = rig.load("lib_add").expect("it is there now");
    ok!(rig.driver, cuMemsetD32(rig.memory, 40, 16));
    // Loaded modules keep what they have.
    rig.register("lib_add", |_, _| Err("another one".to_owned().into()));
    let stream = rig.stream();
    ok!(rig.driver, cuCtxSynchronize());
    rig.launch(function, stream);
    rig.launch(function, stream);
    ok!(rig.driver, cuStreamSynchronize(stream));
    let mut words = [0u32; 2];
    ok!(rig.driver, cuMemcpyDtoH(words.as_mut_ptr().cast(), rig.memory, 8));
    assert_eq!(words, [42, 40]);
    assert!(rig.sim.take_reports().is_empty());
}

#[test]
fn faults_name_kernel_function_and_line() {
    type Wrong = fn(&TileCall<'_>, u64) -> Result<(), StandInError>;
    let cases: [(Wrong, CUresult, &str); 3] = [
        (|_, _| panic!("out of luck"), CUresult::CUDA_ERROR_LAUNCH_FAILED, "panicked: out of luck"),
        (|_, _| Err("no".to_owned().into()), CUresult::CUDA_ERROR_ASSERT, "lib_f: no"),
        (|call, at| call.write(at + 64, &[0]), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, ""),
    ];
    for (wrong, code, text) in cases {
        let rig = Rig::new();
        rig.register("lib_f", wrong);
        rig.launch(rig.load("lib_f").expect("loads"), rig.stream());
        let report = rig.report(code);
        assert_eq!(report.kind, ReportKind::KernelFault);
        let site = report.site.as_ref().expect("a fault has a place");
        assert_eq!(site.source, Some(("library.py".to_owned(), 12)));
        assert_eq!(report.kernel.as_deref(), Some("kernel"));
        assert!(report.text.contains(text), "{report}");
        assert!(report.text.contains("preview$call"), "{report}");
        if code == CUresult::CUDA_ERROR_LAUNCH_FAILED {
            assert!(report.text.contains("the stand-in for lib_f"), "{report}");
        }
    }
}

#[test]
fn tiles_that_nobody_asked_for_are_refused() {
    let rig = Rig::new();
    rig.sim.register_tile_function("lib_f", |call| Ok(call.operands.to_vec()));
    rig.launch(rig.load("lib_f").expect("loads"), rig.stream());
    let report = rig.report(CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert!(report.text.contains("returned 1 tiles; the operation has 0 tiles as results"), "{report}");
}

#[test]
fn what_two_streams_write_through_functions_is_a_race() {
    let rig = Rig::new();
    rig.register("lib_f", |call, at| call.write(at + 8, &[1, 2, 3, 4]));
    let function = rig.load("lib_f").expect("loads");
    rig.launch(function, rig.stream());
    rig.launch(function, rig.stream());
    let report = rig.report(CUresult::CUDA_SUCCESS);
    assert_eq!(report.kind, ReportKind::Race);
    assert!(report.text.contains("library.py:12"), "{report}");
}

#[test]
fn a_kernels_stand_in_that_panics_is_its_fault() {
    static CUBIN: &[u8] =
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../artifacts/tile_rs/rs_vadd_f32.cubin"));
    let rig = Rig::new();
    rig.sim.register_stand_in("rs_vadd_f32", |_| panic!("out of luck"));
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    ok!(rig.driver, cuModuleLoadData(&mut module, CUBIN.as_ptr().cast()));
    ok!(rig.driver, cuModuleGetFunction(&mut function, module, c"rs_vadd_f32".as_ptr()));
    let words = [0u64; 9];
    let mut list = words.each_ref().map(|word| std::ptr::from_ref(word).cast_mut().cast());
    let none = std::ptr::null_mut();
    ok!(rig.driver, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, rig.stream(), list.as_mut_ptr(), none));
    let report = rig.report(CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(report.kind, ReportKind::KernelFault);
    assert!(report.text.contains("the stand-in for rs_vadd_f32 panicked: out of luck"), "{report}");
}
