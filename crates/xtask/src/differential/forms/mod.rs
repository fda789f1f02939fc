//! Generated kernels: one for each form of an instruction, over a few thousand inputs.
//!
//! A form's body reads the registers `a`, `b`, `c` and writes `d`. Each thread takes one row of inputs. Several
//! forms share a module, because loading one costs a GPU much more than running it.

mod compares;
mod converts;
mod floats;
mod integers;
mod matrices;
mod memory;
mod refused;
mod warps;

use super::device::{Device, Launch, arg};
use super::record::{Elem, Entry, Output, Rows, Tolerance};
use super::values::{Kind, inputs};

/// Inputs of each form.
pub const LANES: usize = 4096;
/// Threads of a block.
const BLOCK: usize = 128;
/// Bytes of memory that each thread has to itself.
const OWN: usize = 64;
/// Forms of one module.
const TOGETHER: usize = 16;

/// One instruction form.
pub struct Form {
    /// The body's text is its name.
    pub body: String,
    /// Bits of `a`, `b`, `c` and `d`.
    widths: [u32; 4],
    pub kinds: [Kind; 3],
    elem: Elem,
    tolerance: Tolerance,
    /// Only asked whether it is taken at load: it does not run.
    border: bool,
}

/// Collects forms.
#[derive(Default)]
struct Forms(Vec<Form>);

impl Forms {
    fn add(&mut self, body: impl Into<String>, widths: [u32; 4], kinds: [Kind; 3], elem: Elem) {
        self.near(body, widths, kinds, elem, Tolerance::EXACT);
    }

    fn near(
        &mut self,
        body: impl Into<String>,
        widths: [u32; 4],
        kinds: [Kind; 3],
        elem: Elem,
        tolerance: Tolerance,
    ) {
        self.0.push(Form { body: body.into(), widths, kinds, elem, tolerance, border: false });
    }

    /// A text that may be refused at load.
    fn border(&mut self, body: &str, widths: [u32; 4], kinds: [Kind; 3], elem: Elem) {
        let tolerance = Tolerance::EXACT;
        self.0.push(Form { body: body.to_owned(), widths, kinds, elem, tolerance, border: true });
    }
}

/// Every form.
pub fn all() -> Vec<Form> {
    let mut forms = Forms::default();
    integers::add(&mut forms);
    compares::add(&mut forms);
    floats::add(&mut forms);
    converts::add(&mut forms);
    memory::add(&mut forms);
    warps::add(&mut forms);
    matrices::add(&mut forms);
    refused::add(&mut forms);
    forms.0
}

impl Form {
    /// Which lane an element of the output belongs to: packed results have two elements a lane.
    pub fn lane(&self, element: usize) -> usize {
        element * self.elem.bytes() / (self.widths[3] as usize / 8)
    }

    fn entry(&self, number: usize) -> String {
        let [wa, wb, wc, wd] = self.widths;
        let narrow = |name: &str, width: u32, from: &str| match width {
            64 => format!("mov.b64 {name}, {from};"),
            width => format!("cvt.u{width}.u64 {name}, {from};"),
        };
        let wide = match wd {
            64 => "mov.b64 %o, d;".to_owned(),
            width => format!("cvt.u64.u{width} %o, d;"),
        };
        let (declared, prepared) = self.places(number);
        let body = self.body.replace("BLOCK", &format!("k{number}_s"));
        format!(
            ".visible .entry k{number}(.param .u64 k{number}_in, .param .u64 k{number}_out, .param .u32 k{number}_n, \
             .param .u64 k{number}_own)\n{{\n{declared}\
             .reg .b64 %i<4>, %q<3>, %o; .reg .b32 %t<4>; .reg .pred %go, p, q, r;\n\
             .reg .b{wa} a; .reg .b{wb} b; .reg .b{wc} c; .reg .b{wd} d;\n\
             .reg .b32 x<8>; .reg .b64 y<8>; .reg .b16 h<8>;\n\
             mov.u32 %t0, %tid.x; mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.u32 %t0, %t1, %t2, %t0;\n\
             ld.param.u32 %t3, [k{number}_n]; setp.ge.u32 %go, %t0, %t3; @%go ret;\n\
             ld.param.u64 %q0, [k{number}_in]; ld.param.u64 %q1, [k{number}_out];\n\
             mad.wide.u32 %q0, %t0, 24, %q0; mad.wide.u32 %q1, %t0, 8, %q1;\n\
             ld.global.u64 %i0, [%q0]; ld.global.u64 %i1, [%q0+8]; ld.global.u64 %i2, [%q0+16];\n\
             {prepared}{} {} {}\n{body}\n{wide}\nst.global.u64 [%q1], %o;\nret;\n}}\n",
            narrow("a", wa, "%i0"),
            narrow("b", wb, "%i1"),
            narrow("c", wc, "%i2"),
        )
    }

