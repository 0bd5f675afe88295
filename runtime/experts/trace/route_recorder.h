// Writes the routes of a run to a file, one line per layer of each pass: docs/traces.md.
// Threads: single-thread. Lifetime: borrows the file system. Errors: those of the file; the next flush retries what
// could not be written. A killed run leaves whole lines except for the last.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "format/checkpoint.h"
#include "format/file_system.h"
#include "runtime/config/config.h"
#include "runtime/experts/executor.h"
#include "runtime/experts/trace/route_format.h"

namespace dspack::runtime {

/// The layers with routed experts of a checkpoint with this config.json.
[[nodiscard]] RouteHeader route_header(const format::Checkpoint& checkpoint, const ModelConfig& config);

class RouteRecorder final : public RouteListener {
 public:
  /// Replaces the file at `path`.
  [[nodiscard]] static Result<std::unique_ptr<RouteRecorder>> create(format::FileSystem& files,
                                                                     const format::Path& path, RouteHeader header);

  /// Writes the pending lines of a failed run, if possible; see `flush`.
  ~RouteRecorder() override;
  RouteRecorder(const RouteRecorder&) = delete;
  RouteRecorder& operator=(const RouteRecorder&) = delete;

  void begin_pass(const ExpertPass& pass) override;
  [[nodiscard]] Result<void> record(LayerId layer, std::span<const uint32_t> ids) override;
  void accept_drafts(uint32_t rows) override;
  /// Writes all pending lines. Recording may go on.
  [[nodiscard]] Result<void> flush();

 private:
  RouteRecorder(std::unique_ptr<format::WriteFile> file, std::string path, RouteHeader header)
      : file_(std::move(file)), path_(std::move(path)), header_(std::move(header)) {}
  void append(const std::string& line);

  std::unique_ptr<format::WriteFile> file_;
  std::string path_;
  RouteHeader header_;
  ExpertPass pass_;
  uint64_t passes_ = 0;
  std::string pending_;
  uint64_t written_bytes_ = 0;
};

}  // namespace dspack::runtime
