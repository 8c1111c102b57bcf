"""A training step of models of transformers with small random weights, one for each way they act
on their inputs."""

import torch
import transformers
from transformers import AutoModelForCausalLM

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
EXPERTS = SMALL | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1, "output_router_logits": True}


def trained(model, **inputs):
    """A step of training; returns the shapes of the outputs, and which parameters got gradients."""
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = model.train()(**inputs)
    loss = outputs.loss if outputs.get("loss") is not None else outputs[0].float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    shapes = {name: tuple(value.shape) for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    gradients = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    # An expert without tokens has no gradient, and which one that is depends on values.
    return shapes, sorted(name for name in gradients if ".experts." not in name)


def language_model(device, kind, settings=SMALL, **more):
    config = transformers.AutoConfig.for_model(kind, **settings | more)
    model = AutoModelForCausalLM.from_config(config).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    padding = torch.ones_like(tokens)
    padding[1, :4] = 0
    return trained(model, input_ids=tokens, attention_mask=padding, labels=tokens.masked_fill(padding == 0, -100))


def gpt2(device):
    return language_model(device, "gpt2")


def llama(device):
    return language_model(device, "llama")


def mistral_with_sliding_windows(device):
    return language_model(device, "mistral", sliding_window=4)


def gemma3(device):
    return language_model(device, "gemma3_text", sliding_window=4)


def phi3(device):
    return language_model(device, "phi3")


def bloom_with_alibi(device):
    return language_model(device, "bloom", n_head=4, n_layer=2)


def falcon(device):
    return language_model(device, "falcon", {name: value for name, value in SMALL.items() if name != "head_dim"}, alibi=True)


def opt(device):
    return language_model(device, "opt", ffn_dim=64, word_embed_proj_dim=32)


def mixtral(device):
    return language_model(device, "mixtral", EXPERTS)


def qwen2_with_shared_experts(device):
    return language_model(device, "qwen2_moe", EXPERTS)


def qwen3_experts(device):
    return language_model(device, "qwen3_moe", EXPERTS)


def olmoe(device):
    return language_model(device, "olmoe", EXPERTS)


def gpt_oss(device):
    return language_model(device, "gpt_oss", EXPERTS, sliding_window=4)


def deepseek_v3(device):
    return language_model(
        device, "deepseek_v3", SMALL | {"num_key_value_heads": 4}, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16,
        first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    )


def mamba(device):
    return language_model(device, "mamba", state_size=4)


def mamba2(device):
    return language_model(device, "mamba2", state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=8)


def jamba(device):
    return language_model(device, "jamba", EXPERTS, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False)


def recurrent_gemma(device):
    return language_model(device, "recurrent_gemma", lru_width=32, attention_window_size=8, block_types=["recurrent", "attention"])


def bert(device):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    return trained(model, input_ids=tokens, labels=tokens.masked_fill(tokens % 5 != 0, -100))


def deberta_with_relative_positions(device):
    model = transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8)).to(device)
    return trained(model, input_ids=torch.arange(3, 27, device=device).view(2, 12), labels=torch.tensor([0, 1], device=device))


def longformer_with_global_tokens(device):
    model = transformers.LongformerForQuestionAnswering(transformers.LongformerConfig(**SMALL, attention_window=4, sep_token_id=2)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    tokens[:, [3, 4, 11]] = 2
    where = torch.tensor([1, 5], device=device)
    return trained(model, input_ids=tokens, start_positions=where, end_positions=where + 2)


def big_bird_with_blocks(device):
    model = transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**SMALL | {"max_position_embeddings": 256}, block_size=4, num_random_blocks=1)).to(device)
    tokens = torch.arange(2 * 64, device=device).view(2, 64) % 90 + 3
    return trained(model, input_ids=tokens, labels=tokens)


def modern_bert(device):
    model = transformers.ModernBertForTokenClassification(transformers.ModernBertConfig(**SMALL, cls_token_id=1, sep_token_id=2, local_attention=4)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    return trained(model, input_ids=tokens, attention_mask=(tokens < 24).long(), labels=tokens % 2)


def sequence_to_sequence(device, model):
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    return trained(model.to(device), input_ids=tokens, attention_mask=(tokens < 24).long(), labels=tokens[:, :7].masked_fill(tokens[:, :7] > 18, -100))


def t5(device):
    return sequence_to_sequence(device, transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)))


def bart(device):
    return sequence_to_sequence(device, transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64)))


def switch_transformer(device):
    return sequence_to_sequence(device, transformers.SwitchTransformersForConditionalGeneration(transformers.SwitchTransformersConfig(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_heads=4, num_experts=4, decoder_start_token_id=0)))


