//! The way into a simulated driver: every table entry goes through [`enter`].
//!
//! `enter` finds the driver behind the state, looks at the control rules (masks, failures, pause points),
//! checks that the driver was initialised and that the thread is not inside a host function, catches
//! panics, and hands the entry a [`Call`], which resolves handles.

use crate::config::Mode;
use crate::control::Verdict;
use crate::core::{ContextRef, Core, Res, StreamRef};
use crate::explore;
use crate::handles::BadHandle;
use crate::report::{Report, ReportKind};
use crate::simulator::Shell;
use core::ffi::c_char;
use simtile_driver::sys::*;
use simtile_driver::{Entry, State};
use simtile_sync::Arc;
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one entry.
pub(crate) fn enter(state: State, entry: Entry, run: impl FnOnce(&Call<'_>) -> Res) -> CUresult {
    // SAFETY: the simulator's table is only paired with states of type `Shell` (`Simulator::driver`).
    let shell = unsafe { state.get::<Shell>() };
    let Some(core) = shell.core() else { return CUresult::CUDA_ERROR_DEINITIALIZED };
    let result = {
        let _catches = explore::catching();
        catch_unwind(AssertUnwindSafe(|| dispatch(&core, entry, run)))
    };
    if !matches!(result, Ok(Ok(()))) && launches(entry) {
        // What was declared was declared of this launch.
        core.declared.lock().retain(|&(thread, _), _| thread != thread_number());
    }
    match result {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(panic) if explore::stuck().is_some_and(|why| why == panic_text(&*panic)) => {
            let text = format!("{} waits for ever: {}{}", entry.name(), panic_text(&*panic), core.held_up());
            core.report(Report::new(ReportKind::Deadlock, text));
            CUresult::CUDA_ERROR_UNKNOWN
        }
        Err(panic) => {
            let text = format!("the simulator panicked in {}: {}", entry.name(), panic_text(&*panic));
            core.report(Report::new(ReportKind::Internal, text));
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

fn dispatch(core: &Arc<Core>, entry: Entry, run: impl FnOnce(&Call<'_>) -> Res) -> Res {
    let call = Call { core, entry };
    remember_caller(core);
    core.calls.fetch_add(1, Ordering::Relaxed);
    if core.config.mode == Mode::Explore {
        core.tell_outsider(entry);
        simtile_sync::hook::switch_point(entry.name());
    }
    match core.control.before(entry) {
        Verdict::Go => {}
        Verdict::Fail(code) => return Err(code),
        Verdict::Lose(code) => {
            let mut state = core.state.lock();
            let all: Vec<u64> = state.contexts.keys().copied().collect();
            for context in all {
                core.lose(&mut state, context, code);
            }
            return Err(code);
        }
    }
    // After the rules: an entry that was taken away is missing, whatever the device lacks.
    if let Some(lacking) = &core.lacking
        && let Some(Some(code)) = lacking.get(entry as usize)
    {
        return Err(*code);
    }
    if HOST_FUNCTION.get() == core.id && !works_in_host_function(entry) {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    if !core.initialised.load(Ordering::Acquire) && !works_uninitialised(entry) {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if unsafe_in_capture(entry) {
        core.state.lock().refuse_unsafe()?;
    }
    run(&call)
}

/// Calls that a capture may forbid wherever they are made, see `State::refuse_unsafe`. Looking at events and streams, and
/// stream-ordered allocation, are not here: they look at their handles first.
fn unsafe_in_capture(entry: Entry) -> bool {
    matches!(
        entry,
        Entry::cuMemAlloc
            | Entry::cuMemAllocPitch
            | Entry::cuMemAllocManaged
            | Entry::cuMemHostAlloc
            | Entry::cuMemHostRegister
            | Entry::cuMemHostUnregister
            | Entry::cuMemFree
            | Entry::cuMemFreeHost
            | Entry::cuMemAdvise
            | Entry::cuMemPoolCreate
            | Entry::cuMemPoolDestroy
            | Entry::cuMemPoolTrimTo
            | Entry::cuModuleUnload
            | Entry::cuLibraryUnload
            | Entry::cuCtxSetLimit
            | Entry::cuGraphInstantiateWithFlags
            | Entry::cuGraphInstantiateWithParams
            | Entry::cuGraphExecDestroy
    )
}

fn launches(entry: Entry) -> bool {
    matches!(entry, Entry::cuLaunchKernel | Entry::cuLaunchKernelEx | Entry::cuLaunchCooperativeKernel)
}

fn works_uninitialised(entry: Entry) -> bool {
    matches!(
        entry,
        Entry::cuInit
            | Entry::cuDriverGetVersion
            | Entry::cuGetErrorName
            | Entry::cuGetErrorString
            | Entry::cuGetProcAddress
    )
}

fn works_in_host_function(entry: Entry) -> bool {
    works_uninitialised(entry)
        || matches!(
            entry,
            Entry::cuEventQuery
                | Entry::cuCtxGetCurrent
                | Entry::cuDeviceGet
                | Entry::cuDeviceGetCount
                | Entry::cuDeviceGetAttribute
        )
}

/// The text of a caught panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

thread_local! {
    /// Id of the driver whose host function this thread runs; 0 for none.
    static HOST_FUNCTION: Cell<u64> = const { Cell::new(0) };
    /// The stacks of current contexts, by driver. Without a destructor, so that it works to the thread's very end: other
    /// destructors of the thread may still make calls.
    static CURRENT: RefCell<ManuallyDrop<Stacks>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// Frees them when the thread ends. What a later destructor makes current is left behind.
    static CLEANUP: Cleanup = const { Cleanup };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

type Stacks = Vec<(u64, Vec<CUcontext>)>;

thread_local! {
    /// Id of the driver that this thread called last.
    static LAST: Cell<u64> = const { Cell::new(0) };
    /// The drivers that it has called.
    static CALLED: RefCell<Called> = const { RefCell::new(Called(Vec::new())) };
}

/// Takes the thread off the drivers' lists when it ends.
struct Called(Vec<std::sync::Weak<Core>>);

impl Drop for Called {
    fn drop(&mut self) {
        for core in self.0.iter().filter_map(std::sync::Weak::upgrade) {
            core.callers.lock().remove(&thread_number());
        }
    }
}

/// Keeps the list of living threads that have called a driver.
fn remember_caller(core: &Arc<Core>) {
    if LAST.replace(core.id) == core.id {
        return;
    }
    // A thread that ends already is not listed again.
    let _ = CALLED.try_with(|called| {
        if let Ok(mut called) = called.try_borrow_mut()
            && core.callers.lock().insert(thread_number())
        {
            called.0.retain(|core| core.strong_count() > 0);
            called.0.push(Arc::downgrade(core));
        }
    });
}

struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(CURRENT.with_borrow_mut(|stacks| std::mem::take(&mut **stacks)));
    }
}

/// The calling thread's number, for per-thread default streams and declarations.
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|number| *number)
}

/// Marks the calling thread as inside a host function until dropped.
pub(crate) fn enter_host_function(simulator: u64) -> impl Drop {
    struct Leave(u64);
    impl Drop for Leave {
        fn drop(&mut self) {
            HOST_FUNCTION.set(self.0);
        }
    }
    Leave(HOST_FUNCTION.replace(simulator))
}

/// Works on the calling thread's stack of current contexts in a driver.
fn with_stack<R>(simulator: u64, work: impl FnOnce(&mut Vec<CUcontext>) -> R) -> R {
    // Registers the clean-up; while the thread ends it may have run already.
    let _ = CLEANUP.try_with(|_| ());
    CURRENT.with_borrow_mut(|stacks| {
        let at = stacks.iter().position(|(id, _)| *id == simulator).unwrap_or_else(|| {
            stacks.push((simulator, Vec::new()));
            stacks.len() - 1
        });
        let result = work(&mut stacks[at].1);
        // A thread that has used many drivers keeps no empty stacks.
        if stacks[at].1.is_empty() {
            stacks.swap_remove(at);
        }
        result
    })
}

/// One call of an entry.
pub(crate) struct Call<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) entry: Entry,
}

impl Call<'_> {
    /// Handle of the thread's current context, null if there is none.
    pub(crate) fn current_handle(&self) -> CUcontext {
        with_stack(self.core.id, |stack| stack.last().copied().unwrap_or_default())
    }

    /// Replaces the top of the thread's context stack.
    pub(crate) fn set_current(&self, context: CUcontext) {
        with_stack(self.core.id, |stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(context);
            }
        });
    }

    pub(crate) fn push_current(&self, context: CUcontext) {
        with_stack(self.core.id, |stack| stack.push(context));
    }

    pub(crate) fn pop_current(&self) -> Option<CUcontext> {
        with_stack(self.core.id, Vec::pop)
    }

    /// The current context.
    ///
    /// # Errors
    /// No current context, a destroyed one, or the code of the fault that lost it.
    pub(crate) fn context(&self) -> Res<ContextRef> {
        let handle = self.current_handle();
        if handle.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        self.context_from(handle)
    }

    /// A context by handle; null is refused.
    ///
    /// # Errors
    /// A handle that names no context, or the code of the fault that lost it.
    pub(crate) fn context_from(&self, handle: CUcontext) -> Res<ContextRef> {
        let state = self.core.state.lock();
        let context = self.core.context_of(&state, handle)?;
        self.core.context_health(&state, context.uid)?;
        Ok(context)
    }

    /// A context by handle, or the current one for null.
    pub(crate) fn context_or_current(&self, handle: CUcontext) -> Res<ContextRef> {
        if handle.is_null() { self.context() } else { self.context_from(handle) }
    }

    /// A stream by handle; 0, 1 and 2 are the default streams of the current context.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`, or the code of its context's fault.
    pub(crate) fn stream(&self, handle: CUstream) -> Res<StreamRef> {
        if handle.0 <= CUstream::PER_THREAD.0 {
            let context = self.context()?;
            return self.default_stream(context, handle == CUstream::PER_THREAD);
        }
        let state = self.core.state.lock();
        let uid = *state.stream_handles.get(handle.0).map_err(invalid_handle)?;
        let stream = state.streams.get(&uid).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let context = state.contexts.get(&stream.context).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let (device, green) = (context.device, stream.green);
        let context = ContextRef { uid: stream.context, device, handle: context.handle, green };
        let stream = StreamRef { uid, context, handle, legacy: stream.legacy };
        self.core.context_health(&state, context.uid)?;
        Ok(stream)
    }

    /// A context's legacy or per-thread default stream.
    pub(crate) fn default_stream(&self, context: ContextRef, per_thread: bool) -> Res<StreamRef> {
        let mut state = self.core.state.lock();
        let owner = state.contexts.get(&context.uid).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let green = context.green.and_then(|green| state.greens.get(&green));
        let (all, legacy) = match green {
            Some(green) => (&green.per_thread, green.legacy),
            None => (&owner.per_thread, owner.legacy),
        };
        let known = if per_thread { all.get(&thread_number()).copied() } else { Some(legacy) };
        let uid = match known {
            Some(uid) => uid,
            None => {
                let (uid, _) = self
                    .core
                    .add_stream(&mut state, context.uid, 0, 0, false)
                    .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
                if let Some(stream) = state.streams.get_mut(&uid) {
                    stream.green = context.green;
                }
                match context.green {
                    Some(green) => {
                        if let Some(green) = state.greens.get_mut(&green) {
                            green.per_thread.insert(thread_number(), uid);
                        }
                    }
                    None => {
                        if let Some(owner) = state.contexts.get_mut(&context.uid) {
                            owner.per_thread.insert(thread_number(), uid);
                        }
                    }
                }
                uid
            }
        };
        let handle = state.streams.get(&uid).map_or(CUstream::NULL, |stream| stream.handle);
        Ok(StreamRef { uid, context, handle, legacy: !per_thread })
    }
}

