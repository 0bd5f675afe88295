#include "reshard/verbs/repair/mended_companions.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/index.h"
#include "format/kept_headers.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/model_card.h"
#include "reshard/run/tensor_reader.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {
namespace {

using format::CompanionFile;
using format::Manifest;
using format::Path;

constexpr char kCardPath[] = "README.md";

Result<bool> fits(const CompanionFile& wanted, const Path& out, Scrutiny scrutiny, format::FileSystem& files,
                  const std::stop_token& stop) {
  const Path path = out / wanted.path;
  TRY_ASSIGN(const auto info, files.stat(path));
  if (!info || !info->is_regular || info->size_bytes != wanted.size_bytes) return false;
  if (scrutiny == Scrutiny::outside) return true;
  const auto digest = digest_of_file(path, files, stop);
  if (!digest && !is_finding(digest.error())) return digest.error();
  return digest.has_value() && *digest == wanted.sha256;
}

/// The index of the files as they are: stored names only, without aliases.
std::string index_of(const format::Checkpoint& packed) {
  format::Json map = format::Json::object();
  for (const format::TensorEntry& tensor : packed.tensors()) {
    if (!tensor.is_alias) map[tensor.name] = packed.files()[tensor.file].path;
  }
  return format::hub_index(packed.manifest()->coverage.payload_bytes, std::move(map));
}

/// Restores companions, one at a time.
class Maker {
 public:
  Maker(const CompanionSource& source, const Path& out, const Recipe& recipe, format::FileSystem& files,
        DurableFolders& folders, const std::stop_token& stop)
      : source_(source),
        manifest_(*source.packed->manifest()),
        out_(out),
        recipe_(recipe),
        files_(files),
        folders_(folders),
        stop_(stop) {}

  /// The reason why it could not be restored; empty: it was.
  Result<std::string> make(const CompanionFile& wanted) const {
    const bool from_copy = source_.catalogue != nullptr && source_.catalogue->manifest().has_value();
    if (from_copy && holds(*source_.catalogue->manifest(), wanted)) return copy(wanted.path, wanted);
    if (wanted.path == kCardPath || wanted.path == format::kIndexPath) return write(wanted);
    if (from_copy) return std::string("that of the other packed repository differs");
    const auto name = source_name(wanted.path, manifest_);
    return name ? copy(*name, wanted) : write(wanted);
  }

 private:
  static bool holds(const Manifest& manifest, const CompanionFile& wanted) {
    const auto found = std::ranges::find(manifest.companions, wanted.path, &CompanionFile::path);
    return found != manifest.companions.end() && found->sha256 == wanted.sha256;
  }

  Result<std::string> copy(const std::string& from, const CompanionFile& wanted) const {
    const Companion companion{.source_path = from,
                              .path = wanted.path,
                              .size_bytes = wanted.size_bytes,
                              .declared = {declared_sha256(wanted.sha256, format::kManifestPath)}};
    const auto copied = copy_companion(companion, *source_.repository, out_, files_, folders_, stop_);
    if (copied) return std::string();
    const bool not_there = copied.error().kind == ErrorKind::not_found || copied.error().kind == ErrorKind::corrupt;
    return not_there ? Result<std::string>(copied.error().message) : copied.error();
  }

  Result<std::string> write(const CompanionFile& wanted) const {
    TRY_ASSIGN(const std::optional<std::string> text, text_of(wanted.path));
    if (!text || format::sha256(*text) != wanted.sha256)
      return fmt::format("it was made by another version ({})", manifest_.program);
    TRY(write_companion(wanted.path, *text, out_, files_, folders_));
    return std::string();
  }

  Result<std::optional<std::string>> text_of(const std::string& path) const {
    if (path == format::kIndexPath) return std::optional(index_of(*source_.packed));
    if (path == kCardPath) {
      TRY_ASSIGN(const auto source_card, read_source_card(out_, files_));
      return std::optional(model_card(manifest_, recipe_, source_card));
    }
    if (path == format::kHeadersPath) {
      TRY_ASSIGN(std::string headers, format::kept_headers(*source_.catalogue));
      return std::optional(std::move(headers));
    }
    if (path == kConfigPath) return changed_config(*source_.plan, *source_.repository, stop_);
    return std::optional<std::string>();
  }

  const CompanionSource& source_;
  const Manifest& manifest_;
  const Path& out_;
  const Recipe& recipe_;
  format::FileSystem& files_;
  DurableFolders& folders_;
  const std::stop_token& stop_;
};

}  // namespace

Result<std::vector<CompanionFile>> damaged_companions(const Manifest& manifest, const Path& out, Scrutiny scrutiny,
                                                      unsigned jobs, format::FileSystem& files,
                                                      const std::stop_token& stop) {
  std::vector<uint8_t> fit(manifest.companions.size(), 0);
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(fit[i], fits(manifest.companions[i], out, scrutiny, files, stop_one));
    return {};
  };
  TRY(run_jobs(fit.size(), jobs, one, stop));
  std::vector<CompanionFile> damaged;
  for (size_t i = 0; i < fit.size(); ++i) {
    if (fit[i] == 0) damaged.push_back(manifest.companions[i]);
  }
  return damaged;
}

CompanionNeeds needs_of(const std::vector<CompanionFile>& damaged, const Manifest& manifest) {
  CompanionNeeds needs;
  for (const CompanionFile& file : damaged) {
    if (file.path == kCardPath || file.path == format::kIndexPath) continue;  // determined by the manifest alone
    needs.repository = true;
    const bool of_all = file.path == format::kHeadersPath || !source_name(file.path, manifest);
    needs.catalogue = needs.catalogue || of_all;
  }
  return needs;
}

Result<std::vector<std::string>> mend_companions(const std::vector<CompanionFile>& damaged,
                                                 const CompanionSource& source, const Path& out, const Recipe& recipe,
                                                 format::FileSystem& files, DurableFolders& folders,
                                                 const std::stop_token& stop) {
  const Maker maker(source, out, recipe, files, folders, stop);
  std::vector<CompanionFile> order = damaged;
  // The card comes last: it is made from the source's card.
  std::stable_partition(order.begin(), order.end(), [](const CompanionFile& file) { return file.path != kCardPath; });
  std::vector<std::string> left;
  for (const CompanionFile& file : order) {
    TRY_ASSIGN(const std::string why, maker.make(file));
    if (!why.empty()) left.push_back(fmt::format("{}: {}", file.path, why));
  }
  return left;
}

}  // namespace dspack::reshard
