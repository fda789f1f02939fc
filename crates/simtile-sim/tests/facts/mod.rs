//! What a driver answers to memory calls, good and bad, as lines of text.
//!
//! The same program runs on a GPU (`cargo run -p simtile-sim --example memory_facts`) and on the simulator
//! (`tests/memory_facts.rs`), which must print the same lines. Each case leaves the driver as it found it.

use simtile_driver::Driver;
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Collects the lines.
pub struct Facts {
    pub driver: Driver,
    pub context: CUcontext,
    pub lines: Vec<String>,
    /// Called with the name of each case before it runs.
    pub before: fn(&str),
    /// Called with each line.
    pub line: fn(&str),
}

fn name(code: CUresult) -> String {
    let text = format!("{code:?}");
    text.strip_prefix("CUDA_ERROR_").or(text.strip_prefix("CUDA_")).unwrap_or(&text).to_owned()
}

/// Calls an entry, notes what it answered and returns the code.
macro_rules! fact {
    ($f:expr, $what:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        let what = $what;
        ($f.before)(&format!("{} {what}", stringify!($entry)));
        // SAFETY: each case passes pointers that are valid for the call, or values that a driver must refuse.
        let code = unsafe { $f.driver.$entry($($arg),*) };
        $f.note(format!("{} {what}: {}", stringify!($entry), name(code)));
        code
    }};
}

/// Calls an entry that must succeed for the cases to make sense.
macro_rules! must {
    ($f:expr, $entry:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are valid.
        let code = unsafe { $f.driver.$entry($($arg),*) };
        if !code.is_ok() {
            $f.note(format!("UNEXPECTED {} (line {}): {}", stringify!($entry), line!(), name(code)));
        }
        code.is_ok()
    }};
}

impl Facts {
    fn note(&mut self, text: String) {
        (self.line)(&text);
        self.lines.push(text);
    }

    fn alloc(&mut self, bytes: usize) -> u64 {
        let mut p = 0;
        must!(self, cuMemAlloc(&mut p, bytes));
        p
    }

    fn free(&mut self, p: u64) {
        must!(self, cuMemFree(p));
    }

    fn pinned(&mut self, bytes: usize, flags: u32) -> *mut c_void {
        let mut p = null_mut();
        must!(self, cuMemHostAlloc(&mut p, bytes, flags));
        p
    }
}

/// Something that is no device address.
const WILD: u64 = 0x7000_0000_0000_1000;

/// A family of cases: its name and what runs it.
pub type Family = (&'static str, fn(&mut Facts));

/// The families of cases.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    ("no_context", no_context), ("device_memory", device_memory), ("pinned", pinned), ("registered", registered),
    ("managed", managed), ("attach", attach), ("pointer_attributes", pointer_attributes), ("copies", copies),
    ("copies_2d", copies_2d), ("copies_3d", copies_3d), ("memsets", memsets), ("pools", pools),
    ("pool_access", pool_access), ("pool_accounting", pool_accounting), ("virtual_memory", virtual_memory),
    ("peers", peers), ("two_devices", two_devices), ("ipc", ipc),
];

/// Runs one family on device 0.
pub fn run(driver: Driver, family: fn(&mut Facts), before: fn(&str), line: fn(&str)) -> Vec<String> {
    let mut f = Facts { driver, context: CUcontext::NULL, lines: Vec::new(), before, line };
    must!(f, cuInit(0));
    let mut context = CUcontext::NULL;
    must!(f, cuDevicePrimaryCtxRetain(&mut context, 0));
    must!(f, cuCtxSetCurrent(context));
    f.context = context;
    family(&mut f);
    must!(f, cuCtxSetCurrent(CUcontext::NULL));
    must!(f, cuDevicePrimaryCtxRelease(0));
    f.lines
}

fn no_context(f: &mut Facts) {
    must!(f, cuCtxSetCurrent(CUcontext::NULL));
    let (mut p, mut host, mut size) = (0, null_mut(), 0);
    fact!(f, "without a context", cuMemAlloc(&mut p, 16));
    fact!(f, "null without a context", cuMemFree(0));
    fact!(f, "wild without a context", cuMemFree(WILD));
    fact!(f, "without a context", cuMemGetInfo(&mut size, &mut size.clone()));
    fact!(f, "without a context", cuMemHostAlloc(&mut host, 16, 0));
    fact!(f, "without a context", cuMemAllocManaged(&mut p, 16, 1));
    fact!(f, "without a context", cuMemAllocAsync(&mut p, 16, CUstream::NULL));
    fact!(f, "0 bytes without a context", cuMemcpyDtoD(0, 0, 0));
    fact!(f, "without a context", cuMemsetD8(WILD, 0, 1));
    let mut value = 0u64;
    fact!(
        f,
        "memory type, wild, without a context",
        cuPointerGetAttribute(
            (&raw mut value).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            WILD
        )
    );
    if fact!(f, "without a context", cuMemAddressReserve(&mut p, 2 << 20, 0, 0, 0)).is_ok() {
        fact!(f, "without a context", cuMemAddressFree(p, 2 << 20));
    }
}

fn device_memory(f: &mut Facts) {
    let mut p = 0;
    fact!(f, "null out", cuMemAlloc(null_mut(), 16));
    fact!(f, "0 bytes", cuMemAlloc(&mut p, 0));
    fact!(f, "2^60 bytes", cuMemAlloc(&mut p, 1 << 60));
    fact!(f, "all bits", cuMemAlloc(&mut p, usize::MAX));
    fact!(f, "null", cuMemFree(0));
    fact!(f, "wild", cuMemFree(WILD));
    let a = f.alloc(1000);
    f.note(format!("cuMemAlloc alignment 256: {}", a.is_multiple_of(256)));
    fact!(f, "inside", cuMemFree(a + 256));
    fact!(f, "start", cuMemFree(a));
    fact!(f, "twice", cuMemFree(a));
    let (mut base, mut size) = (0, 0);
    let a = f.alloc(1000);
    fact!(f, "inside", cuMemGetAddressRange(&mut base, &mut size, a + 999));
    f.note(format!("  base {}, size {size}", base == a));
    fact!(f, "null outs", cuMemGetAddressRange(null_mut(), null_mut(), a));
    fact!(f, "null base", cuMemGetAddressRange(null_mut(), &mut size, a));
    fact!(f, "wild", cuMemGetAddressRange(&mut base, &mut size, WILD));
    fact!(f, "null", cuMemGetAddressRange(&mut base, &mut size, 0));
    f.free(a);
    fact!(f, "freed", cuMemGetAddressRange(&mut base, &mut size, a));
    fact!(f, "null free", cuMemGetInfo(null_mut(), &mut size));
    fact!(f, "null both", cuMemGetInfo(null_mut(), null_mut()));
    let (mut before, mut after, mut total) = (0, 0, 0);
    must!(f, cuMemGetInfo(&mut before, &mut total));
    let a = f.alloc(64 << 20);
    must!(f, cuMemGetInfo(&mut after, &mut total));
    f.note(format!("cuMemGetInfo falls by 64 MiB: {}", before - after == 64 << 20));
    f.free(a);
    // Pitches.
    let mut pitch = 0;
    for (w, h, e) in [(1, 1, 4), (512, 3, 4), (513, 3, 8), (100, 1, 16), (3000, 2, 4)] {
        if fact!(f, format!("{w}x{h} by {e}"), cuMemAllocPitch(&mut p, &mut pitch, w, h, e)).is_ok() {
            f.note(format!("  pitch {pitch}"));
            must!(f, cuMemGetAddressRange(&mut base, &mut size, p));
            f.note(format!("  size {size}"));
            f.free(p);
        }
    }
    for (w, h, e) in [(0, 1, 4), (4, 0, 4), (4, 4, 3), (4, 4, 0), (4, 4, 32), (4, 4, 1), (4, 4, 2)] {
        if fact!(f, format!("{w}x{h} by {e}"), cuMemAllocPitch(&mut p, &mut pitch, w, h, e)).is_ok() {
            f.free(p);
        }
    }
    fact!(f, "null pitch", cuMemAllocPitch(&mut p, null_mut(), 4, 4, 4));
    fact!(f, "null out", cuMemAllocPitch(null_mut(), &mut pitch, 4, 4, 4));
}

