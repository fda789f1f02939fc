//! Single nodes: kernels that are given other arguments, programmatic edges, conditional nodes.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{AsyncKernelLaunch, AsyncKernelLaunchBuilder, Conditional, KernelNode, fill, zeros};
use simtile_core::{DeviceBuffer, Error, Function, GraphError};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use simtile_types::LaunchConfig;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const CONDITIONAL: &str = include_str!("../../../simtile-cts/kernels/conditional.ptx");

fn buffer(rig: &Rig, value: f32) -> DeviceBuffer<f32> {
    DeviceBuffer::from_slice(&rig.stream, &[value; 16]).unwrap()
}

/// `y += 1 x`, then `y += 10 x`, of which the first is named.
fn two(rig: &Rig, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> (CudaGraph<()>, KernelNode) {
    let mut name = None;
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        name = Some(scope.record_kernel(saxpy(&rig.saxpy, 1.0, x, y))?.1);
        scope.record(saxpy(&rig.saxpy, 10.0, x, y))
    });
    (graph.unwrap(), name.unwrap())
}

fn launched(rig: &Rig, graph: &CudaGraph<()>, y: &DeviceBuffer<f32>) -> f32 {
    let other = rig.context.new_stream().unwrap();
    graph.launch().enqueue_on(&other).unwrap();
    y.to_vec(&rig.stream).unwrap()[15]
}

fn is_refused(error: &OpError) -> bool {
    matches!(error.core(), Some(Error::Graph(GraphError::NotUpdatable { .. })))
}

#[test]
fn a_kernel_of_a_graph_is_given_other_arguments() {
    let rig = rig();
    let (mut x, mut y, mut z) = (buffer(&rig, 1.0), buffer(&rig, 0.0), buffer(&rig, 0.0));
    let (graph, kernel) = two(&rig, &x, &mut y);
    assert_eq!(launched(&rig, &graph, &y), 11.0);
    // What is in flight keeps the old ones.
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    let mut w = buffer(&rig, 5.0);
    let before = rig.sim.counts();
    graph.set_kernel(kernel, saxpy(&rig.saxpy, 2.0, &w, &mut z)).unwrap();
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuGraphExecKernelNodeSetParams), calls.of(Entry::cuGraphLaunch)), (1, 0));
    gate.open();
    assert!(!w.is_unique() && !z.is_unique(), "they are the graph's, too");
    assert_eq!((launched(&rig, &graph, &y), z.to_vec(&rig.stream).unwrap()[0]), (22.0 + 10.0, 10.0));
    // The first kernel reaches what it reached before no more; the second still does.
    graph.set_kernel(kernel, saxpy(&rig.saxpy, 3.0, &x, &mut y)).unwrap();
    assert!(w.is_unique() && z.is_unique() && !x.is_unique() && !y.is_unique());
    drop((w, z));
    assert_eq!(launched(&rig, &graph, &y), 32.0 + 13.0);
    // Replays follow what the new arguments are used for elsewhere.
    let mut z = buffer(&rig, 0.0);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    z.fill(&rig.stream, 100.0).unwrap();
    graph.set_kernel(kernel, saxpy(&rig.saxpy, 1.0, &x, &mut z)).unwrap();
    graph.launch().enqueue_on(&rig.context.new_stream().unwrap()).unwrap();
    gate.open();
    assert_eq!(z.to_vec(&rig.stream).unwrap(), [101.0; 16]);
    drop((x, y, z, graph));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn what_is_no_launch_of_that_kernel_is_refused() {
    let rig = rig();
    let (x, mut y, mut z) = (buffer(&rig, 1.0), buffer(&rig, 0.0), buffer(&rig, 0.0));
    let (graph, kernel) = two(&rig, &x, &mut y);
    let (other, _) = two(&rig, &x, &mut z);
    let wrong = [
        other.set_kernel(kernel, saxpy(&rig.saxpy, 2.0, &x, &mut z)).unwrap_err(),
        graph.set_kernel(kernel, fill(&mut z, 1.0).map(drop)).unwrap_err(),
        graph.set_kernel(kernel, value(())).unwrap_err(),
        graph
            .set_kernel(kernel, {
                let (a, b) = z.split_at_mut(8).unwrap();
                zip!(fill(a, 1.0).map(drop), fill(b, 1.0).map(drop)).map(drop)
            })
            .unwrap_err(),
        graph
            .set_kernel(kernel, {
                let builder =
                    AsyncKernelLaunchBuilder::new(&rig.saxpy).arg(16u32).arg(1.0f32).read(&x).write(&mut z);
                // SAFETY: as in `saxpy`.
                unsafe { builder.set_priority(-1).finalize_unchecked(LaunchConfig::for_num_elems(16)) }
                    .unwrap()
            })
            .unwrap_err(),
    ];
    for error in wrong {
        assert!(is_refused(&error), "{error}");
    }
    let refused = CudaGraph::scope(&rig.stream, |scope| {
        let nothing = scope.record_kernel(fill(&mut z, 1.0).map(drop)).unwrap_err();
        assert!(is_refused(&nothing) && nothing.to_string().contains("0 launches"), "{nothing}");
        scope.record_kernel(saxpy(&rig.saxpy, 1.0, &x, &mut z).then(|()| value(()))).map(|named| named.1)
    });
    assert!(refused.unwrap().take_output().is_some());
    assert_eq!(launched(&rig, &graph, &y), 11.0);
    // After an update as a whole, names of the old graph are over.
    graph.recapture(saxpy(&rig.saxpy, 1.0, &x, &mut y).then(|()| value(()))).unwrap();
    assert!(is_refused(&graph.set_kernel(kernel, saxpy(&rig.saxpy, 2.0, &x, &mut z)).unwrap_err()));
    rig.clean();
}

