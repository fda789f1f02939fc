//! Executes one block of a decoded kernel.
//!
//! A block has a frame of slots, one for each SSA value, and runs its instructions in program order. Values are shared until someone
//! changes them; an operand used for the last time is taken out of its slot, so that accumulators are updated in place
//! and dead tiles are freed.
//!
//! A reduction combines neighbours (elements `2i` and `2i + 1`) until one is left: the order of elements is kept, the tree is
//! balanced, every step is rounded to the element type. A scan runs along its dimension one element after the other.
//! The identities are not used: combining with one changes nothing.

use super::data::Data;
use super::op::{Code, Inst, Kernel, MultimemKind, Op, Predicate, Use, ViewAccess};
use super::types::{Elem, TileTy, count};
use super::{assume, elementwise, memory, mma, print, shape};
use crate::exec::{ExecContext, FaultReason, Finding, FindingKind, LaunchSpec, Site};
use crate::memory::{MemoryKind, Window};
use cutile_ir::ir::ScalarType;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes that one block may get from `alloca`.
const MAX_ALLOCA: u64 = 64 << 20;
/// How often a long-running block says so, in steps.
const STALL_STEPS: u64 = 1 << 16;

/// A tensor view at run time.
#[derive(Debug)]
pub(super) struct TensorVal {
    pub(super) base: u64,
    pub(super) shape: SmallVec<[i64; 4]>,
    pub(super) strides: SmallVec<[i64; 4]>,
}

/// The value of a slot.
#[derive(Clone, Debug)]
pub(super) enum Val {
    Empty,
    Tile(Arc<Data>),
    Tensor(Arc<TensorVal>),
    Token,
}

static NOTHING: Data = Data::B8(Vec::new());

impl Val {
    /// The elements.
    pub(super) fn tile(&self) -> &Data {
        match self {
            Val::Tile(data) => data,
            _ => &NOTHING,
        }
    }

    /// The elements, shared.
    pub(super) fn shared(self) -> Arc<Data> {
        match self {
            Val::Tile(data) => data,
            _ => Arc::new(NOTHING.clone()),
        }
    }

    fn owned(self) -> Data {
        match self {
            Val::Tile(data) => Arc::try_unwrap(data).unwrap_or_else(|shared| (*shared).clone()),
            _ => NOTHING.clone(),
        }
    }

    fn scalar(elem: Elem, value: u64) -> Val {
        Data::splat(elem, 1, value).into()
    }
}

impl From<Data> for Val {
    fn from(data: Data) -> Self {
        Val::Tile(Arc::new(data))
    }
}

/// How a block of code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Yield,
    Continue,
    Break,
    Return,
}

/// A running block.
pub(super) struct Block<'a> {
    kernel: &'a Kernel,
    launch: &'a LaunchSpec<'a>,
    pub(super) context: &'a ExecContext<'a>,
    id: [u32; 3],
    frame: Vec<Val>,
    pub(super) windows: Vec<Window>,
    /// Values that a terminator hands to the operation around it.
    carry: Vec<Val>,
    steps: u64,
    site: u32,
    /// Whether the running operation has reported an uninitialised read.
    pub(super) reported: bool,
    allocas: Vec<u64>,
    alloca_bytes: u64,
    /// Called now and then by a block that runs long, which may be waiting for another block.
    stalled: &'a dyn Fn(),
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        for &base in &self.allocas {
            // Nothing else knows the address; it cannot be gone.
            let _ = self.context.memory.space.release(base);
        }
    }
}

impl<'a> Block<'a> {
    /// A block about to start.
    pub(super) fn new(
        kernel: &'a Kernel,
        launch: &'a LaunchSpec<'a>,
        context: &'a ExecContext<'a>,
        id: [u32; 3],
        params: &[Val],
        stalled: &'a dyn Fn(),
    ) -> Self {
        let mut frame = vec![Val::Empty; kernel.slots as usize];
        for (&slot, value) in kernel.body.args.iter().zip(params) {
            frame[slot as usize] = value.clone();
        }
        Self {
            kernel,
            launch,
            context,
            id,
            frame,
            windows: (0..kernel.windows as usize).map(|window| Window::of(window + 1)).collect(),
            carry: Vec::new(),
            steps: 0,
            site: 0,
            reported: false,
            allocas: Vec::new(),
            alloca_bytes: 0,
            stalled,
        }
    }

