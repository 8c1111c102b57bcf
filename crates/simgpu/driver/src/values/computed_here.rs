//! Functions that are computed here, because PyTorch's for the CPU has other arguments.

use std::cell::Cell;

use super::call_frame::{CallFrame, Plan};
use super::functions::{At, view};
use super::known_bytes::Knowledge;
use super::scalar_type::{ScalarType, Value};
use super::tensor;
use super::view::View;

/// Calls the CUDA function, and then writes its results. `results` finds them, each with its
/// values.
fn write_after<const N: usize>(
    knowledge: Knowledge,
    results: [At; N],
    values: impl FnOnce() -> [Vec<Value>; N] + 'static,
) -> Plan {
    Box::new(move |hook, frame| {
        let values = values();
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        for (at, values) in results.into_iter().zip(values) {
            let result = view(frame, at).filter(|result| result.elements() == Some(values.len() as u64));
            if let Some(result) = result {
                // SAFETY: a result of the function.
                unsafe { result.put(values, knowledge) };
            }
        }
        returned
    })
}

/// The number of elements between two neighbours along a dimension, and the length of the
/// dimension.
fn inner_and_len(source: &View, dim: u64) -> Option<(usize, usize)> {
    let at = source.dim(dim)?;
    let inner = source.shape[..source.dims].iter().skip(at + 1).product::<i64>();
    Some((usize::try_from(inner).ok()?, usize::try_from(source.len_of(dim)?).ok()?))
}

/// The elements of a view along a dimension, one list for each place in the other dimensions.
fn lanes(values: &[Value], (inner, len): (usize, usize)) -> impl Iterator<Item = Vec<Value>> + '_ {
    (0..values.len() / len).map(move |lane| {
        (0..len).map(|at| values[(lane / inner * len + at) * inner + lane % inner]).collect()
    })
}

/// The positions of values in order. Equal values stay in the order that they have.
fn in_order(values: &[Value], is_descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| {
        let order = values[*a].order(values[*b]);
        if is_descending { order.reverse() } else { order }
    });
    order
}

fn forget(frame: &CallFrame, results: &[At]) {
    results.iter().filter_map(|at| view(frame, *at)).for_each(|result| result.on_not_computed());
}

/// `(self, values, positions, dim, is descending, is stable)`: PyTorch's function for the CPU takes
/// memory from the allocator of the GPU. Placeholders stay in the order that they have.
pub(crate) fn prepare_sort(frame: &CallFrame) -> Option<Plan> {
    let results = [At::Register(1), At::Register(2)];
    let Some(source) = view(frame, At::Register(0)).filter(View::is_small_on_gpu) else {
        forget(frame, &results);
        return None;
    };
    let (shape, knowledge) = (inner_and_len(&source, frame.integers[3])?, source.knowledge());
    let ((inner, len), is_descending) = (shape, frame.integers[4] & 1 == 1);
    if len == 0 || inner == 0 {
        return None;
    }
    if knowledge < Knowledge::Known && source.kind.is_floating() {
        let count = source.elements()? as usize;
        let position = move |place: usize| Value::Integer((place / inner % len) as i64);
        return Some(write_after(Knowledge::Placeholder, [results[1]], move || {
            [(0..count).map(position).collect()]
        }));
    }
    Some(write_after(knowledge, results, move || {
        // SAFETY: an argument of the function.
        let mut values = unsafe { source.values() };
        let mut positions = vec![Value::Integer(0); values.len()];
        for (lane, along) in lanes(&values.clone(), shape).enumerate() {
            let order = in_order(&along, is_descending);
            for (at, from) in order.into_iter().enumerate() {
                let place = (lane / inner * len + at) * inner + lane % inner;
                (values[place], positions[place]) = (along[from], Value::Integer(from as i64));
            }
        }
        [values, positions]
    }))
}