fn pinned(f: &mut Facts) {
    let mut host = null_mut();
    fact!(f, "null out", cuMemHostAlloc(null_mut(), 16, 0));
    fact!(f, "0 bytes", cuMemHostAlloc(&mut host, 0, 0));
    f.note(format!("  pointer null: {}", host.is_null()));
    if !host.is_null() {
        fact!(f, "of 0 bytes", cuMemFreeHost(host));
    }
    fact!(f, "flags 8", cuMemHostAlloc(&mut host, 16, 8));
    fact!(f, "2^60 bytes", cuMemHostAlloc(&mut host, 1 << 60, 0));
    fact!(f, "null", cuMemFreeHost(null_mut()));
    fact!(f, "wild", cuMemFreeHost(WILD as usize as *mut c_void));
    let mut flags = 99;
    let mut device = 0;
    for given in 0..8 {
        let p = f.pinned(4096, given);
        fact!(f, format!("of {given}"), cuMemHostGetFlags(&mut flags, p));
        f.note(format!("  {flags}"));
        fact!(f, format!("of {given}"), cuMemHostGetDevicePointer(&mut device, p, 0));
        f.note(format!("  same: {}", device == p as u64));
        must!(f, cuMemFreeHost(p));
    }
    let p = f.pinned(4096, 0);
    let inside = p.wrapping_byte_add(100);
    fact!(f, "inside", cuMemHostGetDevicePointer(&mut device, inside, 0));
    f.note(format!("  same: {}", device == inside as u64));
    fact!(f, "flags 1", cuMemHostGetDevicePointer(&mut device, p, 1));
    fact!(f, "null out", cuMemHostGetDevicePointer(null_mut(), p, 0));
    fact!(f, "null host", cuMemHostGetDevicePointer(&mut device, null_mut(), 0));
    fact!(f, "null out", cuMemHostGetFlags(null_mut(), p));
    fact!(f, "inside", cuMemHostGetFlags(&mut flags, inside));
    fact!(f, "inside", cuMemFreeHost(inside));
    fact!(f, "pinned memory", cuMemFree(p as u64));
    fact!(f, "pinned memory", cuMemHostUnregister(p));
    let (mut base, mut size) = (0, 0);
    fact!(f, "pinned memory", cuMemGetAddressRange(&mut base, &mut size, inside as u64));
    f.note(format!("  base {}, size {size}", base == p as u64));
    fact!(f, "start", cuMemFreeHost(p));
    fact!(f, "twice", cuMemFreeHost(p));
    let local = 0u64;
    let local = (&raw const local).cast_mut().cast::<c_void>();
    fact!(f, "pageable", cuMemFreeHost(local));
    fact!(f, "pageable", cuMemHostGetFlags(&mut flags, local));
    fact!(f, "pageable", cuMemHostGetDevicePointer(&mut device, local, 0));
    let a = f.alloc(16);
    fact!(f, "device memory", cuMemFreeHost(a as usize as *mut c_void));
    fact!(f, "device memory", cuMemHostGetFlags(&mut flags, a as usize as *mut c_void));
    f.free(a);
}

fn registered(f: &mut Facts) {
    let memory = vec![0u8; 64 << 10];
    let start = memory.as_ptr().addr().next_multiple_of(4096);
    let p = memory.as_ptr().with_addr(start).cast_mut().cast::<c_void>();
    let at = |offset: usize| p.wrapping_byte_add(offset);
    fact!(f, "null", cuMemHostRegister(null_mut(), 16, 0));
    fact!(f, "0 bytes", cuMemHostRegister(p, 0, 0));
    fact!(f, "flags 16", cuMemHostRegister(p, 4096, 16));
    fact!(f, "unregistered", cuMemHostUnregister(p));
    fact!(f, "null", cuMemHostUnregister(null_mut()));
    let mut flags = 99;
    let mut device = 0;
    for given in [0, 1, 2, 3] {
        fact!(f, format!("flags {given}"), cuMemHostRegister(p, 8192, given));
        fact!(f, format!("of registered {given}"), cuMemHostGetFlags(&mut flags, p));
        f.note(format!("  {flags}"));
        fact!(f, "of registered", cuMemHostGetDevicePointer(&mut device, at(100), 0));
        f.note(format!("  same: {}", device == at(100) as u64));
        fact!(f, "start", cuMemHostUnregister(p));
    }
    if fact!(f, "unaligned", cuMemHostRegister(at(100), 1000, 0)).is_ok() {
        fact!(f, "aligned down", cuMemHostUnregister(p));
        fact!(f, "unaligned", cuMemHostUnregister(at(100)));
    }
    fact!(f, "8 KiB", cuMemHostRegister(p, 8192, 0));
    fact!(f, "again", cuMemHostRegister(p, 8192, 0));
    fact!(f, "inside", cuMemHostRegister(at(4096), 100, 0));
    fact!(f, "overlapping the end", cuMemHostRegister(at(4096), 8192, 0));
    fact!(f, "around", cuMemHostRegister(p, 16384, 0));
    fact!(f, "neighbour", cuMemHostRegister(at(8192), 4096, 0));
    fact!(f, "neighbour", cuMemHostUnregister(at(8192)));
    fact!(f, "inside", cuMemHostUnregister(at(4096)));
    fact!(f, "registered", cuMemFreeHost(p));
    let (mut base, mut size) = (0, 0);
    fact!(f, "registered", cuMemGetAddressRange(&mut base, &mut size, at(5) as u64));
    f.note(format!("  base {}, size {size}", base == p as u64));
    fact!(f, "start", cuMemHostUnregister(p));
    fact!(f, "twice", cuMemHostUnregister(p));
    let q = f.pinned(8192, 0);
    fact!(f, "pinned", cuMemHostRegister(q, 4096, 0));
    must!(f, cuMemFreeHost(q));
}

fn managed(f: &mut Facts) {
    let mut p = 0;
    fact!(f, "null out", cuMemAllocManaged(null_mut(), 16, 1));
    fact!(f, "0 bytes", cuMemAllocManaged(&mut p, 0, 1));
    fact!(f, "flags 0", cuMemAllocManaged(&mut p, 16, 0));
    fact!(f, "flags 3", cuMemAllocManaged(&mut p, 16, 3));
    fact!(f, "flags 4", cuMemAllocManaged(&mut p, 16, 4));
    if fact!(f, "flags 2", cuMemAllocManaged(&mut p, 16, 2)).is_ok() {
        f.free(p);
    }
    must!(f, cuMemAllocManaged(&mut p, 8192, 1));
    // SAFETY: managed memory is host memory.
    unsafe { (p as usize as *mut u64).write(7) };
    let s = CUstream::NULL;
    fact!(f, "to device", cuMemPrefetchAsync(p, 8192, 0, s));
    fact!(f, "to host", cuMemPrefetchAsync(p, 8192, -1, s));
    fact!(f, "part", cuMemPrefetchAsync(p + 100, 100, 0, s));
    fact!(f, "0 bytes", cuMemPrefetchAsync(p, 0, 0, s));
    fact!(f, "past the end", cuMemPrefetchAsync(p, 8193, 0, s));
    fact!(f, "far past the end", cuMemPrefetchAsync(p, 64 << 20, 0, s));
    fact!(f, "device 77", cuMemPrefetchAsync(p, 8192, 77, s));
    fact!(f, "device -5", cuMemPrefetchAsync(p, 8192, -5, s));
    let a = f.alloc(4096);
    fact!(f, "device memory", cuMemPrefetchAsync(a, 4096, 0, s));
    fact!(f, "wild", cuMemPrefetchAsync(WILD, 4096, 0, s));
    fact!(f, "device memory", cuMemAdvise(a, 4096, CUmem_advise(1), 0));
    fact!(f, "wild", cuMemAdvise(WILD, 4096, CUmem_advise(1), 0));
    for advice in 0..8 {
        fact!(f, format!("advice {advice}"), cuMemAdvise(p, 8192, CUmem_advise(advice), 0));
    }
    fact!(f, "device 77", cuMemAdvise(p, 8192, CUmem_advise(3), 77));
    fact!(f, "to host", cuMemAdvise(p, 8192, CUmem_advise(3), -1));
    fact!(f, "0 bytes", cuMemAdvise(p, 0, CUmem_advise(1), 0));
    fact!(f, "past the end", cuMemAdvise(p, 8193, CUmem_advise(1), 0));
    fact!(f, "managed", cuMemFreeHost(p as usize as *mut c_void));
    f.free(a);
    fact!(f, "managed", cuMemFree(p));
}

fn attach(f: &mut Facts) {
    let (mut p, s) = (0, CUstream::NULL);
    must!(f, cuMemAllocManaged(&mut p, 8192, 1));
    let a = f.alloc(4096);
    let mut stream = CUstream::NULL;
    must!(f, cuStreamCreate(&mut stream, 0));
    for flags in [1, 2, 4] {
        fact!(f, format!("flags {flags}"), cuStreamAttachMemAsync(stream, p, 0, flags));
    }
    fact!(f, "whole length", cuStreamAttachMemAsync(stream, p, 8192, 4));
    fact!(f, "part", cuStreamAttachMemAsync(stream, p, 4096, 4));
    fact!(f, "inside", cuStreamAttachMemAsync(stream, p + 4096, 0, 4));
    fact!(f, "single on the null stream", cuStreamAttachMemAsync(s, p, 0, 4));
    fact!(f, "device memory", cuStreamAttachMemAsync(stream, a, 0, 4));
    fact!(f, "wild", cuStreamAttachMemAsync(stream, WILD, 0, 4));
    must!(f, cuStreamSynchronize(stream));
    must!(f, cuCtxSynchronize());
    must!(f, cuStreamDestroy(stream));
    f.free(a);
    f.free(p);
}

