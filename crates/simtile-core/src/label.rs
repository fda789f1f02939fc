//! Names that users give to buffers and streams, for errors and reports.

use simtile_sync::{Arc, RwLock};

/// A name that may be set at any time.
#[derive(Debug, Default)]
pub(crate) struct Label(RwLock<Option<Arc<str>>>);

impl Label {
    pub(crate) fn set(&self, text: &str) {
        *self.0.write() = Some(text.into());
    }

    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.read().clone()
    }

    /// `kind 7`, or `kind 7 "text"`.
    pub(crate) fn describe(&self, kind: &str, id: u64) -> String {
        match self.get() {
            Some(text) => format!("{kind} {id} {text:?}"),
            None => format!("{kind} {id}"),
        }
    }
}
