// Events of long work, for display. Libraries never print; they report to a Progress.
// Threads: implementations are thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace dspack::format {

/// Messages for users that are not errors. A remark: what is done, and why. A warning: what may be wrong with the
/// result; also shown to a user who has asked for quiet. A pause: a server is being waited for, and why; there may be
/// more of them than should be shown.
enum class NoteKind { remark, warning, pause };

/// Work that begins.
struct Work {
  std::string_view what;            // a verb for people ("packing")
  uint64_t total_bytes = 0;         // 0: progress is counted in items
  uint64_t total_items = 0;         // if total_bytes is 0, too, the size is unknown
  std::string_view item = "files";  // name of the items
};

class Progress {
 public:
  virtual ~Progress() = default;
  virtual void started(const Work& work) = 0;
  void started(std::string_view what, uint64_t total_bytes, uint64_t total_files) {
    started({.what = what, .total_bytes = total_bytes, .total_items = total_files});
  }
  virtual void advanced(uint64_t bytes) = 0;
  virtual void item_done() = 0;
  virtual void note(NoteKind kind, std::string_view text) = 0;
  void note(std::string_view text) { note(NoteKind::remark, text); }
  virtual void finished() = 0;
};

/// Ignores all events.
class SilentProgress final : public Progress {
 public:
  using Progress::note;
  using Progress::started;
  void started(const Work&) override {}
  void advanced(uint64_t) override {}
  void item_done() override {}
  void note(NoteKind, std::string_view) override {}
  void finished() override {}
};

}  // namespace dspack::format
