//! Descriptors whose contents a caller reads back: shapes, sequences, dropout.
//!
//! A descriptor is an opaque number for the caller. Each kind has a [`Registry`]; a number of
//! another kind, or of a destroyed descriptor, is `CUDNN_STATUS_BAD_PARAM`. Kinds that nothing
//! reads back share one static object ([`crate::stubs`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use simgpu_common::{ApiResult, In, Out};

use super::BAD_PARAM;
use crate::entry::toolkit;

/// Most dimensions of a descriptor: `CUDNN_DIM_MAX`.
const MAX_DIMS: usize = 8;

/// The descriptors of one kind; `None` before the first call that sets one.
pub(super) struct Registry<T> {
    first: u64,
    descriptors: Mutex<BTreeMap<u64, Option<T>>>,
}

impl<T: Clone> Registry<T> {
    /// `first` is the number of the first descriptor. Kinds have disjoint ranges.
    pub(super) const fn new(first: u64) -> Self {
        Self { first, descriptors: Mutex::new(BTreeMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Option<T>>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create(&self, out: Out<u64>) -> ApiResult {
        out.check().map_err(|_| BAD_PARAM)?;
        let mut descriptors = self.lock();
        let id = descriptors.last_key_value().map_or(self.first, |(&id, _)| id + 0x40);
        descriptors.insert(id, None);
        out.put(id)
    }

    /// Destroys a descriptor; null is allowed.
    pub(super) fn destroy(&self, id: u64) -> ApiResult {
        if id == 0 || self.lock().remove(&id).is_some() { Ok(()) } else { Err(BAD_PARAM) }
    }

    pub(super) fn set(&self, id: u64, value: T) -> ApiResult {
        *self.lock().get_mut(&id).ok_or(BAD_PARAM)? = Some(value);
        Ok(())
    }

    /// The contents of a descriptor; fails if it was never set.
    pub(super) fn get(&self, id: u64) -> ApiResult<T> {
        self.lock().get(&id).cloned().flatten().ok_or(BAD_PARAM)
    }
}

/// The contents of a tensor or filter descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) data_type: u32,
    pub(super) dims: Vec<i32>,
    /// Empty for filters, which have a format instead.
    pub(super) strides: Vec<i32>,
    /// `cudnnTensorFormat_t`; 0 for tensors.
    pub(super) format: u32,
}

impl Shape {
    /// A fully packed tensor.
    pub(super) fn packed(data_type: u32, dims: &[i32]) -> Self {
        let mut strides: Vec<i32> = vec![1; dims.len()];
        for at in (0..dims.len().saturating_sub(1)).rev() {
            strides[at] = strides[at + 1] * dims[at + 1];
        }
        Self { data_type, dims: dims.to_vec(), strides, format: 0 }
    }
}

/// The contents of an RNN data descriptor: the batch of sequences that one call processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SequenceBatch {
    /// Vectors in all sequences: padded to equal lengths, or the sum of lengths if packed.
    pub(super) vectors: u64,
}

impl SequenceBatch {
    /// The layout `CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED` has no padding between sequences.
    const PACKED: u32 = 1;

