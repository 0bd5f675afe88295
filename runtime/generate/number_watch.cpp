#include "runtime/generate/number_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/weights/host_rows.h"

namespace dspack::runtime {

bool NumberWatch::are_finite(const kernels::Rows& rows) const {
  return std::ranges::all_of(download_rows(queue_, rows), [](float value) { return std::isfinite(value); });
}

void NumberWatch::input(std::string_view module, const kernels::Rows& rows, uint32_t /*total_rows*/) {
  if (finding_ || are_finite(rows)) return;
  finding_ = fmt::format(
      "what {} reads is the first that is infinite or not a number: it was computed from finite values, or read from "
      "the KV cache",
      module);
}

void NumberWatch::output(std::string_view module, const kernels::Rows& rows, uint32_t /*total_rows*/) {
  if (finding_ || are_finite(rows)) return;
  finding_ = fmt::format(
      "{} is the first module that makes what is infinite or not a number, of finite values: its weights or their "
      "scales are damaged (reshard verify compares a packed model's bytes; fetch the file again)",
      module);
}

Result<void> NumberWatch::status() const {
  if (!finding_) return {};
  return Error{ErrorKind::corrupt, *finding_};
}

}  // namespace dspack::runtime
