// The schedule of one layer's routed experts: what runs concurrently, and which backend takes a missing expert. The
// executor follows it, DecodeBound bounds a run by it, and `dsrun plan` predicts with it (budget/).
//
//   device   max(compute of hits, transfer of misses) + compute of the last miss
//   host     what the CPU computes beside the device
//   others   what a further device takes for its experts, as the first
//
// Threads: plain values. Errors: none. Source: list scheduling (Graham, 1966), greedy by completion time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace dspack::runtime {

/// Parts of one layer's routed experts, seconds.
struct LayerWork {
  double hits = 0;      // computing experts that are in place
  double transfer = 0;  // until the last missing expert is in place
  double last = 0;      // computing that expert
  double host = 0;      // what the CPU computes beside a device
  double others = 0;    // what further devices take, each by itself
};
/// Seconds that the layer takes. Nothing else of a token overlaps with it, since the router says what to transfer.
[[nodiscard]] double layer_seconds(const LayerWork& work);

/// One call of the routed MoE as it was measured: a layer of a pass. Seconds.
struct ExpertTimes {
  double total = 0;      // from the router's decision to the summed result
  double hits = 0;       // computing experts that were in place, the shared expert included
  double misses = 0;     // computing the others
  double last_miss = 0;  // of these, the one computed last
  double transfer = 0;   // from the request to the arrival of the last missing expert
  double host = 0;       // a device's experts that the CPU computed beside it
  double others = 0;     // layer_seconds of the further device that takes longest
};
[[nodiscard]] LayerWork work_of(const ExpertTimes& times);

/// The least time that decoding could take, from times of the same run: sums over layers and passes.
class DecodeBound {
 public:
  void add(const ExpertTimes& layer);
  /// What was added after `earlier` was copied from this.
  [[nodiscard]] DecodeBound since(const DecodeBound& earlier) const;

  /// Least seconds of passes that took `seconds`: everything but the routed MoE, and layer_seconds of each layer.
  [[nodiscard]] double seconds(double seconds) const { return outside(seconds) + bound_; }
  /// max(all compute, all transfer): what perfect foresight would leave.
  [[nodiscard]] double with_foresight(double seconds) const;
  /// Of the passes' `seconds`, those outside of the routed MoE.
  [[nodiscard]] double outside(double seconds) const;

  [[nodiscard]] double expert_seconds() const { return experts_; }
  [[nodiscard]] double compute_seconds() const { return compute_; }
  [[nodiscard]] double transfer_seconds() const { return transfer_; }
  [[nodiscard]] double host_seconds() const { return host_; }

 private:
  double experts_ = 0, compute_ = 0, transfer_ = 0, host_ = 0, bound_ = 0;
};

/// What becomes of an expert that is not in a device's memory. compute: experts are still copied to empty slots.
enum class MissMode { automatic, move, compute };
[[nodiscard]] std::string_view to_string(MissMode mode);

struct MissOptions {
  MissMode mode = MissMode::automatic;
  /// No measurement decides: auto means move. So every run gives the same text.
  bool is_deterministic = false;

  /// The mode that is followed.
  [[nodiscard]] MissMode effective() const {
    return mode == MissMode::automatic && is_deterministic ? MissMode::move : mode;
  }
};

/// Seconds a byte of an expert in this run, by rows that are computed of it; the latest measurement counts most.
class WorkRate {
 public:
  void learn(uint64_t bytes, uint32_t rows, double seconds);
  /// Seconds of an expert of so many bytes; nullopt: nothing was measured. A number of rows that was not measured
  /// counts as the nearest smaller one, which is too short rather than too long, so that it comes to be measured; else
  /// as the nearest larger one.
  [[nodiscard]] std::optional<double> seconds(uint64_t bytes, uint32_t rows) const;
  /// Of one row. 0: not measured.
  [[nodiscard]] double bytes_per_second() const { return per_byte_[0] > 0 ? 1 / per_byte_[0] : 0; }

 private:
  static constexpr uint32_t kMaxRows = 16;
  std::array<double, kMaxRows> per_byte_ = {};  // by rows - 1; 0: unknown
};

/// When a backend would have computed one more expert.
struct Eta {
  enum class Kind {
    never,    // it does not take it
    unknown,  // it takes it, and was never measured
    known,    // after `seconds`
    always,   // it takes it whatever others say
  };
  Kind kind = Kind::never;
  double seconds = 0;

  [[nodiscard]] static Eta after(double backlog, std::optional<double> work) {
    return work ? Eta{.kind = Kind::known, .seconds = backlog + *work} : Eta{.kind = Kind::unknown};
  }
};

/// The backend that takes an expert: the first that always does or was never measured, else the one that is done first.
/// Equal times: the earlier backend. If none takes it: the first.
[[nodiscard]] size_t soonest(std::span<const Eta> etas);

}  // namespace dspack::runtime
