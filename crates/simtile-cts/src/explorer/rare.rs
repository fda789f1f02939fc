//! Steps that make the tracker's rarer rules fire.

use super::thread::{FINE, Step, Thread};
use simtile_core::{Context, DeviceBuffer, MemoryError, Policy, Stream, StreamError};
use simtile_driver::sys::{CUcontext, CUgraph, CUresult, CUstream, CUstreamCaptureMode};
use simtile_driver::{DriverError, Entry, call};
use std::sync::Arc;
use std::time::Duration;

/// Kinds of steps.
const KINDS: usize = 16;
/// How long a stream is held up, and a fraction of it that is long for everything else, in the exploration's time.
const A_WHILE: Duration = Duration::from_millis(20);
const BETWEEN: Duration = Duration::from_millis(5);

/// A refusal of this kind is right, any other error is told, success is wrong.
fn refused<T, E: std::error::Error>(what: &str, outcome: Result<T, E>, right: impl Fn(&E) -> bool) -> Step {
    match outcome {
        Err(error) if right(&error) => FINE,
        Err(error) => Err(error.into()),
        Ok(_) => Ok(Err(format!("{what} was not refused"))),
    }
}

/// A stream that foreign code made, with its end.
struct Raw {
    context: Arc<Context>,
    raw: CUstream,
}

