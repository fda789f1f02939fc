//! Clusters over worker threads.

use super::cluster::Cluster;
use super::memory::ROW;
use crate::exec::{
    ExecContext, FaultReason, Finding, FindingKind, KernelFault, KernelInfo, LaunchSpec, Site,
};
use crate::memory::Window;
use crate::ptx::code::{Func, Insn, Lanes, NONE};
use crate::ptx::decode::Image;
use crate::ptx::lanes::is_wide;
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// Warp instructions that a cluster runs before the next one gets a turn. Blocks of an ordinary grid that wait
/// for each other make progress this way, as they do on a device with room for all.
const TURN: i64 = 400_000;
/// Most clusters of an ordinary grid that one worker holds at a time.
const RESIDENT: usize = 64;

/// One launch.
pub(super) struct Run<'r> {
    pub image: &'r Image,
    pub entry: u32,
    pub func: &'r Func,
    pub info: &'r KernelInfo,
    pub launch: &'r LaunchSpec<'r>,
    pub ctx: &'r ExecContext<'r>,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block.
    pub shared: usize,
    reported: Mutex<HashSet<(u32, &'static str)>>,
    next: AtomicU64,
    /// Number of the lowest block with a fault.
    faulty: AtomicU64,
    fault: Mutex<Option<(u64, Box<KernelFault>)>>,
}

/// One worker thread's state.
pub(super) struct Worker<'r> {
    pub run: &'r Run<'r>,
    pub windows: Vec<Window>,
    pub clock: u64,
    /// Whether the machine has the vector unit of the faster versions.
    pub wide: bool,
    /// Where a result lies until its active lanes are taken.
    pub scratch: Lanes,
    /// The bytes of a row on their way between registers and memory.
    pub piece: Box<[u8; ROW]>,
    random: u64,
    seen: HashSet<(u32, &'static str)>,
}

pub(in crate::ptx) fn launch(
    image: &Image,
    kernel: usize,
    launch: &LaunchSpec<'_>,
    ctx: &ExecContext<'_>,
) -> Result<(), KernelFault> {
    let (Some(info), Some(&entry)) = (image.kernels.get(kernel), image.entries.get(kernel)) else {
        return Err(refused("", format!("kernel number {kernel} of {}", image.kernels.len())));
    };
    let func = &image.funcs[entry as usize];
    check(image, info, launch, ctx)?;
    let threads = launch.block[0] * launch.block[1] * launch.block[2];
    let shared = func.dynamic_shared as usize + launch.dynamic_shared_bytes as usize;
    let run = Run {
        image,
        entry,
        func,
        info,
        launch,
        ctx,
        threads,
        shared: if launch.dynamic_shared_bytes == 0 { info.static_shared_bytes as usize } else { shared },
        reported: Mutex::default(),
        next: AtomicU64::new(0),
        faulty: AtomicU64::new(u64::MAX),
        fault: Mutex::new(None),
    };
    let clusters = run.clusters();
    let workers = (ctx.workers.max(1) as u64).min(clusters).min(256);
    if workers <= 1 {
        run.work(0, 1);
    } else {
        std::thread::scope(|scope| {
            for number in 1..workers {
                let run = &run;
                scope.spawn(move || run.work(number, workers));
            }
            run.work(0, workers);
        });
    }
    match run.fault.into_inner() {
        Some((_, fault)) => Err(*fault),
        None => Ok(()),
    }
}

fn refused(kernel: &str, what: String) -> KernelFault {
    let site = Site { kernel: kernel.to_owned(), ..Site::default() };
    KernelFault { site: Box::new(site), reason: FaultReason::IllegalInstruction(what) }
}

/// What the driver checks before a launch; nothing below may depend on it having done so.
fn check(
    image: &Image,
    info: &KernelInfo,
    launch: &LaunchSpec<'_>,
    ctx: &ExecContext<'_>,
) -> Result<(), KernelFault> {
    let refuse = |what: String| Err(refused(&info.name, what));
    let product = |v: [u32; 3]| v.iter().try_fold(1u64, |n, &d| n.checked_mul(d.into()));
    match product(launch.block) {
        Some(1..=1024) => {}
        _ => return refuse(format!("a block of {:?} threads, the limits are 1 and 1024", launch.block)),
    }
    if !matches!(product(launch.grid), Some(1..)) {
        return refuse(format!("a grid of {:?} blocks", launch.grid));
    }
    if !matches!(product(launch.cluster), Some(1..=16))
        || (0..3).any(|i| !launch.grid[i].is_multiple_of(launch.cluster[i].max(1)))
    {
        return refuse(format!("clusters of {:?} blocks in a grid of {:?}", launch.cluster, launch.grid));
    }
    if launch.dynamic_shared_bytes > 1 << 20 {
        return refuse(format!("{} bytes of dynamic shared memory", launch.dynamic_shared_bytes));
    }
    if ctx.globals.len() < image.globals.len() {
        return refuse(format!("{} addresses for {} globals", ctx.globals.len(), image.globals.len()));
    }
    Ok(())
}

