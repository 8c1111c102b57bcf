//! Native function names stored in the trace itself, for a machine without the traced libraries.

use std::fs;

use assert_cmd::Command;
use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::definitions::encode_names;
use gpumemtrace_format::{AddressNames, ModuleDef, ModuleNames, NamedFrame, NativeNode, NodeId, definitions};
use gpumemtrace_synthetic::Synthetic;
use serde_json::Value;

const PYTHON: &str = "/gone/libpython3.11.so.1.0";
const WORK: &str = "/gone/libwork.so";
const WORK_BIAS: u64 = 0x7f00_0010_0000;
const PYTHON_BIAS: u64 = 0x7f00_0020_0000;

/// Sets a stack of three frames: grow (with take inlined) and an unnamed function of libwork.so,
/// and the interpreter's loop.
fn with_native_stacks(run: &mut Synthetic) {
    for event in &mut run.events {
        event.native_stack = NodeId(3);
    }
}

fn blocks(with_names: bool) -> Vec<u8> {
    let module = |path: &str, load_bias: u64, id: u8| ModuleDef {
        load_bias,
        start: load_bias,
        end: load_bias + 0x1_0000,
        path: path.to_owned(),
        build_id: vec![id; 20],
    };
    let node =
        |id, parent, return_address| NativeNode { id: NodeId(id), parent: NodeId(parent), return_address };
    let frame =
        |function: &str, file: &str, line| NamedFrame { function: function.into(), file: file.into(), line };
    let names = [
        ModuleNames {
            build_id: vec![1; 20],
            addresses: vec![AddressNames {
                address: 0x100,
                frames: vec![frame("take", "/src/work.c", 7), frame("grow", "/src/work.c", 12)],
            }],
        },
        ModuleNames {
            build_id: vec![2; 20],
            addresses: vec![AddressNames {
                address: 0x200,
                frames: vec![frame("_PyEval_EvalFrameDefault", "", 0)],
            }],
        },
    ];
    let mut file = encode_block(
        BlockKind::NATIVE_NODES,
        &definitions::encode_native_nodes(&[
            node(1, 0, PYTHON_BIAS + 0x201),
            node(2, 1, WORK_BIAS + 0x301),
            node(3, 2, WORK_BIAS + 0x101),
        ]),
        3,
    );
    let modules = [module(WORK, WORK_BIAS, 1), module(PYTHON, PYTHON_BIAS, 2)];
    file.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&modules), 3));
    if with_names {
        file.extend(encode_block(BlockKind::NAMES, &encode_names(&names), 3));
    }
    file
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command
        .env("COLUMNS", "200")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("TERM")
        .env("GPUMEMTRACE_CACHE", "off")
        .env_remove("LD_PRELOAD");
    let output = command.args(args).output().expect("gpumemtrace runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn report(args: &[&str]) -> Value {
    let (code, out, errors) = run(&[&["replay", "--json"], args].concat());
    assert_eq!(code, Some(0), "{errors}");
    let report = serde_json::from_str(&out).unwrap();
    let violations = crate::schema::violations("report", &report);
    assert!(violations.is_empty(), "{violations:#?}");
    report
}

/// Kind, function and whether the frame is inlined, for each frame of a call site.
fn frames(site: &Value) -> Vec<(String, Option<String>, bool)> {
    let frame = |frame: &Value| {
        let function = frame["function"].as_str().map(str::to_owned);
        (frame["kind"].as_str().unwrap().to_owned(), function, frame["is_inlined"] == true)
    };
    site["stack"].as_array().unwrap().iter().map(frame).collect()
}

#[test]
fn python_frames_are_merged_at_the_named_interpreter_loop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace").display().to_string();
    let mut training = Synthetic::train(9, |_, _, _| {});
    with_native_stacks(&mut training);
    fs::write(&path, [training.file(100), blocks(true)].concat()).unwrap();

    let found = report(&[&path, "--peak"]);
    let site = &found["peak"][0]["sites"][0]["site"];
    let frames = frames(site);
    let native =
        |function: Option<&str>, inlined| ("native".to_owned(), function.map(str::to_owned), inlined);
    assert_eq!(frames[..3], [native(Some("take"), true), native(Some("grow"), false), native(None, false)]);
    assert!(frames[3..frames.len() - 1].iter().all(|(kind, ..)| kind == "python"));
    assert_eq!(frames.last(), Some(&native(Some("_PyEval_EvalFrameDefault"), false)));
    assert_eq!(site["stack_order"], "exact");
    let symbols = &found["traces"][0]["symbols"];
    assert_eq!((&symbols["addresses"], &symbols["unresolved"]), (&3.into(), &1.into()));
    assert_eq!(symbols["reasons"][0]["why"], "file_missing");
    assert_eq!(found["traces"][0]["complete"], true, "a missing name is not a loss");

    let (_, brief, _) = run(&["replay", &path, "--peak"]);
    assert!(!brief.contains("grow") && brief.contains("hidden; --stacks shows them"), "{brief}");
    let (_, whole, _) = run(&["replay", &path, "--peak", "--stacks"]);
    for line in ["> take (/src/work.c:7) [inlined]", "> grow (/src/work.c:12)", "> libwork.so+0x301"] {
        assert!(whole.contains(line), "{line} is not in {whole}");
    }
    assert!(whole.contains("no name for 1 of 3 native addresses"), "{whole}");
    assert!(whole.contains("gpumemtrace symbolize"), "the advice is missing: {whole}");
}

#[test]
fn native_call_site_is_function_or_module_offset() {
    let folder = tempfile::tempdir().unwrap();
    for (with_names, line) in [(true, "take (/src/work.c:7)"), (false, "libwork.so+0x101")] {
        let mut native = Synthetic::new();
        native.alloc(NodeId::NONE, 4 << 20);
        with_native_stacks(&mut native);
        let path = folder.path().join("run.trace").display().to_string();
        fs::write(&path, [native.file(100), blocks(with_names)].concat()).unwrap();
        for section in [&[][..], &["--peak"], &["--timeline"]] {
            let (code, text, _) = run(&[&["replay", path.as_str()], section].concat());
            assert!(code == Some(0) && text.contains(line), "{section:?}: {text}");
        }
        let site = &report(&[&path, "--peak"])["peak"][0]["sites"][0]["site"];
        assert_eq!((&site["module"], &site["offset"]), (&WORK.into(), &0x101.into()));
        assert_eq!(site["function"].as_str(), with_names.then_some("take"));
    }
}

#[test]
fn damaged_names_block_is_reported_and_frames_stay_unnamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace").display().to_string();
    let mut training = Synthetic::train(3, |_, _, _| {});
    with_native_stacks(&mut training);
    let mut bytes = [training.file(100), blocks(true)].concat();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (code, text, _) = run(&["replay", &path, "--peak", "--stacks"]);
    assert_eq!(code, Some(6));
    assert!(text.contains("damage at byte") && text.contains("libwork.so+0x101"), "{text}");
}
