//! Reads PyTorch's `TensorIteratorBase`, the argument of most kernels.
//!
//! Releases up to 2.9 have a list of names before the list of operands, and those up to 2.2 smaller
//! operands. All else is the same from 2.1 to 2.15:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/TensorIterator.h>. Each use is
//! checked against functions that PyTorch exports; an iterator that does not agree is not computed.

use std::sync::OnceLock;

use super::loaded_library::LoadedLibrary;
use super::scalar_type::{ScalarType, Value};
use super::view::{MAX_DIMS, View};

/// Begin of a `SmallVector`: the pointer to its elements, their number, and the room.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SmallVector {
    begin: u64,
    size: u32,
    capacity: u32,
}

/// `at::OperandInfo`, up to the members that are read.
#[repr(C)]
struct OperandInfo {
    data: u64,
    strides: SmallVector,
    inline_strides: [i64; 6],
    device: i8,
    device_index: i8,
    has_device: u8,
    target_type: i8,
    current_type: i8,
    is_output: u8,
}

/// The size of an `at::OperandInfo` in bytes; smaller without the flag `is_const`, up to 2.2.
const OPERAND_BYTES: usize = 136;
const OPERAND_BYTES_WITHOUT_CONST: usize = 128;
const INLINE_OPERANDS: u32 = 4;
/// The offset of the member after the vtable, the shape, the permutation, two flags and the offsets
/// of the view: the names, or the operands.
const NAMES_OR_OPERANDS: u64 = 184;
/// Room in the list of names, and its size in bytes with that room.
const INLINE_NAMES: u32 = 5;
const NAMES_BYTES: u64 = 56;
const MAX_OPERANDS: u32 = 32;
const CUDA: i8 = 1;
const CPU: i8 = 0;

/// Functions of `TensorIteratorBase` that PyTorch exports, and the size of an operand.
struct Exported {
    operand_bytes: usize,
    numel: unsafe extern "C" fn(u64) -> i64,
    data_ptr: unsafe extern "C" fn(u64, i64) -> u64,
}

static EXPORTED: OnceLock<Exported> = OnceLock::new();

pub(crate) fn find_functions(cpu: &LoadedLibrary) {
    const NUMEL: &str = "_ZNK2at18TensorIteratorBase5numelEv";
    // The index is an `int` in old releases; both are passed in one register.
    const DATA_PTR: &str = "_ZNK2at18TensorIteratorBase8data_ptrE";
    const IS_CONST: &str = "_ZN2at20TensorIteratorConfig24add_borrowed_const_inputE";
    let parts = [NUMEL, DATA_PTR, IS_CONST];
    let found = cpu.symbols(|name| parts.iter().any(|part| name.starts_with(part)));
    let has_const = found.keys().any(|name| name.starts_with(IS_CONST));
    let data_ptr = found.iter().find(|(name, _)| name.starts_with(DATA_PTR));
    if let (Some(&numel), Some((_, &data_ptr))) = (found.get(NUMEL), data_ptr) {
        // SAFETY: the mangled names have these arguments; both return a number in a register.
        let exported = unsafe {
            Exported {
                operand_bytes: if has_const { OPERAND_BYTES } else { OPERAND_BYTES_WITHOUT_CONST },
                numel: std::mem::transmute::<u64, unsafe extern "C" fn(u64) -> i64>(numel),
                data_ptr: std::mem::transmute::<u64, unsafe extern "C" fn(u64, i64) -> u64>(data_ptr),
            }
        };
        let _ = EXPORTED.set(exported);
    }
}

/// An operand of a kernel: its place in the iterator, and the memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    info: u64,
    pub(crate) view: View,
    pub(crate) is_output: bool,
    pub(crate) is_on_gpu: bool,
}

/// What a kernel is to compute.
#[derive(Debug)]
pub(crate) struct Iteration {
    operands: Vec<Operand>,
    outputs: usize,
    /// The type in which the kernel computes, where there is one.
    pub(crate) common_type: Option<ScalarType>,
    /// The address of that type.
    common_type_at: u64,
}

