//! Decides how a kernel that takes tensors is computed, by the row of its stub.

use super::call_frame::{CallFrame, Plan};
use super::known_bytes::{Knowledge, least};
use super::rules::TensorStub;
use super::scalar_type::{ScalarType, Value};
use super::tensor;
use super::view::View;

/// The tensors among the arguments of a call.
fn views(frame: &CallFrame, arguments: &[usize]) -> Option<Vec<View>> {
    // SAFETY: the table names arguments that are tensors.
    arguments.iter().map(|at| unsafe { tensor::view(frame.integers[*at]) }).collect()
}

/// The plan of a call; `None` if it is not computed. Then its results are forgotten.
pub(crate) fn prepare_tensors(rule: &'static TensorStub, frame: &CallFrame) -> Option<Plan> {
    let plan = plan_tensors(rule, frame);
    if plan.is_none() {
        views(frame, rule.results)?.iter().for_each(View::on_not_computed);
    }
    plan
}

fn plan_tensors(rule: &'static TensorStub, frame: &CallFrame) -> Option<Plan> {
    let inputs = views(frame, rule.inputs)?;
    if !inputs.iter().all(View::is_small_on_gpu) || !is_inside(rule, frame) {
        return None;
    }
    let knowledge = least(inputs.iter().map(View::knowledge));
    if rule.is_all
        && knowledge == Knowledge::Undecided
        && inputs.iter().all(|view| view.kind == ScalarType::BOOL)
    {
        return Some(assume_true(rule));
    }
    let are_unknown_reals = knowledge < Knowledge::Known && inputs.iter().any(|view| view.kind.is_floating());
    if are_unknown_reals && rule.has_positions {
        return plan_positions(rule, frame.integers[3], inputs.first()?);
    }
    if are_unknown_reals && rule.index.is_none() && !rule.is_alone {
        return None;
    }
    Some(Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments. CUDA's kernel comes first: it
        // may copy its input to the result.
        let returned = if rule.is_alone { 0 } else { unsafe { frame.call(hook.original) } };
        if rule.is_alone || are_small(frame, rule.results) {
            // SAFETY: as above.
            unsafe { frame.call(hook.on_cpu) };
            // Elements that an update does not name keep what they are.
            let keeps = rule.is_update() && knowledge == Knowledge::Known;
            for view in views(frame, rule.results).iter().flatten() {
                if keeps { view.on_touched() } else { view.on_computed(knowledge) }
            }
        }
        returned
    }))
}

/// Calls the CUDA kernel, and then writes that all are true. A second result has the first
/// position.
fn assume_true(rule: &'static TensorStub) -> Plan {
    Box::new(move |hook, frame| {
        // SAFETY: the CUDA kernel of the stub that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        for (view, value) in views(frame, rule.results).into_iter().flatten().zip([1, 0]) {
            // SAFETY: a result of the kernel.
            unsafe { view.put(std::iter::repeat(Value::Integer(value)), Knowledge::Undecided) };
        }
        returned
    })
}

fn are_small(frame: &CallFrame, arguments: &[usize]) -> bool {
    views(frame, arguments).is_some_and(|views| views.iter().all(View::is_small_on_gpu))
}

/// True if no element of the index, where there is one, is outside of the tensor.
fn is_inside(rule: &TensorStub, frame: &CallFrame) -> bool {
    let Some([index, dim, tensor]) = rule.index else { return true };
    match views(frame, &[index, tensor]).as_deref() {
        Some([index, tensor]) => index.is_index_into(tensor, frame.integers[dim]),
        _ => false,
    }
}

/// The middle position in a dimension of placeholders.
fn plan_positions(rule: &'static TensorStub, dim: u64, input: &View) -> Option<Plan> {
    let middle = Value::Integer(input.len_of(dim)? / 2);
    Some(Box::new(move |hook, frame| {
        // SAFETY: the CUDA kernel of the stub that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        if let Some([positions]) = views(frame, &rule.results[1..]).as_deref() {
            // SAFETY: a result of the kernel.
            unsafe { positions.put(std::iter::repeat(middle), Knowledge::Placeholder) };
        }
        returned
    }))
}
