// Generations that wait for a place. Those submitted together are one request; those of one client keep their order.
// The next one is of the client that has the fewest places, and of equals of the one whose last turn is longest ago, so
// that nobody waits for all that another client has sent. Where the queue is full, a client that has less in it than
// another takes the room of that one's latest request.
// Threads: single-thread, its owner's lock. Errors: of `add`: budget (as many wait as may, and none gives way), invalid
// (one request is of more generations than may ever wait).
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

/// Generations that wait, of all requests: each keeps its prompt, its sampler and what its client asked for.
inline constexpr uint32_t kMostWaiting = 2048;

class WaitingQueue {
 public:
  explicit WaitingQueue(uint32_t requests) : most_requests_(requests) {}

  /// All of one request of one client or, after an error, none. Returns what had to give way for it.
  [[nodiscard]] Result<std::vector<Generation>> add(std::vector<Generation> request);
  /// Nullopt: none waits. `places`: how many a client has now.
  [[nodiscard]] std::optional<Generation> take(const std::function<uint32_t(const std::string& client)>& places);
  /// Those that nobody waits for any more.
  [[nodiscard]] std::vector<Generation> take_gone();
  [[nodiscard]] std::vector<Generation> take_all();
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Generations that somebody waits for.
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
  std::deque<Generation> waiting_;              // as they came; those of one request side by side
  uint64_t requests_ = 0;                       // so far
  uint64_t turns_ = 0;                          // so far
  std::map<std::string, uint64_t> last_turns_;  // of clients; of those that are in no list it is long ago
};

/// How many requests these are of; those of one request stand side by side.
[[nodiscard]] uint64_t requests_of(std::span<const Generation> generations);

}  // namespace dspack::runtime
