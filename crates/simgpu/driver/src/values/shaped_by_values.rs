//! Functions with a result that has as many elements as the values of an argument say.
//!
//! Such a function copies that number from the GPU. [`PLANTED`] is what the next such copy of the
//! thread gets.

use std::cell::Cell;
use std::cmp::Ordering;

use super::call_frame::{CallFrame, Hook, Plan};
use super::functions::{At, view};
use super::known_bytes::Knowledge;
use super::scalar_type::Value;
use super::tensor;
use super::view::View;

thread_local! {
    static PLANTED: Cell<Option<(u64, Knowledge)>> = const { Cell::new(None) };
}

/// The number that a copy of a few bytes from the GPU gets instead of what is there, and what is
/// known of it.
pub(crate) fn take_planted(len: u64) -> Option<(u64, Knowledge)> {
    if len > 8 { None } else { PLANTED.take() }
}

/// Calls a function that copies this number from the GPU.
fn call_with_planted(hook: &Hook, frame: &CallFrame, number: usize, knowledge: Knowledge) -> u64 {
    PLANTED.set(Some((number as u64, knowledge)));
    // The function throws where memory is short, perhaps before it copies.
    let _forget_after_call = ForgetPlanted;
    // SAFETY: the function that was called with these arguments.
    unsafe { frame.call(hook.original) }
}

struct ForgetPlanted;

impl Drop for ForgetPlanted {
    fn drop(&mut self) {
        PLANTED.set(None);
    }
}

/// Writes a result, where there is one.
fn write(result: Option<View>, values: impl IntoIterator<Item = Value>, knowledge: Knowledge) {
    if let Some(result) = result {
        // SAFETY: the result of a function.
        unsafe { result.put(values, knowledge) };
    }
}

/// Calls a function that returns a tuple of tensors, the first with this many rows, and writes
/// them. A tensor that the program did not ask for has no elements. Elements of a tuple lie in
/// reverse order:
/// <https://gcc.gnu.org/onlinedocs/libstdc++/latest-doxygen/a00089_source.html>.
fn call_for_tuple(rows: usize, tensors: Vec<Vec<Value>>, knowledge: Knowledge) -> Plan {
    Box::new(move |hook, frame| {
        let returned = call_with_planted(hook, frame, rows, knowledge);
        for (at, values) in tensors.into_iter().rev().enumerate() {
            // SAFETY: a tensor of the tuple that the function returned.
            let result = unsafe { tensor::view(frame.integers[0] + 8 * at as u64) };
            write(result.filter(|result| result.elements() == Some(values.len() as u64)), values, knowledge);
        }
        returned
    })
}

/// The positions of the elements that are not zero, one row each.
fn rows_of_nonzero(source: View) -> (usize, Vec<Value>) {
    // SAFETY: an argument of a function.
    let values = unsafe { source.values() };
    let found: Vec<i64> = (0..).zip(values).filter(|(_, value)| value.is_true()).map(|(at, _)| at).collect();
    let shape = &source.shape[..source.dims];
    let coordinates = found.iter().flat_map(|&at| {
        let inner = |dim: usize| shape[dim + 1..].iter().product::<i64>();
        (0..shape.len()).map(move |dim| Value::Integer(at / inner(dim) % shape[dim]))
    });
    (found.len(), coordinates.collect())
}

/// `(self, result)`: the positions of all elements that are not zero, one row each.
pub(crate) fn prepare_nonzero(frame: &CallFrame) -> Option<Plan> {
    let source = view(frame, At::Register(0)).filter(View::is_small_on_gpu)?;
    let (knowledge, (found, rows)) = (source.knowledge(), rows_of_nonzero(source));
    Some(Box::new(move |hook, frame| {
        let returned = call_with_planted(hook, frame, found, knowledge);
        write(view(frame, At::Register(1)), rows, knowledge);
        returned
    }))
}

/// As [`prepare_nonzero`], with a number of rows that the program chose; `filler` is in those that
/// are left.
pub(crate) fn prepare_nonzero_static(
    frame: &CallFrame,
    source: At,
    filler: usize,
    result: At,
) -> Option<Plan> {
    let source = view(frame, source).filter(View::is_small_on_gpu)?;
    let (knowledge, (_, rows)) = (source.knowledge(), rows_of_nonzero(source));
    let filler = Value::Integer(frame.integers[filler] as i64);
    Some(Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments.
        let returned = unsafe { frame.call(hook.original) };
        write(view(frame, result), rows.into_iter().chain(std::iter::repeat(filler)), knowledge);
        returned
    }))
}

/// `(returned tensor, repeats, output size)`: each position as often as it is repeated.
pub(crate) fn prepare_repeat_interleave(frame: &CallFrame) -> Option<Plan> {
    let repeats = view(frame, At::Register(1)).filter(View::is_small_on_gpu)?;
    Some(Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments; `repeats` is one of them.
        let (returned, times) = unsafe { (frame.call(hook.original), repeats.values()) };
        let positions = (0_i64..)
            .zip(times)
            .flat_map(|(at, times)| (0..times.integer()).map(move |_| Value::Integer(at)));
        write(view(frame, At::Register(0)), positions, repeats.knowledge());
        returned
    }))
}

