//! Taking foreign memory in is a promise of its author.
use simtile_core::{Context, DeviceAllocation, DeviceBuffer};
use std::sync::Arc;

struct Theirs(Arc<Context>);

impl DeviceAllocation for Theirs { //~ E0200
    fn device_ptr(&self) -> u64 {
        0
    }
    fn len_bytes(&self) -> usize {
        0
    }
    fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

fn borrow(context: &Arc<Context>) {
    let _ = DeviceBuffer::<f32>::borrow_raw_parts(context, 4096, 4, None); //~ E0133 borrow_raw_parts
}

fn main() {}
