// Events of long work, for display. Libraries never print; they report to a Progress.
// Threads: implementations are thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace dspack::format {

class Progress {
 public:
  virtual ~Progress() = default;
  /// Work of a known size begins; `what` is a verb for people ("packing").
  virtual void started(std::string_view what, uint64_t total_bytes, uint64_t total_files) = 0;
  virtual void advanced(uint64_t bytes) = 0;
  virtual void file_done() = 0;
  /// Something the user should know that is not an error.
  virtual void note(std::string_view text) = 0;
  virtual void finished() = 0;
};

/// Tells nobody.
class SilentProgress final : public Progress {
 public:
  void started(std::string_view, uint64_t, uint64_t) override {}
  void advanced(uint64_t) override {}
  void file_done() override {}
  void note(std::string_view) override {}
  void finished() override {}
};

}  // namespace dspack::format
