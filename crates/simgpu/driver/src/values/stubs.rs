//! Hooks the CUDA kernels of PyTorch's stubs.
//!
//! A stub is an object with a pointer to the kernel of each kind of device, the CPU's first and
//! CUDA's second. A static member `DEFAULT` has the CPU's kernel that needs no extensions of the
//! processor. Its mangled name ends with that of the stub.
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/native/DispatchStub.h>

use std::collections::BTreeMap;

use super::accumulated_index::prepare_index_put;
use super::call_frame::{CallFrame, Hook, Prepare, make};
use super::computed_here::prepare_sort;
use super::initializers;
use super::iterator_kernels::prepare_iteration;
use super::loaded_library::LoadedLibrary;
use super::rules::{FORGETTING_STUBS, ITERATOR_STUBS, IteratorRule, TENSOR_STUBS};
use super::tensor;
use super::tensor_kernels::prepare_tensors;

const PREFIX: &str = "_ZN2at6native";
/// The static member with the CPU's kernel.
const DEFAULT: &str = "7DEFAULTE";
/// The static member with the CPU's kernel for AVX2.
const AVX2: &str = "4AVX2E";
/// Offsets of the kernels in a stub.
const CPU: u64 = 0;
const CUDA: u64 = 8;
/// Begins of the types of kernels that take an iterator as their first argument.
const ITERATORS: [&str; 2] = ["PFvRNS_18TensorIteratorBaseE", "PFvRNS_14TensorIteratorE"];

/// A stub: its address, the CPU's kernel, 0 if there is none, and that for AVX2.
#[derive(Debug, Clone, Copy)]
struct Stub {
    address: u64,
    on_cpu: u64,
    on_avx2: u64,
    takes_iterator: bool,
}

/// All stubs of PyTorch by name.
fn find_stubs(cpu: &LoadedLibrary) -> BTreeMap<&'static str, Stub> {
    let symbols = cpu.symbols(|name| {
        name.strip_prefix(PREFIX).is_some_and(|rest| {
            rest.starts_with("12DispatchStubI") && (rest.ends_with(DEFAULT) || rest.ends_with(AVX2))
                || rest.starts_with(|first: char| first.is_ascii_digit()) && rest.ends_with('E')
        })
    });
    let members = symbols.iter().filter_map(|(name, place)| {
        let member = name.strip_prefix(PREFIX)?.strip_prefix("12DispatchStubI")?.strip_suffix(DEFAULT)?;
        // The type of the kernel, and then the stub's own: `NS0_`, a length and a name.
        let (kernel, stub) = member.rsplit_once("NS0_")?;
        let stub = stub.trim_start_matches(|c: char| c.is_ascii_digit()).strip_suffix("EE")?;
        let stub = stub.strip_suffix("_DECLARE_DISPATCH_type").unwrap_or(stub);
        let object = symbols.get(format!("{PREFIX}{}{stub}E", stub.len()).as_str())?;
        // SAFETY: a static member is a pointer to a function.
        let kernel_at = |place: u64| unsafe { *(place as *const u64) };
        let for_avx2 = format!("{}{AVX2}", name.strip_suffix(DEFAULT)?);
        let on_avx2 = symbols.get(for_avx2.as_str()).map_or(0, |place| kernel_at(*place));
        let takes_iterator = ITERATORS.iter().any(|begin| kernel.starts_with(begin));
        Some((stub, Stub { address: *object, on_cpu: kernel_at(*place), on_avx2, takes_iterator }))
    });
    members.collect()
}

/// Hooks every stub of the tables that this PyTorch has.
pub(crate) fn hook(cpu: &LoadedLibrary) {
    put(find_stubs(cpu).into_iter().filter_map(|(name, stub)| {
        let prepare = prepare_for(name, &stub)?;
        // SAFETY: the second pointer of the stub.
        let original = unsafe { *((stub.address + CUDA) as *const u64) };
        Some((stub.address + CUDA, Hook { original, on_cpu: stub.on_cpu, prepare }))
    }));
}

/// Hooks the CPU's kernels that initialize tensors.
pub(crate) fn hook_initializers(cpu: &LoadedLibrary) {
    let stubs = find_stubs(cpu).into_iter().filter(|(name, _)| initializers::STUBS.contains(name));
    put(stubs.filter_map(|(_, stub)| {
        // SAFETY: the first pointer of the stub, which PyTorch sets at the first call.
        let chosen = unsafe { *((stub.address + CPU) as *const u64) };
        let fast = if std::is_x86_feature_detected!("avx2") { stub.on_avx2 } else { 0 };
        let original = [chosen, fast, stub.on_cpu].into_iter().find(|kernel| *kernel != 0)?;
        let prepare = initializers::prepare(stub.takes_iterator);
        Some((stub.address + CPU, Hook { original, on_cpu: 0, prepare }))
    }));
}

/// Puts hooks into pointers of stubs.
fn put(hooks: impl Iterator<Item = (u64, Hook)>) {
    let (places, hooks): (Vec<u64>, Vec<Hook>) = hooks.unzip();
    for (place, code) in places.into_iter().zip(make(hooks).into_iter().flatten()) {
        // SAFETY: a pointer of a stub, in writable data.
        unsafe { *(place as *mut u64) = code };
    }
}

fn prepare_for(name: &str, stub: &Stub) -> Option<Prepare> {
    if let Some(&(_, argument)) = FORGETTING_STUBS.iter().find(|(of, _)| *of == name) {
        return Some(Box::new(move |frame| {
            // SAFETY: the table names an argument that is a tensor.
            unsafe { tensor::view(frame.integers[argument]) }?.on_not_computed();
            None
        }));
    }
    match name {
        "index_put_with_sort_stub" => return Some(Box::new(prepare_index_put)),
        "sort_stub" => return Some(Box::new(prepare_sort)),
        _ => {}
    }
    if let Some(rule) = TENSOR_STUBS.iter().find(|rule| rule.name == name) {
        return (stub.on_cpu != 0)
            .then(|| Box::new(|frame: &CallFrame| prepare_tensors(rule, frame)) as Prepare);
    }
    let rule = ITERATOR_STUBS.iter().find(|(of, _)| *of == name).map_or(IteratorRule::Never, |row| row.1);
    let needs_cpu = !matches!(rule, IteratorRule::Never | IteratorRule::Mean);
    (stub.takes_iterator && (stub.on_cpu != 0 || !needs_cpu))
        .then(|| Box::new(move |frame: &CallFrame| prepare_iteration(rule, frame)) as Prepare)
}