#[test]
fn a_kernel_that_the_driver_does_not_update_gets_a_new_executable_or_stays() {
    let rig = rig();
    let (x, mut y, mut z) = (buffer(&rig, 1.0), buffer(&rig, 0.0), buffer(&rig, 0.0));
    let (graph, kernel) = two(&rig, &x, &mut y);
    let failure = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    rig.sim.fail(Entry::cuGraphExecKernelNodeSetParams, 1, failure);
    graph.set_kernel(kernel, saxpy(&rig.saxpy, 2.0, &x, &mut z)).unwrap();
    assert_eq!((launched(&rig, &graph, &y), z.to_vec(&rig.stream).unwrap()[0]), (10.0, 2.0));
    for entries in [
        &[Entry::cuGraphKernelNodeSetParams][..],
        &[Entry::cuGraphExecKernelNodeSetParams, Entry::cuGraphInstantiateWithFlags],
    ] {
        entries.iter().for_each(|&entry| rig.sim.fail(entry, 1, failure));
        let mut w = buffer(&rig, 0.0);
        let failed = graph.set_kernel(kernel, saxpy(&rig.saxpy, 7.0, &x, &mut w)).unwrap_err();
        assert!(failed.driver_error().is_some(), "{failed}");
        assert!(w.is_unique(), "it claims what it reaches, and no more");
        let before = z.to_vec(&rig.stream).unwrap()[0];
        launched(&rig, &graph, &y);
        assert_eq!(
            (z.to_vec(&rig.stream).unwrap()[0], w.to_vec(&rig.stream).unwrap()[0]),
            (before + 2.0, 0.0)
        );
    }
    rig.clean();
}

