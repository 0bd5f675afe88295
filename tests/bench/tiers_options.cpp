#include "tests/bench/tiers_options.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>

namespace dspack::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_tiers [--cuda-library FILE] [--device N|cpu] [--precision exact|split|bf16|fp8] [--shape "
    "v3|lite|count|tiny]\n"
    "                   [--layers N] [--vram 50,25,12] [--ram 100,40] [--disk FOLDER] [--disk-experts N]\n"
    "                   [--miss move,compute,auto] [--prefetch off,on,auto] [--forecast PERCENT RIGHT]\n"
    "                   [--routes weak|middle|strong] [--tokens N] [--warm N] [--rounds N] [--prompt N]\n"
    "                   [--attention MICROSECONDS] [--threads N] [--only decode,prefill] [--quick]\n";

// DeepSeek-V3; DeepSeek-V2-Lite, stored as V3 is; V3's number of experts, each small, so that any machine counts what
// is hit and copied; and one that an emulated GPU manages.
constexpr std::array<ModelShape, 4> kShapes = {
    {{"v3", 7168, 2048, {.layers = 4, .experts = 256, .top_k = 8, .groups = 8, .top_groups = 4}},
     {"lite", 2048, 1408, {.layers = 4, .experts = 64, .top_k = 6, .groups = 1, .top_groups = 1}},
     {"count", 128, 128, {.layers = 4, .experts = 256, .top_k = 8, .groups = 8, .top_groups = 4}},
     {"tiny", 128, 128, {.layers = 2, .experts = 8, .top_k = 2, .groups = 1, .top_groups = 1}}}};

[[noreturn]] void wrong_usage() {
  (void)std::fputs(kUsage, stderr);
  std::exit(2);
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream from(list);
  for (std::string word; std::getline(from, word, ',');)
    words.push_back(word);
  if (words.empty()) wrong_usage();
  return words;
}

double number_of(const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least && value <= most)) wrong_usage();
  return value;
}

uint32_t count_of(const std::string& text, uint32_t least = 1) {
  return static_cast<uint32_t>(number_of(text, least, 1e6));
}

std::vector<double> shares_of(const std::string& list) {
  std::vector<double> shares;
  for (const std::string& word : words_of(list))
    shares.push_back(number_of(word, 0, 100) / 100);
  return shares;
}

/// Of some values with names, the one of this name.
template <class T, class Values>
T named(const std::string& name, const Values& values, auto&& name_of) {
  const auto found = std::ranges::find_if(values, [&](const T& value) { return name == name_of(value); });
  if (found == std::end(values)) wrong_usage();
  return *found;
}

template <class T>
std::vector<T> all_named(const std::string& list, std::initializer_list<T> values) {
  std::vector<T> chosen;
  for (const std::string& word : words_of(list))
    chosen.push_back(named<T>(word, values, [](T value) { return to_string(value); }));
  return chosen;
}

const RouteProfile* profile_named(const std::string& name) {
  const auto found = std::ranges::find(route_profiles(), name, &RouteProfile::name);
  if (found == route_profiles().end()) wrong_usage();
  return &*found;
}

bool take_measured(TierBenchOptions& options, const std::string& flag, const std::string& value) {
  using runtime::MissMode;
  using runtime::PrefetchMode;
  if (flag == "--shape") {
    options.shape = named<ModelShape>(value, kShapes, [](const ModelShape& shape) { return shape.name; });
  } else if (flag == "--layers") {
    options.layers = count_of(value);
  } else if (flag == "--vram") {
    options.vram = shares_of(value);
  } else if (flag == "--ram") {
    options.ram = shares_of(value);
  } else if (flag == "--disk") {
    options.disk = value;
  } else if (flag == "--disk-experts") {
    options.disk_experts = count_of(value);
  } else if (flag == "--miss") {
    options.miss = all_named(value, {MissMode::move, MissMode::compute, MissMode::automatic});
  } else if (flag == "--prefetch") {
    options.prefetch = all_named(value, {PrefetchMode::off, PrefetchMode::on, PrefetchMode::automatic});
  } else if (flag == "--routes") {
    options.profile = profile_named(value);
  } else {
    return false;
  }
  return true;
}

bool take_course(TierBenchOptions& options, const std::string& flag, const std::string& value) {
  if (flag == "--forecast") {
    options.forecast_right = number_of(value, 0, 100) / 100;
  } else if (flag == "--tokens") {
    options.tokens = count_of(value);
  } else if (flag == "--warm") {
    options.warm_tokens = count_of(value);
  } else if (flag == "--rounds") {
    options.rounds = count_of(value);
  } else if (flag == "--prompt") {
    options.prompt = count_of(value);
  } else if (flag == "--attention") {
    options.attention_us = number_of(value, 0, 1e6);
  } else if (flag == "--threads") {
    options.threads = count_of(value);
  } else if (flag == "--only") {
    options.sections = words_of(value);
    if (std::ranges::any_of(options.sections, [](const auto& word) { return word != "decode" && word != "prefill"; }))
      wrong_usage();
  } else {
    return false;
  }
  return true;
}

bool take_device(TierBenchOptions& options, const std::string& flag, const std::string& value) {
  if (flag == "--cuda-library") {
    options.library = value;
  } else if (flag == "--device" && value == "cpu") {
    options.is_cpu = true;
  } else if (flag == "--device") {
    options.cuda.index = count_of(value, 0);
  } else if (const auto precision = kernels::parse_precision(value); flag == "--precision" && precision) {
    options.cuda.precision = *precision;
  } else {
    return false;
  }
  return true;
}

// Everything is gone through once, nothing is measured.
void make_quick(TierBenchOptions& options) {
  options.quick = true;
  options.shape = kShapes.back();
  options.tokens = 1;
  options.warm_tokens = 1;
  options.rounds = 1;
  options.prompt = 4;
  options.threads = 2;
  options.attention_us = 1;
  options.vram = {0.25};
  options.prefetch = {runtime::PrefetchMode::on};
}

}  // namespace

bool TierBenchOptions::wants(std::string_view section) const {
  return std::ranges::find(sections, section) != sections.end();
}

TierBenchOptions parse_tier_options(int argc, char** argv) {
  using runtime::MissMode;
  using runtime::PrefetchMode;
  TierBenchOptions options{.shape = kShapes.front(),
                           .vram = {0.50, 0.25, 0.12},
                           .ram = {1.0, 0.40},
                           .miss = {MissMode::move, MissMode::compute, MissMode::automatic},
                           .prefetch = {PrefetchMode::off, PrefetchMode::on},
                           .profile = profile_named("middle")};
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::ranges::find(words, "--quick") != words.end()) make_quick(options);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--quick") continue;
    if (i + 1 == words.size()) wrong_usage();
    const std::string& flag = words[i];
    const std::string& value = words[++i];
    if (!take_device(options, flag, value) && !take_measured(options, flag, value) &&
        !take_course(options, flag, value))
      wrong_usage();
  }
  return options;
}

}  // namespace dspack::bench
