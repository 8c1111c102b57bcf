use super::*;
use crate::callsite::site_key::MAX_FRAMES;
use gpumemtrace_format::{CodeDef, NativeNode, PyNode};

fn code(id: u32, file: &str, name: &str, line: i32) -> CodeDef {
    // One entry without columns: 8 units, line difference 0.
    let line_table = vec![0xef, 0];
    CodeDef {
        id: CodeId(id),
        first_line: line,
        python: 0x030b,
        file: file.into(),
        name: name.into(),
        line_table,
        truncated: false,
    }
}

fn node(id: u32, parent: u32, code: u32) -> PyNode {
    PyNode { id: NodeId(id), parent: NodeId(parent), code: CodeId(code), offset_bytes: 2, link: FrameLink::C }
}

fn symbols(codes: &[CodeDef], nodes: &[PyNode]) -> StackSymbols {
    let mut definitions = Definitions::default();
    definitions.codes.extend(codes.iter().map(|code| (code.id, code.clone())));
    definitions.python.extend(nodes.iter().map(|node| (node.id, *node)));
    StackSymbols::new(definitions, UserCodePaths::default())
}

const LIB: &str = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py";
const CHECKPOINT: &str = "/v/lib/python3.12/site-packages/torch/utils/checkpoint.py";

#[test]
fn site_is_innermost_user_line_and_equal_lines_are_one_site() {
    let codes = [
        code(1, "train.py", "main", 10),
        code(2, LIB, "Module.__call__", 5),
        code(3, "train.py", "main", 10),
    ];
    let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(9, 0, 3)]);
    let [a, b] = [2, 9].map(|id| symbols.stack(NodeId(id), NodeId::NONE));
    assert_eq!(symbols.stack_info(a).site, symbols.stack_info(b).site);
    let site = symbols.site(symbols.stack_info(a).site, Some(a));
    assert_eq!(
        (site.file.as_deref(), site.line, site.function.as_deref()),
        (Some("train.py"), Some(10), Some("main"))
    );
    assert_eq!(site.stack.len(), 2);
    assert_eq!(site.stack[0].file.as_deref(), Some(LIB));
}

#[test]
fn wrappers_of_simulate_are_no_frames() {
    let wrapper = "/tmp/gpumemtrace-python-1/_gpumemtrace_simulation/value_reads.py";
    let codes = [code(1, "train.py", "main", 10), code(2, wrapper, "wrapped", 5), code(3, LIB, "f", 7)];
    let nodes = [node(1, 0, 1), node(2, 1, 2), node(3, 2, 3), node(4, 0, 3), node(5, 4, 2)];
    let mut symbols = symbols(&codes, &nodes);
    // Called by the program, calling the library, and called by the library alone.
    let sites = [2, 3, 5].map(|id| {
        let stack = symbols.stack(NodeId(id), NodeId::NONE);
        let site = symbols.site(symbols.stack_info(stack).site, Some(stack));
        assert!(site.stack.iter().all(|frame| frame.file.as_deref() != Some(wrapper)));
        (site.file, site.line)
    });
    let own = |file: &str, line| (Some(file.to_owned()), Some(line));
    assert_eq!(sites, [own("train.py", 10), own("train.py", 10), own(LIB, 7)]);
}

#[test]
fn site_falls_back_to_generated_code_then_to_innermost_frame() {
    let codes = [code(1, "<string>", "<module>", 1), code(2, LIB, "f", 5)];
    let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(3, 0, 2)]);
    let [a, b] = [2, 3].map(|id| {
        let stack = symbols.stack(NodeId(id), NodeId::NONE);
        symbols.site(symbols.stack_info(stack).site, None).file
    });
    assert_eq!((a.as_deref(), b.as_deref()), (Some("<string>"), Some(LIB)));
}

#[test]
fn empty_stack_is_unknown_and_native_stack_is_module_and_offset() {
    let mut definitions = Definitions::default();
    let module = gpumemtrace_format::ModuleDef {
        load_bias: 0x1000,
        start: 0x1000,
        end: 0x2000,
        path: "/x/libnccl.so.2".into(),
        build_id: vec![],
    };
    definitions.add_item(gpumemtrace_format::reader::Item::Modules(vec![module]));
    definitions
        .native
        .insert(NodeId(1), NativeNode { id: NodeId(1), parent: NodeId::NONE, return_address: 0x1234 });
    let mut symbols = StackSymbols::new(definitions, UserCodePaths::default());
    let none = symbols.stack(NodeId::NONE, NodeId::NONE);
    assert_eq!(symbols.site(symbols.stack_info(none).site, Some(none)).file, None);
    let native = symbols.stack(NodeId::NONE, NodeId(1));
    let site = symbols.site(symbols.stack_info(native).site, Some(native));
    assert_eq!((site.module.as_deref(), site.stack[0].offset), (Some("/x/libnccl.so.2"), Some(0x234)));
}

