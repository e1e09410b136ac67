"""Random recordings in the shape that each model type takes."""

import inspect
from functools import partial

import torch

from .media import noise


def audio_inputs(model, batch_size: int, generator) -> dict:
    """One recording a row, as the model's processor would give it."""
    accepted = inspect.signature(model.forward).parameters
    layout = AUDIO.get(model.config.model_type) or (mel if "input_features" in accepted else None)
    if layout is None:
        return {}
    inputs = layout(model.config, batch_size, generator)
    mask = next((name for name in ("input_features_mask", "feature_attention_mask") if name in accepted), None)
    if mask is not None and not model.config.model_type.startswith("granite"):  # there it counts tokens, not frames
        axis = 1 if layout in (frames, whole_frames) else 2
        inputs[mask] = torch.ones(batch_size, inputs["input_features"].shape[axis], dtype=torch.long)
    return inputs


def num_mel_bins(config) -> int:
    audio = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
    return getattr(audio, "num_mel_bins", None) or getattr(audio, "input_dim", None) or 8


def mel(config, batch_size: int, generator, num_frames: int = 32) -> dict:
    """Log-mel spectrograms `(batch, bins, frames)`."""
    return {"input_features": noise(generator, batch_size, num_mel_bins(config), num_frames)}


def long_mel(config, batch_size: int, generator) -> dict:
    """As many frames as the encoder has positions, two frames each."""
    audio = getattr(config, "audio_config", None) or config
    positions = getattr(audio, "max_source_positions", None) or audio.max_position_embeddings
    return mel(config, batch_size, generator, 2 * positions)


def frames(config, batch_size: int, generator, num_frames: int = 32) -> dict:
    """`(batch, frames, bins)`, the first row the longest."""
    bins = FRAME_SIZES.get(config.model_type, lambda config: num_mel_bins(config))(config)
    mask = torch.ones(batch_size, num_frames, dtype=torch.long)
    for row in range(batch_size):
        mask[row, num_frames - 4 * row :] = 0
    return {"input_features": noise(generator, batch_size, num_frames, bins), "attention_mask": mask}


def whole_frames(config, batch_size: int, generator) -> dict:
    return {"input_features": frames(config, batch_size, generator)["input_features"]}


def wave(config, batch_size: int, generator, num_samples: int = 2000) -> dict:
    """`(batch, samples)`, the first row the longest."""
    mask = torch.ones(batch_size, num_samples, dtype=torch.long)
    for row in range(batch_size):
        mask[row, num_samples - 300 * row :] = 0
    return {"input_values": noise(generator, batch_size, num_samples) * mask, "attention_mask": mask}


FRAME_SIZES = {
    "fun_asr_nano": lambda config: config.audio_config.num_mel_bins * config.audio_config.num_stacked_frames,
    "speech_to_text": lambda config: config.input_feat_per_channel * config.input_channels,
    "seamless_m4t": lambda config: config.feature_projection_input_dim,
    "seamless_m4t_v2": lambda config: config.feature_projection_input_dim,
}

AUDIO = {
    **dict.fromkeys(("audioflamingo3", "qwen2_audio", "voxtral", "whisper"), long_mel),
    **dict.fromkeys(("fun_asr_nano", "granite_speech", "granite_speech_plus", "nemo_speechlm"), whole_frames),
    **dict.fromkeys(("canary", "cohere_asr", "seamless_m4t", "seamless_m4t_v2", "speech_to_text"), frames),
    **dict.fromkeys(("moonshine", "moonshine_streaming", "speech-encoder-decoder", "speecht5"), wave),
    "qwen3_asr": partial(mel, num_frames=100),
}
