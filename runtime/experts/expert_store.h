// Experts in host memory, wherever they are read from. An executor requests all experts of a layer at once and takes
// them one by one as they become ready; the store manages slots, eviction and transfers. Calls in one pass:
//
//   begin_pass
//   [announce]    per later layer whose experts the tokens determine, in the order of the layers
//   request       per layer and wave of tokens: reading the missing experts starts
//     next        once per demand: a lease, which pins the expert until it is computed or copied
//     [expect]    the next layer's likely experts, while this layer is computed
//   [accept_drafts]
//
// Threads: single-thread. Lifetime: a lease pins its expert in memory until it is destroyed; requests and leases do not
// outlive the store. Errors: those of reading, with layer and expert; budget (no memory for even one); cancelled.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/store_stats.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// One routed expert: down(silu(gate x) * (up x)).
struct ExpertWeights {
  Linear gate;  // [expert_inner, hidden]
  Linear up;    // [expert_inner, hidden]
  Linear down;  // [hidden, expert_inner]
  float limit = kernels::kNoLimit;

  /// The weights as kernels take them.
  [[nodiscard]] kernels::ExpertMatrices matrices() const {
    return {.gate = gate.weight(), .up = up.weight(), .down = down.weight(), .limit = limit};
  }
};

/// A layer's demand for one expert.
struct ExpertDemand {
  ExpertId expert;
  uint32_t rows = 1;       // tokens of the pass that are routed to it
  uint32_t first_row = 0;  // the first and the last of these tokens, counted from the pass's first token
  uint32_t last_row = 0;
};

/// Keeps the weights of an expert in memory while it exists.
class ExpertLease {
 public:
  /// The owner of the pinned slot. Only the destructor of a lease calls `release`.
  class Pin {
   public:
    virtual ~Pin() = default;
    virtual void release(uint64_t slot) = 0;
  };
  /// `index`: of the demand that the lease fulfils. Null `pin`: the weights stay in memory without it.
  ExpertLease(size_t index, const ExpertWeights& weights, Pin* pin = nullptr, uint64_t slot = 0,
              bool was_missing = false)
      : index_(index), weights_(&weights), pin_(pin), slot_(slot), was_missing_(was_missing) {}
  ~ExpertLease() {
    if (pin_ != nullptr) pin_->release(slot_);
  }
  ExpertLease(ExpertLease&& other) noexcept
      : index_(other.index_),
        weights_(other.weights_),
        pin_(std::exchange(other.pin_, nullptr)),
        slot_(other.slot_),
        was_missing_(other.was_missing_) {}
  ExpertLease& operator=(ExpertLease&&) = delete;
  ExpertLease(const ExpertLease&) = delete;
  ExpertLease& operator=(const ExpertLease&) = delete;

  [[nodiscard]] size_t index() const { return index_; }
  [[nodiscard]] const ExpertWeights& weights() const { return *weights_; }
  /// Whether the expert was not in memory when it was requested.
  [[nodiscard]] bool was_missing() const { return was_missing_; }

 private:
  size_t index_;
  const ExpertWeights* weights_;
  Pin* pin_;
  uint64_t slot_;
  bool was_missing_;
};

/// A request for experts of one layer.
class ExpertRequest {
 public:
  /// Does not wait for experts that were not taken.
  virtual ~ExpertRequest() = default;
  /// Takes the next ready expert, each demand once: those already in memory first, then in order of arrival. Blocks
  /// until one is ready. Leases occupy slots that further experts need, so hold few at a time. Precondition: not all
  /// were taken.
  [[nodiscard]] virtual Result<ExpertLease> next(const std::stop_token& stop) = 0;
  /// Whether `next` would return at once.
  [[nodiscard]] virtual bool is_ready() = 0;
  /// Whether missing experts wait for slots, which leases may hold.
  [[nodiscard]] virtual bool is_starved() { return false; }
  /// Seconds from the request to the arrival of the last missing expert among those taken. 0: none was missing.
  [[nodiscard]] virtual double transfer_seconds() const { return 0; }
};

/// The properties of a model pass that a store needs.
struct ExpertPass {
  Phase phase = Phase::decode;
  uint32_t rows = 1;        // tokens
  uint32_t draft_rows = 0;  // the last rows of the pass: drafted tokens, which may be rejected
};

/// Sums over all passes.
struct MissCounts {
  uint64_t misses = 0;
  uint64_t draft_misses = 0;   // part of `misses`: only drafted tokens wanted the expert
  double waiting_seconds = 0;  // time that the model waited for experts

  MissCounts& operator+=(const MissCounts& other) {
    misses += other.misses;
    draft_misses += other.draft_misses;
    waiting_seconds += other.waiting_seconds;
    return *this;
  }
};

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  /// Begins a pass; every request until the next call belongs to it.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// The first `rows` drafted rows of the pass were accepted: their uses count from now on.
  virtual void accept_drafts(uint32_t rows) = 0;
  [[nodiscard]] virtual MissCounts miss_counts() const { return {}; }
  /// Requests experts of a layer, each at most once; starts reading all missing ones that get a slot. One
  /// request at a time.
  [[nodiscard]] virtual Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                                       std::vector<ExpertDemand> demands) = 0;
  /// Whether the store uses forecasts (`expect`) in this pass.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// The demands of a layer that runs later in this pass. Announce layers in the order in which they run. Missing
  /// experts are read as soon as nothing wanted earlier has to be.
  virtual void announce(LayerId /*layer*/, std::span<const ExpertDemand> /*demands*/) {}
  /// The experts that the next layer is likely to want, most likely first. Only a hint.
  virtual void expect(LayerId layer, std::span<const ExpertId> experts) = 0;
  [[nodiscard]] virtual ExpertStoreStats stats() const { return {}; }
  /// The experts that are in memory, in no order.
  [[nodiscard]] virtual std::vector<ExpertKey> held() const { return {}; }

  // Called by a cache of experts in faster memory (device_cache.h):

  /// The faster memory has a copy of the expert, or no longer has one. While it has, the expert is the first to be
  /// evicted here. No effect on an expert without a slot.
  virtual void set_copied(ExpertKey /*key*/, bool /*is_copied*/) {}
  /// Leases an expert that is in memory, without counting a use or blocking; nullopt: it is not ready.
  [[nodiscard]] virtual std::optional<ExpertLease> lease_if_ready(ExpertKey /*key*/) { return std::nullopt; }
  /// The faster memory has used an expert of the layer.
  virtual void used_elsewhere(LayerId /*layer*/, const ExpertDemand& /*demand*/) {}
  /// Reserves a slot for an expert that leaves the faster memory. The caller copies the weights to where the lease
  /// points, then calls settle_return. nullopt: the expert is here already, or no slot is available.
  [[nodiscard]] virtual std::optional<ExpertLease> take_back(ExpertKey /*key*/) { return std::nullopt; }
  /// The expert was copied back, or is given up. Call before its lease ends.
  virtual void settle_return(ExpertKey /*key*/, bool /*is_there*/) {}
};

}  // namespace dspack::runtime
