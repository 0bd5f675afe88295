// Generations that wait for a place. Those submitted together are one request; those of one client keep their order.
// The next one is of the client with the fewest places, and among equals of the one whose last turn is longest ago, so
// no client waits for all requests of another. If the queue is full, a client that has less in it than another replaces
// that one's latest request.
// Threads: single-thread, under its owner's lock. Errors: of `add`: budget (the queue is full, and no request gives
// way), invalid (a request has more generations than may ever wait).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate/generation.h"

namespace dspack::runtime {

/// Most waiting generations of all requests: each keeps its prompt, its sampler and its client's options.
inline constexpr uint32_t kMaxWaiting = 2048;

class WaitingQueue {
 public:
  explicit WaitingQueue(uint32_t requests) : most_requests_(requests) {}

  /// Adds all generations of a client's request or, after an error, none. Returns those that had to give way.
  [[nodiscard]] Result<std::vector<Generation>> add(std::vector<Generation> request);
  /// Takes the next generation; nullopt: none waits. `places`: how many a client has now.
  [[nodiscard]] std::optional<Generation> take(const std::function<uint32_t(const std::string& client)>& places);
  /// Takes those whose client is gone.
  [[nodiscard]] std::vector<Generation> take_gone();
  [[nodiscard]] std::vector<Generation> take_all();
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Number of generations whose client is not gone.
  [[nodiscard]] uint32_t wanted() const;

 private:
  struct Request {
    uint64_t number = 0;
    uint32_t generations = 0;
    const std::string* client = nullptr;
  };
  [[nodiscard]] std::vector<Request> requests() const;
  template <class Is>
  [[nodiscard]] std::vector<Generation> take_if(Is is);

  uint32_t most_requests_;
  std::deque<Generation> waiting_;              // in order of arrival; those of one request are adjacent
  uint64_t requests_ = 0;                       // so far
  uint64_t turns_ = 0;                          // so far
  std::map<std::string, uint64_t> last_turns_;  // by client; absent: long ago
};

/// Number of requests; generations of one request must be adjacent.
[[nodiscard]] uint64_t requests_of(std::span<const Generation> generations);

}  // namespace dspack::runtime
