#include "runtime/experts/trace/route_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime {

namespace {

constexpr size_t kReadBytes = 1U << 20U;

}  // namespace

Result<RouteReader> RouteReader::open(format::FileSystem& files, const format::Path& path) {
  auto file = files.open_read(path);
  if (!file) return file.error();
  RouteReader reader(std::move(*file), path.string());
  TRY_ASSIGN(const auto line, reader.next_line());
  if (!line) return reader.at_line({ErrorKind::invalid, "the file is empty"});
  auto header = parse_route_header(*line);
  if (!header) return reader.at_line(header.error());
  reader.header_ = std::move(*header);
  return reader;
}

Result<std::optional<RouteLine>> RouteReader::next() {
  TRY_ASSIGN(const auto line, next_line());
  if (!line) return std::optional<RouteLine>();
  auto parsed = parse_route_line(*line, header_);
  if (!parsed) return at_line(parsed.error());
  if (auto checked = check_order(*parsed); !checked) return at_line(checked.error());
  return std::optional(std::move(*parsed));
}

Result<void> RouteReader::check_order(const RouteLine& line) {
  const auto wrong = [](std::string text) { return Error{ErrorKind::invalid, std::move(text)}; };
  if (const auto* accepted = std::get_if<AcceptedDrafts>(&line)) {
    if (!last_ || accepted->pass != last_->number)
      return wrong("\"accepted_drafts\" of a pass that is not the last one");
    if (accepted->rows > last_->draft_rows) return wrong("more accepted drafts than the pass had");
    return {};
  }
  const auto& routed = std::get<RoutedLayer>(line);
  if (last_ && routed.pass < last_->number) return wrong("\"pass\" is less than on the line before");
  if (last_ && routed.pass == last_->number &&
      (routed.phase != last_->phase || routed.draft_rows != last_->draft_rows)) {
    return wrong("the lines of a pass differ in phase or draft_rows");
  }
  last_ = LastPass{.number = routed.pass, .phase = routed.phase, .draft_rows = routed.draft_rows};
  return {};
}

Result<std::optional<std::string_view>> RouteReader::next_line() {
  ++line_number_;
  size_t searched = consumed_;
  for (;;) {
    if (const size_t end = buffer_.find('\n', searched); end != std::string::npos) {
      const std::string_view line = std::string_view(buffer_).substr(consumed_, end - consumed_);
      consumed_ = end + 1;
      return std::optional(line);
    }
    if (read_bytes_ == file_->size_bytes()) break;
    if (buffer_.size() - consumed_ > kMaxRouteLineBytes) {
      return at_line({ErrorKind::invalid, fmt::format("the line has more than {} bytes", kMaxRouteLineBytes)});
    }
    buffer_.erase(0, consumed_);
    consumed_ = 0;
    searched = buffer_.size();
    const size_t count = std::min<uint64_t>(kReadBytes, file_->size_bytes() - read_bytes_);
    buffer_.resize(searched + count);
    TRY(file_->read(read_bytes_, std::as_writable_bytes(std::span(buffer_).subspan(searched))));
    read_bytes_ += count;
  }
  if (consumed_ == buffer_.size()) return std::optional<std::string_view>();
  return at_line({ErrorKind::invalid, "the line does not end; if the run that wrote it was cut, remove this line"});
}

Error RouteReader::at_line(const Error& error) const {
  return error.in(fmt::format("{}: line {}", path_, line_number_));
}

}  // namespace dspack::runtime
