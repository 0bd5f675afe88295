// The head of an HTTP answer. Input: the first line is "STATUS BEGIN-END VERSION" (the range asked for, "-" for none,
// "head" for a HEAD request; the version expected, or nothing); the other lines are the answer's head.
#include <cmath>
#include <string>

#include "format/base/size.h"
#include "format/http/answer.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using format::HttpAnswer;
using format::HttpFailure;
using format::HttpRequest;

namespace {

constexpr std::string_view kSecret = "s3cr3t";

std::optional<ByteRange> asked_range(std::string_view text) {
  const auto begin = parse_decimal(fuzz::take(text, '-'));
  const auto end = parse_decimal(text);
  if (!begin || !end || *begin >= *end) return std::nullopt;
  return ByteRange{*begin, *end};
}

void check_failure(const HttpFailure& failure) {
  const std::string& message = failure.error.message;
  DSPACK_CHECK(message.starts_with("http://h/f: "), message);  // the address, without what it was called with
  DSPACK_CHECK(failure.error.kind == ErrorKind::network || !failure.may_pass, message);
  DSPACK_CHECK(!failure.wait_seconds || failure.may_pass, message);
  const double wait = failure.wait_seconds.value_or(0);
  DSPACK_CHECK(std::isfinite(wait) && wait >= 0, message);
}

void check_good(const HttpRequest& request, const HttpAnswer& answer) {
  const format::HttpResponse& response = answer.response();
  if (request.is_head()) {
    DSPACK_CHECK(response.status >= 200 && response.status < 400, "a refusal counts as good");
    return;
  }
  DSPACK_CHECK(request.expected_version.empty() || response.version == request.expected_version, response.version);
  if (!request.range) {
    DSPACK_CHECK(response.status == 200 && !answer.empty_file(), "not the whole file");
    return;
  }
  DSPACK_CHECK(response.file_bytes.has_value(), "a range of a file without size");
  DSPACK_CHECK(answer.range_bytes() <= request.range->size(), "more than was asked for");
  if (answer.empty_file()) {
    DSPACK_CHECK(request.range->begin == 0 && *response.file_bytes == 0 && answer.range_bytes() == 0, "not empty");
    return;
  }
  DSPACK_CHECK(response.status == 206 && answer.range_bytes() > 0, "not a part");
  const uint64_t end = request.range->begin + answer.range_bytes();
  DSPACK_CHECK(end == std::min(request.range->end, *response.file_bytes), "a part that ends elsewhere");
}

void check_line(std::string_view line) {
  if (const auto range = format::parse_content_range(line)) {
    DSPACK_CHECK(range->range.begin < range->range.end && range->range.end <= range->total, "a range outside its file");
  }
  const std::string_view trimmed = format::trim_header(line);
  DSPACK_CHECK(format::trim_header(trimmed) == trimmed, "trimmed twice");
  DSPACK_CHECK(format::strip_etag(line).size() <= line.size(), "a tag that grows");
  const auto next = format::same_host_url("https://h:1/a/b", line);
  DSPACK_CHECK(!next || next->starts_with("https://h:1/"), *next);  // the token goes there
  const std::string shown = format::without_password("http://u:" + std::string(kSecret) + "@" + std::string(line));
  const bool own = line.find(kSecret) != std::string_view::npos;
  DSPACK_CHECK(own || shown.find(kSecret) == std::string::npos, shown);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  std::string_view first = fuzz::take(text, '\n');
  const auto status = parse_decimal(fuzz::take(first, ' ')).value_or(0);
  const std::string_view asked = fuzz::take(first, ' ');
  const HttpRequest request{.method = asked == "head" ? "HEAD" : "GET",
                            .url = "http://u:" + std::string(kSecret) + "@h/f",
                            .range = asked_range(asked),
                            .expected_version = std::string(first)};
  HttpAnswer answer(request);
  const std::vector<std::string_view> lines = fuzz::split(text, '\n');
  for (const std::string_view line : lines) {
    answer.add_line(line);
    check_line(line);
  }
  if (const auto failure = answer.judge(static_cast<long>(status % 1000))) {
    check_failure(*failure);
  } else {
    check_good(request, answer);
  }
  // A server may send more lines behind the body; they must not change what was judged.
  const uint64_t range_bytes = answer.range_bytes();
  const format::HttpResponse judged = answer.response();
  for (const std::string_view trailer :
       {"Content-Range: bytes 0-0/1", "ETag: trailer", "Content-Length: 1", "HTTP/1.1 200"})
    answer.add_line(trailer);
  DSPACK_CHECK(answer.range_bytes() == range_bytes && answer.response().version == judged.version &&
                   answer.response().file_bytes == judged.file_bytes && answer.response().status == judged.status,
               "a trailer changed the answer");
  return 0;
}
