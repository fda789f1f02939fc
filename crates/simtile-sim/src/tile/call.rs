//! Calls of functions that a tile library supplies: `preview$call`.
//!
//! Bytecode has the name of such a function and no more; its code is linked later by other tools. The interpreter therefore runs
//! a Rust function that is registered under that name ([`TileFunctions`]). What it returns is checked against the types of
//! the operation's results; what it does wrong ends the kernel with [`FaultReason::StandIn`], never the process.
//!
//! Tokens order the call and are not passed. The function may run on several blocks at once; no lock is held meanwhile.

use super::data::{Data, each_width};
use super::elementwise::mask;
use super::op::{Call, Function};
use super::run::{Block, Val};
use super::types::{Elem, TileTy, count};
use crate::check::Touch;
use crate::exec::{FaultReason, FindingKind};
use crate::memory::Window;
use crate::modules::StandInError;
use smallvec::SmallVec;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The type of a tile: its elements and its extents, outermost first. A scalar has no extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileType {
    /// The elements.
    pub element: Elem,
    /// The extents.
    pub shape: Vec<usize>,
}

impl TileType {
    /// A type.
    pub fn new(element: Elem, shape: &[usize]) -> Self {
        Self { element, shape: shape.to_vec() }
    }

    pub(super) fn of(ty: &TileTy) -> Self {
        Self::new(ty.elem, &ty.shape)
    }
}

/// As errors write it: `F32[2, 4]`.
impl fmt::Display for TileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.element {
            Elem::Scalar(scalar) => write!(f, "{scalar:?}{:?}", self.shape),
            Elem::Pointer(pointee) => write!(f, "pointer to {pointee:?}{:?}", self.shape),
        }
    }
}

/// A tile: its type and its elements, dense and row-major.
///
/// An element is kept as its bit pattern in the smallest of 1, 2, 4 and 8 bytes that holds it: `i1` is a byte of 0 or 1,
/// elements of 4 bits are the lower half of a byte, `tf32` lies in 4 bytes, a pointer is a device address.
#[derive(Clone, Debug)]
pub struct TileValue {
    ty: Arc<TileType>,
    data: Arc<Data>,
}

impl TileValue {
    /// A tile of bit patterns.
    ///
    /// # Errors
    /// More or fewer of them than the type has elements, or one that is wider than an element.
    pub fn from_bits(ty: &TileType, bits: impl IntoIterator<Item = u64>) -> Result<Self, String> {
        let expected = elements(ty)?;
        // One more than fits is enough to know that there are too many.
        let bits: Vec<u64> = bits.into_iter().take(expected.saturating_add(1)).collect();
        if bits.len() != expected {
            let found = if bits.len() > expected { "more".to_owned() } else { bits.len().to_string() };
            return Err(format!("{found} elements for a tile {ty}, which has {expected}"));
        }
        let widest = mask(ty.element.bits());
        if let Some((i, wide)) = bits.iter().enumerate().find(|(_, bits)| **bits & !widest != 0) {
            return Err(format!("element {i} of a tile {ty} is {wide:#x}; the largest is {widest:#x}"));
        }
        Ok(Self { ty: Arc::new(ty.clone()), data: Arc::new(Data::collect(ty.element, bits.into_iter())) })
    }

    /// A tile of values of the size that its elements are kept in: `f32` or `u32` for elements of `f32`, for example.
    ///
    /// # Errors
    /// Values of another size, or as [`TileValue::from_bits`].
    pub fn from_values<T: bytemuck::NoUninit>(ty: &TileType, values: &[T]) -> Result<Self, String> {
        let size = ty.element.bytes();
        if size_of::<T>() != size {
            return Err(format!(
                "values of {} bytes for a tile {ty}, whose elements have {size}",
                size_of::<T>()
            ));
        }
        let bytes: &[u8] = bytemuck::cast_slice(values);
        Self::from_bits(
            ty,
            bytes.chunks_exact(size).map(|b| b.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b))),
        )
    }

    /// Its type.
    pub fn tile_type(&self) -> &TileType {
        &self.ty
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether it has no elements. A tile has at least one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bit patterns of all elements.
    pub fn bits(&self) -> impl Iterator<Item = u64> + '_ {
        self.data.iter()
    }

    /// The elements as values of the size that they are kept in.
    ///
    /// # Errors
    /// Values of another size.
    pub fn values<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T], String> {
        let size = self.ty.element.bytes();
        let wrong = || {
            format!("a tile {} read as values of {} bytes; its elements have {size}", self.ty, size_of::<T>())
        };
        if size_of::<T>() != size {
            return Err(wrong());
        }
        each_width!(&*self.data, v => bytemuck::try_cast_slice(v.as_slice()).map_err(|_| wrong()))
    }
}

/// The number of elements of a type that anybody may have made.
fn elements(ty: &TileType) -> Result<usize, String> {
    ty.shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= super::types::MAX_TILE_ELEMENTS)
        .ok_or_else(|| format!("a tile {ty}; the limit is {} elements", super::types::MAX_TILE_ELEMENTS))
}

/// A constant argument of a call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TileConstant {
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
    /// An element type.
    Element(Elem),
    /// The type of a tile.
    Type(TileType),
}