impl<'r> Run<'r> {
    fn clusters(&self) -> u64 {
        let count = |i: usize| u64::from(self.launch.grid[i] / self.launch.cluster[i]);
        count(0).saturating_mul(count(1)).saturating_mul(count(2))
    }

    /// First block of a cluster.
    fn corner(&self, number: u64) -> [u32; 3] {
        let count = |i: usize| u64::from(self.launch.grid[i] / self.launch.cluster[i]);
        let (x, rest) = (number % count(0), number / count(0));
        let (y, z) = (rest % count(1), rest / count(1));
        let [a, b, c] = self.launch.cluster;
        [x as u32 * a, y as u32 * b, z as u32 * c]
    }

    fn work(&'r self, number: u64, workers: u64) {
        let windows = (0..self.image.caches as usize).map(Window::of).collect();
        let random = mix(self.ctx.seed ^ self.launch.launch_id.rotate_left(32) ^ number << 56);
        let mut worker = Worker {
            run: self,
            windows,
            clock: 0,
            wide: is_wide(),
            scratch: [0; 32],
            piece: Box::new([0; ROW]),
            random,
            seen: HashSet::new(),
        };
        let clusters = self.clusters();
        let mut resident = VecDeque::new();
        let mut spare = None;
        if self.launch.cooperative {
            // All of them at once.
            for cluster in (number..clusters).step_by(workers as usize) {
                resident.push_back(Cluster::new(self, self.corner(cluster)));
            }
        }
        loop {
            if resident.is_empty() {
                match self.take(clusters, &mut spare) {
                    Some(cluster) => resident.push_back(cluster),
                    None => return,
                }
            }
            let Some(mut cluster) = resident.pop_front() else { return };
            if cluster.first_block > self.faulty.load(Ordering::Relaxed) {
                continue;
            }
            let turn = if self.launch.cooperative { TURN / 16 } else { TURN };
            match cluster.run(&mut worker, turn) {
                Ok(true) => spare = Some(cluster),
                Ok(false) => {
                    resident.push_back(cluster);
                    if !self.launch.cooperative && resident.len() < RESIDENT {
                        resident.extend(self.take(clusters, &mut spare));
                        // A fresh one goes first.
                        resident.rotate_right(usize::from(resident.len() > 1));
                    }
                }
                Err((block, fault)) => self.fail(block, fault),
            }
        }
    }

    /// The next cluster, in what a finished one left.
    fn take(&'r self, clusters: u64, spare: &mut Option<Cluster>) -> Option<Cluster> {
        if self.launch.cooperative || self.faulty.load(Ordering::Relaxed) != u64::MAX {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= clusters {
            return None;
        }
        let corner = self.corner(number);
        Some(match spare.take() {
            Some(mut cluster) => {
                cluster.restart(self, corner);
                cluster
            }
            None => Cluster::new(self, corner),
        })
    }

    fn fail(&self, block: u64, fault: Box<KernelFault>) {
        let mut first = self.fault.lock();
        if first.as_ref().is_none_or(|(at, _)| block < *at) {
            self.faulty.store(block, Ordering::Relaxed);
            *first = Some((block, fault));
        }
    }

    /// The place of an instruction, for reports.
    pub(super) fn site(&self, pc: u32, block: [u32; 3], warp: u32, lane: u32) -> Site {
        let linear = warp * 32 + lane;
        let [x, y, _] = self.launch.block;
        let thread = [linear % x, linear / x % y, linear / x / y];
        let kernel = self.info.name.clone();
        let Some(insn) = self.image.code.get(pc as usize) else {
            return Site { kernel, block, thread, ..Site::default() };
        };
        let (instruction, source) = describe(self.image, insn);
        Site { kernel, source, instruction, block, thread }
    }
}

/// An instruction and the position in the source that it was made from.
pub(in crate::ptx) fn describe(image: &Image, insn: &Insn) -> (String, Option<(String, u32)>) {
    let name = image.names.get(insn.name as usize).map_or("", String::as_str);
    let source = (insn.position != NONE).then(|| image.positions[insn.position as usize]);
    let source = source.map(|(file, line)| (image.files[file as usize].clone(), line));
    (format!("PTX line {}: {name}", insn.line), source)
}

impl Worker<'_> {
    /// The next of a worker's random numbers; they depend on the seed alone.
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.random)
    }

    /// Reports a finding, once for each instruction and kind.
    pub(super) fn report(&mut self, pc: u32, block: [u32; 3], warp: u32, lane: u32, kind: FindingKind) {
        let key = match &kind {
            FindingKind::UninitialisedRead { space, .. } => *space,
            _ => "barrier",
        };
        if self.seen.insert((pc, key)) && self.run.reported.lock().insert((pc, key)) {
            (self.run.ctx.report)(Finding { site: self.run.site(pc, block, warp, lane), kind });
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
