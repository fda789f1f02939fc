//! Tile IR bytecode into [`cutile_ir::ir::Module`].
//!
//! [`read`] is the inverse of `cutile_ir::bytecode::write_bytecode_version`. The layout was taken from cutile-ir
//! 0.5.0: `src/bytecode/writer.rs` (sections, types, attributes, functions, debug information),
//! `src/bytecode/op_writer.rs` (operations), `src/bytecode/encoding.rs` (primitives), `src/bytecode/enums.rs`
//! (numbers) and `src/bytecode/debug_info.rs`. Versions 13.2 to 13.5 are read.
//!
//! # The input
//!
//! ```text
//! magic (8) · major · minor · tag (2)
//! { section id · length · [alignment · padding] · payload }*   in any order, each at most once
//! end marker
//! ```
//!
//! Strings, types and constants are tables; functions hold operations in order, which name values by number: a
//! function's arguments first, then every block argument and every result as it appears. A block's numbers are given
//! back at its end.
//!
//! # The module
//!
//! What bytecode does not hold is filled in so that writing the module gives the bytecode again:
//!
//! * the module's name is `module`;
//! * the integer attributes of operations have type `i32` where they fit, else `i64`;
//! * an attribute that has its default value is left out where the writer fills it in: `overflow` of `negi`,
//!   `rounding_mode` 5 of `exp` and `tanh`, `reduction` 0, `inbounds` that are all false, empty
//!   `optimization_hints` and `arg_attrs` of a 13.5 entry;
//! * a flag that stands for an attribute gives `Attribute::Bool(true)`;
//! * operations with several operand groups get `operandSegmentSizes`;
//! * the `DenseElements` of a constant have the result's type; their shape is empty if the data is one
//!   element for all (a splat), else the tile's. An element takes its type's whole bytes (three for `tf32`, one for
//!   `f4E2M1FN`), little-endian; `i1` takes a bit, lowest first, and a splat of it a byte that is not 0 for true;
//! * an integer attribute with a type of its own (an identity of `reduce`) has its bits as an unsigned number: -1 of
//!   `i32` is 4294967295;
//! * a location is `Location::DebugInfo` or `Location::CallSite`, never `FileLineCol`.
//!
//! Where the writer and NVIDIA's own reader differ, that one decides what is accepted, because it is what compiles
//! bytecode. Observed on `tileirdisasm` 13.4.92: the sizes of constant data above; integers must fit in their type;
//! float attributes of `f8E8M0FNU` and the like are a byte, which the writer writes as 64 bits (refused here).
//!
//! A module written by the same writer comes back byte for byte if its attributes were given in the order of the
//! layout (the string table remembers the order of first use).
//!
//! # No input can do harm
//!
//! Every count is checked against the bytes that are left before anything is allocated for it; nesting is limited to
//! 64 levels; what table entries expand to is charged to a budget that is linear in the input (see [`LIMITS`]). Nothing of
//! the input is kept. Errors name the byte and what is wrong.

mod attr;
mod body;
mod cursor;
mod debug;
mod error;
mod layout;
mod tables;
mod types;

pub use error::TileError;

use cursor::Cursor;
use cutile_ir::bytecode::{BytecodeVersion, MAGIC, NUM_SECTIONS, Section};
use cutile_ir::ir::{DenseElements, Global, Module, SymbolVisibility};
use tables::Tables;

/// What the reader accepts at most.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Levels of regions, attributes or debug scopes.
    pub nesting: usize,
    /// Dimensions of a shape, operands of a list in a type.
    pub rank: usize,
    /// Bytes of memory that any module may take.
    pub memory_base: usize,
    /// Bytes of memory that each byte of input may take on top of that.
    pub memory_per_byte: usize,
}

/// The limits of [`read`].
pub const LIMITS: Limits = Limits { nesting: 64, rank: 64, memory_base: 64 << 20, memory_per_byte: 512 };

/// The oldest version that [`read`] knows.
pub const OLDEST: BytecodeVersion = BytecodeVersion::V13_2;
/// The newest version that [`read`] knows.
pub const NEWEST: BytecodeVersion = BytecodeVersion::V13_5;

/// Whether `input` starts as Tile bytecode does.
pub fn is_tile(input: &[u8]) -> bool {
    input.starts_with(&MAGIC)
}

/// The version in the header of `input`, with its preview bit.
pub fn version(input: &[u8]) -> Result<BytecodeVersion, TileError> {
    header(&mut Cursor::new(input))
}

