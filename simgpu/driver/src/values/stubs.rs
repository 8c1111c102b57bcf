//! Hooks the CUDA kernels of PyTorch's stubs.
//!
//! A stub is an object with a pointer to the kernel of each kind of device, the CPU's first and
//! CUDA's second. A static member `DEFAULT` has the CPU's kernel that needs no extensions of the
//! processor. Its mangled name ends with that of the stub.
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/native/DispatchStub.h>

use std::collections::BTreeMap;

use super::call_frame::{CallFrame, Hook, Prepare, make};
use super::iterator_kernels::prepare_iteration;
use super::loaded_library::LoadedLibrary;
use super::rules::{FORGETTING_STUBS, ITERATOR_STUBS, IteratorRule, TENSOR_STUBS};
use super::tensor;
use super::tensor_kernels::prepare_tensors;

const PREFIX: &str = "_ZN2at6native";
/// The static member with the CPU's kernel.
const DEFAULT: &str = "7DEFAULTE";
/// Begins of the types of kernels that take an iterator as their first argument.
const ITERATORS: [&str; 2] = ["PFvRNS_18TensorIteratorBaseE", "PFvRNS_14TensorIteratorE"];

/// A stub: its place for the CUDA kernel, and the CPU's kernel, 0 if there is none.
#[derive(Debug, Clone, Copy)]
struct Stub {
    place: u64,
    on_cpu: u64,
    takes_iterator: bool,
}

/// All stubs of PyTorch by name.
fn find_stubs(cpu: &LoadedLibrary) -> BTreeMap<&'static str, Stub> {
    let symbols = cpu.symbols(|name| {
        name.strip_prefix(PREFIX).is_some_and(|rest| {
            rest.starts_with("12DispatchStubI") && rest.ends_with(DEFAULT)
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
        // SAFETY: the static member is a pointer to a function.
        let on_cpu = unsafe { *(*place as *const u64) };
        let takes_iterator = ITERATORS.iter().any(|begin| kernel.starts_with(begin));
        Some((stub, Stub { place: object + 8, on_cpu, takes_iterator }))
    });
    members.collect()
}

/// Hooks every stub of the tables that this PyTorch has.
pub(crate) fn hook(cpu: &LoadedLibrary) {
    let (mut places, mut hooks) = (Vec::new(), Vec::new());
    for (name, stub) in find_stubs(cpu) {
        let Some(prepare) = prepare_for(name, &stub) else { continue };
        // SAFETY: the second pointer of the stub.
        let original = unsafe { *(stub.place as *const u64) };
        places.push(stub.place);
        hooks.push(Hook { original, on_cpu: stub.on_cpu, prepare });
    }
    for (place, code) in places.into_iter().zip(make(hooks).into_iter().flatten()) {
        // SAFETY: the second pointer of a stub, in writable data.
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
    if let Some(rule) = TENSOR_STUBS.iter().find(|rule| rule.name == name) {
        return (stub.on_cpu != 0)
            .then(|| Box::new(|frame: &CallFrame| prepare_tensors(rule, frame)) as Prepare);
    }
    let rule = ITERATOR_STUBS.iter().find(|(of, _)| *of == name).map_or(IteratorRule::Never, |row| row.1);
    let needs_cpu = !matches!(rule, IteratorRule::Never | IteratorRule::Mean);
    (stub.takes_iterator && (stub.on_cpu != 0 || !needs_cpu))
        .then(|| Box::new(move |frame: &CallFrame| prepare_iteration(rule, frame)) as Prepare)
}
