#include "runtime/experts/expert_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "format/base/page_buffer.h"
#include "format/base/result.h"

namespace dspack::runtime {

namespace {

struct Block {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  std::span<std::byte> into;
};

// Splits the plan's parts into blocks of at most Tier::block_bytes with inner bounds at multiples of that in the file:
// the page cache loads large aligned pieces, and two reads that meet within one would both load it.
std::vector<Block> split(const SlotPlan& plan, std::span<std::byte> slot, const Tier& tier, bool in_place) {
  std::vector<Block> blocks;
  for (const SlotPlan::PlacedExtent& part : plan.parts) {
    if (in_place) {  // one mapping per part
      blocks.push_back({.file = part.extent.file,
                        .offset = part.extent.range.begin,
                        .into = slot.subspan(part.at, part.extent.range.size())});
      continue;
    }
    const uint64_t most = tier.block_bytes(part.extent.file);
    const uint64_t unit = std::max(most / kPageBytes * kPageBytes, kPageBytes);
    const ByteRange range = part.extent.range;
    for (uint64_t at = range.begin; at < range.end;) {
      const uint64_t end = std::min(range.end, (at / unit + 1) * unit);
      blocks.push_back(
          {.file = part.extent.file, .offset = at, .into = slot.subspan(part.at + (at - range.begin), end - at)});
      at = end;
    }
  }
  return blocks;
}

// Whether the manifest covers the file. The version of any other file is known.
bool is_packed(const format::Checkpoint& checkpoint, uint32_t file) {
  return checkpoint.manifest() && checkpoint.files()[file].version.empty();
}

// One expert's load, shared by the jobs of its blocks: the last job to end finishes the expert.
class Load {
 public:
  Load(Tier& tier, ExpertLoadRequest request, size_t blocks)
      : tier_(tier), request_(std::move(request)), left_(blocks) {}

  void read(const Block& block, const std::stop_token& stop) {
    if (!failed_.load()) {
      if (stop.stop_requested()) {
        fail({ErrorKind::cancelled, "reading the expert was given up"});
      } else if (auto read = guarded([&] { return bring(block, stop); }); !read) {
        fail(read.error());
      } else {
        bytes_read_ += block.into.size();
      }
    }
    if (left_.fetch_sub(1) == 1) finish();
  }

 private:
  Result<void> bring(const Block& block, const std::stop_token& stop) {
    if (request_.in_place) {
      auto mapped = tier_.map(block.file, block.offset, block.into);
      const bool reading_may_do =
          !mapped && (mapped.error().kind == ErrorKind::unsupported || mapped.error().kind == ErrorKind::budget);
      if (!reading_may_do) return mapped;
    }
    return tier_.read(block.file, block.offset, block.into, stop);
  }

  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    failed_.store(true);
  }

  void finish() {
    request_.done({.result = guarded([this] { return outcome(); }), .bytes_read = bytes_read_.load()});
  }

  Result<void> outcome() {
    if (error_) return *error_;  // without the lock: all other jobs have ended
    if (request_.verify) {
      TRY(check_digests(tier_, tensors_in(*request_.plan, request_.slot)));
      tier_.trust(request_.key);
    }
    return finish_slot(tier_.checkpoint(), *request_.plan, request_.slot);
  }

  Tier& tier_;
  ExpertLoadRequest request_;
  std::atomic<size_t> left_;
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> bytes_read_{0};
  std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_ until the last block has ended
};

}  // namespace

void start_load(Tier& tier, TransferPool& pool, ExpertLoadRequest request) {
  const std::vector<Block> blocks = split(*request.plan, request.slot, tier, request.in_place);
  DSPACK_CHECK(!blocks.empty(), "an expert without bytes");
  const Urgency urgency = request.urgency;
  const uint64_t group = request.group;
  const auto load = std::make_shared<Load>(tier, std::move(request), blocks.size());
  for (const Block& block : blocks)
    pool.submit(urgency, group, [load, block](const std::stop_token& stop) { load->read(block, stop); });
}

std::vector<TensorBytes> tensors_in(const SlotPlan& plan, std::span<const std::byte> slot) {
  std::vector<TensorBytes> tensors;
  for (const SlotPlan::Stored& stored : plan.tensors)
    tensors.push_back({.tensor = stored.tensor, .bytes = slot.subspan(stored.at, stored.tensor->range.size())});
  return tensors;
}

Result<void> check_digests(const Tier& tier, std::span<const TensorBytes> tensors) {
  const format::Checkpoint& checkpoint = tier.checkpoint();
  for (const TensorBytes& stored : tensors) {
    const std::optional<format::Digest> wanted = tier.digest_of(*stored.tensor);
    if (!wanted) continue;
    format::Sha256 hash;
    hash.update(stored.bytes);
    if (hash.finish() == *wanted) continue;
    return Error{ErrorKind::corrupt,
                 fmt::format("{} has other bytes than {}", place_of(checkpoint, *stored.tensor),
                             is_packed(checkpoint, stored.tensor->file)
                                 ? "the manifest says (SHA-256); fetch the file again"
                                 : "when it was first fetched (SHA-256); the weights there have changed")};
  }
  return {};
}

}  // namespace dspack::runtime
