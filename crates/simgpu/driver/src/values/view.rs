//! The memory of a tensor that a kernel reads or writes.

use super::known_bytes::{self, Knowledge};
use super::scalar_type::{ScalarType, Value};
use crate::entry::with_state;
use crate::state::DriverState;

/// The most dimensions that are computed. PyTorch's limit is 64.
pub(crate) const MAX_DIMS: usize = 8;

/// A view of memory: the address of its first element, and distances in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) addr: u64,
    pub(crate) kind: ScalarType,
    pub(crate) dims: usize,
    pub(crate) shape: [i64; MAX_DIMS],
    pub(crate) strides_bytes: [i64; MAX_DIMS],
}

impl View {
    /// The number of elements; `None` if it overflows.
    pub(crate) fn elements(&self) -> Option<u64> {
        self.shape[..self.dims].iter().try_fold(1_u64, |all, &len| all.checked_mul(u64::try_from(len).ok()?))
    }

    /// The length of a dimension by its number, which counts from the end if it is negative. A
    /// single element has a dimension of length 1.
    pub(crate) fn len_of(&self, dim: u64) -> Option<i64> {
        if self.dims == 0 { Some(1) } else { self.shape[..self.dims].get(self.dim(dim)?).copied() }
    }

    /// A dimension's number from the begin on.
    pub(crate) fn dim(&self, dim: u64) -> Option<usize> {
        let dim = dim as i64;
        usize::try_from(if dim < 0 { dim + self.dims as i64 } else { dim }).ok()
    }

    /// True if all elements are positions in a dimension of a tensor. A kernel of the CPU ends the
    /// program at another one, and placeholders may be that.
    pub(crate) fn is_index_into(&self, tensor: &View, dim: u64) -> bool {
        // SAFETY: an argument of the kernel.
        let positions = unsafe { self.values() };
        tensor.len_of(dim).is_some_and(|len| positions.iter().all(|at| (0..len).contains(&at.integer())))
    }

