#include "tests/runtime/support/family.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "format/json.h"
#include "runtime/generate/session.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::test {

std::filesystem::path family_folder() {
  return std::filesystem::path(DSPACK_TEST_DATA) / "family";
}

format::Json read_json(const std::filesystem::path& path) {
  auto json = format::parse_json(read_file(path), format::kManifestDocument);
  REQUIRE_MESSAGE(json, path.string());
  return std::move(*json);
}

std::vector<std::string> family_variants() {
  const format::Json index = read_json(family_folder() / "family.json");
  std::vector<std::string> names;
  for (const auto& [name, facts] : index.at("variants").items())
    names.push_back(name);
  REQUIRE(names.size() >= 15);
  return names;
}

Result<std::unique_ptr<runtime::LoadedModel>> load_folder(const std::filesystem::path& folder,
                                                          const runtime::LoadOptions& options) {
  return runtime::LoadedModel::load(open_checkpoint(folder), options, {});
}

runtime::Session session_of(runtime::LoadedModel& loaded) {
  auto session = loaded.start_session();
  REQUIRE_MESSAGE(session, (session ? "" : session.error().message));
  return std::move(*session);
}

std::vector<float> logits_of(runtime::LoadedModel& loaded, const std::vector<uint32_t>& tokens) {
  runtime::Session session = session_of(loaded);
  std::vector<float> logits;
  const auto done = session.logits(
      tokens, 0, [&](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); }, {});
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return logits;
}

AlteredVariant::AlteredVariant(const std::string& name) : config(read_json(family_folder() / name / "config.json")) {
  for (auto& [tensor_name, stored] : read_safetensors(family_folder() / name / "model.safetensors")) {
    tensors.push_back({tensor_name, std::string(to_string(stored.dtype)), stored.shape, std::move(stored.bytes)});
  }
}

RawTensor& AlteredVariant::tensor(const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &RawTensor::name);
  REQUIRE_MESSAGE(found != tensors.end(), name);
  return *found;
}

void AlteredVariant::remove(const std::string& name) {
  REQUIRE(std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name == name; }) == 1);
}

const std::filesystem::path& AlteredVariant::write() {
  folder_.write("model.safetensors", safetensors_file(tensors));
  folder_.write("config.json", config.dump());
  return folder_.path();
}

}  // namespace dspack::test
