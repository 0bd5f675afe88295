// A place where routed experts are computed: the CPU, a device with experts in its memory, another machine. The
// executor (routed_experts.h) asks the backends in turn; a new place is a new backend. Of each wave of tokens a backend
// first computes the experts that it has (`begin_wave`). The others are brought into the host's memory, and each goes
// to the backend that would finish it first (`eta`, `take`). Threads: single-thread. Lifetime: a wave and all it points
// to live until the executor has synchronised its queue for the next layer. Errors: none; failures of the device are
// reported by its queue.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/layer_course.h"
#include "runtime/experts/routed_groups.h"

namespace dspack::runtime {

class ExpertTracer;

/// Some tokens of one layer, and which experts they go to.
struct ExpertWave {
  LayerId layer;
  Phase phase = Phase::decode;
  uint32_t top_k = 0;
  uint64_t expert_bytes = 0;            // of one expert, as backends compare them
  kernels::Rows x;                      // [tokens, hidden]
  kernels::Rows parts;                  // [tokens * top_k, hidden]: each backend fills the rows of its experts
  std::span<const RoutedGroup> groups;  // by expert, ascending
  ExpertTracer* tracer = nullptr;       // null: single experts are not traced
  LayerCourse* course = nullptr;
};

/// Where the ids of a wave's experts are, u32 [tokens, top_k].
struct RouteIds {
  kernels::Slice on_device;  // the first one
  kernels::Slice on_host;    // in memory that every device sees
};

class ExpertBackend {
 public:
  virtual ~ExpertBackend() = default;
  virtual void begin_pass(const ExpertPass& /*pass*/) {}
  /// See ExpertStore.
  virtual void accept_drafts(uint32_t /*rows*/) {}
  /// Routes are about to be read back: what this backend needs of the wave's input comes with them.
  virtual void before_routes(const kernels::Rows& /*x*/) {}
  /// The device knows the routes from `wave.course->all.begin` on, and the host does not; wave.groups is empty.
  /// Enqueues computing those of the chosen experts that the backend has, if its device finds them: `begin_wave` does
  /// not compute them again.
  virtual void compute_held(const ExpertWave& /*wave*/, const RouteIds& /*ids*/) {}
  /// Begins to compute the experts that it has, and takes them out of `missing` (places in wave.groups, ascending).
  virtual void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) = 0;
  /// Whether a missing expert may be this backend's at all: an expert belongs to one of several devices.
  [[nodiscard]] virtual bool may_take(const ExpertWave& /*wave*/, size_t /*group*/) const { return true; }
  /// When it would have computed a missing expert that is in the host's memory, and that it may take.
  [[nodiscard]] virtual Eta eta(const ExpertWave& wave, size_t group) = 0;
  /// Computes such an expert, or begins what is to be done first.
  virtual void take(const ExpertWave& wave, size_t group, ExpertLease lease) = 0;
  /// Enqueues the computing of what was taken and is on its way.
  virtual void enqueue_taken(const ExpertWave& /*wave*/) {}
  /// All of the wave's experts are computed or enqueued: what the backend has computed elsewhere comes to wave.parts.
  virtual void end_wave(const ExpertWave& /*wave*/) {}

  /// An expert that was computed on this thread.
  struct Computed {
    size_t group = 0;
    ExpertLease lease;
  };
  /// Computes one expert that waits for this thread; nullopt: none does.
  [[nodiscard]] virtual std::optional<Computed> compute_next(const ExpertWave& /*wave*/) { return std::nullopt; }
  /// Another backend has computed the expert on this thread; its weights may be kept for the next time.
  virtual void offer(const ExpertWave& /*wave*/, Computed /*computed*/) {}
  /// Waits for the oldest work that holds a lease and gives the lease back; false: there is none.
  virtual bool release_oldest() { return false; }

  /// Copies an expert that belongs here to memory of its own, in a prompt's pass, and then takes the lease. False: it
  /// does not belong here.
  [[nodiscard]] virtual bool keep(LayerId /*layer*/, const ExpertDemand& /*demand*/, ExpertLease& /*lease*/) {
    return false;
  }
  [[nodiscard]] virtual bool holds(ExpertKey /*key*/) const { return false; }
  /// The experts in memory of its own, in no order.
  [[nodiscard]] virtual std::vector<ExpertKey> held() const { return {}; }
  /// Whether `expect` is of use in this pass.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// What the next layer is likely to want and no backend holds, most likely first. Only a hint.
  virtual void expect(LayerId /*layer*/, std::span<const ExpertId> /*experts*/) {}

  /// Moves what is expected, or may be wanted later, a little further while nothing is waited for. False: nothing is
  /// left to move.
  virtual bool advance() { return false; }

  /// Where the backend has experts of its own, misses are those that it lacked; nullopt: it has none.
  [[nodiscard]] virtual std::optional<MissCounts> miss_counts() const { return std::nullopt; }
  /// Of several backends with experts of their own each adds its own.
  virtual void add_to(ExpertStoreStats& /*stats*/) const {}
};

}  // namespace dspack::runtime
