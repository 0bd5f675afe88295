#include "runtime/access/distant_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/parallel.h"
#include "format/base/size.h"

namespace dspack::runtime {
namespace {

using format::Digest;

// Large enough that a read is not dominated by its call.
constexpr uint64_t kPieceBytes = 1ULL << 20;

/// Bytes that a cache must have room for: all tensors that are neither an expert's nor read by rows.
uint64_t always_needed_bytes(const format::Checkpoint& catalogue,
                             const std::optional<std::span<const uint32_t>>& wanted) {
  const auto bytes_of = [&](uint32_t i) -> uint64_t {
    const format::TensorEntry& tensor = catalogue.tensors()[i];
    const bool counts = !tensor.is_alias && !tensor.place.expert && rows_per_cache_block(catalogue, i) == 0;
    return counts ? tensor.range.size() : 0;
  };
  uint64_t bytes = 0;
  if (wanted) {
    for (const uint32_t i : *wanted)
      bytes += bytes_of(i);
    return bytes;
  }
  for (uint32_t i = 0; i < catalogue.tensors().size(); ++i)
    bytes += bytes_of(i);
  return bytes;
}

void learn_digests(format::Checkpoint& catalogue, const format::WeightCache& cache) {
  for (uint32_t i = 0; i < catalogue.tensors().size(); ++i) {
    if (catalogue.tensors()[i].digest) continue;
    if (const auto recorded = cache.recorded(i)) catalogue.learn_digest(i, *recorded);
  }
}

}  // namespace

DistantTier::DistantTier(const DistantParts& parts, const format::Checkpoint& catalogue,
                         std::unique_ptr<format::WeightCache> cache, const DistantTierOptions& options)
    : options_(options),
      parts_(parts),
      origin_(parts.files, catalogue),
      cache_(std::move(cache)),
      space_([this](std::string_view text) { parts_.progress.note(text); }),
      tensors_({.origin = origin_, .cache = *cache_, .space = space_, .connections = options.connections}),
      rows_({.origin = origin_, .cache = *cache_, .space = space_, .connections = options.connections}),
      by_file_(catalogue.files().size()),
      is_checked_(catalogue.tensors().size()) {
  for (uint32_t i = 0; i < catalogue.tensors().size(); ++i) {
    if (!catalogue.tensors()[i].is_alias) by_file_[catalogue.tensors()[i].file].push_back(i);
  }
  for (std::vector<uint32_t>& tensors : by_file_) {
    std::ranges::sort(tensors, {}, [&](uint32_t t) {
      return std::pair(catalogue.tensors()[t].range.begin, catalogue.tensors()[t].range.end);
    });
  }
}

Result<std::unique_ptr<DistantTier>> DistantTier::open(const DistantParts& parts, format::Checkpoint& catalogue,
                                                       const DistantTierOptions& options,
                                                       std::optional<std::span<const uint32_t>> wanted) {
  const uint64_t least = always_needed_bytes(catalogue, wanted);
  if (options.disk_bytes != 0 && options.disk_bytes < least) {
    return Error{ErrorKind::budget,
                 fmt::format("--disk {}: the cache must have room for the {} ({} bytes) that every token needs; allow "
                             "more",
                             size_words(options.disk_bytes), size_words(least), least)};
  }
  TRY_ASSIGN(auto cache,
             format::WeightCache::open(
                 parts.folder, catalogue,
                 {.bytes = options.disk_bytes, .set_aside_bytes = least, .stay_free_bytes = options.stay_free_bytes}));
  learn_digests(catalogue, *cache);
  return std::unique_ptr<DistantTier>(new DistantTier(parts, catalogue, std::move(cache), options));
}

std::vector<DistantTier::TensorRange> DistantTier::pieces_of(uint32_t file, ByteRange range,
                                                             std::span<std::byte> into) const {
  const auto& all = checkpoint().tensors();
  const std::vector<uint32_t>& tensors = by_file_[file];
  std::vector<TensorRange> pieces;
  auto next = std::ranges::partition_point(tensors, [&](uint32_t t) { return all[t].range.end <= range.begin; });
  for (; next != tensors.end() && all[*next].range.begin < range.end; ++next) {
    const ByteRange tensor = all[*next].range;
    const ByteRange both{std::max(tensor.begin, range.begin), std::min(tensor.end, range.end)};
    if (both.begin >= both.end) continue;
    pieces.push_back({.tensor = *next,
                      .in_tensor = {both.begin - tensor.begin, both.end - tensor.begin},
                      .into = into.empty() ? into : into.subspan(both.begin - range.begin, both.size())});
  }
  return pieces;
}

Result<void> DistantTier::read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) {
  std::vector<TensorRange> pieces = pieces_of(file, {offset, offset + into.size()}, into);
  uint64_t covered = 0;
  for (const TensorRange& piece : pieces)
    covered += piece.into.size();
  if (covered < into.size()) std::ranges::fill(into, std::byte{});
  const auto expert_of = [&](const TensorRange& piece) -> std::optional<ExpertKey> {
    const format::TensorName& place = checkpoint().tensors()[piece.tensor].place;
    return place.expert ? std::optional(ExpertKey{*place.layer, *place.expert}) : std::nullopt;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    TensorRange piece = pieces[i];
    if (const auto expert = expert_of(piece)) {
      const bool is_kept = cache_->has_expert(*expert);
      // Adjacent pieces of the same expert are fetched with one request.
      const auto joins = [&](const TensorRange& other) {
        return !is_kept && expert_of(other) == expert && piece.into.data() + piece.into.size() == other.into.data();
      };
      for (; i + 1 < pieces.size() && joins(pieces[i + 1]); ++i)
        piece.into = {piece.into.data(), piece.into.size() + pieces[i + 1].into.size()};
      TRY(read_expert(*expert, piece, stop));
    } else if (rows_.has_blocks(piece.tensor)) {
      TRY(rows_.read(piece.tensor, piece.in_tensor.begin, piece.into, stop));
    } else {
      TRY(read_whole(piece, stop));
    }
  }
  return {};
}

