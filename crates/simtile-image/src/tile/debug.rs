//! Debug information.
//!
//! ```text
//! functions · padding(4) · first id of each function [u32] · ids · padding(8) · ids [u64]
//! entries · padding(4) · offset of each entry [u32] · entries
//! ```
//!
//! A function's first id is its own location, the others belong to its operations in order. Ids count from 1; 0 is "no
//! location". Entries name each other by id, in any order; depth and expanded size are limited.

use super::cursor::Cursor;
use super::tables::{Tables, Width, entries};
use super::{LIMITS, TileError};
use cutile_ir::bytecode::{BytecodeVersion, DebugTag};
use cutile_ir::ir::{
    DICompileUnit, DIFile, DILexicalBlock, DISubprogram, DebugInfoLoc, DebugScope, Location,
};
use std::cell::RefCell;
use std::collections::HashMap;

pub(super) struct Debug<'a> {
    /// Ids of each function.
    functions: Vec<Cursor<'a>>,
    entries: Vec<Cursor<'a>>,
    /// Locations that were resolved before, with what a clone takes.
    resolved: RefCell<HashMap<u64, (Location, usize)>>,
}

impl<'a> Debug<'a> {
    pub(super) fn read(section: Option<Cursor<'a>>, _tables: &Tables<'_>) -> Result<Self, TileError> {
        let mut debug =
            Self { functions: Vec::new(), entries: Vec::new(), resolved: RefCell::new(HashMap::new()) };
        let Some(mut c) = section else {
            return Ok(debug);
        };
        let count = c.count("functions with debug information", 4)?;
        c.align(4)?;
        let mut starts = Vec::with_capacity(count);
        for _ in 0..count {
            starts.push(c.u32("first debug id")? as usize);
        }
        let ids = c.count("debug ids", 8)?;
        c.align(8)?;
        for (i, &start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(ids);
            // Both are compared to the bytes that are left, so eight times either does not overflow.
            if start > ids || end > ids {
                let what = format!("a function's debug ids are {start} to {end} of {ids}");
                return Err(TileError::Malformed { offset: c.offset(), what });
            }
            debug.functions.push(c.part(start * 8, end * 8, "a function's debug ids")?);
        }
        c.window(ids * 8, "debug ids")?;
        let rest = c.left();
        // The table's padding counts from the start of the section, and so does this window's: both are multiples of
        // eight apart.
        debug.entries = entries(c.window(rest, "debug entries")?, "debug entries", Width::U32)?;
        Ok(debug)
    }

    /// The ids of a function by its number from 1; none for 0.
    pub(super) fn function(&self, number: u64, offset: usize) -> Result<Ids<'a>, TileError> {
        if number == 0 {
            return Ok(Ids { left: None });
        }
        usize::try_from(number - 1).ok().and_then(|i| self.functions.get(i)).map_or(
            Err(TileError::Index {
                offset,
                what: "debug information of function",
                index: number,
                len: self.functions.len(),
            }),
            |c| Ok(Ids { left: Some(c.clone()) }),
        )
    }

    /// The location with the next of `ids`. Where a list is too short, the rest has no location.
    pub(super) fn next(&self, ids: &mut Ids<'a>, tables: &Tables<'_>) -> Result<Location, TileError> {
        let Some(c) = ids.left.as_mut().filter(|c| !c.is_empty()) else {
            return Ok(Location::Unknown);
        };
        let offset = c.offset();
        let id = c.u64("debug id")?;
        if let Some((location, cost)) = self.resolved.borrow().get(&id) {
            tables.charge(*cost, offset)?;
            return Ok(location.clone());
        }
        let resolver = Resolver { entries: &self.entries, tables };
        let (location, cost) = resolver.location(id, offset, 0)?;
        tables.charge(cost, offset)?;
        self.resolved.borrow_mut().insert(id, (location.clone(), cost));
        Ok(location)
    }
}

/// The debug ids that a function has not used yet.
pub(super) struct Ids<'a> {
    left: Option<Cursor<'a>>,
}

