"""A training with Hugging Face's Trainer. The last line is JSON: the trainer's numbers, those of
our own callback, and the report.
"""

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from torch import nn  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

import gpumemtrace  # noqa: E402
import gpumemtrace.huggingface  # noqa: E402

seen = {"evaluations": 0, "predictions": 0, "peaks": []}


class Witness(TrainerCallback):
    """Runs after the tested callback."""

    def on_step_end(self, args, state, control, **named):
        if control.should_evaluate:
            torch.cuda.reset_peak_memory_stats()

    def on_evaluate(self, args, state, control, **named):
        seen["evaluations"] += 1
        seen["peaks"].append(torch.cuda.max_memory_allocated())

    def on_predict(self, args, state, control, metrics, **named):
        seen["predictions"] += 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


def rows(count):
    return [{"x": torch.randn(64), "labels": torch.zeros(1)} for _ in range(count)]


arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, per_device_eval_batch_size=8, gradient_accumulation_steps=2, max_steps=6,
    eval_strategy="steps", eval_steps=2, save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    dataloader_pin_memory=False,
)
trainer = Trainer(Model(), arguments, train_dataset=rows(64), eval_dataset=rows(64),
                  callbacks=[gpumemtrace.huggingface.MemoryTrace(), Witness()])
trainer.train()
trainer.evaluate()
trainer.predict(rows(8))
print()
print(json.dumps({"seen": seen, "global_step": trainer.state.global_step, "report": gpumemtrace.report()}))
