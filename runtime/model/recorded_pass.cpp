#include "runtime/model/recorded_pass.h"

#include <span>

#include "format/base/check.h"

namespace dspack::runtime {

Result<void> RecordedPass::run(const Pass& pass, const Operations& operations) {
  if (pass.rows == 0 || pass.rows > kMaxRecordedRows || !records_) return operations({.first = pass.first});
  Recording& recording = recordings_[{pass.rows, pass.end}];
  if (!recording.has_run) {
    recording.has_run = true;
    return operations({.first = pass.first});
  }
  TRY_ASSIGN(kernels::Step * step, step_of(recording, pass.position, operations));
  if (step == nullptr) return operations({.first = pass.first});
  DSPACK_CHECK(pass.rows <= positions_ && pass.first <= positions_ - pass.rows, "a pass beyond the last position");
  *uploaded_ = pass.first;
  queue_->upload(pass.position, std::as_bytes(std::span(uploaded_.get(), 1)));
  queue_->run(*step);
  return {};
}

Result<kernels::Step*> RecordedPass::step_of(Recording& recording, kernels::Slice position,
                                             const Operations& operations) {
  if (scratch_ == nullptr) scratch_ = position.buffer;
  DSPACK_CHECK(position.buffer == scratch_, "what was recorded in other scratch memory");
  if (recording.step != nullptr) return recording.step.get();
  Result<void> outcome;
  recording.step =
      queue_->record([&] { outcome = operations({.first = 0, .live = {.value = position, .limit = positions_}}); });
  if (!outcome) {
    recording.step.reset();
    return outcome.error();
  }
  records_ = recording.step != nullptr;
  return recording.step.get();
}

}  // namespace dspack::runtime