impl Ids<'_> {
    /// No id may be left when the function has ended.
    pub(super) fn finish(&self) -> Result<(), TileError> {
        self.left.as_ref().map_or(Ok(()), |c| c.finish("the debug ids of a function's operations"))
    }
}

struct Resolver<'r, 'a> {
    entries: &'r [Cursor<'a>],
    tables: &'r Tables<'a>,
}

impl Resolver<'_, '_> {
    /// An entry's tag and fields. `offset` is where it was named.
    fn entry(&self, id: u64, offset: usize, depth: usize) -> Result<(u64, Cursor<'_>), TileError> {
        if depth >= LIMITS.nesting {
            return Err(TileError::Limit {
                offset,
                what: "levels of debug entries",
                value: depth as u64 + 1,
                limit: LIMITS.nesting as u64,
            });
        }
        let index = id.checked_sub(1).and_then(|i| usize::try_from(i).ok());
        let Some(entry) = index.and_then(|i| self.entries.get(i)) else {
            return Err(TileError::Index { offset, what: "debug entry", index: id, len: self.entries.len() });
        };
        let mut c = entry.clone();
        let tag = c.byte("debug tag")?;
        Ok((tag.into(), c))
    }

    fn location(&self, id: u64, offset: usize, depth: usize) -> Result<(Location, usize), TileError> {
        const UNKNOWN: u64 = DebugTag::Unknown as u64;
        const LOC: u64 = DebugTag::DILoc as u64;
        const CALL_SITE: u64 = DebugTag::CallSite as u64;
        const SUBPROGRAM: u64 = DebugTag::DISubprogram as u64;
        const BLOCK: u64 = DebugTag::DILexicalBlock as u64;
        if id == 0 {
            return Ok((Location::Unknown, 0));
        }
        let (tag, mut c) = self.entry(id, offset, depth)?;
        let tag_at = c.offset() - 1;
        match tag {
            UNKNOWN => Ok((Location::Unknown, 0)),
            LOC => {
                let (scope, cost) = self.scope(&mut c, depth + 1)?;
                let (filename, more) = self.string(&mut c)?;
                let line = line(&mut c)?;
                let column = line_or_column(&mut c, "column")?;
                c.finish("a debug location")?;
                let location = Location::DebugInfo(DebugInfoLoc { filename, line, column, scope });
                Ok((location, cost + more + 64))
            }
            CALL_SITE => {
                let at = c.offset();
                let callee = c.varint("callee's location")?;
                let (callee, callee_cost) = self.location(callee, at, depth + 1)?;
                let at = c.offset();
                let caller = c.varint("caller's location")?;
                let (caller, caller_cost) = self.location(caller, at, depth + 1)?;
                c.finish("a call site")?;
                let cost = callee_cost.saturating_add(caller_cost).saturating_add(256);
                // Charged here too: nested call sites can name the same location twice at each level.
                self.tables.charge(cost, offset)?;
                let location = Location::CallSite { callee: Box::new(callee), caller: Box::new(caller) };
                Ok((location, cost))
            }
            // A bare scope: its own place in its own file.
            SUBPROGRAM | BLOCK => {
                let (scope, cost) = self.scope_of(tag, c, depth)?;
                let (filename, line, column) = match &scope {
                    DebugScope::Subprogram(s) => (s.file.name.clone(), s.line, 0),
                    DebugScope::LexicalBlock(b) => (b.file.name.clone(), b.line, b.column),
                };
                let location = Location::DebugInfo(DebugInfoLoc { filename, line, column, scope });
                Ok((location, cost + 128))
            }
            value => Err(TileError::Value { offset: tag_at, what: "debug tag of a location", value }),
        }
    }

    fn scope(&self, c: &mut Cursor<'_>, depth: usize) -> Result<(DebugScope, usize), TileError> {
        let offset = c.offset();
        let id = c.varint("scope")?;
        let (tag, entry) = self.entry(id, offset, depth)?;
        self.scope_of(tag, entry, depth)
    }

