#include "runtime/access/row_fetcher.h"

#include <algorithm>
#include <cstring>

#include "format/base/parallel.h"

namespace dspack::runtime {
namespace {

using format::Digest;

// Blocks have 1 MiB; a prompt's tokens are seldom in more blocks than this.
constexpr size_t kMaxBlocksInMemory = 64;

Digest digest_of(std::span<const std::byte> bytes) {
  format::Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace

RowFetcher::RowFetcher(const FetchContext& context) : context_(context) {
  const format::Checkpoint& catalogue = context.origin.catalogue();
  for (uint32_t tensor = 0; tensor < catalogue.tensors().size(); ++tensor)
    rows_.push_back(catalogue.tensors()[tensor].place.expert ? 0 : rows_per_cache_block(catalogue, tensor));
}

ByteRange RowFetcher::range_of(uint32_t tensor, uint64_t block) const {
  const format::TensorEntry& entry = context_.origin.catalogue().tensors()[tensor];
  const uint64_t bytes = entry.range.size() / entry.shape[0] * rows_[tensor];
  return {block * bytes, std::min((block + 1) * bytes, entry.range.size())};
}

bool RowFetcher::check_kept(uint32_t tensor, uint64_t block) {
  const auto recorded = context_.cache.recorded_block(tensor, block);
  if (!recorded) return false;
  const auto declared = declared_block(context_.origin.catalogue(), tensor, block);
  const ByteRange range = range_of(tensor, block);
  std::vector<std::byte> bytes(range.size());
  return context_.cache.read(tensor, range.begin, bytes) && digest_of(bytes) == declared.value_or(*recorded);
}

Result<RowFetcher::Fetched> RowFetcher::fetch_block(uint32_t tensor, uint64_t block, const std::stop_token& stop) {
  const format::TensorEntry& entry = context_.origin.catalogue().tensors()[tensor];
  const ByteRange range = range_of(tensor, block);
  const auto declared = declared_block(context_.origin.catalogue(), tensor, block);
  const auto wanted = declared ? declared : context_.cache.recorded_block(tensor, block);
  for (unsigned i = 0; i < kFetchTries; ++i) {
    if (i > 0) context_.origin.count_refetch();
    Fetched fetched{.bytes = std::vector<std::byte>(range.size()), .digest = {}};
    TRY_ASSIGN(format::ByteSource * file, context_.origin.file(entry.file, stop));
    TRY(file->read(entry.range.begin + range.begin, fetched.bytes, stop));
    context_.origin.count(WeightPurpose::embedding, range.size());
    fetched.digest = digest_of(fetched.bytes);
    if (!wanted || *wanted == fetched.digest) return fetched;
  }
  return context_.origin.always_wrong(tensor, block);
}

Result<void> RowFetcher::keep(uint32_t tensor, std::map<uint64_t, Fetched>&& fetched) {
  if (!context_.space.is_full()) {
    std::map<uint64_t, format::WeightCache::Block> blocks;
    for (const auto& [block, got] : fetched)
      blocks.emplace(block, format::WeightCache::Block{.bytes = got.bytes, .digest = got.digest});
    const auto kept = context_.cache.keep_blocks(tensor, blocks);
    if (!kept) TRY(context_.space.judge(kept.error()));
  }
  for (auto& [block, got] : fetched) {
    if (context_.cache.has_block(tensor, block)) {
      checked_.emplace(tensor, block);
      continue;
    }
    if (in_memory_.size() >= kMaxBlocksInMemory) in_memory_.erase(in_memory_.begin());
    in_memory_.insert_or_assign({tensor, block}, std::move(got.bytes));
  }
  return {};
}

Result<void> RowFetcher::ensure(uint32_t tensor, const std::set<uint64_t>& blocks, const std::stop_token& stop) {
  std::vector<uint64_t> missing;
  for (const uint64_t block : blocks) {
    if (checked_.contains({tensor, block}) || in_memory_.contains({tensor, block})) continue;
    if (check_kept(tensor, block)) {
      checked_.emplace(tensor, block);
    } else {
      missing.push_back(block);
    }
  }
  if (missing.empty()) return {};
  std::mutex mutex;
  std::map<uint64_t, Fetched> fetched;
  const auto done = run_jobs(
      missing.size(), context_.connections,
      [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
        TRY_ASSIGN(Fetched block, fetch_block(tensor, missing[i], stop_one));
        const std::lock_guard lock(mutex);
        fetched.emplace(missing[i], std::move(block));
        return {};
      },
      stop);
  if (!done) return done.error();
  return keep(tensor, std::move(fetched));
}

Result<void> RowFetcher::fetch(uint32_t tensor, std::span<const ByteRange> ranges, const std::stop_token& stop) {
  const uint64_t block_bytes = range_of(tensor, 0).size();
  std::set<uint64_t> blocks;
  for (const ByteRange& range : ranges) {
    for (uint64_t block = range.begin / block_bytes; block * block_bytes < range.end; ++block)
      blocks.insert(block);
  }
  const std::lock_guard lock(mutex_);
  while (!blocks.empty()) {  // in batches, to bound the memory
    std::set<uint64_t> some;
    while (!blocks.empty() && some.size() < kMaxBlocksInMemory)
      some.insert(blocks.extract(blocks.begin()));
    TRY(ensure(tensor, some, stop));
  }
  return {};
}

Result<void> RowFetcher::read(uint32_t tensor, uint64_t offset, std::span<std::byte> into,
                              const std::stop_token& stop) {
  const uint64_t block_bytes = range_of(tensor, 0).size();
  while (!into.empty()) {
    const uint64_t block = offset / block_bytes;
    const ByteRange range = range_of(tensor, block);
    const auto part = into.first(std::min<uint64_t>(into.size(), range.end - offset));
    {
      const std::lock_guard lock(mutex_);
      TRY(ensure(tensor, {block}, stop));
      const auto held = in_memory_.find({tensor, block});
      if (held != in_memory_.end()) {
        std::memcpy(part.data(), held->second.data() + (offset - range.begin), part.size());
      } else {
        TRY(context_.cache.read(tensor, offset, part));
        cache_bytes_ += part.size();
      }
    }
    offset += part.size();
    into = into.subspan(part.size());
  }
  return {};
}

}  // namespace dspack::runtime
