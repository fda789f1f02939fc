//! Special registers.

use super::cluster::Block;
use super::grid::Worker;
use super::warp::Warp;
use crate::ptx::code::{LaneMask, Lanes, Special};

pub(super) fn read(what: Special, warp: &Warp, block: &Block, worker: &Worker<'_>) -> Lanes {
    let launch = worker.run.launch;
    let each = |f: &dyn Fn(u32) -> u32| -> Lanes { std::array::from_fn(|lane| f(lane as u32).into()) };
    let axis = |v: [u32; 3], i: u8| v.get(usize::from(i)).copied().unwrap_or(0);
    let same = |v: u64| -> Lanes { [v; 32] };
    let cluster = launch.cluster;
    let per_cluster = cluster[0].saturating_mul(cluster[1]).saturating_mul(cluster[2]);
    let threads = worker.run.threads;
    let traits = worker.run.ctx.device;
    let workspace = if launch.cooperative { worker.run.ctx.grid_workspace } else { 0 };
    let now = || simtile_sync::time::now().as_nanos() as u64;
    match what {
        Special::Tid(i) => warp.thread[usize::from(i.min(2))],
        Special::Ntid(i) => same(axis(launch.block, i).into()),
        Special::CtaId(i) => same(axis(block.coords, i).into()),
        Special::NctaId(i) => same(axis(launch.grid, i).into()),
        Special::LaneId => each(&|lane| lane),
        Special::WarpId => same(warp.index.into()),
        Special::NwarpId => same(threads.div_ceil(32).into()),
        Special::SmId => same((block.number % u64::from(traits.multiprocessors.max(1))) & 0xFFFF_FFFF),
        Special::NsmId => same(traits.multiprocessors.into()),
        Special::GridId => same(launch.launch_id),
        Special::LaneMask(which) => each(&|lane| {
            let bit = 1u32 << lane;
            match which {
                LaneMask::Eq => bit,
                LaneMask::Lt => bit - 1,
                LaneMask::Le => bit | (bit - 1),
                LaneMask::Gt => !(bit | (bit - 1)),
                LaneMask::Ge => !(bit - 1),
            }
        }),
        Special::Clock => same(worker.clock & 0xFFFF_FFFF),
        Special::Clock64 => same(worker.clock),
        Special::ClockHi => same(worker.clock >> 32),
        Special::GlobalTimer => same(now()),
        Special::GlobalTimerLo => same(now() & 0xFFFF_FFFF),
        Special::GlobalTimerHi => same(now() >> 32),
        // The address of the workspace of grid barriers, in two halves.
        Special::EnvReg(1) => same(workspace >> 32),
        Special::EnvReg(2) => same(workspace & 0xFFFF_FFFF),
        Special::EnvReg(_) | Special::Zero => same(0),
        Special::ClusterId(i) => same((axis(block.coords, i) / axis(cluster, i).max(1)).into()),
        Special::NclusterId(i) => same(axis(launch.grid, i).div_ceil(axis(cluster, i).max(1)).into()),
        Special::ClusterCtaId(i) => same((axis(block.coords, i) % axis(cluster, i).max(1)).into()),
        Special::ClusterNctaId(i) => same(axis(cluster, i).into()),
        Special::ClusterCtaRank => same(block.rank.into()),
        Special::ClusterNctaRank => same(per_cluster.into()),
        Special::IsExplicitCluster => same(u64::from(per_cluster > 1)),
        Special::DynamicSmem => same(launch.dynamic_shared_bytes.into()),
        Special::TotalSmem => same(block.shared.len() as u64),
    }
}
