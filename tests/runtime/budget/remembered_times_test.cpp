#include "runtime/budget/remembered_times.h"

#include <doctest/doctest.h>

#include "tests/support/temp_folder.h"

namespace dspack::test::remembered_times_test {

using namespace dspack;
using runtime::RememberedTimes;

namespace {

const format::Digest kKey = format::sha256("a"), kOther = format::sha256("b");

RememberedTimes opened(const TempFolder& folder, int64_t now) {
  return {format::posix_file_system(), folder.path() / "state" / "times", now};
}

}  // namespace

TEST_CASE("remembered times: what was measured is found again, with its age, and the newest counts") {
  const TempFolder folder;
  auto first = opened(folder, 1000);
  CHECK_FALSE(first.find(kKey));
  CHECK(first.save());  // nothing to write
  CHECK_FALSE(std::filesystem::exists(folder.path() / "state"));
  first.put(kKey, {0.1, 1e9, 0});
  first.put(kOther, {3});
  first.put(kOther, {4});
  REQUIRE(first.save());
  auto later = opened(folder, 1060);
  CHECK_FALSE(later.age());
  CHECK(later.find(kOther) == std::vector<double>{4});
  CHECK(later.find(kKey) == std::vector<double>{0.1, 1e9, 0});
  CHECK(later.age() == 60);
  later.put(kKey, {7});
  REQUIRE(later.save());
  auto last = opened(folder, 1100);
  CHECK(last.find(kKey) == std::vector<double>{7});
  CHECK(last.age() == 40);
  CHECK_FALSE(RememberedTimes(format::posix_file_system(), {}, 1000).find(kKey));
}

TEST_CASE("remembered times: no more is kept than the limit, the newest of it") {
  const TempFolder folder;
  auto times = opened(folder, 1000);
  for (size_t i = 0; i <= RememberedTimes::kMaxEntries; ++i)
    times.put(format::sha256(std::to_string(i)), std::vector<double>(RememberedTimes::kMaxValues, 1.0 / 3));
  REQUIRE(times.save());
  CHECK(std::filesystem::file_size(folder.path() / "state" / "times") <= RememberedTimes::kMaxBytes);
  auto read = opened(folder, 1000);
  CHECK_FALSE(read.find(format::sha256("0")));
  for (size_t i = 1; i <= RememberedTimes::kMaxEntries; ++i)
    CHECK(read.find(format::sha256(std::to_string(i))));
}

TEST_CASE("remembered times: lines that mean nothing are as if they were not there") {
  const TempFolder folder;
  const std::string key = format::to_hex(kKey);
  for (const std::string& line :
       {std::string(), std::string("\n\n"), key, key + " 5", key + " x 1", key + " -1 1", key + " 2000 1",
        key + " 5 nan", key + " 5 -1", key + " 5 1e300", key + " 5 inf", key + " 5 1 2 x", key + " 5 1 1 1 1 1 1 1 1 1",
        std::string("zz 5 1"), std::string(1000, 'a'), std::string(100'000, '1'), std::string("\x1b[2J\0", 5)}) {
    CAPTURE(line);
    folder.write("state/times", line + "\n");
    CHECK_FALSE(opened(folder, 1000).find(kKey));
  }
  folder.write("state/times", "damage\n" + key + " 5 1 2\n");
  CHECK(opened(folder, 1000).find(kKey) == std::vector<double>{1, 2});
}

TEST_CASE("remembered times: numbers that no trial gives are measured again") {
  const runtime::ComputeTimes compute{
      .dense_layer = 1, .moe_layer = 2, .experts = 3, .distinct = 4, .head = 5, .expert_bytes = 6};
  CHECK(to_values(*runtime::from_values<runtime::ComputeTimes>(to_values(compute))) == to_values(compute));
  const runtime::ReadTimes reads{.one = 0.1, .several = 0.2, .count = 8, .expert_bytes = 44'000'000};
  CHECK(to_values(*runtime::from_values<runtime::ReadTimes>(to_values(reads))) == to_values(reads));
  const runtime::LinkTimes link{.one = 0.1, .several = 0.2, .count = 8, .expert_bytes = 44'000'000};
  CHECK(to_values(*runtime::from_values<runtime::LinkTimes>(to_values(link))) == to_values(link));
  for (const std::vector<double>& wrong : std::vector<std::vector<double>>{
           {}, {1, 1, 1}, {0, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1.5, 1}, {1, 1, 1e12, 1}}) {
    CHECK_FALSE(runtime::from_values<runtime::ReadTimes>(wrong));
    CHECK_FALSE(runtime::from_values<runtime::ComputeTimes>(wrong));
  }
}

}  // namespace dspack::test::remembered_times_test
