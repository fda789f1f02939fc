//! The modifiers of one instruction, taken one by one; what is left at the end was not understood.

use crate::ptx::code::mode;
use simtile_image::ptx::Type;

pub(super) struct Modifiers<'i> {
    left: Vec<&'i str>,
}

impl<'i> Modifiers<'i> {
    pub(super) fn new(all: &'i [String]) -> Self {
        Self { left: all.iter().map(String::as_str).collect() }
    }

    /// Takes one by name.
    pub(super) fn take(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|m| *m == name);
        if let Some(at) = at {
            self.left.remove(at);
        }
        at.is_some()
    }

    /// Takes the first that is in the list.
    pub(super) fn pick(&mut self, names: &[&'static str]) -> Option<&'static str> {
        for at in 0..self.left.len() {
            if let Some(name) = names.iter().find(|n| **n == self.left[at]) {
                self.left.remove(at);
                return Some(name);
            }
        }
        None
    }

    /// Takes the first type.
    pub(super) fn ty(&mut self) -> Option<Type> {
        let (at, ty) = self.left.iter().enumerate().find_map(|(at, m)| Some((at, Type::from_name(m)?)))?;
        self.left.remove(at);
        Some(ty)
    }

    /// Takes the next, whatever it is.
    pub(super) fn next(&mut self) -> Option<&'i str> {
        (!self.left.is_empty()).then(|| self.left.remove(0))
    }

    /// Rounding, `.ftz`, `.sat` and their like as a mode word.
    pub(super) fn float(&mut self) -> u32 {
        let mut m = match self.pick(&["rn", "rz", "rm", "rp", "rna"]) {
            Some("rz") => mode::RZ,
            Some("rm") => mode::RM,
            Some("rp") => mode::RP,
            Some("rna") => mode::RNA,
            _ => mode::RN,
        };
        for (name, bit) in [("ftz", mode::FTZ), ("sat", mode::SAT), ("relu", mode::RELU), ("NaN", mode::NAN)]
        {
            if self.take(name) {
                m |= bit;
            }
        }
        m
    }

    /// Drops the modifiers of memory order, scope and caching, which change nothing here. True if one of
    /// them makes the access a strong one.
    pub(super) fn memory_order(&mut self) -> bool {
        let strong = self.pick(&["relaxed", "acquire", "release", "acq_rel", "volatile", "sc"]).is_some();
        self.take("weak");
        self.take("mmio");
        self.pick(&["cta", "cluster", "gpu", "sys"]);
        self.pick(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
        self.left.retain(|m| {
            !(m.starts_with("L1::evict")
                || m.starts_with("L2::evict")
                || *m == "L1::no_allocate"
                || matches!(*m, "L2::64B" | "L2::128B" | "L2::256B" | "unified"))
        });
        strong
    }

    /// Takes `.v2`, `.v4`, `.v8`.
    pub(super) fn vector(&mut self) -> usize {
        match self.pick(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }
}
