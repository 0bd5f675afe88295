#include "tests/runtime/support/stored_tensors.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "format/json.h"
#include "format/safetensors.h"

namespace dspack::test {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path.string(), " is missing; tests/tools makes the test data");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, StoredTensor> read_safetensors(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  const auto length = format::parse_header_length(file.substr(0, 8), file.size());
  REQUIRE(length);
  const auto header = format::parse_header(std::string_view(file).substr(8, *length), file.size());
  REQUIRE(header);
  std::map<std::string, StoredTensor> tensors;
  for (const format::TensorInfo& info : header->tensors) {
    tensors[info.name] = {.dtype = info.dtype,
                          .shape = info.shape,
                          .bytes = file.substr(header->data_start + info.data.begin, info.data.size())};
  }
  return tensors;
}

std::filesystem::path golden_folder() {
  return std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3-golden";
}
std::filesystem::path tiny_folder() {
  return std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3";
}

std::vector<GoldenPrompt> golden_prompts() {
  const auto json = format::parse_json(read_file(golden_folder() / "prompts.json"), format::kManifestDocument);
  REQUIRE(json);
  std::vector<GoldenPrompt> prompts;
  for (const format::Json& prompt : json->at("prompts")) {
    prompts.push_back({.name = prompt.at("name"),
                       .tokens = prompt.at("token_ids"),
                       .continuation = prompt.at("continuation_ids"),
                       .logits_tokens = prompt.at("logits_tokens"),
                       .ends_with_eos = prompt.at("ends_with_eos")});
  }
  REQUIRE(prompts.size() >= 6);
  return prompts;
}

}  // namespace dspack::test
