//! Attributes of kernel nodes.

use super::{add, graph, instantiate};
use crate::cu;
use crate::driver::graph_tools::{kernel, memset};
use crate::frame::Check;
use crate::gpu::{Args, Gpu};
use crate::probe::Sink;
use simtile_driver::sys::*;

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, store) = (gpu.cx(), gpu.kernel(c"store_one")?);
    let (word, g) = (gpu.zeroed(64)?, graph(cx));
    let args = Args::new().with(word).with(1u32);
    let node = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    for id in 0..=18 {
        let mut value = CUlaunchAttributeValue { pad: [0x55; 64] };
        let code = cu!(cx, cuGraphKernelNodeGetAttribute(node, CUlaunchAttributeID(id), &mut value));
        // SAFETY: all bytes are set.
        let bytes = unsafe { value.pad };
        let zero = CUlaunchAttributeValue { pad: [0; 64] };
        let set = cu!(cx, cuGraphKernelNodeSetAttribute(node, CUlaunchAttributeID(id), &zero));
        let mut one = CUlaunchAttributeValue { pad: [0; 64] };
        one.clusterDim = CUlaunchAttributeValue_clusterDim { x: 1, y: 1, z: 1 };
        let set_one = cu!(cx, cuGraphKernelNodeSetAttribute(node, CUlaunchAttributeID(id), &one));
        out(format!(
            "kernel node attribute {id}: get {} {:?}, set 0 {}, set 1,1,1 {}",
            code.0,
            &bytes[..12],
            set.0,
            set_one.0
        ));
    }
    for cluster in [[2u32, 1, 1], [0, 0, 0], [17, 1, 1]] {
        let value = CUlaunchAttributeValue {
            clusterDim: CUlaunchAttributeValue_clusterDim { x: cluster[0], y: cluster[1], z: cluster[2] },
        };
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let code = cu!(cx, cuGraphKernelNodeSetAttribute(node, id, &value));
        out(format!(
            "cluster {cluster:?} for a grid of 1: {}, instantiate {}",
            code.0,
            instantiate(cx, g, 0).0
        ));
    }
    let other = add(cx, g, &[], memset(word, 1, gpu.context)).1;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    out(format!(
        "attribute of a memset node: {}",
        cu!(cx, cuGraphKernelNodeGetAttribute(other, id, &mut value)).0
    ));
    out(format!("copy from a memset node: {}", cu!(cx, cuGraphKernelNodeCopyAttributes(node, other)).0));
    Ok(())
}
