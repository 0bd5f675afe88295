// Launches of a token, which docs/cuda-kernels.md states: of small models with all that V3 and V2-Lite have, whose
// products take the same kernels.
#include <doctest/doctest.h>

#include <random>

#include "kernels/cuda/host/cuda_device.h"
#include "runtime/generate/session.h"
#include "runtime/model/expected_tensors.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/support/emulated_gpu/emulator.h"
#include "tests/support/numeric.h"

namespace dspack::test::launches_test {
namespace {

using kernels::Precision;

/// Small numbers, none of them NaN or infinite.
std::string random_bytes(const format::TensorEntry& tensor, std::mt19937& random) {
  std::string bytes;
  const auto append = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto number = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  while (bytes.size() < tensor.range.size()) {
    switch (tensor.dtype) {
      case Dtype::f8_e4m3: append(static_cast<uint8_t>((random() & 0xbfU))); break;
      case Dtype::bf16: append(f32_to_bf16(number(-0.1F, 0.1F))); break;
      default: append(number(0.01F, 0.05F)); break;
    }
  }
  return bytes;
}

/// A variant of the family with more than one layer of each kind, and sizes that common kernels take.
void alter(AlteredVariant& variant, uint32_t dense, uint32_t moe) {
  format::Json& config = variant.config;
  config["hidden_size"] = 256;
  config["intermediate_size"] = 384;
  config["moe_intermediate_size"] = 128;
  config["kv_lora_rank"] = 64;
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 4;
  config["qk_nope_head_dim"] = 32;
  config["v_head_dim"] = 32;
  if (!config["q_lora_rank"].is_null()) config["q_lora_rank"] = 128;
  config["first_k_dense_replace"] = dense;
  config["num_hidden_layers"] = dense + moe;
  const auto catalogue = required(runtime::expected_tensors(required(runtime::parse_model_config(config.dump()))));
  std::mt19937 random(1);
  variant.tensors.clear();
  for (const format::TensorEntry& tensor : catalogue.tensors())
    variant.tensors.push_back(
        {tensor.name, std::string(to_string(tensor.dtype)), tensor.shape, random_bytes(tensor, random)});
}

struct Counted {
  uint64_t launches = 0;  // of a token that is decoded
  std::vector<float> logits;
};

/// `layers`: of the model's, in this order; empty: all.
Counted count(const std::filesystem::path& folder, Precision precision, const format::LayerMap& layers = {}) {
  runtime::LoadOptions options;
  if (!layers.empty()) options.layers = layers;
  options.context = 64;
  options.threads = 1;
  options.io = runtime::IoMethod::buffered;
  options.device.kind = runtime::DeviceKind::cuda;
  options.device.precision = precision;
  options.device.open_gpu = [&](size_t) {
    gpu::configure_emulator({});
    return kernels::make_cuda_device({.precision = precision, .cublaslt = kernels::kNoCublasLt});
  };
  const auto loaded = required(load_folder(folder, options));
  const runtime::Engine engine = loaded->engine();
  runtime::Sequence sequence = required(loaded->model().make_sequence(runtime::Model::Drafting::none));
  Counted counted;
  for (const uint32_t token : {3U, 1U, 4U, 1U}) {
    const uint64_t before = gpu::emulator_counts().launches;
    engine.model.experts().begin_pass({.phase = runtime::Phase::decode, .rows = 1, .draft_rows = 0});
    const auto states = required(engine.model.forward({.sequence = sequence, .tokens = {&token, 1}}, engine.scratch, {},
                                                      {.end = engine.picker.end_of_pass(1, {})}));
    counted.launches = gpu::emulator_counts().launches - before;
    counted.logits.resize(loaded->model().config().vocab);
    engine.picker.logits(states.final, counted.logits);
  }
  return counted;
}

Counted count(const std::string& variant, uint32_t dense, uint32_t moe, Precision precision) {
  AlteredVariant altered(variant);
  alter(altered, dense, moe);
  return count(altered.write(), precision);
}

struct Launches {
  uint64_t dense = 0, moe = 0, rest = 0;
  [[nodiscard]] bool operator==(const Launches&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Launches& launches) {
  return out << launches.dense << " a dense layer, " << launches.moe << " a MoE layer, " << launches.rest << " besides";
}

Launches launches_of(const std::string& variant, Precision precision) {
  const uint64_t least = count(variant, 1, 1, precision).launches;
  Launches launches{.dense = count(variant, 2, 1, precision).launches - least,
                    .moe = count(variant, 1, 2, precision).launches - least};
  launches.rest = least - launches.dense - launches.moe;
  return launches;
}

}  // namespace

TEST_CASE("cuda: launches of a token that V3 decodes") {
  CHECK(launches_of("v3", Precision::exact) == Launches{.dense = 13, .moe = 12, .rest = 3});
  CHECK(launches_of("v3", Precision::split) == Launches{.dense = 13, .moe = 12, .rest = 3});
  CHECK(launches_of("v3", Precision::bf16) == Launches{.dense = 14, .moe = 13, .rest = 3});
  CHECK(launches_of("v3", Precision::fp8) == Launches{.dense = 14, .moe = 13, .rest = 3});
}

TEST_CASE("cuda: launches of a token that V2-Lite decodes") {
  CHECK(launches_of("v2-lite", Precision::exact) == Launches{.dense = 12, .moe = 11, .rest = 3});
  CHECK(launches_of("v2-lite", Precision::bf16) == Launches{.dense = 13, .moe = 12, .rest = 3});
}

TEST_CASE("cuda: launches of a token that V4 decodes, by the entries of a layer") {
  const auto folder = family_folder() / "v4";
  for (const auto& [precision, window, all, chosen, rest] :
       {std::tuple(Precision::exact, 27U, 30U, 37U, 5U), {Precision::bf16, 30U, 33U, 40U, 5U}}) {
    CAPTURE(to_string(precision));
    const auto of_layer = [&, precision = precision](uint32_t layer) {
      return count(folder, precision, {LayerId(layer), LayerId(layer)}).launches -
             count(folder, precision, {LayerId(layer)}).launches;
    };
    CHECK(of_layer(0) == window);
    CHECK(of_layer(3) == all);
    CHECK(of_layer(4) == chosen);
    CHECK(count(folder, precision, {LayerId(4)}).launches - chosen == rest);
  }
}

}  // namespace dspack::test::launches_test
