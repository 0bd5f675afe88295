#include "reshard/run/companions.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/http/headers.h"
#include "format/index.h"
#include "format/json.h"
#include "format/kept_headers.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

// Folder for the source's own files whose names a packed repository needs for itself.
constexpr std::string_view kSourceIndexFolder = "provenance/";

// Files beside the weights in released repositories of the family, for places that cannot be listed.
constexpr const char* kUsualNames[] = {
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "LICENSE",
    "LICENSE-CODE",
    "LICENSE-MODEL",
    "LICENSE.txt",
    "NOTICE",
    "README.md",
    "params.json",
    "tekken.json",
    format::kIndexPath,
    format::kConsolidatedIndexPath,
};

/// Python modules that config.json's auto_map names: "configuration_deepseek.DeepseekV3Config" -> its file.
std::set<std::string> auto_map_modules(std::string_view config_text) {
  std::set<std::string> modules;
  const auto config = format::parse_json(config_text, format::kConfigDocument);
  if (!config || !config->is_object() || !config->contains("auto_map")) return modules;
  for (const Json& target : (*config)["auto_map"]) {
    if (!target.is_string()) continue;
    const auto& module = target.get_ref<const std::string&>();
    if (module.find("--") != std::string::npos) continue;  // "org/name--module.Class" is another repository's file
    if (const size_t dot = module.find('.'); dot != std::string::npos) modules.insert(module.substr(0, dot) + ".py");
  }
  return modules;
}

/// Weights in this or another format; they are not companions.
bool is_weight_file(std::string_view path) {
  static constexpr std::string_view kEndings[] = {".safetensors", ".bin", ".pt",      ".pth",
                                                  ".gguf",        ".h5",  ".msgpack", ".onnx"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view e) { return path.ends_with(e); });
}

std::string packed_path(const std::string& source_path) {
  if (source_path == "README.md") return kSourceCardPath;
  if (format::is_index_path(source_path)) return std::string(kSourceIndexFolder).append(source_path);
  return source_path;
}

/// Paths that the packed repository needs for itself.
bool is_taken(const std::string& path) {
  return path == "README.md" || path == format::kManifestPath || path == format::kIndexPath ||
         path == format::kHeadersPath;
}

/// Names to try if a place cannot be listed.
Result<std::vector<std::string>> usual_candidates(format::Repository& repository, const std::stop_token& stop) {
  std::set<std::string> paths(std::begin(kUsualNames), std::end(kUsualNames));
  const auto config = repository.read_text(kConfigPath, format::kConfigDocument.bytes, stop);
  if (config) paths.merge(auto_map_modules(*config));
  if (!config && config.error().kind != ErrorKind::not_found) return config.error();
  return std::vector<std::string>(paths.begin(), paths.end());
}

/// Names of a checkpoint's non-weight files: those that exist, if the place can be listed; else the usual names, which
/// may not exist, and the Python modules in config.json's auto_map.
Result<std::vector<std::string>> companion_candidates(format::Repository& repository, const std::stop_token& stop) {
  TRY_ASSIGN(const auto listed, repository.list(stop));
  if (listed) {
    std::vector<std::string> paths;
    for (const format::ListedFile& file : *listed) {
      if (!is_weight_file(file.path)) paths.push_back(file.path);
    }
    return paths;
  }
  return usual_candidates(repository, stop);
}

/// The source's non-weight files, whatever their names.
Result<std::vector<Companion>> list_companions(format::Repository& repository, unsigned jobs,
                                               const std::stop_token& stop) {
  std::vector<Companion> companions;
  TRY_ASSIGN(const auto listed, repository.list(stop));
  if (listed) {
    for (const format::ListedFile& file : *listed) {
      if (is_weight_file(file.path)) continue;
      // Find unreadable files now, not after the weights are done. Over a network this would cost requests.
      if (repository.is_local()) TRY(repository.open(file.path, stop));
      Companion companion{file.path, packed_path(file.path), file.size_bytes};
      if (file.sha256) companion.declared.push_back(declared_sha256(*file.sha256, repository.description()));
      companions.push_back(std::move(companion));
    }
    return companions;
  }
  TRY_ASSIGN(const std::vector<std::string> paths, usual_candidates(repository, stop));
  std::vector<std::optional<Companion>> found(paths.size());
  const auto look = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    const auto source = repository.open(paths[i], stop_one);
    if (!source && source.error().kind == ErrorKind::not_found) return {};
    if (!source) return source.error();
    found[i] = Companion{paths[i], packed_path(paths[i]), (*source)->size_bytes(),
                         declared_of(paths[i], {}, (*source)->declared())};
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, look, stop));
  for (const std::optional<Companion>& companion : found) {
    if (companion) companions.push_back(*companion);
  }
  return companions;
}

}  // namespace

std::optional<std::string> source_name(const std::string& packed_path) {
  if (packed_path == kSourceCardPath) return "README.md";
  if (packed_path.starts_with(kSourceIndexFolder)) {
    std::string name = packed_path.substr(kSourceIndexFolder.size());
    if (format::is_index_path(name)) return name;
  }
  if (is_taken(packed_path)) return std::nullopt;
  return packed_path;
}

bool has_changed_config(const format::Manifest& manifest) {
  return !holds_source_bytes(manifest) && std::ranges::find(manifest.companions, kSourceConfig,
                                                            &format::CompanionFile::path) != manifest.companions.end();
}

