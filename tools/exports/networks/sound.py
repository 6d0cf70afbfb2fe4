"""Networks on sound: recognition, classification, codecs and synthesis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exports.entries import Entry, waveform
from exports.networks.libraries import named
from zoo.entries import Input, normal, tokens

_SAMPLES = 1_600
_WAVES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "conv_dim": [24, 24, 24],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 4, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 30,
    "apply_spec_augment": False,
    "pad_token_id": 0,
}
_SPEECH: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "use_cache": False,
}


def entries() -> Iterator[Entry]:
    """Yields the networks on sound."""
    yield from _waves()
    yield from _spectra()
    yield from _codecs()


def _waves() -> Iterator[Entry]:
    values = Input("input_values", ("batch", "samples"), waveform)
    for name, model, config in (
        ("wav2vec2", "Wav2Vec2ForCTC", {}),
        (
            "wav2vec2_stable",
            "Wav2Vec2Model",
            {"do_stable_layer_norm": True, "feat_extract_norm": "layer"},
        ),
        (
            "wav2vec2_conformer",
            "Wav2Vec2ConformerForCTC",
            {"position_embeddings_type": "relative", "conv_depthwise_kernel_size": 7},
        ),
        ("hubert", "HubertForCTC", {}),
        ("wavlm", "WavLMForCTC", {"num_buckets": 32, "max_bucket_distance": 80}),
        ("unispeech_sat", "UniSpeechSatModel", {}),
        ("sew", "SEWForCTC", {"squeeze_factor": 2}),
        (
            "sew_d",
            "SEWDForCTC",
            {
                "squeeze_factor": 2,
                "max_position_embeddings": 64,
                "position_buckets": 16,
                "feature_layer_norm_eps": 1e-5,
            },
        ),
        ("data2vec_audio", "Data2VecAudioForCTC", {"conv_pos_kernel_size": 7}),
    ):
        make = named(model, ("logits", "last_hidden_state"), **{**_WAVES, **config})
        dims, others = {"batch": 1, "samples": _SAMPLES}, {"batch": 2, "samples": _SAMPLES + 480}
        yield Entry(name, "speech", make, (values,), dims, others, by_name=True)


def _spectra() -> Iterator[Entry]:
    ids = Input("decoder_input_ids", ("batch", "target"), tokens(100))
    dims, others = {"batch": 1, "target": 5}, {"batch": 2, "target": 7}
    whisper: dict[str, Any] = {
        **_SPEECH,
        "num_mel_bins": 16,
        "max_source_positions": 20,
        "max_target_positions": 32,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "suppress_tokens": None,
    }
    yield Entry(
        "whisper",
        "speech",
        named("WhisperForConditionalGeneration", ("logits",), **whisper),
        (Input("input_features", ("batch", 16, 40), normal), ids),
        dims,
        others,
        by_name=True,
    )
    heard: dict[str, Any] = {
        **_SPEECH,
        "input_feat_per_channel": 16,
        "conv_channels": 32,
        "max_source_positions": 64,
        "max_target_positions": 32,
    }
    yield Entry(
        "speech_to_text",
        "speech",
        named("Speech2TextForConditionalGeneration", ("logits",), **heard),
        (Input("input_features", ("batch", 40, 16), normal), ids),
        dims,
        others,
        by_name=True,
    )
    moonshine: dict[str, Any] = {
        "vocab_size": 100,
        "hidden_size": 48,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
        "intermediate_size": 96,
        "use_cache": False,
    }
    yield Entry(
        "moonshine",
        "speech",
        named("MoonshineForConditionalGeneration", ("logits",), **moonshine),
        (
            Input("input_values", (1, 3_200), waveform),
            Input("decoder_input_ids", (1, "target"), tokens(100)),
        ),
        {"target": 5},
        {"target": 7},
        by_name=True,
    )
    spectrum: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_length": 64,
        "num_mel_bins": 32,
    }
    yield Entry(
        "audio_spectrogram",
        "audio",
        named("ASTForAudioClassification", **spectrum),
        (Input("input_values", ("batch", 64, 32), normal),),
        {"batch": 1},
        {"batch": 2},
        by_name=True,
    )
    clap: dict[str, Any] = {
        "hidden_size": 32,
        "patch_embeds_hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [2, 4],
        "num_mel_bins": 32,
        "spec_size": 64,
        "num_hidden_layers": 2,
        "window_size": 4,
        "enable_fusion": False,
    }
    yield Entry(
        "clap_audio",
        "audio",
        named("ClapAudioModel", **clap),
        (Input("input_features", (1, 1, 128, 32), normal),),
        by_name=True,
    )
    conformer: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_num_attention_heads": 2,
        "decoder_num_attention_heads": 2,
        "encoder_linear_units": 48,
        "decoder_linear_units": 48,
        "num_mel_bins": 16,
        "duration_predictor_channels": 16,
        "energy_predictor_channels": 16,
        "pitch_predictor_channels": 16,
        "speech_decoder_postnet_units": 16,
    }
    yield Entry(
        "fastspeech2",
        "synthesis",
        named("FastSpeech2ConformerModel", ("spectrogram",), **conformer),
        (Input("input_ids", (1, 12), tokens(60)),),
        by_name=True,
    )
    yield Entry(
        "hifigan",
        "synthesis",
        named(
            "SpeechT5HifiGan",
            model_in_dim=16,
            upsample_initial_channel=32,
            upsample_rates=[4, 4],
            upsample_kernel_sizes=[8, 8],
            resblock_kernel_sizes=[3, 7],
            resblock_dilation_sizes=[[1, 3], [1, 3]],
        ),
        (Input("spectrogram", ("batch", "frames", 16), normal),),
        {"batch": 1, "frames": 20},
        {"batch": 2, "frames": 28},
        by_name=True,
    )


def _codecs() -> Iterator[Entry]:
    wave = Input("input_values", (1, 1, 1_280), _channel)
    encodec: dict[str, Any] = {
        "num_filters": 8,
        "upsampling_ratios": [4, 4],
        "codebook_size": 32,
        "codebook_dim": 32,
        "hidden_size": 32,
        "num_lstm_layers": 1,
        "target_bandwidths": [24.0],
        "sampling_rate": 16_000,
    }
    yield Entry(
        "encodec",
        "codec",
        named("EncodecModel", ("audio_values",), **encodec),
        (wave,),
        by_name=True,
    )
    dac: dict[str, Any] = {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "decoder_hidden_size": 32,
        "n_codebooks": 2,
        "codebook_size": 32,
        "codebook_dim": 4,
    }
    yield Entry("dac", "codec", named("DacModel", ("audio_values",), **dac), (wave,), by_name=True)


def _channel(rng: Any, shape: tuple[int, ...]) -> Any:
    return waveform(rng, (shape[0], shape[-1])).reshape(shape)
