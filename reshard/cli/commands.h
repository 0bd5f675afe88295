// The verbs of the program: each takes what the command line said, does the work and returns the exit status.
#pragma once

#include <string>

#include "format/source/repository.h"

namespace dspack::reshard {

struct RepackFlags {
  std::string source = "deepseek-ai/DeepSeek-V3";
  std::string by;
  std::string recipe;  // a file; empty: what `by` says
  std::string out;
  unsigned jobs = 4;
  bool dry_run = false;
};

struct InspectFlags {
  std::string source;
  bool json = false;
  unsigned jobs = 16;
};

struct VerifyFlags {
  std::string folder;
  std::string source;  // empty: digests only
  unsigned jobs = 4;
};

/// What every verb needs from the process.
struct Context {
  format::RemoteOptions remote;
  std::stop_token stop;
};

[[nodiscard]] int run_repack(const RepackFlags& flags, const Context& context);
[[nodiscard]] int run_inspect(const InspectFlags& flags, const Context& context);
[[nodiscard]] int run_verify(const VerifyFlags& flags, const Context& context);

}  // namespace dspack::reshard
