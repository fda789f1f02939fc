//! Waiting for a future on a thread that sleeps meanwhile, in turn with the others of an exploration.

use simtile_sync::{Condvar, Mutex};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// A thread that waits for its waker.
#[derive(Default)]
pub struct Parked {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.bell.notify_one();
    }
}

/// Waits for a future.
pub fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return output;
        }
        let mut woken = parked.woken.lock();
        while !core::mem::take(&mut *woken) {
            parked.bell.wait(&mut woken);
        }
    }
}

/// Polls a future once with a waker that nobody listens to. Whether it was ready.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let waker = Waker::from(Arc::<Parked>::default());
    match Pin::new(future).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
