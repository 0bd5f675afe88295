// Experts in the host's memory, wherever they are read from. An executor asks for all experts of a layer at once and
// takes them one by one as they become ready; the store manages slots, eviction and transfers.
// Threads: single-thread. Lifetime: a lease pins its expert in memory until it is dropped; requests and leases do not
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

  /// As kernels take them.
  [[nodiscard]] kernels::ExpertMatrices matrices() const {
    return {.gate = gate.weight(), .up = up.weight(), .down = down.weight(), .limit = limit};
  }
};

/// What a layer wants from one expert.
struct ExpertDemand {
  ExpertId expert;
  uint32_t rows = 1;       // tokens of the pass that go to it
  uint32_t first_row = 0;  // the first and the last of them, counted from the pass's first token
  uint32_t last_row = 0;
};

/// Keeps the weights of an expert in memory.
class ExpertLease {
 public:
  /// What is pinned. Its release may come from the destructor of a lease only.
  class Pin {
   public:
    virtual ~Pin() = default;
    virtual void release(uint64_t slot) = 0;
  };
  /// `index` of the demand that it fulfils. Without a pin the weights stay anyway.
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
  /// Whether it was not yet in memory when it was asked for.
  [[nodiscard]] bool was_missing() const { return was_missing_; }

 private:
  size_t index_;
  const ExpertWeights* weights_;
  Pin* pin_;
  uint64_t slot_;
  bool was_missing_;
};

/// The experts of one layer, on their way.
class ExpertRequest {
 public:
  /// What was not taken is not waited for.
  virtual ~ExpertRequest() = default;
  /// The next expert that is ready, each demand once: those in memory first, then in order of arrival. More come while
  /// a lease is held, as long as there are slots; hold few at a time. Precondition: not all were taken.
  [[nodiscard]] virtual Result<ExpertLease> next(const std::stop_token& stop) = 0;
  /// Whether `next` would return at once.
  [[nodiscard]] virtual bool is_ready() = 0;
  /// Whether experts wait for slots, which leases may hold.
  [[nodiscard]] virtual bool is_starved() { return false; }
  /// From the request to the arrival of the last expert, among those taken, that was missing. 0: none was.
  [[nodiscard]] virtual double transfer_seconds() const { return 0; }
};

/// A pass of the model, as the store needs to know it.
struct ExpertPass {
  Phase phase = Phase::decode;
  uint32_t rows = 1;        // tokens
  uint32_t draft_rows = 0;  // the last rows of the pass: drafted tokens, which may be rejected
};

/// Sums over all passes.
struct MissCounts {
  uint64_t misses = 0;
  uint64_t draft_misses = 0;   // only drafted tokens wanted the expert
  double waiting_seconds = 0;  // the model waited for experts

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
  /// A pass begins; every request until the next call belongs to it.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// So many of the pass's drafted rows were accepted: what they used counts as used.
  virtual void accept_drafts(uint32_t rows) = 0;
  [[nodiscard]] virtual MissCounts miss_counts() const { return {}; }
  /// All that is missing begins to be read at once. No expert twice; one request at a time.
  [[nodiscard]] virtual Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                                       std::vector<ExpertDemand> demands) = 0;
  /// Whether `expect` is of use in this pass.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// A layer that is yet to be run in this pass will make these demands. Layers are announced in the order in which
  /// they run; what is missing is read as soon as nothing that is wanted earlier has to be.
  virtual void announce(LayerId /*layer*/, std::span<const ExpertDemand> /*demands*/) {}
  /// The experts that the next layer is likely to want, most likely first. Only a hint.
  virtual void expect(LayerId layer, std::span<const ExpertId> experts) = 0;
  [[nodiscard]] virtual ExpertStoreStats stats() const { return {}; }
  /// The experts that are in memory, in no order.
  [[nodiscard]] virtual std::vector<ExpertKey> held() const { return {}; }

  // For a cache of experts in faster memory.

  /// Whether there is such a copy: then the expert is the first to leave its slot here. Nothing, if it has no slot.
  virtual void set_copied(ExpertKey /*key*/, bool /*is_copied*/) {}
  /// An expert that is in memory, without being counted or waited for; nullopt: it is not there.
  [[nodiscard]] virtual std::optional<ExpertLease> lease_if_ready(ExpertKey /*key*/) { return std::nullopt; }
  /// The faster memory has used an expert of a layer.
  virtual void used_elsewhere(LayerId /*layer*/, const ExpertDemand& /*demand*/) {}
  /// A slot for an expert that leaves the faster memory, and where its weights belong: the caller brings them, and
  /// tells by settle_return. nullopt: the expert is here, or no slot may be had.
  [[nodiscard]] virtual std::optional<ExpertLease> take_back(ExpertKey /*key*/) { return std::nullopt; }
  /// The expert has been brought, or is given up. Before its lease ends.
  virtual void settle_return(ExpertKey /*key*/, bool /*is_there*/) {}
};

}  // namespace dspack::runtime
