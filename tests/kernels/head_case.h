// Calls of head_linear and its transpose: which rows of which heads. Threads: pure functions.
#pragma once

#include <ostream>

#include "tests/kernels/weights.h"

namespace dspack::test {

struct HeadCase {
  WeightCase weight;  // out = heads * head_rows
  uint32_t heads = 1;
  uint32_t head_rows = 1;
  uint32_t first_row = 0;
  uint32_t rows_used = 1;
  uint32_t rows = 1;
};

inline std::ostream& operator<<(std::ostream& out, const HeadCase& c) {
  return out << c.weight << ", " << c.heads << " heads of " << c.head_rows << " rows, used " << c.first_row << " + "
             << c.rows_used << ", " << c.rows << " rows";
}

enum class Direction { plain, transposed };

struct Lengths {
  uint32_t x = 0;
  uint32_t y = 0;
};
inline Lengths lengths(const HeadCase& c, Direction direction) {
  return direction == Direction::plain ? Lengths{c.weight.in, c.rows_used} : Lengths{c.rows_used, c.weight.in};
}

}  // namespace dspack::test
