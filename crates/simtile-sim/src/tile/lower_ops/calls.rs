//! Calls of functions that a tile library supplies.

use super::super::call::{TileConstant, TileType};
use super::super::op::Call;
use super::super::types::convert;
use super::{Elem, Fail, Lower, Op, Ty, Types, find, text};
use crate::exec::MissingFunction;
use cutile_ir::ir::{Attribute, Operation, PreviewConstArg, Type};
use std::sync::Arc;

/// The type of a value that is passed or returned; `None` is a token.
fn passed(what: &str, i: usize, ty: &Ty) -> Result<Option<TileType>, Fail> {
    match ty {
        Ty::Tile(tile) => Ok(Some(TileType::of(tile))),
        Ty::Token => Ok(None),
        other => Err(format!("{what} {i} is {other:?}; a call takes and gives tiles and tokens").into()),
    }
}

fn constant(argument: &Attribute) -> Result<TileConstant, Fail> {
    let Attribute::PreviewConstArg(argument) = argument else {
        return Err(format!("constant argument {argument:?} is no number, text or type").into());
    };
    Ok(match argument {
        PreviewConstArg::Int(value) => TileConstant::Int(*value),
        PreviewConstArg::Str(text) => TileConstant::Text(text.clone()),
        PreviewConstArg::Datatype(Type::Scalar(scalar)) => TileConstant::Element(Elem::Scalar(*scalar)),
        PreviewConstArg::Datatype(Type::Pointer(to)) => TileConstant::Element(Elem::Pointer(to.pointee)),
        PreviewConstArg::Datatype(ty) => match convert(ty)? {
            Ty::Tile(tile) => TileConstant::Type(TileType::of(&tile)),
            other => return Err(Fail::unsupported(format!("a constant argument of the type {other:?}"))),
        },
    })
}

impl Lower<'_> {
    /// `preview$call`. Notes a function that nobody registered.
    pub(super) fn call(&mut self, op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
        let symbol = text(op, "callee")?;
        if symbol.is_empty() {
            return Err("attribute callee is empty".into());
        }
        let constants = match find(op, "const_args") {
            Some(Attribute::Array(arguments)) => arguments.iter().map(constant).collect::<Result<_, _>>()?,
            Some(other) => return Err(format!("attribute const_args is {other:?}, not an array").into()),
            None => return Err("attribute const_args is missing".into()),
        };
        let mut tiles = Vec::new();
        for (i, ty) in operands.iter().enumerate() {
            tiles.extend(passed("operand", i, ty)?.map(Arc::new));
        }
        let (mut expected, mut are_tiles) = (Vec::new(), Vec::new());
        for (i, ty) in results.iter().enumerate() {
            let ty = passed("result", i, ty)?;
            are_tiles.push(ty.is_some());
            expected.extend(ty);
        }
        let function = self.functions.get(symbol).cloned();
        if function.is_none() && self.missing.iter().all(|missing| missing.symbol != symbol) {
            let site = self.sites.last();
            self.missing.push(MissingFunction {
                symbol: symbol.to_owned(),
                kernel: self.entry_name.to_owned(),
                operation: site.map_or(0, |site| site.number),
                source: site.and_then(|site| site.source.clone()),
            });
        }
        Ok(Op::Call(Box::new(Call {
            symbol: symbol.to_owned(),
            function,
            constants,
            operands: tiles,
            expected,
            results: are_tiles,
            window: self.window(),
        })))
    }
}
