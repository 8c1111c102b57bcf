"""generate() of transformers: each way to choose tokens, and each kind of cache and model."""

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers_models import EXPERTS, SMALL

#: Token 2 ends a text; it is never the middle of the vocabulary.
NEW_TOKENS = 8


def generated(device, kind="llama", settings=SMALL, prompt=None, config=None, **how):
    model = AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **settings | (config or {}))).to(device).eval()
    tokens = torch.arange(3, 13, device=device).view(2, 5) if prompt is None else prompt
    out = model.generate(tokens, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **how)
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    return tuple(sequences.shape), sequences[:, : tokens.shape[1]]


def greedy(device):
    return generated(device, do_sample=False)


def sampled(device):
    return generated(device, do_sample=True, top_k=10, top_p=0.9, temperature=0.7, repetition_penalty=1.1)


def rarely_used_filters(device):
    return generated(device, do_sample=True, min_p=0.05, typical_p=0.9, epsilon_cutoff=3e-4, eta_cutoff=3e-4, no_repeat_ngram_size=2, bad_words_ids=[[5]], renormalize_logits=True)


def beams(device):
    return generated(device, num_beams=3, length_penalty=0.8, early_stopping=True, return_dict_in_generate=True, output_scores=True)


def sampled_beams(device):
    return generated(device, num_beams=3, do_sample=True, num_return_sequences=2, prompt=torch.arange(3, 8, device=device)[None])


def several_sequences(device):
    return generated(device, do_sample=True, num_return_sequences=3)


def static_cache(device):
    return generated(device, cache_implementation="static", do_sample=False, disable_compile=True)


def offloaded_cache(device):
    return generated(device, do_sample=False, **({"cache_implementation": "offloaded"} if device == "cuda" else {}))


def sliding_cache(device):
    return generated(device, "mistral", config={"sliding_window": 4}, do_sample=False)


def without_cache(device):
    return generated(device, do_sample=False, use_cache=False)


def assisted(device):
    helper = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL | {"num_hidden_layers": 1})).to(device)
    return generated(device, prompt=torch.arange(3, 8, device=device)[None], do_sample=False, assistant_model=helper)[0][0]


def prompt_lookup(device):
    return generated(device, prompt=torch.tensor([[5, 6, 7, 5, 6]], device=device), do_sample=False, prompt_lookup_num_tokens=2)[0][0]


def with_experts(device):
    return generated(device, "mixtral", EXPERTS, do_sample=False)


def with_shared_experts(device):
    return generated(device, "qwen2_moe", EXPERTS, do_sample=True)


def with_states(device):
    return generated(device, "mamba", config={"state_size": 4}, do_sample=False)


def with_states_and_attention(device):
    return generated(device, "jamba", EXPERTS, config={"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False}, do_sample=False)


def padded_prompts(device):
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], device=device)
    return generated(device, "gpt2", do_sample=False, attention_mask=mask)


def until_the_limit(device):
    """No stopping token is set, so the number of tokens is."""
    model = AutoModelForCausalLM.from_config(transformers.GPT2Config(**SMALL)).to(device)
    out = model.generate(torch.arange(3, 8, device=device)[None], max_new_tokens=12, eos_token_id=98, do_sample=True)
    return 6 <= out.shape[1] <= 17


def stops_at_strings(device):
    class Stop(transformers.StoppingCriteria):
        def __call__(self, tokens, scores, **more):
            return torch.full((tokens.shape[0],), tokens.shape[1] >= 9, device=tokens.device)

    model = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL | {"eos_token_id": None})).to(device)
    return model.generate(torch.arange(3, 8, device=device)[None], max_new_tokens=30, stopping_criteria=[Stop()]).shape


def streamed(device):
    class Count:
        puts = 0

        def put(self, tokens):
            self.puts += 1

        def end(self):
            self.puts += 100

    count = Count()
    generated(device, prompt=torch.arange(3, 8, device=device)[None], do_sample=False, streamer=count)
    return count.puts


def translated(device):
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)).to(device)
    return model.generate(torch.arange(3, 13, device=device).view(2, 5), num_beams=2, min_new_tokens=6, max_new_tokens=6).shape


def transcribed(device):
    config = transformers.WhisperConfig(vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20, max_target_positions=30, num_mel_bins=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    model = transformers.WhisperForConditionalGeneration(config).to(device)
    return model.generate(torch.randn(1, 8, 40, device=device), min_new_tokens=6, max_new_tokens=6).shape


def captioned(device):
    config = transformers.LlavaConfig(vision_config=transformers.CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4), text_config=transformers.LlamaConfig(**SMALL), image_token_id=98)
    model = transformers.LlavaForConditionalGeneration(config).to(device)
    tokens = torch.tensor([[1] + [98] * 16 + [5, 6]], device=device)
    return model.generate(input_ids=tokens, pixel_values=torch.randn(1, 3, 16, 16, device=device), min_new_tokens=4, max_new_tokens=4).shape


def spoken(device):
    config = transformers.VitsConfig(vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, flow_size=32, spectrogram_bins=9, upsample_initial_channel=32, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]], prior_encoder_num_wavenet_layers=1, posterior_encoder_num_wavenet_layers=1, duration_predictor_filter_channels=32, use_stochastic_duration_prediction=False)
    model = transformers.VitsModel(config).to(device).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([[3, 4, 5]], device=device)).waveform.dim()


def forecast(device):
    model = transformers.TimeSeriesTransformerForPrediction(transformers.TimeSeriesTransformerConfig(prediction_length=3, context_length=8, lags_sequence=[1, 2], d_model=16, encoder_layers=1, decoder_layers=1, num_time_features=1, num_parallel_samples=5)).to(device).eval()
    past = torch.ones(2, 10, device=device)
    return model.generate(past_values=past, past_time_features=past[..., None], past_observed_mask=past, future_time_features=past[:, :3, None]).sequences
