//! Handle tables: opaque values that are looked up, never dereferenced.
//!
//! A handle value carries its kind, the simulator it came from, the slot and the slot's generation, so a
//! stale handle, one of another simulator and one of another kind are all recognised. Values are multiples
//! of 16 in a range where no mapping can be. With recycling switched on a destroyed object's value is
//! handed out again at once, as the real driver may do.

use std::collections::VecDeque;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    MemoryPool,
    MemoryHandle,
    GreenContext,
    ResourceDesc,
    Graph,
    GraphNode,
    GraphExec,
    UserObject,
}

/// Why a handle value names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHandle {
    Null,
    /// No value that any table hands out.
    Garbage,
    /// Of another simulated driver.
    Foreign,
    /// Names another kind of object.
    WrongKind,
    /// The object was destroyed.
    Stale,
}

const KIND_SHIFT: u32 = 56;
const SIM_SHIFT: u32 = 42;
const GENERATION_SHIFT: u32 = 28;
const INDEX_SHIFT: u32 = 4;
const SIM_MASK: usize = (1 << (KIND_SHIFT - SIM_SHIFT)) - 1;
const GENERATION_MASK: usize = (1 << (SIM_SHIFT - GENERATION_SHIFT)) - 1;
const INDEX_MASK: usize = (1 << (GENERATION_SHIFT - INDEX_SHIFT)) - 1;

struct Slot<T> {
    generation: usize,
    value: Option<T>,
}

/// Objects of one kind by handle.
pub(crate) struct Handles<T> {
    kind: Kind,
    simulator: u64,
    slots: Vec<Slot<T>>,
    free: VecDeque<usize>,
    recycle: bool,
}

impl<T> Handles<T> {
    pub(crate) fn new(kind: Kind, simulator: u64) -> Self {
        Self { kind, simulator, slots: Vec::new(), free: VecDeque::new(), recycle: false }
    }

    /// Whether destroyed objects' values are handed out again at once.
    pub(crate) fn set_recycling(&mut self, recycle: bool) {
        self.recycle = recycle;
    }

    /// Adds an object. `None` if there are 2^24 already.
    pub(crate) fn insert(&mut self, value: T) -> Option<usize> {
        // Fresh slots are used before free ones until there are a few free, so that a value comes
        // back late.
        let index = if self.recycle {
            self.free.pop_back()
        } else if self.free.len() > 64 || self.slots.len() > INDEX_MASK {
            self.free.pop_front()
        } else {
            None
        };
        let index = match index {
            Some(index) => index,
            None if self.slots.len() <= INDEX_MASK => {
                self.slots.push(Slot { generation: 1, value: None });
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index];
        slot.value = Some(value);
        let generation = slot.generation;
        Some(self.encode(index, generation))
    }

    fn encode(&self, index: usize, generation: usize) -> usize {
        (self.kind as usize) << KIND_SHIFT
            | (self.simulator as usize & SIM_MASK) << SIM_SHIFT
            | (generation & GENERATION_MASK) << GENERATION_SHIFT
            | index << INDEX_SHIFT
    }

    fn decode(&self, handle: usize) -> Result<usize, BadHandle> {
        if handle == 0 {
            return Err(BadHandle::Null);
        }
        let kind = handle >> KIND_SHIFT;
        if handle & 0xf != 0 || kind == 0 || kind > Kind::UserObject as usize {
            return Err(BadHandle::Garbage);
        }
        if (handle >> SIM_SHIFT) & SIM_MASK != self.simulator as usize & SIM_MASK {
            return Err(BadHandle::Foreign);
        }
        if kind != self.kind as usize {
            return Err(BadHandle::WrongKind);
        }
        let index = (handle >> INDEX_SHIFT) & INDEX_MASK;
        let slot = self.slots.get(index).ok_or(BadHandle::Garbage)?;
        let generation = (handle >> GENERATION_SHIFT) & GENERATION_MASK;
        if slot.value.is_some() && slot.generation & GENERATION_MASK == generation {
            Ok(index)
        } else {
            Err(BadHandle::Stale)
        }
    }

    pub(crate) fn get(&self, handle: usize) -> Result<&T, BadHandle> {
        let index = self.decode(handle)?;
        self.slots[index].value.as_ref().ok_or(BadHandle::Stale)
    }

    pub(crate) fn get_mut(&mut self, handle: usize) -> Result<&mut T, BadHandle> {
        let index = self.decode(handle)?;
        self.slots[index].value.as_mut().ok_or(BadHandle::Stale)
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Result<T, BadHandle> {
        let index = self.decode(handle)?;
        let slot = &mut self.slots[index];
        if !self.recycle {
            slot.generation += 1;
        }
        self.free.push_back(index);
        slot.value.take().ok_or(BadHandle::Stale)
    }

    /// Every object with its handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| (self.encode(index, slot.generation), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_foreign_wrong_and_null_handles_are_told_apart() {
        let mut streams = Handles::new(Kind::Stream, 7);
        let mut events = Handles::new(Kind::Event, 7);
        let mut others = Handles::new(Kind::Stream, 8);
        let (a, b) = (streams.insert("a").unwrap(), streams.insert("b").unwrap());
        let event = events.insert(()).unwrap();
        let other = others.insert("c").unwrap();
        assert_eq!(streams.get(a), Ok(&"a"));
        assert_eq!(streams.get(0), Err(BadHandle::Null));
        assert_eq!(streams.get(0x1234_5678), Err(BadHandle::Garbage));
        assert_eq!(streams.get(other), Err(BadHandle::Foreign));
        assert_eq!(streams.get(event), Err(BadHandle::WrongKind));
        assert_eq!(streams.remove(a), Ok("a"));
        assert_eq!(streams.get(a), Err(BadHandle::Stale));
        assert_eq!(streams.remove(a), Err(BadHandle::Stale));
        for _ in 0..1000 {
            let c = streams.insert("c").unwrap();
            assert_ne!(c, a);
            streams.remove(c).unwrap();
        }
        assert_eq!(streams.get(a), Err(BadHandle::Stale));
        assert_eq!(streams.get(b), Ok(&"b"));
        assert!(streams.slots.len() < 100);
    }

    #[test]
    fn recycling_hands_the_same_value_out_again() {
        let mut streams = Handles::new(Kind::Stream, 7);
        streams.set_recycling(true);
        let a = streams.insert(1).unwrap();
        streams.remove(a).unwrap();
        assert_eq!(streams.insert(2).unwrap(), a);
        assert_eq!(streams.get(a), Ok(&2));
    }
}
