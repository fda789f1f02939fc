//! Loads, stores and atomics: through views and through pointers.
//!
//! An access is cut into runs of consecutive addresses. Each run is checked (mapped, alive, inside one allocation,
//! written before) and copied in one go.
//!
//! Operations of a block run in program order, which is one of the orders that tokens allow. Between blocks, weak and
//! relaxed accesses are relaxed atomics and the other orders add fences; scopes are all treated as the widest.
//!
//! * Outside of a tensor, loads through a view give its padding value and stores do nothing. Where the module leaves the value
//!   open (no padding, or a masked-out pointer without one), floats are NaN and integers `0x5a…`, so that
//!   using them shows.
//! * `i1` is a byte in memory; anything but 0 loads as 1. Elements of 4 bits: [`super::nibbles`]; memories of all devices:
//!   [`super::multimem`].

use super::data::Data;
use super::elementwise::{mask, signed};
use super::float::{self, Overflow, Round, encode};
use super::op::{AtomicMode, Order, ViewAccess};
use super::run::{Block, TensorVal, Val};
use super::types::{Cut, Elem, MAX_RANK, Shape};
use crate::check::Touch;
use crate::exec::{FaultReason, FindingKind};
use crate::memory::{FaultKind, MemoryFault};
use cutile_ir::ir::{PaddingValue, ScalarType};
use smallvec::SmallVec;
use std::sync::atomic::{Ordering, fence};

/// What a load gives where nothing says what it should give.
pub(super) fn unspecified(scalar: ScalarType) -> u64 {
    match scalar {
        ScalarType::F64 => f64::NAN.to_bits(),
        ScalarType::I1 => 0,
        s if s.is_float() => encode(s, f64::NAN, Round::Even, Overflow::Nan),
        s => 0x5a5a_5a5a_5a5a_5a5a & mask(super::types::bits(s)),
    }
}

pub(super) fn padding(value: Option<PaddingValue>, scalar: ScalarType) -> u64 {
    let float = |x: f64| encode(scalar, x, Round::Even, Overflow::Nan);
    match value {
        None => unspecified(scalar),
        Some(PaddingValue::Zero) => 0,
        Some(PaddingValue::NegZero) => float(-0.0),
        Some(PaddingValue::Nan) => float(f64::NAN),
        Some(PaddingValue::PosInf) => float(f64::INFINITY),
        Some(PaddingValue::NegInf) => float(f64::NEG_INFINITY),
    }
}

/// Where the elements of one dimension of a tile lie.
pub(super) struct Axis {
    /// Extent in the tile.
    extent: usize,
    /// Distance of two elements in the tile.
    step: usize,
    /// Distance in memory, in bytes.
    stride: i64,
    /// Tensor coordinate of the first element, or of each.
    start: i64,
    list: Option<Vec<i64>>,
    /// Extent of the tensor.
    limit: i64,
}

impl Axis {
    fn coordinate(&self, i: usize) -> i64 {
        self.list
            .as_ref()
            .map_or(self.start.wrapping_add(i as i64), |list| list.get(i).copied().unwrap_or(-1))
    }

    fn offset(&self, i: usize) -> Option<i64> {
        let at = self.coordinate(i);
        (0..self.limit).contains(&at).then(|| at.wrapping_mul(self.stride))
    }
}

/// Consecutive elements in memory: `len` of them from `address`, at `tile + i * step` in the tile.
pub(super) struct Run {
    pub(super) address: u64,
    pub(super) tile: usize,
    pub(super) step: usize,
    pub(super) len: usize,
}

