// Routed experts that are made up, for bench_tiers: FP8 E4M3 in blocks of 128 x 128, of a released model's shape, as
// one safetensors file that the store reads like any other. Bytes: one expert's are random (numbers of a weight's size,
// no NaN); all others have the same. Nothing that is measured depends on their values, and each lies in memory of its
// own. The file is sparse but for its first experts, which are written where a disk is measured; reads of the others go
// to these, at the same place in a page. A file read past the page cache is as slow the second time as the first.
// Threads: reading is thread-safe; `read_from` between passes. Lifetime: the folder is removed at the end. Errors: what
// fails ends the program (std::runtime_error).
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/access/folder_tier.h"
#include "tests/bench/route_generator.h"

namespace dspack::bench {

/// The value, or an exception with the error's words.
template <class T>
T required(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}
inline void require(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

struct ModelShape {
  const char* name;
  uint32_t hidden = 0, inner = 0;
  RouteShape routes;                           // layers are those of experts
  [[nodiscard]] uint64_t scale_bytes() const;  // of one matrix
  [[nodiscard]] uint64_t expert_bytes() const;
  [[nodiscard]] uint64_t experts() const { return uint64_t{routes.layers} * routes.experts; }
};

/// Where reads get the bytes from.
enum class ExpertSource { memory, disk };

class GeneratedExperts final : public runtime::Tier {
 public:
  /// Makes the file in a new folder below `folder`. `on_disk`: experts that are written; fewer than one: none.
  GeneratedExperts(const ModelShape& shape, const std::filesystem::path& folder, uint64_t on_disk);
  ~GeneratedExperts() override;
  GeneratedExperts(const GeneratedExperts&) = delete;
  GeneratedExperts& operator=(const GeneratedExperts&) = delete;

  void read_from(ExpertSource source) { source_ = source; }
  /// Bytes a second of experts that are read as a run reads them, into memory at `into`: the disk's own limit.
  [[nodiscard]] double disk_rate(std::span<std::byte> into);
  [[nodiscard]] uint64_t written_experts() const { return written_; }
  [[nodiscard]] bool is_direct() const { return is_direct_; }

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return *checkpoint_; }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override;
  [[nodiscard]] runtime::Medium medium_of(ExpertKey /*expert*/) const override { return runtime::Medium::disk; }
  [[nodiscard]] bool must_verify(ExpertKey /*expert*/) const override { return false; }
  [[nodiscard]] Result<void> keep(ExpertKey /*expert*/, std::span<const runtime::TensorBytes> /*tensors*/,
                                  const std::stop_token& /*stop*/) override {
    return {};
  }
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override { return runtime::kLocalBlockBytes; }
  [[nodiscard]] unsigned depth() const override { return runtime::kLocalDepth; }

 private:
  void make_pattern();
  void write_file(uint64_t on_disk);

  ModelShape shape_;
  std::filesystem::path folder_;
  std::vector<std::byte> pattern_;  // of one expert
  uint64_t data_start_ = 0;         // in the file
  uint64_t written_ = 0;
  bool is_direct_ = false;
  std::atomic<ExpertSource> source_ = ExpertSource::memory;
  std::unique_ptr<format::Repository> repository_;
  std::unique_ptr<format::Checkpoint> checkpoint_;
  std::unique_ptr<runtime::FolderTier> files_;
};

}  // namespace dspack::bench
