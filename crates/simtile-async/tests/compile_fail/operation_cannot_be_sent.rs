//! Operations can be sent, so that they hold nothing that cannot be.
use simtile_async::{DeviceOp, OpError, SubmitContext, value, with_context};
use std::rc::Rc;
use std::task::Poll;

struct Mine(Rc<u32>);

impl DeviceOp for Mine { //~ E0277 cannot be sent between threads
    type Output = u32;

    fn poll_submit(&mut self, _: &mut SubmitContext<'_>) -> Poll<Result<u32, OpError>> {
        Poll::Ready(Ok(*self.0))
    }
}

fn captured(counter: Rc<u32>) {
    let _ = value(1).map(move |n: i32| n + *counter as i32); //~ E0277 cannot be sent between threads
}

fn chained(counter: Rc<u32>) {
    let _ = value(1).then(move |_| value(*counter)); //~ E0277 cannot be sent between threads
}

fn with_where(counter: Rc<u32>) {
    let _ = with_context(move |_| value(*counter)); //~ E0277 cannot be sent between threads
}

fn main() {}
