#include "format/cli/progress_meter.h"

#include <doctest/doctest.h>

#include <vector>

namespace dspack::format::progress_meter_test {
namespace {

using Time = ProgressMeter::Time;

Time at(double seconds) {
  return Time{} +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

TEST_CASE("progress: what is shown each second while a server is fast, slow, and stalls") {
  ProgressMeter meter;
  meter.start({.what = "packing", .total_bytes = 1'000'000'000, .total_items = 4}, at(0));
  std::vector<std::string> lines;
  for (int second = 1; second <= 12; ++second) {
    if (second <= 4) meter.advance(100'000'000, at(second));  // fast
    if (second == 4) meter.item_done(at(second));
    if (second == 5 || second == 6) meter.advance(1'000'000, at(second));  // slow
    lines.push_back(meter.line(at(second)));
  }
  CHECK(lines == std::vector<std::string>{
                     "packing: 100.0 MB of 1.0 GB, 0 of 4 files, 100.0 MB/s, 9 s left",
                     "packing: 200.0 MB of 1.0 GB, 0 of 4 files, 100.0 MB/s, 8 s left",
                     "packing: 300.0 MB of 1.0 GB, 0 of 4 files, 100.0 MB/s, 7 s left",
                     "packing: 400.0 MB of 1.0 GB, 1 of 4 files, 100.0 MB/s, 6 s left",
                     "packing: 401.0 MB of 1.0 GB, 1 of 4 files, 80.2 MB/s, 7 s left",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, 67.0 MB/s, 9 s left",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, 57.4 MB/s, 10 s left",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, 50.2 MB/s, 12 s left",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, no byte for 3 s",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, no byte for 4 s",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, no byte for 5 s",
                     "packing: 402.0 MB of 1.0 GB, 1 of 4 files, no byte for 6 s",
                 });
}

TEST_CASE("progress: the rate is that of the last seconds") {
  ProgressMeter meter;
  meter.start({.what = "packing", .total_bytes = 10'000'000'000}, at(0));
  for (int second = 1; second <= 60; ++second)
    meter.advance(second <= 50 ? 100'000'000 : 10'000'000, at(second));
  CHECK(meter.line(at(60)) == "packing: 5.1 GB of 10.0 GB, 10.0 MB/s, 8 min 10 s left");
}

TEST_CASE("progress: work without bytes, and without a known size") {
  ProgressMeter meter;
  meter.start({.what = "loading", .total_items = 163, .item = "layers"}, at(0));
  meter.item_done(at(1));
  CHECK(meter.line(at(2)) == "loading: 1 of 163 layers");
  CHECK(meter.line(at(9)) == "loading: 1 of 163 layers, no answer for 8 s");
  meter.start({.what = "opening"}, at(0));
  CHECK(meter.line(at(2)) == "opening: 2 s");
  CHECK(meter.line(at(75)) == "opening: 1 min 15 s");
}

TEST_CASE("progress: items with a rate, and what else there is to say") {
  ProgressMeter meter;
  meter.start({.what = "scoring", .total_items = 400, .item = "tokens"}, at(0));
  CHECK(meter.line(at(1)) == "scoring: 0 of 400 tokens");
  meter.reach(100, "perplexity 3.2", at(10));
  CHECK(meter.line(at(10)) == "scoring: 100 of 400 tokens, 10.0 tokens/s, 30 s left, perplexity 3.2");
  CHECK(meter.line(at(14)) == "scoring: 100 of 400 tokens, no answer for 4 s, perplexity 3.2");
  meter.reach(400, "", at(40));
  CHECK(meter.line(at(40)) == "scoring: 400 of 400 tokens, 10.0 tokens/s");
}

TEST_CASE("progress: what transfers wait for is said where nothing comes, and not before") {
  ProgressMeter meter;
  const ProgressMeter::Wait pause =
      TransferWatch::Wait{.silence_seconds = 12, .retry = 2, .retries = 11, .pause_seconds = 7.6};
  meter.start({.what = "packing", .total_bytes = 1'000'000'000}, at(0));
  meter.advance(500'000'000, at(10));
  CHECK(meter.line(at(11), pause) == "packing: 500.0 MB of 1.0 GB, 45.5 MB/s, 11 s left");
  CHECK(meter.line(at(22), pause) == "packing: 500.0 MB of 1.0 GB, no byte for 12 s, retry 2 of 11 in 8 s");
  const ProgressMeter::Wait attempt =
      TransferWatch::Wait{.silence_seconds = 12, .retry = 2, .retries = 11, .pause_seconds = 0};
  CHECK(meter.line(at(22), attempt) == "packing: 500.0 MB of 1.0 GB, no byte for 12 s, retry 2 of 11");
  const ProgressMeter::Wait first = TransferWatch::Wait{.silence_seconds = 12};
  CHECK(meter.line(at(22), first) == "packing: 500.0 MB of 1.0 GB, no byte for 12 s");
  meter.start({.what = "opening"}, at(0));
  CHECK(meter.line(at(13), pause) == "opening: 13 s, no byte for 12 s, retry 2 of 11 in 8 s");
  CHECK(meter.line(at(13), TransferWatch::Wait{.silence_seconds = 1}) == "opening: 13 s");
}

TEST_CASE("progress: a line is clipped to the terminal, by columns") {
  CHECK(clipped("packing: 1 of 2", 80) == "packing: 1 of 2");
  CHECK(clipped("packing: 1 of 2", 16) == "packing: 1 of 2");
  CHECK(clipped("packing: 1 of 2", 15) == "packing: 1 ...");
  CHECK(clipped("p\u00e4cking: 1 of 2", 6) == "p\u00e4...");
  CHECK(clipped("\u65e5\u672c: 1", 8) == "\u65e5\u672c: 1");
  CHECK(clipped("\u65e5\u672c: 1", 7) == "\u65e5...");
  CHECK(clipped("\u65e5\u672c: 12", 8) == "\u65e5\u672c...");
  CHECK(clipped("packing", 3) == "..");
  CHECK(clipped("packing", 1).empty());
  CHECK(clipped("packing", 0).empty());
}

}  // namespace
}  // namespace dspack::format::progress_meter_test
