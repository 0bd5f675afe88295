// A pass of a few rows of one sequence that differs from token to token only in its position and input: recorded once
// for each number of rows and each ending, and then run as one step. The first pass of each kind runs unrecorded, since
// it may be the only one (the end of a prompt), and a device sets up operations at their first call. If the queue
// cannot record, no pass is recorded.
// Threads: single-thread. Lifetime: borrows the queue; what is recorded borrows all that the operations use, which must
// be the same in every pass. Errors: those of the operations.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Rows of a pass that may be recorded: a token and its drafts.
inline constexpr uint32_t kMostRecordedRows = 8;

/// Where the rows of a pass stand in the cache: from `first` on, to which `live` is added when the pass runs.
struct PassPosition {
  uint32_t first = 0;
  kernels::LivePosition live = {};
};

class RecordedPass {
 public:
  /// `positions`: that the sequence's cache has.
  RecordedPass(kernels::Queue& queue, uint32_t positions) : queue_(&queue), positions_(positions) {}

  struct Pass {
    uint32_t rows = 0;
    uint32_t first = 0;       // position of the first row
    uint32_t end = 0;         // passes with equal numbers end in the same operations
    kernels::Slice position;  // a u32 of device memory, the same in every pass
  };
  using Operations = std::function<Result<void>(const PassPosition& position)>;
  /// Enqueues a pass; `operations` enqueues it. The caller synchronises before the next call. Precondition: of so few
  /// rows the operations upload and download nothing and do not synchronise, and but for the position they are the same
  /// in every call with equal `rows` and `end`.
  [[nodiscard]] Result<void> run(const Pass& pass, const Operations& operations);

 private:
  struct Recording {
    bool has_run = false;
    std::unique_ptr<kernels::Step> step;
  };
  /// nullptr: the queue records nothing.
  [[nodiscard]] Result<kernels::Step*> step_of(Recording& recording, kernels::Slice position,
                                               const Operations& operations);

  kernels::Queue* queue_;
  uint32_t positions_;
  std::unique_ptr<uint32_t> uploaded_ = std::make_unique<uint32_t>();  // borrowed until the next synchronise
  const kernels::Buffer* scratch_ = nullptr;                           // that holds the position of what is recorded
  std::map<std::pair<uint32_t, uint32_t>, Recording> recordings_;      // by rows and end
  bool records_ = true;                                                // until the queue says otherwise
};

}  // namespace dspack::runtime
