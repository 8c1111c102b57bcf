//! Decides how a kernel with an iterator is computed, by the rule of its stub.

use super::call_frame::{CallFrame, Plan};
use super::known_bytes::Knowledge;
use super::plans::{call_cpu, call_cpu_in_float, fill, least_known, mean, random, select, write};
use super::rules::{EXTREME, FEW, IndexedOperand, IteratorRule};
use super::scalar_type::{ScalarType, Value};
use super::tensor;
use super::tensor_iterator::{self, Converted, Iteration, Operand};
use super::view::View;

/// The plan of a call; `None` if it is not computed. Then its results are forgotten.
pub(crate) fn prepare_iteration(rule: IteratorRule, frame: &CallFrame) -> Option<Plan> {
    // SAFETY: the first argument of these stubs is an iterator.
    let iteration = unsafe { tensor_iterator::read(frame.integers[0])? };
    let (results, _) = iteration.split();
    let plan = plan_iteration(rule, frame, &iteration);
    if plan.is_none() {
        for result in results {
            result.view.on_not_computed();
        }
    }
    plan
}

fn plan_iteration(rule: IteratorRule, frame: &CallFrame, iteration: &Iteration) -> Option<Plan> {
    use IteratorRule::{
        All, Any, AtLeast, Compare, Divide, Fill, Finite, Index, Least, Map, Mean, Move, Never, Position,
        Quotient, Random, RandomBelow, Reduce, Select, Update,
    };
    let ((results, inputs), common_type) = (iteration.split(), iteration.common_type);
    let result = results.first()?.view;
    let knowledge = least_known(inputs);
    let is_known = knowledge == Knowledge::Known;
    // The usual case comes first: a kernel with floating-point results that nothing is known of.
    let is_finite =
        matches!(rule, Finite | Quotient) && result.elements().is_some_and(|elements| elements <= FEW);
    let is_unknown_real = result.kind.is_floating() && !is_known && rule.combines() && !is_finite;
    if rule == Never || is_unknown_real || !are_small(results, inputs) {
        return None;
    }
    let compares_reals = !is_known && inputs.iter().any(|input| input.view.kind.is_floating());
    let differs = |kind: &ScalarType| *kind != result.kind;
    let views = results.iter().map(|result| result.view).collect();
    match rule {
        Never => None,
        Fill => Some(fill(result)),
        Select => Some(select(result, inputs)),
        Update => Some(call_cpu(views, knowledge.min(result.knowledge()), Vec::new())),
        Index(operand) => plan_index(operand, frame, results, inputs),
        RandomBelow => random(result, frame.integers[1], frame.integers[2]),
        Random => random(result, 1 << (8 * result.kind.size_bytes()? - 1).min(62), 0),
        Compare | AtLeast if compares_reals && !inputs.iter().any(is_extreme) && !is_one_tensor(inputs) => {
            let is_true = rule == AtLeast && inputs.last().is_some_and(is_zero);
            Some(write(result, Value::Integer(is_true.into()), Knowledge::Undecided))
        }
        All | Least
            if knowledge == Knowledge::Undecided && (rule == All || result.kind == ScalarType::BOOL) =>
        {
            Some(write(result, Value::Integer(1), knowledge))
        }
        Position if compares_reals => {
            let along = result.elements()? / result.without_repetition().elements()?.max(1);
            Some(write(result, Value::Integer(along as i64 / 2), Knowledge::Placeholder))
        }
        Divide if !common_type.is_some_and(ScalarType::is_floating) && divides_by_zero(inputs) => None,
        Quotient if !is_known && divides_by_zero(inputs) => None,
        Map | Finite | Divide | Quotient if common_type.as_ref().is_some_and(differs) => None,
        Compare | AtLeast if result.kind != ScalarType::BOOL => None,
        Map | Finite | Divide | Quotient if removes_operand(result.kind, inputs) => {
            call_cpu_in_float(iteration, results.first()?, inputs, knowledge)
        }
        Reduce | Least | Mean if inputs.iter().any(|input| differs(&input.view.kind)) => None,
        Map | Finite | Divide | Quotient | Compare | AtLeast => {
            Some(call_cpu(views, knowledge, convert(inputs, common_type)?))
        }
        All | Any => Some(call_cpu(views, knowledge, convert(inputs, Some(result.kind))?)),
        Mean => Some(mean(result, inputs.first()?.view)),
        Move | Reduce | Least | Position => Some(call_cpu(views, knowledge, Vec::new())),
    }
}

/// True if there is something to compute, and all operands are small: on the GPU, or one number of
/// the host.
fn are_small(results: &[Operand], inputs: &[Operand]) -> bool {
    let elements = results.first().and_then(|result| result.view.elements());
    elements.is_some_and(|elements| (1..=super::limit_bytes()).contains(&elements))
        && results.iter().chain(inputs).all(|operand| {
            if operand.is_on_gpu {
                operand.view.is_small_on_gpu()
            } else {
                operand.view.kind.size_bytes().is_some()
                    && operand.view.without_repetition().elements() == Some(1)
            }
        })
}

/// Lets all inputs of another type read converted values.
fn convert(inputs: &[Operand], kind: Option<ScalarType>) -> Option<Vec<Converted>> {
    let Some(kind) = kind else { return Some(Vec::new()) };
    let differing = inputs.iter().filter(|input| input.view.kind != kind);
    // SAFETY: operands of the iterator that the kernel is called with; they are small, so live.
    differing.map(|input| unsafe { Converted::new(input, kind) }).collect()
}

