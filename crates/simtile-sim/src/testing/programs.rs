//! Random programs of memory calls against a model: every allocation a vector of bytes that may be unknown.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    Alloc { bytes: usize, pooled: bool },
    Free { which: usize, ordered: bool },
    Upload { which: usize, at: usize, bytes: usize, value: u8 },
    Download { which: usize, at: usize, bytes: usize },
    Copy { from: usize, to: usize, at: usize, to_at: usize, bytes: usize },
    Fill { which: usize, at: usize, count: usize, value: u32, element: usize },
    Rows { which: usize, at: usize, pitch: usize, width: usize, height: usize, value: u8 },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let (which, at, bytes) = (0usize..8, 0usize..3000, 0usize..3000);
    prop_oneof![
        3 => (1usize..6000, any::<bool>()).prop_map(|(bytes, pooled)| Step::Alloc { bytes, pooled }),
        2 => (which.clone(), any::<bool>()).prop_map(|(which, ordered)| Step::Free { which, ordered }),
        4 => (which.clone(), at.clone(), bytes.clone(), any::<u8>())
            .prop_map(|(which, at, bytes, value)| Step::Upload { which, at, bytes, value }),
        4 => (which.clone(), at.clone(), bytes.clone()).prop_map(|(which, at, bytes)| Step::Download { which, at, bytes }),
        4 => (which.clone(), which.clone(), at.clone(), at.clone(), bytes.clone())
            .prop_map(|(from, to, at, to_at, bytes)| Step::Copy { from, to, at, to_at, bytes }),
        4 => (which.clone(), at.clone(), 0usize..800, any::<u32>(), 0usize..3)
            .prop_map(|(which, at, count, value, e)| Step::Fill { which, at, count, value, element: 1 << e }),
        2 => (which, at, 0usize..200, 0usize..150, 0usize..12, any::<u8>())
            .prop_map(|(which, at, pitch, width, height, value)| Step::Rows { which, at, pitch, width, height, value }),
        1 => Just(Step::Wait),
    ]
}

struct Machine {
    rig: Rig,
    /// Ordered with calls that have no stream, by the rule of the legacy default stream.
    stream: CUstream,
    order: Vec<u64>,
    memory: HashMap<u64, Vec<Option<u8>>>,
}

impl Machine {
    /// An allocation by number, with its size.
    fn pick(&self, which: usize) -> Option<(u64, usize)> {
        let base = *self.order.get(which % self.order.len().max(1))?;
        Some((base, self.memory[&base].len()))
    }

    /// The same with a place that is not behind its end, where the next allocation could be.
    fn pick_at(&self, which: usize, at: usize) -> Option<(u64, usize, usize)> {
        let (base, len) = self.pick(which)?;
        Some((base, len, at % (len + 1)))
    }

    /// Runs a call that must succeed if the model says that it fits, and be refused otherwise.
    fn expect(&self, fits: bool, code: CUresult) -> bool {
        let expected = if fits { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_INVALID_VALUE };
        assert_eq!(code, expected);
        fits
    }

