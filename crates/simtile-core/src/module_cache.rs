//! Modules by what they were loaded of, each loaded once.
//!
//! An entry is in the table before its load begins, so whoever asks meanwhile waits for that load and shares its outcome. An outcome that is
//! an error is taken out of the table before anybody is told, so whoever asks after having been told loads again. The loader calls the driver
//! with nothing locked; who waits holds nothing, and waits for a thread that is at work in the driver.

use crate::error::{Error, Family, ModuleError};
use crate::{Context, JitOptions, Module};
use core::fmt;
use simtile_sync::{Arc, Condvar, Mutex};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Loads each image once a context and set of options, however many threads ask for it.
///
/// The modules stay loaded, and their contexts alive, until the cache is dropped or cleared and nobody else has them. An image is known by its
/// bytes, of which a copy is kept. Nothing is written to disk; what the driver compiles is in the driver's own cache there.
///
/// ```
/// use simtile_core::ModuleCache;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sim = simtile_sim::Simulator::builder().quiet().build();
/// # let context = simtile_core::Device::new(sim.driver(), 0)?.primary_context()?;
/// # let ptx = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n";
/// let modules = ModuleCache::new();
/// let one = modules.load(&context, ptx)?;
/// let two = modules.load(&context, ptx)?;
/// assert!(std::sync::Arc::ptr_eq(&one, &two));
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct ModuleCache {
    /// By the hash of what they were loaded of.
    entries: Mutex<HashMap<u64, Vec<Arc<Entry>>>>,
    hasher: RandomState,
}

struct Entry {
    context: Arc<Context>,
    options: JitOptions,
    image: Box<[u8]>,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Loading,
    Done(Outcome),
    /// The thread that loaded it panicked: somebody else is to.
    GivenUp,
}

type Outcome = Result<Arc<Module>, Arc<Error>>;

impl Entry {
    fn is_of(&self, context: &Context, image: &[u8], options: &JitOptions) -> bool {
        *self.context == *context && self.options == *options && *self.image == *image
    }

    /// Waits until it has been loaded. `None`: it was given up.
    fn outcome(&self) -> Option<Outcome> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Loading => self.changed.wait(&mut state),
                State::Done(outcome) => return Some(outcome.clone()),
                State::GivenUp => return None,
            }
        }
    }
}

/// An entry that this thread loads. Dropped without an outcome, it is given up.
struct Load<'a> {
    cache: &'a ModuleCache,
    hash: u64,
    entry: Arc<Entry>,
    outcome: Option<Outcome>,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        if !matches!(outcome, Some(Ok(_))) {
            let mut entries = self.cache.entries.lock();
            if let Some(list) = entries.get_mut(&self.hash) {
                list.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
                if list.is_empty() {
                    entries.remove(&self.hash);
                }
            }
        }
        *self.entry.state.lock() = outcome.map_or(State::GivenUp, State::Done);
        self.entry.changed.notify_all();
    }
}

impl ModuleCache {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The module of this image, loaded as by [`Context::load_module`] if it is not there. Waits for another thread that is loading it.
    ///
    /// # Errors
    /// As [`Context::load_module`], to all who have waited for that load; whoever asks later loads again.
    pub fn load(&self, context: &Arc<Context>, image: &[u8]) -> Result<Arc<Module>, Arc<Error>> {
        self.load_with(context, image, &JitOptions::new())
    }

    /// The same with options for the driver's compiler. An image is loaded once for each set of options.
    ///
    /// # Errors
    /// As [`Context::load_module_with`].
    pub fn load_with(
        &self,
        context: &Arc<Context>,
        image: &[u8],
        options: &JitOptions,
    ) -> Result<Arc<Module>, Arc<Error>> {
        // In a host function nothing is waited for, and in a forked child nobody would come.
        if let Err(error) = context.usable() {
            let on = format!("image of {} bytes", image.len());
            return Err(Arc::new(ModuleError::from_call(error, on).into()));
        }
        let hash = self.hasher.hash_one((context.cu_ctx_id(), options, image));
        loop {
            let (entry, mine) = {
                let mut entries = self.entries.lock();
                let list = entries.entry(hash).or_default();
                match list.iter().find(|entry| entry.is_of(context, image, options)) {
                    Some(entry) => (entry.clone(), false),
                    None => {
                        let entry = Arc::new(Entry {
                            context: context.clone(),
                            options: *options,
                            image: image.into(),
                            state: Mutex::new(State::Loading),
                            changed: Condvar::new(),
                        });
                        list.push(entry.clone());
                        (entry, true)
                    }
                }
            };
            if mine {
                let mut load = Load { cache: self, hash, entry, outcome: None };
                let loaded = context.load_module_with(image, options);
                let outcome = loaded.map_err(|error| Arc::new(error.into()));
                load.outcome = Some(outcome.clone());
                return outcome;
            }
            if let Some(outcome) = entry.outcome() {
                return outcome;
            }
        }
    }

    /// The module of this image, if it has been loaded. Waits for nothing.
    pub fn get(&self, context: &Context, image: &[u8], options: &JitOptions) -> Option<Arc<Module>> {
        if crate::sys::is_forked() {
            return None;
        }
        let hash = self.hasher.hash_one((context.cu_ctx_id(), options, image));
        let entries = self.entries.lock();
        let entry = entries.get(&hash)?.iter().find(|entry| entry.is_of(context, image, options))?;
        match &*entry.state.lock() {
            State::Done(Ok(module)) => Some(module.clone()),
            _ => None,
        }
    }

    /// How many modules it has, those that are being loaded among them.
    pub fn len(&self) -> usize {
        self.entries.lock().values().map(Vec::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all modules. Those that others have stay loaded, and who waits for a load gets its outcome.
    pub fn clear(&self) {
        let entries = core::mem::take(&mut *self.entries.lock());
        drop(entries);
    }
}

impl fmt::Debug for ModuleCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleCache").field("modules", &self.len()).finish()
    }
}
