// Reads recorded routes line by line, with about one line in memory. The file is not trusted.
// Threads: single-thread. Errors: those of the file; invalid and unsupported with file and line number.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "format/file_system.h"
#include "runtime/experts/trace/route_format.h"

namespace dspack::runtime {

class RouteReader {
 public:
  /// Reads the header.
  [[nodiscard]] static Result<RouteReader> open(format::FileSystem& files, const format::Path& path);

  [[nodiscard]] const RouteHeader& header() const { return header_; }
  /// nullopt: the trace has ended. Passes ascend, and all lines of a pass agree on its phase and drafts.
  [[nodiscard]] Result<std::optional<RouteLine>> next();

 private:
  RouteReader(std::unique_ptr<format::ReadFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  Result<std::optional<std::string_view>> next_line();
  Result<void> check_order(const RouteLine& line);
  [[nodiscard]] Error at_line(const Error& error) const;

  std::unique_ptr<format::ReadFile> file_;
  std::string path_;
  RouteHeader header_;
  std::string buffer_;
  size_t consumed_ = 0;  // bytes of buffer_
  uint64_t read_bytes_ = 0;
  uint64_t line_number_ = 0;
  struct LastPass {
    uint64_t number = 0;
    Phase phase = Phase::decode;
    uint32_t draft_rows = 0;
  };
  std::optional<LastPass> last_;
};

}  // namespace dspack::runtime
