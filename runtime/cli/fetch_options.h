// The flag that bounds what a prompt may read.
// Threads: plain values. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

namespace dspack::runtime {

/// `most_bytes` must live until the command line was parsed.
void add_fetch_option(CLI::App& app, std::optional<uint64_t>& most_bytes);

}  // namespace dspack::runtime
