use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn definitions_round_trip(
        codes in vec((any::<u32>(), any::<i32>(), any::<u16>(), any::<bool>(), ".{0,20}", ".{0,20}", vec(any::<u8>(), 0..40)), 0..8),
        nodes in vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<i32>(), any::<u64>()), 0..40),
    ) {
        let codes: Vec<CodeDef> = codes.into_iter().map(|(id, first_line, python, truncated, file, name, line_table)| {
            CodeDef { id: CodeId(id), first_line, python, truncated, file, name, line_table }
        }).collect();
        prop_assert_eq!(decode_codes(&encode_codes(&codes)), Ok(codes));
        let py: Vec<PyNode> = nodes.iter().map(|n| PyNode { id: NodeId(n.0), parent: NodeId(n.1), code: CodeId(n.2), offset_bytes: n.3, link: FrameLink::Unknown }).collect();
        prop_assert_eq!(decode_py_nodes(&encode_py_nodes(&py)), Ok(py));
        let native: Vec<NativeNode> = nodes.iter().map(|n| NativeNode { id: NodeId(n.0), parent: NodeId(n.1), return_address: n.4 }).collect();
        prop_assert_eq!(decode_native_nodes(&encode_native_nodes(&native)), Ok(native));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let _ = decode_codes(&bytes);
        let _ = decode_py_nodes(&bytes);
        let _ = decode_native_nodes(&bytes);
        let _ = decode_modules(&bytes);
    }
}

#[test]
fn modules_round_trip() {
    let modules = vec![ModuleDef {
        load_bias: 0x7f00_0000_0000,
        start: 0x7f00_0000_1000,
        end: 0x7f00_0010_0000,
        path: "/usr/lib/libc.so.6".into(),
        build_id: vec![1; 20],
    }];
    assert_eq!(decode_modules(&encode_modules(&modules)), Ok(modules));
}
