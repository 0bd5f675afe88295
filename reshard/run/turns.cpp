#include "reshard/run/turns.h"

#include <algorithm>

namespace dspack::reshard {
namespace {

bool comes_in_turn(const Copy& copy) {
  return copy.file != kNoFile && copy.bytes != 0 && copy.bytes % kPageBytes == 0;
}

}  // namespace

Turns::Turns(const Plan& plan, const RunScope& scope, uint64_t small_bytes)
    : plan_(plan), small_bytes_(small_bytes), shares_(plan.files.size()), owners_(plan.files.size()) {
  const std::vector<uint64_t> own = bytes_per_file(plan, scope.shards);
  for (auto shard = scope.shards.rbegin(); shard != scope.shards.rend(); ++shard) {
    for (const Copy& copy : plan.shards[*shard]) {
      if (!comes_in_turn(copy) || own[copy.file] < plan.files[copy.file].size_bytes) continue;
      std::vector<Share>& shares = shares_[copy.file];
      if (shares.empty() || shares.back().shard != *shard) shares.push_back({.shard = *shard});
      shares.back().bytes += copy.bytes;
      ++shares.back().left;
      owners_[copy.file].resize(plan.files[copy.file].tensors.size());
      owners_[copy.file][copy.slot] = static_cast<uint32_t>(shares.size() - 1);
    }
  }
}

void Turns::given(const Copy& copy) {
  if (!comes_in_turn(copy) || owners_[copy.file].empty()) return;
  const std::lock_guard lock(mutex_);
  if (--shares_[copy.file][owners_[copy.file][copy.slot]].left == 0) changed_.notify_all();
}

bool Turns::is_open(const Copy& copy) const {
  if (!comes_in_turn(copy) || owners_[copy.file].empty()) return true;
  const std::vector<Share>& shares = shares_[copy.file];
  const size_t own = owners_[copy.file][copy.slot];
  if (shares[own].bytes <= small_bytes_) return true;
  return std::all_of(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(own),
                     [](const Share& share) { return share.left == 0; });
}

/// Where the first tensor at `offset` or behind begins that must wait.
uint64_t Turns::first_closed(uint64_t shard, uint64_t offset) const {
  const std::vector<Copy>& copies = plan_.shards[shard];
  auto copy = std::ranges::lower_bound(copies, offset, {}, [](const Copy& each) { return each.source.begin; });
  while (copy != copies.end() && is_open(*copy))
    ++copy;
  return copy == copies.end() ? UINT64_MAX : copy->source.begin;
}

uint64_t Turns::end_of_turn(uint64_t shard, uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  return first_closed(shard, offset);
}

Result<void> Turns::wait(uint64_t shard, uint64_t offset, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const bool open = changed_.wait(lock, stop, [&] { return first_closed(shard, offset) > offset; });
  if (!open) return stopped();
  return {};
}

}  // namespace dspack::reshard
