//! Hooks CUDA functions of PyTorch that are not stubs.
//!
//! `libtorch_cuda.so` calls its own functions through its global offset table, so an entry of the
//! table can be replaced. A row of [`TWINS`] has a CUDA function and the CPU's with the same
//! arguments; the others have rules of their own. The CUDA function always runs first, for its
//! allocations.

use super::call_frame::{CallFrame, Hook, Plan, Prepare, make};
use super::computed_here::{
    compare_tensors, forget_running_statistics, prepare_all_of_one, prepare_kth_value, prepare_median,
    prepare_roll, prepare_scale, prepare_triangle, prepare_unscale,
};
use super::foreach_lists::{self, changes_list, slow_form};
use super::known_bytes::{Knowledge, least};
use super::loaded_library::{LoadedLibrary, replace_pointer};
use super::program_zeros;
use super::rules::EXTREME;
use super::scalar_type::Value;
use super::shaped_by_values::{
    prepare_bincount, prepare_coalesce, prepare_nonzero, prepare_nonzero_static, prepare_repeat_interleave,
    prepare_unique, prepare_unique_dim,
};
use super::tensor;
use super::view::View;

/// Where a function gets an argument.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    Register(usize),
    Stack(usize),
}
use At::{Register, Stack};

/// A CUDA function and the CPU's with the same arguments, by the begins of their names.
#[derive(Debug)]
struct Twin {
    cuda: &'static str,
    cpu: &'static str,
    inputs: &'static [At],
    results: &'static [At],
    /// An index into a dimension of a tensor: the index, the dimension's number and the tensor.
    index: Option<[At; 3]>,
    /// The CPU's function copies no input that is not dense. Such a copy would be an allocation
    /// that a GPU does not make.
    takes_strides: bool,
}

const fn twin(cuda: &'static str, cpu: &'static str, inputs: &'static [At], results: &'static [At]) -> Twin {
    Twin { cuda, cpu, inputs, results, index: None, takes_strides: false }
}

const TWINS: &[Twin] = &[
    // (start, end, step, result); the CPU's calls `arange_stub`
    twin(
        "_ZN2at6native15arange_cuda_outERKN3c106ScalarES4_S4_RNS_6TensorE",
        "_ZN2at6native10arange_outERKN3c106ScalarES4_S4_RNS_6TensorE",
        &[],
        &[Register(3)],
    ),
    // (start, end, number, result); the CPU's calls `linspace_stub`
    twin(
        "_ZN2at6native17linspace_cuda_outERKN3c106ScalarES4_lRNS_6TensorE",
        "_ZN2at6native12linspace_outERKN3c106ScalarES4_lRNS_6TensorE",
        &[],
        &[Register(3)],
    ),
    // (sorted, values, 32 bits, right, sorter, result), and the side on the stack
    twin(
        "_ZN2at6native21searchsorted_out_cudaERKNS_6TensorES3_bb",
        "_ZN2at6native20searchsorted_out_cpuERKNS_6TensorES3_bb",
        &[Register(0), Register(1)],
        &[Register(5)],
    ),
    // (rows, columns, result)
    twin(
        "_ZN2at6native12eye_out_cudaEllRNS_6TensorE",
        "_ZN2at6native11eye_out_cpuEllRNS_6TensorE",
        &[],
        &[Register(2)],
    ),
    // (self, values, positions, dim)
    twin(
        "_ZN2at6native18cummax_helper_cudaERKNS_6TensorERS1_S4_l",
        "_ZN2at6native17cummax_helper_cpuERKNS_6TensorERS1_S4_l",
        &[Register(0)],
        &[Register(1), Register(2)],
    ),
    twin(
        "_ZN2at6native18cummin_helper_cudaERKNS_6TensorERS1_S4_l",
        "_ZN2at6native17cummin_helper_cpuERKNS_6TensorERS1_S4_l",
        &[Register(0)],
        &[Register(1), Register(2)],
    ),
    // (object, places in rows, number of rows, 32 bits, result)
    twin(
        "_ZN2at6native59structured__convert_indices_from_coo_to_csr_structured_cuda4implERKNS_6TensorElbS4_",
        "_ZN2at6native58structured__convert_indices_from_coo_to_csr_structured_cpu4implERKNS_6TensorElbS4_",
        &[Register(1)],
        &[Register(4)],
    ),
    // (object, starts of rows, columns, 32 bits, transposed, result)
    twin(
        "_ZN2at6native59structured__convert_indices_from_csr_to_coo_structured_cuda4implERKNS_6TensorES4_bbS4_",
        "_ZN2at6native58structured__convert_indices_from_csr_to_coo_structured_cpu4implERKNS_6TensorES4_bbS4_",
        &[Register(1), Register(2)],
        &[Register(5)],
    ),
    // (self, mask, value); the CPU's calls `masked_fill_stub`
    Twin {
        takes_strides: true,
        ..twin(
            "_ZN2at6native17masked_fill__cudaERNS_6TensorERKS1_RKN3c106ScalarE",
            "_ZN2at6native16masked_fill__cpuERNS_6TensorERKS1_RKN3c106ScalarE",
            &[Register(0), Register(1)],
            &[Register(0)],
        )
    },
    // (object, self, diagonal, result)
    twin(
        "_ZN2at6native20structured_tril_cuda4implERKNS_6TensorElS4_",
        "_ZN2at6native19structured_tril_cpu4implERKNS_6TensorElS4_",
        &[Register(1)],
        &[Register(3)],
    ),
    twin(
        "_ZN2at6native20structured_triu_cuda4implERKNS_6TensorElS4_",
        "_ZN2at6native19structured_triu_cpu4implERKNS_6TensorElS4_",
        &[Register(1)],
        &[Register(3)],
    ),
    // (object, self, dim, index, source, factor, result)
    Twin {
        index: Some([Register(3), Register(2), Register(1)]),
        ..twin(
            "_ZN2at6native29structured_index_add_cuda_out4implERKNS_6TensorElS4_S4_RKN3c106ScalarES4_",
            "_ZN2at6native28structured_index_add_cpu_out4implERKNS_6TensorElS4_S4_RKN3c106ScalarES4_",
            &[Register(1), Register(3), Register(4)],
            &[Stack(0)],
        )
    },
    // (self, dim, index, result)
    Twin {
        index: Some([Register(2), Register(1), Register(0)]),
        ..twin(
            "_ZN2at6native21index_select_out_cudaERKNS_6TensorElS3_RS1_",
            "_ZN2at6native21index_select_out_cpu_ERKNS_6TensorElS3_RS1_",
            &[Register(0), Register(2)],
            &[Register(3)],
        )
    },
];