fn attributes_of(f: &mut Facts, what: &str, p: u64, base: u64) {
    for number in 0..23 {
        if number == 5 || number == 20 {
            continue;
        }
        let mut value = [0xEEu8; 64];
        let code = fact!(
            f,
            format!("{number} of {what}"),
            cuPointerGetAttribute(value.as_mut_ptr().cast(), CUpointer_attribute(number), p)
        );
        if !code.is_ok() {
            continue;
        }
        let u32_ = u32::from_ne_bytes(value[..4].try_into().unwrap_or_default());
        let u64_ = u64::from_ne_bytes(value[..8].try_into().unwrap_or_default());
        let bytes = value.iter().rposition(|b| *b != 0xEE).map_or(0, |n| n + 1);
        let text = match number {
            1 => format!("ours {}, null {}", u64_ == f.context.0 as u64, u64_ == 0),
            3 | 4 | 11 | 19 => {
                format!("{:+}, null {}", u64_.wrapping_sub(base) as i64 * i64::from(u64_ != 0), u64_ == 0)
            }
            7 => format!("id {}", u64_ != 0),
            17 => format!("pool {}", u64_ != 0),
            12 | 14 | 18 => format!("{u64_}"),
            16 => format!("{u64_:#x}"),
            6 | 8 | 10 | 13 | 15 | 21 => format!("{} ({bytes} bytes)", value[0]),
            _ => format!("{}", u32_ as i32),
        };
        f.note(format!("  {text}"));
    }
}

fn pointer_attributes(f: &mut Facts) {
    let a = f.alloc(1000);
    attributes_of(f, "device", a + 8, a);
    fact!(f, "null data", cuPointerGetAttribute(null_mut(), CUpointer_attribute(2), a));
    let p = f.pinned(5000, 0) as u64;
    attributes_of(f, "pinned", p + 8, p);
    let mut m = 0;
    must!(f, cuMemAllocManaged(&mut m, 5000, 1));
    attributes_of(f, "managed", m + 8, m);
    let mut q = 0;
    must!(f, cuMemAllocAsync(&mut q, 5000, CUstream::NULL));
    attributes_of(f, "pool", q + 8, q);
    let local = [0u64; 4];
    let local = local.as_ptr().addr() as u64;
    attributes_of(f, "pageable", local + 8, local);
    attributes_of(f, "null", 0, 0);
    // Several at once.
    let (mut kind, mut ordinal, mut base) = (99u32, 99u32, 99u64);
    let mut wanted = [CUpointer_attribute(2), CUpointer_attribute(9), CUpointer_attribute(11)];
    let mut data: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut base).cast()];
    for (what, pointer) in [("device", a + 8), ("pageable", local), ("wild", WILD), ("null", 0)] {
        (kind, ordinal, base) = (99, 99, 99);
        fact!(f, what, cuPointerGetAttributes(3, wanted.as_mut_ptr(), data.as_mut_ptr(), pointer));
        let which = [(a, "right"), (0, "null"), (99, "left alone")];
        let which = which.iter().find(|(value, _)| *value == base).map_or("something", |(_, text)| text);
        f.note(format!("  {kind} {} {which}", ordinal as i32));
    }
    fact!(f, "none", cuPointerGetAttributes(0, wanted.as_mut_ptr(), data.as_mut_ptr(), a));
    fact!(f, "null list", cuPointerGetAttributes(3, null_mut(), data.as_mut_ptr(), a));
    fact!(f, "null data", cuPointerGetAttributes(3, wanted.as_mut_ptr(), null_mut(), a));
    wanted[1] = CUpointer_attribute(77);
    fact!(f, "unknown attribute", cuPointerGetAttributes(3, wanted.as_mut_ptr(), data.as_mut_ptr(), a));
    // Setting.
    let one = 1u32;
    let one = (&raw const one).cast::<c_void>();
    fact!(f, "sync memops of device", cuPointerSetAttribute(one, CUpointer_attribute(6), a));
    let mut value = [0u8; 8];
    must!(f, cuPointerGetAttribute(value.as_mut_ptr().cast(), CUpointer_attribute(6), a));
    f.note(format!("  {}", value[0]));
    fact!(f, "sync memops inside", cuPointerSetAttribute(one, CUpointer_attribute(6), a + 8));
    fact!(f, "sync memops of pinned", cuPointerSetAttribute(one, CUpointer_attribute(6), p));
    fact!(f, "sync memops of managed", cuPointerSetAttribute(one, CUpointer_attribute(6), m));
    fact!(f, "sync memops of pool", cuPointerSetAttribute(one, CUpointer_attribute(6), q));
    fact!(f, "sync memops of pageable", cuPointerSetAttribute(one, CUpointer_attribute(6), local));
    fact!(f, "memory type", cuPointerSetAttribute(one, CUpointer_attribute(2), a));
    fact!(f, "null value", cuPointerSetAttribute(std::ptr::null(), CUpointer_attribute(6), a));
    f.free(a);
    f.free(m);
    f.free(q);
    must!(f, cuMemFreeHost(p as usize as *mut c_void));
    fact!(
        f,
        "memory type of freed",
        cuPointerGetAttribute(value.as_mut_ptr().cast(), CUpointer_attribute(2), a)
    );
}

fn copies(f: &mut Facts) {
    let (a, b) = (f.alloc(1024), f.alloc(1024));
    let mut host = [7u8; 2048];
    let h = host.as_mut_ptr().cast::<c_void>();
    let hu = h as u64;
    let s = CUstream::NULL;
    let p = f.pinned(1024, 0);
    for _ in 0..2 {
        must!(f, cuMemsetD8(a, 1, 1024));
        must!(f, cuMemsetD8(b, 1, 1024));
    }
    fact!(f, "0 bytes wild", cuMemcpyDtoD(WILD, WILD, 0));
    fact!(f, "0 bytes null", cuMemcpyHtoD(0, null_mut(), 0));
    fact!(f, "0 bytes null", cuMemcpyDtoH(null_mut(), 0, 0));
    fact!(f, "0 bytes wild", cuMemcpy(WILD, WILD, 0));
    fact!(f, "0 bytes null", cuMemcpyHtoDAsync(0, null_mut(), 0, s));
    fact!(f, "whole", cuMemcpyHtoD(a, h, 1024));
    fact!(f, "past the end", cuMemcpyHtoD(a, h, 1025));
    fact!(f, "past the end from inside", cuMemcpyHtoD(a + 1000, h, 100));
    fact!(f, "wild", cuMemcpyHtoD(WILD, h, 16));
    fact!(f, "null device", cuMemcpyHtoD(0, h, 16));
    fact!(f, "null host", cuMemcpyHtoD(a, null_mut(), 16));
    fact!(f, "to pinned", cuMemcpyHtoD(p as u64, h, 16));
    fact!(f, "to pageable", cuMemcpyHtoD(hu, h, 16));
    fact!(f, "from device", cuMemcpyHtoD(a, b as usize as *const c_void, 16));
    fact!(f, "whole", cuMemcpyDtoH(h, a, 1024));
    fact!(f, "past the end", cuMemcpyDtoH(h, a, 1025));
    fact!(f, "wild", cuMemcpyDtoH(h, WILD, 16));
    fact!(f, "null host", cuMemcpyDtoH(null_mut(), a, 16));
    fact!(f, "from pinned", cuMemcpyDtoH(h, p as u64, 16));
    fact!(f, "from pageable", cuMemcpyDtoH(h, hu + 100, 16));
    fact!(f, "to device", cuMemcpyDtoH(b as usize as *mut c_void, a, 16));
    fact!(f, "whole", cuMemcpyDtoD(b, a, 1024));
    fact!(f, "past the source's end", cuMemcpyDtoD(b, a + 1, 1024));
    fact!(f, "past the destination's end", cuMemcpyDtoD(b + 1, a, 1024));
    fact!(f, "wild source", cuMemcpyDtoD(a, WILD, 16));
    fact!(f, "wild destination", cuMemcpyDtoD(WILD, a, 16));
    fact!(f, "to pinned", cuMemcpyDtoD(p as u64, a, 16));
    fact!(f, "from pageable", cuMemcpyDtoD(a, hu, 16));
    fact!(f, "overlapping", cuMemcpyDtoD(a + 8, a, 512));
    fact!(f, "onto itself", cuMemcpyDtoD(a, a, 512));
    fact!(f, "device to pageable", cuMemcpy(hu, a, 16));
    fact!(f, "pageable to device", cuMemcpy(a, hu, 16));
    fact!(f, "pageable to pageable", cuMemcpy(hu + 512, hu, 16));
    fact!(f, "pinned to pageable", cuMemcpy(hu, p as u64, 16));
    fact!(f, "device to device", cuMemcpy(b, a, 16));
    fact!(f, "past the end", cuMemcpy(b, a, 1025));
    fact!(f, "null destination", cuMemcpy(0, a, 16));
    fact!(f, "past the end", cuMemcpyHtoDAsync(a, h, 1025, s));
    fact!(f, "wild", cuMemcpyHtoDAsync(WILD, h, 16, s));
    fact!(f, "past the end of pinned", cuMemcpyHtoDAsync(a, p, 1024, s));
    fact!(f, "past the end", cuMemcpyDtoHAsync(h, a, 1025, s));
    fact!(f, "wild", cuMemcpyDtoHAsync(h, WILD, 16, s));
    fact!(f, "past the end", cuMemcpyDtoDAsync(b, a, 1025, s));
    fact!(f, "wild", cuMemcpyDtoDAsync(b, WILD, 16, s));
    fact!(f, "past the end", cuMemcpyAsync(b, a, 1025, s));
    fact!(f, "pageable to device", cuMemcpyAsync(a, hu, 16, s));
    fact!(f, "device to pageable", cuMemcpyAsync(hu, a, 16, s));
    fact!(f, "pageable to pageable", cuMemcpyAsync(hu + 512, hu, 16, s));
    let c = f.context;
    fact!(f, "same context", cuMemcpyPeer(b, c, a, c, 1024));
    fact!(f, "past the end", cuMemcpyPeer(b, c, a, c, 1025));
    fact!(f, "null contexts", cuMemcpyPeer(b, CUcontext::NULL, a, CUcontext::NULL, 16));
    fact!(f, "0 bytes", cuMemcpyPeer(b, c, a, c, 0));
    fact!(f, "same context", cuMemcpyPeerAsync(b, c, a, c, 1024, s));
    fact!(f, "wild", cuMemcpyPeerAsync(b, c, WILD, c, 1024, s));
    must!(f, cuCtxSynchronize());
    f.free(a);
    fact!(f, "freed", cuMemcpyDtoH(h, a, 16));
    fact!(f, "freed", cuMemsetD8(a, 0, 16));
    f.free(b);
    must!(f, cuMemFreeHost(p));
}