#[test]
fn threads_launch_a_graph_while_a_kernel_changes() {
    let rig = rig();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    let (graph, kernel) = two(&rig, &x, &mut y);
    let sinks: Vec<_> = simtile_sync::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = rig.context.new_stream().unwrap();
                (0..20).for_each(|_| graph.launch().enqueue_on(&stream).unwrap());
            });
        }
        (0..10)
            .map(|_| {
                let mut sink = buffer(&rig, 0.0);
                graph.set_kernel(kernel, saxpy(&rig.saxpy, 1.0, &x, &mut sink)).unwrap();
                sink
            })
            .collect()
    });
    let values = |buffer: &DeviceBuffer<f32>| buffer.to_vec(&rig.stream).unwrap()[3];
    let named: f32 = sinks.iter().map(values).sum();
    // Each launch went through the second kernel once, and through the first somewhere.
    let first = values(&y) - 400.0;
    assert_eq!(named + first, 40.0);
    rig.clean();
}

/// The kernel lets its successor start, and waits for its predecessor.
const OVERLAPPING: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry bump(.param .u64 p)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd2], %r1;
    ret;
}
";

fn bump<'a>(kernel: &Function, counter: &'a mut DeviceBuffer<u32>, early: bool) -> AsyncKernelLaunch<'a> {
    let mut builder = AsyncKernelLaunchBuilder::new(kernel).write(counter);
    if early {
        // SAFETY: the kernel waits before it touches memory.
        builder = unsafe { builder.programmatic_dependent_launch() };
    }
    // SAFETY: the kernel updates one word.
    unsafe {
        builder.finalize_unchecked(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .unwrap()
}

#[test]
fn captured_programmatic_launches_become_programmatic_edges() {
    let rig = rig();
    let kernel = rig.context.load_module_from_ptx_src(OVERLAPPING).unwrap().load_function("bump").unwrap();
    let mut counter = DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        scope.record(bump(&kernel, &mut counter, false))?;
        scope.record(bump(&kernel, &mut counter, true))?;
        scope.record(bump(&kernel, &mut counter, true))?;
        scope.record(bump(&kernel, &mut counter, false))
    })
    .unwrap();
    assert_eq!((graph.nodes().unwrap(), graph.programmatic_edges().unwrap()), (4, 2));
    (0..3).for_each(|_| graph.launch().enqueue_on(&rig.stream).unwrap());
    assert_eq!(counter.to_vec(&rig.stream).unwrap(), [12]);
    rig.clean();
}