/// Begins of the names of functions that are not computed, and the tensor that they change.
const FORGETTING: &[(&str, At)] = &[
    ("_ZN2at6native20masked_scatter__cudaE", Register(0)),
    // (object, self, dim, index, source, includes self, result), and the name of the operation
    ("_ZN2at6native32structured_index_reduce_cuda_out4implE", Stack(2)),
    // (self, index, largest norm, kind of norm)
    ("_ZN2at6native22embedding_renorm_cuda_E", Register(0)),
    // (object, self, matrix, matrix or vector, factor, factor, result)
    ("_ZN2at6native25structured_addmm_out_cuda4implE", Stack(0)),
    // (object, matrix, matrix, result): the program may pass one that it filled
    ("_ZN2at6native22structured_mm_out_cuda4implE", Register(3)),
    ("_ZN2at6native23structured_bmm_out_cuda4implE", Register(3)),
    // (object, self, dim, converts, result)
    ("_ZN2at6native27structured_softmax_cuda_out4implE", Register(4)),
    ("_ZN2at6native31structured_log_softmax_cuda_out4implE", Register(4)),
    // (object, self, approximation in two registers, result)
    ("_ZN2at6native24structured_gelu_out_cuda4implE", Register(4)),
    ("_ZN2at6native25structured_addmv_out_cuda4implE", Stack(0)),
    ("_ZN2at6native27structured_baddbmm_out_cuda4implE", Stack(0)),
];

/// The CPU's function calls `add_stub`, and so the same CUDA kernel.
const ADD: [&str; 2] = [
    "_ZN2at6native25structured_ufunc_add_CUDA4implERKNS_6TensorES4_RKN3c106ScalarES4_",
    "_ZN2at6native24structured_ufunc_add_CPU4implERKNS_6TensorES4_RKN3c106ScalarES4_",
];
const CAT: [&str; 2] = [
    "_ZN2at6native23structured_cat_out_cuda4implERKN3c108IListRefINS_6TensorEEEllbbbNS2_12MemoryFormatERKS4_",
    "_ZN2at6native22structured_cat_out_cpu4implERKN3c108IListRefINS_6TensorEEEllbbbNS2_12MemoryFormatERKS4_",
];
const TOPK: [&str; 2] = [
    "_ZN2at6native24structured_topk_out_cuda4implERKNS_6TensorEllbbS4_S4_",
    "_ZN2at6native23structured_topk_out_cpu4implERKNS_6TensorEllbbS4_S4_",
];

