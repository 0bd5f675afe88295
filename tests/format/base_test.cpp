#include <doctest/doctest.h>

#include <atomic>
#include <set>

#include "format/base/parallel.h"
#include "format/base/result.h"
#include "format/base/seconds.h"
#include "format/base/size.h"

namespace dspack::base_test {

using namespace dspack;

namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error{ErrorKind::invalid, "odd"};
  return number / 2;
}

Result<int> quarter(int number) {
  TRY_ASSIGN(const int once, half(number));
  TRY(half(once));
  return half(once);
}

}  // namespace

TEST_CASE("result: an error passes through TRY and TRY_ASSIGN") {
  CHECK(quarter(8).value() == 2);
  CHECK(quarter(7).error().message == "odd");
  CHECK(quarter(6).error().kind == ErrorKind::invalid);
  CHECK(quarter(7).error().in("here").message == "here: odd");
}

TEST_CASE("checked: sums and products report overflow") {
  constexpr uint64_t kMax = ~0ULL;
  CHECK(checked_add(kMax - 1, 1) == kMax);
  CHECK_FALSE(checked_add(kMax, 1));
  CHECK(checked_mul(1ULL << 32, 1ULL << 31) == 1ULL << 63);
  CHECK_FALSE(checked_mul(1ULL << 32, 1ULL << 32));
  CHECK(checked_mul(0, kMax) == 0);
  CHECK(round_up(4097, 4096) == 8192);
  CHECK(round_up(4096, 4096) == 4096);
  CHECK(ceil_div(576, 128) == 5);
  CHECK(ceil_div(~0ULL, 2) == 1ULL << 63);
  CHECK(ceil_div(4, ~0ULL) == 1);
  CHECK(ceil_div(0, ~0ULL) == 0);
}

TEST_CASE("jobs: every job runs once, on any number of threads") {
  for (const unsigned threads : {1U, 3U, 16U}) {
    std::vector<std::atomic<int>> runs(100);
    const auto done = run_jobs(100, threads,
                               [&](uint64_t i, const std::stop_token&) {
                                 ++runs[i];
                                 return Result<void>();
                               },
                               {});
    CHECK(done.has_value());
    for (const auto& count : runs)
      CHECK(count == 1);
  }
  CHECK(run_jobs(0, 4, [](uint64_t, const std::stop_token&) { return Result<void>(); }, {}).has_value());
}

TEST_CASE("jobs: the first error stops the rest and is returned, not the cancellations it causes") {
  std::atomic<int> runs{0};
  const auto job = [&](uint64_t i, const std::stop_token& stop) -> Result<void> {
    ++runs;
    if (i == 3) return Error{ErrorKind::network, "job 3"};
    while (i < 3 && !stop.stop_requested())
      std::this_thread::yield();
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "told to stop"};
    return {};
  };
  const auto done = run_jobs(1000, 4, job, {});
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().message == "job 3");
  CHECK(runs < 1000);
}

TEST_CASE("jobs: a stop request from outside is a cancellation") {
  std::stop_source source;
  const auto job = [&](uint64_t i, const std::stop_token&) -> Result<void> {
    if (i == 5) source.request_stop();
    return {};
  };
  const auto done = run_jobs(1000, 2, job, source.get_token());
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().kind == ErrorKind::cancelled);
}

TEST_CASE("sizes: in words, three digits") {
  for (const auto& [bytes, words] : std::initializer_list<std::pair<uint64_t, const char*>>{{0, "0 B"},
                                                                                            {999, "999 B"},
                                                                                            {1000, "1.00 kB"},
                                                                                            {20'432'000'000, "20.4 GB"},
                                                                                            {9'996'000, "10.0 MB"},
                                                                                            {999'499, "999 kB"},
                                                                                            {999'500, "1.00 MB"},
                                                                                            {UINT64_MAX, "18.4 EB"}}) {
    CHECK(size_words(bytes) == words);
  }
  CHECK(exact_size_words(1) == "1 byte");
  CHECK(exact_size_words(999) == "999 bytes");
  CHECK(exact_size_words(15'174'734) == "15.2 MB (15174734 bytes)");
}

TEST_CASE("seconds: in words, as long as it was") {
  for (const auto& [seconds, words] : std::initializer_list<std::pair<double, const char*>>{{-1, "0.0 s"},
                                                                                            {0.26, "0.3 s"},
                                                                                            {59.4, "59.4 s"},
                                                                                            {59.6, "1 min 00 s"},
                                                                                            {123, "2 min 03 s"},
                                                                                            {3'900, "1 h 05 min"},
                                                                                            {273'600, "3 days 4 h"}}) {
    CHECK(duration_words(seconds) == words);
  }
  CHECK_FALSE(duration_words(1e300).empty());
}

TEST_CASE("sizes: whole numbers with decimal and binary units, and nothing else") {
  CHECK(parse_size("0").value() == 0);
  CHECK(parse_size("4096").value() == 4096);
  CHECK(parse_size("7B").value() == 7);
  CHECK(parse_size("500MB").value() == 500'000'000);
  CHECK(parse_size("5GB").value() == 5'000'000'000);
  CHECK(parse_size("5gb").value() == 5'000'000'000);
  CHECK(parse_size("2kB").value() == 2000);
  CHECK(parse_size("4GiB").value() == 4ULL << 30);
  CHECK(parse_size("1KB").value() + parse_size("1KiB").value() == 2024);
  CHECK(parse_size("3g").value() == 3ULL << 30);
  CHECK(parse_size("2TB").value() == 2'000'000'000'000);
  CHECK(parse_size("18446744073709551615").value() == UINT64_MAX);
  CHECK(parse_size("5.8GB").value() == 5'800'000'000);
  CHECK(parse_size("0.5k").value() == 512);
  CHECK(parse_size("1.5GiB").value() == 3ULL << 29);
  CHECK(parse_size("2.000001TB").value() == 2'000'001'000'000);
  CHECK(parse_size("1.001KB").value() == 1001);
  for (const char* text : {"1.5", "1.5B", "1.GB", ".5GB", "1.0000001GB", "1.5.5GB", "1. 5GB", "1.-5GB"}) {
    CAPTURE(text);
    CHECK(parse_size(text).error().message.find("is no size") != std::string::npos);
  }
  CHECK(parse_size("18446744.9TB").error().message.find("more than any disk") != std::string::npos);
  for (const char* text : {"", "GB", "5 GB", "1,5GB", "-1", "+1", "5GBs", "0x10", "5iB"}) {
    CAPTURE(text);
    CHECK(parse_size(text).error().message.find("is no size") != std::string::npos);
  }
  for (const char* text : {"18446744073709551616", "18446745TB", "99999999TiB"}) {
    CAPTURE(text);
    CHECK(parse_size(text).error().message.find("more than any disk") != std::string::npos);
  }
}

}  // namespace dspack::base_test