fn copies_2d(f: &mut Facts) {
    let a = f.alloc(4096);
    let mut host = [3u8; 4096];
    // SAFETY: all-zero is a valid value of this C structure.
    let zero: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    let good = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_mut_ptr().cast(),
        srcPitch: 64,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: a,
        dstPitch: 128,
        WidthInBytes: 48,
        Height: 32,
        ..zero
    };
    let case = |f: &mut Facts, what: &str, change: &dyn Fn(&mut CUDA_MEMCPY2D)| {
        let mut copy = good;
        change(&mut copy);
        fact!(f, what, cuMemcpy2D(&copy));
        fact!(f, what, cuMemcpy2DUnaligned(&copy));
        fact!(f, what, cuMemcpy2DAsync(&copy, CUstream::NULL));
    };
    case(f, "good", &|_| ());
    case(f, "last row ends with the allocation", &|c| (c.dstXInBytes, c.WidthInBytes) = (64, 64));
    case(f, "past the end", &|c| c.Height = 33);
    case(f, "past the end by y", &|c| c.dstY = 1);
    case(f, "past the end by x", &|c| c.dstXInBytes = 128);
    case(f, "no width", &|c| c.WidthInBytes = 0);
    case(f, "no height", &|c| c.Height = 0);
    case(f, "no width, wild", &|c| (c.WidthInBytes, c.dstDevice) = (0, WILD));
    case(f, "pitch under width", &|c| c.dstPitch = 47);
    case(f, "pitch under x and width", &|c| (c.dstPitch, c.dstXInBytes, c.Height) = (64, 32, 2));
    case(f, "source pitch under width", &|c| c.srcPitch = 47);
    case(f, "pitch 0, one row", &|c| (c.srcPitch, c.dstPitch, c.Height) = (0, 0, 1));
    case(f, "pitch 0, two rows", &|c| (c.srcPitch, c.dstPitch, c.Height) = (0, 0, 2));
    case(f, "huge pitch", &|c| (c.dstPitch, c.Height) = (1 << 40, 1));
    case(f, "odd pitches", &|c| (c.dstPitch, c.srcPitch) = (101, 51));
    case(f, "wild", &|c| c.dstDevice = WILD);
    case(f, "null host", &|c| c.srcHost = std::ptr::null());
    case(f, "array", &|c| c.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY);
    case(f, "type 9", &|c| c.dstMemoryType = CUmemorytype(9));
    case(f, "type 0", &|c| c.dstMemoryType = CUmemorytype(0));
    case(f, "unified", &|c| {
        (c.dstMemoryType, c.srcMemoryType, c.srcDevice) = (
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            c.srcHost.addr() as u64,
        )
    });
    case(f, "host called device", &|c| {
        (c.srcMemoryType, c.srcDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, c.srcHost.addr() as u64)
    });
    fact!(f, "null", cuMemcpy2D(std::ptr::null()));
    must!(f, cuCtxSynchronize());
    f.free(a);
}

fn copies_3d(f: &mut Facts) {
    let a = f.alloc(8192);
    let mut host = [3u8; 8192];
    // SAFETY: all-zero is a valid value of this C structure.
    let zero: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    let good = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_mut_ptr().cast(),
        srcPitch: 64,
        srcHeight: 8,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: a,
        dstPitch: 128,
        dstHeight: 16,
        WidthInBytes: 48,
        Height: 8,
        Depth: 4,
        ..zero
    };
    let case = |f: &mut Facts, what: &str, change: &dyn Fn(&mut CUDA_MEMCPY3D)| {
        let mut copy = good;
        change(&mut copy);
        fact!(f, what, cuMemcpy3D(&copy));
        fact!(f, what, cuMemcpy3DAsync(&copy, CUstream::NULL));
    };
    case(f, "good", &|_| ());
    case(f, "past the end", &|c| c.Depth = 5);
    case(f, "past the end by z", &|c| c.dstZ = 1);
    case(f, "no depth", &|c| c.Depth = 0);
    case(f, "no width", &|c| c.WidthInBytes = 0);
    case(f, "height under rows", &|c| c.dstHeight = 7);
    case(f, "height under y and rows", &|c| (c.dstHeight, c.dstY) = (8, 1));
    case(f, "source height under rows", &|c| c.srcHeight = 7);
    case(f, "height 0, one slice", &|c| (c.dstHeight, c.srcHeight, c.Depth) = (0, 0, 1));
    case(f, "height 0, two slices", &|c| (c.dstHeight, c.srcHeight, c.Depth) = (0, 0, 2));
    case(f, "pitch 0, one row", &|c| {
        (c.dstPitch, c.srcPitch, c.dstHeight, c.srcHeight, c.Height, c.Depth) = (0, 0, 0, 0, 1, 1)
    });
    case(f, "pitch under width", &|c| c.dstPitch = 47);
    case(f, "LOD 1", &|c| c.dstLOD = 1);
    case(f, "reserved set", &|c| c.reserved0 = c.srcHost.cast_mut());
    case(f, "array", &|c| c.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY);
    case(f, "unified", &|c| {
        (c.dstMemoryType, c.srcMemoryType, c.srcDevice) = (
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            c.srcHost.addr() as u64,
        )
    });
    fact!(f, "null", cuMemcpy3D(std::ptr::null()));
    must!(f, cuCtxSynchronize());
    f.free(a);
}

