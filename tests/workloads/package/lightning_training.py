"""A training with PyTorch Lightning. The last line is JSON: our own callback's numbers, and the
report.

usage: lightning_training.py PACKAGE       lightning.pytorch or pytorch_lightning
"""

import importlib
import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpumemtrace
import gpumemtrace.lightning

lightning = importlib.import_module(sys.argv[1])
seen = {"batches": 0, "phases": {}}


def begin(name):
    torch.cuda.reset_peak_memory_stats()
    seen["open"] = (name, torch.cuda.memory_allocated())


def end():
    name, before = seen.pop("open")
    of_phase = seen["phases"].setdefault(name, {"count": 0, "peak_live_bytes": 0, "net_bytes": 0})
    of_phase["count"] += 1
    of_phase["peak_live_bytes"] = max(of_phase["peak_live_bytes"], torch.cuda.max_memory_allocated())
    of_phase["net_bytes"] += torch.cuda.memory_allocated() - before


class Witness(lightning.Callback):
    """Measures with PyTorch. It runs after the tested callback, so both see the same bytes."""

    def on_train_start(self, trainer, module):
        begin("train")

    def on_train_batch_start(self, trainer, module, batch, index):
        seen["batches"] += 1

    def on_validation_start(self, trainer, module):
        if trainer.sanity_checking:
            begin("sanity check")
        else:
            if "open" in seen:
                end()
            begin("validation")

    def on_validation_end(self, trainer, module):
        end()
        if trainer.state.fn.value == "fit" and not trainer.sanity_checking:
            begin("train")

    def on_train_end(self, trainer, module):
        end()

    def on_test_start(self, trainer, module):
        begin("test")

    def on_test_end(self, trainer, module):
        end()

    def on_predict_start(self, trainer, module):
        begin("predict")

    def on_predict_end(self, trainer, module):
        end()

    def on_exception(self, trainer, module, exception):
        end()


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        self.fails = False

    def training_step(self, batch, index):
        if self.fails and index == 2:
            raise ValueError("as asked")
        return self.layers(batch[0]).mean()

    def validation_step(self, batch, index):
        self.layers(batch[0].repeat(20, 1))

    test_step = validation_step

    def predict_step(self, batch, index):
        return self.layers(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(items):
    return DataLoader(TensorDataset(torch.randn(items, 64)), batch_size=8)


def trainer(epochs):
    return lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=epochs, callbacks=[gpumemtrace.lightning.MemoryTrace(), Witness()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )


torch.zeros(1, device="cuda")
model = Model()
whole = trainer(epochs=2)
whole.fit(model, loader(48), loader(16))
whole.validate(model, loader(16), verbose=False)
whole.test(model, loader(16), verbose=False)
whole.predict(model, loader(16))
broken = trainer(epochs=1)
model.fails = True
try:
    broken.fit(model, loader(48))
except ValueError:
    seen["failed"] = True
with gpumemtrace.phase("after"):
    pass
print()
print(json.dumps({"seen": seen, "global_steps": [whole.global_step, broken.global_step], "report": gpumemtrace.report()}))