/// A launch of one thread.
fn one<'a>(
    function: &Function,
    args: impl FnOnce(AsyncKernelLaunchBuilder<'a>) -> AsyncKernelLaunchBuilder<'a>,
) -> AsyncKernelLaunch<'a> {
    let builder = args(AsyncKernelLaunchBuilder::new(function));
    // SAFETY: the kernels of that file touch the word that they are given, and set conditions of their graph.
    unsafe {
        builder.finalize_unchecked(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .unwrap()
}

#[test]
fn conditional_nodes_run_their_bodies_if_and_as_long_as_a_kernel_says_so() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(CONDITIONAL).unwrap();
    let function = |name: &str| module.load_function(name).unwrap();
    let (count, add, look) = (function("count_down"), function("add"), function("condition_of"));
    let word = || DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let (mut left, mut sum, mut flag, mut seen) = (word(), word(), word(), word());
    let mut made = None;
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        let (turns, yes) = (scope.condition(1)?, scope.condition(0)?);
        scope.conditional(&turns, Conditional::While, |body| {
            body.record(one(&add, |args| args.write(&mut sum).arg(2u32)))?;
            body.record(one(&count, |args| args.arg(turns.handle()).write(&mut left)))
        })?;
        scope.record(one(&look, |args| args.arg(yes.handle()).read(&flag)))?;
        made = Some(scope.conditional(&yes, Conditional::If, |body| {
            body.record(one(&add, |args| args.write(&mut seen).arg(1u32)))?;
            body.record(zeros::<u32>(4).then(|buffer| fill(buffer, 8)))
        })?);
        Ok(())
    })
    .unwrap();
    let made = made.unwrap();
    let other = rig.context.new_stream().unwrap();
    for (turns, yes, expected) in [(5u32, 0u32, (10, 0)), (1, 1, (12, 1)), (3, 7, (18, 2))] {
        left.copy_from_slice(&other, &[turns]).unwrap();
        flag.copy_from_slice(&other, &[yes]).unwrap();
        graph.launch().enqueue_on(&rig.stream).unwrap();
        let read = |buffer: &DeviceBuffer<u32>| buffer.to_vec(&other).unwrap()[0];
        assert_eq!((read(&sum), read(&seen)), expected);
        assert_eq!(made.to_vec(&other).unwrap(), [if expected.1 > 0 { 8 } else { 0 }; 4]);
    }
    // What only a body touches is the graph's as well.
    assert!(!seen.is_unique());
    drop((left, sum, flag, seen, made, graph, module, count, add, look));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn conditions_are_of_one_graph_and_some_drivers_have_none() {
    let rig = rig();
    let mut old = None;
    CudaGraph::scope(&rig.stream, |scope| {
        let condition = *old.insert(scope.condition(1)?);
        scope.conditional(&condition, Conditional::If, |body| body.record(zeros::<u32>(4)).map(drop))
    })
    .unwrap();
    let refused = CudaGraph::scope(&rig.stream, |scope| {
        scope.conditional(&old.unwrap(), Conditional::If, |body| body.record(zeros::<u32>(4)).map(drop))
    });
    assert!(is_refused(&refused.unwrap_err()));
    let failed = CudaGraph::scope(&rig.stream, |scope| {
        let condition = scope.condition(1)?;
        scope.conditional(&condition, Conditional::If, |_| Err::<(), _>(OpError::user("no")))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    rig.sim.mask(&[Entry::cuGraphConditionalHandleCreate]);
    let missing = CudaGraph::scope(&rig.stream, |scope| scope.condition(1).map(drop)).unwrap_err();
    assert!(missing.to_string().contains("cuGraphConditionalHandleCreate"), "{missing}");
    // The stream is as before.
    zeros::<u32>(4).sync_on(&rig.stream).unwrap();
    rig.clean();
}

/// A loop in a loop, and an `if` in that, with conditions of all three scopes.
#[test]
fn bodies_of_conditional_nodes_have_conditional_nodes() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(CONDITIONAL).unwrap();
    let function = |name: &str| module.load_function(name).unwrap();
    let (count, add, look) = (function("count_down"), function("add"), function("condition_of"));
    let word = |value: u32| DeviceBuffer::from_slice(&rig.stream, &[value]).unwrap();
    let (mut outer, mut inner, mut flag) = (word(0), word(0), word(0));
    let (mut rounds, mut turns, mut hits) = (word(0), word(0), word(0));
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        let (more, yes) = (scope.condition(1)?, scope.condition(0)?);
        scope.conditional(&more, Conditional::While, |body| {
            body.record(one(&add, |args| args.write(&mut rounds).arg(1u32)))?;
            let again = body.condition(1)?;
            // Each round turns three times.
            body.record(fill(&mut inner, 3).map(drop))?;
            body.record(one(&look, |args| args.arg(again.handle()).read(&inner)))?;
            body.conditional(&again, Conditional::While, |body| {
                body.record(one(&add, |args| args.write(&mut turns).arg(1u32)))?;
                body.record(one(&look, |args| args.arg(yes.handle()).read(&flag)))?;
                body.conditional(&yes, Conditional::If, |body| {
                    body.record(one(&add, |args| args.write(&mut hits).arg(10u32)))
                })?;
                body.record(one(&count, |args| args.arg(again.handle()).write(&mut inner)))
            })?;
            body.record(one(&count, |args| args.arg(more.handle()).write(&mut outer)))
        })
    })
    .unwrap();
    let other = rig.context.new_stream().unwrap();
    for (times, yes, expected) in [(2u32, 0u32, (2, 6, 0)), (1, 1, (3, 9, 30)), (3, 0, (6, 18, 30))] {
        outer.copy_from_slice(&other, &[times]).unwrap();
        flag.copy_from_slice(&other, &[yes]).unwrap();
        graph.launch().enqueue_on(&rig.stream).unwrap();
        let read = |buffer: &DeviceBuffer<u32>| buffer.to_vec(&other).unwrap()[0];
        assert_eq!((read(&rounds), read(&turns), read(&hits)), expected);
    }
    // What only the innermost body touches is the graph's as well, and replays are ordered by it.
    assert!(!hits.is_unique());
    let gate = rig.sim.gate(other.cu_stream()).unwrap();
    hits.fill(&other, 100).unwrap();
    flag.copy_from_slice(&other, &[1]).unwrap();
    outer.copy_from_slice(&other, &[1]).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    gate.open();
    assert_eq!(hits.to_vec(&rig.stream).unwrap(), [130]);
    drop((outer, inner, flag, rounds, turns, hits, graph, module, count, add, look));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    assert_eq!((rig.sim.holdings().graphs, rig.sim.holdings().executables), (0, 0));
    rig.clean();
}

