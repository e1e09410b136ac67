"""What the generic shrinking does not find out by itself, type by type.

`start`: arguments without which the config class has no default; `config`: fields set after shrinking (`...` drops one).
"""

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
#: the last layers read the keys and values of earlier ones
SHARED_KEYS = {"num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2}

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
SMALL_VISION = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 64,
}

SHORT_WAVES = {
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 6],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
BERT_DECODER = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}

RECIPES: dict[str, dict] = {
    "phi4_multimodal_audio": {
        "config": {
            "nemo_conv_channels": 64,
            "ext_pw_out_channel": 64,
            "depthwise_separable_out_channel": 64,
        }
    },
    "pixtral": {"config": {"image_size": 16}},
    "deepseek_ocr2_text": {
        "config": {
            "mlp_layer_types": ["dense", "sparse"],
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
        }
    },
    "hunyuan_vl_vision": {"config": {"max_image_size": 64, "min_image_size": 8}},
    "mllama_text_model": {"config": {"num_hidden_layers": 3, "cross_attention_layers": [1]}},
    "voxtral_encoder": {"config": {"intermediate_size": 256}},
    "glmasr_encoder": {"config": {"intermediate_size": 256}},
    "granite_docling_vision": {"config": {"image_size": 32, "deepstack_visual_indexes": [0, 0, 1]}},
    "granite_speech": {"config": {"window_size": 15}},
    "granite_speech_plus": {"config": {"window_size": 15}},
    "muse_glimmer": {"config": {"out_hidden_size": 256}},
    "muse_spark": {"config": {"out_hidden_size": 256}},
    "voxtral": {"config": {"audio_token_id": 95}},
    "encoder-decoder": {"start": {"encoder": {"model_type": "bert"}, "decoder": BERT_DECODER}},
    "speech-encoder-decoder": {"start": {"encoder": {"model_type": "wav2vec2"}, "decoder": BERT_DECODER}},
    "vision-encoder-decoder": {"start": {"encoder": {"model_type": "vit"}, "decoder": BERT_DECODER}},
    "fun_asr_nano": {"config": {"adaptor_config": {"intermediate_size": 16}}},
    "granite_speech_encoder": {"config": {"hidden_dim": 64, "context_size": 8, "max_pos_emb": 32}},
    "granite_speech_plus_encoder": {"config": {"hidden_dim": 64, "context_size": 8, "max_pos_emb": 32}},
    "mllama_vision_model": {
        "config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192, "num_hidden_layers": 2}
    },
    "moonshine": {"config": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4}},
    "qwen3_asr": {"config": {"eos_token_id": [90]}},
    "seamless_m4t": {"config": {"feature_projection_input_dim": 16}},
    "seamless_m4t_v2": {"config": {"feature_projection_input_dim": 16}},
    "speecht5": {"config": SHORT_WAVES},
    "wav2vec2": {"config": SHORT_WAVES},
    "chameleon": {
        "config": {
            "vocabulary_map": {"<image>": 95} | {f"IMGIMG{chr(65 + code)}Z": 61 + code for code in range(8)},
            "image_token_id": 95,
        }
    },
    "chameleon_vqgan": {
        "config": {"base_channels": 32, "num_embeddings": 8, "channel_multiplier": [1, 1], "resolution": 8}
    },
    "emu3": {
        "config": {
            "vocabulary_map": {"<image>": 95, "<|extra_200|>": 94}
            | {f"<|visual token {code:06d}|>": 61 + code for code in range(8)},
            "image_token_id": 95,
        }
    },
    "emu3_vqgan": {"config": {"base_channels": 64, "codebook_size": 8, "channel_multiplier": [1, 1], "embed_dim": 4}},
    "gemma3n_text": {"config": SHARED_KEYS | {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4}},
    "gemma4_text": {"config": SHARED_KEYS},
    "gemma4_unified_text": {"config": SHARED_KEYS},
    "gemma4": {"config": {"vision_config": {"model_type": "gemma4_vision", **SMALL_VISION}}},
    "gemma4_unified": {
        "config": {
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "patch_size": 4,
                "mm_embed_dim": 64,
                "mm_posemb_size": 64,
                "output_proj_dims": 64,
            }
        }
    },
    "kosmos-2": {"config": {"latent_query_num": 4}},
    "kosmos-2.5": {"config": {"latent_query_num": 4}},
    "llama4_vision_model": {"config": {"intermediate_size": 256}},
    "minicpm_ocr": {"config": {"image_token_id": 95, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}},
    "minicpmv4_6": {"config": {"image_token_id": 95, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}},
    "minicpmv4_7": {"config": {"image_token_id": 95, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}},
    "mistral4": {"config": {"qk_nope_head_dim": 8, "qk_head_dim": 16, "head_dim": 16}},
    "nemotron_h_omni": {"config": {"image_token_id": 95}},
    "qwen2_5_omni_text": {"config": {"rope_parameters": MROPE}},
    "step3p5": {
        "config": {
            "sliding_window": 8,
            "layer_types": [FULL, SLIDING],
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 10000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            },
        }
    },
    "t5gemma2_encoder": {"config": {"mm_tokens_per_image": 4}},
    "aria": {"config": {"projector_patch_to_query_dict": {4: 2}}},
    "blip-2": {"config": {"image_token_index": 95, "num_query_tokens": 4}},
    "ernie4_5_vl_moe_text": {
        "config": {
            "moe_intermediate_size": [48, 32],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
        }
    },
    "florence_vision": {
        "config": {
            "depths": [1, 1, 1, 1],
            "embed_dim": [16, 16, 32, 32],
            "num_heads": [2, 2, 2, 2],
            "num_groups": [2, 2, 2, 2],
            "window_size": 4,
        }
    },
    "gemma3": {"config": {"mm_tokens_per_image": 4}},
    "shieldgemma2": {"config": {"mm_tokens_per_image": 4}},
    "glm4v_moe_text": {
        "config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            }
        }
    },
    "glm5_next_text": {"config": {"index_kpool": 4}},
    "hunyuan_vl_text": {"config": {"head_dim": 16, "rope_parameters": MROPE}},
    "instructblip": {"config": {"image_token_index": 95, "num_query_tokens": 4}},
    "instructblipvideo": {"config": {"video_token_index": 95, "num_query_tokens": 4}},
    "janus_vqgan": {"config": {"base_channels": 32, "num_embeddings": 32, "channel_multiplier": [1, 1]}},
    "lfm2": {"config": {"layer_types": ["conv", FULL, "conv"], "num_hidden_layers": 3, "full_attn_idxs": [1]}},
    "llava_next": {"config": {"image_grid_pinpoints": [[8, 8], [8, 16], [16, 8]]}},
    "llava_next_video": {"config": {"image_grid_pinpoints": [[8, 8], [8, 16], [16, 8]]}},
    "llava_onevision": {"config": {"image_grid_pinpoints": [[8, 8], [8, 16], [16, 8]]}},
    "muse_spark_audio": {"config": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}},
    "pp_formulanet_vision": {
        "config": {
            "output_channels": 16,
            "post_conv_in_channels": 16,
            "post_conv_mid_channels": 16,
            "post_conv_out_channels": 64,
        }
    },
    "qwen2_5_omni_thinker": {"config": {"vision_start_token_id": 80, "vision_end_token_id": 79}},
    "qwen3_omni_moe_thinker": {"config": {"vision_start_token_id": 80, "vision_end_token_id": 79}},
    "radio": {"config": {"max_img_size": 8, "patch_dim": 48, "video_patch_dim": 96}},
    "sam_vision_model": {"config": {"output_channels": 16, "num_pos_feats": 16, "global_attn_indexes": [1]}},
    "vipllava": {"config": {"vision_feature_layers": [-1, -2]}},
    "bamba": {"config": {"attn_layer_indices": [1]}},
    "blt": {"config": {"encoder_hash_byte_group_vocab": 30}},
    "cohere_compass_text": {
        "config": {
            "layer_types": [SLIDING, FULL],
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
                FULL: None,
            },
        }
    },
    "dbrx": {"config": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}}},
    "deepseek_v2": {"config": {"num_experts_per_tok": 2}},
    "dots3_note_text": {
        "config": {
            "per_layer_config": {
                2: {
                    "num_attention_heads": 2,
                    "num_key_value_heads": 2,
                    "q_lora_rank": 16,
                    "kv_lora_rank": 24,
                    "head_dim": 32,
                    "qk_nope_head_dim": 24,
                    "v_head_dim": 16,
                }
            }
        }
    },
    "dots3_note_vision_encoder": {"config": {"adapter_in_dim": 64, "adapter_out_dim": 64}},
    "dots3_note_audio_encoder": {"config": {"adapter_input_size": 64, "adapter_out_dim": 64, "conv_output_size": 480}},
    "dots1": {"config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}},
    "falcon_h1": {"config": {"mamba_d_ssm": 128}},
    "granitemoehybrid": {"config": {"layer_types": ["mamba", "attention"]}},
    "hrm_text": {"config": {"num_layers_per_stack": 1, "num_hidden_layers": 8}},
    "hunyuan_v1_dense": {"config": {"head_dim": 16}},
    "hunyuan_v1_moe": {"config": {"head_dim": 16}},
    "lfm2_moe": {"config": {"layer_types": ["conv", FULL, "conv"], "num_hidden_layers": 3}},
    "mamba2": {"config": {"num_heads": 8}},
    "ministral": {"config": {"head_dim": 16}},
    "nemotron": {"config": {"num_key_value_heads": 2}},
    "qwen2_vl_text": {"config": {"rope_parameters": MROPE}},
    "qwen2_5_vl_text": {"config": {"rope_parameters": MROPE}},
    "glm4v_text": {"config": {"rope_parameters": MROPE}},
    "glm_ocr_text": {"config": {"rope_parameters": MROPE}},
    "paddleocr_vl_text": {"config": {"rope_parameters": MROPE}},
    "qwen4_exp_text": {
        "config": {
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        }
    },
    "recurrent_gemma": {"config": {"num_hidden_layers": 3}},
    "reformer": {"config": {"is_decoder": True, "axial_pos_embds": False}},
    "xlstm": {"config": {"num_blocks": 2, "qk_dim_factor": 1.0}},
    "xmod": {"config": {"default_language": "en_XX"}},
    "zamba2": {"config": {"attention_hidden_size": 128, "attention_head_dim": 32, "hybrid_layer_ids": [1]}},
    "zamba": {
        "config": {
            "num_hidden_layers": 5,
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
            "layers_block_type": [LINEAR, LINEAR, "hybrid", LINEAR, "hybrid"],
        }
    },
}
