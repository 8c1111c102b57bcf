//! The stubs of PyTorch that are computed, one row each.
//!
//! What is not listed is never computed, and its results are forgotten: random floating-point
//! numbers, because the CPU's kernels need another generator, and what does not steer programs.

/// How a stub is computed that takes a `TensorIterator` as its first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IteratorRule {
    /// Element by element, with inputs of the type in which the kernel computes.
    Map,
    /// As `Map`. An integer division by zero, which ends a program on the CPU but not on a GPU, is
    /// not computed.
    Divide,
    /// As `Map`, with a result of type bool. Placeholders of floating-point types compare as false,
    /// whatever they are: zeros would be equal to each other, and to what programs look for. But
    /// they are ordinary numbers, so compared with [`EXTREME`] ones the result is that of zeros.
    Compare,
    /// As `Compare`, for `>=`: placeholders are at least 0, as probabilities are.
    AtLeast,
    /// As `Map`, also with a few placeholders: the result of these kernels is a number. A program
    /// that bounds a size gets one in its bounds, and a score that it lowers by 1e9 is low.
    Finite,
    /// As `Finite`, unless an element of the divisor is 0. Placeholders that nothing wrote are 0.
    Quotient,
    /// One value for all elements.
    Fill,
    /// Moves elements, also placeholders.
    Move,
    /// As `Move`, from one of two inputs for each element.
    Select,
    /// As `Move`; some elements of the result stay what they are.
    Update,
    /// Moves elements to or from places that an index names; the last column of the row is the
    /// operand with all places.
    Index(IndexedOperand),
    /// Combines elements of one type to an element of that type.
    Reduce,
    /// As `Reduce`; of truth values, true as with `All`.
    Least,
    /// The mean of elements. PyTorch has no such kernel for the CPU.
    Mean,
    /// True if no element is false, or one is undecided: the checks of programs pass.
    All,
    /// True if an element is true.
    Any,
    /// The position of an element. Among placeholders it is the middle one: the ends of an alphabet
    /// are often special, such as the token that ends a text.
    Position,
    /// Random integers from 0 on; the arguments are the number of values and the first one.
    RandomBelow,
    /// Random integers of the whole type.
    Random,
    /// Not computed; the results are forgotten.
    Never,
}

impl IteratorRule {
    /// True if the kernel makes new values: they may be NaN where its inputs are placeholders.
    pub(crate) fn combines(self) -> bool {
        use IteratorRule::{Divide, Finite, Least, Map, Mean, Quotient, Reduce};
        matches!(self, Map | Finite | Divide | Quotient | Reduce | Least | Mean)
    }
}

/// Numbers at least this far from 0 mark what has no value in programs: -1e9, infinity, the
/// smallest number of a type.
pub(crate) const EXTREME: f64 = 1e4;

/// The most placeholders that [`IteratorRule::Finite`] and [`IteratorRule::Quotient`] compute:
/// activations of a network are more.
pub(crate) const FEW: u64 = 256;

/// The operand with the elements that an index names, and where the index and its limits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexedOperand {
    /// `index_stub(iterator, sizes, strides)`: result, source, one index for each size.
    Source,
    /// `index_put_stub(iterator, sizes, strides, accumulate)`: result, values, indexes.
    Result,
    /// `take_stub(iterator, source)`: result, index.
    Flat,
    /// `index_fill_stub` and `index_copy_stub(iterator, dim, size, stride)`: result, index.
    ResultAlongDim,
}

use IndexedOperand::{Flat, Result as IndexedResult, ResultAlongDim, Source};
use IteratorRule::{
    All, Any, AtLeast, Compare, Divide, Fill, Finite, Index, Least, Map, Mean, Move, Position, Quotient,
    Random, RandomBelow, Reduce, Select, Update,
};

