#include "runtime/budget/system_memory.h"

#include <algorithm>
#include <charconv>

#include "format/base/size.h"
#include "format/file_system.h"

namespace dspack::runtime {

namespace {

constexpr uint64_t kTextLimit = 1U << 20;

std::optional<std::string> system_text(const std::string& path) {
  auto text = format::read_system_text(path, kTextLimit);
  return text ? std::optional(std::move(*text)) : std::nullopt;
}

std::optional<uint64_t> number_at(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;  // "max" is no number
}

template <class Line>
void for_each_line(std::string_view text, Line line) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The number after "<name> " in a list such as memory.stat; 0: not found.
uint64_t listed(std::string_view text, std::string_view name) {
  uint64_t value = 0;
  for_each_line(text, [&](std::string_view line) {
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ') {
      value = number_at(line.substr(name.size() + 1)).value_or(0);
    }
  });
  return value;
}

struct GroupFiles {
  std::string_view root, limit, used;
};
constexpr GroupFiles kVersion2{.root = "/sys/fs/cgroup", .limit = "memory.max", .used = "memory.current"};
constexpr GroupFiles kVersion1{
    .root = "/sys/fs/cgroup/memory", .limit = "memory.limit_in_bytes", .used = "memory.usage_in_bytes"};

std::optional<uint64_t> one_group_leaves(const std::string& folder, const GroupFiles& files, const SystemText& read) {
  const auto limit_text = read(folder + "/" + std::string(files.limit));
  const auto used_text = read(folder + "/" + std::string(files.used));
  if (!limit_text || !used_text) return std::nullopt;
  const auto limit = number_at(*limit_text);
  const auto used = number_at(*used_text);
  if (!limit || !used) return std::nullopt;
  const std::string stat = read(folder + "/memory.stat").value_or("");
  const uint64_t cached = std::min(*used, listed(stat, "inactive_file"));
  const uint64_t taken = *used - cached;
  return *limit > taken ? *limit - taken : 0;
}

}  // namespace

std::optional<uint64_t> kilobytes_line(std::string_view text, std::string_view name) {
  std::optional<uint64_t> bytes;
  for_each_line(text, [&](std::string_view line) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') return;
    const size_t digit = line.find_first_not_of(" \t", name.size() + 1);
    if (digit == std::string_view::npos) return;
    if (const auto number = number_at(line.substr(digit))) bytes = checked_mul(*number, 1024);
  });
  return bytes;
}

std::optional<uint64_t> group_leaves(std::string_view groups, const SystemText& read) {
  std::optional<uint64_t> least;
  // A line is "number:controllers:path"; version 2 has no controllers.
  for_each_line(groups, [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") return;
    const GroupFiles& files = controllers.empty() ? kVersion2 : kVersion1;
    std::string path(line.substr(second + 1));
    while (true) {
      if (path == "/") path.clear();
      const auto leaves = one_group_leaves(std::string(files.root) + path, files, read);
      if (leaves) least = std::min(least.value_or(*leaves), *leaves);
      if (path.empty()) break;
      path.resize(std::min(path.rfind('/'), path.size() - 1));
    }
  });
  return least;
}

Result<SystemMemory> read_system_memory() {
  const Error silent{ErrorKind::not_found, "this system does not say how much memory it has (/proc); use --experts"};
  const auto machine = system_text("/proc/meminfo");
  const auto process = system_text("/proc/self/status");
  if (!machine || !process) return silent;
  const auto physical = kilobytes_line(*machine, "MemTotal");
  const auto available = kilobytes_line(*machine, "MemAvailable");
  const auto resident = kilobytes_line(*process, "VmRSS");
  if (!physical || !available || !resident) return silent;
  SystemMemory memory{.physical_bytes = *physical, .available_bytes = *available, .resident_bytes = *resident};
  if (const auto leaves = group_leaves(system_text("/proc/self/cgroup").value_or(""), system_text)) {
    memory.available_bytes = std::min(memory.available_bytes, *leaves);
  }
  return memory;
}

Result<uint64_t> peak_resident_bytes() {
  const auto process = system_text("/proc/self/status");
  const auto peak = process ? kilobytes_line(*process, "VmHWM") : std::nullopt;
  if (!peak) return Error{ErrorKind::not_found, "this system does not say how much memory a process takes"};
  return *peak;
}

}  // namespace dspack::runtime
