#include "reshard/verbs/unpacked_repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "format/checkpoint.h"
#include "format/compressed/expanding_repository.h"
#include "format/source/replaced_text.h"
#include "reshard/run/companions.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {
namespace {

/// One source shard. Each read opens the files that it needs: a shard's tensors may lie in thousands of files.
class RebuiltSource final : public format::ByteSource {
 public:
  RebuiltSource(format::Repository& packed, const format::Checkpoint& catalogue, const ShardImage& image)
      : packed_(packed), catalogue_(catalogue), image_(image), version_(to_hex(*image.sha256)) {}

  [[nodiscard]] uint64_t size_bytes() const override { return image_.size_bytes; }
  [[nodiscard]] const std::string& version() const override { return version_; }
  [[nodiscard]] std::optional<format::ContentDigest> declared() const override {
    return format::ContentDigest{.kind = format::HashKind::sha256, .hex = version_, .by = format::kManifestPath};
  }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    const format::ByteSink fill = [&into](std::span<const std::byte> bytes) -> Result<void> {
      std::memcpy(into.data(), bytes.data(), bytes.size());
      into = into.subspan(bytes.size());
      return {};
    };
    return stream({offset, offset + into.size()}, fill, std::move(stop));
  }

  Result<void> stream(ByteRange range, const format::ByteSink& sink, std::stop_token stop) override {
    if (range.end > image_.size_bytes || range.begin > range.end) {
      return Error{ErrorKind::invalid, fmt::format("{}: bytes {} to {} of {}", packed_.locate(image_.path), range.begin,
                                                   range.end, image_.size_bytes)};
    }
    const uint64_t header_end = std::min<uint64_t>(range.end, image_.header.size());
    if (range.begin < header_end)
      TRY(sink(format::as_bytes(image_.header).subspan(range.begin, header_end - range.begin)));
    TensorReader reader(packed_, catalogue_);
    uint64_t at = image_.header.size();
    for (const uint32_t index : image_.tensors) {
      const format::TensorEntry& tensor = catalogue_.tensors()[index];
      const uint64_t begin = std::max(range.begin, at);
      const uint64_t end = std::min(range.end, at + tensor.range.size());
      if (begin < end) {
        const uint64_t first = tensor.range.begin + (begin - at);
        TRY(reader.stream(format::Extent{tensor.file, {first, first + (end - begin)}}, sink, stop));
      }
      at += tensor.range.size();
      if (at >= range.end) break;
    }
    return {};
  }

 private:
  format::Repository& packed_;
  const format::Checkpoint& catalogue_;
  const ShardImage& image_;
  std::string version_;
};

class UnpackedRepository final : public format::Repository {
 public:
  UnpackedRepository(std::unique_ptr<format::Repository> packed, format::Checkpoint catalogue)
      : packed_(std::move(packed)), catalogue_(std::move(catalogue)) {}

  Result<void> open_shards(const std::stop_token& stop) {
    TRY_ASSIGN(const std::vector<ShardImage> images, source_shards(*packed_, catalogue_, stop));
    for (const ShardImage& image : images)
      shards_.emplace(image.path, image);
    for (const format::CompanionFile& file : catalogue_.manifest()->companions) {
      if (const auto name = source_name(file.path)) companions_.emplace(*name, file);
    }
    return {};
  }

  [[nodiscard]] format::RepositoryKind kind() const override {
    return packed_->is_local() ? format::RepositoryKind::local : format::RepositoryKind::http;
  }
  [[nodiscard]] bool is_local() const override { return false; }
  /// The origin of the source, since the bytes are the source's.
  [[nodiscard]] std::optional<format::HubOrigin> hub_origin() const override {
    const format::Origin& origin = catalogue_.manifest()->origin;
    if (origin.repository.empty()) return std::nullopt;
    return format::HubOrigin{.repository = origin.repository,
                             .commit = origin.revision,
                             .asked = fmt::format("{}@{}", origin.repository, origin.revision)};
  }
  [[nodiscard]] std::string description() const override { return packed_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override {
    const auto companion = companions_.find(path);
    return packed_->locate(companion == companions_.end() ? path : companion->second.path);
  }

  Result<std::unique_ptr<format::ByteSource>> open(std::string_view path, std::stop_token stop) override {
    if (const auto shard = shards_.find(path); shard != shards_.end()) {
      return std::unique_ptr<format::ByteSource>(std::make_unique<RebuiltSource>(*packed_, catalogue_, shard->second));
    }
    const auto companion = companions_.find(path);
    if (companion == companions_.end()) return not_there(path);
    return packed_->open(companion->second.path, std::move(stop));
  }
  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    const auto companion = companions_.find(path);
    if (companion == companions_.end()) return not_there(path);
    return packed_->read_text(companion->second.path, limit_bytes, std::move(stop));
  }
  Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token /*stop*/) override {
    std::vector<format::ListedFile> files;
    for (const auto& [path, image] : shards_)
      files.push_back({.path = path, .size_bytes = image.size_bytes, .sha256 = image.sha256});
    for (const auto& [path, file] : companions_)
      files.push_back({.path = path, .size_bytes = file.size_bytes, .sha256 = file.sha256});
    std::ranges::sort(files, {}, &format::ListedFile::path);
    return std::optional(std::move(files));
  }
  Result<std::optional<format::DeclaredFile>> declared(std::string_view path, std::stop_token /*stop*/) override {
    if (const auto shard = shards_.find(path); shard != shards_.end())
      return std::optional(format::DeclaredFile{*shard->second.sha256, shard->second.size_bytes});
    const auto companion = companions_.find(path);
    if (companion == companions_.end()) return not_there(path);
    return std::optional(format::DeclaredFile{companion->second.sha256, companion->second.size_bytes});
  }

 private:
  [[nodiscard]] Error not_there(std::string_view path) const {
    return {ErrorKind::not_found, fmt::format("{}: no such file of its source", packed_->locate(path))};
  }

  std::unique_ptr<format::Repository> packed_;
  format::Checkpoint catalogue_;
  std::map<std::string, ShardImage, std::less<>> shards_;
  std::map<std::string, format::CompanionFile, std::less<>> companions_;  // by their names in the source
};

}  // namespace

Result<std::unique_ptr<format::Repository>> as_source(std::unique_ptr<format::Repository> place, unsigned jobs,
                                                      const std::stop_token& stop) {
  auto manifest = place->read_text(format::kManifestPath, format::kManifestDocument.bytes, stop);
  const bool is_packed = manifest.has_value();
  if (!is_packed && manifest.error().kind != ErrorKind::not_found) return manifest.error();
  std::string at = place->locate(format::kManifestPath);
  // So that a distant place is not asked twice.
  place = format::replace_text(std::move(place), format::kManifestPath, std::move(manifest), std::move(at));
  if (!is_packed) return place;
  place = format::make_expanding_repository(std::move(place));
  TRY_ASSIGN(format::Checkpoint catalogue, format::Checkpoint::open(*place, jobs, stop));
  auto unpacked = std::make_unique<UnpackedRepository>(std::move(place), std::move(catalogue));
  TRY(unpacked->open_shards(stop));
  return std::unique_ptr<format::Repository>(std::move(unpacked));
}

}  // namespace dspack::reshard
