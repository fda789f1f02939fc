//! Finding bugs that are planted in the runtime: what says that the explorer would find others.

use simtile_core::{Bug, plant};

/// What became of a planted bug.
#[derive(Debug)]
pub struct Found {
    /// The bug.
    pub bug: Bug,
    /// The first seed that shows it, and how.
    pub by: Option<(u64, String)>,
}

/// Plants one bug after the other (those whose name contains `filter`), and runs seeds from `from` on until one shows it, at most
/// `most` each.
pub fn find_all(filter: &str, from: u64, most: u64, each: &mut dyn FnMut(&Found)) -> Vec<Found> {
    let mut all = Vec::new();
    for &bug in Bug::ALL.iter().filter(|bug| format!("{bug:?}").contains(filter)) {
        plant(Some(bug));
        let by = (from..from + most).find_map(|seed| super::run(seed).err().map(|wrong| (seed, wrong)));
        plant(None);
        let found = Found { bug, by };
        each(&found);
        all.push(found);
    }
    all
}
