//! Peer access: kernels of one device on memory of another.
//!
//! Granting and revoking change the mapping of memory that work may be using, so each is a *write* to all memory that it covers: it
//! follows everything that uses that memory, and waits for it on the host, because the driver's calls take effect at once.
//! Copies between devices name both contexts and need no grant.

use super::{Context, Shared};
use crate::error::{CallError, ContextError, On};
use crate::memory::{Allocation, MemPool, location};
use crate::stream::Submit;
use crate::{Device, StreamError};
use simtile_driver::sys::*;
use simtile_driver::{DriverError, call};
use simtile_hazard::{Access, Mode};
use simtile_sync::Arc;
use smallvec::SmallVec;

/// Regions of one order.
const AT_ONCE: usize = 64;

impl Device {
    /// Whether kernels of this device can be given memory of another.
    ///
    /// # Errors
    /// The driver's.
    pub fn can_access_peer(self, peer: Device) -> Result<bool, crate::DeviceError> {
        let mut can = 0;
        // SAFETY: the out-pointer is valid for the call.
        let asked = unsafe {
            call!(self.driver(), cuDeviceCanAccessPeer(&mut can, self.cu_device(), peer.cu_device()))
        };
        asked.on(|| format!("{self} and {peer}"))?;
        Ok(can != 0)
    }
}

impl Context {
    /// Lets kernels of this context use the memory of `peer`, a context of another device. Twice is as good as once. Pools that
    /// users made are granted one by one ([`MemPool::grant`]).
    ///
    /// Waits for all work that uses that memory: a grant counts as a write to it.
    ///
    /// # Errors
    /// [`ContextError::NoPeerAccess`] if the devices cannot, or are one; [`ContextError::InUse`] if a guard or foreign code holds some of
    /// the memory; or the driver's.
    pub fn enable_peer_access(self: &Arc<Self>, peer: &Arc<Context>) -> Result<(), ContextError> {
        let on = || format!("peer access of {self} to {peer}");
        can_reach(self.device(), peer.device())?;
        let _one_at_a_time = peer.shared().granting.lock();
        if peer.shared().grants(self.shared()) {
            return Ok(());
        }
        peer.quiesce(|memory| memory.is_of_context())?;
        let pool = peer.own_pool().on(on)?;
        allowed(self.with_current(|driver| {
            // SAFETY: both contexts are alive; ours is current.
            unsafe { call!(driver, cuCtxEnablePeerAccess(peer.cu_ctx(), 0)) }
        }))
        .on(on)?;
        if let Some(pool) = pool
            && let Err(error) = peer.set_pool_access(pool, self.device(), true)
        {
            let _ = allowed(self.with_current(|driver| {
                // SAFETY: as above.
                unsafe { call!(driver, cuCtxDisablePeerAccess(peer.cu_ctx())) }
            }));
            return Err(error).on(on);
        }
        peer.shared().granted.lock().push(Arc::downgrade(self.shared()));
        Ok(())
    }

    /// Takes the right of [`Context::enable_peer_access`] away. Without it nothing happens.
    ///
    /// Submissions of this context that use the memory are refused from here on; then it waits for those before, and for all
    /// other work that uses the memory.
    ///
    /// # Errors
    /// As [`Context::enable_peer_access`]. Submissions are refused all the same.
    pub fn disable_peer_access(self: &Arc<Self>, peer: &Arc<Context>) -> Result<(), ContextError> {
        let on = || format!("peer access of {self} to {peer}");
        let _one_at_a_time = peer.shared().granting.lock();
        if !peer.shared().grants(self.shared()) {
            return Ok(());
        }
        {
            // Whoever has looked at the grant has submitted when these locks are ours.
            let mut turns = [self.shared(), peer.shared()];
            turns.sort_by_key(|shared| Arc::as_ptr(shared).addr());
            let _turns: SmallVec<[_; 2]> = turns.iter().map(|shared| shared.crossing.lock()).collect();
            let mine = Arc::as_ptr(self.shared());
            peer.shared().granted.lock().retain(|known| known.as_ptr() != mine);
        }
        peer.quiesce(|memory| memory.is_of_context())?;
        allowed(self.with_current(|driver| {
            // SAFETY: both contexts are alive; ours is current.
            unsafe { call!(driver, cuCtxDisablePeerAccess(peer.cu_ctx())) }
        }))
        .on(on)?;
        match peer.own_pool().on(on)? {
            Some(pool) => peer.set_pool_access(pool, self.device(), false).on(on),
            None => Ok(()),
        }
    }

    /// Whether kernels of this context may use the memory of `peer`.
    pub fn has_peer_access(&self, peer: &Context) -> bool {
        self == peer || peer.shared().grants(self.shared())
    }

    /// Whether kernels of this context may use this memory of another one.
    pub(crate) fn is_granted(&self, memory: &Allocation) -> bool {
        memory.is_open_to(self.device()).unwrap_or_else(|| memory.context().shared().grants(self.shared()))
    }

