// The memory of the machine: how much exists, how much this process may still take, and how much it has taken.
// Threads: thread-safe. Lifetime: plain values. Errors: not_found (a system without these figures).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

struct SystemMemory {
  uint64_t physical_bytes = 0;
  uint64_t available_bytes = 0;  // what this process may take without evicting others, within its group's limit
  uint64_t resident_bytes = 0;   // this process's, now
};

[[nodiscard]] Result<SystemMemory> read_system_memory();

/// Highest resident memory of this process so far (VmHWM).
[[nodiscard]] Result<uint64_t> peak_resident_bytes();

/// The number of kB in the line "<name>:  <number> kB" of /proc/meminfo or /proc/self/status, in bytes.
[[nodiscard]] std::optional<uint64_t> kilobytes_line(std::string_view text, std::string_view name);

/// Reads a text file of the system; nullopt: it does not exist.
using SystemText = std::function<std::optional<std::string>(const std::string& path)>;

/// The memory that the control groups of this process leave it, from the text of /proc/self/cgroup: the least that the
/// group or one of its parents leaves. Version 2 (memory.max, memory.current) and version 1. Memory of the page cache
/// counts as free as far as the group reports it as inactive. nullopt: no limit.
[[nodiscard]] std::optional<uint64_t> group_leaves(std::string_view groups, const SystemText& read);

}  // namespace dspack::runtime
