#include "reshard/verify.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/compressed/expanding_repository.h"
#include "reshard/findings.h"

namespace dspack::reshard {
namespace {

using format::Layout;
using format::PackedFile;
using format::Sha256;

/// Digests of consecutive row blocks of one tensor while its bytes pass.
class BlockHasher {
 public:
  BlockHasher(const format::RowBlocks& blocks, const format::LayoutTensor& tensor)
      : blocks_(blocks),
        block_bytes_(tensor.data.size() / std::max<uint64_t>(1, tensor.shape[0]) * blocks.rows_per_block) {}

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), block_bytes_ - filled_));
      hash_.update(part);
      filled_ += part.size();
      if (filled_ == block_bytes_) end_block();
      bytes = bytes.subspan(part.size());
    }
  }

  /// Whether every block had its digest, after the last byte.
  bool finish() {
    if (filled_ != 0) end_block();
    return fits_ && next_ == blocks_.digests.size();
  }

 private:
  void end_block() {
    fits_ = fits_ && next_ < blocks_.digests.size() && hash_.finish() == blocks_.digests[next_];
    ++next_;
    filled_ = 0;
  }

  const format::RowBlocks& blocks_;
  uint64_t block_bytes_;
  uint64_t filled_ = 0;
  size_t next_ = 0;
  bool fits_ = true;
  Sha256 hash_;
};

/// Digests of the parts of one file while its bytes pass in order.
class PartHasher {
 public:
  PartHasher(const PackedFile& file, const Layout& layout) : file_(file), layout_(layout) {
    for (const format::RowBlocks& blocks : file.row_blocks) {
      blocks_.emplace(blocks.tensor, BlockHasher(blocks, layout.tensors[blocks.tensor]));
    }
  }

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      finish_ended();
      const bool in_tensor = at_ >= file_.data_start && next_ < layout_.tensors.size();
      const uint64_t end = in_tensor                ? file_.data_start + layout_.tensors[next_].data.end
                           : at_ < file_.data_start ? file_.data_start
                                                    : file_.size_bytes;
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), end - at_));
      if (in_tensor) {
        update_together(std::array{&whole_, &tensor_}, part);
        if (const auto blocks = blocks_.find(next_); blocks != blocks_.end()) blocks->second.take(part);
      } else {
        whole_.update(part);
      }
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  /// What differs, after the last byte; one line each, without the path.
  std::vector<std::string> finish() {
    finish_ended();
    std::vector<std::string> lines;
    for (const size_t tensor : damaged_)
      lines.push_back(fmt::format("tensor \"{}\" differs from its digest", name(tensor)));
    const bool whole = whole_.finish() == file_.sha256;
    if (!whole && damaged_.empty()) lines.emplace_back("its header differs from what was sealed");
    if (whole && !damaged_.empty()) lines.emplace_back("the manifest contradicts itself about this file");
    for (auto& [tensor, hasher] : blocks_) {
      const bool known = std::find(damaged_.begin(), damaged_.end(), tensor) != damaged_.end();
      if (!hasher.finish() && !known)  // one finding a tensor is enough
        lines.push_back(fmt::format("tensor \"{}\" differs from its row blocks' digests", name(tensor)));
    }
    const std::vector<format::Digest> experts = recorded_expert_digests();
    for (size_t i = 0; i < experts.size(); ++i) {
      const auto& [key, digest] = file_.experts[i];
      if (digest == experts[i]) continue;
      lines.push_back(fmt::format("layer {}, expert {}: the expert's digest does not fit those of its tensors",
                                  format::layer_text(key.layer), key.expert.value));
    }
    return lines;
  }

 private:
  [[nodiscard]] std::string name(size_t tensor) const { return format::tensor_name(file_, layout_.tensors[tensor]); }

  /// What the digests of their tensors make those of the file's experts.
  [[nodiscard]] std::vector<format::Digest> recorded_expert_digests() const {
    if (file_.experts.empty()) return {};
    std::vector<std::vector<format::NamedDigest>> named(file_.experts.size());
    for (size_t i = 0; i < layout_.tensors.size(); ++i) {
      const format::LayoutTensor& tensor = layout_.tensors[i];
      const format::TensorName place = format::parse_tensor_name(name(i));
      if (!place.expert) continue;
      const auto expert = format::find_expert(file_, {*place.layer, *place.expert});
      if (expert) named[*expert].push_back({name(i), tensor.dtype, tensor.shape, file_.tensors[i]});
    }
    std::vector<format::Digest> digests;
    digests.reserve(named.size());
    for (std::vector<format::NamedDigest>& tensors : named)
      digests.push_back(format::expert_digest(std::move(tensors)));
    return digests;
  }

  void finish_ended() {
    while (next_ < layout_.tensors.size() && at_ == file_.data_start + layout_.tensors[next_].data.end) {
      if (tensor_.finish() != file_.tensors[next_]) damaged_.push_back(next_);
      ++next_;
    }
  }

  const PackedFile& file_;
  const Layout& layout_;
  uint64_t at_ = 0;
  size_t next_ = 0;
  Sha256 whole_;
  Sha256 tensor_;
  std::map<size_t, BlockHasher> blocks_;  // by tensor
  std::vector<size_t> damaged_;
};

/// Another source, whose stream is hashed on its way.
class HashedSource final : public format::ByteSource {
 public:
  HashedSource(format::ByteSource& source, Sha256& hash) : source_(source), hash_(hash) {}

