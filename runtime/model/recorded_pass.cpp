#include "runtime/model/recorded_pass.h"

#include <optional>
#include <span>

#include "format/base/check.h"

namespace dspack::runtime {

Result<void> RecordedPass::run(uint32_t rows, uint32_t first, const Operations& operations) {
  if (rows == 0 || rows > kMostRecordedRows || !records_) return operations({.first = first});
  Recording& recording = recordings_[rows - 1];
  if (!recording.has_run) {
    recording.has_run = true;
    return operations({.first = first});
  }
  TRY_ASSIGN(kernels::Step * step, step_of(rows, operations));
  if (step == nullptr) return operations({.first = first});
  DSPACK_CHECK(rows <= positions_ && first <= positions_ - rows, "a pass beyond the last position");
  uploaded_ = first;
  queue_.upload(position_, std::as_bytes(std::span(&uploaded_, 1)));
  queue_.run(*step);
  return {};
}

Result<kernels::Step*> RecordedPass::step_of(uint32_t rows, const Operations& operations) {
  std::unique_ptr<kernels::Step>& step = recordings_[rows - 1].step;
  if (step != nullptr) return step.get();
  Result<void> outcome;
  step = queue_.record([&] { outcome = operations({.first = 0, .live = {.value = position_, .limit = positions_}}); });
  if (!outcome) {
    step.reset();
    return outcome.error();
  }
  records_ = step != nullptr;
  return step.get();
}

}  // namespace dspack::runtime