/// Cuts a tile of a tensor into runs; leaves out what lies outside.
pub(super) fn runs(
    base: u64,
    axes: &[Axis],
    size: usize,
    each: &mut impl FnMut(Run) -> Result<(), FaultReason>,
) -> Result<(), FaultReason> {
    // The dimension that is dense in memory gives long runs; without one, every element is a run.
    let dense = axes.iter().rposition(|a| a.stride == size as i64 && a.list.is_none());
    let (inner, outer): (Option<&Axis>, SmallVec<[&Axis; 4]>) = match dense {
        Some(d) => {
            (Some(&axes[d]), axes.iter().enumerate().filter(|(i, _)| *i != d).map(|(_, a)| a).collect())
        }
        None => (None, axes.iter().collect()),
    };
    let (first, last) = match inner {
        Some(a) => {
            let first = a.start.saturating_neg().clamp(0, a.extent as i64);
            (first, a.limit.saturating_sub(a.start).clamp(first, a.extent as i64))
        }
        None => (0, 1),
    };
    if first == last {
        return Ok(());
    }
    let inner_offset = inner.map_or(0, |a| a.start.wrapping_add(first).wrapping_mul(a.stride));
    let step = inner.map_or(1, |a| a.step);
    let mut index: SmallVec<[usize; 4]> = outer.iter().map(|_| 0).collect();
    loop {
        let place =
            outer.iter().zip(&index).try_fold((inner_offset, 0usize), |(offset, tile), (axis, &i)| {
                Some((offset.wrapping_add(axis.offset(i)?), tile + i * axis.step))
            });
        if let Some((offset, tile)) = place {
            let address = base.wrapping_add(offset as u64);
            each(Run { address, tile: tile + first as usize * step, step, len: (last - first) as usize })?;
        }
        let mut d = outer.len();
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            index[d] += 1;
            if index[d] < outer[d].extent {
                break;
            }
            index[d] = 0;
        }
    }
}

/// How an access of an order counts for the race checker.
pub(super) fn touch(order: Order, weak: Touch) -> Touch {
    if order == Order::Weak { weak } else { Touch::Atomic }
}

pub(super) fn order_before(order: Order) {
    if matches!(order, Order::Release | Order::AcquireRelease) {
        fence(Ordering::Release);
    }
}

pub(super) fn order_after(order: Order) {
    if matches!(order, Order::Acquire | Order::AcquireRelease) {
        fence(Ordering::Acquire);
    }
}

/// A read-modify-write on bit patterns.
pub(super) fn modify(mode: AtomicMode, scalar: ScalarType, old: u64, value: u64) -> u64 {
    let bits = super::types::bits(scalar);
    let (s_old, s_value) = (signed(old, bits), signed(value, bits));
    let result = match mode {
        AtomicMode::And => old & value,
        AtomicMode::Or => old | value,
        AtomicMode::Xor => old ^ value,
        AtomicMode::Add => old.wrapping_add(value),
        AtomicMode::Max => s_old.max(s_value) as u64,
        AtomicMode::Min => s_old.min(s_value) as u64,
        AtomicMode::UnsignedMax => old.max(value),
        AtomicMode::UnsignedMin => old.min(value),
        AtomicMode::Exchange => value,
        AtomicMode::AddFloat => {
            let (x, y) = (float::decode(scalar, old), float::decode(scalar, value));
            return float::finish(scalar, float::add(x, y), Round::Even, x.is_finite() && y.is_finite());
        }
    };
    result & mask(bits)
}

