// A checkpoint of a few small tensors with V3's names: two layers, three experts, an MTP module, scales in other
// shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace dspack::test {

/// One tensor with the bytes it holds.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

/// A safetensors file as other writers make it: no alignment, given order, optional spaces behind the header.
std::string safetensors_file(const std::vector<RawTensor>& tensors, size_t padding = 0);

/// Bytes that differ from tensor to tensor and from place to place.
std::string pattern(size_t bytes, unsigned seed);

class SmallCheckpoint {
 public:
  SmallCheckpoint();

  void add(size_t shard, const std::string& name, const std::string& dtype, std::vector<uint64_t> shape,
           size_t element);
  [[nodiscard]] static std::string shard_name(size_t shard);
  /// Writes shards, index, config and a README into a folder.
  void write(const TempFolder& folder) const;
  [[nodiscard]] std::vector<RawTensor>& shard(size_t number) { return shards_[number]; }

 private:
  std::vector<RawTensor> shards_[3];
  unsigned seed_ = 0;
};

/// Every file below a folder: path -> bytes.
std::map<std::string, std::string> tree(const std::filesystem::path& folder);

}  // namespace dspack::test
