//! Two devices by our API: buffers used from both, copies, peer access, frees.

use super::Core;
use crate::frame::threads as thread;
use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::{A_WHILE, SOON};
use crate::{ensure, ensure_eq};
use simtile_core::{
    Context, Device, DeviceBuffer, GrowableBuffer, LaunchArgs, LaunchError, PinnedHostBuffer, Stream,
};
use simtile_types::LaunchConfig;
use std::sync::Arc;

const TWO: Need = Need::Devices(2);

crate::frame::registry::tests! { Core, "core_peers";
    host_copies_follow_across_devices proves ["H1", "A2"] needs [TWO],
    copies_between_devices_are_ordered_on_both proves ["H1", "A2"] needs [TWO],
    kernels_reach_what_was_granted proves ["H1"] needs [TWO],
    a_grant_is_a_write proves ["A2"] needs [TWO],
    freed_after_the_last_use_on_either_device proves ["A1", "A4"] needs [TWO],
    pools_are_granted_by_name proves ["H1"] needs [TWO, Need::POOLS],
    mapped_memory_is_open_to_named_devices proves ["H1"] needs [TWO, super::memory::VMM],
    events_are_waited_for_across_devices proves ["H1"] needs [TWO],
    an_export_returns_by_the_other_devices_stream proves ["M5"] needs [TWO],
}

/// Two devices, each with a context and a stream.
struct Both<'a> {
    here: Core<'a>,
    there: Arc<Context>,
    far: Arc<Stream>,
}

impl<'a> Both<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let here = Core::new(cx)?;
        let there = Device::new(cx.driver(), 1)?.primary_context()?;
        let far = there.new_stream()?;
        Ok(Self { here, there, far })
    }

    /// The other device's kernels may use this one's memory.
    fn grant(&self) -> Check {
        if !self.there.device().can_access_peer(self.here.device)? {
            return Err(Stop::unsupported("device 1 cannot access device 0's memory"));
        }
        Ok(self.there.enable_peer_access(&self.here.context)?)
    }

    /// A kernel of the other device that copies words.
    fn copy(&self) -> Check<simtile_core::Function> {
        let image = crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
        Ok(self.there.load_module(image)?.load_function("copy")?)
    }

    fn launch(
        &self,
        copy: &simtile_core::Function,
        source: &DeviceBuffer<u32>,
        target: &mut DeviceBuffer<u32>,
    ) -> Result<(), LaunchError> {
        let n = source.len() as u32;
        let args = LaunchArgs::new().arg(source).arg(target).arg(n);
        // SAFETY: the kernel copies n words, and both buffers have so many.
        unsafe { self.far.launch(copy, LaunchConfig::for_num_elems(n), args) }
    }
}

fn host_copies_follow_across_devices(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let mut words = DeviceBuffer::from_slice(&both.here.stream, &[1u32; 1000])?;
    both.here.stream.synchronize()?;
    let gate = both.here.gate(&both.here.stream)?;
    words.fill(&both.here.stream, 2)?;
    let read = both.far.submit().read(&words).awaited().order_only()?;
    thread::sleep(A_WHILE);
    ensure!(!read.is_complete()?, "a read on the other device is over before the write that it follows");
    gate.open();
    same("words read on the other device", &words.to_vec(&both.far)?, &[2; 1000])?;
    words.fill(&both.far, 3)?;
    words.copy_from_slice_at(&both.far, 5, &[4; 5])?;
    let expected: Vec<u32> = (0..1000).map(|i| if (5..10).contains(&i) { 4 } else { 3 }).collect();
    same("words written from the other device", &words.to_vec(&both.here.stream)?, &expected)?;
    words.zero(&both.far)?;
    both.far.synchronize()?;
    same("words after waiting for the stream that was named", &words.to_vec(&both.far)?, &[0; 1000])
}

fn copies_between_devices_are_ordered_on_both(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let mut source = DeviceBuffer::from_slice(&both.here.stream, &[1u32; 4096])?;
    let mut target = DeviceBuffer::<u32>::zeroed(&both.far, 4096)?;
    both.here.stream.synchronize()?;
    both.far.synchronize()?;
    let gate = both.here.gate(&both.here.stream)?;
    source.fill(&both.here.stream, 9)?;
    target.copy_from(&both.far, &source)?;
    source.fill(&both.here.stream, 10)?;
    gate.open();
    same("words copied to the other device", &target.to_vec(&both.far)?, &[9; 4096])?;
    same("words after the copy", &source.to_vec(&both.here.stream)?, &[10; 4096])?;
    target.copy_from(&both.here.stream, &source)?;
    same("words copied by the source's stream", &target.to_vec(&both.far)?, &[10; 4096])?;
    let pinned = PinnedHostBuffer::from_slice(&both.here.context, &[5u32; 4096])?;
    pinned.copy_to(&both.here.stream, &mut target)?;
    same("words from pinned memory of the other device", &target.to_vec(&both.far)?, &[5; 4096])
}

fn kernels_reach_what_was_granted(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let copy = both.copy()?;
    let mut source = DeviceBuffer::from_slice(&both.here.stream, &[7u32; 100])?;
    let mut target = DeviceBuffer::<u32>::zeroed(&both.far, 100)?;
    let error = match both.launch(&copy, &source, &mut target) {
        Err(error) => error,
        Ok(()) => return Err(Stop::fail("a kernel was launched on memory that was not granted")),
    };
    ensure!(matches!(error, LaunchError::OtherContext { .. }), "{error:?}");
    both.grant()?;
    both.grant()?;
    both.here.stream.synchronize()?;
    let gate = both.here.gate(&both.here.stream)?;
    source.fill(&both.here.stream, 8)?;
    both.launch(&copy, &source, &mut target)?;
    source.fill(&both.here.stream, 0)?;
    gate.open();
    same("words copied by a kernel of the other device", &target.to_vec(&both.far)?, &[8; 100])?;
    same("words overwritten after that", &source.to_vec(&both.here.stream)?, &[0; 100])?;
    both.there.disable_peer_access(&both.here.context)?;
    ensure!(both.launch(&copy, &source, &mut target).is_err(), "launched after the grant was taken away");
    Ok(())
}