    /// Runs to the end.
    pub(super) fn run(&mut self) -> Result<(), FaultReason> {
        let kernel = self.kernel;
        self.code(&kernel.body).map(|_| ())
    }

    /// Where it is.
    pub(super) fn site(&self) -> Site {
        let (instruction, source) = match self.kernel.sites.get(self.site as usize) {
            Some(site) => (format!("{} (operation {})", site.name, site.number), site.source.clone()),
            None => (String::new(), None),
        };
        Site { kernel: self.kernel.name.clone(), source, instruction, block: self.id, thread: [0; 3] }
    }

    pub(super) fn kernel_name(&self) -> &str {
        &self.kernel.name
    }

    pub(super) fn id(&self) -> [u32; 3] {
        self.id
    }

    pub(super) fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    pub(super) fn report(&self, kind: FindingKind) {
        (self.context.report)(Finding { site: self.site(), kind });
    }

    fn take(&mut self, operand: Use) -> Val {
        let slot = &mut self.frame[operand.slot as usize];
        if operand.last { std::mem::replace(slot, Val::Empty) } else { slot.clone() }
    }

    fn set(&mut self, slots: &[u32], values: impl IntoIterator<Item = Val>) {
        for (&slot, value) in slots.iter().zip(values) {
            self.frame[slot as usize] = value;
        }
    }

