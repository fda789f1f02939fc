use super::*;
use crate::memory::DeviceView;
use proptest::prelude::*;

fn space() -> AddressSpace {
    AddressSpace::new()
}

fn run(space: &AddressSpace, copy: &Transfer) -> Option<Unread> {
    // SAFETY: the tests' host ends are valid.
    unsafe { copy.run(&DeviceView::new(space, 0)) }.unwrap()
}

fn upload(space: &AddressSpace, to: u64, bytes: &[u8]) {
    let copy = Transfer::linear(Place::Memory(to), Place::Staged(bytes.into()), bytes.len() as u64);
    assert_eq!(run(space, &copy), None);
}

fn download(space: &AddressSpace, from: u64, bytes: usize) -> (Vec<u8>, Option<Unread>) {
    let mut out = vec![0xAA; bytes];
    let unread = run(
        space,
        &Transfer::linear(Place::Host(out.as_mut_ptr().addr()), Place::Memory(from), bytes as u64),
    );
    (out, unread)
}

#[test]
fn host_reads_of_what_nobody_wrote_are_told_once() {
    let space = space();
    let a = space.allocate(MemoryKind::Device, 0, 100).unwrap();
    a.set_label("x");
    upload(&space, a.base, &[1; 40]);
    upload(&space, a.base + 60, &[2; 40]);
    assert_eq!(download(&space, a.base, 40).1, None);
    let (bytes, unread) = download(&space, a.base + 30, 70);
    assert_eq!(unread, Some(Unread { address: a.base + 40, label: Some("x".to_owned()) }));
    assert_eq!((bytes[9], bytes[10], bytes[30]), (1, 0, 2));
    // Between device ranges the bits travel and nothing is told.
    let b = space.allocate(MemoryKind::Device, 0, 100).unwrap();
    assert_eq!(run(&space, &Transfer::linear(Place::Memory(b.base), Place::Memory(a.base), 100)), None);
    assert_eq!(download(&space, b.base, 100).1.unwrap().address, b.base + 40);
    // Pinned memory is the host's.
    let p = space.allocate(MemoryKind::Pinned, 0, 100).unwrap();
    let copy = Transfer::linear(Place::Memory(p.base), Place::Memory(a.base), 100);
    assert_eq!(run(&space, &copy).unwrap().address, a.base + 40);
}

#[test]
fn rectangles_go_row_by_row_and_end_with_the_last_byte() {
    let space = space();
    let a = space.allocate(MemoryKind::Device, 0, 3 * 64 + 10).unwrap();
    let host: Vec<u8> = (0..40).collect();
    let mut copy = Transfer {
        to: Side { place: Place::Memory(a.base), pitch: 64, slice: 0, allocation: 0 },
        from: Side { place: Place::Host(host.as_ptr().addr()), pitch: 10, slice: 0, allocation: 0 },
        width: 10,
        height: 4,
        depth: 1,
        peer: false,
        device: None,
    };
    copy.check(&space, View::Submission, 0).unwrap();
    assert_eq!(copy.bytes(), 40);
    // SAFETY: `host` is readable.
    unsafe { copy.stage() };
    assert!(matches!(copy.from.place, Place::Staged(_)));
    run(&space, &copy);
    assert_eq!(download(&space, a.base + 64, 10).0, host[10..20]);
    assert_eq!(download(&space, a.base + 192, 10).0, host[30..]);
    assert!(download(&space, a.base + 10, 1).1.is_some());
    copy.height = 5;
    assert_eq!(copy.check(&space, View::Submission, 0).unwrap_err().kind, FaultKind::OutOfBounds);
    copy.to.pitch = u64::MAX;
    assert_eq!(copy.check(&space, View::Submission, 0).unwrap_err().kind, FaultKind::OutOfBounds);
}

