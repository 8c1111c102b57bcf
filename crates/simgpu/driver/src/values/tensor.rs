//! Reads PyTorch's tensors through its C interface, which has no layout to know.
//!
//! A handle of that interface is the address of an `at::Tensor`, so a tensor argument passed by
//! reference is one:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/torch/csrc/inductor/aoti_torch/utils.h>.
//! PyTorch lacks some of these functions up to 2.2. There nothing is computed.

use std::sync::OnceLock;

use super::loaded_library::LoadedLibrary;
use super::scalar_type::ScalarType;
use super::view::{MAX_DIMS, View};

/// A function that stores a number or a pointer about a tensor, and returns 0.
type Getter<T> = unsafe extern "C-unwind" fn(u64, *mut T) -> i32;

struct Exported {
    data: Getter<u64>,
    dims: Getter<i64>,
    sizes: Getter<*const i64>,
    strides: Getter<*const i64>,
    kind: Getter<i32>,
    delete: Option<unsafe extern "C-unwind" fn(*mut u64) -> i32>,
    /// The object of all tensors without a value; PyTorch prints an error for questions about it.
    undefined: u64,
    /// `at::native::_indices_sparse(const Tensor &)`, which returns a tensor.
    sparse_indices: Option<unsafe extern "C-unwind" fn(*mut u64, u64) -> u64>,
}

const DELETE: &str = "aoti_torch_delete_tensor_object";
const SPARSE_INDICES: &str = "_ZN2at6native15_indices_sparseERKNS_6TensorE";

const UNDEFINED: &str = "_ZN3c1019UndefinedTensorImpl10_singletonE";

static EXPORTED: OnceLock<Exported> = OnceLock::new();

/// Finds the functions in `libtorch_cpu.so`; false if one is missing.
pub(crate) fn find_functions(cpu: &LoadedLibrary) -> bool {
    let found =
        cpu.symbols(|name| name.starts_with("aoti_torch_get_") || name == DELETE || name == SPARSE_INDICES);
    let base = LoadedLibrary::find("libc10.so").map(|base| base.symbols(|name| name == UNDEFINED));
    // SAFETY: functions of PyTorch's C interface that store what `Exported` says.
    let exported = unsafe {
        (|| {
            Some(Exported {
                data: getter(*found.get("aoti_torch_get_data_ptr")?),
                dims: getter(*found.get("aoti_torch_get_dim")?),
                sizes: getter(*found.get("aoti_torch_get_sizes")?),
                strides: getter(*found.get("aoti_torch_get_strides")?),
                kind: getter(*found.get("aoti_torch_get_dtype")?),
                undefined: *base?.get(UNDEFINED)?,
                delete: found.get(DELETE).map(|at| std::mem::transmute(*at)),
                sparse_indices: found.get(SPARSE_INDICES).map(|at| std::mem::transmute(*at)),
            })
        })()
    };
    exported.is_some_and(|exported| {
        // Another thread may have been first, with the same functions.
        let _ = EXPORTED.set(exported);
        true
    })
}

/// # Safety
///
/// The address is that of such a function.
unsafe fn getter<T>(address: u64) -> Getter<T> {
    // SAFETY: by the contract of this function.
    unsafe { std::mem::transmute::<u64, Getter<T>>(address) }
}

/// Reads what a getter stores; `None` after an error.
///
/// # Safety
///
/// `tensor` is the address of an `at::Tensor`.
unsafe fn get<T: Default>(getter: Getter<T>, tensor: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: by the contract of this function.
    (unsafe { getter(tensor, &raw mut value) } == 0).then_some(value)
}

/// The memory of a dense tensor; `None` if it has another layout.
///
/// # Safety
///
/// `tensor` is the address of an `at::Tensor`, as in an argument passed by reference.
pub(crate) unsafe fn view(tensor: u64) -> Option<View> {
    let exported = EXPORTED.get()?;
    // SAFETY: by the contract of this function.
    unsafe {
        if tensor == 0 || [0, exported.undefined].contains(&*(tensor as *const u64)) {
            return None;
        }
        let kind = ScalarType(i8::try_from(get(exported.kind, tensor)?).ok()?);
        let size = kind.storage_bytes();
        let dims = usize::try_from(get(exported.dims, tensor)?).ok().filter(|dims| *dims <= MAX_DIMS)?;
        let (mut sizes, mut strides) = (std::ptr::null(), std::ptr::null());
        if (exported.sizes)(tensor, &raw mut sizes) != 0 || (exported.strides)(tensor, &raw mut strides) != 0
        {
            return None;
        }
        let addr = get(exported.data, tensor)?;
        let mut view = View { addr, kind, dims, shape: [0; MAX_DIMS], strides_bytes: [0; MAX_DIMS] };
        for dim in 0..dims {
            view.shape[dim] = *sizes.add(dim);
            view.strides_bytes[dim] = (*strides.add(dim)).checked_mul(size as i64)?;
        }
        Some(view)
    }
}

/// The places of the elements of a sparse matrix, one column each.
pub(crate) fn sparse_indices(matrix: u64) -> Option<View> {
    let exported = EXPORTED.get()?;
    let (delete, sparse_indices) = (exported.delete?, exported.sparse_indices?);
    // SAFETY: the function stores a tensor in its first argument. PyTorch deletes that with C++'s
    // operator, which frees what `malloc` returned. The matrix keeps the memory.
    unsafe {
        let made = libc::malloc(8).cast::<u64>();
        if made.is_null() {
            return None;
        }
        sparse_indices(made, matrix);
        let found = view(made as u64);
        delete(made);
        found
    }
}