impl Iteration {
    /// The outputs, and the inputs.
    pub(crate) fn split(&self) -> (&[Operand], &[Operand]) {
        self.operands.split_at(self.outputs)
    }
}

/// Reads an iterator; `None` if it has another layout, or something that is not computed.
///
/// # Safety
///
/// `iterator` is a `TensorIteratorBase`.
pub(crate) unsafe fn read(iterator: u64) -> Option<Iteration> {
    let exported = EXPORTED.get()?;
    // SAFETY: the shape is the first member after the vtable; what it says is checked below.
    let shape = unsafe { *((iterator + 8) as *const SmallVector) };
    if shape.size as usize > MAX_DIMS || shape.begin == 0 {
        return None;
    }
    // SAFETY: a vector of the iterator with that many numbers.
    let shape = unsafe { std::slice::from_raw_parts(shape.begin as *const i64, shape.size as usize) };
    // SAFETY: as for this function.
    let elements = shape.iter().try_fold(1_i64, |all, len| all.checked_mul(*len));
    // SAFETY: by the contract of this function.
    if elements != Some(unsafe { (exported.numel)(iterator) }) {
        return None;
    }
    // SAFETY: an iterator is longer than the offsets that are searched.
    let (list, at) = unsafe { find_operands(iterator)? };
    let mut operands = Vec::with_capacity(list.size as usize);
    for index in 0..list.size as usize {
        let info = list.begin + (index * exported.operand_bytes) as u64;
        // SAFETY: an element of the list.
        let operand = unsafe { read_operand(info, shape)? };
        // SAFETY: by the contract of this function, with the index of an operand.
        if operand.view.addr != unsafe { (exported.data_ptr)(iterator, index as i64) } {
            return None;
        }
        operands.push(operand);
    }
    // The members after the list: the number of outputs, two flags, the common type.
    let after =
        at + size_of::<SmallVector>() as u64 + (INLINE_OPERANDS as usize * exported.operand_bytes) as u64;
    let common_type_at = after + 6;
    // SAFETY: as above.
    let (outputs, common_type) =
        unsafe { (*(after as *const i32), ScalarType(*(common_type_at as *const i8))) };
    let flagged = operands.iter().filter(|operand| operand.is_output).count();
    let is_consistent = usize::try_from(outputs) == Ok(flagged)
        && operands.iter().take(flagged).all(|operand| operand.is_output);
    is_consistent.then(|| Iteration {
        operands,
        outputs: flagged,
        common_type: common_type.size_bytes().is_some().then_some(common_type),
        common_type_at,
    })
}

/// The list of operands and its address.
///
/// # Safety
///
/// `iterator` is a `TensorIteratorBase`.
unsafe fn find_operands(iterator: u64) -> Option<(SmallVector, u64)> {
    let list = |at: u64| {
        // SAFETY: a member of the iterator.
        let list = unsafe { *(at as *const SmallVector) };
        (list, list.begin == at + size_of::<SmallVector>() as u64)
    };
    let mut at = iterator + NAMES_OR_OPERANDS;
    if let (SmallVector { capacity: INLINE_NAMES, .. }, true) = list(at) {
        at += NAMES_BYTES;
    }
    let (operands, is_inline) = list(at);
    let is_list = operands.begin != 0
        && is_inline == (operands.capacity == INLINE_OPERANDS)
        && (1..=MAX_OPERANDS.min(operands.capacity)).contains(&operands.size);
    is_list.then_some((operands, at))
}

