"""Sizes of the bundled model and its config.json in the published nested form."""
import copy
import tok

HIDDEN, LAYERS, VOCAB = 384, 9, tok.VOCAB
MLA_LAYERS = (3, 7, 8)
BLOCK = 3                                   # AttnRes: snapshots at layers 0, 3, 6
DENSE = 1024
KDA_HEADS, KDA_DIM = 10, 32                 # KDA width 320
MLA_HEADS, NOPE, PE, VDIM = 4, 48, 16, 64   # query and value width 256
QLORA, KVLORA = 96, 64
EXPERTS, TOP, LATENT, FF, SHARED = 12, 3, 128, 64, 5
V_HIDDEN, V_HEADS, V_DIM, V_MLP, V_LAYERS, V_GRID = 128, 4, 48, 512, 4, 16
EPS, LATENT_EPS, VISION_EPS = 1e-5, 1e-6, 2.0 ** -23

D_LAYERS, D_HEADS, D_QLORA, D_KVLORA, D_NOPE, D_PE, D_V = 2, 4, 96, 64, 48, 16, 48
D_MLP, D_MARKOV, D_WIDTH = 512, 32, 7
TAPS = (1, 4, 7)
THETA, YARN_FACTOR, YARN_ORIG = 50000.0, 4.0, 1024

# bookkeeping the published file carries; none of it changes the forward pass
INERT = dict(
    _name_or_path="", add_cross_attention=False, bad_words_ids=None, begin_suppress_tokens=None,
    chunk_size_feed_forward=0, cross_attention_hidden_size=None, decoder_start_token_id=None,
    diversity_penalty=0.0, do_sample=False, early_stopping=False, encoder_no_repeat_ngram_size=0,
    exponential_decay_length_penalty=None, finetuning_task=None, forced_bos_token_id=None,
    forced_eos_token_id=None, id2label={"0": "LABEL_0", "1": "LABEL_1"},
    label2id={"LABEL_0": 0, "LABEL_1": 1}, is_decoder=False, is_encoder_decoder=False,
    length_penalty=1.0, max_length=20, min_length=0, no_repeat_ngram_size=0, num_beam_groups=1,
    num_beams=1, num_return_sequences=1, output_attentions=False, output_hidden_states=False,
    output_scores=False, prefix=None, problem_type=None, pruned_heads={}, remove_invalid_values=False,
    repetition_penalty=1.0, return_dict=True, return_dict_in_generate=False, sep_token_id=None,
    suppress_tokens=None, task_specific_params=None, temperature=1.0, tf_legacy_loss=False,
    tie_encoder_decoder=False, tokenizer_class=None, top_k=50, top_p=1.0, torchscript=False,
    transformers_version="4.56.2", typical_p=1.0, use_bfloat16=False)

