#include "runtime/model/expected_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>

#include "format/base/size.h"
#include "runtime/text/regex.h"

namespace dspack::runtime {
namespace {

/// Far above any release; more would only cost time and memory.
constexpr uint64_t kMaxTensors = 600'000;

/// Modules that a quantised release keeps in BF16.
class Unquantised {
 public:
  static Result<Unquantised> compile(const std::vector<std::string>& written) {
    Unquantised all;
    for (const std::string& one : written) {
      if (!one.starts_with("re:") && one.find('*') == std::string::npos) {
        all.names_.insert(one);
        continue;
      }
      auto pattern = Regex::compile(one.starts_with("re:") ? one.substr(3) : of_stars(one));
      if (!pattern) return pattern.error().in("config.json: among the modules that are not quantised");
      all.patterns_.push_back({.regex = std::move(*pattern), .is_whole = !one.starts_with("re:")});
    }
    return all;
  }
  /// Errors: invalid (a pattern that takes too long).
  Result<bool> has(const std::string& module) {
    if (names_.contains(module)) return true;
    for (const Pattern& pattern : patterns_) {
      WorkBudget budget(module.size());
      TRY(pattern.regex.find_all(module, budget, *scratch_, matches_));
      // As Python's re.match; a name with stars must match as a whole.
      if (matches_.empty() || matches_.front().begin != 0) continue;
      if (!pattern.is_whole || matches_.front().end == module.size()) return true;
    }
    return false;
  }

 private:
  struct Pattern {
    Regex regex;
    bool is_whole;
  };

  /// "a.b*" as a regular expression.
  static std::string of_stars(std::string_view text) {
    std::string pattern;
    while (true) {
      const size_t star = std::min(text.find('*'), text.size());
      pattern += escape_pattern(text.substr(0, star));
      if (star == text.size()) return pattern;
      pattern += R"([\s\S]*)";
      text.remove_prefix(star + 1);
    }
  }

  std::set<std::string> names_;  // plain names, without patterns
  std::vector<Pattern> patterns_;
  std::unique_ptr<RegexScratch> scratch_ = std::make_unique<RegexScratch>();
  std::vector<Regex::Match> matches_;
};

class Expected {
 public:
  Expected(const ModelConfig& config, Unquantised unquantised)
      : config_(config), unquantised_(std::move(unquantised)) {}

  void add_all() {
    if (config_.window) return add_window_model();
    add("model.embed_tokens.weight", Dtype::bf16, {config_.vocab, config_.hidden});
    for (uint32_t layer = 0; layer < config_.layers; ++layer)
      add_layer(LayerId(layer));
    add(std::string(kTransformersNames.final_norm), Dtype::bf16, {config_.hidden});
    if (!config_.ties_head) add(std::string(kTransformersNames.head), Dtype::bf16, {config_.vocab, config_.hidden});
  }
  /// Errors: invalid (a pattern of config.json that takes too long).
  [[nodiscard]] Result<std::vector<format::TensorEntry>> take() {
    if (error_) return *error_;
    return std::move(tensors_);
  }

 private:
  using FormKind = format::ExpectedForm::Kind;

  void add(const std::string& name, Dtype dtype, std::vector<uint64_t> shape) {
    uint64_t bytes = bits_of(dtype) / 8;
    for (const uint64_t dimension : shape)
      bytes = saturating_mul(bytes, dimension);
    tensors_.push_back({.name = name,
                        .place = format::parse_tensor_name(name),
                        .dtype = dtype,
                        .shape = std::move(shape),
                        .file = 0,
                        .range = {at_, saturating_add(at_, bytes)},
                        .digest = {}});
    at_ = saturating_add(at_, bytes);
  }

  /// A matrix that quantised releases quantise.
  void add_linear(const std::string& name, uint64_t out, uint64_t in) {
    const auto left = unquantised_.has(name);
    if (!left && !error_) error_ = left.error();
    const auto kind = !left || *left ? FormKind::unknown : config_.expected.kind;
    const format::Quantization& stored = config_.quantization;
    switch (kind) {
      case FormKind::unknown: return add(name + ".weight", Dtype::bf16, {out, in});
      case FormKind::fp8_blocks:
        add(name + ".weight", Dtype::f8_e4m3, {out, in});
        return add(name + ".weight_scale_inv", Dtype::f32,
                   {ceil_div(out, stored.block->out), ceil_div(in, stored.block->in)});
      case FormKind::nvfp4:
        add(name + ".weight", Dtype::u8, {out, ceil_div(in, 2)});
        add(name + ".weight_scale", Dtype::f8_e4m3, {out, ceil_div(in, stored.group.value_or(16))});
        add(name + ".weight_scale_2", Dtype::f32, {});
        return add(name + ".input_scale", Dtype::f32, {});
      case FormKind::packed:
        add(name + ".weight_packed", Dtype::i32, {out, ceil_div(in, 32 / *stored.bits)});
        add(name + ".weight_scale", Dtype::bf16, {out, ceil_div(in, *stored.group)});
        return add(name + ".weight_shape", Dtype::i64, {2});
    }
  }

