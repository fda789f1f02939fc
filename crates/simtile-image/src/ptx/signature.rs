//! What a launch has to know about an entry.

use super::ast::{Function, FunctionAttributes, FunctionKind, Module, Pointer, Type, Variable};

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Name.
    pub name: String,
    /// Element type.
    pub ty: Type,
    /// Offset in the parameter buffer, bytes.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Alignment in bytes.
    pub align: u32,
    /// Whether it is an array (a struct passed by value).
    pub array: bool,
    /// `.ptr`.
    pub pointer: Option<Pointer>,
}

/// An entry, without its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// Name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Directives.
    pub attributes: FunctionAttributes,
    /// Line of its name.
    pub line: u32,
}

impl Module {
    /// The signatures of all entries that have a body, in order.
    pub fn signatures(&self) -> Vec<Signature> {
        self.entries().map(Function::signature).collect()
    }

    /// The entries that have a body, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|f| f.kind == FunctionKind::Entry && f.body.is_some())
    }
}

impl Function {
    /// Name, parameters and directives.
    pub fn signature(&self) -> Signature {
        let params = layout(&self.params);
        Signature { name: self.name.clone(), params, attributes: self.attributes, line: self.line }
    }
}

/// Lays parameters out as the driver does: in order, each at its alignment.
pub(super) fn layout(params: &[Variable]) -> Vec<Param> {
    let mut end = 0u64;
    params
        .iter()
        .map(|p| {
            // The parser bounds sizes, so neither sum can overflow.
            let (bytes, align) = (p.bytes().unwrap_or(0), p.alignment());
            let offset = end.next_multiple_of(u64::from(align).max(1));
            end = offset + bytes;
            Param {
                name: p.name.clone(),
                ty: p.ty,
                offset,
                bytes,
                align,
                array: !p.dims.is_empty(),
                pointer: p.pointer,
            }
        })
        .collect()
}
