"""Programs with diffusers, timm, torchvision, torchaudio, PyG, peft, TRL, Lightning, opacus and
accelerate. A program whose library is missing is skipped."""

import contextlib
import io
import tempfile

import torch
from torch import nn


def step(model, loss):
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    loss.backward()
    optimizer.step()
    return sorted(name for name, parameter in model.named_parameters() if parameter.grad is not None)


def small_llama():
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def timm_models(device):
    import timm

    made = []
    for name, more in {
        "resnet18": {}, "mobilenetv3_small_050": {}, "efficientnet_b0": {}, "convnext_atto": {}, "vit_tiny_patch16_224": {"img_size": 32}, "swin_tiny_patch4_window7_224": {"img_size": 56, "window_size": 7},
    }.items():
        model = timm.create_model(name, num_classes=4, **more).to(device)
        out = model(torch.randn(2, 3, more.get("img_size", 32), more.get("img_size", 32), device=device))
        made.append((name, out.shape, len(step(model, nn.functional.cross_entropy(out, torch.tensor([1, 2], device=device))))))
    return made


def timm_training_parts(device):
    import timm.data
    import timm.loss
    import timm.optim
    import timm.utils

    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).to(device)
    images, labels = torch.arange(96.0, device=device).view(2, 3, 4, 4), torch.tensor([1, 3], device=device)
    mixed, soft = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=4)(images, labels)
    optimizer = timm.optim.create_optimizer_v2(model, "lamb", lr=1e-3)
    out = model(timm.data.random_erasing.RandomErasing(probability=1.0, mode="pixel", device=device)(mixed))
    timm.loss.SoftTargetCrossEntropy()(out, soft).backward()
    optimizer.step()
    average = timm.utils.ModelEmaV3(model)
    average.update(model)
    timm.utils.accuracy(out, labels, topk=(1, 2))
    return model, soft.sum(-1).round().long()


def detection(device, make):
    torchvision = __import__("torchvision.models.detection")
    model = make(torchvision.models.detection).to(device)
    images = [torch.rand(3, 64, 64, device=device), torch.rand(3, 48, 64, device=device)]
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8, device=device)
    targets = [{"boxes": torch.tensor([[5.0, 5.0, 40.0, 40.0]], device=device), "labels": torch.tensor([1], device=device), "masks": mask} for mask in (masks, masks[:, :48])]
    losses = model(images, targets)
    step(model, sum(losses.values()))
    found = model.eval()(images)
    return sorted(losses), [sorted(one) for one in found]


SMALL_DETECTOR = {"weights": None, "weights_backbone": None, "num_classes": 3, "min_size": 64, "max_size": 64}


def faster_rcnn(device):
    return detection(device, lambda models: models.fasterrcnn_mobilenet_v3_large_320_fpn(**SMALL_DETECTOR))


def mask_rcnn(device):
    return detection(device, lambda models: models.maskrcnn_resnet50_fpn(**SMALL_DETECTOR))


def retina_net(device):
    return detection(device, lambda models: models.retinanet_resnet50_fpn(**SMALL_DETECTOR))


def fcos(device):
    return detection(device, lambda models: models.fcos_resnet50_fpn(**SMALL_DETECTOR))


def single_shot_detector(device):
    return detection(device, lambda models: models.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3))


def operators_for_boxes(device):
    from torchvision import ops

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]], device=device)
    scores = torch.tensor([0.9, 0.8, 0.7], device=device)
    kept = ops.nms(boxes, scores, 0.5)
    features = torch.randn(1, 4, 8, 8, device=device)
    return kept.numel() <= 3, ops.box_iou(boxes, boxes), ops.roi_align(features, [boxes], 2), ops.box_area(boxes).long(), ops.masks_to_boxes(torch.ones(1, 4, 4, device=device)).long()


def segmentation(device):
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).to(device)
    out = model(torch.randn(2, 3, 32, 32, device=device))["out"]
    return out.shape, len(step(model, nn.functional.cross_entropy(out, torch.zeros(2, 32, 32, dtype=torch.long, device=device))))


def optical_flow(device):
    import torchvision

    model = torchvision.models.optical_flow.raft_small(weights=None).to(device)
    out = model(torch.randn(1, 3, 128, 128, device=device), torch.randn(1, 3, 128, 128, device=device), num_flow_updates=2)
    return len(out), out[-1].shape