Result<void> DistantTier::read_expert(ExpertKey expert, const TensorRange& piece, const std::stop_token& stop) {
  if (cache_->has_expert(expert)) {
    if (piece.in_tensor.begin == 0 && piece.tensor == checkpoint().expert(expert).front()) cache_->note_use(expert);
    const auto read = cache_->read(piece.tensor, piece.in_tensor.begin, piece.into);
    if (read) {
      count_cache(WeightPurpose::experts, piece.into.size());
      return {};
    }
    // The file in the cache is damaged: distrust() drops the expert, and the caller fetches it from the network.
    if (cache_->has_expert(expert)) return Error{ErrorKind::corrupt, read.error().message};
    // Otherwise the cache evicted it meanwhile, to stay within its bound.
  }
  const format::TensorEntry& tensor = checkpoint().tensors()[piece.tensor];
  TRY_ASSIGN(format::ByteSource * source, origin_.file(tensor.file, stop));
  TRY(source->read(tensor.range.begin + piece.in_tensor.begin, piece.into, stop));
  origin_.count(WeightPurpose::experts, piece.into.size());
  return {};
}

Result<void> DistantTier::read_whole(const TensorRange& piece, const std::stop_token& stop) {
  if (!is_checked_[piece.tensor]) {
    const std::lock_guard lock(whole_mutex_);
    if (in_memory_ != piece.tensor) {
      format::SilentProgress silent;
      TRY(ensure({piece.tensor}, silent, stop));
    }
    if (!is_checked_[piece.tensor]) {
      TRY(load_into_memory(piece.tensor, stop));
      std::memcpy(piece.into.data(), memory_.data() + piece.in_tensor.begin, piece.into.size());
      return {};
    }
  }
  TRY(cache_->read(piece.tensor, piece.in_tensor.begin, piece.into));
  count_cache(WeightPurpose::always_needed, piece.into.size());
  return {};
}

bool DistantTier::check_kept(uint32_t tensor) {
  const std::optional<Digest> wanted = tensors_.expected(tensor);
  const uint64_t total = checkpoint().tensors()[tensor].range.size();
  format::Sha256 hash;
  std::vector<std::byte> buffer(std::min(kPieceBytes, total));
  for (uint64_t at = 0; at < total; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), total - at));
    if (!cache_->read(tensor, at, piece)) return false;
    hash.update(piece);
  }
  return wanted && hash.finish() == *wanted;
}

Result<void> DistantTier::ensure(std::vector<uint32_t> tensors, format::Progress& progress,
                                 const std::stop_token& stop) {
  std::erase_if(tensors, [&](uint32_t tensor) { return is_checked_[tensor].load(); });
  const auto is_kept = [&](uint32_t tensor) { return cache_->has_tensor(tensor); };
  const auto missing = std::stable_partition(tensors.begin(), tensors.end(), is_kept);
  std::vector<uint32_t> wanted(missing, tensors.end());
  std::mutex mutex;
  const auto bytes_of = [&](std::span<const uint32_t> numbers) {
    uint64_t bytes = 0;
    for (const uint32_t tensor : numbers)
      bytes += checkpoint().tensors()[tensor].range.size();
    return bytes;
  };
  if (missing != tensors.begin()) progress.started("checking what is kept", bytes_of({tensors.begin(), missing}), 0);
  const auto checked = run_jobs(
      static_cast<uint64_t>(missing - tensors.begin()), options_.connections,
      [&](uint64_t i, const std::stop_token&) -> Result<void> {
        const bool is_good = check_kept(tensors[i]);
        progress.advanced(bytes_of({&tensors[i], 1}));
        if (is_good) {
          is_checked_[tensors[i]] = true;
          return {};
        }
        TRY(cache_->drop_tensor(tensors[i]));  // damaged on disk; it is fetched instead
        const std::lock_guard lock(mutex);
        wanted.push_back(tensors[i]);
        return {};
      },
      stop);
  progress.finished();
  if (!checked) return checked.error();
  if (wanted.empty()) return {};
  progress.started("fetching what every token needs", bytes_of(wanted), 0);
  const auto fetched = tensors_.fetch(wanted, progress, stop);
  for (const uint32_t tensor : wanted)
    is_checked_[tensor] = cache_->has_tensor(tensor);
  if (!fetched) return fetched.error();
  progress.finished();
  return {};
}

