//! Edited and damaged PTX: results follow the text, and nothing panics or hangs.

mod ptx_support;

use ptx_support::{FILES, H200, Machine, Random, Shape, shape};
use simtile_sim::exec::{At, LoadFault};

fn text(name: &str) -> &'static str {
    FILES.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn results_follow_edits() {
    // Another name and another constant.
    let edited = text("cluster").replace("cluster_dsm", "renamed").replace("0f41200000", "0f40400000");
    let m = Machine::new(&edited);
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let (dx, dy) = (m.upload(&x), m.blank(1024));
    m.clean("renamed", Shape { cluster: [2, 1, 1], ..shape(2, 128) }, args![dx, dy]);
    let want: Vec<f32> = (0..256).map(|i| x[i] + 3.0 * x[i ^ 128]).collect();
    assert_eq!(m.download::<f32>(dy, 256), want);

    // Another operation: the sum becomes a maximum.
    let edited = text("warp_reduce").replace("redux.sync.add.u32", "redux.sync.min.u32");
    let (old, new) = (ptx_support::artifact("warp_reduce"), Machine::new(&edited));
    let x: Vec<i32> = (1..33).collect();
    let run = |m: &Machine| {
        let (dx, out) = (m.upload(&x), m.blank(128));
        m.clean("warp_ops", shape(1, 32), args![dx, out]);
        m.download::<u32>(out, 32)
    };
    let differ: Vec<u32> = run(&old).iter().zip(run(&new)).map(|(a, b)| a.wrapping_sub(b)).collect();
    assert_eq!(differ, [x.iter().sum::<i32>() as u32 - 1; 32]);

    // Other text in the format string, other initial values.
    let edited = text("printf").replace("{115, 116, 114}", "{88, 89, 90}").replace("hello", "greet");
    let m = Machine::new(&edited);
    m.clean("greet", shape(1, 1), args![1i32, 0.5f32]);
    let printed = String::from_utf8(m.printed.lock().unwrap().clone()).unwrap();
    assert_eq!(printed, "block 0 thread 0 a=1 f=0.500000 s=XYZ\n");
}

#[test]
fn refusals_name_line_and_instruction() {
    let load = |text: &str| Machine::load(text).map(|_| ()).unwrap_err();
    let saxpy = text("saxpy");
    let line = saxpy.lines().position(|l| l.contains("fma.rn.f32")).unwrap() as u64 + 1;
    let error = load(&saxpy.replace("fma.rn.f32", "fma.rn.oob.f32"));
    assert_eq!(
        error,
        LoadFault::Malformed {
            at: At::Line(line),
            what: "PTX has no instruction `fma.rn.oob.f32`".to_owned()
        },
        "so is a modifier that the type does not have"
    );
    let error = load(&saxpy.replace("fma.rn.f32", "wgmma.fma"));
    assert_eq!(error, LoadFault::Unsupported { at: At::Line(line), what: "wgmma.fma".to_owned() });
    let error = load(&saxpy.replace("fma.rn.f32", "fmma.rn.f32"));
    assert_eq!(
        error,
        LoadFault::Malformed { at: At::Line(line), what: "PTX has no instruction `fmma`".to_owned() },
        "a word that is no instruction at all is an error of the text"
    );
    assert!(matches!(load(&saxpy.replace(".version 9.0", ".version 9.1")), LoadFault::Version { .. }));
    assert!(matches!(load(&saxpy.replace("sm_90", "sm_100")), LoadFault::Target { .. }));
    assert!(matches!(load(&saxpy.replace("sm_90", "sm_89a")), LoadFault::Target { .. }));
    assert!(Machine::load(&saxpy.replace("sm_90", "sm_90a")).is_ok());
    assert!(Machine::load(&saxpy.replace("sm_90", "sm_52")).is_ok());
    let error = load(&saxpy.replace("fma.rn.f32 \t%f4", "fma.rn.f32 \t%nothing"));
    assert!(
        matches!(&error, LoadFault::Malformed { at, what } if *at == At::Line(line) && what.contains("%nothing")),
        "{error}"
    );
    assert!(matches!(load("hello"), LoadFault::Malformed { at: At::Line(1), .. }));
}

/// Pieces of PTX put in place of others of their kind, so that much of what results still loads.
const PIECES: &[&str] = &[
    ".u32",
    ".s32",
    ".f32",
    ".b64",
    ".u8",
    ".f64",
    ".global",
    ".shared",
    ".local",
    ".rn",
    ".sync",
    ".lo",
    ".wide",
    "add",
    "sub",
    "mul",
    "ld",
    "st",
    "bra",
    "ret",
    "bar",
    "exit",
    "setp",
    "%r1",
    "%r2",
    "%rd1",
    "%rd2",
    "%p1",
    "%f1",
    "0",
    "1",
    "-1",
    "255",
    "4",
    "0f7FC00000",
    "4294967295",
    "99999999999",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    ",",
    "@%p1",
    "!",
    "é",
    "\"",
    "/*",
];

