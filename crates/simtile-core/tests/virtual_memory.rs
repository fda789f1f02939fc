//! Virtual memory: physical memory behind reserved addresses, and buffers that grow in place.

mod common;

use common::*;
use simtile_core::{
    Context, Device, DeviceBuffer, GrowableBuffer, LaunchArgs, MemoryError, MulticastTeam, Stream, align_size,
};
use simtile_driver::Entry;
use simtile_sim::{Checks, Lacks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const STEP: usize = 2 << 20;

fn checked(devices: u32) -> (Simulator, Arc<Context>, Arc<Stream>) {
    let sim = Simulator::builder().devices(devices).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    (sim, context, stream)
}

/// All that was made was given back.
fn balanced(sim: &Simulator) {
    let counts = sim.counts();
    let pairs = [
        (Entry::cuMemCreate, Entry::cuMemRelease),
        (Entry::cuMemMap, Entry::cuMemUnmap),
        (Entry::cuMemAddressReserve, Entry::cuMemAddressFree),
    ];
    for (make, end) in pairs {
        assert_eq!(counts.of(make), counts.of(end), "{make:?} and {end:?}");
    }
}

#[test]
fn fr_k5_sizes_are_rounded_up_to_the_granularity() {
    assert_eq!(align_size(1, 64 << 10).unwrap(), 64 << 10);
    assert_eq!(align_size(64 << 10, 64 << 10).unwrap(), 64 << 10);
    assert_eq!(align_size((64 << 10) + 1, 64 << 10).unwrap(), 128 << 10);
    assert_eq!(align_size(STEP - 1, STEP).unwrap(), STEP);
    assert_eq!(align_size(0, STEP).unwrap(), 0);
    assert_eq!(align_size(10, 3).unwrap(), 12);
    assert!(matches!(align_size(1, 0), Err(MemoryError::SizeOverflow { .. })));
    assert!(matches!(align_size(usize::MAX, STEP), Err(MemoryError::SizeOverflow { .. })));
    let (sim, context, _) = checked(1);
    assert_eq!(context.allocation_granularity().unwrap(), STEP);
    let memory = context.physical_memory(STEP + 1).unwrap();
    assert_eq!(memory.num_bytes(), 2 * STEP);
    let range = context.reserve(3 * STEP).unwrap();
    // Refused before the driver is asked.
    let before = sim.counts().of(Entry::cuMemMap);
    assert!(matches!(range.map(4096, &memory, &[]), Err(MemoryError::Shape { .. })));
    assert!(matches!(range.map(2 * STEP, &memory, &[]), Err(MemoryError::OutOfRange { .. })));
    assert_eq!(sim.counts().of(Entry::cuMemMap), before);
}

#[test]
fn mapped_memory_is_memory_like_any_other() {
    let (sim, context, stream) = checked(1);
    let (range, memory) = (context.reserve(4 * STEP).unwrap(), context.physical_memory(STEP).unwrap());
    let mut mapped = range.map(STEP, &memory, &[]).unwrap();
    assert_eq!(mapped.cu_deviceptr(), range.base() + STEP as u64);
    mapped.view_mut().zero(&stream).unwrap();
    let mut typed = mapped.into_typed::<f32>().unwrap();
    typed.slice_mut(0..100).unwrap().fill(&stream, 1.5).unwrap();
    assert_eq!(typed.range_to_vec(&stream, 99..101).unwrap(), [1.5, 0.0]);
    // One place at a time, also in the range.
    assert!(matches!(range.map(0, &memory, &[]), Err(MemoryError::NotUnique { .. })));
    let second = context.physical_memory(STEP).unwrap();
    assert!(matches!(range.map(STEP, &second, &[]), Err(MemoryError::Shape { .. })));
    assert_eq!(context.stats().mapped_bytes, 2 * STEP as u64);
    drop(typed);
    assert!(context.drain(SOON).is_complete());
    // Both are free again, and the content is the memory's, not the address's.
    let again = range.map(0, &memory, &[]).unwrap().into_typed::<f32>().unwrap();
    assert_eq!(again.range_to_vec(&stream, 99..101).unwrap(), [1.5, 0.0]);
    drop((again, memory, second, range));
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(context.stats().mapped_bytes, 0);
    balanced(&sim);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn fr_k3_nothing_is_unmapped_before_its_last_use() {
    let (sim, context, stream) = checked(1);
    let range = context.reserve(STEP).unwrap();
    let memory = context.physical_memory(STEP).unwrap();
    let mut mapped = range.map(0, &memory, &[]).unwrap();
    mapped.view_mut().zero(&stream).unwrap();
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    mapped.view_mut().fill(&stream, 1).unwrap();
    drop((mapped, memory, range));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(sim.counts().of(Entry::cuMemUnmap), 0);
    gate.open();
    assert!(context.drain(SOON).is_complete());
    assert!(simtile_core::drain_background(SOON));
    balanced(&sim);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn fr_k4_whatever_order_handles_go_in_the_undoing_has_one() {
    // Every order of dropping range, memory and mapping.
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (sim, context, stream) = checked(1);
        let range = context.reserve(STEP).unwrap();
        let memory = context.physical_memory(STEP).unwrap();
        let mut mapped = range.map(0, &memory, &[]).unwrap();
        mapped.view_mut().zero(&stream).unwrap();
        let mut parts: [Option<Box<dyn core::any::Any>>; 3] =
            [Some(Box::new(range)), Some(Box::new(memory)), Some(Box::new(mapped))];
        for part in order {
            parts[part] = None;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(context.drain(SOON).is_complete());
        assert!(simtile_core::drain_background(SOON));
        // The driver refuses every other order, which would be counted.
        balanced(&sim);
        let stats = context.stats();
        assert_eq!((stats.failed_frees, stats.mapped_bytes), (0, 0), "{order:?}");
        assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    }
}

#[test]
fn fr_k1_memory_comes_back_whole() {
    // Without the race checker, which remembers memory beyond its end.
    let (sim, context, stream) = start();
    let free = context.memory_info().unwrap().free;
    for _ in 0..20 {
        let buffers: Vec<_> = (0..4)
            .map(|_| {
                let mut buffer = GrowableBuffer::<u8>::new(&context, 8 * STEP).unwrap();
                buffer.resize(&stream, 3 * STEP).unwrap();
                buffer
            })
            .collect();
        drop(buffers);
        stream.synchronize().unwrap();
        assert!(context.drain(SOON).is_complete());
    }
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(context.memory_info().unwrap().free, free);
    balanced(&sim);
}

#[test]
fn a_buffer_grows_at_one_address() {
    let (sim, context, stream) = checked(1);
    let module = context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    let n = 3 * STEP / 4;
    let mut buffer = GrowableBuffer::<f32>::new(&context, n).unwrap();
    let address = buffer.cu_deviceptr();
    assert_eq!((buffer.len(), buffer.capacity(), buffer.most()), (0, 0, n));
    assert!(buffer.to_vec(&stream).unwrap().is_empty());
    buffer.extend_from_slice(&stream, &[1.0; 100]).unwrap();
    assert_eq!(buffer.capacity(), STEP / 4);
    // Work in flight goes on while it grows.
    let x = DeviceBuffer::from_slice(&stream, &[2.0f32; 100]).unwrap();
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let mut view = buffer.view_mut();
    let args = LaunchArgs::new().arg(100u32).arg(3.0f32).buffer(&x).view_mut(&mut view);
    // SAFETY: both have 100 elements.
    unsafe { stream.launch(&kernel, LaunchConfig::for_num_elems(100), args) }.unwrap();
    let other = context.new_stream().unwrap();
    let len = STEP / 4 + 50;
    buffer.resize(&other, len).unwrap();
    buffer.extend_from_slice(&other, &[9.0; 2]).unwrap();
    other.synchronize().unwrap();
    assert!(!stream.is_complete().unwrap());
    gate.open();
    assert_eq!((buffer.cu_deviceptr(), buffer.len()), (address, len + 2));
    let values = buffer.to_vec(&other).unwrap();
    assert_eq!(values[..100], [7.0; 100]);
    assert!(values[100..len].iter().all(|&value| value == 0.0));
    assert_eq!(values[len..], [9.0; 2]);
    // As far as was said, and not further; refused, it is as before.
    let error = buffer.resize(&stream, n + 1).unwrap_err();
    assert!(matches!(error, MemoryError::OutOfRange { .. }), "{error:?}");
    assert_eq!(buffer.len(), len + 2);
    // Shrinking keeps the memory until it is asked to give it back.
    buffer.resize(&stream, 10).unwrap();
    assert_eq!(context.stats().mapped_bytes, 2 * STEP as u64);
    buffer.shrink_to_fit().unwrap();
    assert_eq!(context.stats().mapped_bytes, STEP as u64);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7.0; 10]);
    buffer.resize(&stream, len).unwrap();
    assert!(buffer.to_vec(&stream).unwrap()[10..].iter().all(|&value| value == 0.0));
    drop(buffer);
    assert!(context.drain(SOON).is_complete());
    assert!(simtile_core::drain_background(SOON));
    balanced(&sim);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn other_devices_are_let_in_by_name() {
    let (sim, zero, a) = checked(2);
    let one = context(&sim, 1);
    let b = one.new_stream().unwrap();
    let module = one.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    let mut y = DeviceBuffer::from_slice(&b, &[1.0f32; 64]).unwrap();
    let devices: [&[Device]; 2] = [&[], &[one.device()]];
    for (allowed, devices) in [false, true].into_iter().zip(devices) {
        let mut x = GrowableBuffer::<f32>::open_to(&zero, STEP, devices).unwrap();
        x.extend_from_slice(&a, &[2.0; 64]).unwrap();
        let view = x.view();
        let args = LaunchArgs::new().arg(64u32).arg(1.0f32).view(&view).buffer_mut(&mut y);
        // SAFETY: both have 64 elements.
        let launched = unsafe { b.launch(&kernel, LaunchConfig::for_num_elems(64), args) };
        assert_eq!(launched.is_ok(), allowed);
    }
    assert_eq!(y.to_vec(&b).unwrap(), [3.0; 64]);
    assert!(simtile_core::drain_background(SOON));
    balanced(&sim);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn without_virtual_memory_the_error_says_so() {
    let sim = Simulator::builder().without(Lacks::by_names("vmm").unwrap()).quiet().build();
    let context = context(&sim, 0);
    let error = GrowableBuffer::<u32>::new(&context, 10).unwrap_err();
    assert!(matches!(error, MemoryError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("device 0"), "{error}");
}

#[test]
fn a_mapping_that_fails_undoes_itself() {
    use simtile_driver::sys::CUresult;
    for entry in [Entry::cuMemCreate, Entry::cuMemMap, Entry::cuMemSetAccess] {
        let (sim, context, stream) = checked(1);
        let mut buffer = GrowableBuffer::<u32>::new(&context, STEP).unwrap();
        buffer.extend_from_slice(&stream, &[1; 4]).unwrap();
        sim.fail(entry, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(buffer.reserve(STEP).is_err(), "{entry:?}");
        assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 4]);
        buffer.resize(&stream, STEP).unwrap();
        drop(buffer);
        assert!(context.drain(SOON).is_complete());
        assert!(simtile_core::drain_background(SOON));
        let stats = context.stats();
        assert_eq!((stats.mapped_bytes, stats.failed_frees), (0, 0), "{entry:?}");
        assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    }
}

/// What stays mapped because that, too, fails is counted, and its addresses are not freed under it.
#[test]
fn a_mapping_that_cannot_be_undone_is_counted() {
    use simtile_driver::sys::CUresult;
    let (sim, context, stream) = checked(1);
    let mut buffer = GrowableBuffer::<u32>::new(&context, STEP).unwrap();
    buffer.extend_from_slice(&stream, &[1; 4]).unwrap();
    sim.fail(Entry::cuMemSetAccess, 1, CUresult::CUDA_ERROR_UNKNOWN);
    sim.fail(Entry::cuMemUnmap, 1, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(buffer.reserve(STEP).is_err());
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 4]);
    drop(buffer);
    assert!(context.drain(SOON).is_complete());
    assert!(simtile_core::drain_background(SOON));
    let (stats, held) = (context.stats(), sim.holdings());
    assert_eq!((stats.mapped_bytes, stats.failed_frees), (0, 1));
    assert_eq!((stats.leaked_bytes, held.mappings), (held.mapped_bytes, 1));
    assert_eq!(sim.counts().of(Entry::cuMemAddressFree), 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_multicast_team_is_written_at_once_and_only_on_the_simulator() {
    let (sim, zero, a) = checked(2);
    let one = context(&sim, 1);
    let b = one.new_stream().unwrap();
    let mut team = MulticastTeam::new(&[&zero, &one], 100).unwrap();
    assert_eq!((team.num_bytes(), team.members().len()), (STEP, 2));
    let address = team.cu_deviceptr();
    let driver = sim.driver();
    // Work that is named as touching the team, by its address.
    team.written(a.submit().awaited()).order_only().unwrap().wait().unwrap();
    // SAFETY: the address is the team's, and nothing else uses it.
    unsafe { simtile_driver::call!(driver, cuMemsetD8Async(address + 8, 7, 4, a.cu_stream())) }.unwrap();
    a.synchronize().unwrap();
    for (member, stream) in team.members().iter().zip([&a, &b]) {
        assert_eq!(member.view().slice(6..14).unwrap().to_vec(stream).unwrap(), [0, 0, 7, 7, 7, 7, 0, 0]);
    }
    // Members are ordered memory of their devices.
    team.members_mut()[1].view_mut().fill(&b, 3).unwrap();
    assert_eq!(team.members()[1].view().slice(0..2).unwrap().to_vec(&a).unwrap(), [3, 3]);
    assert!(MulticastTeam::new(&[&zero], 100).is_err());
    assert!(matches!(MulticastTeam::new(&[&zero, &zero], 100), Err(MemoryError::Unsupported { .. })));
    drop(team);
    assert!(zero.drain(SOON).is_complete() && one.drain(SOON).is_complete());
    assert!(simtile_core::drain_background(SOON));
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuMulticastBindMem), counts.of(Entry::cuMulticastUnbind));
    assert_eq!(counts.of(Entry::cuMemMap), counts.of(Entry::cuMemUnmap));
    assert_eq!(
        counts.of(Entry::cuMemCreate) + counts.of(Entry::cuMulticastCreate),
        counts.of(Entry::cuMemRelease)
    );
    assert_eq!(counts.of(Entry::cuMemAddressReserve), counts.of(Entry::cuMemAddressFree));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