    /// The address and the length of the memory from the first to the last byte; `None` if it
    /// overflows. Empty views have no bytes.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        let size = self.kind.storage_bytes();
        if self.elements()? == 0 {
            return Some((self.addr, 0));
        }
        let (mut first, mut last) = (i128::from(self.addr), i128::from(self.addr));
        for (&len, &stride) in self.shape[..self.dims].iter().zip(&self.strides_bytes) {
            let reach = i128::from(len - 1) * i128::from(stride);
            if reach < 0 { first += reach } else { last += reach }
        }
        Some((u64::try_from(first).ok()?, u64::try_from(last - first).ok()?.checked_add(size)?))
    }

    /// Calls `visit` with the address of each element, the last dimension fastest.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64)) {
        let Some(elements) = self.elements() else { return };
        let mut at = [0_i64; MAX_DIMS];
        let mut addr = self.addr as i64;
        for _ in 0..elements {
            visit(addr as u64);
            for dim in (0..self.dims).rev() {
                at[dim] += 1;
                addr += self.strides_bytes[dim];
                if at[dim] < self.shape[dim] {
                    break;
                }
                addr -= at[dim] * self.strides_bytes[dim];
                at[dim] = 0;
            }
        }
    }

    /// The addresses of all elements in order.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        let mut addresses = Vec::new();
        self.for_each(|place| addresses.push(place));
        addresses
    }

    /// All elements in order.
    ///
    /// # Safety
    ///
    /// The view is of readable memory.
    pub(crate) unsafe fn values(&self) -> Vec<Value> {
        let mut values = Vec::new();
        // SAFETY: by the contract of this function.
        self.for_each(|place| values.push(unsafe { Value::read(place, self.kind) }));
        values
    }

    /// Writes values to the elements in order, as long as there are both.
    ///
    /// # Safety
    ///
    /// The view is of writable memory.
    pub(crate) unsafe fn write(&self, values: impl IntoIterator<Item = Value>) {
        let mut values = values.into_iter();
        self.for_each(|place| {
            if let Some(value) = values.next() {
                // SAFETY: by the contract of this function.
                unsafe { value.write(place, self.kind) };
            }
        });
    }

    /// Writes values to the elements of a result, as long as there are both.
    ///
    /// # Safety
    ///
    /// The view is of the result of a function that was called.
    pub(crate) unsafe fn put(&self, values: impl IntoIterator<Item = Value>, knowledge: Knowledge) {
        if self.is_small_on_gpu() {
            // SAFETY: small results are live.
            unsafe { self.write(values) };
            self.on_computed(knowledge);
        }
    }

    /// True if the elements lie in order, without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        let Some(mut stride) = self.kind.size_bytes().map(|size| size as i64) else { return false };
        let dims = self.shape[..self.dims].iter().zip(&self.strides_bytes).rev();
        self.elements() == Some(0)
            || dims.filter(|(len, _)| **len != 1).all(|(len, own)| {
                let is_next = *own == stride;
                stride = stride.saturating_mul(*len);
                is_next
            })
    }

    /// True if the view is small, of a type that is computed, and on the simulated GPU. A small
    /// part of memory can have many elements, where one is expanded. While a graph is captured
    /// nothing is: its launches would not compute again what was computed at capture.
    pub(crate) fn is_small_on_gpu(&self) -> bool {
        let is_long = self.elements().is_none_or(|elements| elements > super::limit_bytes());
        if is_long || self.kind.size_bytes().is_none() {
            return false;
        }
        let span = self.span().filter(|(addr, len)| *addr != 0 && *len <= super::limit_bytes());
        let is_on_gpu = |state: &DriverState, (addr, len)| {
            state.graphs.captures.is_empty() && (len == 0 || state.device_range(addr, len) == Some(true))
        };
        span.is_some_and(|span| with_state(|state| Ok(is_on_gpu(state, span))).unwrap_or(false))
    }

    /// The least that is known of the bytes from the first to the last element.
    pub(crate) fn knowledge(&self) -> Knowledge {
        self.span().map_or(Knowledge::Placeholder, |(addr, len)| known_bytes::knowledge(addr, len))
    }

    /// The view without the dimensions along which the memory is the same, as in the result of a
    /// reduction.
    pub(crate) fn without_repetition(mut self) -> Self {
        for (len, stride) in self.shape[..self.dims].iter_mut().zip(&self.strides_bytes) {
            if *stride == 0 {
                *len = (*len).min(1);
            }
        }
        self
    }

    /// Records that the elements were computed.
    pub(crate) fn on_computed(&self, knowledge: Knowledge) {
        let Some(size) = self.kind.size_bytes() else { return };
        let view = self.without_repetition();
        match view.span() {
            Some((addr, len)) if view.elements().is_some_and(|elements| elements * size == len) => {
                known_bytes::on_written(addr, len, knowledge);
            }
            _ => view.for_each(|place| known_bytes::on_written(place, size, knowledge)),
        }
    }

    /// Records that some elements were computed, and that what is known of them stays the same.
    pub(crate) fn on_touched(&self) {
        if let Some((addr, len)) = self.span() {
            known_bytes::on_touched(addr, len);
        }
    }

    /// Records that a kernel that does nothing should have written the elements.
    pub(crate) fn on_not_computed(&self) {
        if let Some((addr, len)) = self.span() {
            known_bytes::forget(addr, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(addr: u64, shape: &[i64], strides_bytes: &[i64]) -> View {
        let mut view = View {
            addr,
            kind: ScalarType::SHORT,
            dims: shape.len(),
            shape: [0; MAX_DIMS],
            strides_bytes: [0; MAX_DIMS],
        };
        view.shape[..shape.len()].copy_from_slice(shape);
        view.strides_bytes[..shape.len()].copy_from_slice(strides_bytes);
        view
    }

    #[test]
    fn span_is_from_the_first_to_the_last_byte() {
        assert_eq!(view(100, &[], &[]).span(), Some((100, 2)));
        assert_eq!(view(100, &[3, 2], &[4, 2]).span(), Some((100, 12)));
        assert_eq!(view(100, &[3], &[-2]).span(), Some((96, 6)));
        assert_eq!(view(100, &[3, 0], &[2, 2]).span(), Some((100, 0)));
        assert_eq!(view(100, &[i64::MAX, i64::MAX], &[i64::MAX, 2]).span(), None);
    }

    #[test]
    fn dense_views_have_their_elements_in_order() {
        let are_dense = [(&[2, 3][..], &[6, 2][..]), (&[1, 3], &[99, 2]), (&[], &[]), (&[2, 0], &[7, 7])];
        assert!(are_dense.iter().all(|(shape, strides)| view(100, shape, strides).is_dense()));
        let have_gaps = [(&[2, 3][..], &[2, 4][..]), (&[3], &[4]), (&[3], &[0]), (&[3], &[-2])];
        assert!(!have_gaps.iter().any(|(shape, strides)| view(100, shape, strides).is_dense()));
    }

    #[test]
    fn elements_are_visited_with_the_last_dimension_fastest() {
        let mut visited = Vec::new();
        view(100, &[2, 3], &[2, 10]).for_each(|place| visited.push(place));
        assert_eq!(visited, [100, 110, 120, 102, 112, 122]);
    }
}
