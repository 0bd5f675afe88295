// What becomes of an expert that is not in device memory: it is copied there, or computed by the CPU where it lies.
// Copies queue up on the link and the CPU computes one expert after the other, so each expert goes where it is done
// first, as the rates of this run have it. What was copied may be wanted again, so equal times mean: copy.
// Threads: single-thread; plain values. Errors: none. Source: list scheduling (Graham, 1966): greedy by completion
// time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dspack::runtime {

/// compute: where a device has room left, experts are copied there all the same.
enum class MissMode { automatic, move, compute };
[[nodiscard]] std::string_view to_string(MissMode mode);

struct MissOptions {
  MissMode mode = MissMode::automatic;
  /// The choice depends on nothing that is measured: auto means move. So the same text comes out of every run.
  bool is_deterministic = false;
};

/// Rates of this run, the latest counting most.
class MissRates {
 public:
  void moved(uint64_t bytes, double seconds);
  void computed(uint64_t bytes, uint32_t rows, double seconds);

  /// Seconds that an expert of so many bytes takes; nullopt: none was measured.
  [[nodiscard]] std::optional<double> move_seconds(uint64_t bytes) const;
  /// Of a number of rows that was not measured: as of the nearest smaller one, which is too short rather than too
  /// long, so that it comes to be measured; else of the nearest larger one.
  [[nodiscard]] std::optional<double> compute_seconds(uint64_t bytes, uint32_t rows) const;

  [[nodiscard]] double link_bytes_per_second() const { return link_ > 0 ? 1 / link_ : 0; }
  [[nodiscard]] double cpu_bytes_per_second() const { return cpu_[0] > 0 ? 1 / cpu_[0] : 0; }

 private:
  static constexpr uint32_t kMostRows = 16;
  double link_ = 0;                         // seconds a byte; 0: unknown
  std::array<double, kMostRows> cpu_ = {};  // by rows - 1
};

/// Work that was assigned and has not ended, seconds.
struct MissBacklog {
  double link = 0;
  double cpu = 0;
};

enum class MissWay { move, compute };
/// For an expert that has arrived in the host's memory, and for which the device has no empty slot.
[[nodiscard]] MissWay choose_miss_way(const MissOptions& options, const MissRates& rates, const MissBacklog& backlog,
                                      uint64_t bytes, uint32_t rows);

}  // namespace dspack::runtime
