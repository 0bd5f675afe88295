// How long decoding must take at least where experts are read as they are needed, from times of the same run: in each
// layer the experts in memory are computed while the others arrive, and when the last has arrived it remains to be
// computed. What is not in the routed MoE (attention, router, norms, head) cannot overlap with a layer's transfers,
// since the router says what to transfer. Threads: plain values. Errors: none.
#pragma once

#include <algorithm>

namespace dspack::runtime {

/// One call of the routed MoE: a layer of a pass. Seconds.
struct ExpertTimes {
  double total = 0;      // from the router's decision to the summed result
  double hits = 0;       // computing experts that were in memory, the shared expert included
  double misses = 0;     // computing the others
  double last_miss = 0;  // of these, the one computed last
  double transfer = 0;   // from the request to the arrival of the last missing expert
  double host = 0;       // a device's experts that the CPU computed beside it
};

/// Sums over layers and passes, and what follows from them.
class DecodeBound {
 public:
  void add(const ExpertTimes& layer) {
    experts_ += layer.total;
    compute_ += layer.hits + layer.misses;
    transfer_ += layer.transfer;
    host_ += layer.host;
    bound_ += std::max({layer.hits, layer.transfer, layer.host}) + layer.last_miss;
  }

  /// What was added since `earlier` was copied from this.
  [[nodiscard]] DecodeBound since(const DecodeBound& earlier) const {
    DecodeBound rest = *this;
    rest.experts_ -= earlier.experts_;
    rest.compute_ -= earlier.compute_;
    rest.transfer_ -= earlier.transfer_;
    rest.host_ -= earlier.host_;
    rest.bound_ -= earlier.bound_;
    return rest;
  }

  /// Seconds that passes of `seconds` altogether could not do without: everything but the routed MoE, and for each
  /// layer max(compute of hits, transfer of misses, what the CPU computed) + compute of the last miss.
  [[nodiscard]] double seconds(double seconds) const { return outside(seconds) + bound_; }
  /// max(all compute, all transfer): what perfect foresight would leave.
  [[nodiscard]] double with_foresight(double seconds) const {
    return std::max({outside(seconds) + compute_, transfer_, host_});
  }
  /// Of the passes' `seconds`, those outside of the routed MoE.
  [[nodiscard]] double outside(double seconds) const { return std::max(0.0, seconds - experts_); }

  [[nodiscard]] double expert_seconds() const { return experts_; }
  [[nodiscard]] double compute_seconds() const { return compute_; }
  [[nodiscard]] double transfer_seconds() const { return transfer_; }
  [[nodiscard]] double host_seconds() const { return host_; }

 private:
  double experts_ = 0, compute_ = 0, transfer_ = 0, host_ = 0, bound_ = 0;
};

}  // namespace dspack::runtime
