//! `.nv.info`, `.nv.info.NAME` and `.nv.compat`: lists of attributes.
//!
//! An attribute is a byte of format, a byte of meaning, and two bytes: unused (format 1), a byte (2), a 16-bit number
//! (3), or the length of what follows (4). The meanings were found by compiling PTX that differs in one directive.

use super::{CubinEntry, Sections};
use crate::Param;
use crate::bytes::{Bytes, FormatError, Problem, error};

/// `.maxntid`: three numbers.
const MAX_THREADS: u8 = 0x05;
/// `.reqntid`: three numbers.
const REQUIRED_THREADS: u8 = 0x10;
/// Symbol, bytes of stack.
const MIN_STACK: u8 = 0x12;
/// A parameter: index, ordinal (16 bits), offset (16), flags with the size from bit 18 on.
const PARAM: u8 = 0x17;
/// Size of the parameter buffer, 16 bits.
const PARAM_BYTES: u8 = 0x19;
/// Symbol, registers.
const REGISTERS: u8 = 0x2F;
/// `.reqnctapercluster`: three numbers.
const CLUSTER: u8 = 0x3D;
/// `.explicitcluster`.
const EXPLICIT_CLUSTER: u8 = 0x3E;
/// `.maxclusterrank`.
const MAX_CLUSTER: u8 = 0x3F;
/// A parameter in kernels with large buffers or hidden parameters: index, ordinal (16), offset (16), size (16),
/// flags (16).
const PARAM_V2: u8 = 0x45;
/// In `.nv.compat`: a byte, 1 for `sm_90a` and its like.
const COMPAT_ARCHITECTURE: u8 = 0x09;

/// One attribute.
struct Attribute<'a> {
    id: u8,
    /// The two bytes after format and meaning.
    short: u16,
    /// What follows, for format 4.
    data: Option<Bytes<'a>>,
    offset: u64,
}

impl Attribute<'_> {
    fn u32(&self, at: u64, what: &'static str) -> Result<u32, FormatError> {
        match self.data {
            Some(d) => d.u32(at, what),
            None => Err(error(self.offset, what, Problem::Malformed("the attribute has no data"))),
        }
    }

    fn u16(&self, at: u64, what: &'static str) -> Result<u16, FormatError> {
        match self.data {
            Some(d) => d.u16(at, what),
            None => Err(error(self.offset, what, Problem::Malformed("the attribute has no data"))),
        }
    }

    fn shape(&self, what: &'static str) -> Result<[u32; 3], FormatError> {
        Ok([self.u32(0, what)?, self.u32(4, what)?, self.u32(8, what)?])
    }
}

/// Calls `f` for every attribute of a section.
fn each<'a>(
    section: Bytes<'a>,
    mut f: impl FnMut(Attribute<'a>) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let mut at = 0;
    while at < section.len() {
        let offset = section.offset(at);
        let format = section.u8(at, "attribute's format")?;
        let id = section.u8(at + 1, "attribute")?;
        let short = section.u16(at + 2, "attribute's value")?;
        at += 4;
        let data = match format {
            1..=3 => None,
            4 => {
                let data = section.part(at, short.into(), "attribute's data")?;
                at += u64::from(short);
                Some(data)
            }
            v => {
                let problem = Problem::Value { found: v.into(), expected: "1 to 4" };
                return Err(error(offset, "attribute's format", problem));
            }
        };
        f(Attribute { id, short, data, offset })?;
    }
    Ok(())
}

/// Reads `.nv.info.NAME` of a kernel.
pub(super) fn kernel(section: Bytes<'_>, entry: &mut CubinEntry) -> Result<(), FormatError> {
    // (ordinal, offset, size)
    let mut params: Vec<(u16, u16, u32)> = Vec::new();
    each(section, |a| {
        match a.id {
            MAX_THREADS => entry.max_block = Some(a.shape("largest block")?),
            REQUIRED_THREADS => entry.required_block = Some(a.shape("required block")?),
            CLUSTER => entry.required_cluster = Some(a.shape("required cluster")?),
            MAX_CLUSTER => entry.max_cluster_blocks = Some(a.u32(0, "largest cluster")?),
            EXPLICIT_CLUSTER => entry.explicit_cluster = true,
            PARAM_BYTES => entry.param_bytes = Some(a.short.into()),
            PARAM => {
                let size = a.u32(8, "parameter")? >> 18;
                params.push((a.u16(4, "parameter")?, a.u16(6, "parameter")?, size));
            }
            PARAM_V2 => {
                let size = a.u16(8, "parameter")?.into();
                params.push((a.u16(4, "parameter")?, a.u16(6, "parameter")?, size));
            }
            _ => {}
        }
        Ok(())
    })?;
    params.sort_unstable();
    let malformed = |what| error(section.offset(0), "parameters of a kernel", Problem::Malformed(what));
    if params.iter().enumerate().any(|(i, p)| usize::from(p.0) != i) {
        return Err(malformed("their numbers are not 0, 1, 2 and so on"));
    }
    let mut end = 0;
    for &(_, offset, size) in &params {
        let offset = u64::from(offset);
        if offset < end {
            return Err(malformed("they overlap or are out of order"));
        }
        end = offset + u64::from(size);
        if let Some(limit) = entry.param_bytes
            && end > limit.into()
        {
            let problem = Problem::Beyond { end, limit: limit.into() };
            return Err(error(section.offset(0), "parameter of a kernel", problem));
        }
    }
    // A kernel with a buffer but no records: nothing is known. With neither: no parameters.
    if !params.is_empty() || entry.param_bytes.unwrap_or(0) == 0 {
        let params = params.into_iter().map(|(_, offset, size)| Param {
            name: None,
            offset: offset.into(),
            size: size.into(),
            align: None,
            pointer: None,
        });
        entry.params = Some(params.collect());
    }
    Ok(())
}

/// Reads `.nv.info`, whose attributes name kernels by symbol.
pub(super) fn module(
    section: Bytes<'_>,
    entry_of: impl Fn(u64) -> Option<usize>,
    entries: &mut [CubinEntry],
) -> Result<(), FormatError> {
    each(section, |a| {
        if !matches!(a.id, REGISTERS | MIN_STACK) {
            return Ok(());
        }
        let symbol = a.u32(0, "symbol of an attribute")?;
        let value = a.u32(4, "value of an attribute")?;
        if let Some(entry) = entry_of(symbol.into()).and_then(|i| entries.get_mut(i)) {
            match a.id {
                REGISTERS => entry.registers = Some(value),
                _ => entry.local_bytes = Some(value),
            }
        }
        Ok(())
    })
}

/// Whether `.nv.compat` says that the code runs on its own architecture only.
pub(super) fn is_architecture_specific(sections: &Sections<'_>) -> Result<bool, FormatError> {
    let mut specific = false;
    for section in sections.iter().filter(|s| s.name == ".nv.compat") {
        each(section.data, |a| {
            specific |= a.id == COMPAT_ARCHITECTURE && a.short.to_le_bytes()[0] == 1;
            Ok(())
        })?;
    }
    Ok(specific)
}