def augmentations(device):
    from torchvision.transforms import v2

    image = torch.arange(3 * 8 * 8, device=device).view(3, 8, 8).to(torch.uint8)
    changed = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.RandomResizedCrop(8, antialias=True), v2.ColorJitter(0.1, 0.1, 0.1, 0.1), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])(image)
    return v2.functional.horizontal_flip(image), changed, v2.MixUp(num_classes=4)(image[None].float().repeat(2, 1, 1, 1), torch.tensor([1, 2], device=device))[1]


def conformer(device):
    from torchaudio.models import Conformer

    model = Conformer(input_dim=16, num_heads=2, ffn_dim=32, num_layers=1, depthwise_conv_kernel_size=3).to(device)
    lengths = torch.tensor([12, 9], device=device)
    out, lengths = model(torch.randn(2, int(lengths.max()), 16, device=device), lengths)
    return lengths, out.shape, step(model, out.square().mean())


def emformer(device):
    from torchaudio.models import Emformer

    model = Emformer(input_dim=16, num_heads=2, ffn_dim=32, num_layers=1, segment_length=4, right_context_length=1).to(device)
    out, lengths = model(torch.randn(2, 9, 16, device=device), torch.tensor([8, 5], device=device))
    return out.shape, lengths


def transducer(device):
    from torchaudio.models import wav2vec2_model

    model = wav2vec2_model("layer_norm", [(16, 10, 5), (16, 3, 2)], True, 32, 0.0, 8, 2, 1, 2, 0.0, 64, 0.0, 0.0, True, 0.0, 10).to(device)
    out, lengths = model(torch.randn(2, 400, device=device), torch.tensor([400, 300], device=device))
    return out.shape, lengths


def spectrograms(device):
    import torchaudio

    wave = torch.randn(2, 1600, device=device)
    mel = torchaudio.transforms.MelSpectrogram(n_fft=256, n_mels=16).to(device)(wave)
    masked = torchaudio.transforms.TimeMasking(4)(torchaudio.transforms.FrequencyMasking(4)(mel))
    return mel, masked, torchaudio.transforms.AmplitudeToDB().to(device)(mel), torchaudio.transforms.Resample(16000, 8000).to(device)(wave), torchaudio.transforms.MFCC(melkwargs={"n_mels": 16, "n_fft": 256}, n_mfcc=8).to(device)(wave)


def graph_convolutions(device):
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool

    edges = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 4]], device=device)
    x, batch, made = torch.randn(5, 8, device=device), torch.tensor([0, 0, 0, 1, 1], device=device), []
    for layer in (GCNConv(8, 8), GATConv(8, 8), SAGEConv(8, 8), GINConv(nn.Linear(8, 8))):
        layer = layer.to(device)
        out = global_mean_pool(layer(x, edges), batch)
        made.append((out.shape, step(layer, out.sum())))
    return made


def graph_batches(device):
    from torch_geometric.data import Batch, Data
    from torch_geometric.utils import add_self_loops, coalesce, degree, remove_self_loops, softmax, subgraph, to_dense_adj, to_undirected

    graphs = [Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])), Data(x=torch.ones(2, 2), edge_index=torch.tensor([[0], [1]]))]
    batch = Batch.from_data_list(graphs).to(device)
    edges = to_undirected(batch.edge_index)
    return (
        batch.batch, edges, degree(edges[0], 5).long(), remove_self_loops(add_self_loops(edges)[0])[0], to_dense_adj(edges, batch.batch).shape,
        coalesce(torch.tensor([[1, 0, 1], [0, 1, 0]], device=device)), subgraph(torch.tensor([0, 1], device=device), edges)[0], softmax(torch.randn(edges.shape[1], device=device), edges[1]),
    )


def graph_pooling(device):
    from torch_geometric.nn import TopKPooling, knn_graph  # noqa: F401

    edges = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 4]], device=device)
    pool = TopKPooling(8, ratio=0.5).to(device)
    x, _, _, batch, *_ = pool(torch.randn(5, 8, device=device), edges, batch=torch.tensor([0, 0, 0, 1, 1], device=device))
    return x.shape, batch.bincount()


def denoising(device):
    import diffusers

    model = diffusers.UNet2DModel(sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4).to(device)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=50)
    image, times = torch.randn(2, 3, 8, 8, device=device), torch.tensor([3, 40], device=device)
    noisy = scheduler.add_noise(image, torch.randn_like(image), times)
    made = step(model, model(noisy, times).sample.square().mean())
    return noisy, len(made), scheduler.get_velocity(image, image, times)