/// What forked streams have recorded comes before a conditional node whose body touches the same.
#[test]
fn a_conditional_node_comes_behind_what_its_body_conflicts_with() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(CONDITIONAL).unwrap();
    let add = module.load_function("add").unwrap();
    let forked = rig.context.new_stream().unwrap();
    let mut word = DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        scope.fork(&forked)?;
        scope.record_on(&forked, fill(&mut word, 5).map(drop))?;
        let yes = scope.condition(1)?;
        scope.conditional(&yes, Conditional::If, |body| {
            body.record(one(&add, |args| args.write(&mut word).arg(2u32)))
        })?;
        scope.record_on(&forked, one(&add, |args| args.write(&mut word).arg(30u32)))
    })
    .unwrap();
    for _ in 0..10 {
        graph.launch().enqueue_on(&rig.stream).unwrap();
        assert_eq!(word.to_vec(&forked).unwrap(), [37]);
    }
    rig.clean();
}

#[test]
fn a_body_that_is_given_up_spoils_the_capture_and_nothing_else() {
    let rig = rig();
    let mut word = DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let spoiled = CudaGraph::scope(&rig.stream, |scope| {
        let (one, two) = (scope.condition(1)?, scope.condition(1)?);
        scope.conditional(&one, Conditional::If, |body| {
            let given_up = body.conditional(&two, Conditional::If, |body| {
                body.record(fill(&mut word, 1).map(drop))?;
                Err::<(), _>(OpError::user("no"))
            });
            assert_eq!(given_up.unwrap_err().to_string(), "no");
            body.record(fill(&mut word, 2).map(drop))
        })
    });
    let error = spoiled.unwrap_err();
    assert!(is_refused(&error) && error.to_string().contains("given up"), "{error}");
    assert!(word.is_unique());
    word.fill(&rig.stream, 4).unwrap();
    assert_eq!(word.to_vec(&rig.stream).unwrap(), [4]);
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!((rig.sim.holdings().graphs, rig.sim.holdings().captures), (0, 0));
    rig.clean();
}