impl Block<'_> {
    pub(super) fn misaligned(&self, address: u64, size: usize) -> FaultReason {
        let near = self.context.memory.space.locate(address, 1).ok().map(|a| a.nearby());
        FaultReason::Memory(MemoryFault { kind: FaultKind::Misaligned, address, bytes: size as u64, near })
    }

    /// The access that failed as a whole, element by element, to name the first bad one.
    fn refine(
        &mut self,
        window: u32,
        address: u64,
        size: usize,
        bytes: usize,
        fault: MemoryFault,
    ) -> FaultReason {
        let view = self.context.memory;
        for offset in (0..bytes).step_by(size) {
            let at = address.wrapping_add(offset as u64);
            if let Err(fault) = self.windows[window as usize].get(&view, at, size as u64) {
                return FaultReason::Memory(fault);
            }
        }
        FaultReason::Memory(fault)
    }

    /// Reads a run.
    pub(super) fn read(
        &mut self,
        window: u32,
        address: u64,
        size: usize,
        order: Order,
        out: &mut [u8],
    ) -> Result<(), FaultReason> {
        if !address.is_multiple_of(size as u64) {
            return Err(self.misaligned(address, size));
        }
        let view = self.context.memory;
        match self.windows[window as usize].access(
            &view,
            address,
            out.len() as u64,
            touch(order, Touch::Read),
        ) {
            Ok((backing, offset)) => {
                backing.read(offset, out);
                if self.context.check_uninitialised && !backing.is_written(offset, out.len() as u64) {
                    let first = backing.first_unwritten(offset, out.len() as u64).unwrap_or(offset);
                    self.uninitialised(window, address + (first - offset), out.len());
                }
                Ok(())
            }
            Err(fault) => Err(self.refine(window, address, size, out.len(), fault)),
        }
    }

    /// Reports a read of bytes that nobody wrote, once for each executed operation.
    pub(super) fn uninitialised(&mut self, window: u32, address: u64, bytes: usize) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let label = self.windows[window as usize].allocation().and_then(|a| a.label());
        self.report(FindingKind::UninitialisedRead { address, bytes: bytes as u64, space: "global", label });
    }

    /// Writes a run.
    fn write(
        &mut self,
        window: u32,
        address: u64,
        size: usize,
        order: Order,
        bytes: &[u8],
    ) -> Result<(), FaultReason> {
        if !address.is_multiple_of(size as u64) {
            return Err(self.misaligned(address, size));
        }
        let view = self.context.memory;
        match self.windows[window as usize].access(
            &view,
            address,
            bytes.len() as u64,
            touch(order, Touch::Write),
        ) {
            Ok((backing, offset)) => {
                backing.write(offset, bytes);
                backing.mark_written(offset, bytes.len() as u64);
                Ok(())
            }
            Err(fault) => Err(self.refine(window, address, size, bytes.len(), fault)),
        }
    }

    /// Replaces the value at an address by `change` of it; gives the old one. `change` returning `None` leaves it.
    fn exchange(
        &mut self,
        window: u32,
        address: u64,
        scalar: ScalarType,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, FaultReason> {
        let size = scalar.byte_width();
        if !address.is_multiple_of(size as u64) {
            return Err(self.misaligned(address, size));
        }
        let view = self.context.memory;
        let (backing, offset) = self.windows[window as usize]
            .access(&view, address, size as u64, Touch::Atomic)
            .map_err(FaultReason::Memory)?;
        let written = backing.is_written(offset, size as u64);
        macro_rules! update {
            ($atomic:expr, $type:ty) => {
                match $atomic {
                    Some(cell) => {
                        let result = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
                            change(u64::from(old)).map(|new| new as $type)
                        });
                        let (Ok(old) | Err(old)) = result;
                        u64::from(old)
                    }
                    None => return Err(self.misaligned(address, size)),
                }
            };
        }
        let old = match size {
            2 => update!(backing.atomic_u16(offset), u16),
            4 => update!(backing.atomic_u32(offset), u32),
            _ => update!(backing.atomic_u64(offset), u64),
        };
        backing.mark_written(offset, size as u64);
        if self.context.check_uninitialised && !written {
            self.uninitialised(window, address, size);
        }
        Ok(old)
    }

    /// Where the tile of an access lies, for elements of `size` units each. Reports broken promises.
    pub(super) fn axes(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
        size: usize,
    ) -> Result<SmallVec<[Axis; 4]>, FaultReason> {
        let view = &access.view;
        let rank = view.tile.len();
        let steps = super::shape::strides(&view.tile);
        let size = size as i64;
        let mut axes = SmallVec::new();
        for d in 0..rank {
            let (value, bits) = &indices[d];
            let data = value.tile();
            let index = signed(data.get(0), *bits);
            let (dim, start, list) = match &view.cut {
                Cut::Partition(map) => (map[d], index.wrapping_mul(view.tile[d] as i64), None),
                Cut::Strided(map, by) => (map[d], index.wrapping_mul(by[d]), None),
                Cut::Gather(sparse) if *sparse == d => {
                    (d, 0, Some(data.iter().map(|i| signed(i, *bits)).collect::<Vec<_>>()))
                }
                Cut::Gather(_) => (d, index, None),
            };
            let axis = Axis {
                extent: view.tile[d],
                step: steps[d],
                stride: tensor.strides[dim].wrapping_mul(size),
                start,
                list,
                limit: tensor.shape[dim],
            };
            if access.inbounds.get(d).copied().unwrap_or(false) {
                let outside = (0..axis.extent).find(|&i| axis.offset(i).is_none());
                if let Some(i) = outside {
                    self.report(FindingKind::FalseAssume {
                        predicate: format!("inbounds in dimension {d}"),
                        value: format!(
                            "coordinate {} of a tensor with extent {}",
                            axis.coordinate(i),
                            axis.limit
                        ),
                    });
                }
            }
            axes.push(axis);
        }
        debug_assert!(axes.len() <= MAX_RANK);
        Ok(axes)
    }

    /// `load_view_tko`.
    pub(super) fn load_view(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
    ) -> Result<Data, FaultReason> {
        let scalar = access.view.tensor.elem;
        if super::types::bits(scalar) == 4 {
            return self.load_nibbles(access, tensor, indices);
        }
        let size = scalar.byte_width();
        let mut data = Data::splat(
            Elem::Scalar(scalar),
            super::types::count(&access.view.tile),
            padding(access.view.padding, scalar),
        );
        let axes = self.axes(access, tensor, indices, size)?;
        let mut scratch = Vec::new();
        runs(tensor.base, &axes, size, &mut |run| {
            if run.step == 1 || run.len == 1 {
                let out = &mut data.bytes_mut()[run.tile * size..(run.tile + run.len) * size];
                return self.read(access.window, run.address, size, access.order, out);
            }
            scratch.resize(run.len * size, 0);
            self.read(access.window, run.address, size, access.order, &mut scratch)?;
            let out = data.bytes_mut();
            for (i, value) in scratch.chunks_exact(size).enumerate() {
                let at = (run.tile + i * run.step) * size;
                out[at..at + size].copy_from_slice(value);
            }
            Ok(())
        })?;
        order_after(access.order);
        Ok(booleans(scalar, data))
    }

    /// `store_view_tko`.
    pub(super) fn store_view(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
        data: &Data,
    ) -> Result<(), FaultReason> {
        if super::types::bits(access.view.tensor.elem) == 4 {
            return self.store_nibbles(access, tensor, indices, data);
        }
        let size = access.view.tensor.elem.byte_width();
        order_before(access.order);
        let axes = self.axes(access, tensor, indices, size)?;
        let bytes = data.bytes();
        let mut scratch = Vec::new();
        runs(tensor.base, &axes, size, &mut |run| {
            if run.step == 1 || run.len == 1 {
                return self.write(
                    access.window,
                    run.address,
                    size,
                    access.order,
                    &bytes[run.tile * size..(run.tile + run.len) * size],
                );
            }
            scratch.clear();
            for i in 0..run.len {
                let at = (run.tile + i * run.step) * size;
                scratch.extend_from_slice(&bytes[at..at + size]);
            }
            self.write(access.window, run.address, size, access.order, &scratch)
        })
    }

    /// `atomic_red_view_tko`.
    pub(super) fn atomic_view(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
        mode: AtomicMode,
        data: &Data,
    ) -> Result<(), FaultReason> {
        let scalar = access.view.tensor.elem;
        let size = scalar.byte_width() as u64;
        let axes = self.axes(access, tensor, indices, size as usize)?;
        runs(tensor.base, &axes, size as usize, &mut |run| {
            for i in 0..run.len {
                let value = data.get(run.tile + i * run.step);
                let address = run.address.wrapping_add(i as u64 * size);
                self.exchange(access.window, address, scalar, |old| Some(modify(mode, scalar, old, value)))?;
            }
            Ok(())
        })
    }

    /// `load_ptr_tko`.
    pub(super) fn load_ptr(
        &mut self,
        scalar: ScalarType,
        order: Order,
        window: u32,
        pointers: &Data,
        active: Option<&Data>,
        padding: Option<&Data>,
    ) -> Result<Data, FaultReason> {
        let size = scalar.byte_width();
        let count = pointers.len();
        let mut data = match padding {
            Some(padding) => padding.clone(),
            None => Data::splat(Elem::Scalar(scalar), count, unspecified(scalar)),
        };
        pointer_runs(pointers, active, size, |at, len, address| {
            self.read(window, address, size, order, &mut data.bytes_mut()[at * size..(at + len) * size])
        })?;
        order_after(order);
        Ok(booleans(scalar, data))
    }

    /// `store_ptr_tko`.
    pub(super) fn store_ptr(
        &mut self,
        scalar: ScalarType,
        order: Order,
        window: u32,
        pointers: &Data,
        data: &Data,
        active: Option<&Data>,
    ) -> Result<(), FaultReason> {
        let size = scalar.byte_width();
        order_before(order);
        let bytes = data.bytes();
        pointer_runs(pointers, active, size, |at, len, address| {
            self.write(window, address, size, order, &bytes[at * size..(at + len) * size])
        })
    }

    /// `atomic_rmw_tko`. Masked-out elements of the result are unspecified.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn atomic_rmw(
        &mut self,
        scalar: ScalarType,
        order: Order,
        window: u32,
        mode: AtomicMode,
        pointers: &Data,
        data: &Data,
        active: Option<&Data>,
    ) -> Result<Data, FaultReason> {
        order_before(order);
        let mut old = Data::splat(Elem::Scalar(scalar), pointers.len(), unspecified(scalar));
        for i in (0..pointers.len()).filter(|&i| active.is_none_or(|m| m.get(i) != 0)) {
            let value = data.get(i);
            let was =
                self.exchange(window, pointers.get(i), scalar, |old| Some(modify(mode, scalar, old, value)))?;
            old.set(i, was);
        }
        order_after(order);
        Ok(old)
    }

    /// `atomic_cas_tko`. Compares bits. Masked-out elements of the result are those of `compare`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn atomic_cas(
        &mut self,
        scalar: ScalarType,
        order: Order,
        window: u32,
        pointers: &Data,
        compare: &Data,
        data: &Data,
        active: Option<&Data>,
    ) -> Result<Data, FaultReason> {
        order_before(order);
        let mut old = compare.clone();
        for i in (0..pointers.len()).filter(|&i| active.is_none_or(|m| m.get(i) != 0)) {
            let (expected, value) = (compare.get(i), data.get(i));
            let was =
                self.exchange(window, pointers.get(i), scalar, |old| (old == expected).then_some(value))?;
            old.set(i, was);
        }
        order_after(order);
        Ok(old)
    }
}

