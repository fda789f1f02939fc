//! Section headers, their names, and the symbol table.

use super::Header;
use crate::bytes::{Bytes, FormatError, Problem, error};

pub(super) const SHT_NOBITS: u32 = 8;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_REL: u32 = 9;
const SHT_SYMTAB_SHNDX: u32 = 18;
const SHN_LORESERVE: u16 = 0xFF00;
const SHN_XINDEX: u16 = 0xFFFF;

/// One section.
pub(super) struct Section<'a> {
    pub(super) name: &'a str,
    pub(super) kind: u32,
    /// Its bytes; empty for sections without any in the file.
    pub(super) data: Bytes<'a>,
    pub(super) size: u64,
    pub(super) info: u32,
    link: u32,
    entry_size: u64,
    /// Where its header is.
    offset: u64,
}

/// One symbol.
pub(super) struct Symbol<'a> {
    pub(super) name: &'a str,
    pub(super) kind: u8,
    pub(super) other: u8,
    /// Index of its section, 0 if it has none.
    pub(super) section: u64,
    pub(super) value: u64,
    pub(super) size: u64,
    /// Where it is in the image.
    pub(super) offset: u64,
}

pub(super) struct Sections<'a> {
    all: Vec<Section<'a>>,
}

impl<'a> Sections<'a> {
    pub(super) fn parse(image: Bytes<'a>, header: &Header) -> Result<Self, FormatError> {
        if header.sections_at == 0 {
            let problem = Problem::Malformed("there are none");
            return Err(error(40, "section headers", problem));
        }
        // Counts that do not fit in the file header are in the first section header.
        let first = image.part(header.sections_at, 64, "first section header")?;
        let count = match header.section_count {
            0 => first.u64(32, "number of section headers")?,
            n => n.into(),
        };
        let names = match header.section_names {
            SHN_XINDEX => first.u32(40, "index of the section names")?.into(),
            n => u64::from(n),
        };
        let table = image.part(header.sections_at, count.saturating_mul(64), "section headers")?;
        // The table lies inside the image, so this cannot be large.
        let mut all = Vec::with_capacity(count as usize);
        let mut name_offsets = Vec::with_capacity(count as usize);
        for i in 0..count {
            let h = table.part(i * 64, 64, "section header")?;
            name_offsets.push(h.u32(0, "section's name")?);
            let kind = h.u32(4, "section's type")?;
            let size = h.u64(32, "section's size")?;
            // The first header is not a section; its size may be the count of headers.
            let data = if kind == SHT_NOBITS || kind == 0 {
                image.part(0, 0, "section")?
            } else {
                image.part(h.u64(24, "section's offset")?, size, "section")?
            };
            all.push(Section {
                name: "",
                kind,
                data,
                size,
                info: h.u32(44, "section's info")?,
                link: h.u32(40, "section's link")?,
                entry_size: h.u64(56, "size of a section's entries")?,
                offset: h.offset(0),
            });
        }
        let mut sections = Self { all };
        let names = sections.strings(names, header.sections_at, "section names")?;
        for (section, at) in sections.all.iter_mut().zip(name_offsets) {
            section.name = text(names, at, "section's name")?;
        }
        sections.check_tables()?;
        Ok(sections)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Section<'a>> {
        self.all.iter()
    }

    pub(super) fn get(&self, index: u64) -> Option<&Section<'a>> {
        if index == 0 {
            return None;
        }
        usize::try_from(index).ok().and_then(|i| self.all.get(i))
    }

    /// The string table with this index. `offset` is where it was named.
    fn strings(&self, index: u64, offset: u64, what: &'static str) -> Result<Bytes<'a>, FormatError> {
        match self.get(index) {
            Some(s) if s.kind == SHT_STRTAB => Ok(s.data),
            Some(s) => {
                let problem = Problem::Value { found: s.kind.into(), expected: "a string table" };
                Err(error(s.offset, what, problem))
            }
            None => {
                let limit = (self.all.len() as u64).saturating_sub(1);
                Err(error(offset, what, Problem::Limit { value: index, limit }))
            }
        }
    }

    /// Tables must hold whole entries, and name other sections that exist.
    fn check_tables(&self) -> Result<(), FormatError> {
        for s in &self.all {
            let least = match s.kind {
                SHT_SYMTAB | SHT_RELA => 24,
                SHT_REL => 16,
                SHT_SYMTAB_SHNDX => 4,
                _ => continue,
            };
            if s.entry_size != least {
                let expected = "24 for symbols and RELA, 16 for REL, 4 for section indices";
                let problem = Problem::Value { found: s.entry_size, expected };
                return Err(error(s.offset, "size of a section's entries", problem));
            }
            if s.size % least != 0 {
                let problem = Problem::Malformed("the size is not a multiple of an entry's");
                return Err(error(s.offset, "table section", problem));
            }
            if u64::from(s.link) >= self.all.len() as u64 {
                let limit = (self.all.len() as u64).saturating_sub(1);
                let problem = Problem::Limit { value: s.link.into(), limit };
                return Err(error(s.offset, "section's link", problem));
            }
        }
        Ok(())
    }

    /// All symbols; none if there is no table.
    pub(super) fn symbols(&self) -> Result<Vec<Symbol<'a>>, FormatError> {
        let mut tables = self.all.iter().filter(|s| s.kind == SHT_SYMTAB);
        let Some(table) = tables.next() else { return Ok(Vec::new()) };
        if let Some(second) = tables.next() {
            let problem = Problem::Malformed("there are two symbol tables");
            return Err(error(second.offset, "section", problem));
        }
        let names = self.strings(table.link.into(), table.offset, "symbol names")?;
        let extended = self.all.iter().find(|s| s.kind == SHT_SYMTAB_SHNDX).map(|s| s.data);
        let count = table.size / 24;
        let mut symbols = Vec::with_capacity(count as usize);
        for i in 0..count {
            let s = table.data.part(i * 24, 24, "symbol")?;
            let section = match s.u16(6, "symbol's section")? {
                SHN_XINDEX => match extended {
                    Some(x) => x.u32(i * 4, "symbol's section")?.into(),
                    None => {
                        let problem = Problem::Malformed("its section is in a table that is missing");
                        return Err(error(s.offset(6), "symbol", problem));
                    }
                },
                n if n >= SHN_LORESERVE => 0,
                n => u64::from(n),
            };
            if section >= self.all.len() as u64 {
                let limit = self.all.len() as u64 - 1;
                let problem = Problem::Limit { value: section, limit };
                return Err(error(s.offset(6), "symbol's section", problem));
            }
            symbols.push(Symbol {
                name: text(names, s.u32(0, "symbol's name")?, "symbol's name")?,
                kind: s.u8(4, "symbol's type")? & 0xF,
                other: s.u8(5, "symbol's flags")?,
                section,
                value: s.u64(8, "symbol's value")?,
                size: s.u64(16, "symbol's size")?,
                offset: s.offset(0),
            });
        }
        Ok(symbols)
    }
}

fn text<'a>(names: Bytes<'a>, at: u32, what: &'static str) -> Result<&'a str, FormatError> {
    // A table of no bytes has only the empty name.
    if names.len() == 0 && at == 0 {
        return Ok("");
    }
    std::str::from_utf8(names.c_str(at.into(), what)?)
        .map_err(|_| error(names.offset(at.into()), what, Problem::Malformed("it is not UTF-8")))
}