/// Reads a whole module. Keeps nothing of `input`.
pub fn read(input: &[u8]) -> Result<Module, TileError> {
    let mut cursor = Cursor::new(input);
    let version = header(&mut cursor)?.without_preview();
    let sections = Sections::read(&mut cursor)?;
    let tables = Tables::read(&sections, version, input.len())?;
    let mut module = Module::new("module");
    if let Some(mut section) = sections.get(Section::Producer) {
        module.producer = Some(tables.string(&mut section, "producer")?);
        section.finish("the producer")?;
    }
    if let Some(section) = sections.get(Section::Global) {
        read_globals(section, &tables, &mut module)?;
    }
    let debug = debug::Debug::read(sections.get(Section::Debug), &tables)?;
    if let Some(section) = sections.get(Section::Func) {
        body::read_functions(section, &tables, &debug, &mut module)?;
    }
    Ok(module)
}

fn header(cursor: &mut Cursor<'_>) -> Result<BytecodeVersion, TileError> {
    match cursor.bytes(MAGIC.len(), "magic number") {
        Ok(magic) if magic == MAGIC => {}
        _ => return Err(TileError::NotTile),
    }
    let major = cursor.byte("major version")?;
    let minor = cursor.byte("minor version")?;
    let tag = cursor.u16("version tag")?;
    let found = BytecodeVersion { major, minor, tag };
    if !BytecodeVersion::SUPPORTED.contains(&found.without_preview())
        || (found.is_preview() && found.without_preview() < BytecodeVersion::V13_5)
    {
        return Err(TileError::Version { found, oldest: OLDEST, newest: NEWEST });
    }
    Ok(found)
}

/// The payloads by section id.
struct Sections<'a> {
    payloads: [Option<Cursor<'a>>; NUM_SECTIONS as usize],
}

impl<'a> Sections<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, TileError> {
        let mut payloads: [Option<Cursor<'a>>; NUM_SECTIONS as usize] = Default::default();
        loop {
            let offset = cursor.offset();
            let byte = cursor.byte("section id")?;
            let id = byte & 0x7F;
            if byte == Section::EndOfBytecode as u8 {
                cursor.finish("the end marker")?;
                return Ok(Self { payloads });
            }
            if id == 0 || id >= NUM_SECTIONS {
                return Err(TileError::Value { offset, what: "section id", value: id.into() });
            }
            let length = cursor.length("section length")?;
            if byte & 0x80 != 0 {
                let at = cursor.offset();
                let alignment = cursor.varint("section alignment")?;
                if !alignment.is_power_of_two() || alignment > 4096 {
                    return Err(TileError::Value { offset: at, what: "section alignment", value: alignment });
                }
                // At most 4096, so it fits. Padding counts from the start of the input.
                let position = cursor.offset();
                cursor.padding(position.next_multiple_of(alignment as usize) - position)?;
            }
            let payload = cursor.window(length, "section")?;
            if payloads[usize::from(id)].replace(payload).is_some() {
                let what = format!("section {id} appears twice");
                return Err(TileError::Malformed { offset, what });
            }
        }
    }

    fn get(&self, section: Section) -> Option<Cursor<'a>> {
        self.payloads[section as usize].clone()
    }
}

fn read_globals(mut c: Cursor<'_>, tables: &Tables<'_>, module: &mut Module) -> Result<(), TileError> {
    let new = tables.version >= BytecodeVersion::V13_3;
    let count = c.count("globals", if new { 6 } else { 4 })?;
    for _ in 0..count {
        let sym_name = tables.string(&mut c, "global's name")?;
        let element_type = tables.ty(&mut c, "global's type", 1)?;
        let value: DenseElements = tables.dense(&mut c, element_type)?;
        let alignment = c.varint("global's alignment")?;
        let mut symbol_visibility = SymbolVisibility::Public;
        let mut constant = false;
        if new {
            let offset = c.offset();
            symbol_visibility = match c.byte("global's visibility")? {
                0 => SymbolVisibility::Public,
                1 => SymbolVisibility::Private,
                v => return Err(TileError::Value { offset, what: "symbol visibility", value: v.into() }),
            };
            let offset = c.offset();
            constant = match c.varint("global's flags")? {
                0 => false,
                1 => true,
                value => return Err(TileError::Value { offset, what: "flag word of a global", value }),
            };
        }
        module.globals.push(Global { sym_name, value, alignment, constant, symbol_visibility });
    }
    c.finish("the globals")
}