  uint64_t size_bytes() const override { return source_.size_bytes(); }
  const std::string& version() const override { return source_.version(); }
  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    return source_.read(offset, into, std::move(stop));
  }
  Result<void> stream(ByteRange range, const format::ByteSink& sink, std::stop_token stop) override {
    const auto hash_and_pass = [&](std::span<const std::byte> bytes) -> Result<void> {
      hash_.update(bytes);
      return sink(bytes);
    };
    return source_.stream(range, hash_and_pass, std::move(stop));
  }

 private:
  format::ByteSource& source_;
  Sha256& hash_;
};

struct Check {
  format::Repository& repository;
  const format::Manifest& manifest;
  Findings& findings;
  format::Progress& progress;

  /// Opens a file; null if it cannot be used, which is then a finding.
  Result<std::unique_ptr<format::ByteSource>> open(const std::string& path, uint64_t size_bytes,
                                                   const std::stop_token& stop) const {
    auto file = repository.open(path, stop);
    if (!file && !is_finding(file.error())) return file.error();
    if (!file) {
      findings.add(fmt::format("{}: {}", path, file.error().message));
      return std::unique_ptr<format::ByteSource>();
    }
    if ((*file)->size_bytes() == size_bytes) return file;
    findings.add(fmt::format("{}: has {} bytes, the manifest says {}", path, (*file)->size_bytes(), size_bytes));
    return std::unique_ptr<format::ByteSource>();
  }

  /// Passes all bytes of a file on; false if that failed, which is then a finding.
  Result<bool> read_all(format::ByteSource& file, const std::string& path,
                        const std::function<void(std::span<const std::byte>)>& take,
                        const std::stop_token& stop) const {
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      take(bytes);
      progress.advanced(bytes.size());
      return {};
    };
    const auto read = file.stream({0, file.size_bytes()}, sink, stop);
    progress.file_done();
    if (read) return true;
    if (!is_finding(read.error())) return read.error();
    findings.add(fmt::format("{}: {}", path, read.error().message));
    return false;
  }

  Result<void> packed(const PackedFile& file, const std::stop_token& stop) const {
    const format::StoredFile stored = stored_file(file);
    TRY_ASSIGN(auto source, open(stored.path, stored.size_bytes, stop));
    if (!source) return {};
    PartHasher hasher(file, manifest.layouts[file.layout]);
    const auto take = [&hasher](std::span<const std::byte> bytes) { hasher.take(bytes); };
    if (!file.zstd) {
      TRY_ASSIGN(const bool read, read_all(*source, file.path, take, stop));
      if (read) add(file.path, hasher.finish());
      return {};
    }
    auto table = std::make_shared<const format::CompressedFile>(compressed_file(manifest, file));
    const ByteRange behind{table->table.stored.back(), stored.size_bytes};
    Sha256 hash;
    HashedSource hashed(*source, hash);
    const auto expanded = make_expanded_source(std::make_unique<HashedSource>(hashed), std::move(table), stored.path);
    TRY_ASSIGN(const bool read, read_all(*expanded, file.path, take, stop));
    if (!read) return {};
    std::vector<std::string> lines = hasher.finish();
    // What lies between and behind the frames no tensor's digest covers.
    const auto nothing = [](std::span<const std::byte>) -> Result<void> { return {}; };
    TRY(hashed.stream(behind, nothing, stop));
    if (hash.finish() != stored.sha256 && lines.empty())
      lines.emplace_back("its compressed file differs from its digest");
    add(file.path, lines);
    return {};
  }

  void add(const std::string& path, const std::vector<std::string>& lines) const {
    for (const std::string& line : lines)
      findings.add(fmt::format("{}: {}", path, line));
  }

  Result<void> companion(const format::CompanionFile& file, const std::stop_token& stop) const {
    TRY_ASSIGN(const auto source, open(file.path, file.size_bytes, stop));
    if (!source) return {};
    Sha256 hash;
    TRY_ASSIGN(const bool read, read_all(
                                    *source, file.path, [&](auto bytes) { hash.update(bytes); }, stop));
    if (read && hash.finish() != file.sha256) findings.add(fmt::format("{}: differs from its digest", file.path));
    return {};
  }
};

}  // namespace

Result<VerifyReport> verify_digests(format::Repository& packed, const format::Checkpoint& catalogue, unsigned jobs,
                                    format::Progress& progress, const std::stop_token& stop) {
  const format::Manifest& manifest = catalogue.manifest().value();
  VerifyReport report{.files = manifest.files.size() + manifest.companions.size(),
                      .tensors = catalogue.tensors().size(),
                      .bytes = 0,
                      .companions = 0,
                      .findings = {}};
  for (const PackedFile& file : manifest.files)
    report.bytes += file.size_bytes;
  for (const format::CompanionFile& file : manifest.companions)
    report.bytes += file.size_bytes;
  progress.started("verifying", report.bytes, report.files);
  Findings findings;
  const Check check{packed, manifest, findings, progress};
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    if (i >= manifest.files.size()) return check.companion(manifest.companions[i - manifest.files.size()], stop_one);
    return check.packed(manifest.files[i], stop_one);
  };
  TRY(run_jobs(report.files, jobs, one, stop));
  progress.finished();
  report.findings = findings.sorted();
  return report;
}

}  // namespace dspack::reshard