/// What a registered function sees of a call.
pub struct TileCall<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// The name that it was called by.
    pub function: &'a str,
    /// The tiles that are passed, tokens left out.
    pub operands: &'a [TileValue],
    /// The constant arguments.
    pub constants: &'a [TileConstant],
    /// The types of the tiles to return, tokens left out.
    pub results: &'a [TileType],
    /// The block that calls.
    pub block: [u32; 3],
    /// The number of blocks.
    pub grid: [u32; 3],
    inside: &'a Block<'a>,
    window: RefCell<Window>,
    reported: Cell<bool>,
}

impl TileCall<'_> {
    /// Reads global memory, checked as a kernel's load is: bounds, lifetime, bytes that nobody wrote, races.
    ///
    /// # Errors
    /// The refused access.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), StandInError> {
        let (bytes, context) = (out.len() as u64, self.inside.context);
        let mut window = self.window.borrow_mut();
        let (backing, offset) = window.access(&context.memory, address, bytes, Touch::Read)?;
        backing.read(offset, out);
        if context.check_uninitialised && !backing.is_written(offset, bytes) && !self.reported.replace(true) {
            let first = backing.first_unwritten(offset, bytes).unwrap_or(offset);
            let label = window.allocation().and_then(|allocation| allocation.label());
            let address = address + (first - offset);
            self.inside.report(FindingKind::UninitialisedRead { address, bytes, space: "global", label });
        }
        Ok(())
    }

    /// Writes global memory, checked as a kernel's store is.
    ///
    /// # Errors
    /// The refused access.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), StandInError> {
        let mut window = self.window.borrow_mut();
        let (backing, offset) =
            window.access(&self.inside.context.memory, address, bytes.len() as u64, Touch::Write)?;
        backing.write(offset, bytes);
        backing.mark_written(offset, bytes.len() as u64);
        Ok(())
    }
}

/// Rust functions that run where Tile code calls a library's, by name.
#[derive(Clone, Default)]
pub struct TileFunctions {
    functions: BTreeMap<String, Function>,
}

impl TileFunctions {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `function` for calls of `symbol`, instead of the one that it had.
    pub fn register(
        &mut self,
        symbol: &str,
        function: impl Fn(&TileCall<'_>) -> Result<Vec<TileValue>, StandInError> + Send + Sync + 'static,
    ) {
        self.insert(symbol, Arc::new(function));
    }

    /// The same; gives the one before.
    pub(crate) fn insert(&mut self, symbol: &str, function: Function) -> Option<Function> {
        self.functions.insert(symbol.to_owned(), function)
    }

    pub(super) fn get(&self, symbol: &str) -> Option<&Function> {
        self.functions.get(symbol)
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("panicked: {text}"),
        None => "panicked".to_owned(),
    }
}

impl Block<'_> {
    /// Calls a registered function; gives the operation's results, tokens among them.
    pub(super) fn call(
        &self,
        call: &Call,
        values: SmallVec<[Val; 6]>,
    ) -> Result<SmallVec<[Val; 3]>, FaultReason> {
        let wrong = |problem: String| FaultReason::StandIn { symbol: call.symbol.clone(), problem };
        // A missing one was refused at load.
        let Some(function) = &call.function else { return Err(wrong("is not registered".to_owned())) };
        let operands: Vec<TileValue> = call
            .operands
            .iter()
            .zip(values)
            .map(|(ty, value)| TileValue { ty: ty.clone(), data: value.shared() })
            .collect();
        let seen = TileCall {
            kernel: self.kernel_name(),
            function: &call.symbol,
            operands: &operands,
            constants: &call.constants,
            results: &call.expected,
            block: self.id(),
            grid: self.grid(),
            inside: self,
            window: RefCell::new(Window::of(call.window as usize + 1)),
            reported: Cell::new(false),
        };
        let returned = match catch_unwind(AssertUnwindSafe(|| function(&seen))) {
            Ok(Ok(returned)) => returned,
            Ok(Err(StandInError::Memory(fault))) => return Err(FaultReason::Memory(fault)),
            Ok(Err(StandInError::Other(text))) => {
                return Err(FaultReason::Assert(format!("{}: {text}", call.symbol)));
            }
            Err(payload) => return Err(wrong(panic_text(&*payload))),
        };
        if returned.len() != call.expected.len() {
            return Err(wrong(format!(
                "returned {} tiles; the operation has {} tiles as results",
                returned.len(),
                call.expected.len()
            )));
        }
        for (i, (value, ty)) in returned.iter().zip(&call.expected).enumerate() {
            if *value.ty != *ty {
                return Err(wrong(format!(
                    "returned {} as tile {i}; the operation's result is {ty}",
                    value.ty
                )));
            }
            // The types are the same, and a value has the elements of its type.
            debug_assert_eq!(value.len(), count(&ty.shape));
        }
        let mut tiles = returned.into_iter();
        Ok(call
            .results
            .iter()
            .map(|is_tile| match is_tile.then(|| tiles.next()).flatten() {
                Some(tile) => Val::Tile(tile.data),
                None => Val::Token,
            })
            .collect())
    }
}