    fn code(&mut self, code: &Code) -> Result<Flow, FaultReason> {
        for inst in &code.insts {
            self.site = inst.site;
            let before = self.steps;
            self.steps = before.saturating_add(inst.cost);
            if self.steps > self.context.step_limit {
                return Err(FaultReason::StepLimit(self.context.step_limit));
            }
            if self.context.cancel.load(Ordering::Relaxed) {
                return Err(FaultReason::Cancelled);
            }
            if before / STALL_STEPS != self.steps / STALL_STEPS {
                (self.stalled)();
                crate::exec::slice_over();
            }
            let flow = self.inst(inst)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Moves the operands of a terminator to where the operation around it finds them.
    fn hand_over(&mut self, inst: &Inst, flow: Flow) -> Flow {
        self.carry = inst.operands.iter().map(|&u| self.take(u)).collect();
        flow
    }

    fn inst(&mut self, inst: &Inst) -> Result<Flow, FaultReason> {
        match &inst.op {
            Op::Yield => return Ok(self.hand_over(inst, Flow::Yield)),
            Op::Continue => return Ok(self.hand_over(inst, Flow::Continue)),
            Op::Break => return Ok(self.hand_over(inst, Flow::Break)),
            Op::Return => return Ok(Flow::Return),
            Op::If { then, otherwise } => {
                let condition = self.take(inst.operands[0]).tile().get(0) != 0;
                let flow = self.code(if condition { then } else { otherwise })?;
                if flow != Flow::Yield {
                    return Ok(flow);
                }
                let values = std::mem::take(&mut self.carry);
                self.set(&inst.results, values);
                return Ok(Flow::Next);
            }
            Op::For { bits, unsigned, body } => return self.for_loop(inst, *bits, *unsigned, body),
            Op::Loop { body } => {
                let mut values: Vec<Val> = inst.operands.iter().map(|&u| self.take(u)).collect();
                loop {
                    self.set(&body.args, values);
                    let flow = self.code(body)?;
                    values = std::mem::take(&mut self.carry);
                    match flow {
                        Flow::Break => break,
                        Flow::Return => return Ok(flow),
                        _ => {}
                    }
                }
                self.set(&inst.results, values);
                return Ok(Flow::Next);
            }
            _ => {}
        }
        let operands: SmallVec<[Val; 6]> = inst.operands.iter().map(|&u| self.take(u)).collect();
        let results = self.value(&inst.op, operands)?;
        self.set(&inst.results, results);
        Ok(Flow::Next)
    }

    fn for_loop(&mut self, inst: &Inst, bits: u32, unsigned: bool, body: &Code) -> Result<Flow, FaultReason> {
        let mut operands = inst.operands.iter();
        let mut bound = || {
            let raw = operands.next().map_or(0, |&u| self.frame[u.slot as usize].tile().get(0));
            if unsigned { i128::from(raw) } else { i128::from(elementwise::signed(raw, bits)) }
        };
        let (mut at, end, step) = (bound(), bound(), bound());
        if step <= 0 {
            return Err(FaultReason::IllegalInstruction(format!(
                "a loop with step {step}; it must be positive"
            )));
        }
        let mut values: Vec<Val> = inst.operands[3..].iter().map(|&u| self.take(u)).collect();
        let elem = Elem::Scalar(match bits {
            0..=8 => ScalarType::I8,
            9..=16 => ScalarType::I16,
            17..=32 => ScalarType::I32,
            _ => ScalarType::I64,
        });
        while at < end {
            let counter = Val::scalar(elem, at as u64 & elementwise::mask(bits));
            self.set(&body.args, std::iter::once(counter).chain(values));
            if self.code(body)? == Flow::Return {
                return Ok(Flow::Return);
            }
            values = std::mem::take(&mut self.carry);
            at += step;
        }
        self.set(&inst.results, values);
        Ok(Flow::Next)
    }

    /// The results of an operation without control flow.
    fn value(&mut self, op: &Op, mut v: SmallVec<[Val; 6]>) -> Result<SmallVec<[Val; 3]>, FaultReason> {
        use super::op::Op::*;
        let one = |data: Data| -> SmallVec<[Val; 3]> { smallvec::smallvec![data.into()] };
        self.reported = false;
        let t = |i: usize| v[i].tile();
        Ok(match op {
            Constant(data) => smallvec::smallvec![Val::Tile(data.clone())],
            Iota { elem, count } => one(Data::collect(*elem, 0..*count as u64)),
            BlockId => self.id.iter().map(|&x| i32_val(x)).collect(),
            NumBlocks => self.launch.grid.iter().map(|&x| i32_val(x)).collect(),
            Token => smallvec::smallvec![Val::Token],
            Global(index) => {
                let address = self.context.globals.get(*index).copied().unwrap_or(0);
                smallvec::smallvec![Val::scalar(POINTER, address)]
            }
            Call(call) => self.call(call, v)?,
            Alloca { bytes, align } => {
                smallvec::smallvec![Val::scalar(POINTER, self.alloca(*bytes, *align)?)]
            }
            Assume { predicate, tile, text } => {
                self.check(predicate, tile.as_ref(), text, &v[0]);
                smallvec::smallvec![v.swap_remove(0)]
            }
            Assert { message, shape } => {
                let data = t(0);
                if let Some(i) = (0..data.len()).find(|&i| data.get(i) == 0) {
                    let at = if shape.is_empty() {
                        String::new()
                    } else {
                        format!(" at {:?}", assume::coordinates(shape, i))
                    };
                    return Err(FaultReason::Assert(format!("{message}{at}")));
                }
                SmallVec::new()
            }
            Print { pieces, args } => {
                let values: Vec<(&TileTy, &Data)> =
                    args.iter().zip(&v).map(|(ty, v)| (ty, v.tile())).collect();
                (self.context.print)(print::render(pieces, &values).as_bytes());
                smallvec::smallvec![Val::Token]
            }

            FloatUnary { op, scalar, round, ftz } => {
                one(elementwise::float_unary(*op, *scalar, *round, *ftz, t(0)))
            }
            FloatBinary { op, scalar, round, ftz } => {
                one(elementwise::float_binary(*op, *scalar, *round, *ftz, t(0), t(1)))
            }
            Fma { scalar, round, ftz } => one(elementwise::fma(*scalar, *round, *ftz, t(0), t(1), t(2))),
            PowInt { scalar, exponent_bits } => {
                one(elementwise::pow_int(*scalar, *exponent_bits, t(0), t(1)))
            }
            IntUnary { op, bits } => one(elementwise::int_unary(*op, *bits, t(0))),
            IntBinary { op, bits } => one(elementwise::int_binary(*op, *bits, t(0), t(1))),
            CompareFloat { op, ordered, scalar } => {
                one(elementwise::compare_float(*op, *ordered, *scalar, t(0), t(1)))
            }
            CompareInt { op, signed, bits } => one(elementwise::compare_int(*op, *signed, *bits, t(0), t(1))),
            Select => one(elementwise::select(t(0), t(1), t(2))),
            Convert(conversion) => one(elementwise::convert(*conversion, t(0))),
            Same => smallvec::smallvec![v.swap_remove(0)],
            Offset { bits, size } => one(elementwise::offset(*bits, *size, t(0), t(1))),

            Broadcast { from, to } if from == to => smallvec::smallvec![v.swap_remove(0)],
            Broadcast { from, to } => one(shape::broadcast(t(0), from, to)),
            Permute { from, permutation } => one(shape::permute(t(0), from, permutation)),
            Cat { left, right, dim } => one(shape::cat(t(0), t(1), left, right, *dim)),
            Extract { large, small } => {
                let index = indices(&v[1..]);
                one(shape::extract(t(0), large, small, &index)
                    .ok_or_else(|| no_slice(&index, large, small))?)
            }
            Insert { large, small } => {
                let index = indices(&v[2..]);
                let into = std::mem::replace(&mut v[1], Val::Empty).owned();
                let result = shape::insert(v[0].tile(), into, large, small, &index);
                one(result.ok_or_else(|| no_slice(&index, large, small))?)
            }
            Repack { from, to } => one(shape::repack(t(0), *from, *to)),

            Reduce { shape, dim, lanes, body } => self.reduce(shape, *dim, *lanes, body, &v)?,
            Scan { shape, dim, reverse, lanes, body } => {
                self.scan(shape, *dim, *reverse, *lanes, body, &v)?
            }
            MmaFloat { shape, input, acc } => {
                let c = std::mem::replace(&mut v[2], Val::Empty).owned();
                let stop = self.stop();
                one(self.finished(mma::float(*shape, *input, *acc, v[0].tile(), v[1].tile(), c, &stop))?)
            }
            MmaInt { shape, signed } => {
                let c = std::mem::replace(&mut v[2], Val::Empty).owned();
                let stop = self.stop();
                one(self.finished(mma::int(*shape, *signed, v[0].tile(), v[1].tile(), c, &stop))?)
            }
            MmaScaled { shape, input, scale, scales } => {
                let mut owned = v.drain(..).map(Val::owned);
                let mut next = || owned.next().unwrap_or_else(|| NOTHING.clone());
                let operands = [next(), next(), next(), next(), next()];
                let stop = self.stop();
                one(self.finished(mma::scaled(*shape, *input, *scale, *scales, operands, &stop))?)
            }

            MakeTensor { shape, strides, bits } => {
                let mut dynamic = 1;
                let mut fill = |fixed: &[Option<i64>], bits: &[u32]| -> SmallVec<[i64; 4]> {
                    let mut bits = bits.iter();
                    let mut next = || {
                        let value =
                            elementwise::signed(t(dynamic).get(0), bits.next().copied().unwrap_or(32));
                        dynamic += 1;
                        value
                    };
                    fixed.iter().map(|dim| dim.unwrap_or_else(&mut next)).collect()
                };
                let (shape, strides) = (fill(shape, &bits.0), fill(strides, &bits.1));
                if let Some(negative) = shape.iter().find(|&&d| d < 0) {
                    let text = format!("a tensor view with the extent {negative}");
                    return Err(FaultReason::IllegalInstruction(text));
                }
                smallvec::smallvec![Val::Tensor(Arc::new(TensorVal { base: t(0).get(0), shape, strides }))]
            }
            TensorShape { elems } => {
                let tensor = tensor(&v[0]);
                elems.iter().zip(&tensor.shape).map(|(&e, &d)| index_val(e, d)).collect()
            }
            IndexSpace { view, elems } => {
                let space = memory::index_space(view, &tensor(&v[0]));
                elems.iter().zip(space).map(|(&e, d)| index_val(e, d)).collect()
            }
            LoadView { access, index_bits } => {
                let data = self.load_view(access, &tensor(&v[0]), &with_bits(&v[1..], index_bits))?;
                smallvec::smallvec![data.into(), Val::Token]
            }
            StoreView { access, index_bits } => {
                self.store_view(access, &tensor(&v[1]), &with_bits(&v[2..], index_bits), t(0))?;
                smallvec::smallvec![Val::Token]
            }
            AtomicView { access, index_bits, mode } => {
                let value = v[1 + access_rank(access)].clone();
                let indices = with_bits(&v[1..], index_bits);
                self.atomic_view(access, &tensor(&v[0]), &indices, *mode, value.tile())?;
                smallvec::smallvec![Val::Token]
            }
            Multimem { kind: MultimemKind::LoadReduce, access, index_bits } => {
                let data = self.multimem_load(access, &tensor(&v[0]), &with_bits(&v[1..], index_bits))?;
                smallvec::smallvec![data.into(), Val::Token]
            }
            Multimem { kind, access, index_bits } => {
                let indices = with_bits(&v[2..], index_bits);
                self.multimem_change(*kind, access, &tensor(&v[0]), &indices, t(1))?;
                smallvec::smallvec![Val::Token]
            }
            LoadPtr { elem, order, window, mask, padding } => {
                let active = mask.then(|| v[1].tile());
                let fill = padding.then(|| v[1 + usize::from(*mask)].tile());
                let data = self.load_ptr(*elem, *order, *window, v[0].tile(), active, fill)?;
                smallvec::smallvec![data.into(), Val::Token]
            }
            StorePtr { elem, order, window, mask } => {
                let active = mask.then(|| v[2].tile());
                self.store_ptr(*elem, *order, *window, v[0].tile(), v[1].tile(), active)?;
                smallvec::smallvec![Val::Token]
            }
            AtomicRmw { elem, order, window, mode, mask } => {
                let active = mask.then(|| v[2].tile());
                let old = self.atomic_rmw(*elem, *order, *window, *mode, v[0].tile(), v[1].tile(), active)?;
                smallvec::smallvec![old.into(), Val::Token]
            }
            AtomicCas { elem, order, window, mask } => {
                let active = mask.then(|| v[3].tile());
                let old =
                    self.atomic_cas(*elem, *order, *window, v[0].tile(), v[1].tile(), v[2].tile(), active)?;
                smallvec::smallvec![old.into(), Val::Token]
            }
            If { .. } | For { .. } | Loop { .. } | Yield | Continue | Break | Return => SmallVec::new(),
        })
    }

    /// Whether a long operation should give up.
    fn stop(&self) -> impl Fn() -> bool + use<'a> {
        let cancel = self.context.cancel;
        move || cancel.load(Ordering::Relaxed)
    }

    /// The result of a long operation, unless it gave up.
    fn finished(&self, data: Data) -> Result<Data, FaultReason> {
        if self.context.cancel.load(Ordering::Relaxed) { Err(FaultReason::Cancelled) } else { Ok(data) }
    }

    fn check(&self, predicate: &Predicate, tile: Option<&TileTy>, text: &str, value: &Val) {
        let broken = match (predicate, tile, value) {
            (Predicate::BaseDivBy(divisor), _, Val::Tensor(tensor)) => {
                (tensor.base & (divisor - 1) != 0).then(|| format!("base {:#x}", tensor.base))
            }
            (predicate, Some(ty), Val::Tile(data)) => assume::broken(predicate, ty, data),
            _ => None,
        };
        if let Some(value) = broken {
            self.report(FindingKind::FalseAssume { predicate: text.to_owned(), value });
        }
    }

    fn alloca(&mut self, bytes: u64, align: u64) -> Result<u64, FaultReason> {
        let failed = |what: &str| FaultReason::IllegalInstruction(format!("alloca of {bytes} bytes: {what}"));
        // The alignment may exceed what allocations have.
        let room = bytes.checked_add(align).ok_or_else(|| failed("too large"))?;
        self.alloca_bytes = self.alloca_bytes.saturating_add(room);
        if self.alloca_bytes > MAX_ALLOCA {
            return Err(failed(&format!("the block has more than {MAX_ALLOCA} bytes")));
        }
        let memory = &self.context.memory;
        let allocation = memory
            .space
            .allocate(MemoryKind::Internal, memory.device, room)
            .ok_or_else(|| failed("the host is out of memory"))?;
        self.allocas.push(allocation.base);
        Ok(allocation.base.next_multiple_of(align))
    }

    /// Runs the body of a reduction on `lanes` lanes at once, or lane by lane.
    fn combine(
        &mut self,
        body: &Code,
        lanes: usize,
        at_once: bool,
        args: Vec<Data>,
    ) -> Result<Vec<Data>, FaultReason> {
        if at_once {
            self.set(&body.args, args.into_iter().map(Val::from));
            self.code(body)?;
            return Ok(std::mem::take(&mut self.carry).into_iter().map(|v| v.owned().widen(lanes)).collect());
        }
        let mut results: Vec<Data> = args.iter().step_by(2).map(|d| d.pick(0..lanes)).collect();
        for lane in 0..lanes {
            self.set(&body.args, args.iter().map(|d| d.pick(std::iter::once(lane)).into()));
            self.code(body)?;
            for (result, value) in results.iter_mut().zip(std::mem::take(&mut self.carry)) {
                result.set(lane, value.tile().get(0));
            }
        }
        Ok(results)
    }

    fn reduce(
        &mut self,
        shape: &[usize],
        dim: usize,
        lanes: bool,
        body: &Code,
        v: &[Val],
    ) -> Result<SmallVec<[Val; 3]>, FaultReason> {
        let (outer, inner) = (count(&shape[..dim]), count(&shape[dim + 1..]));
        let mut extent = shape[dim];
        let mut values: Vec<Data> = v.iter().map(|v| v.tile().clone()).collect();
        while extent > 1 {
            extent /= 2;
            let groups = outer * extent;
            let args =
                values.iter().flat_map(|data| [data.chunks(inner, 1), data.chunks(inner, 0)]).collect();
            values = self.combine(body, groups * inner, lanes, args)?;
        }
        Ok(values.into_iter().map(Val::from).collect())
    }

    fn scan(
        &mut self,
        shape: &[usize],
        dim: usize,
        reverse: bool,
        lanes: bool,
        body: &Code,
        v: &[Val],
    ) -> Result<SmallVec<[Val; 3]>, FaultReason> {
        let (outer, extent, inner) = (count(&shape[..dim]), shape[dim], count(&shape[dim + 1..]));
        let place = |lane: usize, step: usize| {
            let along = if reverse { extent - 1 - step } else { step };
            (lane / inner * extent + along) * inner + lane % inner
        };
        let width = outer * inner;
        let mut results: Vec<Data> = v.iter().map(|v| v.tile().clone()).collect();
        let mut carried: Vec<Data> =
            results.iter().map(|d| d.pick((0..width).map(|l| place(l, 0)))).collect();
        for step in 1..extent {
            let args = results
                .iter()
                .zip(carried)
                .flat_map(|(d, before)| [d.pick((0..width).map(|l| place(l, step))), before])
                .collect();
            carried = self.combine(body, width, lanes, args)?;
            for (result, new) in results.iter_mut().zip(&carried) {
                (0..width).for_each(|lane| result.set(place(lane, step), new.get(lane)));
            }
        }
        Ok(results.into_iter().map(Val::from).collect())
    }
}

const POINTER: Elem = Elem::Pointer(ScalarType::I8);

fn i32_val(x: u32) -> Val {
    Val::scalar(Elem::Scalar(ScalarType::I32), u64::from(x))
}

fn index_val(elem: Elem, x: i64) -> Val {
    Val::scalar(elem, x as u64 & elementwise::mask(elem.bits()))
}

fn tensor(value: &Val) -> Arc<TensorVal> {
    match value {
        Val::Tensor(tensor) => tensor.clone(),
        _ => Arc::new(TensorVal { base: 0, shape: SmallVec::new(), strides: SmallVec::new() }),
    }
}

fn access_rank(access: &ViewAccess) -> usize {
    access.view.tile.len()
}

fn with_bits(values: &[Val], bits: &[u32]) -> SmallVec<[(Val, u32); 4]> {
    values.iter().cloned().zip(bits.iter().copied()).collect()
}

/// Indices of `extract` and `insert`: `i32`.
fn indices(values: &[Val]) -> SmallVec<[i64; 4]> {
    values.iter().map(|v| elementwise::signed(v.tile().get(0), 32)).collect()
}

fn no_slice(index: &[i64], large: &super::types::Shape, small: &super::types::Shape) -> FaultReason {
    FaultReason::IllegalInstruction(format!(
        "there is no slice {index:?} of shape {} in a tile of shape {}",
        memory::describe(small),
        memory::describe(large)
    ))
}
