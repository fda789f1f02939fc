//! What kernels print: buffered per context, shown at synchronisation, as CUDA does.

use simtile_sync::Mutex;
use std::io::Write;

#[derive(Default)]
pub(crate) struct Printf {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Printed, not yet shown: context uid and text.
    pending: Vec<(u64, Vec<u8>)>,
    /// Shown, if captured.
    captured: Option<Vec<u8>>,
}

impl Printf {
    /// Keeps what is shown for [`Printf::take`] instead of writing it to stdout.
    pub(crate) fn capture(&self) {
        self.state.lock().captured.get_or_insert_default();
    }

    pub(crate) fn write(&self, context: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        match state.pending.iter_mut().find(|(owner, _)| *owner == context) {
            Some((_, text)) => text.extend_from_slice(bytes),
            None => state.pending.push((context, bytes.to_vec())),
        }
    }

    /// Shows what a context's kernels have printed.
    pub(crate) fn flush(&self, context: u64) {
        let mut state = self.state.lock();
        let Some(at) = state.pending.iter().position(|(owner, _)| *owner == context) else { return };
        let (_, text) = state.pending.swap_remove(at);
        match &mut state.captured {
            Some(captured) => captured.extend_from_slice(&text),
            None => {
                drop(state);
                // Nothing to be done if stdout is closed.
                let _ = std::io::stdout().write_all(&text);
            }
        }
    }

    /// What was shown so far.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.state.lock().captured.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
