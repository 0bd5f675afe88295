// The share of the processor time wanted by this process's threads that they got: measurements taken beside other
// programs, or with fewer cores than threads, are slower than the machine.
// Threads: thread-safe. Lifetime: plain values. Errors: none; a system without these figures (schedstat) gives nothing.
#pragma once

#include <cstdint>
#include <optional>

namespace dspack::runtime {

class CoreShare {
 public:
  /// Starts counting.
  CoreShare();
  /// Time on a core over time on one or waiting for one, from 0 to 1, over all threads that still exist; nullopt: the
  /// system does not report it, or nothing ran.
  [[nodiscard]] std::optional<double> so_far() const;

 private:
  uint64_t running_ns_ = 0;
  uint64_t waiting_ns_ = 0;
};

}  // namespace dspack::runtime
