//! Steps of a second device: copies between both, kernels on memory of the other, drops with uses on both.

use super::thread::{FINE, Far, Modelled, Step, Thread, launch};
use super::{BUFFERS, MOST};
use simtile_core::{DeviceBuffer, Stream};
use simtile_sim::explore::Random;
use std::sync::Arc;

/// A stream of either device.
fn either(random: &mut Random, near: &[Arc<Stream>], far: &[Arc<Stream>]) -> Arc<Stream> {
    let at = random.below(near.len() + far.len());
    near.get(at).unwrap_or_else(|| &far[at - near.len()]).clone()
}

/// Copies as much as both have.
fn copy(stream: &Arc<Stream>, from: &Modelled, to: &mut Modelled) -> Step {
    let n = from.model.len().min(to.model.len());
    to.buffer.copy_range_from(stream, 0, &from.buffer, 0..n)?;
    to.model[..n].copy_from_slice(&from.model[..n]);
    FINE
}

impl Thread {
    pub(super) fn far(&mut self) -> Step {
        let Some(mut far) = self.far.take() else { return FINE };
        let outcome = self.far_step(&mut far);
        self.far = Some(far);
        outcome
    }

    fn far_step(&mut self, far: &mut Far) -> Step {
        let value = self.random.bits() as u32;
        let kind = self.random.below(8);
        if kind == 0 || far.buffers.is_empty() {
            let stream = far.streams[self.random.below(far.streams.len())].clone();
            if far.buffers.len() < BUFFERS {
                let buffer = DeviceBuffer::zeroed(&stream, MOST)?;
                far.buffers.push(Modelled { buffer, model: vec![0; MOST] });
            }
            return FINE;
        }
        let stream = either(&mut self.random, &self.streams, &far.streams);
        let at = self.random.below(far.buffers.len());
        let near = self.range();
        match (kind, near) {
            (1, _) => {
                let Modelled { buffer, model } = &mut far.buffers[at];
                buffer.fill(&stream, value)?;
                model.fill(value);
            }
            (2, Some((near, ..))) => return copy(&stream, &self.buffers[near], &mut far.buffers[at]),
            (3, Some((near, ..))) => return copy(&stream, &far.buffers[at], &mut self.buffers[near]),
            (4, _) => {
                // A kernel of either device on memory of the second.
                if *stream.context() == far.context {
                    launch(&stream, &far.step, &mut far.buffers[at])?;
                } else {
                    launch(&stream, &self.step.clone(), &mut far.buffers[at])?;
                }
            }
            (5, Some((near, ..))) => {
                let stream = far.streams[self.random.below(far.streams.len())].clone();
                launch(&stream, &far.step, &mut self.buffers[near])?;
            }
            (6, _) => drop(far.buffers.swap_remove(at)),
            _ => {
                let Modelled { buffer, model } = &far.buffers[at];
                let found = buffer.to_vec(&stream)?;
                if let Some(i) = found.iter().zip(model).position(|(a, b)| a != b) {
                    let wrong =
                        format!("element {i} of far {buffer:?} is {}, should be {}", found[i], model[i]);
                    return Ok(Err(wrong));
                }
            }
        }
        FINE
    }
}
