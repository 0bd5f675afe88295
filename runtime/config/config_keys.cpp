#include "runtime/config/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dspack::runtime {

namespace {

struct OnlyValue {
  std::string_view key;
  std::string_view json;  // the only runnable value
  std::string_view reason;
};

// An absent or null key means this value in both DeepSeek's and transformers' code.
constexpr std::array<OnlyValue, 12> kOnlyValues = {{
    {"attention_bias", "false", "only attention without bias can be run"},
    {"mlp_bias", "false", "only MLPs without bias can be run"},
    {"rope_interleave", "true", "only interleaved rotary pairs can be run"},
    {"partial_rotary_factor", "1", "qk_rope_head_dim must be rotated in full"},
    {"hidden_act", "\"silu\"", "only \"silu\" can be run"},
    {"is_encoder_decoder", "false", "only decoders can be run"},
    {"add_cross_attention", "false", "only decoders can be run"},
    {"pruned_heads", "{}", "only attention with all of its heads can be run"},
    {"use_sliding_window", "false", "only attention to all positions can be run"},
    {"sliding_window", "null", "only attention to all positions can be run"},
    {"attention_chunk_size", "null", "only attention to all positions can be run"},
    {"use_mla", "true", "only latent attention can be run"},
}};

// Keys for training, storage, provenance, the form of a program's output, sampling defaults, and token ids.
constexpr std::string_view kWithoutEffect[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "length_penalty",
    "loss_type",
    "max_length",
    "min_length",
    "model_name",
    "moe_router_dtype",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "pipeline_tag",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

constexpr std::string_view kWrapperWithoutEffect[] = {
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "ignore_index",
    "image_token_id",
    "image_token_index",
    "media_placeholder_token_id",
    "multimodal_projector_bias",
    "pad_token_id",
    "projection_hidden_size",
    "projection_layer_norm_eps",
    "projector_hidden_act",
    "spatial_merge_size",
    "torch_dtype",
    "transformers_version",
    "use_unified_vision_chunk",
    "video_placeholder",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
};

}  // namespace

void refuse_other_values(format::ConfigFields& fields, std::span<const std::string_view> elsewhere) {
  for (const OnlyValue& only : kOnlyValues) {
    if (std::ranges::find(elsewhere, only.key) != elsewhere.end()) continue;
    const format::Json* value = fields.find(only.key);
    if (value != nullptr && *value != format::Json::parse(only.json)) {
      fields.fail(ErrorKind::unsupported, only.key, only.reason);
    }
  }
}

std::span<const std::string_view> keys_without_effect() {
  return kWithoutEffect;
}

std::span<const std::string_view> wrapper_keys_without_effect() {
  return kWrapperWithoutEffect;
}

}  // namespace dspack::runtime
