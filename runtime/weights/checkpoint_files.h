// The weight files of a checkpoint while a model runs: each is opened when something in it is first read, and not
// before; what was read is counted by purpose.
// Threads: single-thread. Lifetime: borrows repository and checkpoint. Errors: not_found, corrupt (a file's length is
// not what the catalogue says), io, network; each names the file.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "format/source/repository.h"

namespace dspack::runtime {

/// What a byte was read for.
enum class ReadPurpose { always_needed, embedding, experts };
inline constexpr size_t kReadPurposes = 3;

class CheckpointFiles {
 public:
  /// At most `max_open` files are open at once; the one that was used longest ago is closed for another.
  CheckpointFiles(format::Repository& repository, const format::Checkpoint& checkpoint, unsigned max_open);

  [[nodiscard]] const format::Checkpoint& checkpoint() const { return checkpoint_; }

  /// Fills `into` with bytes of a tensor, from `offset` relative to the tensor's first byte.
  [[nodiscard]] Result<void> read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                  ReadPurpose purpose, const std::stop_token& stop);

  [[nodiscard]] uint64_t bytes_read(ReadPurpose purpose) const { return bytes_read_[static_cast<size_t>(purpose)]; }
  [[nodiscard]] const std::string& path(const format::TensorEntry& tensor) const;

 private:
  struct OpenFile {
    uint32_t file = 0;
    std::unique_ptr<format::ByteSource> source;
  };
  Result<format::ByteSource*> source_of(uint32_t file, const std::stop_token& stop);

  format::Repository& repository_;
  const format::Checkpoint& checkpoint_;
  unsigned max_open_;
  std::list<OpenFile> open_;  // most recently used first
  std::unordered_map<uint32_t, std::list<OpenFile>::iterator> by_file_;
  std::array<uint64_t, kReadPurposes> bytes_read_{};
};

}  // namespace dspack::runtime
