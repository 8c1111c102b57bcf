//! The table as a whole.

use super::*;
use crate::cuda::hooked_call::NOT_INITIALIZED;

#[test]
fn every_name_is_its_base_with_suffixes_and_stands_once() {
    for entry in entries() {
        let suffix = entry.name.strip_prefix(entry.base).unwrap_or_else(|| panic!("{}", entry.name));
        let version = suffix.strip_suffix("_ptsz").unwrap_or(suffix);
        assert!(["", "_v2", "_v3", "_v4"].contains(&version), "{}", entry.name);
        assert_eq!(entry.per_thread_stream, suffix.ends_with("_ptsz"), "{}", entry.name);
        assert_eq!(entries().filter(|other| other.name == entry.name).count(), 1, "{}", entry.name);
    }
}

#[test]
fn an_api_id_names_its_row() {
    assert_eq!(NAMES.len(), entries().count() - RESOLVERS.len() + 1);
    let rows: Vec<_> = FAMILIES.into_iter().flatten().map(|entry| entry.name).collect();
    assert_eq!(NAMES[1..], rows);
    assert_eq!(first_id(1), NAMES.iter().position(|name| *name == "cuMemAllocHost_v2").unwrap());
}

#[test]
fn the_offsets_of_structs_are_the_drivers() {
    use cudarc::driver::sys::{
        CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS,
        CUgraphNodeParams, CUipcMemHandle, CUmemAllocationProp, CUmemPoolProps, CUmulticastObjectProp,
    };
    use std::mem::offset_of;
    assert_eq!((offset_of!(CUmemAllocationProp, location), size_of::<CUmemAllocationProp>()), (8, 32));
    assert_eq!((offset_of!(CUmemPoolProps, location), offset_of!(CUmemPoolProps, maxSize)), (8, 24));
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
fn without_a_driver_a_call_fails_as_the_driver_would() {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter; there is no driver in the test process.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut pointer, 512) }, NOT_INITIALIZED);
    assert_eq!(pointer, 0);
}