/// What CUDA answers to a handle that names nothing.
pub(crate) fn invalid_handle(_: BadHandle) -> CUresult {
    CUresult::CUDA_ERROR_INVALID_HANDLE
}

/// A pointer argument that a call may write through. Null is `CUDA_ERROR_INVALID_VALUE`.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn null() -> Self {
        Self(core::ptr::null_mut())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }
}

impl<T: Copy> Out<T> {
    /// Fails on null, for checks before a call has any effect.
    pub(crate) fn check(&self) -> Res {
        if self.0.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    pub(crate) fn set(&self, value: T) -> Res {
        self.check()?;
        // SAFETY: made from an argument (`Arg::wrap`): valid for the call if not null.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes if the caller wants the value.
    pub(crate) fn set_if(&self, value: T) {
        let _ = self.set(value);
    }

    pub(crate) fn get(&self) -> Res<T> {
        self.check()?;
        // SAFETY: as in `set`; CUDA's contract says that the caller filled it.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Element `index` of an array argument.
    pub(crate) fn get_at(&self, index: usize) -> Res<T> {
        self.check()?;
        // SAFETY: as in `get`; the caller passed at least this many elements.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    pub(crate) fn set_at(&self, index: usize, value: T) -> Res {
        self.check()?;
        // SAFETY: as in `get_at`.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }
}

/// A pointer argument that a call may read through.
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn raw(&self) -> *const T {
        self.0
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Res<T> {
        self.get_at(0)
    }

    pub(crate) fn get_at(&self, index: usize) -> Res<T> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: made from an argument (`Arg::wrap`): valid for the call if not null, with at least as
        // many elements as the call's contract says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl In<c_char> {
    /// The text of a C string.
    pub(crate) fn text(&self) -> Res<&str> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: as in `get_at`; a C string ends with a NUL.
        let text = unsafe { core::ffi::CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

impl Out<c_char> {
    /// Writes a C string of at most `len` bytes with its NUL, cut if it does not fit.
    pub(crate) fn set_text(&self, len: i32, text: &str) -> Res {
        self.check()?;
        let room = usize::try_from(len).ok().filter(|&n| n > 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let bytes = &text.as_bytes()[..text.len().min(room - 1)];
        for (i, &byte) in bytes.iter().chain(&[0]).enumerate() {
            self.set_at(i, byte as c_char)?;
        }
        Ok(())
    }
}

/// Arguments of entries as their bodies see them: pointers wrapped, the rest as it is.
pub(crate) trait Arg {
    type Seen;
    /// # Safety
    /// A pointer is null or valid for what the entry's contract says, for as long as the result lives.
    unsafe fn wrap(self) -> Self::Seen;
}

impl<T> Arg for *mut T {
    type Seen = Out<T>;
    unsafe fn wrap(self) -> Out<T> {
        Out(self)
    }
}

impl<T> Arg for *const T {
    type Seen = In<T>;
    unsafe fn wrap(self) -> In<T> {
        In(self)
    }
}

macro_rules! plain_args {
    ($($ty:ty)*) => { $(
        impl Arg for $ty {
            type Seen = $ty;
            unsafe fn wrap(self) -> $ty {
                self
            }
        }
    )* };
}

plain_args! {
    u8 u16 u32 u64 usize i32
    CUcontext CUstream CUevent CUmodule CUfunction CUlibrary CUkernel CUmemoryPool CUgreenCtx CUlinkState
    CUgraph CUgraphNode CUgraphExec CUuserObject CUdevResourceDesc
    CUresult CUlimit CUdevice_attribute CUdevice_P2PAttribute CUdevResourceType CUgraphMem_attribute
    CUlaunchAttributeID CUfunction_attribute CUfunc_cache CUjitInputType CUmem_advise CUpointer_attribute
    CUmemPool_attribute CUmemAllocationGranularity_flags CUmulticastGranularity_flags
    CUmemAllocationHandleType CUstreamCaptureMode CUhostFn CUoccupancyB2DSize
    CUipcEventHandle CUipcMemHandle
}

/// Defines entries of one family and `fill`, which puts them into a table:
///
/// ```text
/// entries! {
///     fn cuEventQuery(call, event: CUevent) { ...; Ok(()) }
/// }
/// ```
///
/// The body sees pointers as [`Out`] and [`In`], may return with `?`, and runs inside [`enter`].
macro_rules! entries {
    ($($(#[$meta:meta])* fn $name:ident($call:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
            unsafe fn $name(state: simtile_driver::State $(, $arg: $ty)*) -> simtile_driver::sys::CUresult {
                $(
                    // SAFETY: the caller of an entry says that its pointers are valid for the call.
                    let $arg = unsafe { $crate::entry::Arg::wrap($arg) };
                )*
                $crate::entry::enter(
                    state,
                    simtile_driver::Entry::$name,
                    move |$call: &$crate::entry::Call<'_>| -> $crate::core::Res { $body },
                )
            }
        )*

        /// Puts this family's entries into a table.
        #[allow(clippy::needless_update, reason = "families may be empty")]
        pub(super) const fn fill(base: simtile_driver::Table) -> simtile_driver::Table {
            simtile_driver::Table { $($name,)* ..base }
        }
    };
}
pub(crate) use entries;