/// Of several bodies one runs; all of them may touch the same memory.
#[test]
fn of_several_bodies_the_condition_chooses_one() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(CONDITIONAL).unwrap();
    let (look, add) = (module.load_function("condition_of").unwrap(), module.load_function("add").unwrap());
    let word = || DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let (mut number, mut sum, mut other_sum) = (word(), word(), word());
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        let (which, whether) = (scope.condition(0)?, scope.condition(0)?);
        scope.record(one(&look, |args| args.arg(which.handle()).read(&number)))?;
        scope.record(one(&look, |args| args.arg(whether.handle()).read(&number)))?;
        let numbers = scope.switch(&which, 3, |case, body| {
            body.record(one(&add, |args| args.write(&mut sum).arg(10u32.pow(case))))?;
            Ok(case)
        })?;
        assert_eq!(numbers, [0, 1, 2]);
        let (then, otherwise) = scope.if_else(&whether, |yes, body| {
            if yes {
                body.record(one(&add, |args| args.write(&mut sum).arg(1000u32)))?;
                return Ok("then");
            }
            body.record(one(&add, |args| args.write(&mut other_sum).arg(1u32)))?;
            // One of the other kind inside, with a condition of the outermost graph.
            body.switch(&which, 1, |_, body| {
                body.record(one(&add, |args| args.write(&mut other_sum).arg(10u32)))
            })?;
            Ok("else")
        })?;
        assert_eq!((then, otherwise), ("then", "else"));
        Ok(())
    })
    .unwrap();
    let stream = rig.context.new_stream().unwrap();
    let (mut expected, mut other_expected) = (0, 0);
    for value in [0u32, 1, 2, 3, 0, 2, u32::MAX] {
        number.copy_from_slice(&stream, &[value]).unwrap();
        graph.launch().enqueue_on(&rig.stream).unwrap();
        expected += match value {
            0..3 => 10u32.pow(value),
            _ => 0,
        };
        match value {
            0 => other_expected += 11,
            _ => expected += 1000,
        }
        assert_eq!(sum.to_vec(&stream).unwrap(), [expected], "{value}");
        assert_eq!(other_sum.to_vec(&stream).unwrap(), [other_expected], "{value}");
    }
    // What any of them touches is the graph's.
    assert!(!sum.is_unique() && !other_sum.is_unique());
    drop((graph, number, sum, other_sum, module, look, add));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!((rig.sim.holdings().graphs, rig.context.stats().live_allocations), (0, 0));
    rig.clean();
}

/// A body is a part of its graph: the end of the capture, however it comes, ends those that are being recorded, and none begins after it.
#[test]
fn a_body_does_not_outlive_the_capture_that_it_is_of() {
    let rig = rig();
    let (side, deep) = (rig.context.new_stream().unwrap(), rig.context.new_stream().unwrap());
    let mut word = DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    for way in 0..4 {
        let capture = rig.stream.begin_capture().unwrap();
        let condition = capture.condition(&rig.stream, 1).unwrap();
        let mut node = capture.begin_conditional(&condition, Conditional::IfElse).unwrap();
        let body = node.begin_body(0, &side).unwrap();
        let mut inner = body.begin_conditional(&condition, Conditional::If).unwrap();
        let nested = inner.begin_body(0, &deep).unwrap();
        nested.submit(&deep).fill(&mut word, 1).unwrap();
        match way {
            0 => drop(capture),
            1 => assert!(capture.finish().unwrap_err().to_string().contains("given up")),
            2 => capture.abandon(),
            _ => {
                // Where no call may be made, in the background.
                let other = rig.context.new_stream().unwrap();
                other.launch_host_function(move || drop(capture)).unwrap();
                other.synchronize().unwrap();
                assert!(rig.context.drain(SOON).is_complete());
            }
        }
        for (of, on) in [(&body, &side), (&nested, &deep)] {
            let refused = of.submit(on).fill(&mut word, 2).unwrap_err().to_string();
            assert!(refused.contains("the capture has ended"), "{way}: {refused}");
        }
        let late = node.begin_body(1, &rig.context.new_stream().unwrap()).unwrap_err().to_string();
        assert!(late.contains("the capture that it is of has ended"), "{way}: {late}");
        assert!(body.begin_conditional(&condition, Conditional::If).is_err());
        assert!(inner.end_body(&nested).is_err() && node.end_body(&body).is_err());
        drop((nested, inner, body, node));
        // All three streams take work again.
        for stream in [&rig.stream, &side, &deep] {
            word.fill(stream, 4).unwrap();
        }
        assert_eq!(word.to_vec(&side).unwrap(), [4]);
        assert!(rig.context.drain(SOON).is_complete());
        assert_eq!((rig.sim.holdings().graphs, rig.sim.holdings().captures), (0, 0), "{way}");
    }
    assert!(word.is_unique());
    rig.clean();
}

