//! Every interleaving of the hand-off between a completion and a future.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p simtile-sync --test loom`

#![cfg(loom)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use simtile_sync::Ticket;
use std::sync::Arc;
use std::task::{Wake, Waker};

/// A waker that counts.
struct Count(AtomicUsize);

impl Count {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A poll that does not see the flag is woken.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let first = Count::new();
        let ticket = Ticket::new(&Waker::from(first.clone()));
        let completer = {
            let ticket = ticket.clone();
            thread::spawn(move || ticket.fire())
        };
        let second = Count::new();
        let fired = ticket.poll(&Waker::from(second.clone()));
        completer.join().unwrap();
        if fired {
            assert_eq!((first.get(), second.get()), (1, 0), "the first was woken before");
        } else {
            assert_eq!((first.get(), second.get()), (0, 1), "only the latest is woken, and it is");
        }
        assert!(ticket.poll(&Waker::from(second)));
    });
}

/// A future that moves between tasks: two polls against one completion.
#[test]
fn only_the_latest_waker_is_woken() {
    loom::model(|| {
        let wakers = [Count::new(), Count::new(), Count::new()];
        let ticket = Ticket::new(&Waker::from(wakers[0].clone()));
        let completer = {
            let ticket = ticket.clone();
            thread::spawn(move || ticket.fire())
        };
        let seen =
            [ticket.poll(&Waker::from(wakers[1].clone())), ticket.poll(&Waker::from(wakers[2].clone()))];
        completer.join().unwrap();
        let woken = [wakers[0].get(), wakers[1].get(), wakers[2].get()];
        let expected = match seen {
            [true, true] => [1, 0, 0],
            [false, true] => [0, 1, 0],
            [false, false] => [0, 0, 1],
            [true, false] => panic!("a flag that was set is set"),
        };
        assert_eq!(woken, expected);
    });
}

/// A future that is dropped while its work completes: nobody is woken late, or once in time.
#[test]
fn a_dropped_future_is_woken_at_most_once() {
    loom::model(|| {
        let waker = Count::new();
        let ticket = Ticket::new(&Waker::from(waker.clone()));
        let completer = {
            let ticket = ticket.clone();
            thread::spawn(move || ticket.fire())
        };
        ticket.forget();
        let at_forget = waker.get();
        completer.join().unwrap();
        assert!(waker.get() <= 1 && waker.get() >= at_forget);
    });
}