def schedulers(device):
    import diffusers

    made = []
    for kind in (
        diffusers.DDIMScheduler, diffusers.DDPMScheduler, diffusers.EulerDiscreteScheduler, diffusers.EulerAncestralDiscreteScheduler, diffusers.DPMSolverMultistepScheduler, diffusers.UniPCMultistepScheduler,
        diffusers.PNDMScheduler, diffusers.LMSDiscreteScheduler, diffusers.HeunDiscreteScheduler, diffusers.FlowMatchEulerDiscreteScheduler, diffusers.LCMScheduler,
    ):
        scheduler = kind()
        scheduler.set_timesteps(4, device=device)
        image, steps = torch.randn(1, 3, 8, 8, device=device), 0
        for time in scheduler.timesteps:
            model_input = scheduler.scale_model_input(image, time) if hasattr(scheduler, "scale_model_input") else image
            image, steps = scheduler.step(torch.zeros_like(model_input), time, image).prev_sample, steps + 1
        made.append((kind.__name__, steps, image.shape, scheduler.timesteps.long()))
    return made


def pipeline(device):
    import diffusers

    unet = diffusers.UNet2DModel(sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"))
    pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler()).to(device)
    pipe.set_progress_bar_config(disable=True)
    return pipe(batch_size=2, num_inference_steps=3, output_type="np").images.shape


def latent_diffusion(device):
    import diffusers
    import transformers

    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, eos_token_id=2)).to(device)
    auto = diffusers.AutoencoderKL(block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4).to(device)
    unet = diffusers.UNet2DConditionModel(sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=32, attention_head_dim=4, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")).to(device)
    latents = auto.encode(torch.randn(1, 3, 16, 16, device=device)).latent_dist.sample() * 0.18
    out = unet(latents, torch.tensor([7], device=device), encoder_hidden_states=text(torch.tensor([[1, 5, 6, 2]], device=device)).last_hidden_state).sample
    return latents.shape, len(step(unet, out.square().mean())), auto.decode(latents).sample.shape


def diffusion_transformer(device):
    import diffusers

    model = diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8]).to(device)
    out = model(
        hidden_states=torch.randn(1, 16, 4, device=device), encoder_hidden_states=torch.randn(1, 6, 32, device=device), pooled_projections=torch.randn(1, 32, device=device),
        timestep=torch.tensor([0.5], device=device), img_ids=torch.zeros(16, 3, device=device), txt_ids=torch.zeros(6, 3, device=device),
    ).sample
    return out.shape, len(step(model, out.square().mean()))


def lora(device):
    import peft

    model = peft.get_peft_model(small_llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, use_dora=True)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    made = step(model, model(input_ids=tokens, labels=tokens).loss)
    out = model.generate(input_ids=tokens, max_new_tokens=4, min_new_tokens=4)
    return made, out.shape, sorted(model.merge_and_unload().state_dict())[:3]


def more_adapters(device):
    import peft

    made = []
    for config in (
        peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), peft.AdaLoraConfig(target_modules=["q_proj"], total_step=10, tinit=1, tfinal=1),
        peft.OFTConfig(target_modules=["q_proj"], oft_block_size=8), peft.LoHaConfig(r=2, target_modules=["q_proj"]), peft.VeraConfig(r=4, target_modules=["q_proj"]), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa"),
    ):
        model = peft.get_peft_model(small_llama(), config).to(device)
        tokens = torch.arange(3, 27, device=device).view(2, 12)
        made.append((type(config).__name__, len(step(model, model(input_ids=tokens, labels=tokens).loss))))
    return made


def rows_of(columns, count=8):
    from datasets import Dataset

    return Dataset.from_list([columns(number) for number in range(count)])


