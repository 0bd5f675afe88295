// What the system says about memory.
#include "runtime/budget/system_memory.h"

#include <doctest/doctest.h>

#include <map>
#include <vector>

namespace dspack::runtime::system_memory_test {
namespace {

std::optional<uint64_t> leaves(std::string_view groups, const std::map<std::string, std::string>& files) {
  return group_leaves(groups, [&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST_CASE("system memory: lines in kilobytes") {
  constexpr std::string_view kText =
      "MemTotal:       24684084 kB\nMemAvailable:\t 17 kB\nMemAvailableX: 3 kB\nBad: x kB\n";
  CHECK(kilobytes_line(kText, "MemTotal") == 24684084ULL * 1024);
  CHECK(kilobytes_line(kText, "MemAvailable") == 17 * 1024);
  CHECK_FALSE(kilobytes_line(kText, "Mem"));
  CHECK_FALSE(kilobytes_line(kText, "Bad"));
  CHECK_FALSE(kilobytes_line("A: 99999999999999999999 kB", "A"));
  CHECK_FALSE(kilobytes_line("A:", "A"));
  CHECK_FALSE(kilobytes_line("", "A"));
}

TEST_CASE("system memory: what control groups leave, the tightest of the parents") {
  const std::map<std::string, std::string> files = {
      {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/b/memory.current", "5\n"},
      {"/sys/fs/cgroup/a/memory.max", "1000\n"},
      {"/sys/fs/cgroup/a/memory.current", "700\n"},
      {"/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 200\ninactive_file_x 9\n"},
      {"/sys/fs/cgroup/memory.max", "800\n"},
      {"/sys/fs/cgroup/memory.current", "750\n"},
      {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "40\n"},
      {"/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "60\n"}};
  CHECK(leaves("0::/a/b\n", files) == 50);
  CHECK(leaves("0::/c\n", files) == 50);  // a group inside a container has another name outside: its parents count
  CHECK(leaves("4:memory:/x\n3:cpu:/a\n", files) == 0);
  CHECK(leaves("4:memory:/a\n", files) == std::nullopt);
  CHECK(leaves("", files) == std::nullopt);
  CHECK(leaves("nonsense\n0:\n", files) == std::nullopt);
  CHECK(leaves("0::", files) == 50);
}

TEST_CASE("system memory: this process") {
  const auto before = read_system_memory();
  REQUIRE(before);
  CHECK(before->physical_bytes >= before->resident_bytes);
  CHECK(before->available_bytes <= before->physical_bytes);
  const std::vector<char> taken(64 << 20, 1);
  CHECK(taken.back() == 1);
  const auto after = read_system_memory();
  REQUIRE(after);
  CHECK(after->resident_bytes >= before->resident_bytes + (60 << 20));
  const auto peak = peak_resident_bytes();
  REQUIRE(peak);
  CHECK(*peak >= after->resident_bytes);
}

}  // namespace
}  // namespace dspack::runtime::system_memory_test