std::optional<std::string> source_name(const std::string& packed_path, const format::Manifest& manifest) {
  if (!has_changed_config(manifest)) return source_name(packed_path);
  if (packed_path == kConfigPath) return std::nullopt;
  const auto* aside = std::ranges::find(kSetAside, packed_path, &SetAside::packed);
  return aside == std::ranges::end(kSetAside) ? source_name(packed_path) : std::string(aside->source);
}

Result<std::vector<Companion>> find_companions(format::Repository& repository, unsigned jobs,
                                               const std::stop_token& stop) {
  TRY_ASSIGN(const std::vector<Companion> found, list_companions(repository, jobs, stop));
  std::vector<Companion> companions;
  std::map<std::string, std::string> taken;  // path in the packed repository -> path in the source
  for (const Companion& companion : found) {
    if (const auto reason = format::unsafe_path_reason(companion.path)) {
      return Error{ErrorKind::invalid, fmt::format("{}: {}", repository.locate(companion.source_path), *reason)};
    }
    if (is_taken(companion.path) || companion.path.starts_with("model/")) {
      return Error{ErrorKind::conflict,
                   fmt::format("{}: a packed repository needs this name for itself; move the file away",
                               repository.locate(companion.source_path))};
    }
    const auto [other, added] = taken.emplace(companion.path, companion.source_path);
    if (!added) {
      return Error{ErrorKind::conflict, fmt::format("{}: would be stored as {}, like {}; move one of the two away",
                                                    repository.locate(companion.source_path), companion.path,
                                                    repository.locate(other->second))};
    }
    companions.push_back(companion);
  }
  return companions;
}

Result<format::CompanionFile> copy_companion(const Companion& companion, format::Repository& repository,
                                             const Path& out, format::FileSystem& files, DurableFolders& folders,
                                             const std::stop_token& stop) {
  const Path target = out / companion.path;
  const Path part = part_folder(out) / companion.path;
  TRY(folders.make(target.parent_path()));
  TRY_ASSIGN(format::CompanionFile file, fetch_companion(companion, repository, part, files, folders, stop));
  TRY(files.rename(part, target));
  TRY(files.sync_folder(target.parent_path()));
  return file;
}

Result<format::CompanionFile> fetch_companion(const Companion& companion, format::Repository& repository,
                                              const Path& into, format::FileSystem& files, DurableFolders& folders,
                                              const std::stop_token& stop) {
  TRY(folders.make(into.parent_path()));
  format::Sha256 hash;
  OtherHashes others(companion.declared);
  uint64_t at = 0;
  {
    TRY_ASSIGN(const auto source, repository.open(companion.source_path, stop));
    TRY_ASSIGN(const auto file, files.open_write(into, format::OpenMode::truncate));
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      hash.update(bytes);
      others.update(bytes);
      TRY(file->write(at, bytes));
      at += bytes.size();
      return {};
    };
    TRY(source->stream({0, source->size_bytes()}, sink, stop));
    TRY(file->sync());
  }
  const format::Digest sha256 = hash.finish();
  if (const auto fits = check_declared(companion.declared, sha256, others.finish()); !fits)
    return fits.error().in(
        fmt::format("{}: differs from its digest", format::without_password(repository.locate(companion.source_path))));
  return format::CompanionFile{companion.path, at, sha256};
}

Result<format::CompanionFile> write_companion(const std::string& path, std::string_view text, const Path& out,
                                              format::FileSystem& files, DurableFolders& folders) {
  TRY(folders.make((out / path).parent_path()));
  TRY(format::write_sealed(files, out / path, text));
  return format::CompanionFile{path, text.size(), format::sha256(text)};
}

std::string packed_index(const std::vector<PlannedFile>& files, const format::Checkpoint& catalogue) {
  Json map = Json::object();
  for (const PlannedFile& file : files) {
    for (const uint32_t tensor : file.tensors)
      map[catalogue.tensors()[tensor].name] = file.path;
  }
  return format::hub_index(catalogue.payload_bytes(), std::move(map));
}

CompanionDigests recorded_companions(const format::Manifest& manifest) {
  CompanionDigests digests;
  for (const format::CompanionFile& file : manifest.companions) {
    const auto name = source_name(file.path);
    if (name && !format::is_index_path(*name)) digests.emplace(*name, file.sha256);
  }
  return digests;
}

Result<std::set<std::string>> companion_names(const CompanionPlace& place, const std::stop_token& stop) {
  std::set<std::string> names;
  if (const auto& manifest = place.catalogue.manifest()) {
    for (const auto& [name, unused] : recorded_companions(*manifest))
      names.insert(name);
    return names;
  }
  TRY_ASSIGN(const std::vector<std::string> candidates, companion_candidates(place.repository, stop));
  names.insert(candidates.begin(), candidates.end());
  std::erase_if(names, [](const std::string& name) { return format::is_index_path(name); });
  return names;
}

Result<CompanionDigests> companion_digests(const CompanionPlace& place, const std::set<std::string>& names,
                                           unsigned jobs, uint64_t& bytes_read, const std::stop_token& stop) {
  if (const auto& manifest = place.catalogue.manifest()) return recorded_companions(*manifest);
  const std::vector<std::string> paths(names.begin(), names.end());
  CompanionDigests digests;
  std::mutex mutex;
  const auto read = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    const auto file = place.repository.open(paths[i], stop_one);
    if (!file && file.error().kind == ErrorKind::not_found) return {};
    if (!file) return file.error();
    TRY_ASSIGN(const format::Digest digest, digest_of_range(**file, {0, (*file)->size_bytes()}, stop_one));
    const std::lock_guard lock(mutex);
    digests.emplace(paths[i], digest);
    bytes_read += (*file)->size_bytes();
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, read, stop));
  return digests;
}

}  // namespace dspack::reshard
