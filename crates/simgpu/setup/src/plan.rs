//! Chooses the code behind each exported name of one library.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::elf::Template;
use crate::export::{Export, Target};
use crate::scan::Functions;

/// Prefix of hand-written functions in the template; a `__cudaNN` suffix limits one to that major
/// version.
const PREFIX: &str = "simgpu_fn_";

/// Function prefixes of each library; the longest match decides.
const HOMES: &[(&str, &[&str])] = &[
    ("libcudart.", &["cuda", "__cuda"]),
    ("libcublas.", &["cublas"]),
    ("libcublasLt.", &["cublasLt"]),
    ("libcudnn.", &["cudnn"]),
    ("libcufft.", &["cufft"]),
    ("libcurand.", &["curand"]),
    ("libcusolver.", &["cusolver"]),
    ("libcusparse.", &["cusparse"]),
    ("libcusparseLt.", &["cusparseLt"]),
    ("libnvrtc.", &["nvrtc"]),
    ("libnccl.", &["nccl"]),
    ("libnvidia-ml.", &["nvml"]),
];

/// Functions named `...Create...` without a place for a new object as first argument.
const NOT_CREATORS: &[&str] =
    &["cusparseCreateIdentityPermutation", "ncclRedOpCreatePreMulSum", "ncclDevCommCreate"];

/// Libraries with `...Create...` functions that return opaque objects in their first argument.
const CREATORS: &[&str] = &["cublasLt", "cudnn", "cusolver", "cusparse", "curand", "nvrtc"];

/// Workspace size queries, `?` for the element type: position and width of the result argument.
const SIZES: &[(&str, &str)] = &[
    ("cusolverDn?geqrf_bufferSize", "simgpu_int_size_5"),
    ("cusolverDn?gesvd_bufferSize", "simgpu_int_size_3"),
    ("cusolverDn?gesvdj_bufferSize", "simgpu_int_size_12"),
    ("cusolverDn?gesvdjBatched_bufferSize", "simgpu_int_size_11"),
    ("cusolverDn?gesvdaStridedBatched_bufferSize", "simgpu_int_size_16"),
    ("cusolverDn?getrf_bufferSize", "simgpu_int_size_5"),
    ("cusolverDn?heevd_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?heevj_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?heevjBatched_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?syevd_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?syevj_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?syevjBatched_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?orgqr_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?ungqr_bufferSize", "simgpu_int_size_7"),
    ("cusolverDn?ormqr_bufferSize", "simgpu_int_size_11"),
    ("cusolverDn?unmqr_bufferSize", "simgpu_int_size_11"),
    ("cusolverDn?potrf_bufferSize", "simgpu_int_size_5"),
    ("cusolverDn?sytrf_bufferSize", "simgpu_int_size_4"),
    ("cusolverDnXgeev_bufferSize", "simgpu_sizes_17"),
    ("cusolverDnXgeqrf_bufferSize", "simgpu_sizes_10"),
    ("cusolverDnXpotrf_bufferSize", "simgpu_sizes_8"),
    ("cusolverDnXsyevd_bufferSize", "simgpu_sizes_11"),
    ("cusolverDnXsyevBatched_bufferSize", "simgpu_sizes_11"),
    ("cusolverDnXsytrs_bufferSize", "simgpu_sizes_11"),
    ("cusparse?bsrsm2_bufferSize", "simgpu_int_size_13"),
    ("cusparse?bsrsv2_bufferSize", "simgpu_int_size_11"),
    ("cusparse?csrgeam2_bufferSizeExt", "simgpu_size_19"),
    ("cusparseXcoosort_bufferSizeExt", "simgpu_size_6"),
    ("cusparseXcsrsort_bufferSizeExt", "simgpu_size_6"),
    ("cusparseSpMV_bufferSize", "simgpu_size_9"),
    ("cusparseSpMM_bufferSize", "simgpu_size_10"),
    ("cusparseSDDMM_bufferSize", "simgpu_size_10"),
    ("cusparseSpSV_bufferSize", "simgpu_size_9"),
    ("cusparseSpSM_bufferSize", "simgpu_size_10"),
    ("cusparseLtMatmulGetWorkspace", "simgpu_size_2"),
];

/// Returns the size query that implements a name.
fn size_query(function: &str) -> Option<&'static str> {
    let fits = |pattern: &str| match pattern.split_once('?') {
        Some((head, tail)) => function
            .strip_prefix(head)
            .and_then(|rest| rest.strip_suffix(tail))
            .is_some_and(|letter| matches!(letter, "S" | "D" | "C" | "Z")),
        None => pattern == function,
    };
    SIZES.iter().find(|(pattern, _)| fits(pattern)).map(|(_, symbol)| *symbol)
}

