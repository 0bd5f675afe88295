#include "reshard/run/file_digest.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "format/base/check.h"

namespace dspack::reshard {
namespace {

// Size of the pieces in which a file is read back.
constexpr uint64_t kReadBackBytes = 1 << 20;

}  // namespace

bool HoldingRoom::take(uint64_t bytes) {
  uint64_t left = left_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

void FileDigest::begin(std::string_view header) {
  hash_.emplace().update(format::as_bytes(header));
  hashed_ = header.size();
}

void FileDigest::begin(const format::Sha256State& hash) {
  hash_.emplace(hash);
  hashed_ = hash.bytes;
  while (next_ < file_.tensors.size() && end_of(next_) <= hashed_)
    ++next_;
}

uint64_t FileDigest::end_of(size_t slot) const {
  return slot + 1 < file_.offsets.size() ? file_.offsets[slot + 1] : file_.size_bytes;
}

Result<FileDigest::Turn> FileDigest::turn(uint32_t slot, uint64_t done, const OpenWritten& open) {
  DSPACK_CHECK(hash_, "a file's digest begins with its header");
  const bool all_there = std::all_of(written_.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(next_, slot)),
                                     written_.begin() + slot, [](const auto& digest) { return digest.has_value(); });
  if (!in_use_ && next_ < slot && all_there) TRY(read_back(slot, open));
  if (!in_use_ && next_ == slot && hashed_ == file_.offsets[slot] + done) {
    in_use_ = true;
    return Turn{.hash = &*hash_, .held = false};
  }
  const uint64_t bytes = end_of(slot) - file_.offsets[slot];
  return Turn{.hash = nullptr, .held = done == 0 && next_ <= slot && room_.take(bytes)};
}

void FileDigest::end(uint32_t slot, const Turn& turn, const format::Digest& whole, std::vector<std::byte> held) {
  written_[slot] = whole;
  if (turn.held) held_.emplace(slot, std::move(held));
  if (turn.hash != nullptr) {
    in_use_ = false;
    hashed_ = end_of(slot);
    next_ = slot + 1;
  }
  if (!in_use_) take_held();
}

void FileDigest::take_held() {
  for (auto held = held_.begin(); held != held_.end() && held->first <= next_; held = held_.erase(held)) {
    if (held->first == next_) {
      hash_->update(held->second);
      hashed_ = end_of(next_++);
    }
    room_.give_back(held->second.size());
  }
}

std::optional<format::Sha256State> FileDigest::state(std::span<const format::Sha256* const> mine) const {
  if (!hash_ || (in_use_ && std::ranges::find(mine, &*hash_) == mine.end())) return std::nullopt;
  return hash_->state();
}

/// Adds the tensors from next_ to `until`, all of which are written.
Result<void> FileDigest::read_back(size_t until, const OpenWritten& open) {
  std::unique_ptr<format::ReadFile> written;
  std::vector<std::byte> buffer;
  for (take_held(); next_ < until; take_held()) {
    if (!written) {
      TRY_ASSIGN(written, open());
      buffer.resize(kReadBackBytes);
    }
    const uint64_t begin = file_.offsets[next_], end = end_of(next_);
    format::Sha256 tensor;
    // If the digest already covers the beginning of a tensor, that is read only for the tensor's own digest.
    for (uint64_t at = begin; at < end;) {
      const uint64_t stop = at < hashed_ ? std::min(hashed_, end) : end;
      const std::span<std::byte> piece(buffer.data(), std::min<uint64_t>(buffer.size(), stop - at));
      TRY(written->read(at, piece));
      if (at < hashed_) {
        tensor.update(piece);
      } else {
        update_together(std::array{&*hash_, &tensor}, piece);
      }
      at += piece.size();
    }
    read_back_ += end - begin;
    if (tensor.finish() != written_[next_]) {
      return Error{ErrorKind::corrupt, fmt::format("tensor \"{}\" reads back differently from what was written",
                                                   result_.tensors()[file_.tensors[next_]].name)};
    }
    hashed_ = end;
    ++next_;
  }
  return {};
}

Result<format::Digest> FileDigest::finish(const OpenWritten& open) {
  DSPACK_CHECK(hash_ && !in_use_, "a file is sealed when all its tensors have come");
  TRY(read_back(file_.tensors.size(), open));
  const format::Digest digest = hash_->finish();
  hash_.reset();
  return digest;
}

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

/// The offset of the first tensor at or after `offset` that must wait.
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