    pub(super) fn new(layout: u32, longest: u64, lengths: &[i32]) -> Self {
        let vectors = match layout {
            Self::PACKED => lengths.iter().map(|&length| length.max(0) as u64).sum(),
            _ => longest * lengths.len() as u64,
        };
        Self { vectors }
    }
}

pub(super) static TENSORS: Registry<Shape> = Registry::new(0x5400_0000_0000);
static FILTERS: Registry<Shape> = Registry::new(0x5410_0000_0000);
pub(super) static SEQUENCES: Registry<SequenceBatch> = Registry::new(0x5420_0000_0000);
/// The probability that dropout zeroes an element.
pub(super) static DROPOUTS: Registry<f32> = Registry::new(0x5430_0000_0000);

fn dim_count(count: i32) -> ApiResult<usize> {
    usize::try_from(count).ok().filter(|count| (1..=MAX_DIMS).contains(count)).ok_or(BAD_PARAM)
}

/// Writes as many leading dimensions as the caller has room for.
fn put_dims(dims: &[i32], room: i32, out: Out<i32>) {
    out.put_all(dims.iter().copied().take(room.max(0) as usize));
}

toolkit! { 4000;
    cudnnCreateTensorDescriptor(out: Out<u64>) { TENSORS.create(out) }
    cudnnDestroyTensorDescriptor(id: u64) { TENSORS.destroy(id) }
    cudnnSetTensorNdDescriptor(id: u64, data_type: u32, count: i32, dims: In<i32>, strides: In<i32>) {
        let count = dim_count(count)?;
        let (dims, strides) = (dims.list(count), strides.list(count));
        let shape = Shape { data_type, dims: dims.map_err(|_| BAD_PARAM)?, strides: strides.map_err(|_| BAD_PARAM)?, format: 0 };
        TENSORS.set(id, shape)
    }
    cudnnGetTensorNdDescriptor(
        id: u64, room: i32, data_type: Out<u32>, count: Out<i32>, dims: Out<i32>, strides: Out<i32>,
    ) {
        let shape = TENSORS.get(id)?;
        data_type.put_if_wanted(shape.data_type);
        count.put_if_wanted(shape.dims.len() as i32);
        put_dims(&shape.dims, room, dims);
        put_dims(&shape.strides, room, strides);
        Ok(())
    }
    cudnnCreateFilterDescriptor(out: Out<u64>) { FILTERS.create(out) }
    cudnnDestroyFilterDescriptor(id: u64) { FILTERS.destroy(id) }
    cudnnSetFilterNdDescriptor(id: u64, data_type: u32, format: u32, count: i32, dims: In<i32>) {
        let dims = dims.list(dim_count(count)?).map_err(|_| BAD_PARAM)?;
        FILTERS.set(id, Shape { data_type, dims, strides: Vec::new(), format })
    }
    cudnnGetFilterNdDescriptor(
        id: u64, room: i32, data_type: Out<u32>, format: Out<u32>, count: Out<i32>, dims: Out<i32>,
    ) {
        let shape = FILTERS.get(id)?;
        data_type.put_if_wanted(shape.data_type);
        format.put_if_wanted(shape.format);
        count.put_if_wanted(shape.dims.len() as i32);
        put_dims(&shape.dims, room, dims);
        Ok(())
    }
    cudnnCreateRNNDataDescriptor(out: Out<u64>) { SEQUENCES.create(out) }
    cudnnDestroyRNNDataDescriptor(id: u64) { SEQUENCES.destroy(id) }
    cudnnSetRNNDataDescriptor(
        id: u64, _data_type: u32, layout: u32, longest: i32, batch: i32, _vector: i32, lengths: In<i32>, _padding: u64,
    ) {
        let (longest, batch) = (u64::try_from(longest).map_err(|_| BAD_PARAM)?, usize::try_from(batch).map_err(|_| BAD_PARAM)?);
        let lengths = lengths.list(batch).map_err(|_| BAD_PARAM)?;
        SEQUENCES.set(id, SequenceBatch::new(layout, longest, &lengths))
    }
    cudnnCreateDropoutDescriptor(out: Out<u64>) { DROPOUTS.create(out) }
    cudnnDestroyDropoutDescriptor(id: u64) { DROPOUTS.destroy(id) }
    cudnnSetDropoutDescriptor(id: u64, _handle: u64, probability: f32, _states: u64, _size: u64, _seed: u64) {
        DROPOUTS.set(id, probability)
    }
    cudnnRestoreDropoutDescriptor(id: u64, _handle: u64, probability: f32, _states: u64, _size: u64, _seed: u64) {
        DROPOUTS.set(id, probability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_rejects_unset_and_destroyed_descriptors() {
        let registry: Registry<f32> = Registry::new(0x1000);
        assert_eq!(registry.set(0x1000, 0.5), Err(BAD_PARAM));
        registry.lock().insert(0x1000, None);
        assert_eq!(registry.get(0x1000), Err(BAD_PARAM), "created, but not set");
        registry.set(0x1000, 0.5).unwrap();
        assert_eq!(registry.get(0x1000), Ok(0.5));
        registry.destroy(0x1000).unwrap();
        assert_eq!((registry.get(0x1000), registry.destroy(0x1000)), (Err(BAD_PARAM), Err(BAD_PARAM)));
        assert_eq!(registry.destroy(0), Ok(()), "null is no descriptor");
    }

    #[test]
    fn packed_strides_multiply_inner_dimensions() {
        assert_eq!(Shape::packed(0, &[2, 3, 5]).strides, [15, 5, 1]);
    }

    #[test]
    fn packed_sequences_count_their_lengths_padded_ones_the_longest() {
        assert_eq!(SequenceBatch::new(SequenceBatch::PACKED, 4, &[4, 2, 1]).vectors, 7);
        assert_eq!(SequenceBatch::new(0, 4, &[4, 2, 1]).vectors, 12);
    }
}
