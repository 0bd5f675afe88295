#include <doctest/doctest.h>

#include "format/source/http_exchange.h"

namespace dspack::http_exchange_test {

using namespace dspack;
using format::HttpReply;

namespace {

HttpReply reply(long status, const std::vector<std::string>& lines) {
  HttpReply made{.status = status, .body = {}, .headers = {}};
  for (const std::string& line : lines)
    add_reply_line(made, line);
  return made;
}

}  // namespace

TEST_CASE("exchange: headers are those of the last answer, their names in lower case") {
  const HttpReply last = reply(200, {"HTTP/1.1 100 Continue\r\n", "ETag: \"a\"\r\n", "\r\n", "HTTP/1.1 200 OK\r\n",
                                     "ETAG:  \"b\" \r\n", "no header\r\n", "Link: <x>\r\n"});
  CHECK(last.header("etag") == "\"b\"");
  CHECK(last.header("link") == "<x>");
  CHECK(last.header("location").empty());
  HttpReply flooded;
  for (int i = 0; i < 100'000; ++i)
    add_reply_line(flooded, "x: y");
  CHECK(flooded.headers.size() <= 200);
}

TEST_CASE("exchange: a busy server says how long to wait, by Retry-After or by its window") {
  CHECK(asked_wait_seconds(reply(429, {"Retry-After: 7"})) == 7.0);
  CHECK(asked_wait_seconds(reply(429, {"RateLimit: \"api\";r=0;t=55"})) == 56.0);
  CHECK(asked_wait_seconds(reply(429, {"ratelimit: \"api\"; r=0; t=1 , \"other\";t=900"})) == 2.0);
  CHECK(asked_wait_seconds(reply(429, {"Retry-After: 3", "RateLimit: \"api\";r=0;t=55"})) == 3.0);
  for (const char* nonsense :
       {"RateLimit: ", "RateLimit: t", "RateLimit: \"api\";t=", "RateLimit: \"api\";t=-1",
        "RateLimit: \"api\";t=99999999999999999999", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"})
    CHECK_FALSE(asked_wait_seconds(reply(429, {nonsense})).has_value());
}

TEST_CASE("exchange: 408, 429 and 5xx may pass, all else is final") {
  for (const long status : {408L, 429L, 500L, 502L, 503L, 504L}) {
    const auto failure = passing_failure(reply(status, {"Retry-After: 2"}), "https://hub/x");
    REQUIRE(failure.has_value());
    CHECK(failure->may_pass);
    CHECK(failure->wait_seconds == 2.0);
    CHECK(failure->error.message == "https://hub/x: the server answered HTTP " + std::to_string(status));
  }
  for (const long status : {200L, 204L, 301L, 400L, 401L, 403L, 404L, 409L, 412L, 413L})
    CHECK_FALSE(passing_failure(reply(status, {}), "x").has_value());
}

}  // namespace dspack::http_exchange_test
