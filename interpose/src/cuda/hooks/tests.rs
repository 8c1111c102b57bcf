//! Checks of all hook tables together.

use super::*;
use crate::cuda::driver_fn::NOT_INITIALIZED;
use crate::cuda::resolver::hooked_functions;

#[test]
fn each_hook_name_is_unique_and_extends_its_base_name() {
    for function in hooked_functions() {
        let suffix = function.name.strip_prefix(function.base).unwrap_or_else(|| panic!("{}", function.name));
        let version = suffix.strip_suffix("_ptsz").unwrap_or(suffix);
        assert!(["", "_v2", "_v3", "_v4"].contains(&version), "{}", function.name);
        assert_eq!(function.per_thread_stream, suffix.ends_with("_ptsz"), "{}", function.name);
        assert_eq!(
            hooked_functions().filter(|other| other.name == function.name).count(),
            1,
            "{}",
            function.name
        );
    }
}

#[test]
fn api_names_follow_the_order_of_the_rows() {
    assert_eq!(API_NAMES.len(), recorded_functions().count() + 1);
    let rows: Vec<_> = recorded_functions().map(|function| function.name).collect();
    assert_eq!(API_NAMES[1..], rows);
    assert_eq!(first_api_id(1), API_NAMES.iter().position(|name| *name == "cuMemAllocHost_v2").unwrap());
}

#[test]
fn struct_offsets_match_the_driver_headers() {
    use cudarc::driver::sys::{
        CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_CHILD_GRAPH_NODE_PARAMS,
        CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_GRAPH_INSTANTIATE_PARAMS,
        CUDA_MEM_ALLOC_NODE_PARAMS, CUgraphNodeParams, CUipcMemHandle, CUmemAllocationProp, CUmemPoolProps,
        CUmulticastObjectProp,
    };
    use std::mem::offset_of;
    assert_eq!((offset_of!(CUmemAllocationProp, location), size_of::<CUmemAllocationProp>()), (8, 32));
    assert_eq!((offset_of!(CUmemPoolProps, location), offset_of!(CUmemPoolProps, maxSize)), (8, 24));
    assert_eq!(
        (offset_of!(CUmemPoolProps, allocType), offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps)),
        (0, 0)
    );
    assert_eq!(
        (offset_of!(CUmulticastObjectProp, numDevices), offset_of!(CUmulticastObjectProp, size)),
        (0, 8)
    );
    assert_eq!(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize), 104);
    assert_eq!(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr), 112);
    assert_eq!(
        (offset_of!(CUgraphNodeParams, type_), offset_of!(CUgraphNodeParams, __bindgen_anon_1)),
        (0, 16)
    );
    assert_eq!(offset_of!(CUDA_GRAPH_INSTANTIATE_PARAMS, flags), 0);
    // The ownership, of CUDA 12.9, follows the graph's handle.
    assert_eq!(
        (offset_of!(CUDA_CHILD_GRAPH_NODE_PARAMS, graph), size_of::<CUDA_CHILD_GRAPH_NODE_PARAMS>()),
        (0, 8)
    );
    assert_eq!(
        (offset_of!(CUDA_ARRAY_DESCRIPTOR, Format), offset_of!(CUDA_ARRAY_DESCRIPTOR, NumChannels)),
        (16, 20)
    );
    assert_eq!(offset_of!(CUDA_ARRAY3D_DESCRIPTOR, Format), 24);
    assert_eq!(offset_of!(CUDA_ARRAY3D_DESCRIPTOR, NumChannels), 28);
    assert_eq!(offset_of!(CUDA_ARRAY3D_DESCRIPTOR, Flags), 32);
    assert_eq!(offset_of!(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size), 24);
    assert_eq!(offset_of!(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size), 8);
    assert_eq!(size_of::<CUipcMemHandle>(), 64);
}

#[test]
fn call_without_driver_returns_not_initialized() {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter; there is no driver in the test process.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut pointer, 512) }, NOT_INITIALIZED);
    assert_eq!(pointer, 0);
}