    fn run(&mut self, number: usize, step: &Step) {
        let (rig, stream) = (&self.rig, self.stream);
        // Every second call has a stream.
        let with_stream = number.is_multiple_of(2);
        match *step {
            Step::Alloc { bytes, pooled } => {
                let mut base = 0;
                if pooled {
                    ok!(rig, cuMemAllocAsync(&mut base, bytes, stream));
                } else {
                    ok!(rig, cuMemAlloc(&mut base, bytes));
                }
                let overlaps = |(&other, len): (&u64, &Vec<Option<u8>>)| {
                    base < other + len.len() as u64 && other < base + bytes as u64
                };
                assert!(!self.memory.iter().any(overlaps));
                self.order.push(base);
                self.memory.insert(base, vec![None; bytes]);
            }
            Step::Free { which, ordered } => {
                let Some((base, _)) = self.pick(which) else { return };
                if ordered {
                    ok!(rig, cuMemFreeAsync(base, stream));
                } else {
                    // Memory of a pool is not waited for, so its users must be done.
                    ok!(rig, cuCtxSynchronize());
                    ok!(rig, cuMemFree(base));
                }
                assert_eq!(code!(rig, cuMemFree(base)), CUresult::CUDA_ERROR_INVALID_VALUE);
                self.memory.remove(&base);
                self.order.retain(|other| *other != base);
            }
            Step::Upload { which, at, bytes, value } => {
                let Some((base, len, at)) = self.pick_at(which, at) else { return };
                let data: Vec<u8> = (0..bytes).map(|i| value.wrapping_add(i as u8)).collect();
                let (to, from) = (base + at as u64, data.as_ptr().cast());
                let code = if with_stream {
                    code!(rig, cuMemcpyHtoDAsync(to, from, bytes, stream))
                } else {
                    code!(rig, cuMemcpyHtoD(to, from, bytes))
                };
                if self.expect(bytes == 0 || at + bytes <= len, code) && bytes > 0 {
                    let part = &mut self.memory.get_mut(&base).unwrap()[at..at + bytes];
                    part.iter_mut().zip(&data).for_each(|(to, from)| *to = Some(*from));
                }
            }
            Step::Download { which, at, bytes } => {
                let Some((base, len, at)) = self.pick_at(which, at) else { return };
                let mut out = vec![0u8; bytes];
                let (to, from) = (out.as_mut_ptr().cast(), base + at as u64);
                let code = if with_stream {
                    code!(rig, cuMemcpyDtoHAsync(to, from, bytes, stream))
                } else {
                    code!(rig, cuMemcpyDtoH(to, from, bytes))
                };
                if self.expect(bytes == 0 || at + bytes <= len, code) && bytes > 0 {
                    let part = &self.memory[&base][at..at + bytes];
                    assert!(
                        out.iter().zip(part).all(|(found, known)| known.is_none_or(|known| known == *found))
                    );
                    // What nobody wrote is told, and nothing else.
                    let told = rig.kinds().contains(&crate::ReportKind::UninitialisedRead);
                    assert_eq!(told, part.contains(&None));
                }
            }
            Step::Copy { from, to, at, to_at, bytes } => {
                let Some((from, from_len, at)) = self.pick_at(from, at) else { return };
                let Some((to, to_len, to_at)) = self.pick_at(to, to_at) else { return };
                let (source, target) = (from + at as u64, to + to_at as u64);
                let code = if with_stream {
                    code!(rig, cuMemcpyDtoDAsync(target, source, bytes, stream))
                } else {
                    code!(rig, cuMemcpy(target, source, bytes))
                };
                let fits = bytes == 0 || at + bytes <= from_len && to_at + bytes <= to_len;
                if self.expect(fits, code) && bytes > 0 {
                    let data = self.memory[&from][at..at + bytes].to_vec();
                    self.memory.get_mut(&to).unwrap()[to_at..to_at + bytes].copy_from_slice(&data);
                }
            }
            Step::Fill { which, at, count, value, element } => {
                let Some((base, len, at)) = self.pick_at(which, at) else { return };
                let to = base + at as u64;
                let code = match (element, with_stream) {
                    (1, true) => code!(rig, cuMemsetD8Async(to, value as u8, count, stream)),
                    (1, false) => code!(rig, cuMemsetD8(to, value as u8, count)),
                    (2, true) => code!(rig, cuMemsetD16Async(to, value as u16, count, stream)),
                    (2, false) => code!(rig, cuMemsetD16(to, value as u16, count)),
                    (_, true) => code!(rig, cuMemsetD32Async(to, value, count, stream)),
                    (_, false) => code!(rig, cuMemsetD32(to, value, count)),
                };
                let bytes = count * element;
                if self.expect(count == 0 || at % element == 0 && at + bytes <= len, code) && count > 0 {
                    let part = &mut self.memory.get_mut(&base).unwrap()[at..at + bytes];
                    let pattern = value.to_ne_bytes();
                    part.iter_mut().enumerate().for_each(|(i, to)| *to = Some(pattern[i % element]));
                }
            }
            Step::Rows { which, at, pitch, width, height, value } => {
                let Some((base, len, at)) = self.pick_at(which, at) else { return };
                let to = base + at as u64;
                let code = if with_stream {
                    code!(rig, cuMemsetD2D8Async(to, pitch, value, width, height, stream))
                } else {
                    code!(rig, cuMemsetD2D8(to, pitch, value, width, height))
                };
                let empty = width == 0 || height == 0;
                let span = if empty { 0 } else { pitch * (height - 1) + width };
                let fits = empty || (height == 1 || pitch >= width) && at + span <= len;
                if self.expect(fits, code) && !empty {
                    let memory = self.memory.get_mut(&base).unwrap();
                    for y in 0..height {
                        memory[at + y * pitch..][..width].fill(Some(value));
                    }
                }
            }
            Step::Wait => ok!(rig, cuStreamSynchronize(stream)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_agree_with_vectors_of_bytes(steps in proptest::collection::vec(step(), 1..80)) {
        let rig = Rig::with(Simulator::builder().mode(Mode::Fifo));
        let stream = rig.blocking_stream();
        let mut machine = Machine { rig, stream, order: Vec::new(), memory: HashMap::new() };
        for (number, step) in steps.iter().enumerate() {
            machine.run(number, step);
        }
        // Whatever is left is right as a whole, and comes back.
        for base in machine.order.clone() {
            machine.run(1, &Step::Download { which: 0, at: 0, bytes: machine.memory[&base].len() });
            machine.run(1, &Step::Free { which: 0, ordered: true });
        }
        ok!(machine.rig, cuCtxSynchronize());
        prop_assert_eq!(machine.rig.free_bytes(), 4 << 30);
        prop_assert_eq!(machine.rig.kinds(), []);
    }
}
