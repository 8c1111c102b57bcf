//! Symbolization resolves exactly the addresses that will be printed, each once.

use std::collections::BTreeMap;

use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::{ModuleDef, NamedFrame, NativeNode, NodeId, definitions};
use gpumemtrace_replay::callsite::{NameScope, Symbolizer};
use gpumemtrace_replay::report::UnnamedReason;
use gpumemtrace_replay::{Analysis, RingFile, Section, report, symbolize_report};
use gpumemtrace_synthetic::Synthetic;

const BIAS: u64 = 0x7f00_0010_0000;

#[derive(Default)]
struct CountingSymbolizer(BTreeMap<u64, u64>);

impl Symbolizer for CountingSymbolizer {
    fn resolve(&mut self, module: &ModuleDef, address: u64) -> Result<Vec<NamedFrame>, UnnamedReason> {
        assert_eq!(module.path, "/work/lib.so");
        *self.0.entry(address).or_default() += 1;
        Ok(vec![NamedFrame { function: format!("f{address:x}").as_str().into(), file: "".into(), line: 0 }])
    }
}

/// Analyses a training with a native stack of three frames on every event, two of them in a module.
fn analysed() -> Analysis {
    let mut run = Synthetic::train(9, |run, step, _| {
        if step == 3 {
            run.alloc(NodeId::NONE, 8 << 20);
        }
    });
    for event in &mut run.events {
        event.native_stack = NodeId(3);
    }
    let node =
        |id, parent, return_address| NativeNode { id: NodeId(id), parent: NodeId(parent), return_address };
    let nodes = [node(1, 0, BIAS + 0x201), node(2, 1, 0x10), node(3, 2, BIAS + 0x101)];
    let module = ModuleDef {
        load_bias: BIAS,
        start: BIAS,
        end: BIAS + 0x1000,
        path: "/work/lib.so".to_owned(),
        build_id: vec![1; 20],
    };
    let mut file = run.file(100);
    file.extend(encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&nodes), 3));
    file.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&[module]), 3));
    gpumemtrace_synthetic::analyse_bytes(&file, RingFile::Absent)
}

#[test]
fn each_printed_address_is_resolved_once() {
    let analyses = [analysed()];
    let mut whole = report(&analyses, &[]);
    let mut asked = CountingSymbolizer::default();
    symbolize_report(&mut whole, &analyses, NameScope::ALL, &mut asked);
    assert_eq!(asked.0, BTreeMap::from([(0x100, 1), (0x200, 1)]));
    let naming = whole.traces[0].symbols.as_ref().unwrap();
    assert_eq!((naming.addresses, naming.unresolved), (3, 1));
    assert_eq!((naming.reasons[0].why, &naming.reasons[0].module), (UnnamedReason::NoModule, &None));
}

#[test]
fn addresses_outside_the_scope_are_not_resolved() {
    let analyses = [analysed()];
    let shown = |sections, stacks| NameScope { sections, max_sites: 20, stacks, mixed: false };
    // A site without Python frames needs the one address that names it, and with its stack the
    // others.
    for (shown, addresses) in [
        (shown(&[Section::Leaks], true), 0),
        (shown(&[Section::Peak], false), 1),
        (shown(&[Section::Peak], true), 2),
    ] {
        let (mut whole, mut asked) = (report(&analyses, &[]), CountingSymbolizer::default());
        symbolize_report(&mut whole, &analyses, shown, &mut asked);
        assert_eq!(asked.0.len(), addresses, "{shown:?}");
        assert_eq!(whole.traces[0].symbols.is_some(), addresses > 0);
    }
}
