#include "reshard/verbs/verify.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/compressed/expanding_repository.h"
#include "format/tensor_pass.h"

namespace dspack::reshard {
namespace {

using format::Layout;
using format::PackedFile;
using format::Sha256;

/// Compares a packed file with the manifest as its bytes stream by.
class PackedFileCheck {
 public:
  PackedFileCheck(const PackedFile& file, const Layout& layout)
      : file_(file), layout_(layout), pass_(tensors_of(file, layout), 0, format::TensorPass::Whole::digested) {}

  void take(std::span<const std::byte> bytes) { pass_.take(bytes); }

  /// The differences, one line each, without the path. Call after the last byte.
  std::vector<std::string> finish() {
    const format::TensorPass::Sums sums = pass_.finish();
    std::vector<std::string> lines;
    const auto is_damaged = [&](size_t tensor) { return sums.tensors[tensor].whole != file_.tensors[tensor]; };
    for (size_t tensor = 0; tensor < layout_.tensors.size(); ++tensor) {
      if (is_damaged(tensor)) lines.push_back(fmt::format("tensor \"{}\" differs from its digest", name(tensor)));
    }
    const bool is_whole = sums.whole == file_.sha256;
    const bool has_damage = !lines.empty();
    if (!is_whole && !has_damage) lines.emplace_back("its header differs from what was sealed");
    if (is_whole && has_damage) lines.emplace_back("the manifest contradicts itself about this file");
    for (const format::RowBlocks& blocks : file_.row_blocks) {
      // One finding per tensor is enough.
      if (sums.tensors[blocks.tensor].row_blocks != blocks.digests && !is_damaged(blocks.tensor))
        lines.push_back(fmt::format("tensor \"{}\" differs from its row blocks' digests", name(blocks.tensor)));
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

  static std::vector<format::TensorPass::Tensor> tensors_of(const PackedFile& file, const Layout& layout) {
    std::vector<format::TensorPass::Tensor> tensors;
    for (const format::LayoutTensor& tensor : layout.tensors)
      tensors.push_back({.range = {file.data_start + tensor.data.begin, file.data_start + tensor.data.end}});
    for (const format::RowBlocks& blocks : file.row_blocks) {
      const format::LayoutTensor& tensor = layout.tensors[blocks.tensor];
      tensors[blocks.tensor].block_bytes =
          tensor.data.size() / std::max<uint64_t>(1, tensor.shape[0]) * blocks.rows_per_block;
    }
    return tensors;
  }

  /// The experts' digests, computed from the recorded digests of their tensors.
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

  const PackedFile& file_;
  const Layout& layout_;
  format::TensorPass pass_;
};

/// Wraps a source and hashes its streamed bytes.
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

  /// Opens a file; null if it cannot be used, which is reported as a finding.
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

  /// Streams all bytes of a file to `take`; false if that failed, which is reported as a finding.
  Result<bool> read_all(format::ByteSource& file, const std::string& path,
                        const std::function<void(std::span<const std::byte>)>& take,
                        const std::stop_token& stop) const {
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      take(bytes);
      progress.advanced(bytes.size());
      return {};
    };
    const auto read = file.stream({0, file.size_bytes()}, sink, stop);
    progress.item_done();
    if (read) return true;
    if (!is_finding(read.error())) return read.error();
    findings.add(fmt::format("{}: {}", path, read.error().message));
    return false;
  }

  Result<void> packed(const PackedFile& file, const std::stop_token& stop) const {
    const format::StoredFile stored = stored_file(file);
    TRY_ASSIGN(auto source, open(stored.path, stored.size_bytes, stop));
    if (!source) return {};
    PackedFileCheck contents(file, manifest.layouts[file.layout]);
    const auto take = [&contents](std::span<const std::byte> bytes) { contents.take(bytes); };
    if (!file.zstd) {
      TRY_ASSIGN(const bool read, read_all(*source, file.path, take, stop));
      if (read) add(file.path, contents.finish());
      return {};
    }
    auto table = std::make_shared<const format::CompressedFile>(compressed_file(manifest, file));
    const ByteRange behind{table->table.stored.back(), stored.size_bytes};
    Sha256 hash;
    HashedSource hashed(*source, hash);
    const auto expanded = make_expanded_source(std::make_unique<HashedSource>(hashed), std::move(table), stored.path);
    TRY_ASSIGN(const bool read, read_all(*expanded, file.path, take, stop));
    if (!read) return {};
    std::vector<std::string> lines = contents.finish();
    // Bytes between and after the frames are not covered by any tensor's digest.
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