#[test]
fn bodies_of_a_node_are_counted_and_each_is_recorded_once() {
    let rig = rig();
    let side = rig.context.new_stream().unwrap();
    let mut word = DeviceBuffer::from_slice(&rig.stream, &[0u32]).unwrap();
    let none = CudaGraph::scope(&rig.stream, |scope| {
        let condition = scope.condition(0)?;
        scope.switch(&condition, 0, |_, _| Ok(()))
    });
    assert!(none.unwrap_err().to_string().contains("one at least"));
    let capture = rig.stream.begin_capture().unwrap();
    let condition = capture.condition(&rig.stream, 5).unwrap();
    let mut node = capture.begin_conditional(&condition, Conditional::Switch(6)).unwrap();
    assert_eq!(node.bodies(), 6);
    let body = node.begin_body(5, &side).unwrap();
    body.submit(&side).fill(&mut word, 9).unwrap();
    let twice = node.begin_body(5, &rig.context.new_stream().unwrap()).unwrap_err();
    assert!(twice.to_string().contains("body 5 was begun already"), "{twice}");
    let missing = node.begin_body(6, &side).unwrap_err();
    assert!(missing.to_string().contains("it has 6 bodies, and none of number 6"), "{missing}");
    assert!(node.end_body(&capture).unwrap_err().to_string().contains("is no body of it"));
    node.end_body(&body).unwrap();
    assert!(node.end_body(&body).is_err(), "it has ended");
    // The others are empty.
    capture.end_conditional(&rig.stream, node).unwrap();
    rig.stream.submit().graph(&capture.finish().unwrap().instantiate().unwrap()).unwrap();
    assert_eq!(word.to_vec(&side).unwrap(), [9]);
    // A node without a place is no part of any graph.
    let capture = rig.stream.begin_capture().unwrap();
    let condition = capture.condition(&rig.stream, 1).unwrap();
    drop(capture.begin_conditional(&condition, Conditional::If).unwrap());
    assert!(capture.finish().unwrap_err().to_string().contains("given up"));
    word.fill(&rig.stream, 1).unwrap();
    rig.clean();
}

#[test]
fn drivers_before_12_8_have_one_body_and_say_so() {
    let sim = Simulator::builder().driver_version(12060).quiet().build();
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().primary_context().unwrap();
    let stream = context.new_stream().unwrap();
    let graph = |kind| {
        CudaGraph::scope(&stream, |scope| {
            let condition = scope.condition(1)?;
            scope.conditional(&condition, kind, |body| body.record(zeros::<u32>(4)).map(drop))
        })
    };
    graph(Conditional::If).unwrap();
    for kind in [Conditional::IfElse, Conditional::Switch(1)] {
        let error = graph(kind).unwrap_err().to_string();
        assert!(error.contains("it came with CUDA 12.8, and the driver has 12.6"), "{error}");
    }
    zeros::<u32>(4).sync_on(&stream).unwrap();
}

crate::schedules::explored!(
    a_kernel_of_a_graph_is_given_other_arguments
    what_is_no_launch_of_that_kernel_is_refused
    a_kernel_that_the_driver_does_not_update_gets_a_new_executable_or_stays
    threads_launch_a_graph_while_a_kernel_changes
    captured_programmatic_launches_become_programmatic_edges
    conditional_nodes_run_their_bodies_if_and_as_long_as_a_kernel_says_so
    conditions_are_of_one_graph_and_some_drivers_have_none
    bodies_of_conditional_nodes_have_conditional_nodes
    a_conditional_node_comes_behind_what_its_body_conflicts_with
    a_body_that_is_given_up_spoils_the_capture_and_nothing_else
    of_several_bodies_the_condition_chooses_one
    bodies_of_a_node_are_counted_and_each_is_recorded_once
    a_body_does_not_outlive_the_capture_that_it_is_of
    drivers_before_12_8_have_one_body_and_say_so
);
