"""Runs PyTorch's operators on the GPU and on the CPU, and compares what the simulated GPU computed.

usage: operators.py TYPE

The operators and their inputs are those of PyTorch's own tests, also in the form that changes its
input, and with a result of zeros that the program passes. Prints a line for each result that
the simulated driver says is known and that differs from the CPU's, each error that only the GPU
gives, and at the end the numbers of equal results and of placeholders.
"""

import collections
import ctypes
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from torch.testing._internal.common_methods_invocations import op_db

#: Results that differ by design: random numbers, uninitialized memory, and reads of the host.
RANDOM = (
    "bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional", "geometric", "item", "multinomial", "normal",
    "rand", "resize", "rrelu", "uniform",
)
#: Operators with errors or results of their own on a GPU. `mvlgamma_` of integers ends PyTorch 2.9.
ELSEWHERE = ("histogram", "mvlgamma", "native_batch_norm", "pca_lowrank", "tensor_split")
#: Long on the CPU, and never computed here.
LONG = ("attention", "cholesky", "conv", "det", "eig", "fft", "grid", "inverse", "jiterator", "linalg", "lu", "qr", "sparse", "stft", "svd", "triangular")
#: The driver does not know that these write a result that the program passed.
FULL_RESULTS = ("_chunk_cat", "avg_pool", "complex", "hash_tensor", "logcumsumexp", "logsigmoid", "lu_solve", "ormqr", "polar")
#: The CPU computes in half precision where a GPU computes in float, in some releases.
HALF_ON_CPU = ("fmod", "remainder", "gaussian_nll_loss", "nn.functional.gaussian_nll_loss")
SAMPLES = 8

kind = getattr(torch, sys.argv[1])
torch.cuda.init()
driver = ctypes.CDLL("libcuda.so.1")


def is_known(tensor):
    reach = sum((length - 1) * abs(stride) for length, stride in zip(tensor.shape, tensor.stride()))
    known = ctypes.c_uint32()
    size = ctypes.c_uint64((reach + 1) * tensor.element_size())
    assert driver.simgpuAreKnown(ctypes.c_uint64(tensor.data_ptr()), size, ctypes.byref(known)) == 0
    return bool(known.value)


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device)
    if type(value) in (list, tuple):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    return torch.device(device) if value == "cpu" or isinstance(value, torch.device) else value


def tensors_of(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in tensors_of(part)] if isinstance(result, (list, tuple)) else []


def are_equal(wanted, got):
    if kind.is_floating_point or wanted.is_floating_point():
        return torch.allclose(wanted, got, rtol=1e-4, atol=1e-5, equal_nan=True)
    return torch.equal(wanted, got)


def compare(name, form, more, arguments):
    (first, args, named), (gpu_first, gpu_args, gpu_named) = moved(arguments, "cpu"), moved(arguments, "cuda")
    try:
        wanted = tensors_of(form(first, *args, **named))
    except Exception:
        counts["errors on the CPU"] += 1
        return
    try:
        got = tensors_of(form(gpu_first, *gpu_args, **gpu_named, **moved(more(wanted), "cuda")))
    except Exception as error:
        print("ERROR", name, str(error)[:200].replace("\n", " "))
        return
    for ours, theirs in zip(wanted, got):
        if not theirs.is_cuda or ours.layout != torch.strided or theirs.numel() == 0:
            continue
        if not is_known(theirs):
            counts["placeholders"] += 1
        elif ours.shape == theirs.shape and are_equal(ours.cpu(), theirs.cpu()):
            counts["equal"] += 1
        else:
            print("DIFFERENT", name, str(arguments[1:])[:200].replace("\n", " "))


def forms(operator, name):
    """The functions of an operator, each with the named arguments that it takes in addition."""
    yield operator.op, lambda wanted: {}
    if operator.inplace_variant:
        yield operator.inplace_variant, lambda wanted: {}
    if operator.supports_out and name not in ("narrow_copy.", "nonzero.") and not any(part in name for part in FULL_RESULTS):
        yield operator.op, lambda wanted: {"out": torch.zeros_like(wanted[0])} if len(wanted) == 1 else {}


counts = collections.Counter()
for operator in op_db:
    name = f"{operator.name}.{operator.variant_test_name}"
    if kind in (torch.bfloat16, torch.float16) and operator.name in HALF_ON_CPU:
        continue
    if kind not in operator.dtypes or kind not in operator.dtypesIfCUDA or any(part in name for part in RANDOM + ELSEWHERE + LONG):
        continue
    for sample in list(operator.sample_inputs("cpu", kind, requires_grad=False))[:SAMPLES]:
        for form, more in forms(operator, name):
            # Otherwise the order of equal elements is free.
            stable = {"stable": True} if operator.name in ("sort", "argsort") and not sample.args else {}
            compare(name, form, more, (sample.input, sample.args, sample.kwargs | stable))
print(*(f"{what}={count}" for what, count in sorted(counts.items())), sep="\n")