/// True if the CPU's kernel may remove an operand from the iterator, which CUDA's kernel needs:
/// <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/native/cpu/BinaryOpsKernel.cpp>.
/// That is so for half-precision numbers and a second operand of one element.
fn removes_operand(kind: ScalarType, inputs: &[Operand]) -> bool {
    matches!(kind, ScalarType::HALF | ScalarType::BFLOAT16)
        && matches!(inputs, [_, last] if last.view.without_repetition().elements() == Some(1))
}

fn divides_by_zero(inputs: &[Operand]) -> bool {
    // SAFETY: an input of the kernel.
    inputs.last().is_none_or(|divisor| unsafe { divisor.view.values() }.iter().any(|value| !value.is_true()))
}

/// True for the number 0 of the host.
fn is_zero(input: &Operand) -> bool {
    // SAFETY: an input of the kernel.
    !input.is_on_gpu && unsafe { input.view.values() }.iter().all(|value| !value.is_true())
}

/// True if a tensor is compared with itself, which finds NaN. Placeholders are none.
fn is_one_tensor(inputs: &[Operand]) -> bool {
    let place = |input: &Operand| {
        let view = &input.view;
        (view.addr, view.kind, view.dims, view.shape, view.strides_bytes)
    };
    matches!(inputs, [one, other] if place(one) == place(other))
}

/// True if all values are far from those that programs compute with. Placeholders are only where a
/// program has moved such a number, perhaps on a condition that is not known.
fn is_extreme(input: &Operand) -> bool {
    // SAFETY: an input of the kernel.
    unsafe { input.view.values() }.iter().all(|value| value.real().abs() >= EXTREME)
}

/// The numbers of an `ArrayRef` that is passed in two registers.
fn array(frame: &CallFrame, at: usize) -> &[i64] {
    let [data, len] = [frame.integers[at], frame.integers[at + 1]];
    if len == 0 {
        return &[];
    }
    // SAFETY: an argument of the stub, which lives as long as the call.
    unsafe { std::slice::from_raw_parts(data as *const i64, len as usize) }
}

/// A kernel that reads or writes elements by their index. A kernel of the CPU ends the program if
/// an index is outside of the tensor; placeholders may be.
fn plan_index(
    operand: IndexedOperand,
    frame: &CallFrame,
    results: &[Operand],
    inputs: &[Operand],
) -> Option<Plan> {
    let (sizes, strides) = match operand {
        IndexedOperand::Flat => return plan_take(frame, results, inputs),
        IndexedOperand::Source | IndexedOperand::Result => {
            (array(frame, 1).to_vec(), array(frame, 3).to_vec())
        }
        IndexedOperand::ResultAlongDim => {
            let [size, stride] = [frame.integers[2] as i64, frame.integers[3] as i64];
            // This stride is in elements, those above are in bytes.
            (vec![size], vec![stride * results.first()?.view.kind.size_bytes()? as i64])
        }
    };
    let indexes =
        if operand == IndexedOperand::ResultAlongDim { inputs.get(..1)? } else { inputs.get(1..)? };
    let are_inside = indexes.iter().zip(&sizes).all(|(index, size)| {
        // SAFETY: an input of the kernel.
        let values = unsafe { index.view.without_repetition().values() };
        index.view.kind != ScalarType::BOOL
            && values.iter().all(|value| (-size..*size).contains(&value.integer()))
    });
    let mut indexed = match operand {
        IndexedOperand::Source => inputs.first()?.view,
        _ => results.first()?.view,
    };
    for (size, stride) in sizes.iter().zip(&strides) {
        let dim = indexed.dims;
        (*indexed.shape.get_mut(dim)?, *indexed.strides_bytes.get_mut(dim)?) = (*size, *stride);
        indexed.dims += 1;
    }
    if indexes.len() < sizes.len() || !are_inside || !indexed.is_small_on_gpu() {
        return None;
    }
    let knowledge = least_known(inputs);
    Some(match operand {
        IndexedOperand::Source => {
            let views = results.iter().map(|result| result.view).collect();
            call_cpu(views, knowledge.min(indexed.knowledge()), Vec::new())
        }
        // Elements that are not named keep what they are.
        _ if knowledge == Knowledge::Known => {
            indexed.on_touched();
            call_cpu(Vec::new(), knowledge, Vec::new())
        }
        _ => call_cpu(vec![indexed], knowledge, Vec::new()),
    })
}

/// A kernel that reads elements of a tensor by their number.
fn plan_take(frame: &CallFrame, results: &[Operand], inputs: &[Operand]) -> Option<Plan> {
    // SAFETY: the second argument is a tensor.
    let source = unsafe { tensor::view(frame.integers[1]) }.filter(View::is_small_on_gpu)?;
    let len = source.elements()? as i64;
    // SAFETY: an input of the kernel.
    let positions = unsafe { inputs.first()?.view.without_repetition().values() };
    let are_inside = positions.iter().all(|at| (-len..len).contains(&at.integer()));
    let views = results.iter().map(|result| result.view).collect();
    are_inside.then(|| call_cpu(views, least_known(inputs).min(source.knowledge()), Vec::new()))
}
