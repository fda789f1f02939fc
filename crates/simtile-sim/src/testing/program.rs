//! A program of Rust functions, for tests of the driver that need kernels but no interpreter.
//!
//! Its image is text that starts with [`IMAGE`]'s first line.

use crate::check::Touch;
use crate::exec::*;
use crate::memory::Window;
use simtile_sync::Arc;
use std::sync::atomic::Ordering;

/// Image of the test program, with its NUL.
pub(crate) const IMAGE: &str = "// simtile test program\n\0";

/// The program, if the text is its image.
pub(crate) fn load(text: &str) -> Option<Arc<dyn Program>> {
    text.starts_with("// simtile test program").then(|| Arc::new(TestProgram::new()) as Arc<dyn Program>)
}

type Body = fn(&LaunchSpec<'_>, &ExecContext<'_>) -> Result<(), FaultReason>;

struct TestProgram {
    kernels: Vec<KernelInfo>,
    bodies: Vec<Body>,
    globals: Vec<GlobalInfo>,
}

fn kernel(name: &str, params: &[u32]) -> KernelInfo {
    let mut offset = 0u32;
    let params = params
        .iter()
        .map(|&bytes| {
            let at = offset.next_multiple_of(bytes);
            offset = at + bytes;
            ParamInfo { offset: at, bytes }
        })
        .collect();
    KernelInfo {
        name: name.to_owned(),
        model: KernelModel::Simt,
        params,
        static_shared_bytes: 0,
        local_bytes: 0,
        registers: 16,
        const_bytes: 0,
        virtual_architecture: None,
        max_threads: None,
        required_block: None,
        required_cluster: None,
    }
}

fn word(spec: &LaunchSpec<'_>, at: usize) -> u64 {
    u64::from_le_bytes(*spec.params[at..].first_chunk().unwrap())
}

fn half(spec: &LaunchSpec<'_>, at: usize) -> u32 {
    u32::from_le_bytes(*spec.params[at..].first_chunk().unwrap())
}

fn store(context: &ExecContext<'_>, address: u64, value: u32) -> Result<(), FaultReason> {
    let mut window = Window::new();
    let (backing, offset) =
        window.access(&context.memory, address, 4, Touch::Write).map_err(FaultReason::Memory)?;
    backing.store::<4>(offset, value.to_ne_bytes());
    backing.mark_written(offset, 4);
    Ok(())
}

fn load_word(context: &ExecContext<'_>, address: u64) -> Result<u32, FaultReason> {
    let mut window = Window::new();
    let (backing, offset) =
        window.access(&context.memory, address, 4, Touch::Read).map_err(FaultReason::Memory)?;
    Ok(u32::from_ne_bytes(backing.load::<4>(offset)))
}

impl TestProgram {
    fn new() -> Self {
        let mut all: Vec<(KernelInfo, Body)> = Vec::new();
        // store(pointer, value)
        all.push((kernel("store", &[8, 4]), |spec, context| store(context, word(spec, 0), half(spec, 8))));
        // copy(to, from): adds one.
        all.push((kernel("next", &[8, 8]), |spec, context| {
            let value = load_word(context, word(spec, 8))?;
            store(context, word(spec, 0), value + 1)
        }));
        // spin(flag): until the flag is not 0.
        all.push((kernel("spin", &[8]), |spec, context| {
            while load_word(context, word(spec, 0))? == 0 {
                if context.cancel.load(Ordering::Relaxed) {
                    return Err(FaultReason::Cancelled);
                }
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            Ok(())
        }));
        all.push((kernel("trap", &[]), |_, _| Err(FaultReason::Trap)));
        all.push((kernel("assert", &[]), |_, _| Err(FaultReason::Assert("x > 0".to_owned()))));
        all.push((kernel("endless", &[]), |_, context| Err(FaultReason::StepLimit(context.step_limit))));
        all.push((kernel("print", &[4]), |spec, context| {
            (context.print)(format!("n = {}\n", half(spec, 0)).as_bytes());
            Ok(())
        }));
        all.push((kernel("panic", &[]), |_, _| panic!("a test's kernel panics")));
        // counter += 1
        all.push((kernel("count", &[]), |_, context| {
            let value = load_word(context, context.globals[0])?;
            store(context, context.globals[0], value + 1)
        }));
        // shape(out): grid.x, block.x, cluster.x, dynamic shared, cooperative
        all.push((kernel("shape", &[8]), |spec, context| {
            let values = [
                spec.grid[0],
                spec.block[0],
                spec.cluster[0],
                spec.dynamic_shared_bytes,
                u32::from(spec.cooperative),
            ];
            (0u64..).zip(values).try_for_each(|(i, value)| store(context, word(spec, 0) + 4 * i, value))
        }));
        let max = KernelInfo { max_threads: Some(128), ..kernel("max128", &[]) };
        let required = KernelInfo { required_block: Some([64, 1, 1]), ..kernel("req64", &[]) };
        let shared = KernelInfo { static_shared_bytes: 40960, ..kernel("shared40k", &[]) };
        let cluster = KernelInfo { required_cluster: Some([2, 1, 1]), ..kernel("cluster2", &[]) };
        let hungry = KernelInfo { registers: 128, ..kernel("regs128", &[]) };
        let local = KernelInfo { local_bytes: 65536, ..kernel("local64k", &[]) };
        let tile = KernelInfo { model: KernelModel::Tile, ..kernel("tile", &[]) };
        for info in [max, required, shared, cluster, hungry, local, tile] {
            all.push((info, |_, _| Ok(())));
        }
        let (kernels, bodies) = all.into_iter().unzip();
        let global = |name: &str, bytes, init: &[u8], relocations: Vec<(u64, usize, i64)>| GlobalInfo {
            name: name.to_owned(),
            bytes,
            align: 8,
            init: init.to_vec(),
            relocations,
            constant: false,
            managed: false,
        };
        let globals =
            vec![global("counter", 4, &[5, 0, 0, 0], vec![]), global("where", 16, &[], vec![(8, 0, 2)])];
        Self { kernels, bodies, globals }
    }
}

impl Program for TestProgram {
    fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    fn run(
        &self,
        kernel: usize,
        launch: &LaunchSpec<'_>,
        context: &ExecContext<'_>,
    ) -> Result<(), KernelFault> {
        self.bodies[kernel](launch, context).map_err(|reason| KernelFault {
            site: Box::new(Site {
                kernel: self.kernels[kernel].name.clone(),
                instruction: "test".to_owned(),
                ..Site::default()
            }),
            reason,
        })
    }
}
