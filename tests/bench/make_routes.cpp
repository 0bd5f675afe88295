// Writes a trace of made-up routes (docs/traces.md) and prints how its locality compares with published figures.
//   make_routes PROFILE FILE.jsonl [--tokens N] [--layers N] [--seed N] [--known PERCENT]
// PROFILE: weak, middle or strong. --known: also what a policy would miss that sees the hidden state behind the routes,
// with slots for so many of the experts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "format/file_system.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/trace/route_recorder.h"
#include "runtime/replay/simulate.h"
#include "tests/bench/hidden_state_policy.h"
#include "tests/bench/route_generator.h"

namespace dspack::bench {
namespace {

// DeepSeek-V3: three FP8 matrices of 2048 x 7168, and a scale in FP32 for each block of 128 x 128.
constexpr uint64_t kExpertBytes = 3 * (uint64_t{2048} * 7168 + uint64_t{16} * 56 * 4);
constexpr uint32_t kFirstLayer = 3;

struct Options {
  const RouteProfile* profile = nullptr;
  std::string_view file;
  uint64_t tokens = 1500;
  uint64_t layers = 58;
  uint64_t seed = 1;
  uint64_t known = 0;  // percent
};

// Measures one layer: what share of uses an LRU of so many slots would have hit, and more.
class Locality {
 public:
  static constexpr std::array<uint32_t, 5> kSlots = {16, 32, 64, 96, 128};

  Locality(uint32_t experts, uint64_t warm_up, uint64_t tokens)
      : first_half_(experts), second_half_(experts), warm_up_(warm_up), half_(tokens / 2) {}

  void add(std::span<const uint16_t> experts) {
    for (const uint16_t expert : experts) {
      const auto at = std::ranges::find(stack_, expert);
      const auto depth = static_cast<uint64_t>(at - stack_.begin());
      if (token_ >= warm_up_) {
        ++uses;
        reused += std::ranges::count(last_, expert);
        for (size_t i = 0; i < kSlots.size(); ++i)
          hits[i] += at != stack_.end() && depth < kSlots[i] ? 1 : 0;
      }
      if (at != stack_.end()) stack_.erase(at);
      stack_.insert(stack_.begin(), expert);
      ++(token_ < half_ ? first_half_ : second_half_)[expert];
    }
    last_.assign(experts.begin(), experts.end());
    ++token_;
  }

  // Of the second half's uses, those of the experts that the first half used most: a sixteenth of all.
  [[nodiscard]] double static_share() const {
    std::vector<uint32_t> order(first_half_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, std::greater<>(), [&](uint32_t i) { return first_half_[i]; });
    uint64_t top = 0;
    for (size_t i = 0; i < order.size() / 16; ++i)
      top += second_half_[order[i]];
    return static_cast<double>(top) / static_cast<double>(std::reduce(second_half_.begin(), second_half_.end()));
  }

  uint64_t uses = 0;
  uint64_t reused = 0;  // by the next token
  std::array<uint64_t, kSlots.size()> hits{};

