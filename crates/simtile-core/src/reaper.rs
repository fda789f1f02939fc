//! The background thread for what a drop may not do itself.
//!
//! A drop hands a job over when doing it at once would wait for the device (ending a context whose work is
//! still running), or is not allowed where the drop happens (inside a host function). The thread starts with the first
//! job and ends when none is left, so nothing runs while nothing is pending. Jobs run in the order in which
//! they came; a job that panics is caught.

use simtile_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { jobs: VecDeque::new(), running: false });
static IDLE: Condvar = Condvar::new();

/// Runs `job` on the background thread. Returns the job if no thread could be started.
pub(crate) fn submit(job: Job) -> Result<(), Job> {
    let mut queue = QUEUE.lock();
    queue.jobs.push_back(job);
    if queue.running {
        return Ok(());
    }
    queue.running = true;
    drop(queue);
    if simtile_sync::thread::spawn("simtile-reaper", run).is_ok() {
        return Ok(());
    }
    let mut queue = QUEUE.lock();
    queue.running = false;
    // Others may have queued behind us meanwhile; theirs wait for the next thread that starts.
    match queue.jobs.pop_back() {
        Some(job) => Err(job),
        None => Ok(()),
    }
}

fn run() {
    loop {
        let mut queue = QUEUE.lock();
        let Some(job) = queue.jobs.pop_front() else {
            queue.running = false;
            IDLE.notify_all();
            return;
        };
        drop(queue);
        // A job drops user values (owners of borrowed handles), whose destructors may panic.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// Waits until the background thread has done all it was given before and during the call, at most `deadline`.
/// Returns whether it has.
///
/// Useful before a process exits, and in tests that count driver calls.
pub fn drain_background(deadline: Duration) -> bool {
    let end = simtile_sync::time::now() + deadline;
    let mut queue = QUEUE.lock();
    while queue.running {
        let now = simtile_sync::time::now();
        if now >= end {
            return false;
        }
        IDLE.wait_for(&mut queue, end - now);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_in_order_and_a_panic_stops_none() {
        let (sender, receiver) = mpsc::channel();
        for i in 0..10 {
            let sender = sender.clone();
            let job: Job = Box::new(move || {
                sender.send(i).unwrap();
                if i == 3 {
                    std::panic::resume_unwind(Box::new("planned"));
                }
            });
            assert!(submit(job).is_ok());
        }
        drop(sender);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert!(drain_background(Duration::from_secs(10)));
    }
}