impl Raw {
    fn new(context: &Arc<Context>) -> Result<Arc<Self>, DriverError> {
        let driver = context.driver();
        let mut raw = CUstream::NULL;
        // SAFETY: the context is alive, the out-pointer valid for the call.
        unsafe {
            call!(driver, cuCtxSetCurrent(context.cu_ctx()))?;
            call!(driver, cuStreamCreate(&mut raw, 1))?;
        }
        Ok(Arc::new(Self { context: context.clone(), raw }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let driver = self.context.driver();
        // SAFETY: the stream is this value's own; nobody has its handle.
        unsafe {
            let _ = driver.cuCtxSetCurrent(self.context.cu_ctx());
            let _ = driver.cuStreamDestroy(self.raw);
            let _ = driver.cuCtxSetCurrent(CUcontext::NULL);
        }
    }
}

impl Thread {
    fn new_streams(&self, n: usize) -> Result<Vec<Arc<Stream>>, StreamError> {
        (0..n).map(|_| self.context.new_stream()).collect()
    }

    pub(super) fn rare(&mut self) -> Step {
        let (a, b) = (self.context.new_stream()?, self.stream());
        let value = self.random.bits() as u32;
        let mut x = DeviceBuffer::<u32>::zeroed(&a, 160)?;
        match self.random.below(KINDS) {
            0 => {
                // More readers than a range has places for.
                let streams = self.new_streams(20)?;
                x.fill(&a, value)?;
                for stream in &streams {
                    stream.submit().read(&x).order_only()?;
                }
                return self.right("what many read", &x, &b, value);
            }
            1 => {
                // More ranges than a list has places for.
                for i in 0..80 {
                    x.slice_mut(2 * i..2 * i + 1)?.fill(if i % 2 == 0 { &a } else { &b }, value)?;
                }
                let found = x.to_vec(&b)?;
                if found.iter().enumerate().any(|(i, &v)| v != if i % 2 == 0 { value } else { 0 }) {
                    return Ok(Err("many small writes left other values".into()));
                }
            }
            2 => {
                // More work than a stream may have in flight.
                for _ in 0..if self.random.one_in(3) { 540 } else { 70 } {
                    a.submit().read(&x).order_only()?;
                }
            }
            3 if self.random.one_in(2) => {
                // More than a context may have.
                let streams = self.new_streams(9)?;
                for stream in &streams {
                    for _ in 0..470 {
                        stream.submit().read(&x).order_only()?;
                    }
                }
            }
            4 => {
                let mut y = DeviceBuffer::<u32>::zeroed(&b, 16)?;
                y.fill(&b, value)?;
                x.fill(&a, value)?;
                a.submit().read(&x).waits_outside().order_only()?;
                x.fill(&a, 1)?;
                b.submit().read(&x).read(&y).order_only()?;
                return self.right("behind work that waits outside", &x, &b, 1);
            }
            5 => {
                let streams = self.new_streams(6)?;
                for stream in &streams {
                    match stream.submit().read(&x).waits_for_value().order_only() {
                        Ok(_) | Err(StreamError::Refused { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            6 => return self.exported(x, &a, &b, value),
            7 => {
                b.set_policy(Policy::OrderAndReport);
                x.fill(&b, 1)?;
                b.set_policy(Policy::Order);
                let _ = self.context.take_wait_reports();
                a.submit().read(&x).order_only()?;
                a.submit().policy(Policy::Reject).fill(x.view_mut(), value)?;
                let other = self.context.new_stream()?;
                match other.submit().policy(Policy::Reject).fill(x.view_mut(), 3).map(drop) {
                    Err(MemoryError::Stream(StreamError::Conflict { .. })) => {}
                    Err(error) => return Err(error.into()),
                    Ok(()) => return self.right("after no conflict", &x, &b, 3),
                }
                return self.right("after a conflict", &x, &b, value);
            }
            8 => {
                let (mine, legacy) =
                    (self.context.per_thread_default_stream(), self.context.legacy_default_stream());
                x.fill(&mine, value)?;
                legacy.submit().read(&x).order_only()?;
                x.fill(&legacy, value)?;
                let error = self.world.of_main.submit().read(&x).order_only();
                let outcome = refused("a stream of another thread", error, |error| {
                    matches!(error, StreamError::WrongThread { .. })
                });
                return match outcome? {
                    Ok(()) => self.right("by default streams", &x, &mine, value),
                    wrong => Ok(wrong),
                };
            }
            9 => {
                let mut pinned = simtile_core::PinnedHostBuffer::<u32>::zeroed(&self.context, 160)?;
                std::mem::forget(pinned.read()?);
                self.forgotten += 1;
                return refused("a write under a guard", pinned.copy_from(&a, &x), |error| {
                    matches!(error, MemoryError::Stream(StreamError::Conflict { host: true, .. }))
                });
            }
            10 => {
                // SAFETY: the second handle joins the first, and both are used through the runtime alone.
                let alias = unsafe {
                    DeviceBuffer::<u32>::borrow_raw_parts(&self.context, x.cu_deviceptr(), 160, None)
                }?;
                let both = b.submit().read(&alias).write(&mut x).order_only();
                return refused("an alias", both, |error| matches!(error, StreamError::Aliased { .. }));
            }
            11 => return self.captured(x, &a, value),
            12 => return self.borrowed(x, value),
            13 => {
                x.fill(&a, value)?;
                // SAFETY: nothing is done.
                unsafe { b.submit().write(&mut x).unchecked() }.order_only()?;
                return self.right("past an unchecked order", &x, &a, value);
            }
            14 if self.world.kind.fails() => {
                // Two records that fail: nobody will know when that stream's work ends.
                x.fill(&a, value)?;
                let other = self.context.new_stream()?;
                for nth in [1, 2] {
                    self.world.simulator.fail(Entry::cuEventRecord, nth, CUresult::CUDA_ERROR_UNKNOWN);
                }
                let followed = other.submit().write(&mut x).order_only();
                a.submit().read(&x).order_only()?;
                followed?;
            }
            15 => return self.read_twice(x, &a, &b, value),
            _ => {
                // More streams to follow than there are events at hand.
                let streams = self.new_streams(30)?;
                let mut parts: Vec<DeviceBuffer<u32>> =
                    (0..3).map(|_| DeviceBuffer::zeroed(&a, 8)).collect::<Result<_, _>>()?;
                for (i, stream) in streams.iter().enumerate() {
                    stream.submit().read(&parts[i % 3]).order_only()?;
                }
                let submit = parts.iter_mut().fold(b.submit(), |submit, part| submit.write(part));
                submit.order_only()?;
            }
        }
        FINE
    }

    fn right(&self, what: &str, x: &DeviceBuffer<u32>, stream: &Arc<Stream>, value: u32) -> Step {
        let found = x.to_vec(stream)?;
        Ok(match found.iter().find(|&&v| v != value) {
            None => Ok(()),
            Some(v) => Err(format!("{what}: {v}, should be {value}")),
        })
    }

    /// Read by two streams, of which one takes much longer, and dropped by then: whoever gets the memory after that changes it.
    fn read_twice(&mut self, mut x: DeviceBuffer<u32>, a: &Arc<Stream>, b: &Arc<Stream>, value: u32) -> Step {
        let slow = self.context.new_stream()?;
        let [mut soon, mut late] = [DeviceBuffer::<u32>::zeroed(b, 160)?, DeviceBuffer::zeroed(&slow, 160)?];
        x.fill(a, value)?;
        slow.launch_host_function(|| simtile_sync::time::sleep(A_WHILE))?;
        late.copy_from(&slow, &x)?;
        soon.copy_from(b, &x)?;
        drop(x);
        let outcome = self.right("the first of two readers", &soon, b, value);
        simtile_sync::time::sleep(BETWEEN);
        let mut next = DeviceBuffer::<u32>::zeroed(b, 160)?;
        next.fill(b, !value)?;
        match outcome? {
            Ok(()) => self.right("the second of two readers", &late, &slow, value),
            wrong => Ok(wrong),
        }
    }

    /// Out and back, by a stream and by nobody's.
    fn exported(&mut self, mut x: DeviceBuffer<u32>, a: &Arc<Stream>, b: &Arc<Stream>, value: u32) -> Step {
        x.fill(a, value)?;
        let exported = x.export().map_err(|refused| refused.error)?;
        exported.follow_on(b)?;
        // SAFETY: nobody uses it outside.
        let mut x = unsafe { exported.take_back(b) }.map_err(|refused| refused.error)?;
        x.fill(a, 3)?;
        let exported = x.export().map_err(|refused| refused.error)?;
        // SAFETY: as above.
        let x = unsafe { exported.take_back_unknown() };
        match x.to_vec(a) {
            Err(MemoryError::Stream(StreamError::Conflict { .. })) => {}
            // Another thread may have waited for everything meanwhile.
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let alone = self.world.captures.write();
        let synchronised = self.context.synchronize_all();
        drop(alone);
        synchronised?;
        let shared = x.export_shared()?;
        let outcome = self.right("while it is shared", &x, b, 3);
        // SAFETY: as above.
        drop(unsafe { shared.take_back(a) }.map_err(|refused| refused.error)?);
        outcome
    }

    /// A capture of two streams by the core's own calls, replayed on two others.
    fn captured(&mut self, mut x: DeviceBuffer<u32>, a: &Arc<Stream>, value: u32) -> Step {
        let (b, other) = (self.context.new_stream()?, self.stream());
        let mut y = DeviceBuffer::<u32>::zeroed(&other, 160)?;
        let capturing = self.world.captures.read();
        let capture = a.begin_capture()?;
        capture.submit(a).fill(x.view_mut(), value)?;
        capture.add_stream(&b)?;
        capture.submit(&b).copy(&x, &mut y)?;
        capture.submit(a).read(&y).order_only()?;
        let outcome = refused("work beside a capture", a.submit().read(&x).order_only(), |error| {
            matches!(error, StreamError::Capturing { .. })
        });
        let graph = capture.finish();
        drop(capturing);
        let exec = graph?.instantiate()?;
        other.submit().graph(&exec)?;
        a.submit().graph(&exec)?;
        drop((exec, x));
        match outcome? {
            Ok(()) => self.right("a replayed copy", &y, &b, value),
            wrong => Ok(wrong),
        }
    }

    /// A stream of foreign code, which captures on it for a while.
    fn borrowed(&mut self, mut x: DeviceBuffer<u32>, value: u32) -> Step {
        let owner = Raw::new(&self.context)?;
        let raw = owner.raw;
        // SAFETY: the owner keeps the stream alive.
        let stream = unsafe { Stream::borrow_with_owner(raw, &self.context, owner) }?;
        x.fill(&stream, value)?;
        let driver = self.context.driver();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let capturing = self.world.captures.read();
        // SAFETY: the stream is alive.
        unsafe { call!(driver, cuStreamBeginCapture(raw, mode)) }?;
        let outcome = refused("work in a foreign capture", stream.submit().read(&x).order_only(), |error| {
            matches!(error, StreamError::Capturing { .. })
        });
        let mut graph = CUgraph::NULL;
        // SAFETY: the stream is alive, the out-pointer valid for the call; the graph is nobody else's.
        let ended = unsafe {
            let mut ended = call!(driver, cuStreamEndCapture(raw, &mut graph));
            if ended.is_err() {
                ended = call!(driver, cuStreamEndCapture(raw, &mut graph));
            }
            if graph != CUgraph::NULL {
                let _ = driver.cuGraphDestroy(graph);
            }
            ended
        };
        drop(capturing);
        match outcome? {
            Ok(()) => {
                ended?;
                self.right("by a borrowed stream", &x, &stream, value)
            }
            wrong => Ok(wrong),
        }
    }
}
