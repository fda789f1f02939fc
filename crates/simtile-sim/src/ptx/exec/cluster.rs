//! The blocks of one cluster: warps in turns, block barriers, the cluster barrier.

use super::each_lane;
use super::grid::{Run, Worker};
use super::memory::Bytes;
use super::warp::{Env, Wait, Warp};
use crate::exec::{FaultReason, FindingKind, KernelFault};
use crate::ptx::code::Op;
use std::fmt::Write;

/// Instructions that a warp runs before the next one gets a turn.
const SLICE: i64 = 4096;

/// One of a block's sixteen barriers.
#[derive(Clone, Default)]
pub(super) struct Barrier {
    /// Lanes that arrived, by warp of the block. Empty until the first arrival.
    pub arrived: Vec<u32>,
    /// Threads it waits for; `None`: all that have not ended.
    pub count: Option<u32>,
    pub all: bool,
    pub any: bool,
    pub trues: u32,
}

/// One block.
pub(super) struct Block {
    pub coords: [u32; 3],
    /// In x, y, z order of the grid.
    pub number: u64,
    pub rank: u32,
    pub shared: Bytes,
    pub barriers: Vec<Barrier>,
    /// Lanes that have not ended, by warp.
    pub live: Vec<u32>,
    /// Whether a barrier may have become complete.
    pub dirty: bool,
}

impl Block {
    fn threads(&self) -> u32 {
        self.live.iter().map(|l| l.count_ones()).sum()
    }
}

/// `barrier.cluster`.
#[derive(Default)]
pub(super) struct ClusterBarrier {
    pub arrived: u32,
    pub phase: u32,
    pub dirty: bool,
}

pub(super) struct Cluster {
    pub first_block: u64,
    blocks: Vec<Block>,
    warps: Vec<Warp>,
    barrier: ClusterBarrier,
    /// Where the next turn begins.
    turn: usize,
}

impl Cluster {
    pub(super) fn new(run: &Run<'_>, corner: [u32; 3]) -> Self {
        let [cx, cy, cz] = run.launch.cluster;
        let warps_a_block = run.threads.div_ceil(32);
        let mut cluster = Self {
            first_block: u64::MAX,
            blocks: Vec::new(),
            warps: Vec::new(),
            barrier: ClusterBarrier::default(),
            turn: 0,
        };
        for rank in 0..cx * cy * cz {
            cluster.warps.extend((0..warps_a_block).map(|index| Warp::new(run, rank as usize, index)));
            cluster.blocks.push(Block {
                coords: [0; 3],
                number: 0,
                rank,
                shared: Bytes::new(run.shared),
                barriers: vec![Barrier::default(); 16],
                live: vec![0; warps_a_block as usize],
                dirty: false,
            });
        }
        cluster.place(run, corner);
        cluster
    }

    /// The same as a new one: what a finished cluster holds serves the next.
    pub(super) fn restart(&mut self, run: &Run<'_>, corner: [u32; 3]) {
        for block in &mut self.blocks {
            block.shared.restart(run.shared);
            block.barriers.fill(Barrier::default());
            block.dirty = false;
        }
        self.warps.iter_mut().for_each(|warp| warp.restart(run));
        self.barrier = ClusterBarrier::default();
        self.turn = 0;
        self.place(run, corner);
    }

    /// Puts the blocks where they belong in the grid, all their threads alive.
    fn place(&mut self, run: &Run<'_>, corner: [u32; 3]) {
        let [cx, cy, _] = run.launch.cluster;
        let [gx, gy, _] = run.launch.grid.map(u64::from);
        self.first_block = u64::MAX;
        for block in &mut self.blocks {
            let rank = block.rank;
            block.coords = [corner[0] + rank % cx, corner[1] + rank / cx % cy, corner[2] + rank / cx / cy];
            let [x, y, z] = block.coords.map(u64::from);
            block.number = x + gx * (y + gy * z);
            self.first_block = self.first_block.min(block.number);
        }
        for warp in &self.warps {
            self.blocks[warp.block].live[warp.index as usize] = warp.valid;
        }
    }