def whisper(device):
    config = transformers.WhisperConfig(vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20, num_mel_bins=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, apply_spec_augment=True, mask_time_prob=0.2, mask_time_min_masks=1)
    return trained(transformers.WhisperForConditionalGeneration(config).to(device), input_features=torch.randn(2, 8, 40, device=device), labels=torch.tensor([[5, 6, 2], [7, 2, -100]], device=device))


def wav2vec2(device):
    config = transformers.Wav2Vec2Config(vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.1, mask_time_length=2, mask_time_min_masks=1)
    model = transformers.Wav2Vec2ForCTC(config).to(device)
    lengths = torch.tensor([400, 300], device=device)
    return trained(model, input_values=torch.randn(2, 400, device=device), attention_mask=(torch.arange(400, device=device)[None] < lengths[:, None]).long(), labels=torch.tensor([[3, 4, 5], [6, 7, -100]], device=device))


def wav2vec2_pretraining(device):
    config = transformers.Wav2Vec2Config(vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, codevector_dim=16, proj_codevector_dim=16, num_codevectors_per_group=8, num_negatives=3)
    model = transformers.Wav2Vec2ForPreTraining(config).to(device)
    mask = torch.zeros(2, 39, dtype=torch.bool, device=device)
    mask[:, 5:9] = True
    negatives = torch.zeros(2, 39, 3, dtype=torch.long, device=device)
    return trained(model, input_values=torch.randn(2, 400, device=device), mask_time_indices=mask, sampled_negative_indices=negatives)


def vit(device):
    model = transformers.ViTForImageClassification(transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4)).to(device)
    return trained(model, pixel_values=torch.randn(2, 3, 16, 16, device=device), labels=torch.tensor([0, 1], device=device))


def masked_autoencoder(device):
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4, decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=4, decoder_intermediate_size=64)).to(device)
    return trained(model, pixel_values=torch.randn(2, 3, 16, 16, device=device))


def swin(device):
    model = transformers.SwinForImageClassification(transformers.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)).to(device)
    return trained(model, pixel_values=torch.randn(2, 3, 32, 32, device=device), labels=torch.tensor([0, 1], device=device))


def boxes(device, label=1):
    return [
        {"class_labels": torch.tensor([label, 2], device=device), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.3, 0.1, 0.1]], device=device)},
        {"class_labels": torch.tensor([0], device=device), "boxes": torch.tensor([[0.4, 0.4, 0.3, 0.3]], device=device)},
    ]


SMALL_DETECTOR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 10, "num_labels": 4}


def small_backbone(stages):
    return transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=stages)


def detr(device):
    config = transformers.DetrConfig(**SMALL_DETECTOR, use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=small_backbone(["stage4"]), auxiliary_loss=True)
    return trained(transformers.DetrForObjectDetection(config).to(device), pixel_values=torch.randn(2, 3, 64, 64, device=device), labels=boxes(device))


def deformable_detr(device):
    config = transformers.DeformableDetrConfig(**SMALL_DETECTOR, use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=small_backbone(["stage2", "stage3", "stage4"]), num_feature_levels=4, two_stage=True, with_box_refine=True, two_stage_num_proposals=10)
    return trained(transformers.DeformableDetrForObjectDetection(config).to(device), pixel_values=torch.randn(2, 3, 64, 64, device=device), labels=boxes(device))


def rt_detr(device):
    config = transformers.RTDetrConfig(d_model=32, encoder_hidden_dim=32, encoder_in_channels=[16, 16, 16], decoder_in_channels=[32, 32, 32], num_queries=10, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4, num_denoising=4, num_labels=4, feat_strides=[8, 16, 32], anchor_image_size=None, backbone_config=transformers.RTDetrResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage2", "stage3", "stage4"]))
    return trained(transformers.RTDetrForObjectDetection(config).to(device), pixel_values=torch.randn(2, 3, 64, 64, device=device), labels=boxes(device))


def mask2former(device):
    config = transformers.Mask2FormerConfig(backbone_config=transformers.SwinConfig(image_size=64, patch_size=2, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, out_features=["stage1", "stage2", "stage3", "stage4"]), feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=64, dim_feedforward=64, encoder_layers=1, decoder_layers=2, num_attention_heads=4, num_queries=10, num_labels=4, train_num_points=32)
    masks = torch.zeros(2, 2, 64, 64, device=device)
    masks[:, :, :20] = 1
    return trained(transformers.Mask2FormerForUniversalSegmentation(config).to(device), pixel_values=torch.randn(2, 3, 64, 64, device=device), mask_labels=list(masks), class_labels=[torch.tensor([0, 1], device=device)] * 2)


def segformer(device):
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16, num_labels=3)).to(device)
    return trained(model, pixel_values=torch.randn(1, 3, 64, 64, device=device), labels=torch.arange(64 * 64, device=device).view(1, 64, 64) % 3)