QUANT = {
    "config_groups": {"group_0": {
        "format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None,
        "targets": ["Linear"],
        "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32,
                    "num_bits": 4, "observer": "minmax", "observer_kwargs": {},
                    "scale_dtype": "torch.uint8", "strategy": "group", "symmetric": True,
                    "type": "float", "zp_dtype": None}}},
    "format": "mxfp4-pack-quantized", "global_compression_ratio": None,
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*", "re:.*vision_tower.*",
               "re:.*mm_projector.*"],
    "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def target():
    ends = dict(bos_token_id=tok.BOS, eos_token_id=tok.EOM, pad_token_id=tok.PAD)
    text = dict(
        copy.deepcopy(INERT), architectures=["KimiLinearForCausalLM"],
        auto_map={"AutoConfig": "configuration_kimi_k3.KimiLinearConfig",
                  "AutoModel": "modeling_kimi_linear.KimiLinearModel",
                  "AutoModelForCausalLM": "modeling_kimi_linear.KimiLinearForCausalLM"},
        model_type="kimi_linear", dtype="bfloat16", vocab_size=VOCAB, hidden_size=HIDDEN,
        num_hidden_layers=LAYERS, intermediate_size=DENSE, hidden_act="situ", activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0, rms_norm_eps=EPS, attn_res_block_size=BLOCK,
        num_attention_heads=MLA_HEADS, num_key_value_heads=MLA_HEADS, q_lora_rank=QLORA,
        kv_lora_rank=KVLORA, qk_nope_head_dim=NOPE, qk_rope_head_dim=PE, v_head_dim=VDIM,
        mla_use_nope=True, mla_use_output_gate=True, num_experts=EXPERTS, num_experts_per_token=TOP,
        num_shared_experts=SHARED, moe_intermediate_size=FF, routed_expert_hidden_size=LATENT,
        latent_moe_use_norm=True, first_k_dense_replace=1, moe_layer_freq=1,
        moe_router_activation_func="sigmoid", moe_renormalize=True, routed_scaling_factor=1.0,
        topk_method="noaux_tc", use_grouped_topk=True, num_expert_group=1, topk_group=1,
        num_nextn_predict_layers=0, max_position_embeddings=32768, tie_word_embeddings=False,
        use_cache=True, initializer_range=0.02, **ends,
        linear_attn_config=dict(
            num_heads=KDA_HEADS, head_dim=KDA_DIM, short_conv_kernel_size=4, gate_lower_bound=-5.0,
            use_full_rank_gate=True, full_attn_layers=[i + 1 for i in MLA_LAYERS],
            kda_layers=[i + 1 for i in range(LAYERS) if i not in MLA_LAYERS]),
        quantization_config=copy.deepcopy(QUANT))
    vision = dict(
        _attn_implementation="flash_attention_2", activation_func="gelu_pytorch_tanh", attn_bias=False,
        init_pos_emb_height=V_GRID, init_pos_emb_width=V_GRID, init_pos_emb_time=4, linear_bias=False,
        merge_kernel_size=[2, 2], merge_type="sd2_tpool", mlp_type="mlp2", mm_hidden_size=V_HIDDEN,
        mm_projector_type="patchmergerv2", norm_type="rmsnorm", patch_embed_proj_bias=False,
        patch_size=14, pos_emb_interpolation_mode="bilinear", pos_emb_type="divided_fixed",
        projector_hidden_act="gelu", projector_ln_eps=1e-5, qkv_hidden_size=V_HEADS * V_DIM,
        text_hidden_size=HIDDEN, vt_hidden_size=V_HIDDEN, vt_intermediate_size=V_MLP,
        vt_num_attention_heads=V_HEADS, vt_num_hidden_layers=V_LAYERS)
    return dict(
        architectures=["KimiK3ForConditionalGeneration"],
        auto_map={"AutoConfig": "configuration_kimi_k3.KimiK3Config",
                  "AutoModel": "modeling_kimi_k3.KimiK3ForConditionalGeneration",
                  "AutoModelForCausalLM": "modeling_kimi_k3.KimiK3ForConditionalGeneration"},
        model_type="kimi_k3", dtype="bfloat16", ignore_index=-100,
        image_placeholder="<|kimi_image_placeholder|>", media_placeholder_token_id=tok.MEDIA_PAD,
        tie_word_embeddings=False, **ends, text_config=text, vision_config=vision)


def draft():
    return dict(
        model_type="k3_dspark", architectures=["K3DSparkModel"], dtype="bfloat16", hidden_size=HIDDEN,
        intermediate_size=D_MLP, num_hidden_layers=D_LAYERS, num_attention_heads=D_HEADS,
        num_key_value_heads=D_HEADS, q_lora_rank=D_QLORA, kv_lora_rank=D_KVLORA, qk_nope_head_dim=D_NOPE,
        qk_rope_head_dim=D_PE, v_head_dim=D_V, mla_use_nope=False, mla_use_output_gate=False,
        hidden_act="silu", rms_norm_eps=EPS, vocab_size=VOCAB, draft_vocab_size=VOCAB,
        max_position_embeddings=32768, rope_theta=THETA,
        rope_parameters=dict(rope_type="yarn", factor=YARN_FACTOR,
                             original_max_position_embeddings=YARN_ORIG, rope_theta=THETA, beta_fast=32,
                             beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
        num_target_layers=len(TAPS), target_layer_ids=list(TAPS), target_hidden_size=HIDDEN,
        target_num_hidden_layers=LAYERS, mask_token_id=tok.MASK, markov_rank=D_MARKOV,
        markov_head_type="vanilla", enable_confidence_head=True, confidence_head_with_markov=True,
        bos_token_id=tok.BOS, eos_token_id=tok.EOM, pad_token_id=tok.PAD)


PREPROCESSOR = {
    "auto_map": {"AutoProcessor": "kimi_k3_processor.KimiK3Processor",
                 "AutoImageProcessor": "kimi_k3_vision_processing.KimiK3VisionProcessor"},
    "media_proc_cfg": {
        "in_patch_limit": 65536, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512,
        "in_patch_limit_each_frame": 16384, "in_patch_limit_video": 655360, "sample_fps": 8.0,
        "max_num_frames_each_video": None, "temporal_merge_kernel_size": 4,
        "timestamp_mode": "hh:mm:ss.fff",
        "transparent_bg_config": {"pattern": "chessboard", "square_size": 8,
                                  "chessboard_square_on_top_left": True, "white": 255, "gray": 180},
        "transparent_bg_fill_stage": "after_resize"}}