fn a_grant_is_a_write(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let mut words = DeviceBuffer::<u32>::zeroed(&both.here.stream, 100)?;
    both.here.stream.synchronize()?;
    let gate = both.here.gate(&both.here.stream)?;
    words.fill(&both.here.stream, 1)?;
    let granted = thread::scope(|scope| -> Check {
        let granting = scope.spawn(|| both.grant());
        thread::sleep(A_WHILE);
        let early = granting.is_finished();
        gate.open();
        granting.join().map_err(|_| Stop::fail("the granting thread panicked"))??;
        ensure!(!early, "granted while work on the memory was in flight");
        Ok(())
    });
    granted?;
    same("words", &words.to_vec(&both.far)?, &[1; 100])
}

fn freed_after_the_last_use_on_either_device(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    both.grant()?;
    let copy = both.copy()?;
    let n = 1 << 16;
    let mut target = DeviceBuffer::<u32>::zeroed(&both.far, n)?;
    for round in 0..8u32 {
        let source = DeviceBuffer::from_slice(&both.here.stream, &vec![round + 1; n])?;
        both.here.stream.synchronize()?;
        both.far.synchronize()?;
        let gate = both.here.gate_elsewhere(cx, &both.far)?;
        both.launch(&copy, &source, &mut target)?;
        drop(source);
        // Whoever gets the same memory writes it after the kernel has read it.
        let other = DeviceBuffer::from_slice(&both.here.stream, &vec![0u32; n])?;
        gate.open();
        same("words read by the other device", &target.to_vec(&both.far)?, &vec![round + 1; n])?;
        drop(other);
    }
    ensure!(both.here.context.drain(SOON).is_complete(), "memory is left");
    ensure_eq!(both.here.context.stats().quarantined, 0, "allocations kept for ever");
    Ok(())
}

fn pools_are_granted_by_name(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    both.grant()?;
    let copy = both.copy()?;
    let pool = both.here.context.new_mem_pool()?;
    let source = pool.from_slice(&both.here.stream, &[6u32; 100])?;
    let mut target = DeviceBuffer::<u32>::zeroed(&both.far, 100)?;
    ensure!(both.launch(&copy, &source, &mut target).is_err(), "a pool inherited a grant");
    pool.grant(both.there.device())?;
    both.launch(&copy, &source, &mut target)?;
    same("words of a granted pool", &target.to_vec(&both.far)?, &[6; 100])?;
    // Copies arrive with and without a grant, both ways.
    let mut back = pool.zeroed::<u32>(&both.here.stream, 100)?;
    back.copy_from(&both.here.stream, &target)?;
    same("words copied into a granted pool", &back.to_vec(&both.here.stream)?, &[6; 100])?;
    pool.revoke(both.there.device())?;
    ensure!(both.launch(&copy, &source, &mut target).is_err(), "launched after the grant was taken away");
    back.zero(&both.here.stream)?;
    back.copy_from(&both.far, &target)?;
    same("words copied into a pool without a grant", &back.to_vec(&both.here.stream)?, &[6; 100])
}

fn mapped_memory_is_open_to_named_devices(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    if !both.there.device().can_access_peer(both.here.device)? {
        return Err(Stop::unsupported("device 1 cannot access device 0's memory"));
    }
    let copy = both.copy()?;
    let mut target = DeviceBuffer::<u32>::zeroed(&both.far, 64)?;
    for (open, devices) in [(false, &[][..]), (true, &[both.there.device()][..])] {
        let mut source = GrowableBuffer::<u32>::open_to(&both.here.context, 1 << 20, devices)?;
        source.extend_from_slice(&both.here.stream, &[4; 64])?;
        let view = source.view();
        let args = LaunchArgs::new().arg(&view).arg(&mut target).arg(64u32);
        // SAFETY: the kernel copies 64 words, and both have so many.
        let launched = unsafe { both.far.launch(&copy, LaunchConfig::for_num_elems(64), args) };
        ensure_eq!(launched.is_ok(), open, "launch on mapped memory");
    }
    same("words of mapped memory", &target.to_vec(&both.far)?, &[4; 64])
}

fn events_are_waited_for_across_devices(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let gate = both.here.gate(&both.here.stream)?;
    let event = both.here.stream.record_event()?;
    both.far.wait(&event)?;
    let joined = both.there.new_stream()?;
    joined.join(&both.here.stream)?;
    thread::sleep(A_WHILE);
    ensure!(!both.far.is_complete()? && !joined.is_complete()?, "a stream did not wait for the other device");
    gate.open();
    both.far.synchronize()?;
    joined.synchronize()?;
    Ok(())
}

fn an_export_returns_by_the_other_devices_stream(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    let words = DeviceBuffer::from_slice(&both.here.stream, &[3u32; 64])?;
    let exported = words.export().map_err(|refused| Stop::fail(refused.error))?;
    exported.follow_on(&both.far)?;
    // SAFETY: nothing else is queued than what the stream holds.
    let back = unsafe { exported.take_back(&both.far) }.map_err(|refused| Stop::fail(refused.error))?;
    same("words that came back", &back.to_vec(&both.here.stream)?, &[3; 64])
}