fn booleans(scalar: ScalarType, mut data: Data) -> Data {
    if scalar == ScalarType::I1 {
        data.bytes_mut().iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    data
}

/// Calls `each` with position, length and address of each run of active, consecutive pointers.
fn pointer_runs(
    pointers: &Data,
    active: Option<&Data>,
    size: usize,
    mut each: impl FnMut(usize, usize, u64) -> Result<(), FaultReason>,
) -> Result<(), FaultReason> {
    let Data::B64(addresses) = pointers else { return Ok(()) };
    let on = |i: usize| active.is_none_or(|m| m.get(i) != 0);
    let mut i = 0;
    while i < addresses.len() {
        if !on(i) {
            i += 1;
            continue;
        }
        let first = i;
        while i + 1 < addresses.len()
            && addresses[i + 1] == addresses[i].wrapping_add(size as u64)
            && on(i + 1)
        {
            i += 1;
        }
        i += 1;
        each(first, i - first, addresses[first])?;
    }
    Ok(())
}

/// The number of tiles of a view along each dimension of its index space.
pub(super) fn index_space(view: &super::types::ViewTy, tensor: &TensorVal) -> SmallVec<[i64; 4]> {
    let tiles = |extent: i64, by: i64| extent.max(0) / by + i64::from(extent.max(0) % by != 0);
    (0..view.tile.len())
        .map(|d| match &view.cut {
            Cut::Partition(map) => tiles(tensor.shape[map[d]], view.tile[d] as i64),
            Cut::Strided(map, by) => tiles(tensor.shape[map[d]], by[d]),
            // Indices along a gather view count elements.
            Cut::Gather(_) => tensor.shape[d].max(0),
        })
        .collect()
}

/// Shapes for messages.
pub(super) fn describe(shape: &Shape) -> String {
    if shape.is_empty() {
        return "scalar".into();
    }
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}
