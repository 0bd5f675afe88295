// Routes as a store sees them: for each layer of each pass the experts that it requests, each once.
// Threads: a plain value; the functions are thread-safe. Errors: those of the reader; budget (a trace too long to
// replay in memory).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/trace/route_format.h"
#include "runtime/experts/trace/route_reader.h"

namespace dspack::runtime {

/// The experts that the rows of one layer request, by first appearance. `ids` [rows, top_k].
/// Precondition: ids.size() is a multiple of top_k.
[[nodiscard]] std::vector<ExpertDemand> demands_of(std::span<const uint32_t> ids, uint32_t top_k);

class Workload {
 public:
  /// One layer of one pass.
  struct Step {
    uint64_t pass = 0;
    Phase phase = Phase::decode;
    LayerId layer;
    uint32_t rows = 1;  // tokens of the pass
    uint32_t draft_rows = 0;
    bool accepted = false;  // repeats accepted drafts: their experts count as used now, and none is loaded
    uint64_t first = 0;     // index in demands_
    uint32_t count = 0;
  };

  explicit Workload(RouteHeader header) : header_(std::move(header)) {}
  [[nodiscard]] static Result<Workload> read(RouteReader reader);

  /// Appends a line of a trace. Errors: budget.
  [[nodiscard]] Result<void> add(const RouteLine& line);

  [[nodiscard]] const RouteHeader& header() const { return header_; }
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
  [[nodiscard]] std::span<const ExpertDemand> demands(const Step& step) const {
    return std::span(demands_).subspan(step.first, step.count);
  }
  /// A demand in the form that policies take.
  [[nodiscard]] static ExpertUse use_of(const Step& step, const ExpertDemand& demand);
  /// Tokens of all passes of a phase, without rejected drafts.
  [[nodiscard]] uint64_t tokens(Phase phase) const { return tokens_[static_cast<size_t>(phase)]; }
  /// The most experts that a layer requests at once in a decode pass; 0: there is none.
  [[nodiscard]] uint32_t floor() const { return floor_; }
  /// The layers that occur in the trace; the header may list more, such as an MTP module that did not run.
  [[nodiscard]] size_t layers() const { return experts_.size(); }
  /// The number of experts in these layers, and the bytes of the largest.
  [[nodiscard]] uint64_t experts() const;
  [[nodiscard]] uint64_t expert_bytes() const;

 private:
  Step& append(const RoutedLayer& routed, std::span<const ExpertDemand> demands);
  void accept(uint32_t rows);

  RouteHeader header_;
  std::map<LayerId, uint32_t> experts_;  // per layer seen
  std::vector<Step> steps_;
  std::vector<ExpertDemand> demands_;
  std::vector<RoutedLayer> drafted_;  // layers of the present pass, until it is reported which drafts were accepted
  uint64_t passes_ = 0;               // number of the last pass seen, + 1
  uint64_t tokens_[kPhases] = {};
  uint32_t floor_ = 0;
};

}  // namespace dspack::runtime
