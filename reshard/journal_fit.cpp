#include "reshard/journal_fit.h"

#include <algorithm>
#include <span>

namespace dspack::reshard {
namespace {

/// Of a copy whose bytes are digested in blocks of rows; 0: they are not.
uint64_t block_bytes_of(const Copy& copy, const Plan& plan) {
  if (copy.file == kNoFile || copy.conversion != Conversion::none) return 0;
  return format::row_block_bytes(plan.result.tensors()[plan.files[copy.file].tensors[copy.slot]]);
}

bool fits_whole(const TensorDigests& tensor, const Copy& copy, const Plan& plan) {
  const uint64_t block = block_bytes_of(copy, plan);
  return tensor.row_blocks.size() == (block == 0 ? 0 : (copy.bytes + block - 1) / block);
}

bool fits_copies(const std::vector<TensorDigests>& tensors, const std::vector<Copy>& copies, const Plan& plan) {
  if (tensors.size() > copies.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!fits_whole(tensors[i], copies[i], plan)) return false;
  }
  return true;
}

/// `done` bytes of the tensor have come.
bool fits_open(const TensorBegun& tensor, const Copy& copy, uint64_t done, const Plan& plan) {
  const uint64_t block = block_bytes_of(copy, plan);
  if (copy.conversion != Conversion::none || tensor.whole.bytes != done) return false;
  if (block == 0) return tensor.row_blocks.empty() && !tensor.row_block;
  return tensor.row_blocks.size() == done / block && tensor.row_block && tensor.row_block->bytes == done % block;
}

/// The tensors under way are all copies of the one that comes next, and `at` lies in it; if none is, `at` lies between
/// two tensors.
bool fits_shard(const ShardBegun& record, const Plan& plan) {
  const std::vector<Copy>& copies = plan.shards[record.shard];
  const ShardRead& read = plan.reads[record.shard];
  if (read.ranges.empty() || record.at < read.ranges.front().begin) return false;
  if (record.hash.has_value() != read.whole || (read.whole && record.hash->bytes != record.at)) return false;
  if (!fits_copies(record.tensors, copies, plan)) return false;
  const auto next = copies.begin() + static_cast<std::ptrdiff_t>(record.tensors.size());
  const bool is_first_of_tensor = next == copies.begin() || next == copies.end() || next->tensor != next[-1].tensor;
  if (!is_first_of_tensor || (next != copies.begin() && record.at < next[-1].source.end)) return false;
  if (next == copies.end()) return record.begun.empty() && record.at <= read.ranges.back().end;
  if (record.begun.empty()) return record.at <= next->source.begin;
  const auto end = std::find_if(next, copies.end(), [&](const Copy& copy) { return copy.tensor != next->tensor; });
  if (end - next != std::ssize(record.begun)) return false;
  if (record.at < next->source.begin || next->source.end <= record.at) return false;
  for (size_t i = 0; i < record.begun.size(); ++i) {
    if (!fits_open(record.begun[i], next[static_cast<std::ptrdiff_t>(i)], record.at - next->source.begin, plan))
      return false;
  }
  return true;
}

}  // namespace

bool fits_plan(const JournalState& state, const RunScope& scope, const Plan& plan) {
  const auto is_own = [&](uint64_t shard) { return std::ranges::binary_search(scope.shards, shard); };
  for (const auto& [shard, record] : state.shards) {
    if (!is_own(shard) || record.tensors.size() != plan.shards[shard].size()) return false;
    if (!fits_copies(record.tensors, plan.shards[shard], plan)) return false;
  }
  for (const auto& [shard, record] : state.begun) {
    if (!is_own(shard) || state.shards.contains(shard) || !fits_shard(record, plan)) return false;
  }
  const auto is_planned = [&](uint64_t file) { return file < plan.files.size(); };
  return std::ranges::all_of(state.files, [&](const auto& file) { return is_planned(file.first); }) &&
         std::ranges::all_of(state.file_hashes, [&](const FileBegun& file) { return is_planned(file.file); });
}

}  // namespace dspack::reshard
