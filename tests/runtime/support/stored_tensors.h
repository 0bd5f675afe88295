// A safetensors file in memory, for tests that compare with stored tensors. Missing data fails the test: a check that
// did not run must not look like one that passed.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "format/dtype.h"

namespace dspack::test {

std::string read_file(const std::filesystem::path& path);

struct StoredTensor {
  Dtype dtype = Dtype::u8;
  std::vector<uint64_t> shape;
  std::string bytes;

  template <class T>
  [[nodiscard]] std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// FP32 values for compare() of numeric.h.
  [[nodiscard]] std::vector<double> as_double() const {
    const std::vector<float> values = as<float>();
    return {values.begin(), values.end()};
  }
};

std::map<std::string, StoredTensor> read_safetensors(const std::filesystem::path& path);

std::filesystem::path golden_folder();
std::filesystem::path tiny_folder();

struct GoldenPrompt {
  std::string name;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> continuation;
  std::vector<uint32_t> logits_tokens;
  bool ends_with_eos = false;
};

std::vector<GoldenPrompt> golden_prompts();

}  // namespace dspack::test
