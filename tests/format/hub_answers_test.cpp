#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>

#include "format/hub/answers.h"

namespace dspack::hub_answers_test {

using namespace dspack;
using format::LfsAction;

namespace {

const std::string kSha(64, 'a');
const std::string kOther(64, 'b');
const std::string kBlob(40, 'c');

format::Digest digest(const std::string& hex) {
  return format::parse_digest(hex).value();
}

}  // namespace

TEST_CASE("hub answers: a repository without a commit, and one that hides whether it is private") {
  CHECK(format::read_repository_info(R"({"private":true,"sha":null})").value().head.empty());
  CHECK(format::read_repository_info(R"({"private":true,"sha":")" + kBlob + R"("})").value().is_private);
  CHECK_FALSE(format::read_repository_info(R"({"sha":"0123456"})").has_value());
  CHECK_FALSE(format::read_repository_info(R"({"private":false,"sha":"main"})").has_value());
}

TEST_CASE("hub answers: every file asked for has its mode, in the order of asking") {
  const std::string text = R"({"files":[{"path":"b","uploadMode":"regular","shouldIgnore":true},)"
                           R"({"path":"a","uploadMode":"lfs","shouldIgnore":false,"oid":"x"},)"
                           R"({"path":"c","uploadMode":"lfs"}]})";
  const auto modes = format::read_preupload(text, {"a", "b"}).value();
  CHECK((modes[0].large && !modes[0].ignored));
  CHECK((!modes[1].large && modes[1].ignored));
  CHECK(format::read_preupload(text, {"d"}).error().message.find("no uploadMode for d") != std::string::npos);
  CHECK_FALSE(format::read_preupload(R"({"files":[{"path":"a","uploadMode":"xet"}]})", {"a"}).has_value());
}

TEST_CASE("hub answers: an object without actions is stored, one with an error is refused") {
  const std::string text = R"({"transfer":"basic","objects":[{"oid":")" + kOther +
                           R"(","size":1,"error":{"code":422,"message":"too large"}},{"oid":")" + kSha +
                           R"(","size":1,"actions":{"upload":{"href":"https://s3/x?sig=1","header":{"X-A":"b"}},)"
                           R"("verify":{"href":"https://hub/verify"}}}]})";
  const auto objects = format::read_batch(text, {digest(kSha), digest(kOther)}).value();
  REQUIRE(objects[0].upload.has_value());
  CHECK(objects[0].upload->href == "https://s3/x?sig=1");
  CHECK(objects[0].verify->href == "https://hub/verify");
  CHECK(objects[1].refusal == "too large");
  const auto stored = format::read_batch(R"({"objects":[{"oid":")" + kSha + R"(","size":1}]})", {digest(kSha)}).value();
  CHECK_FALSE(stored[0].upload.has_value());
  CHECK(stored[0].refusal.empty());
  CHECK_FALSE(format::read_batch(R"({"objects":[]})", {digest(kSha)}).has_value());
}