  // DeepSeek-V4 as released: FP8 with E8M0 scales, and experts in FP4 if config.json says so.
  void add_fp8(const std::string& name, uint64_t out, uint64_t in) {
    if (config_.expected.kind != FormKind::fp8_blocks) return add(name + ".weight", Dtype::bf16, {out, in});
    add(name + ".weight", Dtype::f8_e4m3, {out, in});
    add(name + ".scale", Dtype::f8_e8m0,
        {ceil_div(out, config_.quantization.block->out), ceil_div(in, config_.quantization.block->in)});
  }
  void add_expert(const std::string& name, uint64_t out, uint64_t in) {
    if (!config_.expects_fp4) return add_fp8(name, out, in);
    add(name + ".weight", Dtype::i8, {out, ceil_div(in, 2)});
    add(name + ".scale", Dtype::f8_e8m0, {out, ceil_div(in, 32)});
  }

  void add_mixture(const std::string& name, uint64_t values, uint64_t scales) {
    add(name + "_fn", Dtype::f32, {values, uint64_t{config_.streams->count} * config_.hidden});
    add(name + "_base", Dtype::f32, {values});
    add(name + "_scale", Dtype::f32, {scales});
  }

  void add_compressor(const std::string& prefix, uint64_t dim, uint64_t every) {
    const uint64_t width = every == ModelConfig::kChosenEntryPositions ? 2 * dim : dim;
    add(prefix + "wkv.weight", Dtype::bf16, {width, config_.hidden});
    add(prefix + "wgate.weight", Dtype::bf16, {width, config_.hidden});
    add(prefix + "norm.weight", Dtype::bf16, {dim});
    add(prefix + "ape", Dtype::f32, {every, width});
  }

  void add_window_attention(LayerId layer, const std::string& prefix) {
    const WindowConfig& window = *config_.window;
    const uint64_t dim = config_.query_dim();
    const uint64_t heads = config_.heads;
    const uint64_t projected = uint64_t{window.out_groups} * window.out_rank;
    add_fp8(prefix + "wq_a", config_.q_rank, config_.hidden);
    add(prefix + "q_norm.weight", Dtype::bf16, {config_.q_rank});
    add_fp8(prefix + "wq_b", heads * dim, config_.q_rank);
    add_fp8(prefix + "wkv", dim, config_.hidden);
    add(prefix + "kv_norm.weight", Dtype::bf16, {dim});
    add_fp8(prefix + "wo_a", projected, heads * dim / window.out_groups);
    add_fp8(prefix + "wo_b", config_.hidden, projected);
    add(prefix + "attn_sink", Dtype::f32, {heads});
    const uint64_t every = config_.entry_positions(layer);
    if (every > 0) add_compressor(prefix + "compressor.", dim, every);
    if (!config_.has_indexer(layer)) return;
    const IndexerConfig& indexer = *config_.indexer;
    add_fp8(prefix + "indexer.wq_b", uint64_t{indexer.heads} * indexer.dim, config_.q_rank);
    add(prefix + "indexer.weights_proj.weight", Dtype::bf16, {indexer.heads, config_.hidden});
    add_compressor(prefix + "indexer.compressor.", indexer.dim, every);
  }

  void add_window_layer(LayerId layer) {
    const std::string prefix = kDeepseekNames.layer(layer) + ".";
    const uint64_t count = config_.streams->count;
    add(prefix + "attn_norm.weight", Dtype::bf16, {config_.hidden});
    add(prefix + "ffn_norm.weight", Dtype::bf16, {config_.hidden});
    add_mixture(prefix + "hc_attn", count * (2 + count), 3);
    add_mixture(prefix + "hc_ffn", count * (2 + count), 3);
    add_window_attention(layer, prefix + "attn.");
    add(prefix + "ffn.gate.weight", Dtype::bf16, {config_.experts, config_.hidden});
    if (config_.is_by_token(layer)) {
      add(prefix + "ffn.gate.tid2eid", Dtype::i64, {config_.vocab, config_.top_k});
    } else {
      add(prefix + "ffn.gate.bias", Dtype::f32, {config_.experts});
    }
    const uint64_t shared = uint64_t{config_.shared_experts} * config_.expert_inner;
    const std::array<std::array<uint64_t, 2>, 3> sides = {{{0, 1}, {0, 1}, {1, 0}}};
    for (size_t i = 0; i < sides.size(); ++i) {
      const auto side = [&](uint64_t which, uint64_t inner) { return which == 0 ? inner : uint64_t{config_.hidden}; };
      const std::string word(kDeepseekNames.projections[i]);
      if (shared > 0)
        add_fp8(prefix + "ffn.shared_experts." + word, side(sides[i][0], shared), side(sides[i][1], shared));
      for (uint32_t expert = 0; expert < config_.experts; ++expert) {
        add_expert(kDeepseekNames.expert({layer, ExpertId(expert)}) + "." + word,
                   side(sides[i][0], config_.expert_inner), side(sides[i][1], config_.expert_inner));
      }
    }
  }

