//! Functions that change each tensor of a list: `_foreach_add_`, `_foreach_copy_`, and the like.
//!
//! Of the foreach functions, PyTorch has a slow form for tensors that the CUDA form cannot take. It
//! calls an operator for each tensor, and these are computed like all others. It is called as well
//! where it may compute something: for copies, and for integers and numbers that are known.

use super::call_frame::{CallFrame, Hook, Plan, Prepare};
use super::known_bytes::Knowledge;
use super::tensor;
use super::view::View;

/// Parts of the names of functions that change the tensors of their first list.
const IN_PLACE: [[&str; 2]; 2] =
    [["foreach_tensor_", "_cuda_EN3c108ArrayRefI"], ["_fused_", "_cuda_EN3c108ArrayRefI"]];
const COPY: &str = "foreach_tensor_copy_list";

/// True for the name of a function that changes the tensors of its first list.
pub(crate) fn changes_list(name: &str) -> bool {
    IN_PLACE.iter().any(|parts| parts.iter().all(|part| name.contains(part)))
}

/// The name of the slow form. Fused optimizers and loss scales have none.
pub(crate) fn slow_form(name: &str) -> Option<String> {
    name.contains("foreach_tensor_").then(|| name.replace("_cuda_E", "_slow_E"))
}

/// Decides about the calls of such a function.
pub(crate) fn prepare(name: &str, has_slow_form: bool) -> Prepare {
    let is_copy = name.contains(COPY);
    Box::new(move |frame| {
        // The list is an array of tensors, passed in two registers.
        let [first, len] = [frame.integers[0], frame.integers[1]];
        // SAFETY: an element of the list.
        let views: Vec<View> = (0..len).filter_map(|at| unsafe { tensor::view(first + 8 * at) }).collect();
        let is_computed = |view: &View| {
            view.is_small_on_gpu()
                && (is_copy || !view.kind.is_floating() || view.knowledge() == Knowledge::Known)
        };
        if has_slow_form && views.len() as u64 == len && views.iter().all(is_computed) {
            return Some(Box::new(|hook: &Hook, frame: &CallFrame| {
                // SAFETY: both forms have the arguments of this call.
                unsafe {
                    frame.call(hook.original);
                    frame.call(hook.on_cpu)
                }
            }) as Plan);
        }
        views.iter().for_each(View::on_not_computed);
        None
    })
}