    fn set_pool_access(&self, pool: CUmemoryPool, device: Device, allow: bool) -> Result<(), CallError> {
        let flags = match allow {
            true => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        let desc = CUmemAccessDesc { location: location(device), flags };
        // SAFETY: the pool is alive, the description is valid for the call.
        self.with_current(|driver| unsafe { call!(driver, cuMemPoolSetAccess(pool, &desc, 1)) })
    }

    /// Waits until nothing uses some of the memory any more; what is submitted later follows.
    fn quiesce(self: &Arc<Self>, covered: impl Fn(&Allocation) -> bool) -> Result<(), ContextError> {
        let in_use = |error: StreamError| match error {
            StreamError::Driver { on, source } => ContextError::Driver { on, source },
            StreamError::ContextLost { on, source, by } => ContextError::ContextLost { on, source, by },
            StreamError::InHostFunction { on } => ContextError::InHostFunction { on },
            StreamError::Deinitialized { on } => ContextError::Deinitialized { on },
            StreamError::Forked { on } => ContextError::Forked { on },
            other => ContextError::InUse { context: self.to_string(), why: other.to_string() },
        };
        let all = self.shared().memory.live.all();
        let all: Vec<_> = all.iter().filter(|memory| covered(memory)).collect();
        if all.is_empty() {
            return Ok(());
        }
        let stream = self.new_stream().map_err(in_use)?;
        for part in all.chunks(AT_ONCE) {
            let accesses: Vec<Access<'_>> = part
                .iter()
                .filter_map(|a| a.region())
                .map(|region| Access::whole(region, Mode::Write))
                .collect();
            let used: Vec<&Allocation> = part.iter().map(|a| &***a).collect();
            let refused = |error| in_use(stream.refused(error, &used, || format!("a grant in {self}")));
            let submit = Submit { policy: Some(simtile_hazard::Policy::Order), ..Submit::SEALED };
            let done = stream.submit_tracked(&accesses, submit, |_, _| Ok(())).map_err(refused)?;
            self.tracker().wait(done.stamp).map_err(refused)?;
        }
        Ok(())
    }
}

/// Whether kernels of `from` can reach memory of `to`, checked before anything changes.
fn can_reach(from: Device, to: Device) -> Result<(), ContextError> {
    let refused = |why: &str| {
        let (from, to) = (from.to_string(), to.to_string());
        Err(ContextError::NoPeerAccess { from, to, why: why.into() })
    };
    if from.driver() != to.driver() {
        return refused("they belong to two drivers");
    }
    if from == to {
        return refused("they are one device, which has no peer in itself");
    }
    match from.can_access_peer(to) {
        Ok(true) => Ok(()),
        Ok(false) => refused("the driver says that they are no peers"),
        Err(error) => refused(&error.to_string()),
    }
}

/// "Already" and "not any more" are what was asked for.
fn allowed(result: Result<(), CallError>) -> Result<(), CallError> {
    match result {
        Err(CallError::Driver(error))
            if matches!(
                error.code(),
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                    | CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

impl Shared {
    fn grants(&self, to: &Arc<Shared>) -> bool {
        let mut granted = self.granted.lock();
        granted.retain(|known| known.strong_count() > 0);
        granted.iter().any(|known| known.as_ptr() == Arc::as_ptr(to))
    }
}

impl MemPool {
    /// Lets kernels of another device use the memory of this pool. Twice is as good as once.
    ///
    /// Waits for all work that uses the pool's memory: a grant counts as a write to it.
    ///
    /// # Errors
    /// As [`Context::enable_peer_access`].
    pub fn grant(self: &Arc<Self>, device: Device) -> Result<(), ContextError> {
        can_reach(device, self.context().device())?;
        let _one_at_a_time = self.context().shared().granting.lock();
        if self.granted.lock().contains(&device) {
            return Ok(());
        }
        self.context().quiesce(|memory| self.holds(memory))?;
        self.set_access(device, true)?;
        self.granted.lock().push(device);
        Ok(())
    }

    /// Takes the right of [`MemPool::grant`] away. Without it nothing happens.
    ///
    /// # Errors
    /// As [`Context::disable_peer_access`].
    pub fn revoke(self: &Arc<Self>, device: Device) -> Result<(), ContextError> {
        let _one_at_a_time = self.context().shared().granting.lock();
        if !self.granted.lock().contains(&device) {
            return Ok(());
        }
        // Whoever has looked at the grant has submitted when all locks are ours.
        let mut turns = self.context().shared().others();
        turns.retain(|shared| shared.link.device == device);
        turns.push(self.context().shared().clone());
        turns.sort_by_key(|shared| Arc::as_ptr(shared).addr());
        let locks: Vec<_> = turns.iter().map(|shared| shared.crossing.lock()).collect();
        self.granted.lock().retain(|known| *known != device);
        drop(locks);
        self.context().quiesce(|memory| self.holds(memory))?;
        self.set_access(device, false)
    }

    fn holds(&self, memory: &Allocation) -> bool {
        memory.pool().is_some_and(|pool| core::ptr::eq(&**pool, self))
    }

    fn set_access(&self, device: Device, allow: bool) -> Result<(), ContextError> {
        let on = || format!("access of {device} to {self}");
        let Some(pool) = self.cu_pool() else {
            let missing = DriverError::new(
                simtile_driver::Entry::cuMemPoolSetAccess,
                CUresult::CUDA_ERROR_NOT_SUPPORTED,
            );
            return Err(missing).on(on);
        };
        self.context().set_pool_access(pool, device, allow).on(on)
    }
}