fn memsets(f: &mut Facts) {
    let a = f.alloc(1024);
    let s = CUstream::NULL;
    fact!(f, "whole", cuMemsetD8(a, 1, 1024));
    fact!(f, "none", cuMemsetD8(a, 1, 0));
    fact!(f, "none, wild", cuMemsetD8(WILD, 1, 0));
    fact!(f, "none, null", cuMemsetD8(0, 1, 0));
    fact!(f, "past the end", cuMemsetD8(a, 1, 1025));
    fact!(f, "wild", cuMemsetD8(WILD, 1, 16));
    fact!(f, "null", cuMemsetD8(0, 1, 16));
    fact!(f, "whole", cuMemsetD16(a, 1, 512));
    fact!(f, "odd", cuMemsetD16(a + 1, 1, 4));
    fact!(f, "past the end", cuMemsetD16(a, 1, 513));
    fact!(f, "whole", cuMemsetD32(a, 1, 256));
    fact!(f, "by 2", cuMemsetD32(a + 2, 1, 4));
    fact!(f, "past the end", cuMemsetD32(a, 1, 257));
    fact!(f, "none, misaligned", cuMemsetD32(a + 2, 1, 0));
    fact!(f, "past the end", cuMemsetD8Async(a, 1, 1025, s));
    fact!(f, "odd", cuMemsetD16Async(a + 1, 1, 4, s));
    fact!(f, "by 2", cuMemsetD32Async(a + 2, 1, 4, s));
    fact!(f, "good", cuMemsetD2D8(a, 64, 1, 32, 16));
    fact!(f, "last row", cuMemsetD2D8(a, 65, 1, 32, 16));
    fact!(f, "past the end", cuMemsetD2D8(a, 64, 1, 32, 17));
    fact!(f, "pitch under width", cuMemsetD2D8(a, 31, 1, 32, 2));
    fact!(f, "pitch 0, one row", cuMemsetD2D8(a, 0, 1, 32, 1));
    fact!(f, "pitch under width, one row", cuMemsetD2D8(a, 31, 1, 32, 1));
    fact!(f, "no rows", cuMemsetD2D8(a, 64, 1, 32, 0));
    fact!(f, "no width", cuMemsetD2D8(a, 64, 1, 0, 3));
    fact!(f, "good", cuMemsetD2D16(a, 64, 1, 16, 16));
    fact!(f, "odd pitch", cuMemsetD2D16(a, 65, 1, 16, 4));
    fact!(f, "odd pitch, one row", cuMemsetD2D16(a, 65, 1, 16, 1));
    fact!(f, "good", cuMemsetD2D32(a, 64, 1, 16, 16));
    fact!(f, "pitch by 2", cuMemsetD2D32(a, 66, 1, 16, 4));
    fact!(f, "odd", cuMemsetD2D32(a + 1, 64, 1, 4, 4));
    fact!(f, "width over pitch", cuMemsetD2D32(a, 60, 1, 16, 4));
    fact!(f, "good", cuMemsetD2D32Async(a, 64, 1, 16, 16, s));
    fact!(f, "past the end", cuMemsetD2D32Async(a, 64, 1, 16, 17, s));
    let p = f.pinned(1024, 0) as u64;
    fact!(f, "pinned", cuMemsetD8(p, 1, 1024));
    let local = [0u64; 8];
    fact!(f, "pageable", cuMemsetD8(local.as_ptr().addr() as u64, 1, 16));
    must!(f, cuCtxSynchronize());
    must!(f, cuMemFreeHost(p as usize as *mut c_void));
    f.free(a);
}

fn pool_value(f: &mut Facts, pool: CUmemoryPool, number: u32) -> u64 {
    let mut value = 0u64;
    must!(f, cuMemPoolGetAttribute(pool, CUmemPool_attribute(number), (&raw mut value).cast()));
    value
}

fn device_props() -> CUmemPoolProps {
    // SAFETY: all-zero is a valid value of this C structure.
    let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    props
}

fn pools(f: &mut Facts) {
    let s = CUstream::NULL;
    let mut p;
    fact!(f, "null out", cuMemAllocAsync(null_mut(), 16, s));
    p = 99;
    fact!(f, "0 bytes", cuMemAllocAsync(&mut p, 0, s));
    f.note(format!("  pointer null: {}, left alone: {}", p == 0, p == 99));
    fact!(f, "2^60 bytes", cuMemAllocAsync(&mut p, 1 << 60, s));
    fact!(f, "null", cuMemFreeAsync(0, s));
    fact!(f, "wild", cuMemFreeAsync(WILD, s));
    must!(f, cuMemAllocAsync(&mut p, 1000, s));
    f.note(format!("cuMemAllocAsync alignment 256: {}", p.is_multiple_of(256)));
    let (mut base, mut size) = (0, 0);
    fact!(f, "pool memory", cuMemGetAddressRange(&mut base, &mut size, p + 5));
    f.note(format!("  base {}, size {size}", base == p));
    let mut host = [0u8; 2048];
    fact!(f, "past the end of pool memory", cuMemcpyDtoH(host.as_mut_ptr().cast(), p, 1001));
    fact!(f, "past the end of pool memory", cuMemsetD8(p, 0, 1001));
    fact!(f, "inside", cuMemFreeAsync(p + 256, s));
    fact!(f, "start", cuMemFreeAsync(p, s));
    fact!(f, "twice", cuMemFreeAsync(p, s));
    fact!(f, "freed in stream order", cuMemFree(p));
    fact!(f, "freed in stream order", cuMemsetD8(p, 0, 16));
    must!(f, cuMemAllocAsync(&mut p, 1000, s));
    fact!(f, "pool memory", cuMemFree(p));
    let a = f.alloc(1000);
    if !fact!(f, "cuMemAlloc memory", cuMemFreeAsync(a, s)).is_ok() {
        f.free(a);
    }
    let h = f.pinned(1000, 0);
    fact!(f, "pinned memory", cuMemFreeAsync(h as u64, s));
    must!(f, cuMemFreeHost(h));
    // The default pool.
    let (mut pool, mut current) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    fact!(f, "device 0", cuDeviceGetDefaultMemPool(&mut pool, 0));
    fact!(f, "device 77", cuDeviceGetDefaultMemPool(&mut pool, 77));
    fact!(f, "null out", cuDeviceGetDefaultMemPool(null_mut(), 0));
    fact!(f, "device 0", cuDeviceGetMemPool(&mut current, 0));
    f.note(format!("  is the default: {}", pool == current));
    for number in 0..10 {
        let mut value = 0u64;
        fact!(f, number, cuMemPoolGetAttribute(pool, CUmemPool_attribute(number), (&raw mut value).cast()));
        if (1..5).contains(&number) {
            f.note(format!("  {value}"));
        }
    }
    fact!(f, "null value", cuMemPoolGetAttribute(pool, CUmemPool_attribute(1), null_mut()));
    fact!(
        f,
        "null pool",
        cuMemPoolGetAttribute(CUmemoryPool::NULL, CUmemPool_attribute(1), (&raw mut p).cast())
    );
    let (zero, one, big) = (0u64, 1u64, 1u64 << 20);
    for number in 0..10 {
        for (what, value) in [("0", &zero), ("1", &one), ("2^20", &big)] {
            fact!(
                f,
                format!("{number} to {what}"),
                cuMemPoolSetAttribute(
                    pool,
                    CUmemPool_attribute(number),
                    std::ptr::from_ref(value).cast_mut().cast()
                )
            );
        }
    }
    for number in 1..5 {
        let value = pool_value(f, pool, number);
        f.note(format!("  {number}: {value}"));
    }
    for number in 1..4 {
        must!(
            f,
            cuMemPoolSetAttribute(
                pool,
                CUmemPool_attribute(number),
                std::ptr::from_ref(&one).cast_mut().cast()
            )
        );
    }
    must!(
        f,
        cuMemPoolSetAttribute(pool, CUmemPool_attribute(4), std::ptr::from_ref(&zero).cast_mut().cast())
    );
    fact!(f, "default", cuMemPoolTrimTo(pool, 0));
    fact!(f, "null", cuMemPoolTrimTo(CUmemoryPool::NULL, 0));
    fact!(f, "default", cuMemPoolDestroy(pool));
    fact!(f, "null", cuMemPoolDestroy(CUmemoryPool::NULL));
    // Creation.
    let mut own = CUmemoryPool::NULL;
    let bad = |f: &mut Facts, what: &str, change: &dyn Fn(&mut CUmemPoolProps)| {
        let mut props = device_props();
        change(&mut props);
        let mut own = CUmemoryPool::NULL;
        if fact!(f, what, cuMemPoolCreate(&mut own, &props)).is_ok() {
            must!(f, cuMemPoolDestroy(own));
        }
    };
    bad(f, "good", &|_| ());
    bad(f, "type 0", &|p| p.allocType = CUmemAllocationType(0));
    bad(f, "type 5", &|p| p.allocType = CUmemAllocationType(5));
    bad(f, "location 0", &|p| p.location.type_ = CUmemLocationType(0));
    bad(f, "location 9", &|p| p.location.type_ = CUmemLocationType(9));
    bad(f, "device 77", &|p| p.location.id = 77);
    bad(f, "device -1", &|p| p.location.id = -1);
    bad(f, "handle type 64", &|p| p.handleTypes = CUmemAllocationHandleType(64));
    bad(f, "max size", &|p| p.maxSize = 64 << 20);
    bad(f, "reserved set", &|p| p.reserved[3] = 1);
    fact!(f, "null out", cuMemPoolCreate(null_mut(), &device_props()));
    fact!(f, "null properties", cuMemPoolCreate(&mut own, std::ptr::null()));
    // An own pool.
    must!(f, cuMemPoolCreate(&mut own, &device_props()));
    for number in 1..9 {
        let value = pool_value(f, own, number);
        f.note(format!("own pool {number}: {value}"));
    }
    fact!(f, "own", cuMemAllocFromPoolAsync(&mut p, 1000, own, s));
    fact!(f, "0 bytes", cuMemAllocFromPoolAsync(&mut p.clone(), 0, own, s));
    fact!(f, "null pool", cuMemAllocFromPoolAsync(&mut p.clone(), 16, CUmemoryPool::NULL, s));
    let mut of = CUmemoryPool::NULL;
    must!(f, cuPointerGetAttribute((&raw mut of).cast(), CUpointer_attribute(17), p));
    f.note(format!("pool attribute is the pool: {}", of == own));
    fact!(f, "own", cuDeviceSetMemPool(0, own));
    must!(f, cuDeviceGetMemPool(&mut current, 0));
    f.note(format!("  is own: {}", current == own));
    fact!(f, "null", cuDeviceSetMemPool(0, CUmemoryPool::NULL));
    fact!(f, "with memory, current", cuMemPoolDestroy(own));
    must!(f, cuDeviceGetMemPool(&mut current, 0));
    f.note(format!("  current is the default: {}", current == pool));
    fact!(f, "memory of a destroyed pool", cuMemsetD8(p, 0, 1000));
    must!(f, cuPointerGetAttribute((&raw mut of).cast(), CUpointer_attribute(17), p));
    f.note(format!("  pool attribute is the pool: {}", of == own));
    fact!(f, "memory of a destroyed pool", cuMemFreeAsync(p, s));
    must!(f, cuCtxSynchronize());
    must!(f, cuDeviceSetMemPool(0, pool));
}

