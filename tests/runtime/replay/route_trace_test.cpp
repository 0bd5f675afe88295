// Recorded routes, written and read; and what the reader refuses.
#include <fmt/format.h>

#include "runtime/experts/trace/route_reader.h"
#include "runtime/experts/trace/route_recorder.h"
#include "tests/runtime/replay/lab.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::route_trace_test {
namespace {

constexpr char kHeader[] =
    R"({"format":"dspack-routes","version":1,"model_type":"deepseek_v3","top_k":2,)"
    R"("layers":[{"layer":3,"experts":4,"expert_bytes":100},{"layer":5,"experts":4,"expert_bytes":100}]})";

TEST_CASE("routes: what is recorded is read") {
  const test::TempFolder folder;
  const auto path = folder.path() / "routes.jsonl";
  const RouteHeader header = lab::header(2, 4, 2);
  auto recorder = RouteRecorder::create(format::posix_file_system(), path, header);
  REQUIRE(recorder);
  (*recorder)->begin_pass({.phase = Phase::prefill, .rows = 2});
  REQUIRE((*recorder)->record(LayerId(0), std::vector<uint32_t>{0, 1, 3, 2}));
  REQUIRE((*recorder)->record(LayerId(1), std::vector<uint32_t>{1, 0, 0, 1}));
  (*recorder)->begin_pass({.phase = Phase::decode, .rows = 2, .draft_rows = 1});
  REQUIRE((*recorder)->record(LayerId(0), std::vector<uint32_t>{2, 3, 1, 3}));
  (*recorder)->accept_drafts(1);
  REQUIRE((*recorder)->flush());

  auto reader = RouteReader::open(format::posix_file_system(), path);
  REQUIRE(reader);
  CHECK(reader->header() == header);
  std::vector<RouteLine> lines;
  for (;;) {
    const auto line = reader->next();
    REQUIRE(line);
    if (!*line) break;
    lines.push_back(**line);
  }
  REQUIRE(lines.size() == 4);
  CHECK(std::get<RoutedLayer>(lines[0]) ==
        RoutedLayer{.pass = 0, .phase = Phase::prefill, .layer = LayerId(0), .ids = {0, 1, 3, 2}});
  CHECK(std::get<RoutedLayer>(lines[2]) ==
        RoutedLayer{.pass = 1, .draft_rows = 1, .layer = LayerId(0), .ids = {2, 3, 1, 3}});
  CHECK(std::get<AcceptedDrafts>(lines[3]) == AcceptedDrafts{.pass = 1, .rows = 1});
}

TEST_CASE("routes: headers that are refused") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "not a JSON object"},
      {R"({"format":"other"})", "\"format\" is not \"dspack-routes\""},
      {R"({"format":"dspack-routes","version":2})", "version 1"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":0,"layers":[]})", "\"top_k\" is 0"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":1,"layers":[]})", "has 0 entries"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":1,"layers":[3]})", "something else"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":9,)"
       R"("layers":[{"layer":0,"experts":8,"expert_bytes":1}]})",
       "less than top_k"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":1,)"
       R"("layers":[{"layer":0,"experts":70000,"expert_bytes":1}]})",
       "\"experts\" is 70000"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":1,"layers":[)"
       R"({"layer":1,"experts":8,"expert_bytes":1},{"layer":1,"experts":8,"expert_bytes":1}]})",
       "does not ascend"},
      {R"({"format":"dspack-routes","version":1,"model_type":"m","top_k":1,)"
       R"("layers":[{"layer":0,"experts":8,"expert_bytes":1,"by_token":1}]})",
       "\"by_token\""},
  };
  for (const auto& [line, reason] : cases) {
    CAPTURE(line);
    const auto header = parse_route_header(line);
    REQUIRE_FALSE(header);
    CHECK_MESSAGE(header.error().message.find(reason) != std::string::npos, header.error().message);
  }
}

TEST_CASE("routes: lines that are refused, with file and number") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"pass":0,"phase":"decode","layer":4,"ids":[[0,1]]})", "layer 4 is not among the header's"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[]})", "has 0 rows"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[[0]]})", "list of 2 experts"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[[0,4]]})", "names 4; layer 3 has the experts 0 to 3"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[[0,-1]]})", "names -1"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[[1,1]]})", "expert 1 twice"},
      {R"({"pass":0,"phase":"chat","layer":3,"ids":[[0,1]]})", "\"phase\""},
      {R"({"pass":0,"phase":"decode","layer":3,"draft_rows":2,"ids":[[0,1]]})", "\"draft_rows\" is 2"},
      {R"({"pass":-1,"phase":"decode","layer":3,"ids":[[0,1]]})", "pass"},
      {R"({"pass":0,"phase":"decode","layer":3,"ids":[[0,1]])", "line 3"},
      {R"({"pass":8,"accepted_drafts":0})", "not the last one"},
      {"", "line 3"},
  };
  const test::TempFolder folder;
  const std::string good = R"({"pass":0,"phase":"decode","layer":3,"ids":[[0,1]]})";
  for (const auto& [line, reason] : cases) {
    CAPTURE(line);
    folder.write("t.jsonl", fmt::format("{}\n{}\n{}\n", kHeader, good, line));
    auto reader = RouteReader::open(format::posix_file_system(), folder.path() / "t.jsonl");
    REQUIRE(reader);
    REQUIRE(reader->next());
    const auto bad = reader->next();
    REQUIRE_FALSE(bad);
    CHECK_MESSAGE(bad.error().message.find(reason) != std::string::npos, bad.error().message);
    CHECK(bad.error().message.find("t.jsonl: line 3: ") != std::string::npos);
  }
}

TEST_CASE("routes: a cut line, an empty file, passes in the wrong order") {
  const test::TempFolder folder;
  const auto first_error = [&](const std::string& text) -> std::string {
    folder.write("t.jsonl", text);
    auto reader = RouteReader::open(format::posix_file_system(), folder.path() / "t.jsonl");
    if (!reader) return reader.error().message;
    const auto workload = Workload::read(std::move(*reader));
    return workload ? "" : workload.error().message;
  };
  CHECK(first_error("").find("the file is empty") != std::string::npos);
  CHECK(first_error(kHeader).find("line 1: the line does not end") != std::string::npos);
  CHECK(first_error(std::string(kHeader) + "\n").empty());
  const std::string pass0 = R"({"pass":0,"phase":"decode","layer":3,"ids":[[0,1]]})";
  const std::string pass1 = R"({"pass":1,"phase":"decode","layer":3,"ids":[[0,1]]})";
  CHECK(first_error(fmt::format("{}\n{}\n{}", kHeader, pass0, pass1)).find("line 3: the line does not end") !=
        std::string::npos);
  CHECK(first_error(fmt::format("{}\n{}\n{}\n", kHeader, pass1, pass0)).find("less than on the line before") !=
        std::string::npos);
  CHECK(first_error(fmt::format("{}\n{}\n", kHeader, std::string(9U << 20U, ' '))).find("line 2") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::route_trace_test
