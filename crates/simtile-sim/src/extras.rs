//! What a runtime tells a simulated driver beyond CUDA: labels, and what the next launch accesses.

use crate::check::Declared;
use crate::entry::{Call, thread_number};
use crate::simulator::Shell;
use simtile_driver::sys::{CUresult, CUstream};
use simtile_driver::{AccessMode, DeclaredAccess, Entry, Extras, LabelTarget, State};

/// The extras of every simulated driver.
pub(crate) static EXTRAS: Extras = Extras { label, declare, declare_named, stream_number, host_access };

fn answer(result: Result<(), CUresult>) -> CUresult {
    match result {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}

/// Names an allocation or a stream in reports.
unsafe fn label(state: State, target: LabelTarget, text: &str) -> CUresult {
    // SAFETY: the simulator's table is only paired with states of type `Shell`.
    let Some(core) = unsafe { state.get::<Shell>() }.core() else {
        return CUresult::CUDA_ERROR_DEINITIALIZED;
    };
    answer(match target {
        LabelTarget::Allocation(address) => {
            match core.space.locate_in(crate::memory::View::Submission, address, 0) {
                Ok(allocation) => {
                    allocation.set_label(text);
                    Ok(())
                }
                Err(_) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            }
        }
        LabelTarget::Stream(stream) => {
            let call = Call { core: &core, entry: Entry::cuStreamGetId };
            call.stream(stream).and_then(|stream| {
                let mut state = core.state.lock();
                let stream = state.streams.get_mut(&stream.uid).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
                stream.label = Some(text.to_owned());
                Ok(())
            })
        }
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    })
}

/// Keeps what the calling thread's next launch on a stream accesses.
unsafe fn declare(state: State, stream: CUstream, accesses: &[DeclaredAccess]) -> CUresult {
    // SAFETY: the caller's.
    unsafe { keep(state, stream, accesses, true) }
}

/// Keeps how the calling thread's next launch on a stream accesses these ranges.
unsafe fn declare_named(state: State, stream: CUstream, accesses: &[DeclaredAccess]) -> CUresult {
    // SAFETY: the caller's.
    unsafe { keep(state, stream, accesses, false) }
}

unsafe fn keep(state: State, stream: CUstream, accesses: &[DeclaredAccess], all: bool) -> CUresult {
    // SAFETY: as in `label`.
    let Some(core) = unsafe { state.get::<Shell>() }.core() else {
        return CUresult::CUDA_ERROR_DEINITIALIZED;
    };
    let call = Call { core: &core, entry: Entry::cuLaunchKernel };
    answer(call.stream(stream).map(|stream| {
        let declared = Declared { accesses: accesses.to_vec(), all };
        core.declared.lock().insert((thread_number(), stream.uid), declared);
    }))
}

/// The number of a stream in reports.
unsafe fn stream_number(state: State, stream: CUstream) -> u64 {
    // SAFETY: as in `label`.
    let Some(core) = unsafe { state.get::<Shell>() }.core() else { return 0 };
    let call = Call { core: &core, entry: Entry::cuStreamGetId };
    call.stream(stream).map_or(0, |stream| stream.uid)
}

/// The calling thread reads or writes memory that devices reach too.
unsafe fn host_access(state: State, address: u64, bytes: u64, mode: AccessMode) -> CUresult {
    // SAFETY: as in `label`.
    let Some(core) = unsafe { state.get::<Shell>() }.core() else {
        return CUresult::CUDA_ERROR_DEINITIALIZED;
    };
    answer(core.host_access(address, bytes, mode))
}
