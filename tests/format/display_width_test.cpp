#include "format/base/display_width.h"

#include <doctest/doctest.h>

namespace dspack::display_width_test {
namespace {

TEST_CASE("display width: wide characters take two columns, combining marks none") {
  CHECK(columns_of("packing") == 7);
  CHECK(columns_of("\u00e4\u00df") == 2);
  CHECK(columns_of("e\u0301") == 1);
  CHECK(columns_of("\u65e5\u672c\u8a9e") == 6);
  CHECK(columns_of("\uff21") == 2);
  CHECK(columns_of("\U0001f642!") == 3);
  CHECK(columns_of("\u2764\ufe0f") == 1);
  CHECK(columns_of("a\xffz") == 3);
  CHECK(columns_of("") == 0);
}

TEST_CASE("display width: text is cut between characters") {
  CHECK(bytes_within("packing", 4) == 4);
  CHECK(bytes_within("\u65e5\u672c", 3) == 3);
  CHECK(bytes_within("\u65e5\u672c", 4) == 6);
  CHECK(bytes_within("e\u0301a", 1) == 3);
  CHECK(bytes_within("\u65e5", 1) == 0);
  CHECK(bytes_within("abc", 80) == 3);
}

}  // namespace
}  // namespace dspack::display_width_test