/// `(returned tensor, self, weights, minimum length)`: how often each number occurs, or the sum of
/// its weights.
pub(crate) fn prepare_bincount(frame: &CallFrame) -> Option<Plan> {
    let small = |at| view(frame, at).filter(View::is_small_on_gpu);
    let source = small(At::Register(1))?;
    // SAFETY: an `optional<Tensor>`, passed by reference: a tensor, and whether there is one.
    let has_weights = unsafe { *((frame.integers[2] + 8) as *const u8) } != 0;
    let weights = if has_weights { Some(small(At::Register(2))?) } else { None };
    let knowledge = weights.iter().chain([&source]).map(View::knowledge).min()?;
    Some(Box::new(move |hook, frame| {
        // SAFETY: the function that was called with these arguments; the views are two of them.
        let (returned, values, weights) =
            unsafe { (frame.call(hook.original), source.values(), weights.map(|weights| weights.values())) };
        let result = view(frame, At::Register(0));
        let mut sums = vec![0.0; result.and_then(|result| result.elements()).unwrap_or(0) as usize];
        for (at, value) in values.into_iter().enumerate() {
            let weight = weights.as_ref().map_or(Some(1.0), |weights| Some(weights.get(at)?.real()));
            if let Some((sum, weight)) = sums.get_mut(value.integer() as usize).zip(weight) {
                *sum += weight;
            }
        }
        write(result, sums.into_iter().map(Value::Real), knowledge);
        returned
    }))
}

/// `(returned tuple, self, ...)`: the distinct values, for each element the place of its value, and
/// how often each occurs.
pub(crate) fn prepare_unique(frame: &CallFrame, is_sorted: bool, returned_tensors: usize) -> Option<Plan> {
    let source = view(frame, At::Register(1)).filter(View::is_small_on_gpu)?;
    let knowledge = source.knowledge();
    if knowledge < Knowledge::Known && source.kind.is_floating() {
        return None;
    }
    // SAFETY: an argument of the function.
    let rows: Vec<Vec<Value>> = unsafe { source.values() }.into_iter().map(|value| vec![value]).collect();
    let (distinct, places, counts) = distinct_rows(&rows, is_sorted);
    let values: Vec<Value> = distinct.iter().map(|at| rows[*at][0]).collect();
    let mut tensors = vec![values, places, counts];
    tensors.truncate(returned_tensors);
    Some(call_for_tuple(distinct.len(), tensors, knowledge))
}

/// The distinct rows in order, for each row the place of its values, and how often each occurs.
/// Rows that are not sorted are only compared with their neighbours.
fn distinct_rows(rows: &[Vec<Value>], is_sorted: bool) -> (Vec<usize>, Vec<Value>, Vec<Value>) {
    let compare = |a: usize, b: usize| {
        let pairs = rows[a].iter().zip(&rows[b]);
        pairs.map(|(one, other)| one.order(*other)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if is_sorted {
        order.sort_by(|a, b| compare(*a, *b));
    }
    let (mut distinct, mut places) = (Vec::<usize>::new(), vec![Value::Integer(0); rows.len()]);
    let mut counts = Vec::<i64>::new();
    for at in order {
        match counts.last_mut() {
            Some(count) if distinct.last().is_some_and(|last| compare(*last, at).is_eq()) => *count += 1,
            _ => {
                distinct.push(at);
                counts.push(1);
            }
        }
        places[at] = Value::Integer(distinct.len() as i64 - 1);
    }
    (distinct, places, counts.into_iter().map(Value::Integer).collect())
}

/// `(returned tuple, self, dim, ...)`: the distinct slices along a dimension, and the rest as in
/// [`prepare_unique`].
pub(crate) fn prepare_unique_dim(frame: &CallFrame, is_sorted: bool) -> Option<Plan> {
    let source = view(frame, At::Register(1)).filter(View::is_small_on_gpu)?;
    let (knowledge, dim) = (source.knowledge(), source.dim(frame.integers[2])?);
    let len = usize::try_from(*source.shape[..source.dims].get(dim)?).ok()?;
    let inner = source.shape[dim + 1..source.dims].iter().product::<i64>() as usize;
    if knowledge < Knowledge::Known && source.kind.is_floating() || len == 0 || inner == 0 {
        return None;
    }
    // SAFETY: an argument of the function.
    let values = unsafe { source.values() };
    let outer = values.len() / (len * inner);
    let row = |at: usize| {
        let places =
            (0..outer).flat_map(move |block| (0..inner).map(move |place| (block * len + at) * inner + place));
        places.map(|place| values[place]).collect()
    };
    let rows: Vec<Vec<Value>> = (0..len).map(row).collect();
    let (distinct, places, counts) = distinct_rows(&rows, is_sorted);
    let values = (0..outer).flat_map(|block| {
        let rows = distinct.iter().map(|at| &rows[*at]);
        rows.flat_map(move |row| row[block * inner..][..inner].to_vec())
    });
    let tensors = vec![values.collect(), places, counts];
    Some(call_for_tuple(distinct.len(), tensors, knowledge))
}

/// `(returned tensor, self)`: a sparse matrix in which each place occurs once, in order.
pub(crate) fn prepare_coalesce(frame: &CallFrame) -> Option<Plan> {
    let places = tensor::sparse_indices(frame.integers[1]).filter(View::is_small_on_gpu)?;
    let knowledge = places.knowledge();
    // SAFETY: a tensor of the matrix.
    let values = unsafe { places.values() };
    let count = usize::try_from(places.shape[1]).ok()?;
    if places.dims != 2 || count == 0 {
        return None;
    }
    let columns: Vec<Vec<Value>> =
        (0..count).map(|at| values.iter().skip(at).step_by(count).copied().collect()).collect();
    let (distinct, ..) = distinct_rows(&columns, true);
    Some(Box::new(move |hook, frame| {
        let returned = call_with_planted(hook, frame, distinct.len(), knowledge);
        let dims = columns.first().map_or(0, Vec::len);
        let values =
            (0..dims).flat_map(|dim| distinct.iter().map(|at| columns[*at][dim]).collect::<Vec<_>>());
        write(tensor::sparse_indices(frame.integers[0]), values, knowledge);
        returned
    }))
}
