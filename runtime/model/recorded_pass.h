// Records passes of a few rows of one sequence, which differ from token to token only in position and input, and
// replays each as one step. For each number of rows and each ending: the first pass runs unrecorded, since it may be
// the only one (the end of a prompt) and a device sets up operations at their first call; the second is recorded; this
// and later ones run the recording. If the queue cannot record, every pass runs unrecorded.
// Threads: single-thread. Lifetime: borrows the queue; a recording borrows all that its operations use, which must be
// the same in every pass. Errors: those of the operations.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Most rows of a pass that is recorded: a token and its drafts.
inline constexpr uint32_t kMaxRecordedRows = 8;

/// Position of a pass's first row in the cache: `first`, plus the value of `live` when the pass runs.
struct PassPosition {
  uint32_t first = 0;
  kernels::LivePosition live = {};
};

class RecordedPass {
 public:
  /// `positions`: size of the sequence's cache.
  RecordedPass(kernels::Queue& queue, uint32_t positions) : queue_(&queue), positions_(positions) {}

  struct Pass {
    uint32_t rows = 0;
    uint32_t first = 0;       // position of the first row
    uint32_t end = 0;         // passes with equal values end with the same operations
    kernels::Slice position;  // a u32 of device memory, the same in every pass
  };
  using Operations = std::function<Result<void>(const PassPosition& position)>;
  /// Enqueues a pass, by calling `operations` or by running its recording. The caller synchronises before the next
  /// call. Precondition for passes of at most kMaxRecordedRows: the operations transfer nothing to or from the host,
  /// do not synchronise, and apart from the position are the same in every call with equal `rows` and `end`.
  [[nodiscard]] Result<void> run(const Pass& pass, const Operations& operations);

 private:
  struct Recording {
    bool has_run = false;
    std::unique_ptr<kernels::Step> step;
  };
  /// nullptr: the queue cannot record.
  [[nodiscard]] Result<kernels::Step*> step_of(Recording& recording, kernels::Slice position,
                                               const Operations& operations);

  kernels::Queue* queue_;
  uint32_t positions_;
  std::unique_ptr<uint32_t> uploaded_ = std::make_unique<uint32_t>();  // borrowed until the next synchronise
  const kernels::Buffer* scratch_ = nullptr;                           // holds the position that recordings read
  std::map<std::pair<uint32_t, uint32_t>, Recording> recordings_;      // by rows and end
  bool records_ = true;                                                // false: the queue cannot record
};

}  // namespace dspack::runtime
