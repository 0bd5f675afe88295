// The part of the streamed store that counts what is read: for one prompt, and in a second.
#include <fmt/format.h>

#include "format/base/size_text.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

namespace {

// From fewer bytes no rate follows.
constexpr uint64_t kEnoughBytes = 64'000'000;

}  // namespace

FetchOutlook StreamedStore::begin_prompt(const PromptShape& prompt) {
  const std::lock_guard lock(mutex_);
  fetched_ = 0;
  const auto experts = static_cast<double>(storage_.checkpoint().experts().size());
  return fetch_outlook(storage_.checkpoint(), prompt,
                       {.cached_share = experts > 0 ? static_cast<double>(stats_.slots) / experts : 0,
                        .is_in_memory =
                            [this](ExpertKey key) {
                              const auto pool = pool_of_layer_.find(key.layer);
                              return pool != pool_of_layer_.end() && pool->second->find(key) != nullptr;
                            },
                        .tier_of = [this](ExpertKey key) { return storage_.tier_of(key); }});
}

std::optional<double> StreamedStore::bytes_per_second() const {
  const std::lock_guard lock(mutex_);
  if (reading_.bytes < kEnoughBytes || reading_.seconds <= 0) return std::nullopt;
  return static_cast<double>(reading_.bytes) / reading_.seconds;
}

Result<void> StreamedStore::count_reading(const Slot& slot) {
  const uint64_t bytes = slot.plan.stored_bytes;
  if (options_.max_fetch && fetched_ + bytes > *options_.max_fetch) {
    return Error{
        ErrorKind::budget,
        fmt::format("the prompt and its answer have read {} of experts, and --max-fetch allows {}; allow more, "
                    "or more memory for experts (--ram, --experts), so that fewer are read again",
                    size_words(fetched_), size_words(*options_.max_fetch))};
  }
  fetched_ += bytes;
  if (reading_.experts++ == 0) reading_.start = std::chrono::steady_clock::now();
  return {};
}

void StreamedStore::count_read(const Slot& slot, uint64_t bytes) {
  fetched_ -= std::min(fetched_, slot.plan.stored_bytes - bytes);
  reading_.bytes += bytes;
  if (--reading_.experts > 0) return;
  reading_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - reading_.start).count();
}

}  // namespace dspack::runtime