/// `(values, positions, self, dim, ...)`: the element of a rank along a dimension, and its
/// position. Of placeholders it is the middle one.
fn prepare_rank(frame: &CallFrame, rank: impl FnOnce(&[Value]) -> usize + Copy + 'static) -> Option<Plan> {
    let results = [At::Register(0), At::Register(1)];
    let Some(source) = view(frame, At::Register(2)).filter(View::is_small_on_gpu) else {
        forget(frame, &results);
        return None;
    };
    let (shape, knowledge) = (inner_and_len(&source, frame.integers[3])?, source.knowledge());
    let (inner, len) = shape;
    if len == 0 || inner == 0 {
        return None;
    }
    Some(write_after(knowledge, results, move || {
        // SAFETY: an argument of the function.
        let values = unsafe { source.values() };
        let is_unknown = knowledge < Knowledge::Known && source.kind.is_floating();
        let found = lanes(&values, shape).map(|along| {
            let position =
                if is_unknown { len / 2 } else { in_order(&along, false)[rank(&along).min(len - 1)] };
            (along[position], Value::Integer(position as i64))
        });
        let (values, positions) = found.unzip();
        [values, positions]
    }))
}

/// `(values, positions, self, dim, k)`.
pub(crate) fn prepare_kth_value(frame: &CallFrame) -> Option<Plan> {
    let rank = (frame.integers[4] as usize).saturating_sub(1);
    prepare_rank(frame, move |_| rank)
}

/// `(values, positions, self, dim, ignores NaN)`. NaN comes last in the order; without
/// `ignores NaN` it is the median.
pub(crate) fn prepare_median(frame: &CallFrame) -> Option<Plan> {
    let ignores_nan = frame.integers[4] & 1 == 1;
    prepare_rank(frame, move |values| {
        let numbers = values.iter().filter(|value| !value.real().is_nan()).count();
        if numbers == values.len() || ignores_nan { numbers.saturating_sub(1) / 2 } else { numbers }
    })
}

/// `(returned tensor, self, shifts, dims)`, the lists in two registers each. Several dimensions are
/// rolled one by one.
pub(crate) fn prepare_roll(frame: &CallFrame) -> Option<Plan> {
    let [shifts, dims] = [frame.integers[2], frame.integers[4]];
    if (frame.integers[3], frame.integers[5]) != (1, 1) {
        return None;
    }
    let source = view(frame, At::Register(1)).filter(View::is_small_on_gpu)?;
    // SAFETY: lists with one number each.
    let (shift, dim) = unsafe { (*(shifts as *const i64), *(dims as *const u64)) };
    let (inner, len) = inner_and_len(&source, dim)?;
    if len == 0 || inner == 0 {
        return None;
    }
    Some(write_after(source.knowledge(), [At::Register(0)], move || {
        // SAFETY: an argument of the function.
        let values = unsafe { source.values() };
        let rolled = (0..values.len()).map(|place| {
            let from = (place / inner % len) as i64 - shift;
            values[place / (inner * len) * inner * len
                + from.rem_euclid(len as i64) as usize * inner
                + place % inner]
        });
        [rolled.collect()]
    }))
}

/// `(returned tensor, rows, columns, diagonal, ...)`: the rows and columns of one triangle of a
/// matrix.
pub(crate) fn prepare_triangle(frame: &CallFrame, is_upper: bool) -> Option<Plan> {
    let [rows, columns, diagonal] = [1, 2, 3].map(|at| frame.integers[at] as i64);
    if rows.checked_mul(columns)?.max(0) as u64 > super::limit_bytes() {
        return None;
    }
    Some(write_after(Knowledge::Known, [At::Register(0)], move || {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let is_in = |&(row, column): &(i64, i64)| {
            if is_upper { column - row >= diagonal } else { column - row <= diagonal }
        };
        let (mut found, columns): (Vec<Value>, Vec<Value>) =
            places.filter(is_in).map(|(row, column)| (Value::Integer(row), Value::Integer(column))).unzip();
        found.extend(columns);
        [found]
    }))
}

