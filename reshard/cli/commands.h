// The verbs of the program: each takes what the command line said, does the work and returns the exit status.
#pragma once

#include <string>
#include <vector>

#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

struct RepackFlags {
  std::string source = "deepseek-ai/DeepSeek-V3";
  std::string by;
  std::string recipe;  // a file; empty: what the flags below say
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::vector<std::string> transforms;
  bool dedupe = false;
  std::string compress;  // empty: not
  bool drop_mtp = false;
  std::string out;
  std::string part;           // "2/4"; empty: all of it
  std::string checksum_list;  // a file that sha256sum wrote; empty: none
  unsigned jobs = 0;          // 0: as fits the source
  bool dry_run = false;
};

struct InspectFlags {
  std::string source;
  bool json = false;
  std::string html;  // a file to write, "-" for stdout; empty: no page
  std::string by;    // the grouping that the page compares with; empty: by expert
  unsigned jobs = 16;
};

struct VerifyFlags {
  std::string folder;
  std::string source;           // empty: not compared with
  bool upstream = false;        // compare with what the source declares
  std::string upstream_source;  // empty: where the repository was packed from
  std::string checksum_list;    // a file that sha256sum wrote; empty: none
  unsigned jobs = 4;
};

struct UnpackFlags {
  std::string folder;
  std::string out;
  bool exact = false;
  uint64_t shard_bytes = 0;
  unsigned jobs = 4;
};

struct DiffFlags {
  std::string a;
  std::string b;
  bool json = false;
  bool tensors_only = false;
  unsigned jobs = 8;
};

struct SealFlags {
  std::string folder;
  std::string source;  // of what parts have packed, where it is elsewhere now; empty: as it was
  unsigned jobs = 4;
};

struct RepairFlags {
  std::string folder;
  std::string source;  // empty: where the repository was packed from
  bool quick = false;  // look at presence and size alone
  unsigned jobs = 4;
};

struct LinkFlags {
  std::string folder;
  std::string out;
};

struct PublishFlags {
  std::string folder;
  std::string repository;  // "org/name"
  std::string branch;      // empty: the default one
  bool only_private = false;
  bool create_pull_request = false;
  bool dry_run = false;
  bool check_only = false;
  unsigned jobs = 4;
};

/// What every verb needs from the process.
struct Context {
  format::RemoteOptions remote;
  std::stop_token stop;
  format::Progress& progress;
};

[[nodiscard]] int run_repack(const RepackFlags& flags, const Context& context);
[[nodiscard]] int run_inspect(const InspectFlags& flags, const Context& context);
[[nodiscard]] int run_verify(const VerifyFlags& flags, const Context& context);
[[nodiscard]] int run_repair(const RepairFlags& flags, const Context& context);
[[nodiscard]] int run_unpack(const UnpackFlags& flags, const Context& context);
[[nodiscard]] int run_link(const LinkFlags& flags, const Context& context);
[[nodiscard]] int run_seal(const SealFlags& flags, const Context& context);
[[nodiscard]] int run_diff(const DiffFlags& flags, const Context& context);
[[nodiscard]] int run_publish(const PublishFlags& flags, const Context& context);

}  // namespace dspack::reshard
