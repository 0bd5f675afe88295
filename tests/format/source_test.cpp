#include <doctest/doctest.h>

#include "format/http/client.h"
#include "format/http/headers.h"
#include "format/http/http_source.h"
#include "format/http/pace.h"
#include "format/source/repository.h"
#include "tests/support/temp_folder.h"

namespace dspack::source_test {

using namespace dspack;
using format::open_repository;

namespace {

std::string located(std::string_view place) {
  const auto repository = open_repository(place, {}, format::posix_file_system());
  return repository ? (*repository)->locate("config.json") : repository.error().message;
}

}  // namespace

TEST_CASE("place: URLs and folders") {
  const test::TempFolder folder;
  CHECK(located("http://h:1/a/b//") == "http://h:1/a/b/config.json");
  CHECK(located(folder.path().string()) == (folder.path() / "config.json").string());
  folder.write("f", "x");
  CHECK(located((folder.path() / "f").string()).find("is a file") != std::string::npos);
  for (const char* place : {"/no/such/folder", "./org/name", "a/b/c", "name", "hf://name", "hf://o/n@../x", "org/",
                            "org/name@", "o rg/name"}) {
    CAPTURE(place);
    CHECK_FALSE(open_repository(place, {}, format::posix_file_system()).has_value());
  }
}

TEST_CASE("place: paths are percent-encoded in URLs") {
  CHECK(format::url_path("a b/c+d.json") == "a%20b/c%2Bd.json");
  CHECK(format::url_path("é") == "%C3%A9");
}

TEST_CASE("local repository: lists files below it, without hidden ones") {
  const test::TempFolder folder;
  folder.write("b.txt", "1");
  folder.write("a/c.txt", "2");
  folder.write(".git/config", "3");
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  const auto listed = repository->list({}).value().value();
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].path == "a/c.txt");
  CHECK(listed[1].path == "b.txt");
  CHECK(listed[1].size_bytes == 1);
  std::string streamed;
  const auto sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    streamed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  folder.write("big", std::string(3'000'000, 'z'));
  CHECK(repository->open("big", {}).value()->stream({1, 2'999'999}, sink, {}));
  CHECK(streamed == std::string(2'999'998, 'z'));
}

TEST_CASE("http: a Content-Range that does not lie in its file is none") {
  const auto good = format::parse_content_range("bytes 5-9/10");
  REQUIRE(good.has_value());
  CHECK(good->range == ByteRange{5, 10});
  CHECK(good->total == 10);
  CHECK(format::parse_unsatisfied_range("bytes */10") == 10);
  CHECK_FALSE(format::parse_unsatisfied_range("bytes 0-9/10").has_value());
  CHECK_FALSE(format::parse_unsatisfied_range("bytes */*").has_value());
  for (const char* text : {"", "bytes", "bytes ", "bytes */10", "bytes 5-9/*", "bytes 9-5/10", "bytes 0-10/10",
                           "bytes -1-5/10", "bytes 0-18446744073709551615/18446744073709551615",
                           "bytes 0-99999999999999999999/1", "bytes 0-1 /10", "octets 0-1/10", "bytes 0/10-1"}) {
    CAPTURE(text);
    CHECK_FALSE(format::parse_content_range(text).has_value());
  }
}

TEST_CASE("http: ETags lose their quotes, URLs their passwords") {
  CHECK(format::strip_etag("\"abc\"") == "abc");
  CHECK(format::strip_etag("W/\"abc\"") == "abc");
  CHECK(format::strip_etag("abc") == "abc");
  CHECK(format::strip_etag("\"") == "\"");
  CHECK(format::trim_header(" x \r\n") == "x");
  CHECK(format::trim_header("\r\n").empty());
  CHECK(format::without_password("http://u:p@h:1/a@b") == "http://h:1/a@b");
  CHECK(format::without_password("http://h/a@b") == "http://h/a@b");
  CHECK(format::without_password("h") == "h");
}

TEST_CASE("rate limit: bytes are booked one behind the other, and idle time is not saved up") {
  format::RateLimit limit(1000);
  const auto start = format::RateLimit::Clock::now();
  const auto later = [&start](double seconds) {
    return start +
           std::chrono::duration_cast<format::RateLimit::Clock::duration>(std::chrono::duration<double>(seconds));
  };
  CHECK(limit.book(500, start) == doctest::Approx(0.5));
  CHECK(limit.book(500, start) == doctest::Approx(1.0));
  CHECK(limit.book(100, later(0.9)) == doctest::Approx(0.2));
  CHECK(limit.book(100, later(50)) == doctest::Approx(0.1));
  std::stop_source stopped;
  stopped.request_stop();
  CHECK_FALSE(limit.pass(1'000'000, stopped.get_token()));
}

TEST_CASE("http: pauses between attempts grow to a limit, with jitter above only") {
  CHECK(format::backoff_seconds(1, 0) == 0.5);
  CHECK(format::backoff_seconds(2, 0) == 1.0);
  CHECK(format::backoff_seconds(5, 0) == 8.0);
  CHECK(format::backoff_seconds(8, 0) == 60.0);
  CHECK(format::backoff_seconds(50, 0) == 60.0);
  CHECK(format::backoff_seconds(1, 0.999) < 0.5 * 1.25);
}

TEST_CASE("http: a wait ends at once when a stop is requested") {
  std::stop_source source;
  source.request_stop();
  CHECK_FALSE(format::wait_for(60, source.get_token()));
  CHECK(format::wait_for(0.001, {}));
}

TEST_CASE("http headers: a redirect is followed on the same host only") {
  using format::same_host_url;
  CHECK(same_host_url("https://h:1/a/b", "/c?d") == "https://h:1/c?d");
  CHECK(same_host_url("https://h:1/a/b", "https://h:1/c") == "https://h:1/c");
  for (const char* location : {"", "//evil/c", "https://evil/c", "https://h:12/c", "http://h:1/c", "https://h:1@evil/",
                               "https://h:1.evil/c", "c"}) {
    CAPTURE(location);
    CHECK_FALSE(same_host_url("https://h:1/a/b", location).has_value());
  }
}

TEST_CASE("http headers: the longest wait of the limits that are used up") {
  using format::parse_rate_limit;
  CHECK(parse_rate_limit("\"api\";r=0;t=55") == 55);
  CHECK(parse_rate_limit("\"api\"; r=0; t=55, \"resolvers\";r=0;t=70") == 70);
  CHECK(parse_rate_limit("\"a,b;c\";t=3;r=0") == 3);
  for (const char* text : {"", "\"api\";r=1;t=55", "\"api\";r=0", "t=55", "r=0;t=-1", "r=0;t=99999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_rate_limit(text).has_value());
  }
}

TEST_CASE("http headers: the next page among links") {
  using format::parse_next_link;
  CHECK(parse_next_link("<https://h/a?cursor=x%3D%3D&b=1>; rel=\"next\"") == "https://h/a?cursor=x%3D%3D&b=1");
  CHECK(parse_next_link("<https://h/a,b>; rel=\"xet-auth\", </c>; type=\"x\"; rel=next") == "/c");
  for (const char* text :
       {"", "<a>", "<a>; rel=\"prev\"", "a; rel=\"next\"", "<a; rel=\"next\"", "<a>; title=\"rel=next\""}) {
    CAPTURE(text);
    CHECK(parse_next_link(text).empty());
  }
}

}  // namespace dspack::source_test
