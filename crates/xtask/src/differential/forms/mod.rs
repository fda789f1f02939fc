//! Generated kernels: one for each form of an instruction, over a few thousand inputs.
//!
//! A form's body reads the registers `a`, `b`, `c` and writes `d`. Each thread takes one row of inputs. Several
//! forms share a module, because loading one costs a GPU much more than running it.

mod compares;
mod converts;
mod floats;
mod integers;

use super::device::{Device, Launch, arg};
use super::record::{Elem, Entry, Output, Rows, Tolerance};
use super::values::{Kind, inputs};

/// Inputs of each form.
pub const LANES: usize = 4096;
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
        self.0.push(Form { body: body.into(), widths, kinds, elem, tolerance });
    }
}

/// Every form.
pub fn all() -> Vec<Form> {
    let mut forms = Forms::default();
    integers::add(&mut forms);
    compares::add(&mut forms);
    floats::add(&mut forms);
    converts::add(&mut forms);
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
        format!(
            ".visible .entry k{number}(.param .u64 k{number}_in, .param .u64 k{number}_out, .param .u32 k{number}_n)\n{{\n\
             .reg .b64 %i<4>, %q<3>, %o; .reg .b32 %t<4>; .reg .pred %go, p, q, r;\n\
             .reg .b{wa} a; .reg .b{wb} b; .reg .b{wc} c; .reg .b{wd} d;\n\
             .reg .b32 x<8>; .reg .b64 y<8>; .reg .b16 h<8>;\n\
             mov.u32 %t0, %tid.x; mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.u32 %t0, %t1, %t2, %t0;\n\
             ld.param.u32 %t3, [k{number}_n]; setp.ge.u32 %go, %t0, %t3; @%go ret;\n\
             ld.param.u64 %q0, [k{number}_in]; ld.param.u64 %q1, [k{number}_out];\n\
             mad.wide.u32 %q0, %t0, 24, %q0; mad.wide.u32 %q1, %t0, 8, %q1;\n\
             ld.global.u64 %i0, [%q0]; ld.global.u64 %i1, [%q0+8]; ld.global.u64 %i2, [%q0+16];\n\
             {} {} {}\n{}\n{wide}\nst.global.u64 [%q1], %o;\nret;\n}}\n",
            narrow("a", wa, "%i0"),
            narrow("b", wb, "%i1"),
            narrow("c", wc, "%i2"),
            self.body,
        )
    }

    fn run(&self, device: &Device, function: simtile_driver::sys::CUfunction) -> Result<Vec<Output>, String> {
        let rows = inputs(&self.body, self.kinds, LANES);
        let words: Vec<u64> = rows.iter().flatten().copied().collect();
        let (from, to) = (device.upload(&words)?, device.upload(&vec![0u64; LANES])?);
        device.run(
            function,
            Launch::of(LANES as u32 / 128, 128),
            &[arg(from), arg(to), arg(LANES as u32)],
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
    for group in forms.chunks(TOGETHER) {
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

fn alone(device: &Device, form: &Form) -> Result<Vec<Output>, String> {
    let loaded = device.load(module(std::slice::from_ref(form)).as_bytes())?;
    let result = device.function(loaded, "k0").and_then(|function| form.run(device, function));
    let _ = device.unload(loaded);
    result
}
