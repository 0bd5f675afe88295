// The schedule of one layer's routed experts: what runs concurrently, and which backend takes a missing expert. The
// executor follows it, DecodeBound bounds a run by it, and `dsrun plan` predicts with it (budget/). A layer takes the
// longest of:
//
//   device   max(compute of hits, transfer of misses) + compute of the last miss
//   host     experts that the CPU computes beside the device
//   others   a further device's experts, by the same formula as the first's
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

/// Times of the parts of one layer's routed experts, in seconds.
struct LayerWork {
  double hits = 0;      // computing experts that are in place
  double transfer = 0;  // until the last missing expert is in place
  double last = 0;      // computing that expert
  double host = 0;      // experts that the CPU computes beside a device
  double others = 0;    // the further device that takes longest
};
/// Seconds for the layer. Nothing else of a token overlaps with it, since the router decides what to transfer.
[[nodiscard]] double layer_seconds(const LayerWork& work);

/// Measured times of one call of the routed MoE, that is one layer of a pass, in seconds.
struct ExpertTimes {
  double total = 0;      // from the router's decision to the summed result
  double hits = 0;       // computing experts that were in place, the shared expert included
  double misses = 0;     // computing experts that were missing
  double last_miss = 0;  // the part of `misses` for the expert computed last
  double transfer = 0;   // from the request to the arrival of the last missing expert
  double host = 0;       // a device's experts that the CPU computed beside it
  double others = 0;     // layer_seconds of the further device that takes longest
};
[[nodiscard]] LayerWork work_of(const ExpertTimes& times);

/// The least time that decoding could take, from times of the same run: sums over layers and passes.
class DecodeBound {
 public:
  void add(const ExpertTimes& layer);
  /// The sums added after `earlier` was copied from this.
  [[nodiscard]] DecodeBound since(const DecodeBound& earlier) const;

  /// Least seconds of passes that took `seconds`: everything but the routed MoE, and layer_seconds of each layer.
  [[nodiscard]] double seconds(double seconds) const { return outside(seconds) + bound_; }
  /// max(all compute, all transfer): the bound under perfect foresight.
  [[nodiscard]] double with_foresight(double seconds) const;
  /// The part of the passes' `seconds` spent outside the routed MoE.
  [[nodiscard]] double outside(double seconds) const;

  [[nodiscard]] double expert_seconds() const { return experts_; }
  [[nodiscard]] double compute_seconds() const { return compute_; }
  [[nodiscard]] double transfer_seconds() const { return transfer_; }
  [[nodiscard]] double host_seconds() const { return host_; }

 private:
  double experts_ = 0, compute_ = 0, transfer_ = 0, host_ = 0, bound_ = 0;
};

/// How an expert missing from device memory is handled: moved there, computed by the CPU (while empty slots are still
/// filled), or whichever finishes first.
enum class MissMode { automatic, move, compute };
[[nodiscard]] std::string_view to_string(MissMode mode);

struct MissOptions {
  MissMode mode = MissMode::automatic;
  /// No measurement decides, so that every run gives the same text: auto means move.
  bool is_deterministic = false;

  /// The mode in effect.
  [[nodiscard]] MissMode effective() const {
    return mode == MissMode::automatic && is_deterministic ? MissMode::move : mode;
  }
};

/// Measured seconds per byte of an expert, by the number of rows computed with it; the latest measurements count most.
class WorkRate {
 public:
  void learn(uint64_t bytes, uint32_t rows, double seconds);
  /// Seconds for an expert of `bytes` bytes; nullopt: nothing was measured. An unmeasured number of rows counts as the
  /// nearest smaller one, which is too short rather than too long, so that it gets measured; else as the nearest
  /// larger one.
  [[nodiscard]] std::optional<double> seconds(uint64_t bytes, uint32_t rows) const;
  /// For one row. 0: not measured.
  [[nodiscard]] double bytes_per_second() const { return per_byte_[0] > 0 ? 1 / per_byte_[0] : 0; }

 private:
  static constexpr uint32_t kMaxRows = 16;
  std::array<double, kMaxRows> per_byte_ = {};  // by rows - 1; 0: unknown
};

/// When a backend would have computed one more expert.
struct Eta {
  enum class Kind {
    never,    // the backend does not take it
    unknown,  // the backend takes it, and was never measured
    known,    // after `seconds`
    always,   // the backend takes it whatever the others' times
  };
  Kind kind = Kind::never;
  double seconds = 0;

  [[nodiscard]] static Eta after(double backlog, std::optional<double> work) {
    return work ? Eta{.kind = Kind::known, .seconds = backlog + *work} : Eta{.kind = Kind::unknown};
  }
};

/// The index of the backend that takes an expert: the first that always does or was never measured, else the one that
/// finishes first, the earlier of equal ones. 0 if none takes it.
[[nodiscard]] size_t soonest(std::span<const Eta> etas);

}  // namespace dspack::runtime