def small_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>"] + [f"w{number}" for number in range(95)]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def trained(device, folder, kind, settings, **more):
    """Runs a trainer for two steps; returns the number of its steps and of its logs."""
    options = {"output_dir": folder, "max_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "use_cpu": device == "cpu", "bf16": False}
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = kind(args=settings(**options | more.pop("options", {})), **more)
        trainer.train()
    return trainer.state.global_step, len(trainer.state.log_history), trainer.model.state_dict().keys().__len__()


def plain_trainer(device):
    import transformers

    rows = [{"input_ids": torch.arange(12), "labels": torch.arange(12)} for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        return trained(device, folder, transformers.Trainer, transformers.TrainingArguments, model=small_llama(), train_dataset=rows, eval_dataset=rows, options={"eval_strategy": "steps", "eval_steps": 1, "gradient_checkpointing": True})


def supervised_tuning(device):
    import trl

    rows = rows_of(lambda number: {"text": f"w{number} w5 w6 " * (number + 1)})
    with tempfile.TemporaryDirectory() as folder:
        return trained(device, folder, trl.SFTTrainer, trl.SFTConfig, model=small_llama(), train_dataset=rows, processing_class=small_tokenizer(), options={"max_length": 16, "packing": False})


def direct_preferences(device):
    import trl

    rows = rows_of(lambda number: {"prompt": f"w{number} w5", "chosen": " w6 w7 w8", "rejected": " w9"})
    with tempfile.TemporaryDirectory() as folder:
        return trained(device, folder, trl.DPOTrainer, trl.DPOConfig, model=small_llama(), ref_model=small_llama(), train_dataset=rows, processing_class=small_tokenizer())


def group_relative_policy(device):
    import trl

    rows = rows_of(lambda number: {"prompt": f"w{number} w5"})
    with tempfile.TemporaryDirectory() as folder:
        return trained(device, folder, trl.GRPOTrainer, trl.GRPOConfig, model=small_llama(), reward_funcs=lambda completions, **more: [float(len(text)) for text in completions], train_dataset=rows, processing_class=small_tokenizer(), options={"num_generations": 2, "max_completion_length": 6, "generation_batch_size": 4})


def reward_models(device):
    import transformers
    import trl

    model = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_labels=1, pad_token_id=0))
    rows = rows_of(lambda number: {"prompt": f"w{number} w5", "chosen": " w6 w7 w8", "rejected": " w9"})
    with tempfile.TemporaryDirectory() as folder:
        return trained(device, folder, trl.RewardTrainer, trl.RewardConfig, model=model, train_dataset=rows, processing_class=small_tokenizer())


def lightning_trainer(device):
    import lightning
    import torchmetrics

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.accuracy = nn.Linear(16, 4), torchmetrics.classification.MulticlassAccuracy(4)

        def training_step(self, batch, number):
            x, labels = batch
            out = self.net(x)
            self.log("accuracy", self.accuracy(out, labels))
            return nn.functional.cross_entropy(out, labels)

        def validation_step(self, batch, number):
            self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 16), torch.arange(16) % 4), batch_size=4)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = lightning.Trainer(accelerator="gpu" if device == "cuda" else "cpu", devices=1, max_epochs=2, logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=folder, callbacks=[lightning.pytorch.callbacks.EarlyStopping("loss", patience=5)])
        trainer.fit(Model(), data, data)
    return trainer.global_step


def metrics(device):
    from torchmetrics import classification, regression

    predicted, labels = torch.tensor([0, 1, 2, 2], device=device), torch.tensor([0, 1, 1, 2], device=device)
    confusion = classification.MulticlassConfusionMatrix(3).to(device)(predicted, labels)
    return confusion, classification.MulticlassF1Score(3).to(device)(predicted, labels), (classification.MulticlassAccuracy(3, average="micro").to(device)(predicted, labels) * 100).long(), regression.MeanSquaredError().to(device)(predicted.float(), labels.float()), classification.BinaryAUROC().to(device)(torch.tensor([0.1, 0.8, 0.4], device=device), torch.tensor([0, 1, 1], device=device))


def private_training(device):
    import opacus

    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device), torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine = opacus.PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, data_loader=torch.utils.data.DataLoader(data, batch_size=4), noise_multiplier=1.0, max_grad_norm=1.0)
    for x, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), labels.to(device)).backward()
        optimizer.step()
    return sorted(model.state_dict()), len(loader)


def accelerated_loop(device):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4), batch_size=4)
    model = nn.Linear(8, 4)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    gathered = []
    for x, labels in data:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), labels))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        gathered.append(accelerator.gather_for_metrics(labels))
    accelerator.free_memory()
    return torch.cat(gathered)


def dispatched_model(device):
    import accelerate

    with accelerate.init_empty_weights():
        empty = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    full = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    model = accelerate.cpu_offload(full, 0 if device == "cuda" else "cpu")
    return sum(parameter.numel() for parameter in empty.parameters()), model(torch.ones(2, 8, device=device)).detach()
