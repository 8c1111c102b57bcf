"""Runs a program with stand-ins for what it would download, or for another platform.

usage: python stand_ins.py NAME[,NAME]... PROGRAM [ARGUMENT]...

Each stand-in has the shapes of what it replaces, so no size on the GPU depends on it.
scripts/checks/real_numbers uses it for programs that need a tokenizer, images, or weights.
"""

import runpy
import sys
import types


def tiktoken():
    """GPT-2's tokenizer, with a token for every four characters."""

    class Encoding:
        eot_token = 50256

        def encode(self, text, **_):
            return [sum(map(ord, text[start:start + 4])) % 50257 for start in range(0, len(text), 4)]

        def decode(self, tokens):
            return " ".join(map(str, tokens))

    module = types.ModuleType("tiktoken")
    module.get_encoding = lambda name: Encoding()
    sys.modules["tiktoken"] = module


def weights():
    """Random weights instead of those of torchvision and timm."""
    import torch

    nothing = {"weights": "random"}
    load = torch.nn.Module.load_state_dict
    torch.nn.Module.load_state_dict = lambda self, state, *rest, **named: None if state is nothing else load(self, state, *rest, **named)
    from torchvision.models import WeightsEnum

    WeightsEnum.get_state_dict = lambda self, *_, **__: nothing
    try:
        import timm
    except ImportError:
        return
    create = timm.create_model
    timm.create_model = lambda name, pretrained=False, **named: create(name, **named)


def cifar10():
    """CIFAR-10 with one image, as often as the data set has images."""
    from PIL import Image
    from torch.utils.data import Dataset
    from torchvision import datasets

    class Images(Dataset):
        def __init__(self, root, train=True, transform=None, download=False):
            self.length = 50000 if train else 10000
            self.image = transform(Image.new("RGB", (32, 32)))

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            return self.image, index % 10

    datasets.CIFAR10 = Images


def resisc45():
    """RESISC45 with few images, and nowhere to log to."""
    from PIL import Image
    from torch.utils.data import Dataset

    class Images(Dataset):
        def __len__(self):
            return 320

        def select_columns(self, names):
            return self

        def set_transform(self, transform):
            self.transform = transform

        def __getitem__(self, index):
            if index >= len(self):
                raise IndexError(index)
            return self.transform({"image": Image.new("RGB", (256, 256)), "label": index % 45})

    data = types.ModuleType("datasets")
    data.load_dataset = lambda name, split: Images()
    log = types.ModuleType("wandb")
    log.init = lambda **_: types.SimpleNamespace(log=lambda *_, **__: None)
    sys.modules |= {"datasets": data, "wandb": log}


def windows():
    """PyTorch's wheels for Windows, which lack flash attention."""
    import torch

    enable = torch.backends.cuda.enable_flash_sdp
    enable(False)
    torch.backends.cuda.enable_flash_sdp = lambda enabled: enable(False)


def do_bench():
    """Triton's timing with two calls instead of thousands; kernels take no time here."""
    import torch
    import triton.testing

    def time_twice(function, *_, grad_to_none=None, quantiles=None, **__):
        for _ in range(2):
            for tensor in grad_to_none or []:
                tensor.grad = None
            function()
        torch.cuda.synchronize()
        return [1.0] * len(quantiles) if quantiles else 1.0

    triton.testing.do_bench = time_twice


if __name__ == "__main__":
    names, program = sys.argv[1], sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = program.rpartition("/")[0] or "."
    for name in names.split(","):
        globals()[name]()
    runpy.run_path(program, run_name="__main__")
