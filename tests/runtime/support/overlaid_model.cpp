#include "tests/runtime/support/overlaid_model.h"

#include <doctest/doctest.h>

#include <map>

#include "format/json.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {
namespace {

void merge(std::map<std::string, StoredTensor>& into, const std::filesystem::path& file) {
  for (auto& [name, tensor] : read_safetensors(file))
    into[name] = std::move(tensor);
}

}  // namespace

std::filesystem::path overlay(const std::string& name) {
  return std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3-mtp" / (name + ".safetensors");
}

OverlaidModel::OverlaidModel(const Changes& changes) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(tiny_folder()))
    if (entry.path().extension() == ".safetensors") merge(tensors, entry.path());
  for (const auto& path : changes.overlays)
    merge(tensors, path);
  std::vector<RawTensor> kept;
  for (const auto& [name, tensor] : tensors) {
    if (!changes.drop_prefix.empty() && name.starts_with(changes.drop_prefix)) continue;
    kept.push_back(
        {.name = name, .dtype = std::string(to_string(tensor.dtype)), .shape = tensor.shape, .bytes = tensor.bytes});
  }
  folder_.write("model.safetensors", safetensors_file(kept));
  auto config = format::parse_json(read_file(tiny_folder() / "config.json"), format::kManifestDocument);
  REQUIRE(config);
  for (const auto& [key, value] : changes.config.items())
    (*config)[key] = value;
  folder_.write("config.json", config->dump());
}

}  // namespace dspack::test