#[test]
fn cycle_of_parents_ends_at_max_frames() {
    let mut symbols = symbols(&[code(1, "a.py", "f", 1)], &[node(1, 2, 1), node(2, 1, 1)]);
    let stack = symbols.stack(NodeId(1), NodeId::NONE);
    assert_eq!(symbols.frames(stack).len(), MAX_FRAMES);
}

#[test]
fn optimizer_line_is_found_through_pytorchs_wrapper() {
    let optim = "/v/site-packages/torch/optim/";
    let codes = [
        code(1, "train.py", "main", 10),
        code(2, &format!("{optim}optimizer.py"), "Optimizer.profile_hook_step.<locals>.wrapper", 5),
        code(3, &format!("{optim}adam.py"), "Adam.step", 5),
    ];
    let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(3, 2, 3)]);
    let stack = symbols.stack(NodeId(3), NodeId::NONE);
    let line = symbols.optimizer_lines()[symbols.stack_info(stack).optimizer as usize - 1];
    assert_eq!(line.call, OptimizerCall::Step);
    assert_eq!(symbols.site(line.site, None).line, Some(10));
}

#[test]
fn equal_stacks_of_two_threads_are_one() {
    let codes = [code(1, "train.py", "work", 10), code(2, "train.py", "load", 5)];
    let nodes = [node(1, 0, 1), node(2, 1, 2), node(11, 0, 1), node(12, 11, 2)];
    let mut symbols = symbols(&codes, &nodes);
    let [a, b, caller] = [2, 12, 11].map(|id| symbols.stack(NodeId(id), NodeId::NONE));
    assert!(a == b && a != caller);
    assert_ne!(symbols.stack(NodeId(2), NodeId(7)), symbols.stack(NodeId(12), NodeId(7)));
}

/// Node 3 is `train.py:10`, and 4 the backward pass of it. Thread 2 recomputes library code (11,
/// 12) or runs user code (13) inside of node 4.
fn recomputed(own_root: CodeDef) -> StackSymbols {
    let codes = [code(1, "train.py", "main", 10), code(2, LIB, "relu", 7), own_root, code(4, "f.py", "g", 3)];
    let link = |id: u32, parent: u32, bits: u32, link: FrameLink| PyNode {
        offset_bytes: bits.cast_signed(),
        link,
        ..node(id, parent, 0)
    };
    let backward = link(4, 3, 0, FrameLink::Backward);
    let inside = |id, own| link(id, own, 4, FrameLink::InsideBackward);
    let nodes = [node(3, 0, 1), backward, node(11, 0, 3), node(12, 11, 2), node(13, 11, 4)];
    symbols(&codes, &[&nodes[..], &[inside(21, 12), inside(22, 13), inside(23, 99)]].concat())
}

#[test]
fn python_code_inside_a_backward_node_is_below_its_forward_line() {
    let mut symbols = recomputed(code(3, CHECKPOINT, "unpack_hook", 5));
    let sites = [21, 22, 12].map(|id| {
        let stack = symbols.stack(NodeId(id), NodeId::NONE);
        let site = symbols.site(symbols.stack_info(stack).site, Some(stack));
        let functions: Vec<_> = site.stack.iter().filter_map(|frame| frame.function.clone()).collect();
        (site.line, site.is_backward, functions.join(" "))
    });
    let own = |line, is_backward, functions: &str| (Some(line), is_backward, functions.to_owned());
    assert_eq!(sites[0], own(10, true, "relu unpack_hook <backward> main"));
    assert_eq!(sites[1], own(3, false, "g unpack_hook <backward> main"));
    assert_eq!(sites[2], own(7, false, "relu unpack_hook"), "the own stack alone stays as it is");
    let lost = symbols.stack(NodeId(23), NodeId::NONE);
    assert_eq!(symbols.site(symbols.stack_info(lost).site, None).file, None);
}

#[test]
fn stack_with_user_code_and_the_call_of_backward_is_complete() {
    let mut symbols = recomputed(code(3, "/v/site-packages/torch/autograd/__init__.py", "backward", 5));
    let functions = [21, 22].map(|id| {
        let stack = symbols.stack(NodeId(id), NodeId::NONE);
        let names = symbols.frames(stack).into_iter().filter_map(|frame| frame.function);
        names.collect::<Vec<_>>().join(" ")
    });
    assert_eq!(functions, ["relu backward <backward> main", "g backward"]);
}
