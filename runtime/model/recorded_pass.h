// A pass of a few rows that is the same from token to token but for its position and what it reads: recorded once for
// each number of rows, and run as one step from then on.
// The first pass of each number of rows runs as it is: what comes once (the end of a prompt) is not worth recording,
// and what a device sets up when an operation is first called is set up by then. Where the queue records nothing,
// every pass runs as it is.
// Threads: single-thread. Lifetime: borrows queue and the position's buffer; what is recorded borrows all that the
// operations use, which must be the same in every pass. Errors: those of the operations.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Rows of a pass that may be recorded: a token and its drafts.
inline constexpr uint32_t kMostRecordedRows = 8;

/// Where a pass stands in the cache: at `first`, or where `live` says when it runs, with `first` 0.
struct PassPosition {
  uint32_t first = 0;
  kernels::LivePosition live = {};
};

class RecordedPass {
 public:
  /// `position`: a u32 of device memory, for this alone. `positions`: that the cache has.
  RecordedPass(kernels::Queue& queue, kernels::Slice position, uint32_t positions)
      : queue_(queue), position_(position), positions_(positions) {}

  using Operations = std::function<Result<void>(const PassPosition& position)>;
  /// Enqueues a pass of `rows` rows that begins at position `first`; `operations` enqueues it. The caller synchronises
  /// before the next call. Precondition: of so few rows the operations upload and download nothing and do not
  /// synchronise, and but for the position they are the same in every call.
  [[nodiscard]] Result<void> run(uint32_t rows, uint32_t first, const Operations& operations);

 private:
  /// nullptr: the queue records nothing.
  [[nodiscard]] Result<kernels::Step*> step_of(uint32_t rows, const Operations& operations);

  kernels::Queue& queue_;
  kernels::Slice position_;
  uint32_t positions_;
  uint32_t uploaded_ = 0;  // to position_, until the next synchronise
  struct Recording {
    bool has_run = false;
    std::unique_ptr<kernels::Step> step;
  };
  std::array<Recording, kMostRecordedRows> recordings_;  // by rows - 1
  bool records_ = true;                                  // until the queue says otherwise
};

}  // namespace dspack::runtime