/// A function that is hooked: the begin of its name, that of the CPU's function where there is one,
/// and what decides about a call.
struct Row(&'static str, Option<&'static str>, Prepare);

fn rows() -> Vec<Row> {
    let own = |begin, prepare: fn(&CallFrame) -> Option<Plan>| Row(begin, None, Box::new(prepare));
    let mut rows = vec![
        Row(ADD[0], Some(ADD[1]), Box::new(|_| Some(add()))),
        Row(CAT[0], Some(CAT[1]), Box::new(prepare_cat)),
        Row(TOPK[0], Some(TOPK[1]), Box::new(prepare_topk)),
        own("_ZN2at6native10zero_cuda_E", |_| Some(zero())),
        own("_ZN2at6native16nonzero_out_cudaE", prepare_nonzero),
        // (returned tensor, self, rows, filler), and (self, rows, filler, result)
        own("_ZN2at6native19nonzero_static_cudaE", |frame| {
            prepare_nonzero_static(frame, Register(1), 3, Register(0))
        }),
        own("_ZN2at6native23nonzero_static_out_cudaE", |frame| {
            prepare_nonzero_static(frame, Register(0), 2, Register(3))
        }),
        own("_ZN2at6native22repeat_interleave_cudaE", prepare_repeat_interleave),
        own("_ZN2at6native14_bincount_cudaE", prepare_bincount),
        own("_ZN2at6native13_unique2_cudaE", |frame| prepare_unique(frame, true, 3)),
        own("_ZN2at6native12_unique_cudaE", |frame| prepare_unique(frame, true, 2)),
        // With a dimension, it calls the function below. An `optional<int64_t>` is two registers,
        // the number and whether there is one.
        own("_ZN2at6native23unique_consecutive_cudaE", |frame| {
            if frame.integers[5] as u8 == 0 { prepare_unique(frame, false, 3) } else { None }
        }),
        own("_ZN2at6native15unique_dim_cudaE", |frame| prepare_unique_dim(frame, true)),
        own("_ZN2at6native27unique_dim_consecutive_cudaE", |frame| prepare_unique_dim(frame, false)),
        own("_ZN2at6native21_coalesce_sparse_cudaE", prepare_coalesce),
        own("_ZN2at6native10cuda_equalE", |_| Some(compare_tensors())),
        own("_ZN2at6native22structured_all_all_out4implE", |frame| prepare_all_of_one(frame, Register(2))),
        own("_ZN2at6native18structured_all_out4implE", |frame| prepare_all_of_one(frame, Register(4))),
        own("_ZN2at6native17randperm_out_cudaE", |_| Some(randperm())),
        own("_ZN2at6native22launch_kthvalue_kernelE", prepare_kth_value),
        own("_ZN2at6native20launch_median_kernelE", prepare_median),
        own("_ZN2at6native9roll_cudaE", prepare_roll),
        own("_ZN2at6native17tril_indices_cudaE", |frame| prepare_triangle(frame, false)),
        own("_ZN2at6native17triu_indices_cudaE", |frame| prepare_triangle(frame, true)),
        own("_ZN2at6native47_amp_foreach_non_finite_check_and_unscale_cuda_E", prepare_unscale),
        own("_ZN2at6native23_amp_update_scale_cuda_E", prepare_scale),
        own("_ZN2at6native15batch_norm_cudaE", forget_running_statistics),
    ];
    rows.extend(TWINS.iter().map(|twin| {
        Row(
            twin.cuda,
            Some(twin.cpu),
            Box::new(move |frame: &CallFrame| prepare_twin(twin, frame)) as Prepare,
        )
    }));
    rows.extend(FORGETTING.iter().map(|&(begin, changed)| {
        Row(begin, None, Box::new(move |_: &CallFrame| Some(forget_after(changed))) as Prepare)
    }));
    rows
}

