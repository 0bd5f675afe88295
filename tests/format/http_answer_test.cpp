#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "format/http/answer.h"
#include "format/http/pace.h"

namespace dspack::http_answer_test {

using namespace dspack;
using format::HttpAnswer;
using format::HttpFailure;
using format::HttpRequest;

namespace {

const HttpRequest kWhole{.url = "http://u:secret@h/f"};

HttpRequest part(ByteRange range, std::string version = {}) {
  return {.url = "http://h/f", .range = range, .expected_version = std::move(version)};
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
  request.method = "HEAD";
  HttpAnswer moved = answer(request, {"HTTP/1.1 302 Found", "X-Linked-Etag: \"ab\"", "x-linked-size: 7",
                                      "Location: /other", "Content-Length: 3"});
  CHECK_FALSE(moved.judge(302).has_value());
  CHECK(moved.response().linked_etag == "ab");
  CHECK(moved.response().linked_bytes == 7);
  CHECK(moved.response().location == "/other");
  CHECK(refusal(request, 404) == ErrorKind::not_found);
  CHECK(refusal(request, 503) == ErrorKind::network);
}

TEST_CASE("http answer: what the Hub says of a file counts across its redirect to the storage") {
  HttpRequest request = part({0, 4});
  request.expected_commit = "c1";
  request.expected_linked_etag = "d1";
  const auto lines = [](std::string_view commit, std::string_view etag) {
    return std::vector<std::string>{"HTTP/1.1 302 Found",
                                    fmt::format("X-Repo-Commit: {}", commit),
                                    fmt::format("X-Linked-Etag: \"{}\"", etag),
                                    "X-Linked-Size: 4",
                                    "X-Error-Code: Old",
                                    "HTTP/1.1 206 Partial Content",
                                    "Content-Range: bytes 0-3/4",
                                    "ETag: \"e\""};
  };
  const auto judged = [&](std::string_view commit, std::string_view etag) {
    HttpAnswer chain(request);
    for (const std::string& line : lines(commit, etag))
      chain.add_line(line);
    const auto failure = chain.judge(206);
    if (!failure) CHECK(chain.response().linked_bytes == 4);
    if (failure) CHECK(failure->error_code.empty());  // of the first answer
    return failure ? std::optional(failure->error.kind) : std::nullopt;
  };
  CHECK_FALSE(judged("c1", "d1").has_value());
  CHECK_FALSE(judged("", "").has_value());
  CHECK(judged("c2", "d1") == ErrorKind::corrupt);
  CHECK(judged("c1", "d2") == ErrorKind::corrupt);
}

TEST_CASE("http answer: a refusal tells the Hub's code, its words and its commit") {
  const auto failure =
      answer(kWhole, {"x-error-code: GatedRepo", "x-error-message: see https://h/x?token=s3", "x-repo-commit: c1"})
          .judge(403);
  REQUIRE(failure.has_value());
  CHECK(failure->status == 403);
  CHECK(failure->error_code == "GatedRepo");
  CHECK(failure->words == "see https://h/x?...");
  CHECK(failure->repo_commit == "c1");
}

TEST_CASE("http answer: too many requests wait for the count to begin anew") {
  const auto wait = [](long status, std::initializer_list<std::string_view> lines) {
    return answer(kWhole, lines).judge(status)->wait_seconds;
  };
  CHECK(wait(429, {"RateLimit: \"api\";r=0;t=55"}) == 56);
  CHECK(wait(429, {"RateLimit: \"api\";r=0;t=55", "Retry-After: 7"}) == 56);
  CHECK(wait(429, {"RateLimit: \"api\";r=3;t=55", "Retry-After: 7"}) == 7);
  CHECK(wait(503, {"RateLimit: \"api\";r=0;t=55", "Retry-After: 7"}) == 7);
  CHECK(wait(429, {"ratelimit: \"api\"; r=0; t=1 , \"other\";t=900"}) == 2);
  for (const char* nonsense :
       {"RateLimit: nonsense", "RateLimit: ", "RateLimit: t", "RateLimit: \"api\";t=", "RateLimit: \"api\";t=-1",
        "RateLimit: \"api\";t=99999999999999999999", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"})
    CHECK_FALSE(wait(429, {nonsense}).has_value());
  // What a server said that redirected is not of the one that refuses.
  CHECK_FALSE(
      wait(429, {"HTTP/1.1 302 Found", "RateLimit: \"api\";r=0;t=55", "Retry-After: 7", "HTTP/2 429"}).has_value());
}

TEST_CASE("http answer: of an API's call 408, 429 and 5xx may pass, all else is an answer") {
  const HttpRequest call{.method = "POST", .url = "https://hub/x", .any_status = true};
  for (const long status : {408L, 429L, 500L, 502L, 503L, 504L}) {
    const auto failure = answer(call, {"Retry-After: 2"}).judge(status);
    REQUIRE(failure.has_value());
    CHECK(failure->may_pass);
    CHECK(failure->wait_seconds == 2.0);
    CHECK(failure->error.message.starts_with("https://hub/x: the server answered HTTP " + std::to_string(status)));
  }
  for (const long status : {200L, 204L, 301L, 400L, 401L, 403L, 404L, 409L, 412L, 413L})
    CHECK_FALSE(answer(call, {}).judge(status).has_value());
}

TEST_CASE("http answer: an API's call is answered by the last answer, and does not follow a redirect") {
  const HttpRequest call{.method = "POST", .url = "https://hub/x", .any_status = true};
  HttpAnswer last =
      answer(call, {"HTTP/1.1 100 Continue\r\n", "ETag: \"a\"\r\n", "X-Error-Code: Old", "\r\n",
                    "HTTP/1.1 302 Found\r\n", "ETAG:  \"b\" \r\n", "no header\r\n", "Location: http://elsewhere/\r\n"});
  CHECK_FALSE(last.refused_redirect().has_value());
  CHECK_FALSE(last.judge(302).has_value());
  CHECK(last.response().etag == "\"b\"");
  CHECK(last.response().error_code.empty());
  CHECK(last.response().location == "http://elsewhere/");
}

TEST_CASE("http answer: no secret of the request is in what the server says") {
  const HttpRequest call{
      .method = "PUT", .url = "https://s3/x", .bearer_token = "hf_a", .hidden = "hf_b", .any_status = true};
  CHECK(answer(call, {"X-Error-Message: hf_a and hf_b are bad"}).judge(503)->words == "(token) and (token) are bad");
}

TEST_CASE("http answer: a refused link may be an old one") {
  HttpRequest request = kWhole;
  request.is_link = true;
  for (const long status : {400L, 401L, 403L, 404L, 410L})
    CHECK(answer(request, {}).judge(status)->link_expired);
  const auto refused = [](long status, std::string_view location, std::string commit) {
    HttpRequest asked = part({0, 4});
    asked.expected_commit = std::move(commit);
    const std::string line = fmt::format("Location: {}", location);
    return answer(asked, {"HTTP/1.1 302 Found", line, "HTTP/1.1 403 Forbidden"}).judge(status)->link_expired;
  };
  CHECK(refused(403, "https://storage/x?signed", ""));
  CHECK(refused(403, "//storage/x", ""));
  CHECK(refused(404, "https://storage/x?signed", "c1"));
  CHECK_FALSE(refused(404, "https://storage/x", ""));
  CHECK_FALSE(refused(403, "/elsewhere", "c1"));
  CHECK_FALSE(refused(403, "http://h/elsewhere", "c1"));
  CHECK_FALSE(answer(request, {}).judge(416)->link_expired);
  CHECK_FALSE(answer(kWhole, {}).judge(403)->link_expired);
}

TEST_CASE("http answer: the next page of a listing") {
  HttpAnswer paged = answer(kWhole, {"Link: <https://h/x>; rel=\"xet-auth\"", "Link: <https://h/2>; rel=\"next\""});
  CHECK_FALSE(paged.judge(200).has_value());
  CHECK(paged.response().next_page == "https://h/2");
}

TEST_CASE("http answer: a redirect away from https is not followed, wherever it leads") {
  HttpRequest request = kWhole;
  request.url = "https://h/f";
  for (const char* location : {"http://h/f", "HTTP://other/f", "http:/other/f"}) {
    const std::string line = fmt::format("Location: {}\r\n", location);
    const HttpAnswer refused = answer(request, {"HTTP/1.1 302 Found\r\n", line});
    REQUIRE_MESSAGE(refused.refused_redirect().has_value(), location);
    CHECK(refused.refused_redirect()->error.kind == ErrorKind::network);
    CHECK_FALSE(refused.refused_redirect()->may_pass);
    CHECK_FALSE(answer(request, {"HTTP/1.1 200 OK", line}).refused_redirect().has_value());
  }
  for (const char* location : {"https://other/f", "/f", "f", "//other/f"}) {
    const std::string line = fmt::format("Location: {}", location);
    CHECK_FALSE_MESSAGE(answer(request, {"HTTP/2 307", line}).refused_redirect().has_value(), location);
  }
  CHECK_FALSE(answer(kWhole, {"HTTP/1.1 302 Found", "Location: http://other/f"}).refused_redirect().has_value());
}

TEST_CASE("http answer: what is one server's word stays with that server") {
  HttpRequest request = part({0, 4});
  request.url = "http://h:1/api?x";
  request.stays_home = true;
  for (const char* location :
       {"http://h/api", "http://h:12/api", "https://h:1/api", "//evil/api", "/\\evil/api", "\\\\evil/api", "http:evil",
        "http://h:1@evil/", "http:\\\\evil", "http://evil/http://h:1/"}) {
    const std::string line = fmt::format("Location: {}", location);
    CHECK_MESSAGE(answer(request, {"HTTP/1.1 302 Found", line}).refused_redirect().has_value(), location);
  }
  for (const char* location : {"/api/2", "http://h:1/api/2?u=http://evil/", "main?cursor=a:b", "/a:b"}) {
    const std::string line = fmt::format("Location: {}", location);
    CHECK_FALSE_MESSAGE(answer(request, {"HTTP/1.1 302 Found", line}).refused_redirect().has_value(), location);
  }
  const std::string secret = "Location: http://evil/?signature=" + std::string(5000, 's');
  const auto refused = answer(request, {"HTTP/1.1 302 Found", secret}).refused_redirect();
  REQUIRE(refused.has_value());
  CHECK(refused->error.message.find("signature") == std::string::npos);
  CHECK(refused->error.message.size() < 600);
}

TEST_CASE("http answer: a secret goes by https, or to this machine") {
  for (const char* url : {"https://huggingface.co", "HTTPS://h", "http://127.0.0.1:80", "http://127.1.2.3/x",
                          "http://localhost", "http://LOCALHOST:1/", "http://[::1]:8080/", "http://me:x@127.0.0.1/"})
    CHECK_MESSAGE(format::is_private_line(url), url);
  for (const char* url : {"http://mirror.local", "http://127.evil.org", "http://localhost.evil.org", "http://10.0.0.1",
                          "http://127.0.0.1@evil.org/", "http://127.0.0.1.evil/", "ftp://localhost", "localhost", "",
                          "http://[::1].evil", "http://evil\\@127.0.0.1/"})
    CHECK_FALSE_MESSAGE(format::is_private_line(url), url);
}

TEST_CASE("http answer: what headers say of the whole file") {
  constexpr std::string_view kMd5 = "Content-MD5: XUFAKrxLKna5cZ2REBfFkg==";  // of "hello"
  constexpr std::string_view kMd5Hex = "5d41402abc4b2a76b9719d911017c592";
  HttpAnswer whole = answer(kWhole, {"HTTP/1.1 200 OK", kMd5});
  CHECK_FALSE(whole.judge(200).has_value());
  REQUIRE(whole.response().declared.has_value());
  CHECK(whole.response().declared->kind == format::HashKind::md5);
  CHECK(whole.response().declared->hex == kMd5Hex);

  // Of a part it is the part's, or by some servers the file's.
  const HttpRequest request = part({0, 4});
  HttpAnswer some = answer(request, {"HTTP/1.1 206 x", "Content-Range: bytes 0-3/5", kMd5});
  CHECK_FALSE(some.judge(206).has_value());
  CHECK_FALSE(some.response().declared.has_value());
  CHECK(some.response().has_part_md5);
  HttpAnswer all = answer(request, {"HTTP/1.1 206 x", "Content-Range: bytes 0-3/4", kMd5});
  CHECK_FALSE(all.judge(206).has_value());
  CHECK(all.response().declared.has_value());

  const std::string sha256 = "X-Checksum-Sha256: " + std::string(64, 'A');
  HttpAnswer best = answer(request, {"HTTP/1.1 206 x", "Content-Range: bytes 0-3/5",
                                     "x-checksum-md5: 5d41402abc4b2a76b9719d911017c592", sha256});
  CHECK_FALSE(best.judge(206).has_value());
  CHECK(best.response().declared->kind == format::HashKind::sha256);
  CHECK(best.response().declared->hex == std::string(64, 'a'));
  HttpAnswer encoded = answer(kWhole, {"HTTP/1.1 200 OK", kMd5, "Content-Encoding: gzip"});
  CHECK_FALSE(encoded.judge(200).has_value());
  CHECK_FALSE(encoded.response().declared.has_value());
  HttpAnswer before = answer(kWhole, {"HTTP/1.1 302 Found", kMd5, "Location: /x", "HTTP/1.1 200 OK"});
  CHECK_FALSE(before.judge(200).has_value());
  CHECK_FALSE(before.response().declared.has_value());
}

TEST_CASE("content digest: the forms of servers, and nothing of what is not such a form") {
  using format::content_digest;
  using format::HashKind;
  const std::string kHello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
  const std::string kBase64 = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
  CHECK(content_digest("Repr-Digest", "sha-256=:" + kBase64 + ":")->hex == kHello);
  CHECK(content_digest("repr-digest", "md5=:XUFAKrxLKna5cZ2REBfFkg==:, sha-256=:" + kBase64 + ":")->hex == kHello);
  CHECK(content_digest("Digest", "SHA-256=" + kBase64)->kind == HashKind::sha256);
  CHECK(content_digest("x-amz-checksum-sha256", kBase64)->hex == kHello);
  CHECK(content_digest("x-goog-hash", "crc32c=mnG7TA==, md5=XUFAKrxLKna5cZ2REBfFkg==")->kind == HashKind::md5);
  CHECK(content_digest("x-ms-blob-content-md5", "XUFAKrxLKna5cZ2REBfFkg==")->kind == HashKind::md5);
  CHECK(content_digest("X-Checksum-Sha1", "AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D")->hex.starts_with("aaf4c6"));
  CHECK(content_digest("X-Checksum-Sha512", std::string(128, '0'))->kind == HashKind::sha512);
  for (const auto& [name, value] : std::initializer_list<std::pair<std::string, std::string>>{
           {"Content-Digest", "sha-256=:" + kBase64 + ":"},  // of the part that is sent
           {"x-amz-checksum-sha256", kBase64 + "-5"},        // of parts
           {"x-amz-checksum-crc32", "AAAAAA=="},
           {"x-checksum-", kHello},
           {"x-checksum-sha256", kHello.substr(1)},
           {"x-checksum-sha256", std::string(64, 'g')},
           {"x-checksum-sha2567", kHello},
           {"Repr-Digest", ""},
           {"Repr-Digest", "sha-256"},
           {"Repr-Digest", "sha-256=:"},
           {"Repr-Digest", "sha-256=::"},
           {"Repr-Digest", "sha-256=:" + std::string(44, '=') + ":"},
           {"Repr-Digest", "sha-256=:" + std::string(44, '!') + ":"},
           {"Content-MD5", "====" + std::string(20, 'A')},
           {"ETag", kHello}})
    CHECK_FALSE_MESSAGE(content_digest(name, value).has_value(), name, ": ", value);
  for (const auto& [kind, hex] : std::initializer_list<std::pair<HashKind, std::string>>{
           {HashKind::sha256, kHello},
           {HashKind::sha1, "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"},
           {HashKind::md5, "5d41402abc4b2a76b9719d911017c592"}}) {
    format::ContentHash hash(kind);
    hash.update(std::as_bytes(std::span("he", 2)));
    hash.update(std::as_bytes(std::span("llo", 3)));
    CHECK(hash.finish_hex() == hex);
  }
}

TEST_CASE("answer pace: a byte now and then is too slow, what comes in time is not, nor what we wait for ourselves") {
  using format::AnswerPace;
  const AnswerPace::Clock::time_point begin{};
  const auto at = [&](double seconds) {
    return begin + std::chrono::duration_cast<AnswerPace::Clock::duration>(std::chrono::duration<double>(seconds));
  };
  AnswerPace drip(30);
  bool keeps_up = true;
  double now = 0;
  for (; keeps_up && now < 1000; now += 0.4)
    keeps_up = drip.keeps_up(1, at(now));
  CHECK_FALSE(keeps_up);
  CHECK(now < 62);
  AnswerPace modem(30);
  for (int second = 0; second < 3600; ++second)
    CHECK(modem.keeps_up(2000, at(second)));
  AnswerPace limited(30);
  CHECK(limited.keeps_up(1, at(0)));
  limited.paused(std::chrono::seconds(600));
  CHECK(limited.keeps_up(1, at(600)));
}

}  // namespace dspack::http_answer_test