    /// Declares and prepares the memory that the body names: `g`, `s` and `l` are addresses of 64 bytes of the thread's
    /// own, zero at the start, and `w` that of 8 bytes of the block.
    fn places(&self, number: usize) -> (String, String) {
        let word = |name: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "_%.".contains(c);
            self.body.split(|c| !is_part(c)).any(|word| word == name)
        };
        let (mut declared, mut prepared) = (String::new(), String::new());
        if word("g") {
            declared += ".reg .b64 g;\n";
            prepared += &format!("ld.param.u64 g, [k{number}_own]; mad.wide.u32 g, %t0, {OWN}, g;\n");
        }
        if word("s") || word("BLOCK") {
            declared += &format!(".shared .align 128 .b8 k{number}_s[{}];\n.reg .b64 s;\n", BLOCK * OWN);
            prepared +=
                &format!("mov.u32 %t1, %tid.x; mov.u64 s, k{number}_s; mad.wide.u32 s, %t1, {OWN}, s;\n");
            for at in (0..OWN).step_by(8) {
                prepared += &format!("st.shared.b64 [s+{at}], 0; ");
            }
            prepared += "bar.sync 0;\n";
        }
        if word("l") {
            declared += &format!(".local .align 16 .b8 k{number}_l[{OWN}];\n.reg .b64 l;\n");
            prepared += &format!("mov.u64 l, k{number}_l;\n");
            for at in (0..OWN).step_by(8) {
                prepared += &format!("st.local.b64 [l+{at}], 0; ");
            }
        }
        if word("w") {
            declared += &format!(".shared .align 8 .b8 k{number}_w[8];\n.reg .b64 w;\n");
            prepared += &format!("mov.u64 w, k{number}_w; st.shared.b64 [w], 0; bar.sync 0;\n");
        }
        (declared, prepared)
    }

    fn run(&self, device: &Device, function: simtile_driver::sys::CUfunction) -> Result<Vec<Output>, String> {
        let rows = inputs(&self.body, self.kinds, LANES);
        let words: Vec<u64> = rows.iter().flatten().copied().collect();
        let (from, to) = (device.upload(&words)?, device.upload(&vec![0u64; LANES])?);
        let own = device.upload(&vec![0u8; LANES * OWN])?;
        device.run(
            function,
            Launch::of((LANES / BLOCK) as u32, BLOCK as u32),
            &[arg(from), arg(to), arg(LANES as u32), arg(own)],
        )?;
        let found = device.read(to, 8 * LANES)?;
        device.release();
        let bytes = found.chunks(8).flat_map(|word| &word[..self.widths[3] as usize / 8]).copied().collect();
        Ok(vec![Output { elem: self.elem, tolerance: self.tolerance, rows: Rows::ALL, bytes }])
    }
}

/// The module of some forms.
pub fn module(forms: &[Form]) -> String {
    let mut text = ".version 8.6\n.target sm_90\n.address_size 64\n".to_owned();
    for (number, form) in forms.iter().enumerate() {
        text += &form.entry(number);
    }
    text.push('\0');
    text
}

/// Runs forms, a few in a module; one that a driver refuses does not spoil the others. `done` gets each result,
/// and says whether to go on.
pub fn run(device: &Device, forms: &[Form], done: &mut dyn FnMut(Entry) -> bool) {
    for group in forms.chunk_by(|a, b| a.border == b.border).flat_map(|alike| alike.chunks(TOGETHER)) {
        if group[0].border {
            for form in group {
                if !done(Entry { name: form.body.clone(), result: Ok(border(device, form)) }) {
                    return;
                }
            }
            continue;
        }
        let together = device.load(module(group).as_bytes());
        for (number, form) in group.iter().enumerate() {
            let result = match &together {
                Ok(loaded) => device
                    .function(*loaded, &format!("k{number}"))
                    .and_then(|function| form.run(device, function)),
                Err(_) => alone(device, form),
            };
            if !done(Entry { name: form.body.clone(), result }) {
                return;
            }
        }
        if let Ok(loaded) = together {
            let _ = device.unload(loaded);
        }
    }
}

/// Whether a text is refused.
fn border(device: &Device, form: &Form) -> Vec<Output> {
    let loaded = device.load(module(std::slice::from_ref(form)).as_bytes());
    let refused = loaded.is_err();
    if let Ok(module) = loaded {
        let _ = device.unload(module);
    }
    vec![Output {
        elem: form.elem,
        tolerance: form.tolerance,
        rows: Rows::ALL,
        bytes: vec![u8::from(refused)],
    }]
}

fn alone(device: &Device, form: &Form) -> Result<Vec<Output>, String> {
    let loaded = device.load(module(std::slice::from_ref(form)).as_bytes())?;
    let result = device.function(loaded, "k0").and_then(|function| form.run(device, function));
    let _ = device.unload(loaded);
    result
}