fn damage(text: &str, random: &mut Random) -> String {
    // Split into words and what is between them.
    let mut words: Vec<&str> = Vec::new();
    let mut start = 0;
    for (at, c) in text.char_indices() {
        if !(c.is_alphanumeric() || matches!(c, '_' | '%' | '$')) {
            words.push(&text[start..at]);
            words.push(&text[at..at + c.len_utf8()]);
            start = at + c.len_utf8();
        }
    }
    words.push(&text[start..]);
    words.retain(|w| !w.is_empty());
    for _ in 0..1 + random.below(4) {
        let at = random.below(words.len() as u64) as usize;
        match random.below(6) {
            0 => words[at] = PIECES[random.below(PIECES.len() as u64) as usize],
            1 => {
                let other = random.below(words.len() as u64) as usize;
                words[at] = words[other];
            }
            2 => drop(words.remove(at)),
            3 => {
                let end = (at + random.below(60) as usize).min(words.len());
                let copy: Vec<&str> = words[at..end].to_vec();
                words.splice(at..at, copy);
            }
            // A digit string becomes another: registers, labels, constants.
            4 | 5 => {
                let digits = (0..words.len()).cycle().skip(at).take(words.len());
                if let Some(at) = digits.into_iter().find(|&i| words[i].bytes().all(|b| b.is_ascii_digit())) {
                    words[at] = PIECES[29 + random.below(8) as usize];
                }
            }
            _ => {}
        }
        if words.is_empty() {
            break;
        }
    }
    if random.below(8) == 0 {
        words.truncate(random.below(words.len() as u64 + 1) as usize);
    }
    words.concat()
}

#[test]
fn damaged_text_never_panics_or_hangs() {
    let (mut loaded, mut ran, mut refused, mut faults) = (0, 0, 0, 0);
    for (name, text) in FILES {
        let mut random = Random(0xABCD_EF01 + name.len() as u64 * 7919);
        for round in 0..120 {
            let text = damage(text, &mut random);
            let Ok(mut m) = Machine::load(&text) else {
                refused += 1;
                continue;
            };
            loaded += 1;
            m.step_limit = 3000;
            m.seed = round % 3;
            m.workers = 1;
            let buffer = m.upload(&[1u32; 4096]);
            for kernel in m.program.kernels() {
                if kernel.params.iter().any(|p| p.bytes > 1 << 16) {
                    continue;
                }
                let args: Vec<Vec<u8>> = kernel
                    .params
                    .iter()
                    .map(|p| match p.bytes {
                        8 => (buffer + random.below(3) * 64).to_le_bytes().to_vec(),
                        n => (0..n).map(|i| if i == 0 { random.next() as u8 } else { 0 }).collect(),
                    })
                    .collect();
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                let cluster = kernel.required_cluster.filter(|c| *c == [2, 1, 1]).unwrap_or([1, 1, 1]);
                let launch = Shape { cluster, dynamic: 256, cooperative: round % 2 == 0, ..shape(2, 64) };
                faults += u32::from(m.launch(&kernel.name, launch, &args).is_err());
                ran += 1;
            }
        }
    }
    assert!(loaded > 200 && refused > 200 && ran > 300 && faults > 50, "{loaded} {refused} {ran} {faults}");
}

/// Every prefix of a small file: an error or a module.
#[test]
fn truncated_text() {
    let text = text("async_copy");
    let loaded = (0..text.len())
        .filter(|&n| text.is_char_boundary(n))
        .filter(|&n| simtile_sim::ptx::load(&text[..n], H200).is_ok());
    assert!(loaded.count() > 0);
}

/// Texts that NVIDIA's assembler refuses are refused here, and those that it takes are taken or, where they are not
/// built, refused as that.
#[test]
fn the_border_of_the_language() {
    let mut wrong = Vec::new();
    let texts = include_str!("ptx_support/border.txt").lines().filter(|line| !line.starts_with('#'));
    for line in texts {
        let (verdict, text) = line.split_once(' ').expect("a verdict and a text");
        let module = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 k_own)\n{{\n\
             .shared .align 128 .b8 k_s[64]; .local .align 16 .b8 k_l[64];\n\
             .reg .pred p, q; .reg .b32 x<8>; .reg .b64 y<8>, g, s, l; .reg .b16 h<8>;\n\
             ld.param.u64 g, [k_own]; mov.u64 s, k_s; mov.u64 l, k_l;\n{text}\nret;\n}}\n"
        );
        let found = match Machine::load(&module) {
            Ok(_) => "0",
            Err(LoadFault::Unsupported { .. }) if verdict == "0" => "0",
            Err(_) => "1",
        };
        if found != verdict {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
