#include "reshard/companion_digests.h"

#include <mutex>
#include <vector>

#include "format/base/parallel.h"
#include "format/index.h"

namespace dspack::reshard {

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
    format::Sha256 hash;
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      hash.update(bytes);
      return {};
    };
    TRY((*file)->stream({0, (*file)->size_bytes()}, sink, stop_one));
    const std::lock_guard lock(mutex);
    digests.emplace(paths[i], hash.finish());
    bytes_read += (*file)->size_bytes();
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, read, stop));
  return digests;
}

}  // namespace dspack::reshard
