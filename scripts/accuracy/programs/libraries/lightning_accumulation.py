"""A Lightning training with gradient accumulation, clipping and validation: nothing is kept.

kind: healthy
steps: 64
needs: lightning
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


class Regressor(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.SELU(), nn.Linear(256, 32))

    def training_step(self, batch, index):
        loss = (self.net(batch) - batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.net(batch).abs().mean())

    def on_train_batch_end(self, outputs, batch, index):
        probe.step_end()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


steps = probe.steps(64)
trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=4, accumulate_grad_batches=4, gradient_clip_val=1.0, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Regressor(), DataLoader(torch.randn(steps * 2, 32), batch_size=8), DataLoader(torch.randn(24, 32), batch_size=8))
