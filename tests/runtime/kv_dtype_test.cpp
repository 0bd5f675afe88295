// A KV cache of a smaller type: what it costs in exactness, and that nothing else depends on it.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/generate/session.h"
#include "tests/runtime/support/expanded_attention.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::kv_dtype_test {
namespace {

enum class Form { absorbed, expanded };

std::vector<float> logits_of(const test::RigOptions& options, const std::vector<uint32_t>& tokens, uint32_t chunk = 0,
                             Form form = Form::absorbed) {
  test::RecordingModel rig(test::tiny_folder(), options);
  Session session = rig.session();
  test::ExpandedAttention expanded(rig.context(), rig.model(), session.sequence(),
                                   static_cast<uint32_t>(tokens.size()));
  std::vector<float> logits;
  const auto done = session.logits(
      tokens, chunk, [&](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); }, {},
      form == Form::expanded ? &expanded : nullptr);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return logits;
}

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

TEST_CASE("KV cache types: the error of the logits, in both forms of attention") {
  const auto prompts = test::golden_prompts();
  for (const auto& [dtype, most] :
       {std::pair(Dtype::bf16, 1e-3), std::pair(Dtype::f16, 1e-5), std::pair(Dtype::f8_e4m3, 1e-3)}) {
    CAPTURE(to_string(dtype));
    double worst = 0;
    size_t rows = 0;
    size_t same = 0;
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<uint32_t>& tokens = prompts[i].logits_tokens;
      const size_t vocab = 1152;
      const std::vector<float> exact = logits_of({}, tokens);
      const std::vector<float> got = logits_of({.kv_dtype = dtype}, tokens);
      const std::vector<float> expanded = logits_of({.kv_dtype = dtype}, tokens, 0, Form::expanded);
      const test::ErrorReport report = test::compare(got, doubles(exact), vocab);
      worst = std::max(worst, report.nmse);
      // The forms round the same latents; their own sums differ as they do with FP32.
      CHECK(test::compare(expanded, doubles(got), vocab).nmse < 1e-6);
      for (size_t row = 0; row < tokens.size(); ++row, ++rows) {
        const auto best = [&](const std::vector<float>& all) {
          const auto part = std::span(all).subspan(row * vocab, vocab);
          return std::ranges::max_element(part) - part.begin();
        };
        same += best(exact) == best(got) ? 1 : 0;
      }
    }
    MESSAGE(to_string(dtype), ": worst NMSE ", worst, ", the same first token in ", same, " of ", rows, " rows");
    CHECK(worst > 0);
    CHECK(worst < most);
    CHECK(same * 100 >= rows * 98);
  }
}

TEST_CASE("KV cache types: the bits do not depend on chunks, threads or waves") {
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f8_e4m3}) {
    const std::vector<float> wanted = logits_of({.kv_dtype = dtype}, tokens);
    CHECK(test::first_difference(logits_of({.threads = 2, .wave_rows = 5, .kv_dtype = dtype}, tokens, 3), wanted) ==
          wanted.size());
  }
}

TEST_CASE("KV cache types: what they take") {
  const auto device = kernels::make_cpu_device({.threads = 1, .instruction_set = {}});
  REQUIRE(device);
  const auto planes = [](kernels::LatentShape shape, Dtype dtype) {
    ModelConfig config;
    config.kv_rank = shape.latent_dim;
    config.nope_dim = 1;
    config.rope_dim = shape.rope_dim;
    return make_attention(config, {.cache_dtype = dtype}, LayerId(0))->cache_planes();
  };
  CHECK(KvCache::make(**device, 3, 5, planes({5, 2}, Dtype::f32))->size_bytes() == 3 * 5 * 7 * 4);
  CHECK(KvCache::make(**device, 3, 5, planes({5, 2}, Dtype::bf16))->size_bytes() == 3 * 5 * 7 * 2);
  CHECK(KvCache::make(**device, 3, 5, planes({512, 64}, Dtype::f8_e4m3))->size_bytes() == 3 * 5 * 656);
  const auto cache = KvCache::make(**device, 3, 5, planes({24, 16}, Dtype::f8_e4m3));
  CHECK(cache->rows(2, "latent").at(3).offset_bytes == (2 * 5 + 3) * (32 + 16 + 32));
  CHECK_FALSE(KvCache::bytes_of(UINT64_MAX, 2, planes({1, 0}, Dtype::bf16)));
  CHECK_FALSE(KvCache::make(**device, UINT32_MAX, UINT32_MAX, planes({UINT32_MAX, 0}, Dtype::f32)));
}

TEST_CASE("KV cache: planes have their own rows, which begin where vectors can be loaded") {
  const auto device = kernels::make_cpu_device({.threads = 1, .instruction_set = {}});
  REQUIRE(device);
  const std::vector<CachePlane> planes = {{.name = "latent", .width = 3, .dtype = Dtype::f32, .row_bytes = 12},
                                          {.name = "index keys", .width = 5, .dtype = Dtype::bf16, .row_bytes = 10}};
  const auto cache = KvCache::make(**device, 2, 7, planes);
  REQUIRE(cache);
  CHECK(cache->size_bytes() == 192 + 2 * 7 * 10);  // the first plane takes 168
  CHECK(KvCache::bytes_of(2, 7, planes) == cache->size_bytes());
  CHECK(cache->rows(1, "latent").at(6).offset_bytes == (7 + 6) * 12);
  const CacheRows keys = cache->rows(1, "index keys");
  CHECK(keys.at(0).offset_bytes == 192 + 7 * 10);
  CHECK(keys.dtype == Dtype::bf16);
  CHECK(keys.rows == 7);
}

}  // namespace
}  // namespace dspack::runtime::kv_dtype_test