#[test]
fn fills_repeat_their_pattern_and_check_their_span() {
    let space = space();
    let a = space.allocate(MemoryKind::Device, 0, 64).unwrap();
    let fill = |pitch, pattern, width, height| Fill {
        address: a.base,
        pitch,
        pattern,
        width,
        height,
        allocation: 0,
        device: None,
    };
    fill(16, Pattern::U16(0x0201), 3, 4).run(&DeviceView::new(&space, 0)).unwrap();
    let (row, unread) = download(&space, a.base + 48, 6);
    assert_eq!((row, unread), (vec![1, 2, 1, 2, 1, 2], None));
    assert_eq!(download(&space, a.base + 48, 7).1.unwrap().address, a.base + 54);
    let check = |fill: Fill| fill.check(&space, View::Submission, 0).map_err(|fault| fault.kind);
    assert_eq!(check(fill(16, Pattern::U16(1), 3, 4)), Ok(()));
    assert_eq!(check(fill(16, Pattern::U16(1), 8, 5)), Err(FaultKind::OutOfBounds));
    assert_eq!(check(fill(0, Pattern::U32(1), u64::MAX / 2, 1)), Err(FaultKind::OutOfBounds));
    assert_eq!(check(fill(0, Pattern::U8(1), 0, 5)), Ok(()));
    assert_eq!(
        fill(0, Pattern::U8(1), 65, 1).run(&DeviceView::new(&space, 0)).unwrap_err().kind,
        FaultKind::OutOfBounds
    );
}

#[test]
fn faults_name_the_side() {
    let space = space();
    let a = space.allocate(MemoryKind::Device, 0, 16).unwrap();
    for (to, from, kind) in [
        (a.base, 1 << 50, FaultKind::Unmapped),
        (1 << 50, a.base, FaultKind::Unmapped),
        (a.base, a.base + 8, FaultKind::OutOfBounds),
    ] {
        let copy = Transfer::linear(Place::Memory(to), Place::Memory(from), 16);
        assert_eq!(copy.check(&space, View::Submission, 0).unwrap_err().kind, kind);
        // SAFETY: no host end.
        assert_eq!(unsafe { copy.run(&DeviceView::new(&space, 0)) }.unwrap_err().kind, kind);
    }
    assert!(
        Transfer::linear(Place::Memory(3), Place::Memory(5), 0).check(&space, View::Execution, 0).is_ok()
    );
}

proptest! {
    /// Random fills, copies (overlapping too) and rectangles agree with a vector of bytes with flags.
    #[test]
    fn programs_agree_with_a_vector(
        steps in proptest::collection::vec((0u8..4, 0u64..3000, 0u64..3000, 0u64..1500, any::<u32>()), 1..30)
    ) {
        const N: u64 = 4500;
        let space = space();
        let a = space.allocate(MemoryKind::Device, 0, N).unwrap();
        let mut model: Vec<Option<u8>> = vec![None; N as usize];
        for (kind, to, from, len, value) in steps {
            let at = to as usize;
            match kind {
                0 => {
                    let bytes: Vec<u8> = (0..len).map(|i| (value as u64 + i) as u8).collect();
                    upload(&space, a.base + to, &bytes);
                    for (i, b) in bytes.iter().enumerate() {
                        model[at + i] = Some(*b);
                    }
                }
                1 => {
                    run(&space, &Transfer::linear(Place::Memory(a.base + to), Place::Memory(a.base + from), len));
                    model.copy_within(from as usize..(from + len) as usize, at);
                }
                2 => {
                    let (width, height) = (len / 16, 1 + u64::from(value % 7));
                    let pitch = width * 4 + u64::from(value % 13);
                    Fill { address: a.base + to, pitch, pattern: Pattern::U32(value), width: width / 2, height: 1, allocation: 0, device: None }
                        .run(&DeviceView::new(&space, 0)).unwrap();
                    for i in 0..(width / 2 * 4) as usize {
                        model[at + i] = Some(value.to_ne_bytes()[i % 4]);
                    }
                    let fill = Fill { address: a.base, pitch, pattern: Pattern::U8(value as u8), width, height, allocation: 0, device: None };
                    fill.run(&DeviceView::new(&space, 0)).unwrap();
                    for y in 0..height {
                        for x in 0..width {
                            model[(y * pitch + x) as usize] = Some(value as u8);
                        }
                    }
                }
                _ => {
                    let (bytes, unread) = download(&space, a.base + to, len as usize);
                    let part = &model[at..at + len as usize];
                    prop_assert!(bytes.iter().zip(part).all(|(b, m)| *b == m.unwrap_or(*b)));
                    let first = part.iter().position(|m| m.is_none()).map(|i| a.base + to + i as u64);
                    prop_assert_eq!(unread.map(|u| u.address), first);
                }
            }
        }
    }
}
