//! Step 1: the list of accesses, checked and in the order in which the guards are taken.

use super::{Access, Accesses};
use crate::backend::Backend;
use crate::error::SubmitError;
use crate::mode::Kind;
use crate::mutate::site;

/// Bounds, order by region, aliasing.
#[inline]
pub(crate) fn collect<'a, B: Backend>(accesses: &'a [Access<'a>]) -> Result<Accesses<'a>, SubmitError<B>> {
    let mut list = Accesses::new();
    let (mut sorted, mut previous) = (true, None);
    for access in accesses {
        let (start, end, len) = (access.start, access.end, access.region.len());
        if start > end || end > len {
            return Err(SubmitError::OutOfRange { region: access.region.id(), start, end, len });
        }
        if start == end {
            continue;
        }
        let id = Some(access.region.id());
        sorted &= previous < id;
        previous = id;
        list.push(access);
    }
    if !sorted {
        list.sort_unstable_by_key(|access| (access.region.id(), access.start));
        check_aliases(&list)?;
    }
    Ok(list)
}

/// Two accesses of one region that overlap must commute. `list` is sorted by region and start.
#[cold]
fn check_aliases<B: Backend>(list: &[&Access<'_>]) -> Result<(), SubmitError<B>> {
    for (at, access) in list.iter().enumerate() {
        for other in &list[at + 1..] {
            if other.region.id() != access.region.id() || other.start >= access.end {
                break;
            }
            let (a, b) = (Kind::new(access.mode, access.start, 0), Kind::new(other.mode, other.start, 0));
            if a.conflicts(b) && site!(RefuseAlias) {
                let (start, end) = (other.start, other.end.min(access.end));
                return Err(SubmitError::Aliased { region: access.region.id(), start, end });
            }
        }
    }
    Ok(())
}