thread_local! {
    static COMPARES: Cell<bool> = const { Cell::new(false) };
}

/// `torch.equal`, which asks whether all comparisons are true. One undecided comparison is false.
pub(crate) fn compare_tensors() -> Plan {
    Box::new(|hook, frame| {
        COMPARES.set(true);
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        COMPARES.set(false);
        returned
    })
}

/// `(object, self, ..., result)`: whether all are true. A single value is copied, without a kernel.
pub(crate) fn prepare_all_of_one(frame: &CallFrame, result: At) -> Option<Plan> {
    let source = view(frame, At::Register(1)).filter(|source| source.elements() == Some(1))?;
    let is_undecided = source.kind == ScalarType::BOOL && source.knowledge() == Knowledge::Undecided;
    (is_undecided && !COMPARES.get())
        .then(|| write_after(Knowledge::Undecided, [result], || [vec![Value::Integer(1)]]))
}

/// `(gradients, their number, found infinity, inverse scale)`: a step of a gradient scaler. Only
/// known gradients can be infinite. The unscaled gradients are not computed.
pub(crate) fn prepare_unscale(frame: &CallFrame) -> Option<Plan> {
    let [first, len] = [frame.integers[0], frame.integers[1]];
    // SAFETY: the list is an array of tensors.
    let gradients: Vec<View> = (0..len).filter_map(|at| unsafe { tensor::view(first + 8 * at) }).collect();
    let has_infinity = gradients.iter().any(|gradient| {
        gradient.is_small_on_gpu()
            && gradient.knowledge() == Knowledge::Known
            // SAFETY: an argument of the function.
            && unsafe { gradient.values() }.iter().any(|value| !value.real().is_finite())
    });
    for gradient in &gradients {
        gradient.on_not_computed();
    }
    has_infinity.then(|| write_after(Knowledge::Known, [At::Register(2)], || [vec![Value::Real(1.0)]]))
}

/// `(scale, steps without infinity, found infinity, growth, backoff, steps until it grows)`: the
/// next scale of a gradient scaler. Infinity that is not known was not found.
pub(crate) fn prepare_scale(frame: &CallFrame) -> Option<Plan> {
    let results = [At::Register(0), At::Register(1)];
    let [scale, steps, found] =
        [0, 1, 2].map(|at| view(frame, At::Register(at)).filter(View::is_small_on_gpu));
    let (scale, steps, found) = (scale?, steps?, found?);
    let knowledge = scale.knowledge().min(steps.knowledge());
    // SAFETY: arguments of the function.
    let [scale, steps, found] =
        [scale, steps, found].map(|argument| unsafe { argument.values() }.first().copied());
    let (scale, steps) = (scale?.real(), steps?.integer() + 1);
    let ([growth, backoff, ..], interval) = (frame.floats, frame.integers[3] as i64);
    let (scale, steps) = if found?.is_true() {
        (scale * backoff, 0)
    } else if steps == interval {
        let grown = scale * growth;
        (if (grown as f32).is_finite() { grown } else { scale }, 0)
    } else {
        (scale, steps)
    };
    Some(write_after(knowledge, results, move || [vec![Value::Real(scale)], vec![Value::Integer(steps)]]))
}

/// `(returned tuple, self, weight, bias, mean, variance, ...)`: the running statistics are not
/// computed. They are `optional<Tensor>`, passed by reference: a tensor, and whether there is one.
pub(crate) fn forget_running_statistics(frame: &CallFrame) -> Option<Plan> {
    for at in [4, 5] {
        let optional = frame.integers[at];
        // SAFETY: an argument as described above.
        let statistic =
            unsafe { if *((optional + 8) as *const u8) == 1 { tensor::view(optional) } else { None } };
        if let Some(statistic) = statistic {
            statistic.on_not_computed();
        }
    }
    None
}