fn pool_access(f: &mut Facts) {
    let mut pool = CUmemoryPool::NULL;
    must!(f, cuDeviceGetDefaultMemPool(&mut pool, 0));
    let mut location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let mut access = CUmemAccess_flags(99);
    fact!(f, "own device", cuMemPoolGetAccess(&mut access, pool, &mut location));
    f.note(format!("  {}", access.0));
    location.id = 77;
    fact!(f, "device 77", cuMemPoolGetAccess(&mut access, pool, &mut location));
    location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    fact!(f, "null location", cuMemPoolGetAccess(&mut access, pool, null_mut()));
    fact!(f, "null out", cuMemPoolGetAccess(null_mut(), pool, &mut location));
    for (what, kind, id, flags) in [
        ("own device, read-write", 1, 0, 3),
        ("own device, read", 1, 0, 1),
        ("own device, none", 1, 0, 0),
        ("own device, 2", 1, 0, 2),
        ("device 77", 1, 77, 3),
        ("host", 2, 0, 3),
    ] {
        let desc = CUmemAccessDesc {
            location: CUmemLocation { type_: CUmemLocationType(kind), id },
            flags: CUmemAccess_flags(flags),
        };
        fact!(f, what, cuMemPoolSetAccess(pool, &desc, 1));
    }
    fact!(f, "none", cuMemPoolSetAccess(pool, std::ptr::null(), 0));
    fact!(f, "null list", cuMemPoolSetAccess(pool, std::ptr::null(), 1));
}

fn pool_accounting(f: &mut Facts) {
    let mut props = device_props();
    props.maxSize = 64 << 20;
    let (mut pool, mut stream, mut other) = (CUmemoryPool::NULL, CUstream::NULL, CUstream::NULL);
    must!(f, cuMemPoolCreate(&mut pool, &props));
    must!(f, cuStreamCreate(&mut stream, 1));
    must!(f, cuStreamCreate(&mut other, 1));
    let state = |f: &mut Facts, what: &str| {
        let values: Vec<u64> = (5..9).map(|n| pool_value(f, pool, n)).collect();
        f.note(format!(
            "{what}: reserved {} high {} used {} high {}",
            values[0], values[1], values[2], values[3]
        ));
    };
    let (mut a, mut b, mut c) = (0, 0, 0);
    must!(f, cuMemAllocFromPoolAsync(&mut a, 1000, pool, stream));
    state(f, "1000 bytes");
    must!(f, cuMemAllocFromPoolAsync(&mut b, 40 << 20, pool, stream));
    state(f, "and 40 MiB");
    fact!(f, "over the pool's size", cuMemAllocFromPoolAsync(&mut c, 40 << 20, pool, stream));
    must!(f, cuMemFreeAsync(b, stream));
    state(f, "40 MiB freed");
    must!(f, cuMemAllocFromPoolAsync(&mut c, 40 << 20, pool, stream));
    f.note(format!("same stream reuses: {}", b == c));
    must!(f, cuMemFreeAsync(c, stream));
    must!(f, cuStreamSynchronize(stream));
    state(f, "freed and synchronised, threshold 0");
    let threshold = u64::MAX;
    must!(
        f,
        cuMemPoolSetAttribute(pool, CUmemPool_attribute(4), std::ptr::from_ref(&threshold).cast_mut().cast())
    );
    must!(f, cuMemAllocFromPoolAsync(&mut c, 40 << 20, pool, stream));
    must!(f, cuMemFreeAsync(c, stream));
    must!(f, cuStreamSynchronize(stream));
    state(f, "freed and synchronised, no threshold");
    must!(f, cuMemPoolTrimTo(pool, 0));
    state(f, "trimmed to 0");
    let zero = 0u64;
    for number in [6, 8] {
        must!(
            f,
            cuMemPoolSetAttribute(
                pool,
                CUmemPool_attribute(number),
                std::ptr::from_ref(&zero).cast_mut().cast()
            )
        );
    }
    state(f, "highs reset");
    must!(f, cuMemFreeAsync(a, stream));
    must!(f, cuStreamSynchronize(stream));
    state(f, "all freed");
    must!(f, cuMemPoolTrimTo(pool, 0));
    state(f, "all trimmed");
    // Reuse across streams: completed work (opportunistic), then an event.
    must!(f, cuMemAllocFromPoolAsync(&mut a, 4 << 20, pool, stream));
    must!(f, cuMemFreeAsync(a, stream));
    must!(f, cuStreamSynchronize(stream));
    must!(f, cuMemAllocFromPoolAsync(&mut b, 4 << 20, pool, other));
    f.note(format!("other stream reuses what has completed: {}", a == b));
    must!(f, cuMemFreeAsync(b, other));
    must!(f, cuStreamSynchronize(other));
    must!(f, cuMemPoolDestroy(pool));
    must!(f, cuStreamDestroy(stream));
    must!(f, cuStreamDestroy(other));
}