    /// Runs about `turn` instructions. True when all threads have ended.
    pub(super) fn run(
        &mut self,
        worker: &mut Worker<'_>,
        mut turn: i64,
    ) -> Result<bool, (u64, Box<KernelFault>)> {
        let run = worker.run;
        loop {
            if run.ctx.cancel.load(std::sync::atomic::Ordering::Relaxed) {
                let site = run.site(u32::MAX, self.blocks[0].coords, 0, 0);
                let fault = KernelFault { site: Box::new(site), reason: FaultReason::Cancelled };
                return Err((self.first_block, Box::new(fault)));
            }
            crate::exec::slice_over();
            let mut ran = false;
            let count = self.warps.len();
            let first = match run.ctx.seed {
                0 => self.turn,
                _ => worker.random() as usize % count,
            };
            for i in 0..count {
                let at = (first + i) % count;
                let warp = &mut self.warps[at];
                if !warp.is_ready() {
                    continue;
                }
                ran = true;
                let slice = match run.ctx.seed {
                    0 => SLICE,
                    _ => 1 + (worker.random() % SLICE as u64) as i64,
                };
                let block = warp.block;
                let before = worker.clock;
                let mut env = Env { worker, blocks: &mut self.blocks, cluster: &mut self.barrier };
                if let Err(fault) = warp.run(&mut env, slice) {
                    return Err((self.blocks[block].number, fault));
                }
                turn -= (worker.clock - before) as i64 + 16;
                if self.blocks[block].dirty {
                    self.blocks[block].dirty = false;
                    self.release(block, worker);
                }
                if self.barrier.dirty {
                    self.barrier.dirty = false;
                    self.release_cluster();
                }
            }
            if !ran {
                if self.warps.iter().all(Warp::is_done) {
                    return Ok(true);
                }
                return Err(self.deadlock(worker));
            }
            if turn <= 0 {
                return Ok(false);
            }
        }
    }

    /// Opens the barriers of a block that are complete.
    fn release(&mut self, block: usize, worker: &mut Worker<'_>) {
        for id in 0..16 {
            let state = &self.blocks[block];
            let barrier = &state.barriers[id];
            if barrier.arrived.is_empty() {
                continue;
            }
            let complete = match barrier.count {
                None => barrier.arrived.iter().zip(&state.live).all(|(arrived, live)| live & !arrived == 0),
                // A warp that has arrived whole counts as 32 threads, a part by its threads.
                Some(count) => {
                    let counted = barrier.arrived.iter().zip(&state.live).map(|(&arrived, &live)| {
                        if arrived != 0 && live & !arrived == 0 { 32 } else { arrived.count_ones() }
                    });
                    counted.sum::<u32>() >= count
                }
            };
            if !complete {
                continue;
            }
            let barrier = std::mem::take(&mut self.blocks[block].barriers[id]);
            let coords = self.blocks[block].coords;
            for warp in self.warps.iter_mut().filter(|w| w.block == block) {
                if let Some((pc, lane, detail)) = warp.open(id as u32, &barrier, worker) {
                    let kind = FindingKind::BarrierDivergence { detail };
                    worker.report(pc, coords, warp.index, lane, kind);
                }
            }
        }
    }

    fn release_cluster(&mut self) {
        let live: u32 = self.blocks.iter().map(Block::threads).sum();
        if self.barrier.arrived >= live && self.barrier.arrived > 0 {
            self.barrier.arrived = 0;
            self.barrier.phase = self.barrier.phase.wrapping_add(1);
            self.warps.iter_mut().for_each(Warp::open_cluster);
        }
    }

    /// Who waits where.
    fn deadlock(&self, worker: &Worker<'_>) -> (u64, Box<KernelFault>) {
        let run = worker.run;
        let mut text = String::new();
        let mut first = None;
        let mut waiting = 0;
        for warp in &self.warps {
            for group in &warp.groups {
                waiting += 1;
                let block = &self.blocks[warp.block];
                let lane = group.mask.trailing_zeros();
                let site = run.site(group.pc, block.coords, warp.index, lane);
                if waiting <= 4 {
                    let at = match group.wait {
                        Wait::Bar(id) => format!("barrier {id}"),
                        Wait::Cluster => "the cluster barrier".to_owned(),
                        _ => "lanes of its warp".to_owned(),
                    };
                    let missing = match (&run.image.code[group.pc as usize].op, group.wait) {
                        (Op::Bar(_), Wait::Bar(id)) => {
                            let arrived = &block.barriers[id as usize].arrived;
                            let n: u32 = arrived.iter().map(|a| a.count_ones()).sum();
                            format!(" ({n} of {} threads have arrived)", block.threads())
                        }
                        _ => String::new(),
                    };
                    let n = each_lane(group.mask).count();
                    let _ = write!(
                        text,
                        "{}{n} threads of block {:?} from {:?} on wait for {at}{missing} at {}",
                        if text.is_empty() { "" } else { "; " },
                        site.block,
                        site.thread,
                        site.instruction
                    );
                }
                first.get_or_insert((block.number, site));
            }
        }
        if waiting > 4 {
            let _ = write!(text, "; and {} more groups", waiting - 4);
        }
        let (number, site) = first.unwrap_or_default();
        (number, Box::new(KernelFault { site: Box::new(site), reason: FaultReason::Deadlock(text) }))
    }
}