/// # Safety
///
/// `info` is an `OperandInfo` of an iterator with that shape.
unsafe fn read_operand(info: u64, shape: &[i64]) -> Option<Operand> {
    // SAFETY: by the contract of this function.
    let operand = unsafe { &*(info as *const OperandInfo) };
    let kind = ScalarType(operand.current_type);
    let is_on_gpu = match (operand.has_device, operand.device) {
        (1, CUDA) => true,
        (1, CPU) => false,
        _ => return None,
    };
    let is_list = operand.strides.begin != 0 && operand.strides.begin % 8 == 0;
    if operand.strides.size as usize != shape.len() || !is_list {
        return None;
    }
    let mut view = View {
        addr: operand.data,
        kind,
        dims: shape.len(),
        shape: [0; MAX_DIMS],
        strides_bytes: [0; MAX_DIMS],
    };
    // SAFETY: a vector of the operand with that many numbers.
    let strides = unsafe { std::slice::from_raw_parts(operand.strides.begin as *const i64, shape.len()) };
    view.shape[..shape.len()].copy_from_slice(shape);
    view.strides_bytes[..shape.len()].copy_from_slice(strides);
    // The first dimension of an iterator is the fastest.
    view.shape[..shape.len()].reverse();
    view.strides_bytes[..shape.len()].reverse();
    Some(Operand { info, view, is_output: operand.is_output != 0, is_on_gpu })
}

/// An operand that reads converted values, until it is dropped.
#[derive(Debug)]
pub(crate) struct Converted {
    info: u64,
    data: u64,
    strides: Vec<i64>,
    kind: ScalarType,
    /// The converted values, which `_values` owns.
    dense: View,
    _values: Vec<u8>,
}

impl Converted {
    /// Lets an input read its values in another type.
    ///
    /// # Safety
    ///
    /// The operand is of a live iterator, and its memory is readable.
    pub(crate) unsafe fn new(operand: &Operand, kind: ScalarType) -> Option<Self> {
        let size = kind.size_bytes()?;
        let view = &operand.view;
        let mut values = vec![0_u8; (view.elements()? * size) as usize];
        let mut dense = *view;
        (dense.addr, dense.kind) = (values.as_mut_ptr() as u64, kind);
        let mut stride = size as i64;
        for dim in (0..view.dims).rev() {
            dense.strides_bytes[dim] = stride;
            stride *= view.shape[dim];
        }
        // SAFETY: the memory is readable, and `dense` is the room made for as many elements.
        unsafe { dense.write(view.values()) };
        // SAFETY: by the contract of this function.
        let info = unsafe { &mut *(operand.info as *mut OperandInfo) };
        // SAFETY: the vector has a number for each dimension.
        let strides = unsafe { std::slice::from_raw_parts_mut(info.strides.begin as *mut i64, view.dims) };
        let original = strides.to_vec();
        for (place, stride) in strides.iter_mut().zip(dense.strides_bytes[..view.dims].iter().rev()) {
            *place = *stride;
        }
        let converted = Self {
            info: operand.info,
            data: info.data,
            strides: original,
            kind: view.kind,
            dense,
            _values: values,
        };
        (info.data, info.current_type) = (dense.addr, kind.0);
        Some(converted)
    }

    /// The values that a kernel has written to a converted result.
    pub(crate) fn values(&self) -> Vec<Value> {
        // SAFETY: the memory is ours.
        unsafe { self.dense.values() }
    }
}

impl Drop for Converted {
    fn drop(&mut self) {
        // SAFETY: the kernel has returned, and the iterator still lives.
        unsafe {
            let info = &mut *(self.info as *mut OperandInfo);
            (info.data, info.current_type) = (self.data, self.kind.0);
            let strides = std::slice::from_raw_parts_mut(info.strides.begin as *mut i64, self.strides.len());
            strides.copy_from_slice(&self.strides);
        }
    }
}

/// Another type in which a kernel computes, until it is dropped.
#[derive(Debug)]
pub(crate) struct ComputedIn {
    place: u64,
    original: ScalarType,
}

impl ComputedIn {
    /// # Safety
    ///
    /// The iterator lives, and all its operands are converted to the type.
    pub(crate) unsafe fn new(iteration: &Iteration, kind: ScalarType) -> Option<Self> {
        let original = iteration.common_type?;
        // SAFETY: by the contract of this function.
        unsafe { *(iteration.common_type_at as *mut i8) = kind.0 };
        Some(Self { place: iteration.common_type_at, original })
    }
}

impl Drop for ComputedIn {
    fn drop(&mut self) {
        // SAFETY: the kernel has returned, and the iterator still lives.
        unsafe { *(self.place as *mut i8) = self.original.0 };
    }
}
