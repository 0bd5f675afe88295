#include "kernels/quantise_int4.h"

#include "format/base/check.h"
#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {

Loss quantise_int4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales) {
  DSPACK_CHECK(values.size() % kInt4Group == 0 && codes.size() == values.size() / 2 &&
                   scales.size() == values.size() / kInt4Group,
               "spans do not fit");
  QuantiseTask task{.values = values.data(), .groups = scales.size(), .codes = codes.data(), .scales = scales.data()};
  widest_ops().quantise_int4(task);
  return {task.squared_error, task.squared_value};
}

}  // namespace dspack::kernels
