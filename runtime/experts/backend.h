// Places where routed experts are computed: the CPU, or a device with experts in its memory; a new place is a new
// backend. The executor (routed_experts.h) calls its backends in a fixed order:
//
//   begin_pass                    once per pass
//   before_routes, compute_held   per wave of tokens, before the host knows the routes; not if experts are traced
//   begin_wave                    starts the experts that the backend has, and removes them from `missing`
//   eta, take                     per missing expert, once it is in host memory: the soonest backend takes it
//   enqueue_taken, compute_next   until all experts are computed or enqueued; release_oldest if reading lacks slots
//   end_wave                      brings results computed elsewhere to wave.parts
//   advance, expect               while the host waits for routes or experts
//
// Threads: single-thread. Lifetime: a wave is borrowed for the call; its rows live until the executor has waited for
// its queue in the next layer. Errors: none; failures of the device are reported by its queue.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// The timeline of one layer's experts on a device: events, whose times are known once the queue has run.
struct LayerCourse {
  struct Span {
    std::shared_ptr<kernels::Event> begin, end;
  };
  /// A missing expert that was computed. Null `arrival`: it was in place before its computing was enqueued.
  struct Miss {
    std::shared_ptr<kernels::Event> arrival;
    Span computing;
  };
  Phase phase = Phase::decode;
  Span all = {};
  std::vector<Span> hits = {};  // computing experts that were in place, and the layer's other work
  std::vector<Miss> misses = {};
  double host_seconds = 0;   // CPU computing beside a device
  double last_on_host = 0;   // part of it: the expert that came last of all; 0: the device computed that one
  double host_transfer = 0;  // from the request until the last missing expert was in host memory
  std::vector<LayerCourse> others = {};  // further devices that computed some experts, each by its own clock
};

/// Precondition: the queue has run.
[[nodiscard]] ExpertTimes times_of(const LayerCourse& course);

/// The assignments of one expert within a wave.
struct RoutedGroup {
  ExpertDemand demand;
  std::vector<uint32_t> parts;  // token * top_k + slot, ascending
};

/// Groups by expert, ascending, so that files are read in their usual order. `chosen`: [tokens, top_k]; `first_row`:
/// the wave's first row in its pass.
[[nodiscard]] std::vector<RoutedGroup> group_by_expert(std::span<const uint32_t> chosen, uint32_t top_k,
                                                       uint32_t first_row);

class ExpertTracer;

/// Some tokens of one layer, and the experts that they are routed to.
struct ExpertWave {
  LayerId layer;
  Phase phase = Phase::decode;
  uint32_t top_k = 0;
  uint64_t expert_bytes = 0;            // bytes of one expert, by which backends estimate work
  kernels::Rows x;                      // [tokens, hidden]
  kernels::Rows parts;                  // [tokens * top_k, hidden]: each backend fills the rows of its experts
  std::span<const RoutedGroup> groups;  // by expert, ascending
  ExpertTracer* tracer = nullptr;       // null: single experts are not traced
  LayerCourse* course = nullptr;
};

/// The expert ids of a wave, u32 [tokens, top_k], in two memories.
struct RouteIds {
  kernels::Slice on_device;  // in the first device's memory
  kernels::Slice on_host;    // in host memory that every device can read
};

class ExpertBackend {
 public:
  virtual ~ExpertBackend() = default;
  virtual void begin_pass(const ExpertPass& /*pass*/) {}
  /// See ExpertStore.
  virtual void accept_drafts(uint32_t /*rows*/) {}
  /// The routes are about to be read back. Enqueues the copy of the wave's input that this backend needs, if any.
  virtual void before_routes(const kernels::Rows& /*x*/) {}
  /// Called once the device knows the routes (from `wave.course->all.begin` on) but the host does not; wave.groups is
  /// empty. If the device can select experts itself, enqueues computing the chosen ones that the backend has;
  /// `begin_wave` does not compute them again.
  virtual void compute_held(const ExpertWave& /*wave*/, const RouteIds& /*ids*/) {}
  /// Starts computing the experts that the backend has, and removes them from `missing` (indices into wave.groups,
  /// ascending).
  virtual void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) = 0;
  /// Whether this backend may take a missing expert: with several devices, each expert belongs to one of them.
  [[nodiscard]] virtual bool may_take(const ExpertWave& /*wave*/, size_t /*group*/) const { return true; }
  /// When the backend would finish a missing expert that is in host memory now. Precondition: may_take.
  [[nodiscard]] virtual Eta eta(const ExpertWave& wave, size_t group) = 0;
  /// Computes such an expert, or starts the work that must come first, such as a copy.
  virtual void take(const ExpertWave& wave, size_t group, ExpertLease lease) = 0;
  /// Enqueues computing the taken experts that still wait or are being copied.
  virtual void enqueue_taken(const ExpertWave& /*wave*/) {}
  /// Called when all of the wave's experts are computed or enqueued. Brings results computed elsewhere to wave.parts.
  virtual void end_wave(const ExpertWave& /*wave*/) {}

  /// An expert computed on the calling thread.
  struct Computed {
    size_t group = 0;
    ExpertLease lease;
  };
  /// Computes one expert that waits for the calling thread; nullopt: none does.
  [[nodiscard]] virtual std::optional<Computed> compute_next(const ExpertWave& /*wave*/) { return std::nullopt; }
  /// Another backend computed this backend's expert on the calling thread; its weights may be kept for the next use.
  virtual void offer(const ExpertWave& /*wave*/, Computed /*computed*/) {}
  /// Waits for the oldest work that holds a lease and gives the lease back; false: there is none.
  virtual bool release_oldest() { return false; }

  /// In a prompt's pass: copies an expert that belongs here to the backend's own memory, and takes over the lease.
  /// False: it does not belong here.
  [[nodiscard]] virtual bool keep(LayerId /*layer*/, const ExpertDemand& /*demand*/, ExpertLease& /*lease*/) {
    return false;
  }
  [[nodiscard]] virtual bool holds(ExpertKey /*key*/) const { return false; }
  /// The experts in the backend's own memory, in no order.
  [[nodiscard]] virtual std::vector<ExpertKey> held() const { return {}; }
  /// Whether the backend uses forecasts (`expect`) in this pass.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// Experts that the next layer is likely to want and no backend holds, most likely first. Only a hint.
  virtual void expect(LayerId /*layer*/, std::span<const ExpertId> /*experts*/) {}

  /// Advances background copies a little: of expected experts, of experts that may be wanted later, and back to the
  /// host. False: nothing is left to copy.
  virtual bool advance() { return false; }

  /// Counts misses of the backend's own memory; nullopt: it has none.
  [[nodiscard]] virtual std::optional<MissCounts> miss_counts() const { return std::nullopt; }
  /// Adds the backend's own statistics. Those of several devices add up.
  virtual void add_to(ExpertStoreStats& /*stats*/) const {}
};

}  // namespace dspack::runtime