/// cuBLAS functions that put no work on the handle's stream.
const CUBLAS_WITHOUT_WORK: &[&str] =
    &["cublasSet", "cublasGet", "cublasCreate", "cublasDestroy", "cublasLt", "cublasXt", "cublasLogger"];

/// Returns whether a cuBLAS function launches a kernel on the stream of its handle.
fn computes(function: &str) -> bool {
    function.starts_with("cublas")
        && (function.starts_with("cublasGemm")
            || !CUBLAS_WITHOUT_WORK.iter().any(|word| function.starts_with(word)))
}

fn belongs(function: &str, soname: &str) -> bool {
    let fits = HOMES.iter().flat_map(|(home, prefixes)| prefixes.iter().map(move |prefix| (*home, *prefix)));
    let best = fits.filter(|(_, prefix)| function.starts_with(prefix)).max_by_key(|(_, prefix)| prefix.len());
    best.is_some_and(|(home, _)| soname.starts_with(home))
}

fn creates_object(function: &str) -> bool {
    CREATORS.iter().any(|prefix| function.starts_with(prefix))
        && (function.contains("Create") || function.contains("_create"))
        && !NOT_CREATORS.contains(&function)
}

/// Returns the exports of one library: its hand-written functions, and those that the wheel adds.
pub(crate) fn exports(
    template: &Template<'_>,
    soname: &str,
    wanted: &Functions,
    cuda_major: u32,
) -> Result<Vec<Export>> {
    let suffix = format!("__cuda{cuda_major}");
    let written: BTreeSet<&str> = template.names().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let here = written.iter().copied().filter(|name| !name.contains("__cuda1") && belongs(name, soname));
    let names: BTreeSet<&str> = here.chain(wanted.keys().map(String::as_str)).collect();
    // Hand-written functions beyond the wheel's needs get the library's own version node.
    let node = wanted.values().flatten().find(|node| *node == soname).cloned();

    let mut exports = Vec::new();
    let mut stubs = 0;
    for name in names {
        let special = format!("{name}{suffix}");
        let target = if written.contains(special.as_str()) {
            Target::Symbol(format!("{PREFIX}{special}"))
        } else if written.contains(name) {
            Target::Symbol(format!("{PREFIX}{name}"))
        } else if let Some(symbol) = size_query(name) {
            Target::Symbol(symbol.to_owned())
        } else if computes(name) {
            Target::Symbol("simgpu_cublas_work".to_owned())
        } else if creates_object(name) {
            Target::Symbol("simgpu_make_object".to_owned())
        } else {
            stubs += 1;
            Target::Stub(stubs - 1)
        };
        let version = wanted.get(name).cloned().unwrap_or_else(|| node.clone());
        exports.push(Export { name: name.to_owned(), target, version });
    }
    ensure!(stubs <= template.stubs()?, "{soname} needs {stubs} stubs");
    Ok(exports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_prefix_selects_library() {
        assert!(
            belongs("cublasLtMatmul", "libcublasLt.so.12") && !belongs("cublasLtMatmul", "libcublas.so.12")
        );
        assert!(belongs("cublasCreate_v2", "libcublas.so.13"));
        assert!(belongs("__cudaRegisterFatBinary", "libcudart.so.12"));
        assert!(!belongs("cudaMalloc", "libcuda.so.1"));
    }

    #[test]
    fn only_real_creators_return_objects() {
        assert!(creates_object("cusolverDnCreate") && creates_object("cusparseSpGEMM_createDescr"));
        assert!(!creates_object("cusparseCreateIdentityPermutation") && !creates_object("cudnnSetStream"));
        assert!(!creates_object("ncclDevCommCreate"));
    }

    #[test]
    fn size_queries_match_element_types() {
        assert_eq!(size_query("cusolverDnZgesvdj_bufferSize"), Some("simgpu_int_size_12"));
        assert_eq!(size_query("cusolverDnXpotrf_bufferSize"), Some("simgpu_sizes_8"));
        assert_eq!(size_query("cusolverDnQgesvd_bufferSize"), None);
        assert_eq!(size_query("cusolverDnSgesvd"), None);
    }

    #[test]
    fn setters_launch_no_kernel() {
        assert!(computes("cublasSgemm_v2") && computes("cublasGemmEx") && computes("cublasSscal_v2"));
        assert!(
            !computes("cublasSetStream_v2") && !computes("cublasGetMathMode") && !computes("cublasLtMatmul")
        );
    }
}