/// Stubs that take a `TensorIterator` as their first argument. Those without a row are never
/// computed.
pub(crate) const ITERATOR_STUBS: &[(&str, IteratorRule)] = &[
    ("eq_stub", Compare),
    ("ne_stub", Compare),
    ("lt_stub", Compare),
    ("le_stub", Compare),
    ("gt_stub", Compare),
    ("ge_stub", AtLeast),
    ("isposinf_stub", Compare),
    ("isneginf_stub", Compare),
    ("signbit_stub", Compare),
    ("logical_and_stub", Compare),
    ("logical_or_stub", Compare),
    ("logical_xor_stub", Compare),
    ("logical_not_stub", Move),
    ("copy_stub", Move),
    ("fill_stub", Fill),
    ("where_kernel", Select),
    ("flip_stub", Move),
    ("masked_fill_stub", Update),
    ("arange_stub", Move),
    ("linspace_stub", Move),
    ("index_stub", Index(Source)),
    ("take_stub", Index(Flat)),
    ("index_put_stub", Index(IndexedResult)),
    ("index_fill_stub", Index(ResultAlongDim)),
    ("index_copy_stub", Index(ResultAlongDim)),
    ("and_stub", All),
    ("or_stub", Any),
    ("sum_stub", Reduce),
    ("prod_stub", Reduce),
    ("mean_stub", Mean),
    ("std_var_stub", Reduce),
    ("norm_stub", Reduce),
    ("min_values_stub", Least),
    ("max_values_stub", Reduce),
    ("argmax_stub", Position),
    ("argmin_stub", Position),
    ("random_from_to_stub", RandomBelow),
    ("random_stub", Random),
    ("random_full_64_bits_range_stub", Random),
    ("div_floor_stub", Divide),
    ("div_trunc_stub", Divide),
    ("remainder_stub", Divide),
    ("fmod_stub", Divide),
    ("add_stub", Finite),
    ("sub_stub", Finite),
    ("mul_stub", Finite),
    ("div_true_stub", Quotient),
    ("neg_stub", Finite),
    ("abs_stub", Finite),
    ("sign_stub", Map),
    ("sgn_stub", Map),
    ("reciprocal_stub", Map),
    ("maximum_stub", Finite),
    ("minimum_stub", Finite),
    ("fmax_stub", Finite),
    ("fmin_stub", Finite),
    ("clamp_stub", Finite),
    ("clamp_scalar_stub", Finite),
    ("clamp_min_scalar_stub", Finite),
    ("clamp_max_scalar_stub", Finite),
    ("bitwise_and_stub", Map),
    ("bitwise_or_stub", Map),
    ("bitwise_xor_stub", Map),
    ("bitwise_not_stub", Map),
    ("lshift_stub", Map),
    ("rshift_stub", Map),
    ("gcd_stub", Map),
    ("lcm_stub", Map),
    ("floor_stub", Map),
    ("ceil_stub", Map),
    ("round_stub", Map),
    ("round_decimals_stub", Map),
    ("trunc_stub", Map),
    ("frac_stub", Map),
    ("pow_tensor_scalar_stub", Map),
    ("pow_tensor_tensor_stub", Map),
    ("sqrt_stub", Map),
    ("rsqrt_stub", Map),
    ("exp_stub", Map),
    ("exp2_stub", Map),
    ("expm1_stub", Map),
    ("log_stub", Map),
    ("log2_stub", Map),
    ("log10_stub", Map),
    ("log1p_stub", Map),
    ("sin_stub", Map),
    ("cos_stub", Map),
    ("tan_stub", Map),
    ("tanh_stub", Map),
    ("sigmoid_stub", Map),
    ("atan2_stub", Map),
    ("nan_to_num_stub", Map),
    ("addcmul_stub", Map),
    ("addcdiv_stub", Map),
    ("lerp_kernel_scalar_weight", Map),
    ("lerp_kernel_tensor_weight", Map),
    ("threshold_stub", Map),
];

/// A stub that takes tensors.
#[derive(Debug)]
pub(crate) struct TensorStub {
    pub(crate) name: &'static str,
    /// Which arguments are results, and which are inputs.
    pub(crate) results: &'static [usize],
    pub(crate) inputs: &'static [usize],
    /// An index into a dimension of a tensor: the arguments with the index, the dimension's number
    /// and the tensor.
    pub(crate) index: Option<[usize; 3]>,
    /// The CUDA kernel fails without kernels that compute, so it is not called.
    pub(crate) is_alone: bool,
    /// Undecided truth values give true, as with [`IteratorRule::All`].
    pub(crate) is_all: bool,
    /// The second result has positions along the dimension of argument 3. Among placeholders it is
    /// the middle one, as in [`IteratorRule::Position`].
    pub(crate) has_positions: bool,
}

impl TensorStub {
    /// True if the index is into the result, so that elements without an index stay what they are.
    pub(crate) fn is_update(&self) -> bool {
        self.index.is_some_and(|[_, _, tensor]| self.results == [tensor])
    }
}

const fn stub(name: &'static str, results: &'static [usize], inputs: &'static [usize]) -> TensorStub {
    TensorStub { name, results, inputs, index: None, is_alone: false, is_all: false, has_positions: false }
}

const fn update(name: &'static str, inputs: &'static [usize]) -> TensorStub {
    TensorStub { index: Some([2, 1, 0]), ..stub(name, &[0], inputs) }
}

/// Stubs that take tensors.
pub(crate) const TENSOR_STUBS: &[TensorStub] = &[
    // (result, self, dim, index)
    TensorStub { index: Some([3, 2, 1]), ..stub("gather_stub", &[0], &[1, 3]) },
    // (self, dim, index, source or value)
    update("scatter_stub", &[2, 3]),
    update("scatter_add_stub", &[2, 3]),
    update("scatter_fill_stub", &[2]),
    update("scatter_reduce_stub", &[2, 3]),
    update("scatter_reduce_two_stub", &[2, 3]),
    update("scatter_scalar_reduce_stub", &[2]),
    // (result, self, dim)
    stub("cumsum_stub", &[0], &[1]),
    stub("cumprod_stub", &[0], &[1]),
    // (values, positions, self, dim, keeps the dimension)
    TensorStub { has_positions: true, ..stub("max_stub", &[0, 1], &[2]) },
    TensorStub { is_all: true, has_positions: true, ..stub("min_stub", &[0, 1], &[2]) },
    // (result, self), or two results
    stub("max_all_stub", &[0], &[1]),
    TensorStub { is_all: true, ..stub("min_all_stub", &[0], &[1]) },
    stub("aminmax_allreduce_stub", &[1, 2], &[0]),
    // (self, dim, keeps the dimension, smallest, largest)
    stub("aminmax_stub", &[3, 4], &[0]),
    // (values, positions, self, dim, keeps the dimension)
    TensorStub { is_alone: true, ..stub("mode_stub", &[0, 1], &[2]) },
    // (elements, what is looked for, is inverted, result)
    stub("isin_default_stub", &[3], &[0, 1]),
];

/// Stubs that are not computed, and the argument with the tensor that they change.
pub(crate) const FORGETTING_STUBS: &[(&str, usize)] = &[
    ("put_stub", 1),
    ("normal_stub", 0),
    ("bernoulli_tensor_stub", 0),
    ("bernoulli_scalar_stub", 0),
    ("cross_stub", 0),
    ("logcumsumexp_stub", 0),
];