/// Hooks every function of the tables that this PyTorch has.
pub(crate) fn hook(cpu: &LoadedLibrary, cuda: &LoadedLibrary) {
    let mut rows = rows();
    let is_hooked = |name: &str| changes_list(name) || rows.iter().any(|row| name.starts_with(row.0));
    // Some functions for both kinds of device are in the CPU's library.
    let mut functions = cpu.symbols(is_hooked);
    functions.extend(cuda.symbols(is_hooked));
    let is_twin = |name: &str| rows.iter().any(|row| row.1.is_some_and(|twin| name.starts_with(twin)));
    let on_cpu = cpu.symbols(|name| name.contains("_slow_E") || is_twin(name));
    for &name in functions.keys().filter(|name| changes_list(name)) {
        let slow = slow_form(name).and_then(|slow| on_cpu.keys().find(|known| **known == slow).copied());
        rows.push(Row(name, slow, foreach_lists::prepare(name, slow.is_some())));
    }
    let entries = cuda.offset_table(|name| functions.contains_key(name));
    let (mut places, mut hooks) = (Vec::new(), Vec::new());
    for Row(begin, twin, prepare) in rows {
        let Some((name, place)) = entries.iter().find(|(name, _)| name.starts_with(begin)) else { continue };
        // What follows the begin of a name, the types of arguments, is that of the CPU's function.
        let twin = twin.map(|twin| on_cpu.get(format!("{twin}{}", &name[begin.len()..]).as_str()).copied());
        if let Some(on_cpu) = twin.unwrap_or(Some(0)) {
            places.push(*place);
            hooks.push(Hook { original: functions[name], on_cpu, prepare });
        }
    }
    for (place, code) in places.into_iter().zip(make(hooks).into_iter().flatten()) {
        replace_pointer(place, code);
    }
}

fn argument(frame: &CallFrame, at: At) -> u64 {
    match at {
        Register(index) => frame.integers[index],
        Stack(index) => frame.on_stack(index),
    }
}

/// The memory of an argument that is a tensor.
pub(crate) fn view(frame: &CallFrame, at: At) -> Option<View> {
    // SAFETY: the tables name arguments that are tensors.
    unsafe { tensor::view(argument(frame, at)) }
}

/// The memory of small arguments.
fn small_views(frame: &CallFrame, arguments: &[At]) -> Option<Vec<View>> {
    arguments.iter().map(|at| view(frame, *at).filter(View::is_small_on_gpu)).collect()
}

/// Forgets results that are not computed. A result that is not yet allocated has no bytes.
fn forget(frame: &CallFrame, results: &[At]) {
    results.iter().filter_map(|at| view(frame, *at)).for_each(|result| result.on_not_computed());
}

/// Calls a function that is not computed. It may copy known bytes to its result before it adds to
/// them.
fn forget_after(result: At) -> Plan {
    Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        forget(frame, &[result]);
        returned
    })
}

/// True if no element of an index is outside of the tensor.
fn is_inside(frame: &CallFrame, [index, dim, tensor]: [At; 3]) -> bool {
    let views = view(frame, index).zip(view(frame, tensor));
    views.is_some_and(|(index, tensor)| index.is_index_into(&tensor, argument(frame, dim)))
}

/// Calls the CUDA function, and then the CPU's if the result is small.
fn call_both(hook: &Hook, frame: &CallFrame, results: &[At], knowledge: Knowledge) -> u64 {
    // SAFETY: both functions have the arguments of this call.
    let returned = unsafe { frame.call(hook.original) };
    if let Some(results) = small_views(frame, results) {
        // SAFETY: as above.
        unsafe { frame.call(hook.on_cpu) };
        for result in results {
            result.on_computed(knowledge);
        }
    } else {
        forget(frame, results);
    }
    returned
}

fn prepare_twin(twin: &'static Twin, frame: &CallFrame) -> Option<Plan> {
    let is_taken = |inputs: &Vec<View>| {
        (twin.takes_strides || inputs.iter().all(View::is_dense))
            && twin.index.is_none_or(|at| is_inside(frame, at))
    };
    let Some(inputs) = small_views(frame, twin.inputs).filter(is_taken) else {
        forget(frame, twin.results);
        return None;
    };
    let knowledge = least(inputs.iter().map(View::knowledge));
    Some(Box::new(move |hook, frame| call_both(hook, frame, twin.results, knowledge)))
}

/// The tensors of an `IListRef<Tensor>`, which is a list of one of three kinds:
/// <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/core/IListRef.h>.
fn listed(list: u64) -> Option<Vec<View>> {
    const UNBOXED: u32 = 0;
    const MATERIALIZED: u32 = 2;
    // SAFETY: an `IListRef`: two words and the kind; then an array of tensors, or a vector of
    // pointers to them.
    unsafe {
        let [first, second] = *(list as *const [u64; 2]);
        let tensors: Vec<u64> = match *((list + 16) as *const u32) {
            UNBOXED => (0..second).map(|at| first + 8 * at).collect(),
            MATERIALIZED => {
                let [begin, end] = *(first as *const [u64; 2]);
                (begin..end).step_by(8).map(|place| *(place as *const u64)).collect()
            }
            _ => return None,
        };
        tensors.into_iter().map(|tensor| tensor::view(tensor)).collect()
    }
}

