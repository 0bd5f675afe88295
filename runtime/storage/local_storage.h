// Weights in a local folder.
// Threads: thread-safe. Lifetime: borrows repository and catalogue. Errors: not_found, io, corrupt (a file's length is
// not what the catalogue says); each names the file.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "format/source/repository.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

class LocalStorage final : public WeightStorage {
 public:
  /// At most `max_open` files are open, and those that are being read; the one that was used longest ago is closed.
  LocalStorage(format::Repository& repository, const format::Checkpoint& checkpoint, unsigned max_open);

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override;
  [[nodiscard]] StorageTier tier_of(ExpertKey /*expert*/) const override { return StorageTier::disk; }
  [[nodiscard]] bool must_verify(ExpertKey /*expert*/) const override { return false; }
  [[nodiscard]] Result<void> keep(ExpertKey /*expert*/, std::span<const TensorBytes> /*tensors*/,
                                  const std::stop_token& /*stop*/) override {
    return {};
  }
  [[nodiscard]] uint64_t block_bytes() const override { return kBlockBytes; }
  [[nodiscard]] unsigned depth() const override { return kDepth; }

 private:
  static constexpr uint64_t kBlockBytes = 4ULL << 20;
  static constexpr unsigned kDepth = 8;

  struct OpenFile {
    uint32_t file = 0;
    std::shared_ptr<format::ByteSource> source;  // shared: a file may be closed while it is read
  };
  Result<std::shared_ptr<format::ByteSource>> source_of(uint32_t file, const std::stop_token& stop);

  format::Repository& repository_;
  const format::Checkpoint& checkpoint_;
  unsigned max_open_;
  std::mutex mutex_;
  std::list<OpenFile> open_;                                             // most recently used first; guarded by mutex_
  std::unordered_map<uint32_t, std::list<OpenFile>::iterator> by_file_;  // guarded by mutex_
};

}  // namespace dspack::runtime