fn virtual_memory(f: &mut Facts) {
    const M: usize = 2 << 20;
    // SAFETY: all-zero is a valid value of this C structure.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let mut size = 0;
    for option in 0..3 {
        fact!(
            f,
            format!("{option}"),
            cuMemGetAllocationGranularity(&mut size, &prop, CUmemAllocationGranularity_flags(option))
        );
        f.note(format!("  {size}"));
    }
    fact!(
        f,
        "null out",
        cuMemGetAllocationGranularity(null_mut(), &prop, CUmemAllocationGranularity_flags(0))
    );
    fact!(
        f,
        "null properties",
        cuMemGetAllocationGranularity(&mut size, std::ptr::null(), CUmemAllocationGranularity_flags(0))
    );
    // Addresses.
    let mut p = 0;
    fact!(f, "null out", cuMemAddressReserve(null_mut(), M, 0, 0, 0));
    fact!(f, "0 bytes", cuMemAddressReserve(&mut p, 0, 0, 0, 0));
    fact!(f, "4096 bytes", cuMemAddressReserve(&mut p, 4096, 0, 0, 0));
    fact!(f, "flags 1", cuMemAddressReserve(&mut p, M, 0, 0, 1));
    fact!(f, "alignment 3", cuMemAddressReserve(&mut p, M, 3, 0, 0));
    if fact!(f, "alignment 4096", cuMemAddressReserve(&mut p, M, 4096, 0, 0)).is_ok() {
        must!(f, cuMemAddressFree(p, M));
    }
    fact!(f, "2^62 bytes", cuMemAddressReserve(&mut p, 1 << 62, 0, 0, 0));
    must!(f, cuMemAddressReserve(&mut p, M, 64 << 20, 0, 0));
    f.note(format!("cuMemAddressReserve alignment kept: {}", p.is_multiple_of(64 << 20)));
    let mut q = 0;
    fact!(f, "taken hint", cuMemAddressReserve(&mut q, M, 0, p, 0));
    f.note(format!("  elsewhere: {}", q != p));
    must!(f, cuMemAddressFree(q, M));
    must!(f, cuMemAddressFree(p, M));
    fact!(f, "twice", cuMemAddressFree(p, M));
    must!(f, cuMemAddressReserve(&mut p, 4 * M, 0, 0, 0));
    let at = |n: usize| p + (n * M) as u64;
    fact!(f, "part", cuMemAddressFree(p, M));
    fact!(f, "inside", cuMemAddressFree(at(1), 3 * M));
    fact!(f, "too much", cuMemAddressFree(p, 5 * M));
    fact!(f, "null", cuMemAddressFree(0, M));
    // Handles.
    let (mut a, mut b) = (0, 0);
    fact!(f, "null out", cuMemCreate(null_mut(), M, &prop, 0));
    fact!(f, "null properties", cuMemCreate(&mut a, M, std::ptr::null(), 0));
    fact!(f, "0 bytes", cuMemCreate(&mut a, 0, &prop, 0));
    fact!(f, "4096 bytes", cuMemCreate(&mut a, 4096, &prop, 0));
    fact!(f, "flags 1", cuMemCreate(&mut a, M, &prop, 1));
    fact!(f, "2^60 bytes", cuMemCreate(&mut a, 1 << 60, &prop, 0));
    let bad = |f: &mut Facts, what: &str, change: &dyn Fn(&mut CUmemAllocationProp)| {
        let mut prop = prop;
        change(&mut prop);
        let mut h = 0;
        if fact!(f, what, cuMemCreate(&mut h, M, &prop, 0)).is_ok() {
            must!(f, cuMemRelease(h));
        }
        let mut size = 0;
        fact!(f, what, cuMemGetAllocationGranularity(&mut size, &prop, CUmemAllocationGranularity_flags(0)));
    };
    bad(f, "type 0", &|p| p.type_ = CUmemAllocationType(0));
    bad(f, "type 5", &|p| p.type_ = CUmemAllocationType(5));
    bad(f, "location 0", &|p| p.location.type_ = CUmemLocationType(0));
    bad(f, "device 77", &|p| p.location.id = 77);
    bad(f, "device -1", &|p| p.location.id = -1);
    bad(f, "compression 1", &|p| p.allocFlags.compressionType = 1);
    must!(f, cuMemCreate(&mut a, 2 * M, &prop, 0));
    must!(f, cuMemCreate(&mut b, M, &prop, 0));
    fact!(f, "0", cuMemRelease(0));
    fact!(f, "null out", cuMemGetAllocationPropertiesFromHandle(null_mut(), a));
    // SAFETY: all-zero is a valid value of this C structure.
    let mut got: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    fact!(f, "a", cuMemGetAllocationPropertiesFromHandle(&mut got, a));
    f.note(format!("  {} {} {}", got.type_.0, got.location.type_.0, got.location.id));
    // Mapping.
    fact!(f, "before mapping", cuMemsetD8(p, 1, 16));
    fact!(f, "before mapping", cuMemUnmap(p, M));
    fact!(f, "unreserved", cuMemMap(0x4000_0000_0000, M, 0, b, 0));
    fact!(f, "part of a handle", cuMemMap(at(0), M, 0, a, 0));
    fact!(f, "offset", cuMemMap(at(0), M, M, a, 0));
    fact!(f, "offset too far", cuMemMap(at(0), M, 2 * M, a, 0));
    fact!(f, "larger than the handle", cuMemMap(at(0), 2 * M, 0, b, 0));
    fact!(f, "misaligned", cuMemMap(p + 4096, M, 0, b, 0));
    fact!(f, "0 bytes", cuMemMap(at(0), 0, 0, b, 0));
    fact!(f, "4096 bytes", cuMemMap(at(0), 4096, 0, b, 0));
    fact!(f, "flags 1", cuMemMap(at(0), M, 0, b, 1));
    fact!(f, "handle 0", cuMemMap(at(0), M, 0, 0, 0));
    fact!(f, "a at 0", cuMemMap(at(0), 2 * M, 0, a, 0));
    fact!(f, "taken", cuMemMap(at(1), M, 0, b, 0));
    fact!(f, "b at 2", cuMemMap(at(2), M, 0, b, 0));
    fact!(f, "b at 3 too", cuMemMap(at(3), M, 0, b, 0));
    fact!(f, "without access", cuMemsetD8(p, 1, 16));
    let mut host = vec![0u8; 4 * M];
    let h = host.as_mut_ptr().cast::<c_void>();
    fact!(f, "without access", cuMemcpyDtoH(h, p, 16));
    let mut flags = 99;
    let mut here = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    fact!(f, "none yet", cuMemGetAccess(&mut flags, &here, p));
    f.note(format!("  {flags}"));
    let desc = |kind: u32, id: i32, flags: u32| CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType(kind), id },
        flags: CUmemAccess_flags(flags),
    };
    fact!(f, "none", cuMemSetAccess(p, 2 * M, std::ptr::null(), 0));
    fact!(f, "null list", cuMemSetAccess(p, 2 * M, std::ptr::null(), 1));
    fact!(f, "part of a mapping", cuMemSetAccess(p, M, &desc(1, 0, 3), 1));
    fact!(f, "misaligned", cuMemSetAccess(p + 4096, M, &desc(1, 0, 3), 1));
    fact!(f, "4096 bytes", cuMemSetAccess(p, 4096, &desc(1, 0, 3), 1));
    fact!(f, "0 bytes", cuMemSetAccess(p, 0, &desc(1, 0, 3), 1));
    fact!(f, "device 77", cuMemSetAccess(p, 2 * M, &desc(1, 77, 3), 1));
    fact!(f, "flags 2", cuMemSetAccess(p, 2 * M, &desc(1, 0, 2), 1));
    fact!(f, "host", cuMemSetAccess(p, 2 * M, &desc(2, 0, 3), 1));
    fact!(f, "location 0", cuMemSetAccess(p, 2 * M, &desc(0, 0, 3), 1));
    fact!(f, "read", cuMemSetAccess(p, 2 * M, &desc(1, 0, 1), 1));
    fact!(f, "read", cuMemGetAccess(&mut flags, &here, p));
    f.note(format!("  {flags}"));
    fact!(f, "read-only", cuMemsetD8(p, 1, 16));
    fact!(f, "read-only", cuMemcpyDtoH(h, p, 16));
    fact!(f, "two mappings, one not set", cuMemSetAccess(p, 3 * M, &desc(1, 0, 3), 1));
    fact!(f, "rest", cuMemSetAccess(at(3), M, &desc(1, 0, 3), 1));
    fact!(f, "read-write", cuMemGetAccess(&mut flags, &here, at(1) + 5));
    f.note(format!("  {flags}"));
    here.id = 77;
    fact!(f, "device 77", cuMemGetAccess(&mut flags, &here, p));
    here.id = 0;
    fact!(f, "wild", cuMemGetAccess(&mut flags, &here, WILD));
    fact!(f, "null out", cuMemGetAccess(null_mut(), &here, p));
    fact!(f, "null location", cuMemGetAccess(&mut flags, std::ptr::null(), p));
    // Use.
    fact!(f, "across two mappings", cuMemsetD8(p, 1, 3 * M));
    fact!(f, "across two mappings", cuMemcpyDtoH(h, p, 3 * M));
    fact!(f, "across two mappings", cuMemcpyHtoD(p, h, 3 * M));
    must!(f, cuMemsetD8(at(2), 9, M));
    must!(f, cuMemcpyDtoH(h, at(3), 16));
    f.note(format!("one memory at two addresses: {}", host[0] == 9));
    let (mut base, mut length) = (0, 0);
    fact!(f, "mapped", cuMemGetAddressRange(&mut base, &mut length, at(1) + 5));
    f.note(format!("  base {}, size {length}", base.wrapping_sub(p)));
    fact!(f, "mapped, second", cuMemGetAddressRange(&mut base, &mut length, at(2)));
    f.note(format!("  base {}, size {length}", base.wrapping_sub(p)));
    attributes_of(f, "mapping", at(1) + 8, p);
    fact!(f, "mapped", cuMemFree(p));
    fact!(f, "mapped", cuMemFreeAsync(p, CUstream::NULL));
    let mut kept = 0;
    fact!(f, "inside", cuMemRetainAllocationHandle(&mut kept, (at(1) + 5) as usize as *mut c_void));
    f.note(format!("  same: {}", kept == a));
    fact!(f, "wild", cuMemRetainAllocationHandle(&mut kept, WILD as usize as *mut c_void));
    fact!(f, "null out", cuMemRetainAllocationHandle(null_mut(), p as usize as *mut c_void));
    fact!(f, "retained", cuMemRelease(a));
    fact!(f, "mapped", cuMemRelease(a));
    fact!(f, "released, mapped", cuMemsetD8(p, 1, 16));
    fact!(f, "released, mapped", cuMemRelease(b));
    let d = f.alloc(1000);
    fact!(f, "cuMemAlloc memory", cuMemRetainAllocationHandle(&mut kept, d as usize as *mut c_void));
    fact!(f, "cuMemAlloc memory", cuMemUnmap(d, 1000));
    f.free(d);
    // Unmapping.
    fact!(f, "mapped", cuMemAddressFree(p, 4 * M));
    fact!(f, "part", cuMemUnmap(p, M));
    fact!(f, "0 bytes", cuMemUnmap(p, 0));
    fact!(f, "one mapping and half of it", cuMemUnmap(p, 2 * M + 4096));
    fact!(f, "two mappings", cuMemUnmap(p, 3 * M));
    fact!(f, "unmapped", cuMemsetD8(p, 1, 16));
    fact!(f, "twice", cuMemUnmap(p, 3 * M));
    fact!(f, "last", cuMemUnmap(at(3), M));
    fact!(f, "all", cuMemAddressFree(p, 4 * M));
    let mut out = 0u64;
    must!(f, cuMemCreate(&mut a, M, &prop, 0));
    fact!(
        f,
        "not requested",
        cuMemExportToShareableHandle((&raw mut out).cast(), a, CUmemAllocationHandleType(1), 0)
    );
    must!(f, cuMemRelease(a));
}

