// The command lines of the verbs that prove an output right: eval, record, compare.
// Threads: plain values. Errors: a command line that cannot be understood becomes an Exit with status 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// The tokens of a pass: as ids, or as text. Neither: `compare` takes those of the recording.
/// Token ids, or where they are.
struct TokenArgument {
  std::vector<uint32_t> ids;
  std::string file;  // "-": standard input; empty: `ids` are they
  [[nodiscard]] bool is_given() const { return !ids.empty() || !file.empty(); }
};

struct PassTokens : TokenArgument {
  std::optional<std::string> prompt;  // "-": standard input
  bool raw = false;
};

/// dsrun eval DIR
struct EvalOptions {
  std::string folder;
  LoadOptions load;
  std::string text_file;
  uint32_t stride = 0;    // 0: windows do not overlap
  std::string json_file;  // empty: none
};

/// dsrun record DIR
struct RecordOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;
  std::string out;
  std::vector<std::string> patterns;  // of modules; empty: all
};

/// dsrun compare DIR
struct CompareOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;
  std::string reference;
  std::optional<double> tolerance;
  bool inject = false;
  std::string json_file;  // empty: none
};

}  // namespace dspack::runtime
