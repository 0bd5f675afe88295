// What share of the processor time that this process's threads wanted they got: what is measured beside other programs,
// or with fewer cores than threads, is slower than the machine.
// Threads: thread-safe. Lifetime: plain values. Errors: none; a system without these figures (schedstat) gives nothing.
#pragma once

#include <cstdint>
#include <optional>

namespace dspack::runtime {

class CoreShare {
 public:
  /// Counts from now on.
  CoreShare();
  /// Time on a core over time on one or waiting for one, from 0 to 1, of all threads that are still there; nullopt: the
  /// system does not say, or nothing ran.
  [[nodiscard]] std::optional<double> so_far() const;

 private:
  uint64_t running_ns_ = 0;
  uint64_t waiting_ns_ = 0;
};

}  // namespace dspack::runtime