def segment_anything(device):
    config = transformers.SamConfig(
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 64, "patch_size": 8, "output_channels": 16, "mlp_dim": 64, "global_attn_indexes": [0], "num_pos_feats": 8},
        prompt_encoder_config={"hidden_size": 16, "image_size": 64, "patch_size": 8, "image_embedding_size": 8},
        mask_decoder_config={"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16, "num_hidden_layers": 1},
    )
    return trained(transformers.SamModel(config).to(device), pixel_values=torch.randn(1, 3, 64, 64, device=device), input_points=torch.tensor([[[[10.0, 20.0]]]], device=device))


def depth_anything(device):
    config = transformers.DepthAnythingConfig(backbone_config=transformers.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14, out_features=["stage1", "stage2"], reshape_hidden_states=False), patch_size=14, reassemble_hidden_size=32, reassemble_factors=[2, 1], neck_hidden_sizes=[8, 16], fusion_hidden_size=8, head_hidden_size=8)
    return trained(transformers.DepthAnythingForDepthEstimation(config).to(device), pixel_values=torch.randn(1, 3, 28, 28, device=device))


def clip(device):
    config = transformers.CLIPConfig(text_config=SMALL | {"eos_token_id": 2}, vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}, projection_dim=16)
    tokens = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 2]], device=device)
    return trained(transformers.CLIPModel(config).to(device), input_ids=tokens, pixel_values=torch.randn(2, 3, 16, 16, device=device), return_loss=True)


def llava(device):
    config = transformers.LlavaConfig(vision_config=transformers.CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4), text_config=transformers.LlamaConfig(**SMALL), image_token_id=98)
    tokens = torch.tensor([[1] + [98] * 16 + [5, 6, 2]], device=device)
    return trained(transformers.LlavaForConditionalGeneration(config).to(device), input_ids=tokens, pixel_values=torch.randn(1, 3, 16, 16, device=device), labels=tokens)


def qwen2_vision(device):
    config = transformers.Qwen2VLConfig(
        text_config=SMALL | {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2, "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=98, video_token_id=97, vision_start_token_id=96, vision_end_token_id=95,
    )
    model = transformers.Qwen2VLForConditionalGeneration(config).to(device)
    tokens = torch.tensor([[1, 96] + [98] * 4 + [95, 5, 6]], device=device)
    return trained(model, input_ids=tokens, attention_mask=torch.ones_like(tokens), mm_token_type_ids=(tokens == 98).int(), pixel_values=torch.randn(16, 96, device=device), image_grid_thw=torch.tensor([[1, 4, 4]], device=device), labels=tokens)


def time_series(device):
    model = transformers.TimeSeriesTransformerForPrediction(transformers.TimeSeriesTransformerConfig(prediction_length=4, context_length=8, lags_sequence=[1, 2], d_model=16, encoder_layers=1, decoder_layers=1, num_time_features=1, encoder_layerdrop=0.0, decoder_layerdrop=0.0)).to(device)
    past = torch.ones(2, 10, device=device)
    return trained(model, past_values=past, past_time_features=past[..., None], past_observed_mask=past, future_values=past[:, :4], future_time_features=past[:, :4, None])


def informer(device):
    model = transformers.InformerForPrediction(transformers.InformerConfig(prediction_length=4, context_length=8, lags_sequence=[1, 2], d_model=16, encoder_layers=1, decoder_layers=1, num_time_features=1, encoder_layerdrop=0.0, decoder_layerdrop=0.0)).to(device)
    past = torch.ones(2, 10, device=device)
    return trained(model, past_values=past, past_time_features=past[..., None], past_observed_mask=past, future_values=past[:, :4], future_time_features=past[:, :4, None])


def patched_time_series(device):
    model = transformers.PatchTSTForPretraining(transformers.PatchTSTConfig(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=32)).to(device)
    return trained(model, past_values=torch.ones(2, 16, 2, device=device))


def tables(device):
    model = transformers.TapasForQuestionAnswering(transformers.TapasConfig(**SMALL, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4], max_num_rows=8, max_num_columns=8)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    types = torch.zeros(2, 12, 7, dtype=torch.long, device=device)
    types[:, 4:, 1] = 1
    types[:, 4:, 2] = torch.arange(8, device=device) // 2 + 1
    return trained(model, input_ids=tokens, token_type_ids=types, labels=(types[..., 2] == 2).long())


def layouts_of_documents(device):
    model = transformers.LayoutLMv3ForTokenClassification(transformers.LayoutLMv3Config(**SMALL, visual_embed=False, coordinate_size=6, shape_size=4, max_2d_position_embeddings=128, has_relative_attention_bias=True, has_spatial_attention_bias=True)).to(device)
    tokens = torch.arange(3, 27, device=device).view(2, 12)
    places = torch.arange(4, device=device).expand(2, 12, 4) * 20
    return trained(model, input_ids=tokens, bbox=places, labels=tokens % 2)