 private:
  std::vector<uint16_t> stack_, last_;  // used last first
  std::vector<uint64_t> first_half_, second_half_;
  uint64_t warm_up_, half_;
  uint64_t token_ = 0;
};

void print(const std::vector<Locality>& layers) {
  const auto percent = [&](auto count) {
    uint64_t part = 0;
    uint64_t whole = 0;
    for (const Locality& layer : layers) {
      part += count(layer);
      whole += layer.uses;
    }
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  double share = 0;
  for (const Locality& layer : layers)
    share += 100 * layer.static_share() / static_cast<double>(layers.size());
  fmt::print("experts of the previous token again: {:.1f} %\n", percent([](const Locality& l) { return l.reused; }));
  fmt::print("  cited: gpt-oss 18, Kimi K3 29.5, Kimi-Linear 33.6, Qwen 35 and 43, GLM-5.2 41.3\n");
  fmt::print("hits of LRU by share of a layer's experts in slots:\n ");
  for (size_t i = 0; i < Locality::kSlots.size(); ++i)
    fmt::print(" {:.1f} %: {:.1f}", Locality::kSlots[i] / 2.56, percent([i](const Locality& l) { return l.hits[i]; }));
  fmt::print(
      "\n  cited: imp #2061 (first touches among the misses) 18 %: 43.5, 36 %: 62, 54 %: 72"
      "\n         flash-moe 3 %: 49, 6 %: 59, 12.5 %: 68, 25 %: 71; llama.cpp #27861 12.5 %: 67, 25 %: 81, 50 %: 92\n");
  fmt::print("uses by those 6.25 % that were used most in the first half: {:.1f} % (cited: llama.cpp #27861 10 %)\n",
             share);
}

void print_known(const Options& options, const runtime::Workload& workload,
                 const std::vector<std::vector<float>>& lasting) {
  const uint64_t slots = std::max<uint64_t>(1, workload.experts() * options.known / 100);
  const auto misses = [&](runtime::EvictionPolicy&& policy) {
    return static_cast<double>(simulate(workload, slots, policy).misses()) / static_cast<double>(options.tokens);
  };
  const double lru = misses(runtime::LruPolicy());
  const double best = misses(runtime::BeladyPolicy(workload));
  const double known = misses(HiddenStatePolicy(lasting, kFirstLayer, workload.header().layers.front().experts));
  fmt::print("{} slots, misses a token: lru {:.2f}, hidden state known {:.2f}, optimum {:.2f}; gap closed: {:.1f} %\n",
             slots, lru, known, best, 100 * (lru - known) / (lru - best));
}

Result<void> write(const Options& options) {
  RouteShape shape;
  shape.layers = static_cast<uint32_t>(options.layers);
  runtime::RouteHeader header{.model_type = "deepseek_v3", .top_k = shape.top_k, .layers = {}};
  for (uint32_t layer = 0; layer < shape.layers; ++layer)
    header.layers.push_back(
        {.layer = LayerId(kFirstLayer + layer), .experts = shape.experts, .expert_bytes = kExpertBytes});
  runtime::Workload workload(header);
  std::vector<std::vector<float>> lasting;
  TRY_ASSIGN(const auto recorder,
             runtime::RouteRecorder::create(format::posix_file_system(), std::string(options.file), std::move(header)));
  RouteGenerator generator(shape, *options.profile, options.seed);
  std::vector<Locality> layers(shape.layers, Locality(shape.experts, options.tokens / 4, options.tokens));
  for (uint64_t token = 0; token < options.tokens; ++token) {
    const auto routes = generator.next();
    recorder->begin_pass({});
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      const auto experts = routes.subspan(size_t{layer} * shape.top_k, shape.top_k);
      const std::vector<uint32_t> ids(experts.begin(), experts.end());
      TRY(recorder->record(LayerId(kFirstLayer + layer), ids));
      layers[layer].add(experts);
      if (options.known == 0) continue;
      TRY(workload.add(runtime::RoutedLayer{.pass = token,
                                            .phase = runtime::Phase::decode,
                                            .draft_rows = 0,
                                            .layer = LayerId(kFirstLayer + layer),
                                            .ids = ids}));
    }
    if (options.known > 0) lasting.emplace_back(generator.lasting().begin(), generator.lasting().end());
  }
  TRY(recorder->flush());
  print(layers);
  if (options.known > 0) print_known(options, workload, lasting);
  return {};
}

bool parse(std::span<char*> arguments, Options& options) {
  if (arguments.size() < 2) return false;
  for (const RouteProfile& profile : route_profiles()) {
    if (profile.name == arguments[0]) options.profile = &profile;
  }
  options.file = arguments[1];
  for (size_t i = 2; i + 1 < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    const std::string_view text = arguments[i + 1];
    uint64_t* value = name == "--tokens"   ? &options.tokens
                      : name == "--layers" ? &options.layers
                      : name == "--seed"   ? &options.seed
                      : name == "--known"  ? &options.known
                                           : nullptr;
    if (value == nullptr) return false;
    if (std::from_chars(text.data(), text.data() + text.size(), *value).ec != std::errc()) return false;
  }
  return options.profile != nullptr && arguments.size() % 2 == 0 && options.tokens >= 8 && options.layers >= 1 &&
         options.known <= 100;
}

}  // namespace
}  // namespace dspack::bench

int main(int count, char** values) {
  dspack::bench::Options options;
  if (!dspack::bench::parse(std::span(values + 1, static_cast<size_t>(count) - 1), options)) {
    fmt::print(stderr, "make_routes weak|middle|strong FILE.jsonl [--tokens N] [--layers N] [--seed N]\n");
    return 2;
  }
  const auto written = dspack::bench::write(options);
  if (!written) fmt::print(stderr, "make_routes: {}\n", written.error().message);
  return written ? 0 : 1;
}
