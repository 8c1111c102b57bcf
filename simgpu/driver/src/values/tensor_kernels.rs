//! Decides how a kernel that takes tensors is computed, by the row of its stub.

use super::call_frame::{CallFrame, Plan};
use super::known_bytes::Knowledge;
use super::rules::{Positions, TensorStub};
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
    let knowledge = inputs.iter().map(View::knowledge).min().unwrap_or(Knowledge::Known);
    if rule.is_all
        && knowledge == Knowledge::Undecided
        && inputs.iter().all(|view| view.kind == ScalarType::BOOL)
    {
        return Some(assume_true(rule));
    }
    let are_unknown_reals = knowledge < Knowledge::Known && inputs.iter().any(|view| view.kind.is_floating());
    if are_unknown_reals && rule.positions != Positions::None {
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
            let keeps = rule.is_update && knowledge == Knowledge::Known;
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
            if view.is_small_on_gpu() {
                // SAFETY: a result of the kernel.
                unsafe { view.write(std::iter::repeat(Value::Integer(value))) };
                view.on_computed(Knowledge::Undecided);
            }
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

/// Positions in a dimension of placeholders.
fn plan_positions(rule: &'static TensorStub, dim: u64, input: &View) -> Option<Plan> {
    let (dim, along) = (input.dim(dim)?, input.len_of(dim)?);
    Some(Box::new(move |hook, frame| {
        // SAFETY: the CUDA kernel of the stub that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        let positions = views(frame, &rule.results[1..]).and_then(|views| views.first().copied());
        if let Some(positions) = positions.filter(View::is_small_on_gpu) {
            let inner: i64 = positions.shape[..positions.dims].iter().skip(dim + 1).product();
            let position = |at: i64| match rule.positions {
                Positions::Sequence => at / inner.max(1) % along.max(1),
                Positions::Middle | Positions::None => along / 2,
            };
            // SAFETY: a result of the kernel.
            unsafe { positions.write((0..).map(|at| Value::Integer(position(at)))) };
            positions.on_computed(Knowledge::Placeholder);
        }
        returned
    }))
}
