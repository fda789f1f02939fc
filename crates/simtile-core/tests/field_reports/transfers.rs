//! Area E: uploads, downloads, staging.

use super::*;

#[test]
fn fr_e1_e3_an_upload_is_what_the_slice_was() {
    for n in [16usize, 10_000, 1 << 20] {
        let (sim, _context, a, _b) = checked();
        let mut source = vec![1.0f32; n];
        let mut buffer = DeviceBuffer::<f32>::zeroed(&a, n).unwrap();
        a.synchronize().unwrap();
        let gate = if n <= 10_000 { Some(sim.gate(a.cu_stream()).unwrap()) } else { None };
        buffer.copy_from_slice(&a, &source).unwrap();
        source[n - 1] = 2.0;
        drop(source);
        if let Some(gate) = gate {
            gate.open();
        }
        assert_eq!(buffer.range_to_vec(&a, n - 1..n).unwrap(), [1.0]);
        clean(&sim);
    }
}

#[test]
fn fr_e2_e5_two_uploads_in_flight_and_staging_that_fails() {
    let (sim, context, a, _b) = checked();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.copy_from_slice(&a, &[1; 1000]).unwrap();
    buffer.copy_from_slice(&a, &[2; 1000]).unwrap();
    gate.open();
    assert_eq!(buffer.to_vec(&a).unwrap(), [2; 1000]);
    // Staging cannot be had: an error, and the buffer is as it was.
    let fresh = common::context(&sim, 1);
    let stream = fresh.new_stream().unwrap();
    let mut other = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap();
    sim.fail(Entry::cuMemHostAlloc, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(other.copy_from_slice(&stream, &[1; 10]).is_err());
    assert_eq!(other.to_vec(&stream).unwrap(), [0; 10]);
    drop(buffer);
    assert!(context.drain(SOON).is_complete());
    clean(&sim);
}

#[test]
fn fr_e8_a_host_vector_that_cannot_be_had_is_an_error() {
    let (_sim, _context, a, _b) = checked();
    // Elements without bytes: as many as one likes.
    let nothing = DeviceBuffer::<()>::zeroed(&a, usize::MAX).unwrap();
    assert_eq!(nothing.to_vec(&a).unwrap().len(), usize::MAX);
    let text =
        ".version 7.0 .target sm_70 .address_size 64\n.visible .global .u32 c;\n.visible .entry k() { ret; }";
    let symbol = a.context().load_module_from_ptx_src(text).unwrap().symbol("c").unwrap();
    assert!(matches!(symbol.read::<u64>(&a, 0, usize::MAX / 4), Err(MemoryError::SizeOverflow { .. })));
}

#[test]
fn fr_e10_small_read_backs_wait_for_their_own_stream_alone() {
    let (sim, context, a, _b) = checked();
    let streams: Vec<_> = (0..8).map(|_| context.new_stream().unwrap()).collect();
    let buffers: Vec<_> =
        streams.iter().map(|stream| DeviceBuffer::from_slice(stream, &[1u32]).unwrap()).collect();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.launch_host_function(|| ()).unwrap();
    for _ in 0..10 {
        for (stream, buffer) in streams.iter().zip(&buffers) {
            assert_eq!(buffer.to_vec(stream).unwrap(), [1]);
        }
    }
    assert!(!a.is_complete().unwrap());
    gate.open();
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuCtxSynchronize) + counts.of(Entry::cuStreamSynchronize), 0);
    clean(&sim);
}
