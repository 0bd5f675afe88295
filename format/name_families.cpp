#include "format/name_families.h"

#include <array>

namespace dspack::format {
namespace {

// Hugging Face transformers: DeepSeek-V2 and V3, Kimi-K2, Qwen's mixtures of experts, GLM, gpt-oss.
constexpr NamePart kTransformersLayer[] = {
    {"self_attn.", Role::attention},
    {"linear_attn.", Role::attention},
    {"input_layernorm.", Role::norm},
    {"post_attention_layernorm.", Role::norm},
    {"mlp.gate.", Role::router},
    {"mlp.router.", Role::router},
    {"mlp.expert_bias", Role::router},
    {"mlp.shared_experts.", Role::shared_expert},
    {"mlp.shared_expert.", Role::shared_expert},
    {"mlp.shared_expert_gate.", Role::shared_expert},
    {"mlp.gate_proj.", Role::dense_mlp},
    {"mlp.up_proj.", Role::dense_mlp},
    {"mlp.down_proj.", Role::dense_mlp},
    {"enorm.", Role::mtp},
    {"hnorm.", Role::mtp},
    {"eh_proj.", Role::mtp},
    {"shared_head.", Role::mtp},
    {"embed_tokens.", Role::mtp},
};
constexpr NamePart kTransformersGlobal[] = {
    {"embed_tokens.", Role::embed},
    {"norm.", Role::head},
    {"lm_head.", Role::head},
};

// Also transformers, for models whose authors named the matrices: Mixtral, Phi-MoE, MiniMax, Kimi-K3.
constexpr NamePart kMixtralLayer[] = {
    {"block_sparse_moe.gate.", Role::router},
    {"block_sparse_moe.e_score_correction_bias", Role::router},
    {"block_sparse_moe.shared_experts.", Role::shared_expert},
};

// Llama-4, Jamba, LFM2.
constexpr NamePart kLlamaLayer[] = {
    {"feed_forward.router.", Role::router},       {"feed_forward.gate.", Role::router},
    {"feed_forward.expert_bias", Role::router},   {"feed_forward.shared_expert.", Role::shared_expert},
    {"feed_forward.gate_proj.", Role::dense_mlp}, {"feed_forward.up_proj.", Role::dense_mlp},
    {"feed_forward.down_proj.", Role::dense_mlp},
};

// DeepSeek's own: what its inference code reads, and DeepSeek-V4 as released.
constexpr NamePart kDeepSeekLayer[] = {
    {"attn.", Role::attention},
    {"attn_norm.", Role::norm},
    {"ffn_norm.", Role::norm},
    {"hc_attn_", Role::residual},  // DeepSeek-V4
    {"hc_ffn_", Role::residual},
    {"ffn.gate.", Role::router},
    {"ffn.shared_experts.", Role::shared_expert},
    {"ffn.w1.", Role::dense_mlp},
    {"ffn.w2.", Role::dense_mlp},
    {"ffn.w3.", Role::dense_mlp},
    {"e_proj.", Role::mtp},
    {"h_proj.", Role::mtp},
    {"main_proj.", Role::mtp},  // drafting stages of DeepSeek-V4
    {"main_norm.", Role::mtp},
    {"markov_head.", Role::mtp},
    {"confidence_head.", Role::mtp},
    {"norm.", Role::mtp},
    {"head.", Role::mtp},
    {"emb.", Role::mtp},
    {"hc_head_", Role::mtp},
};
constexpr NamePart kDeepSeekGlobal[] = {
    {"embed.", Role::embed},
    {"head.", Role::head},
    {"hc_head_", Role::head},
};

// Mistral's own: Mistral-Large-3.
constexpr NamePart kMistralLayer[] = {
    {"attention.", Role::attention},
    {"attention_norm.", Role::norm},
    {"gate.", Role::router},
    {"shared_experts.", Role::shared_expert},
    {"feed_forward.w1.", Role::dense_mlp},
    {"feed_forward.w2.", Role::dense_mlp},
    {"feed_forward.w3.", Role::dense_mlp},
};
constexpr NamePart kMistralGlobal[] = {
    {"tok_embeddings.", Role::embed},
    {"output.", Role::head},
};

constexpr NameFamily kFamilies[] = {
    {.author = NameAuthor::transformers,
     .experts = "mlp.experts.",
     .layer = kTransformersLayer,
     .global = kTransformersGlobal},
    {.author = NameAuthor::transformers, .experts = "block_sparse_moe.experts.", .layer = kMixtralLayer, .global = {}},
    {.author = NameAuthor::transformers, .experts = "feed_forward.experts.", .layer = kLlamaLayer, .global = {}},
    {.author = NameAuthor::deepseek, .experts = "ffn.experts.", .layer = kDeepSeekLayer, .global = kDeepSeekGlobal},
    {.author = NameAuthor::mistral, .experts = "experts.", .layer = kMistralLayer, .global = kMistralGlobal},
};

constexpr std::string_view kPrefixes[] = {
    "model.language_model.",  // Qwen3-VL, Qwen3.5, GLM-4.5V
    "model.",
    "language_model.model.",  // Kimi-K2.5, Llama-4, InternVL
    "language_model.",
    "thinker.model.",  // Qwen3-Omni; its "talker." is another model with experts of the same numbers
    "thinker.",
    "",
};

constexpr NameStack kStacks[] = {
    {.begin = "layers.", .mtp = false},
    {.begin = "mtp.layers.", .mtp = true},  // Qwen3-Next, Qwen3.5
    {.begin = "mtp.", .mtp = true},         // DeepSeek-V4
};

constexpr ProjectionWord kProjections[] = {
    {"gate_up_proj", 0}, {"gate_proj", 0}, {"up_proj", 1}, {"down_proj", 2},
    {"w13", 0},          {"w1", 0},        {"w3", 1},      {"w2", 2},
};

}  // namespace

std::span<const NameFamily> name_families() {
  return kFamilies;
}

std::span<const std::string_view> name_prefixes() {
  return kPrefixes;
}

std::span<const NameStack> name_stacks() {
  return kStacks;
}

std::span<const ProjectionWord> projection_words() {
  return kProjections;
}

}  // namespace dspack::format
