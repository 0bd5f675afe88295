// Memory of a server's requests, a reserved part of --ram: bodies that arrive, bodies that wait for the model to be
// loaded, and what bodies are turned into: the tree of JSON, the conversation, its text, its tokens. Each request
// declares its need before it allocates, and is refused if that does not fit, so that strangers do not decide how much
// is allocated. Needs are the most that a text of this length and these values can take, as measured (docs/serve.md).
// Threads: thread-safe; a share belongs to one thread at a time. Lifetime: shares borrow their RequestMemory. Errors:
// invalid (never possible), conflict (others have it now).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "format/base/result.h"

namespace dspack::runtime {

/// How a server divides this memory.
struct RequestBounds {
  uint64_t arriving_bytes = 0;   // all bodies that arrive, or wait to be read
  uint64_t waiting_bytes = 0;    // bodies that wait for the model to be loaded
  uint64_t expanding_bytes = 0;  // what bodies are turned into
  [[nodiscard]] uint64_t all() const { return arriving_bytes + waiting_bytes + expanding_bytes; }
};

/// The bounds under `limit_bytes`, which is the whole process's limit.
[[nodiscard]] RequestBounds request_bounds(uint64_t limit_bytes);

/// The most that reading `json` takes: its tree, and its copies as a conversation and as a template's input.
[[nodiscard]] uint64_t reading_bytes(std::string_view json);
/// The most that encoding a text takes.
[[nodiscard]] uint64_t encoding_bytes(uint64_t text_bytes);

class RequestMemory {
 public:
  explicit RequestMemory(uint64_t most_bytes) : most_(most_bytes) {}

  /// The memory of one request; returned when it is destroyed.
  class Share {
   public:
    explicit Share(RequestMemory& memory) : memory_(&memory) {}
    Share(Share&& other) noexcept : memory_(other.memory_), bytes_(std::exchange(other.bytes_, 0)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    Share& operator=(Share&&) = delete;
    ~Share() { memory_->taken_ -= bytes_; }

    /// Changes the request's total, up or down. After an error it is unchanged.
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
