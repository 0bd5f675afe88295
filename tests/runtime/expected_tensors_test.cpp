// What is expected of config.json alone, beside checkpoints that are there.
#include "runtime/model/expected_tensors.h"

#include <doctest/doctest.h>

#include "runtime/generate/loaded_model.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/open_checkpoint.h"

namespace dspack::runtime::expected_tensors_test {
namespace {

/// Whether a plain run reads it.
bool is_read(const format::TensorEntry& tensor, const ModelConfig& config) {
  return !(tensor.place.layer && tensor.place.layer->value >= config.layers) &&
         tensor.name.find("inv_freq") == std::string::npos;
}

void check_same(const std::filesystem::path& folder) {
  CAPTURE(folder.string());
  const test::OpenedCheckpoint there(folder);
  const auto expected = expected_tensors(there.config);
  REQUIRE_MESSAGE(expected, (expected ? "" : expected.error().message));
  size_t count = 0;
  for (const format::TensorEntry& tensor : there.checkpoint().tensors()) {
    if (!is_read(tensor, there.config)) continue;
    CAPTURE(tensor.name);
    ++count;
    const format::TensorEntry* const found = expected->find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->shape == tensor.shape);
    CHECK(found->dtype == tensor.dtype);
    CHECK(found->range.size() == tensor.range.size());
  }
  CHECK(expected->tensors().size() == count);
}

}  // namespace

TEST_CASE("expected tensors: names, shapes and types are those of the checkpoints that there are") {
  for (const char* variant : {"v2", "v2-lite", "v2.5", "v3", "v3.1", "v3.2", "moonlight", "fp8-blocks", "glm-4.7-flash",
                              "v3.2-sparse", "glm-5", "glm-5.2"})
    check_same(test::family_folder() / variant);
  check_same(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
}

TEST_CASE("expected tensors: of a form whose sizes config.json does not tell, nothing is guessed") {
  test::OpenedCheckpoint there(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
  there.config.quantization.bits = 4;
  const auto unknown = expected_tensors(there.config);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().kind == ErrorKind::unsupported);
  for (const char* variant : {"fp8-channel", "fp8-tensor"})
    CHECK_FALSE(expected_tensors(test::OpenedCheckpoint(test::family_folder() / variant).config));
}

TEST_CASE("expected tensors: a config.json does not decide how much memory a plan takes") {
  test::OpenedCheckpoint there(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
  there.config.layers = 1 << 20;
  CHECK(expected_tensors(there.config).error().kind == ErrorKind::invalid);
  there.config.layers = 4;
  there.config.hidden = there.config.vocab = UINT32_MAX;
  CHECK_FALSE(expected_tensors(there.config));
}

}  // namespace dspack::runtime::expected_tensors_test