fn add() -> Plan {
    // SAFETY: a function with the arguments of this call.
    Box::new(|hook, frame| unsafe { frame.call(hook.on_cpu) })
}

/// `(object, list, dim, valid, ..., format, result)`.
fn prepare_cat(frame: &CallFrame) -> Option<Plan> {
    let result = Stack(2);
    let small = view(frame, result).filter(View::is_small_on_gpu);
    let Some(inputs) = listed(frame.integers[1])
        .filter(|inputs| small.is_some() && inputs.iter().all(View::is_small_on_gpu))
    else {
        view(frame, result)?.on_not_computed();
        return None;
    };
    let with_elements = inputs.iter().filter(|input| input.elements() != Some(0));
    let knowledge = least(with_elements.map(View::knowledge));
    Some(Box::new(move |hook, frame| call_both(hook, frame, &[Stack(2)], knowledge)))
}

/// The places in each row along a dimension that have no [`EXTREME`] number. A program that writes
/// such numbers over placeholders does not want these places.
fn usual_places(source: &View, dim: usize, along: i64) -> Vec<Vec<i64>> {
    let inner = source.shape[..source.dims].iter().skip(dim + 1).product::<i64>().max(1) as usize;
    // SAFETY: an argument of the function, which is small, so live.
    let values = unsafe { source.values() };
    let row = |row: usize| {
        let value = |at: i64| values[(row / inner * along as usize + at as usize) * inner + row % inner];
        (0..along).filter(|at| value(*at).real().abs() < EXTREME).collect()
    };
    (0..values.len() / along as usize).map(row).collect()
}

/// `(object, self, k, dim, largest, sorted, values, positions)`. The largest of placeholders are
/// spread evenly, as the tokens of a trained network are over its experts.
fn prepare_topk(frame: &CallFrame) -> Option<Plan> {
    let source = view(frame, Register(1))?;
    let knowledge = source.knowledge();
    if source.is_small_on_gpu() && (knowledge == Knowledge::Known || !source.kind.is_floating()) {
        return Some(Box::new(move |hook, frame| call_both(hook, frame, &[Stack(0), Stack(1)], knowledge)));
    }
    let (dim, along) = (source.dim(frame.integers[3])?, source.len_of(frame.integers[3])?.max(1));
    let wanted = (frame.integers[2] as i64).max(1);
    let usual = if source.is_small_on_gpu() { usual_places(&source, dim, along) } else { Vec::new() };
    Some(Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        if let Some(positions) = view(frame, Stack(1)) {
            let inner: i64 = positions.shape[..positions.dims].iter().skip(dim + 1).product::<i64>().max(1);
            let place = |at: i64| {
                let (rank, row) = (at / inner % wanted, at / (inner * wanted) * inner + at % inner);
                let spread = row * wanted + rank;
                Value::Integer(match usual.get(row as usize) {
                    Some(places) if places.len() as i64 >= wanted => places[spread as usize % places.len()],
                    _ => spread % along,
                })
            };
            // SAFETY: a result of the function.
            unsafe { positions.put((0..).map(place), Knowledge::Placeholder) };
        }
        returned
    }))
}

/// `(self)`: fills with zeros, by a fill of the driver. Those of floating-point types that the
/// program did not ask for are what kernels add results to, so they count as placeholders.
fn zero() -> Plan {
    Box::new(|hook, frame| {
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        let result = view(frame, Register(0)).filter(View::is_small_on_gpu);
        let is_known = |result: &View| !result.kind.is_floating() || program_zeros::are_asked_for();
        if let Some(result) = result.filter(is_known) {
            result.on_computed(Knowledge::Known);
        }
        returned
    })
}

/// `(number, generator, result)`: the numbers in order, which is one of the possible orders.
fn randperm() -> Plan {
    Box::new(|hook, frame| {
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        if let Some(result) = view(frame, Register(2)) {
            // SAFETY: the result of the function.
            unsafe { result.put((0..).map(Value::Integer), Knowledge::Placeholder) };
        }
        returned
    })
}
