#include <doctest/doctest.h>

#include <initializer_list>

#include "format/source/http_answer.h"

using namespace dspack;
using format::HttpAnswer;
using format::HttpFailure;
using format::HttpRequest;

namespace {

const HttpRequest kWhole{.url = "http://u:secret@h/f", .range = {}, .bearer_token = {}, .expected_version = {}};

HttpRequest part(ByteRange range, std::string version = {}) {
  return {.url = "http://h/f", .range = range, .bearer_token = {}, .expected_version = std::move(version)};
}

HttpAnswer answer(const HttpRequest& request, std::initializer_list<std::string_view> lines) {
  HttpAnswer answer(request);
  for (const std::string_view line : lines)
    answer.add_line(line);
  return answer;
}

std::optional<ErrorKind> refusal(const HttpRequest& request, long status,
                                 std::initializer_list<std::string_view> lines = {}) {
  const std::optional<HttpFailure> failure = answer(request, lines).judge(status);
  return failure ? std::optional(failure->error.kind) : std::nullopt;
}

}  // namespace

TEST_CASE("http answer: a whole file, with its size and version") {
  HttpAnswer good = answer(kWhole, {"HTTP/1.1 200 OK\r\n", "Content-LENGTH: 12\r\n", "ETag: W/\"v1\"\r\n", "\r\n"});
  CHECK_FALSE(good.judge(200).has_value());
  CHECK(good.response().status == 200);
  CHECK(good.response().file_bytes == 12);
  CHECK(good.response().version == "v1");
  HttpAnswer dated = answer(kWhole, {"Last-Modified: Mon"});
  CHECK_FALSE(dated.judge(200).has_value());
  CHECK(dated.response().version == "Mon");
  CHECK_FALSE(dated.response().file_bytes.has_value());
}

TEST_CASE("http answer: what a redirect said does not count") {
  HttpAnswer good = answer(kWhole, {"HTTP/1.1 302 Found", "ETag: \"a\"", "Content-Length: 3", "HTTP/2 200"});
  CHECK_FALSE(good.judge(200).has_value());
  CHECK(good.response().version.empty());
  CHECK_FALSE(good.response().file_bytes.has_value());
}

TEST_CASE("http answer: a range must be the one asked for; the file's end may cut it") {
  const HttpRequest request = part({10, 20});
  HttpAnswer good = answer(request, {"Content-Range: bytes 10-19/100"});
  CHECK_FALSE(good.judge(206).has_value());
  CHECK(good.range_bytes() == 10);
  CHECK(good.response().file_bytes == 100);
  HttpAnswer cut = answer(request, {"Content-Range: bytes 10-14/15"});
  CHECK_FALSE(cut.judge(206).has_value());
  CHECK(cut.range_bytes() == 5);
  for (const char* line : {"", "Content-Range: bytes 10-18/100", "Content-Range: bytes 11-19/100",
                           "Content-Range: bytes 10-20/100", "Content-Range: bytes 10-19/*"}) {
    CAPTURE(line);
    CHECK(refusal(request, 206, {line}) == ErrorKind::corrupt);
  }
  CHECK(refusal(request, 200, {"Content-Length: 100"}) == ErrorKind::unsupported);
  CHECK(refusal(request, 416) == ErrorKind::corrupt);
  CHECK(refusal(kWhole, 206, {"Content-Range: bytes 10-19/100"}) == ErrorKind::network);
}

TEST_CASE("http answer: an empty file has no range") {
  const HttpRequest request = part({0, 20});
  HttpAnswer refused = answer(request, {"Content-Range: bytes */0"});
  CHECK_FALSE(refused.judge(416).has_value());
  CHECK(refused.empty_file());
  CHECK(refused.range_bytes() == 0);
  CHECK(refused.response().file_bytes == 0);
  HttpAnswer whole = answer(request, {"Content-Length: 0"});
  CHECK_FALSE(whole.judge(200).has_value());
  CHECK(whole.empty_file());
  HttpAnswer silent = answer(request, {});
  CHECK_FALSE(silent.judge(416).has_value());
  CHECK(silent.empty_file());
}

TEST_CASE("http answer: a refused range of a file with bytes is no empty file") {
  const HttpRequest request = part({0, 20});
  HttpAnswer refused = answer(request, {"Content-Range: bytes */10"});
  const auto failure = refused.judge(416);
  REQUIRE(failure.has_value());
  CHECK(failure->error.kind == ErrorKind::corrupt);
  CHECK(failure->error.message.find("it says has 10") != std::string::npos);
  CHECK_FALSE(refused.empty_file());
  CHECK(refusal(request, 416, {"Content-Range: bytes 0-9/10"}) == ErrorKind::corrupt);
}

TEST_CASE("http answer: lines behind the body change nothing") {
  const HttpRequest request = part({0, 4});
  HttpAnswer good = answer(request, {"Content-Range: bytes 0-3/4", "ETag: \"a\""});
  CHECK_FALSE(good.judge(206).has_value());
  for (const char* trailer : {"Content-Range: bytes 0-1/2", "ETag: \"b\"", "HTTP/1.1 200 OK"})
    good.add_line(trailer);
  CHECK(good.range_bytes() == 4);
  CHECK(good.response().file_bytes == 4);
  CHECK(good.response().version == "a");
  CHECK(good.response().status == 206);
}

TEST_CASE("http answer: another version is a changed file") {
  CHECK_FALSE(refusal(part({0, 4}, "a"), 206, {"Content-Range: bytes 0-3/4", "ETag: \"a\""}).has_value());
  CHECK(refusal(part({0, 4}, "a"), 206, {"Content-Range: bytes 0-3/4", "ETag: \"b\""}) == ErrorKind::corrupt);
  CHECK(refusal(part({0, 4}, "a"), 206, {"Content-Range: bytes 0-3/4"}) == ErrorKind::corrupt);
}

TEST_CASE("http answer: refusals, and which of them may pass") {
  for (const long status : {404L, 410L})
    CHECK(refusal(kWhole, status) == ErrorKind::not_found);
  for (const long status : {0L, 100L, 204L, 304L, 400L, 401L, 403L})
    CHECK(refusal(kWhole, status) == ErrorKind::network);
  for (const long status : {408L, 429L, 500L, 503L, 599L}) {
    const auto failure = answer(kWhole, {"Retry-After: 7"}).judge(status);
    REQUIRE(failure.has_value());
    CHECK(failure->may_pass);
    CHECK(failure->wait_seconds == 7);
    CHECK(failure->error.message.find("secret") == std::string::npos);
  }
  CHECK_FALSE(answer(kWhole, {"Retry-After: Mon, 01 Jan 2035"}).judge(503)->wait_seconds.has_value());
}

TEST_CASE("http answer: a HEAD request is answered by the first answer, redirect or not") {
  HttpRequest request = kWhole;
  request.head_only = true;
  HttpAnswer moved = answer(request, {"HTTP/1.1 302 Found", "X-Linked-Etag: \"ab\"", "x-linked-size: 7",
                                      "Location: /other", "Content-Length: 3"});
  CHECK_FALSE(moved.judge(302).has_value());
  CHECK(moved.response().linked_etag == "ab");
  CHECK(moved.response().linked_bytes == 7);
  CHECK(moved.response().location == "/other");
  CHECK(refusal(request, 404) == ErrorKind::not_found);
  CHECK(refusal(request, 503) == ErrorKind::network);
}
