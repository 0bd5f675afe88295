// The small checkpoints of tests/data/family, and altered copies of them. tests/tools/family says how they were made.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/generate/loaded_model.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {

std::filesystem::path family_folder();
format::Json read_json(const std::filesystem::path& path);
std::vector<std::string> family_variants();
Result<std::unique_ptr<runtime::LoadedModel>> load_folder(const std::filesystem::path& folder,
                                                          const runtime::LoadOptions& options = {});
/// A session of the model's own.
runtime::Session session_of(runtime::LoadedModel& loaded);
std::vector<float> logits_of(runtime::LoadedModel& loaded, const std::vector<uint32_t>& tokens);

/// A copy of a variant in a temporary folder, whose tensors and config.json can be altered before `write`.
class AlteredVariant {
 public:
  explicit AlteredVariant(const std::string& name);

  [[nodiscard]] RawTensor& tensor(const std::string& name);
  void remove(const std::string& name);
  /// Returns the folder.
  const std::filesystem::path& write();

  std::vector<RawTensor> tensors;
  format::Json config;

 private:
  TempFolder folder_;
};

}  // namespace dspack::test