TEST_CASE("hub answers: actions that could do harm are refused") {
  for (const char* action :
       {R"({})", R"({"href":1})", R"({"href":"file:///etc/passwd"})", R"({"href":"https://x\r\nHost: y"})",
        R"({"href":"https://x","header":[]})", R"({"href":"https://x","header":{"A":"b\r\nC: d"}})",
        R"({"href":"https://x","header":{"A b":"c"}})", R"({"href":"https://x","header":{"A":null}})",
        R"({"href":"https://x","header":{"content-Length":"9"}})", R"({"href":"https://x","header":{"Host":"evil"}})",
        R"({"href":"https://x","header":{"Transfer-Encoding":"chunked"}})",
        R"({"href":"https://x","header":{"Proxy-Authorization":"x"}})"}) {
    CAPTURE(action);
    const std::string text =
        fmt::format(R"({{"objects":[{{"oid":"{}","size":1,"actions":{{"upload":{}}}}}]}})", kSha, action);
    const auto objects = format::read_batch(text, {digest(kSha)});
    REQUIRE_FALSE(objects.has_value());
    CHECK(objects.error().kind == ErrorKind::invalid);
  }
  CHECK_FALSE(format::read_batch(R"({"transfer":"xet","objects":[]})", {}).has_value());
}

TEST_CASE("hub answers: bytes stay on https, and only the Hub says whether they have come") {
  const std::string hub = "https://hub";
  const auto fits = [&](const char* upload, const char* verify, const std::string& endpoint, const char* part) {
    format::LfsObject object{.oid = digest(kSha), .upload = {}, .verify = {}, .refusal = {}};
    object.upload = LfsAction{upload, {{"1", part}, {"X-Forwarded", "http://x"}}};
    object.verify = LfsAction{verify, {}};
    return format::check_places(object, endpoint).has_value();
  };
  CHECK(fits("https://s3/x", "https://hub/verify", hub, "https://s3/1"));
  CHECK_FALSE(fits("http://s3/x", "https://hub/verify", hub, "https://s3/1"));
  CHECK_FALSE(fits("https://s3/x", "https://hub/verify", hub, "http://s3/1"));
  CHECK_FALSE(fits("https://s3/x", "http://hub/verify", hub, "https://s3/1"));
  CHECK_FALSE(fits("https://s3/x", "https://evil/verify", hub, "https://s3/1"));
  CHECK_FALSE(fits("https://s3/x", "https://hub.evil/verify", hub, "https://s3/1"));
  // A Hub of one's own without https, and a mirror whose answers name the official host.
  CHECK(fits("http://s3/x", "http://me:8/verify", "http://me:8", "http://s3/1"));
  CHECK(fits("https://s3/x", "https://huggingface.co/verify", "http://me:8", "https://s3/1"));
  CHECK_FALSE(fits("http://s3/x", "http://me:9/verify", "http://me:8", "http://s3/1"));
}

TEST_CASE("multipart: parts are ordered by number, cover the file and nothing else") {
  LfsAction action{.href = "https://hub/complete", .header = {{"chunk_size", "4"}}};
  for (int part = 12; part >= 1; --part)
    action.header.emplace_back(std::to_string(part), fmt::format("https://s3/{}", part));
  const auto way = format::upload_way(action, 45).value();
  REQUIRE(way.multipart);
  REQUIRE(way.parts.size() == 12);
  for (size_t i = 0; i < way.parts.size(); ++i) {
    CHECK(way.parts[i].url == fmt::format("https://s3/{}", i + 1));
    CHECK(way.parts[i].range.begin == i * 4);
    CHECK(way.parts[i].range.end == std::min<uint64_t>(45, i * 4 + 4));
  }
  CHECK(way.headers.empty());
  // Padded numbers are numbers.
  CHECK(
      format::upload_way({"https://hub/c", {{"chunk_size", "8"}, {"00001", "https://s3/1"}}}, 8).value().parts.size() ==
      1);
}

TEST_CASE("multipart: parts that do not fit the file are refused") {
  using Header = std::vector<std::pair<std::string, std::string>>;
  const std::string url = "https://s3/p";
  for (const Header& header :
       {Header{{"chunk_size", "0"}, {"1", url}}, Header{{"chunk_size", "x"}, {"1", url}},
        Header{{"chunk_size", "-4"}, {"1", url}}, Header{{"chunk_size", "4"}, {"1", url}}, Header{{"chunk_size", "8"}},
        Header{{"chunk_size", "8"}, {"2", url}}, Header{{"chunk_size", "8"}, {"0", url}},
        Header{{"chunk_size", "8"}, {"1", url}, {"2", url}}, Header{{"chunk_size", "8"}, {"1", url}, {"01", url}},
        Header{{"chunk_size", "1"}, {"1", url}}, Header{{"chunk_size", "8"}, {"99999999999999999999", url}},
        Header{{"chunk_size", "18446744073709551615"}, {"1", url}}, Header{{"chunk_size", "5368709121"}, {"1", url}},
        Header{{"chunk_size", "18446744073709551615"}, {"1", url}, {"2", url}}}) {
    CAPTURE(header.size());
    const auto way = format::upload_way({"https://hub/complete", header}, 8);
    REQUIRE_FALSE(way.has_value());
    CHECK(way.error().kind == ErrorKind::invalid);
  }
  // One byte a part of a terabyte: counted, not built.
  CHECK_FALSE(format::upload_way({"https://hub/complete", {{"chunk_size", "1"}}}, 1ULL << 40).has_value());
}

TEST_CASE("upload in one piece: the whole file, with the headers that the storage wants") {
  const auto way = format::upload_way({"https://s3/x", {{"x-amz-checksum", "abc"}}}, 10).value();
  CHECK_FALSE(way.multipart);
  REQUIRE(way.parts.size() == 1);
  CHECK(way.parts[0].range.end == 10);
  CHECK(way.headers == std::vector<std::string>{"x-amz-checksum: abc"});
}

TEST_CASE("hub answers: pull requests, page by page; plain discussions are passed over") {
  const std::string pull = R"({"num":3,"title":"t","status":"draft","isPullRequest":true})";
  const std::string talk = R"({"num":2,"title":"t","status":"open","isPullRequest":false})";
  const auto first =
      format::read_pull_requests(R"({"discussions":[)" + pull + "," + talk + R"(],"count":3,"start":0})").value();
  REQUIRE(first.pull_requests.size() == 1);
  CHECK(first.pull_requests[0].revision() == "refs/pr/3");
  CHECK(first.pull_requests[0].unfinished());
  CHECK_FALSE(first.is_last);
  CHECK(format::read_pull_requests(R"({"discussions":[)" + pull + R"(],"count":3,"start":2})").value().is_last);
  CHECK(format::read_pull_requests(R"({"discussions":[],"count":99,"start":0})").value().is_last);  // or it never ends
  CHECK_FALSE(format::read_pull_requests(R"({"discussions":[{"num":-3}],"count":1})").has_value());
  CHECK(format::read_opened(R"({"num":7})").value() == 7);
  CHECK_FALSE(format::read_opened(R"({"num":0})").has_value());
  CHECK_FALSE(format::read_commit(R"({"commitOid":"../../x"})").has_value());
}

}  // namespace dspack::hub_answers_test
