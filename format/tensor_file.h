// Writes one safetensors file as its tensors arrive, without holding them: reserves space for the header, writes the
// data piece by piece, and gives the file its name when it is complete.
// Threads: single-thread. Lifetime: borrows the file system. Errors: io, budget; each names the file. An unsealed file
// is removed.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/file_system.h"
#include "format/safetensors.h"

namespace dspack::format {

class TensorFileWriter {
 public:
  /// A size that certainly suffices for the header of `tensors` tensors with names of at most `name_bytes` bytes, and
  /// `metadata_bytes` of metadata.
  [[nodiscard]] static uint64_t header_room(uint64_t tensors, uint64_t name_bytes, uint64_t metadata_bytes);

  [[nodiscard]] static Result<std::unique_ptr<TensorFileWriter>> create(FileSystem& files, const Path& path,
                                                                        uint64_t header_room);
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  /// Reserves space for a tensor and returns its number. Several may be in progress at once. Precondition: shape and
  /// dtype have a size.
  [[nodiscard]] size_t add(std::string name, Dtype dtype, std::vector<uint64_t> shape);
  /// Writes the next bytes of a tensor. Precondition: they fit into it.
  [[nodiscard]] Result<void> append(size_t tensor, std::span<const std::byte> bytes);
  /// Bytes of the tensor that have not been appended.
  [[nodiscard]] uint64_t missing_bytes(size_t tensor) const;

  /// Writes the header, and gives the file its name. Precondition: all tensors are complete, and the header fits.
  [[nodiscard]] Result<void> seal(const std::map<std::string, std::string>& metadata);

 private:
  TensorFileWriter(FileSystem& files, Path path, Path temporary, uint64_t header_room, std::unique_ptr<WriteFile> file);

  FileSystem& files_;
  Path path_;
  Path temporary_;
  uint64_t header_room_;
  std::unique_ptr<WriteFile> file_;  // null once sealed
  std::vector<TensorInfo> tensors_;
  std::vector<uint64_t> written_;  // bytes appended, by tensor
  uint64_t data_bytes_ = 0;
};

}  // namespace dspack::format
