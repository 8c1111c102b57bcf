//! `index_put_with_sort_stub(self, indexes, values, adds, is unsafe)`: writes or adds values to the
//! places that indexes name. PyTorch sorts the indexes, which needs kernels.

use super::call_frame::{CallFrame, Plan};
use super::known_bytes::Knowledge;
use super::scalar_type::{ScalarType, Value};
use super::tensor;
use super::view::{MAX_DIMS, View};

/// The plan of a call; `None` if it is not computed. Then its result is forgotten.
pub(crate) fn prepare_index_put(frame: &CallFrame) -> Option<Plan> {
    // SAFETY: the first argument is a tensor.
    let result = unsafe { tensor::view(frame.integers[0]) }?;
    let plan = plan(frame, result);
    if plan.is_none() {
        result.on_not_computed();
    }
    plan
}

fn plan(frame: &CallFrame, result: View) -> Option<Plan> {
    let indexes = indexes(frame.integers[1])?;
    // SAFETY: the third argument is a tensor.
    let values = unsafe { tensor::view(frame.integers[2]) }?;
    let adds = frame.integers[3] & 1 == 1;
    let inputs = || indexes.iter().chain([&values]);
    if !inputs().chain([&result]).all(View::is_small_on_gpu)
        || inputs().any(|input| input.knowledge() < Knowledge::Known)
        || adds && result.knowledge() < Knowledge::Known
    {
        return None;
    }
    let places = places(&result, &indexes)?;
    let shape = [common_shape(&indexes)?, result.shape[indexes.len()..result.dims].to_vec()].concat();
    // SAFETY: an argument of the function.
    let values = unsafe { broadcast(&values, &shape)?.values() };
    Some(Box::new(move |hook, frame| {
        for (place, value) in places.into_iter().zip(values) {
            // SAFETY: elements of the result, which is small, so live.
            unsafe {
                let value =
                    if adds { sum(Value::read(place, result.kind), value, result.kind) } else { value };
                value.write(place, result.kind);
            }
            if let Some(size) = result.kind.size_bytes() {
                super::known_bytes::on_written(place, size, Knowledge::Known);
            }
        }
        // SAFETY: the function that was called with these arguments.
        unsafe { frame.call(hook.original) }
    }))
}

fn sum(one: Value, other: Value, kind: ScalarType) -> Value {
    match (one, other) {
        _ if kind == ScalarType::BOOL => Value::Integer(i64::from(one.is_true() || other.is_true())),
        (Value::Integer(one), Value::Integer(other)) => Value::Integer(one.wrapping_add(other)),
        _ => Value::Real(one.real() + other.real()),
    }
}

/// The tensors of a `const c10::List<optional<Tensor>> &`, one for each of the first dimensions;
/// `None` if the list has another form. The list points to an object with a vector of `IValue`s,
/// each a payload and a tag:
/// <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/core/List.h>.
fn indexes(list: u64) -> Option<Vec<View>> {
    const IS_TENSOR: u32 = 1;
    // SAFETY: the object has a table of functions and two counts before the vector; the counts had
    // 8 bytes each in old releases. Counts are no addresses.
    unsafe {
        let object = *(list as *const u64);
        let is_vector = |[begin, end, room]: &[u64; 3]| {
            *begin > 1 << 16
                && begin < end
                && end <= room
                && end - begin <= 16 * MAX_DIMS as u64
                && (end - begin) % 16 == 0
        };
        let [begin, end, _] =
            [16, 24].map(|at| *((object + at) as *const [u64; 3])).into_iter().find(is_vector)?;
        let elements = (begin..end).step_by(16);
        let tensors: Vec<u64> =
            elements.take_while(|element| *((element + 8) as *const u32) == IS_TENSOR).collect();
        // Dimensions without an index may only follow.
        let rest = (begin..end).step_by(16).skip(tensors.len());
        if tensors.is_empty() || rest.into_iter().any(|element| *((element + 8) as *const u32) == IS_TENSOR) {
            return None;
        }
        let views: Option<Vec<View>> = tensors.into_iter().map(|element| tensor::view(element)).collect();
        views.filter(|views| {
            views.iter().all(|view| !view.kind.is_floating() && view.kind != ScalarType::BOOL)
        })
    }
}

/// The shape to which all indexes are broadcast.
fn common_shape(indexes: &[View]) -> Option<Vec<i64>> {
    let dims = indexes.iter().map(|index| index.dims).max()?;
    let mut shape = vec![1; dims];
    for index in indexes {
        for (len, own) in shape.iter_mut().rev().zip(index.shape[..index.dims].iter().rev()) {
            *len = if *own == 1 { *len } else { *own };
        }
    }
    Some(shape)
}

/// A view with another shape, as PyTorch broadcasts.
fn broadcast(view: &View, shape: &[i64]) -> Option<View> {
    if shape.len() > MAX_DIMS || view.dims > shape.len() {
        return None;
    }
    let mut wide = View { dims: shape.len(), shape: [0; MAX_DIMS], strides_bytes: [0; MAX_DIMS], ..*view };
    wide.shape[..shape.len()].copy_from_slice(shape);
    let more = shape.len() - view.dims;
    for dim in 0..view.dims {
        match view.shape[dim] {
            1 => {}
            len if len == shape[more + dim] => wide.strides_bytes[more + dim] = view.strides_bytes[dim],
            _ => return None,
        }
    }
    Some(wide)
}

/// The address of each element that is written; `None` if one is outside of the tensor.
fn places(result: &View, indexes: &[View]) -> Option<Vec<u64>> {
    let shape = common_shape(indexes)?;
    if indexes.len() > result.dims {
        return None;
    }
    let mut starts = vec![result.addr; usize::try_from(shape.iter().product::<i64>()).ok()?];
    for (dim, index) in indexes.iter().enumerate() {
        let len = result.shape[dim];
        // SAFETY: an argument of the function.
        let positions = unsafe { broadcast(index, &shape)?.values() };
        for (start, position) in starts.iter_mut().zip(positions) {
            let position = position.integer();
            if !(-len..len).contains(&position) {
                return None;
            }
            *start = start.wrapping_add((position.rem_euclid(len) * result.strides_bytes[dim]) as u64);
        }
    }
    let mut row = View { dims: result.dims - indexes.len(), ..*result };
    row.shape.copy_within(indexes.len()..result.dims, 0);
    row.strides_bytes.copy_within(indexes.len()..result.dims, 0);
    let row_at = |addr| {
        let mut row = row;
        row.addr = addr;
        row.addresses()
    };
    Some(starts.into_iter().flat_map(row_at).collect())
}
