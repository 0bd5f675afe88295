#include "runtime/budget/request_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"

namespace dspack::runtime {
namespace {

// A quarter of a small limit; of a large one, enough to serve dozens of agents at a time. The minimum still reads a
// conversation of 300 kB.
constexpr uint64_t kLimitShare = 4;
constexpr uint64_t kLeastBytes = 48ULL << 20U;
constexpr uint64_t kMaxBytes = 384ULL << 20U;
constexpr uint64_t kBodiesShare = 6;  // one sixth for arriving bodies, another for waiting ones

// Measured (tests/runtime/serve/request_memory_test.cpp): a list's value takes 16 bytes, and 16 more while the list
// grows, and a string another 32; a field has its name, and lists and objects are separate lists; the conversation and
// a template's input repeat all of them.
constexpr uint64_t kValueBytes = 100;
constexpr uint64_t kFieldBytes = 320;  // also lists and objects
constexpr uint64_t kTextCopies = 8;
// A byte of text may be a separate word, which is in three lists, or a symbol and a pair of symbols.
constexpr uint64_t kEncodingBytes = 96;

}  // namespace

RequestBounds request_bounds(uint64_t limit_bytes) {
  const uint64_t all = std::clamp(limit_bytes / kLimitShare, kLeastBytes, kMaxBytes);
  const uint64_t bodies = all / kBodiesShare;
  return {.arriving_bytes = bodies, .waiting_bytes = bodies, .expanding_bytes = all - 2 * bodies};
}

uint64_t reading_bytes(std::string_view json) {
  uint64_t values = 1;
  uint64_t fields = 0;
  bool is_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_text && c == '\\')
      ++i;
    else if (c == '"')
      is_text = !is_text;
    else if (!is_text && c == ',')
      ++values;
    else if (!is_text && (c == ':' || c == '[' || c == '{'))
      ++fields;
  }
  return values * kValueBytes + fields * kFieldBytes + json.size() * kTextCopies;
}

uint64_t encoding_bytes(uint64_t text_bytes) {
  return text_bytes * kEncodingBytes;
}

Result<void> RequestMemory::Share::need(uint64_t bytes) {
  if (bytes > memory_->most_) {
    return Error{ErrorKind::invalid,
                 fmt::format("this request may take {} of memory, more than the {} that all requests have; shorten it, "
                             "or allow the server more with --ram",
                             size_words(bytes), size_words(memory_->most_))};
  }
  uint64_t taken = memory_->taken_;
  do {
    if (bytes > bytes_ && bytes - bytes_ > memory_->most_ - std::min(memory_->most_, taken)) {
      return Error{ErrorKind::conflict, "requests of other clients need the memory"};
    }
  } while (!memory_->taken_.compare_exchange_weak(taken, taken - bytes_ + bytes));
  bytes_ = bytes;
  return {};
}

}  // namespace dspack::runtime