fn peers(f: &mut Facts) {
    let mut can = 9;
    fact!(f, "itself", cuDeviceCanAccessPeer(&mut can, 0, 0));
    f.note(format!("  {can}"));
    fact!(f, "device 77", cuDeviceCanAccessPeer(&mut can, 0, 77));
    fact!(f, "null out", cuDeviceCanAccessPeer(null_mut(), 0, 0));
    fact!(f, "itself", cuCtxEnablePeerAccess(f.context, 0));
    fact!(f, "itself, flags 1", cuCtxEnablePeerAccess(f.context, 1));
    fact!(f, "null", cuCtxEnablePeerAccess(CUcontext::NULL, 0));
    fact!(f, "itself", cuCtxDisablePeerAccess(f.context));
    fact!(f, "null", cuCtxDisablePeerAccess(CUcontext::NULL));
    fact!(f, "itself", cuDeviceGetP2PAttribute(&mut can, CUdevice_P2PAttribute(2), 0, 0));
}

fn two_devices(f: &mut Facts) {
    let mut can = 9;
    fact!(f, "0 to 1", cuDeviceCanAccessPeer(&mut can, 0, 1));
    f.note(format!("  {can}"));
    for attribute in 0..7 {
        fact!(
            f,
            format!("{attribute} of 0 to 1"),
            cuDeviceGetP2PAttribute(&mut can, CUdevice_P2PAttribute(attribute), 0, 1)
        );
    }
    let (own, mut other) = (f.context, CUcontext::NULL);
    must!(f, cuDevicePrimaryCtxRetain(&mut other, 1));
    let a = f.alloc(4096);
    must!(f, cuCtxSetCurrent(other));
    let b = f.alloc(4096);
    let mut host = [0u8; 64];
    let h = host.as_mut_ptr().cast::<c_void>();
    fact!(f, "other device's, no peer access", cuMemsetD8(a, 1, 16));
    fact!(f, "other device's, no peer access", cuMemcpyDtoD(b, a, 16));
    fact!(f, "other device's, no peer access", cuMemcpyDtoH(h, a, 16));
    fact!(f, "other device's, no peer access", cuMemcpyHtoD(a, h, 16));
    fact!(f, "other device's, no peer access", cuMemcpy(b, a, 16));
    must!(f, cuCtxSetCurrent(own));
    fact!(f, "not enabled", cuCtxDisablePeerAccess(other));
    fact!(f, "peer, not enabled", cuMemcpyPeer(b, other, a, own, 4096));
    fact!(f, "first", cuCtxEnablePeerAccess(other, 0));
    fact!(f, "twice", cuCtxEnablePeerAccess(other, 0));
    fact!(f, "flags 1", cuCtxEnablePeerAccess(other, 1));
    fact!(f, "peer", cuMemcpyPeer(b, other, a, own, 4096));
    fact!(f, "peer, contexts swapped", cuMemcpyPeer(b, own, a, other, 4096));
    fact!(f, "peer memory", cuMemcpyDtoD(b, a, 4096));
    fact!(f, "peer memory", cuMemsetD8(b, 1, 16));
    let mut ordinal = 99;
    fact!(
        f,
        "ordinal of peer memory",
        cuPointerGetAttribute((&raw mut ordinal).cast(), CUpointer_attribute(9), b)
    );
    f.note(format!("  {ordinal}"));
    // The memset must have run before its access goes.
    must!(f, cuCtxSynchronize());
    fact!(f, "first", cuCtxDisablePeerAccess(other));
    fact!(f, "twice", cuCtxDisablePeerAccess(other));
    // Pool memory of the other device.
    let (mut pool, mut p, mut stream) = (CUmemoryPool::NULL, 0, CUstream::NULL);
    must!(f, cuCtxSetCurrent(other));
    must!(f, cuStreamCreate(&mut stream, 1));
    must!(f, cuDeviceGetDefaultMemPool(&mut pool, 1));
    must!(f, cuMemAllocAsync(&mut p, 4096, stream));
    must!(f, cuStreamSynchronize(stream));
    must!(f, cuCtxSetCurrent(own));
    fact!(f, "other device's pool memory", cuMemcpyDtoD(a, p, 16));
    fact!(f, "other device's pool memory", cuMemcpyDtoH(h, p, 16));
    fact!(f, "other device's pool memory", cuMemsetD8(p, 1, 16));
    let desc = CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let mut location = desc.location;
    let mut access = CUmemAccess_flags(99);
    fact!(f, "other device", cuMemPoolGetAccess(&mut access, pool, &mut location));
    f.note(format!("  {}", access.0));
    fact!(f, "other device", cuMemPoolSetAccess(pool, &desc, 1));
    fact!(f, "other device, set", cuMemPoolGetAccess(&mut access, pool, &mut location));
    f.note(format!("  {}", access.0));
    fact!(f, "other device's pool memory, access set", cuMemcpyDtoD(a, p, 16));
    fact!(f, "other device's pool memory, access set", cuMemsetD8(p, 1, 16));
    // The memset must have run before its access goes.
    must!(f, cuCtxSynchronize());
    let none = CUmemAccessDesc { flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, ..desc };
    fact!(f, "other device, none", cuMemPoolSetAccess(pool, &none, 1));
    fact!(f, "other device, none", cuMemPoolGetAccess(&mut access, pool, &mut location));
    f.note(format!("  {}", access.0));
    fact!(f, "other device's pool memory on a stream of ours", cuMemFreeAsync(p, CUstream::NULL));
    fact!(f, "other device's pool", cuMemAllocFromPoolAsync(&mut p, 4096, pool, CUstream::NULL));
    must!(f, cuMemFreeAsync(p, CUstream::NULL));
    fact!(f, "other device's pool", cuDeviceSetMemPool(0, pool));
    must!(f, cuCtxSynchronize());
    // A mapping that only the other device may touch.
    const M: usize = 2 << 20;
    // SAFETY: all-zero is a valid value of this C structure.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
    let (mut handle, mut v) = (0, 0);
    must!(f, cuMemCreate(&mut handle, M, &prop, 0));
    must!(f, cuMemAddressReserve(&mut v, M, 0, 0, 0));
    must!(f, cuMemMap(v, M, 0, handle, 0));
    let there = CUmemAccessDesc { location: prop.location, ..desc };
    must!(f, cuMemSetAccess(v, M, &there, 1));
    fact!(f, "mapping of the other device, no access", cuMemsetD8(v, 1, 16));
    fact!(f, "mapping of the other device, no access", cuMemcpyDtoD(a, v, 16));
    must!(f, cuMemSetAccess(v, M, &desc, 1));
    fact!(f, "mapping of the other device, access", cuMemsetD8(v, 1, 16));
    fact!(f, "mapping of the other device, access", cuMemcpyDtoD(a, v, 16));
    must!(f, cuCtxSynchronize());
    must!(f, cuMemUnmap(v, M));
    must!(f, cuMemAddressFree(v, M));
    must!(f, cuMemRelease(handle));
    fact!(f, "other context's", cuMemFree(b));
    must!(f, cuStreamDestroy(stream));
    f.free(a);
    must!(f, cuDevicePrimaryCtxRelease(1));
}

fn ipc(f: &mut Facts) {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    fact!(f, "wild", cuIpcGetMemHandle(&mut handle, WILD));
    fact!(f, "never opened", cuIpcCloseMemHandle(WILD));
}
