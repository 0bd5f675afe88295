// Memory that a server's requests take, of which --ram holds a part back: bodies that arrive, bodies that wait for the
// model to be loaded, and what becomes of bodies: the tree of JSON, the conversation, its text, its tokens. Each
// request says what it needs before it takes it; what does not fit is refused, so that strangers do not decide how much
// there is. What is counted is the most that a text of this length and these values can take, as measured
// (docs/serve.md). Threads: thread-safe; a share belongs to one thread at a time. Lifetime: shares borrow their
// RequestMemory. Errors: invalid (never possible), conflict (others have it now).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "format/base/result.h"

namespace dspack::runtime {

/// How a server divides its part among what it is for.
struct RequestBounds {
  uint64_t arriving_bytes = 0;   // of all bodies that arrive, or wait to be read
  uint64_t waiting_bytes = 0;    // of those that wait for the model
  uint64_t expanding_bytes = 0;  // of what becomes of bodies
  [[nodiscard]] uint64_t all() const { return arriving_bytes + waiting_bytes + expanding_bytes; }
};

/// The part of `limit_bytes` (of the whole process).
[[nodiscard]] RequestBounds request_bounds(uint64_t limit_bytes);

/// The most that reading so much JSON takes, its tree, its copies as a conversation and as a template's input.
[[nodiscard]] uint64_t reading_bytes(std::string_view json);
/// The most that encoding a text takes.
[[nodiscard]] uint64_t encoding_bytes(uint64_t text_bytes);

class RequestMemory {
 public:
  explicit RequestMemory(uint64_t most_bytes) : most_(most_bytes) {}

  /// What one request has taken; given back with it.
  class Share {
   public:
    explicit Share(RequestMemory& memory) : memory_(&memory) {}
    Share(Share&& other) noexcept : memory_(other.memory_), bytes_(std::exchange(other.bytes_, 0)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    Share& operator=(Share&&) = delete;
    ~Share() { memory_->taken_ -= bytes_; }

    /// So much in all from now on: more than before, or less. After an error as much as before.
    [[nodiscard]] Result<void> need(uint64_t bytes);
    [[nodiscard]] uint64_t bytes() const { return bytes_; }

   private:
    RequestMemory* memory_;
    uint64_t bytes_ = 0;
  };

  [[nodiscard]] uint64_t most() const { return most_; }
  [[nodiscard]] uint64_t taken() const { return taken_; }

 private:
  uint64_t most_;
  std::atomic<uint64_t> taken_ = 0;
};

}  // namespace dspack::runtime