Result<void> DistantTier::load_into_memory(uint32_t tensor, const std::stop_token& stop) {
  if (in_memory_ == tensor) return {};
  const format::TensorEntry& entry = checkpoint().tensors()[tensor];
  in_memory_.reset();
  for (unsigned i = 0; i < kFetchTries; ++i) {
    if (i > 0) origin_.count_refetch();
    memory_.resize(entry.range.size());
    TRY_ASSIGN(format::ByteSource * source, origin_.file(entry.file, stop));
    TRY(source->read(entry.range.begin, memory_, stop));
    origin_.count(WeightPurpose::always_needed, memory_.size());
    format::Sha256 hash;
    hash.update(memory_);
    const auto wanted = tensors_.expected(tensor);
    if (wanted && hash.finish() != *wanted) continue;
    in_memory_ = tensor;
    return {};
  }
  return origin_.always_wrong(tensor);
}

Medium DistantTier::medium_of(ExpertKey expert) const {
  return cache_->has_expert(expert) ? Medium::disk : Medium::network;
}

// A bounded cache may evict the expert between this call and its reading.
bool DistantTier::must_verify(ExpertKey expert) const {
  if (options_.disk_bytes != 0 || !cache_->has_expert(expert)) return true;
  const std::lock_guard lock(expert_mutex_);
  return !verified_.contains(expert);
}

// Only for experts that were read from the cache: `keep` marks those that came from the network.
void DistantTier::trust(ExpertKey expert) {
  if (!cache_->has_expert(expert)) return;
  const std::lock_guard lock(expert_mutex_);
  verified_.insert(expert);
}

std::optional<Digest> DistantTier::digest_of(const format::TensorEntry& tensor) const {
  if (tensor.digest) return tensor.digest;
  return cache_->recorded(static_cast<uint32_t>(&tensor - checkpoint().tensors().data()));
}

bool DistantTier::distrust(ExpertKey expert) {
  {
    const std::lock_guard lock(expert_mutex_);
    verified_.erase(expert);
  }
  if (!cache_->has_expert(expert)) return false;
  parts_.progress.note(fmt::format("layer {}, expert {}: it is damaged in the cache and fetched again",
                                   expert.layer.value, expert.expert.value));
  origin_.count_refetch();
  return cache_->drop_expert(expert).has_value();
}

Result<void> DistantTier::expect(std::span<const format::Extent> extents, const std::stop_token& stop) {
  std::vector<uint32_t> tensors;
  std::map<uint32_t, std::vector<ByteRange>> rows;
  for (const format::Extent& extent : extents) {
    for (const TensorRange& piece : pieces_of(extent.file, extent.range, {})) {
      if (checkpoint().tensors()[piece.tensor].place.expert) continue;
      if (rows_.has_blocks(piece.tensor)) {
        rows[piece.tensor].push_back(piece.in_tensor);
      } else {
        tensors.push_back(piece.tensor);
      }
    }
  }
  std::ranges::sort(tensors);
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  {
    const std::lock_guard lock(whole_mutex_);
    TRY(ensure(std::move(tensors), parts_.progress, stop));
  }
  for (const auto& [tensor, ranges] : rows)
    TRY(rows_.fetch(tensor, ranges, stop));
  return {};
}

Result<void> DistantTier::keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                               const std::stop_token& /*stop*/) {
  std::vector<std::span<const std::byte>> bytes;
  for (const TensorBytes& tensor : tensors)
    bytes.push_back(tensor.bytes);
  if (!space_.is_full()) {
    const auto kept = cache_->keep_expert(expert, bytes);
    if (kept && *kept) {
      const std::lock_guard lock(expert_mutex_);
      verified_.insert(expert);
      return {};
    }
    if (!kept) {
      TRY(space_.judge(kept.error()));
    } else {
      space_.say("--disk leaves no room for an expert; what is fetched from here on is not kept");
    }
  }
  cache_->remember(expert, bytes);
  return {};
}

std::optional<NetworkTraffic> DistantTier::traffic() const {
  const format::TransferCounters& counters = parts_.counters;
  NetworkTraffic traffic{.refetches = origin_.refetches(),
                         .cache_size_bytes = cache_->size_bytes(),
                         .requests = counters.requests,
                         .resolutions = counters.resolutions,
                         .retries = counters.retries,
                         .body_bytes = counters.bytes};
  for (size_t i = 0; i < kWeightPurposes; ++i) {
    traffic.network_bytes[i] = origin_.fetched_bytes(static_cast<WeightPurpose>(i));
    traffic.cache_bytes[i] = cache_bytes_[i];
  }
  traffic.cache_bytes[static_cast<size_t>(WeightPurpose::embedding)] = rows_.cache_bytes();
  return traffic;
}

}  // namespace dspack::runtime
