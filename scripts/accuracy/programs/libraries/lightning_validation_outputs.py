"""A LightningModule collects validation outputs on `self` and never clears them.

kind: leak
steps: 48
every: 12
needs: lightning
limit: four leak events are too few: it is a possible leak
"""

import logging
import warnings

import lightning
import probe
import torch
from torch import nn
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1000))
        self.validation_outputs = []

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch), torch.zeros(len(batch), dtype=torch.long, device=self.device))

    def validation_step(self, batch, index):
        self.validation_outputs.append(self.net(batch))  # leak

    def on_train_batch_end(self, outputs, batch, index):
        probe.step_end()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def main(steps):
    training, validation = torch.randn(steps * 16, 64), torch.randn(64, 64)
    trainer = lightning.Trainer(accelerator="gpu", devices=1, max_steps=steps, val_check_interval=12, check_val_every_n_epoch=None,
                                logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(), DataLoader(training, batch_size=16), DataLoader(validation, batch_size=16))


main(probe.steps(48))