    fn scope_of(&self, tag: u64, mut c: Cursor<'_>, depth: usize) -> Result<(DebugScope, usize), TileError> {
        const SUBPROGRAM: u64 = DebugTag::DISubprogram as u64;
        const BLOCK: u64 = DebugTag::DILexicalBlock as u64;
        let offset = c.offset() - 1;
        match tag {
            SUBPROGRAM => {
                let (file, file_cost) = self.file(&mut c, depth + 1)?;
                let line = line(&mut c)?;
                let (name, name_cost) = self.string(&mut c)?;
                let (linkage_name, linkage_cost) = self.string(&mut c)?;
                let (compile_unit, unit_cost) = self.compile_unit(&mut c, depth + 1)?;
                let scope_line = line_or_column(&mut c, "scope's line")?;
                let mut is_declaration = false;
                if self.tables.version >= BytecodeVersion::V13_5 {
                    let at = c.offset();
                    is_declaration = match c.varint("subprogram's flags")? {
                        0 => false,
                        1 => true,
                        value => {
                            let what = "flag word of a subprogram";
                            return Err(TileError::Value { offset: at, what, value });
                        }
                    };
                }
                c.finish("a subprogram")?;
                let cost = file_cost + name_cost + linkage_cost + unit_cost + 64;
                let scope =
                    DISubprogram { file, line, name, linkage_name, compile_unit, scope_line, is_declaration };
                Ok((DebugScope::Subprogram(scope), cost))
            }
            BLOCK => {
                let (scope, scope_cost) = self.scope(&mut c, depth + 1)?;
                let (file, file_cost) = self.file(&mut c, depth + 1)?;
                let line = line(&mut c)?;
                let column = line_or_column(&mut c, "column")?;
                c.finish("a lexical block")?;
                let block = DILexicalBlock { scope: Box::new(scope), file, line, column };
                Ok((DebugScope::LexicalBlock(block), scope_cost + file_cost + 256))
            }
            value => Err(TileError::Value { offset, what: "debug tag of a scope", value }),
        }
    }

    fn compile_unit(&self, c: &mut Cursor<'_>, depth: usize) -> Result<(DICompileUnit, usize), TileError> {
        let offset = c.offset();
        let id = c.varint("compile unit")?;
        let (tag, mut entry) = self.entry(id, offset, depth)?;
        if tag != DebugTag::DICompileUnit as u64 {
            let offset = entry.offset() - 1;
            return Err(TileError::Value { offset, what: "debug tag of a compile unit", value: tag });
        }
        let (file, cost) = self.file(&mut entry, depth + 1)?;
        entry.finish("a compile unit")?;
        Ok((DICompileUnit { file }, cost))
    }

    fn file(&self, c: &mut Cursor<'_>, depth: usize) -> Result<(DIFile, usize), TileError> {
        let offset = c.offset();
        let id = c.varint("file")?;
        let (tag, mut entry) = self.entry(id, offset, depth)?;
        if tag != DebugTag::DIFile as u64 {
            let offset = entry.offset() - 1;
            return Err(TileError::Value { offset, what: "debug tag of a file", value: tag });
        }
        let (name, name_cost) = self.string(&mut entry)?;
        let (directory, directory_cost) = self.string(&mut entry)?;
        entry.finish("a file")?;
        Ok((DIFile { name, directory }, name_cost + directory_cost))
    }

    fn string(&self, c: &mut Cursor<'_>) -> Result<(String, usize), TileError> {
        let offset = c.offset();
        let index = c.varint("string")?;
        let s = self.tables.string_at(index, offset, "string")?;
        Ok((s.to_owned(), s.len() + 48))
    }
}

fn line(c: &mut Cursor<'_>) -> Result<u32, TileError> {
    line_or_column(c, "line")
}

fn line_or_column(c: &mut Cursor<'_>, what: &'static str) -> Result<u32, TileError> {
    let offset = c.offset();
    let value = c.varint(what)?;
    u32::try_from(value).map_err(|_| TileError::Limit { offset, what, value, limit: u32::MAX.into() })
}