  void add_window_model() {
    add("embed.weight", Dtype::bf16, {config_.vocab, config_.hidden});
    for (uint32_t layer = 0; layer < config_.layers; ++layer)
      add_window_layer(LayerId(layer));
    add_mixture("hc_head", config_.streams->count, 1);
    add("norm.weight", Dtype::bf16, {config_.hidden});
    add("head.weight", Dtype::bf16, {config_.vocab, config_.hidden});
  }

  void add_mlp(const std::string& name, uint64_t inner) {
    add_linear(name + ".gate_proj", inner, config_.hidden);
    add_linear(name + ".up_proj", inner, config_.hidden);
    add_linear(name + ".down_proj", config_.hidden, inner);
  }

  void add_indexer(const std::string& prefix) {
    const IndexerConfig& indexer = *config_.indexer;
    add_linear(prefix + "wq_b", uint64_t{indexer.heads} * indexer.dim, config_.q_rank);
    add_linear(prefix + "wk", indexer.dim, config_.hidden);
    // F32 in DeepSeek-V3.2, BF16 in GLM-5.2, whose only F32 tensors are scales and the bias of the router.
    const Dtype norm = config_.model_type == "glm_moe_dsa" ? Dtype::bf16 : Dtype::f32;
    add(prefix + "k_norm.weight", norm, {indexer.dim});
    add(prefix + "k_norm.bias", norm, {indexer.dim});
    add(prefix + "weights_proj.weight", Dtype::bf16, {indexer.heads, config_.hidden});
  }

  void add_attention(const std::string& prefix) {
    const uint64_t heads = config_.heads;
    const uint64_t queries = heads * config_.query_dim();
    if (config_.q_rank == 0) {
      add_linear(prefix + "q_proj", queries, config_.hidden);
    } else {
      add_linear(prefix + "q_a_proj", config_.q_rank, config_.hidden);
      add(prefix + "q_a_layernorm.weight", Dtype::bf16, {config_.q_rank});
      add_linear(prefix + "q_b_proj", queries, config_.q_rank);
    }
    add_linear(prefix + "kv_a_proj_with_mqa", config_.cache_dim(), config_.hidden);
    add(prefix + "kv_a_layernorm.weight", Dtype::bf16, {config_.kv_rank});
    add_linear(prefix + "kv_b_proj", heads * (uint64_t{config_.nope_dim} + config_.value_dim), config_.kv_rank);
    add_linear(prefix + "o_proj", config_.hidden, heads * config_.value_dim);
  }

  void add_layer(LayerId layer) {
    const std::string prefix = kTransformersNames.layer(layer) + ".";
    add(prefix + "input_layernorm.weight", Dtype::bf16, {config_.hidden});
    add_attention(prefix + "self_attn.");
    if (config_.has_indexer(layer)) add_indexer(prefix + "self_attn.indexer.");
    add(prefix + "post_attention_layernorm.weight", Dtype::bf16, {config_.hidden});
    if (!config_.is_moe(layer)) return add_mlp(prefix + "mlp", config_.dense_inner);
    add(prefix + "mlp.gate.weight", Dtype::bf16, {config_.experts, config_.hidden});
    if (config_.selection_bias) add(prefix + "mlp.gate.e_score_correction_bias", Dtype::f32, {config_.experts});
    if (config_.shared_experts > 0)
      add_mlp(prefix + "mlp.shared_experts", uint64_t{config_.shared_experts} * config_.expert_inner);
    for (uint32_t expert = 0; expert < config_.experts; ++expert)
      add_mlp(kTransformersNames.expert({layer, ExpertId(expert)}), config_.expert_inner);
  }

  const ModelConfig& config_;
  Unquantised unquantised_;
  std::optional<Error> error_;
  std::vector<format::TensorEntry> tensors_;
  uint64_t at_ = 0;  // offset of the next tensor in an imaginary file
};

}  // namespace

Result<format::Checkpoint> expected_tensors(const ModelConfig& config) {
  if (config.is_quantised && config.expected.kind == format::ExpectedForm::Kind::unknown) {
    return Error{ErrorKind::unsupported,
                 "config.json: \"quantization_config\" does not tell how large the weights are; name a place that has "
                 "them, whose headers do"};
  }
  constexpr uint64_t kMaxOfAnExpert = 6;
  if (uint64_t{config.layers} * (uint64_t{config.experts} + 4) > kMaxTensors / kMaxOfAnExpert) {
    return Error{ErrorKind::invalid, fmt::format("config.json: {} layers of {} experts are more than any model has",
                                                 config.layers, config.experts)};
  }
  TRY_ASSIGN(Unquantised unquantised, Unquantised::compile(config.expected.unquantised));
  Expected expected(config, std::move(unquantised));
  expected.add_all();
  TRY_ASSIGN(auto tensors, expected.take());
  return format::Checkpoint::of(std::move(tensors));
}

}  // namespace dspack::runtime
