"""What the generic shrinking does not find out by itself, type by type."""

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
#: the last layers read the keys and values of earlier ones
SHARED_KEYS = {"num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2}

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = ROPE | {"mrope_section": [4, 2, 2]}
SMALL_VISION = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL_VISION |= {"num_key_value_heads": 4, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64}
UNIFIED_VISION = {"model_type": "gemma4_unified_vision", "patch_size": 4, "mm_embed_dim": 64}
UNIFIED_VISION |= {"mm_posemb_size": 64, "output_proj_dims": 64}
FLORENCE = {"depths": [1] * 4, "embed_dim": [16, 16, 32, 32], "num_heads": [2] * 4, "num_groups": [2] * 4}

SHORT_WAVES = {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 6], "num_feat_extract_layers": 2}
SHORT_WAVES |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
PHI_AUDIO = {"nemo_conv_channels": 64, "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64}
GRANITE_AUDIO = {"hidden_dim": 64, "context_size": 8, "max_pos_emb": 32}

DENSE_SPARSE = {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8}
NARROW_LAYER = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 24}
NARROW_LAYER |= {"head_dim": 32, "qk_nope_head_dim": 24, "v_head_dim": 16}
ATTENTION = {"attention_hidden_size": 128, "attention_head_dim": 32}
BERT_DECODER = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
CHAMELEON_WORDS = {"<image>": 95} | {f"IMGIMG{chr(65 + code)}Z": 61 + code for code in range(8)}
EMU_WORDS = {"<image>": 95, "<|extra_200|>": 94} | {f"<|visual token {code:06d}|>": 61 + code for code in range(8)}

#: fields of configs set after shrinking; `...` drops one
FIELDS: dict[str, dict] = {
    "phi4_multimodal_audio": PHI_AUDIO,
    "pixtral": {"image_size": 16},
    "deepseek_ocr2_text": DENSE_SPARSE,
    "hunyuan_vl_vision": {"max_image_size": 64, "min_image_size": 8},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "granite_docling_vision": {"image_size": 32, "deepstack_visual_indexes": [0, 0, 1]},
    "voxtral": {"audio_token_id": 95},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192, "num_hidden_layers": 2},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "qwen3_asr": {"eos_token_id": [90]},
    "chameleon": {"vocabulary_map": CHAMELEON_WORDS, "image_token_id": 95},
    "chameleon_vqgan": {"base_channels": 32, "num_embeddings": 8, "channel_multiplier": [1, 1], "resolution": 8},
    "emu3": {"vocabulary_map": EMU_WORDS, "image_token_id": 95},
    "emu3_vqgan": {"base_channels": 64, "codebook_size": 8, "channel_multiplier": [1, 1], "embed_dim": 4},
    "gemma3n_text": SHARED_KEYS | {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4": {"vision_config": {"model_type": "gemma4_vision", **SMALL_VISION}},
    "gemma4_unified": {"vision_config": UNIFIED_VISION},
    "mistral4": {"qk_nope_head_dim": 8, "qk_head_dim": 16, "head_dim": 16},
    "nemotron_h_omni": {"image_token_id": 95},
    "step3p5": {"sliding_window": 8, "layer_types": [FULL, SLIDING], "rope_parameters": {FULL: ROPE, SLIDING: ROPE}},
    "aria": {"projector_patch_to_query_dict": {4: 2}},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [48, 32], "rope_parameters": ROPE | {"mrope_section": [3, 3, 2]}},
    "florence_vision": FLORENCE | {"window_size": 4},
    "glm4v_moe_text": {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}},
    "glm5_next_text": {"index_kpool": 4},
    "hunyuan_vl_text": {"head_dim": 16, "rope_parameters": MROPE},
    "instructblipvideo": {"video_token_index": 95, "num_query_tokens": 4},
    "janus_vqgan": {"base_channels": 32, "num_embeddings": 32, "channel_multiplier": [1, 1]},
    "lfm2": {"layer_types": ["conv", FULL, "conv"], "num_hidden_layers": 3, "full_attn_idxs": [1]},
    "muse_spark_audio": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "pp_formulanet_vision": {
        "output_channels": 16,
        "post_conv_in_channels": 16,
        "post_conv_mid_channels": 16,
        "post_conv_out_channels": 64,
    },
    "radio": {"max_img_size": 8, "patch_dim": 48, "video_patch_dim": 96},
    "sam_vision_model": {"output_channels": 16, "num_pos_feats": 16, "global_attn_indexes": [1]},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 30},
    "cohere_compass_text": {"layer_types": [SLIDING, FULL], "rope_parameters": {SLIDING: MROPE, FULL: None}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots3_note_text": {"per_layer_config": {2: NARROW_LAYER}},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64, "conv_output_size": 480},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "lfm2_moe": {"layer_types": ["conv", FULL, "conv"], "num_hidden_layers": 3},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": INDEXER | {"indexer_compress_ratio": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xlstm": {"num_blocks": 2, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba2": ATTENTION | {"hybrid_layer_ids": [1]},
    "zamba": ATTENTION | {"num_hidden_layers": 5, "layers_block_type": [LINEAR, LINEAR, "hybrid", LINEAR, "hybrid"]},
}
#: the same for several types
SHARED_FIELDS: list[tuple[tuple[str, ...], dict]] = [
    (("voxtral_encoder", "glmasr_encoder", "llama4_vision_model"), {"intermediate_size": 256}),
    (("granite_speech", "granite_speech_plus"), {"window_size": 15}),
    (("muse_glimmer", "muse_spark"), {"out_hidden_size": 256}),
    (("granite_speech_encoder", "granite_speech_plus_encoder"), GRANITE_AUDIO),
    (("seamless_m4t", "seamless_m4t_v2"), {"feature_projection_input_dim": 16}),
    (("speecht5", "wav2vec2"), SHORT_WAVES),
    (("gemma4_text", "gemma4_unified_text"), SHARED_KEYS),
    (("kosmos-2", "kosmos-2.5"), {"latent_query_num": 4}),
    (
        ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
        {"image_token_id": 95, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}},
    ),
    (
        ("qwen2_5_omni_text", "qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text", "paddleocr_vl_text"),
        {"rope_parameters": MROPE},
    ),
    (("t5gemma2_encoder", "gemma3", "shieldgemma2"), {"mm_tokens_per_image": 4}),
    (("blip-2", "instructblip"), {"image_token_index": 95, "num_query_tokens": 4}),
    (("llava_next", "llava_next_video", "llava_onevision"), {"image_grid_pinpoints": [[8, 8], [8, 16], [16, 8]]}),
    (("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), {"vision_start_token_id": 80, "vision_end_token_id": 79}),
    (("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), {"head_dim": 16}),
]
FIELDS |= {name: fields for names, fields in SHARED_FIELDS for name in names}

#: arguments without which a config class has no default
STARTS: dict[str, dict] = {
    "encoder-decoder": {"encoder": {"model_type": "bert"}, "decoder": BERT_DECODER},
    "speech-encoder-decoder": {"encoder": {"model_type": "wav2vec2"}, "decoder": BERT_DECODER},
    "vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": BERT_DECODER},
}
