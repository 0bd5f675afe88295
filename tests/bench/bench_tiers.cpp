// Decoding and prefill on a GPU whose memory holds some of the experts, the rest in the host's memory or on a disk,
// beside what cannot be done without; experts are made up (tiers_experts.h), of a released model's shape.
//
//   bench_tiers [--shape v3|lite|count|tiny] [--layers N] [--vram 50,25,12] [--ram 100,40] [--disk FOLDER] ...
//
// Wrong usage lists all flags. Shares are of the experts of all layers; V3's four layers take 45 GB of the host's
// memory, fewer are taken where there is less. --ram 100: what the GPU lacks is in memory. Less: so many are, the rest
// is read from a file in --disk, past the page cache; without --disk these cases are left out, which is said. Each case
// decodes the same tokens (route_generator.h) after a warm-up that fills the tiers from memory. Between the layers'
// experts stand matrix products that take --attention microseconds, beside them a shared expert; a forecast names three
// quarters of the next layer's top k, --forecast of them rightly.
//   bound      of the same passes (schedule.h): all but routed experts, and for each layer max(compute of hits,
//              transfer of misses, the CPU's part) + the last miss
//   late       on their way to the GPU when they were wanted
//   RAM %      of what the GPU lacked, in the host's memory
//   of link    bytes of misses that were copied / time that the bound counts as transfer, in % of the link's rate; low:
//              it is not the link that the transfers waited for
//   wait       the GPU stood still for experts
// Prefill: limit = max(compute, bytes copied / link rate, bytes read / disk rate). Compute: the routed experts of one
// layer for the same tokens with all of them in the GPU's memory, the shortest of the rounds, times the layers.
// --device cpu: the CPU in the place of a GPU, which copies nothing while it computes: to try the program with.
// Link and disk rate are measured at the start, nothing else running. Status 77: no GPU, nothing was measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/system_memory.h"
#include "tests/bench/tiers_options.h"
#include "tests/bench/tiers_tables.h"

namespace dspack::bench {
namespace {

constexpr int kNoGpu = 77;
constexpr double kDecodeGoal = 1.10, kPrefillGoal = 1.15;

uint64_t slots_of(const ModelShape& shape, double share) {
  return static_cast<uint64_t>(std::lround(share * static_cast<double>(shape.experts())));
}

// As many layers as the shape has, or as device and host have memory for; where one does not say, it has.
uint32_t layers_that_fit(const TierBenchOptions& options, const kernels::Device& device) {
  if (options.layers > 0) return options.layers;
  const auto room_in = [](uint64_t bytes, double share) {
    return bytes == 0 ? std::numeric_limits<double>::infinity() : share * static_cast<double>(bytes);
  };
  const auto system = runtime::read_system_memory();
  const double room = room_in(system ? system->available_bytes : 0, 0.7);
  const double card = room_in(device.memory().free_bytes, 0.85);
  const double layer = static_cast<double>(options.shape.expert_bytes()) * options.shape.routes.experts;
  uint32_t layers = options.shape.routes.layers;
  while (layers > 1 && (layers * layer * std::ranges::max(options.vram) > card ||
                        layers * layer * std::ranges::max(options.ram) > room))
    --layers;
  return layers;
}

/// Largest first: the cases of which everything is in memory share it.
std::vector<uint64_t> ram_slots(const TierBenchOptions& options) {
  std::vector<uint64_t> slots;
  for (const double share : options.ram)
    if (share >= 1 || !options.disk.empty()) slots.push_back(slots_of(options.shape, share));
  std::ranges::sort(slots, std::greater<>());
  return slots;
}

/// The largest ratio of all cases; nullopt: there were none.
std::optional<double> measure_decode(TierRunner& runner, const TierBenchOptions& options, const TierRates& rates) {
  std::optional<double> worst;
  print_decode_heading();
  for (const uint64_t ram : ram_slots(options)) {
    for (const double vram : options.vram) {
      for (const runtime::PrefetchMode prefetch : options.prefetch) {
        for (const runtime::MissMode miss : options.miss) {
          const TierCase what{.vram = slots_of(options.shape, vram), .ram = ram, .miss = miss, .prefetch = prefetch};
          const double ratio = print_decode(options.shape, what, runner.decode(what), options.tokens, rates);
          worst = std::max(worst.value_or(0), ratio);
        }
      }
    }
  }
  return worst;
}

std::optional<double> measure_prefill(TierRunner& runner, const TierBenchOptions& options, const TierRates& rates) {
  std::optional<double> worst;
  const double compute = runner.prefill_compute_seconds();
  print_prefill_heading();
  for (const uint64_t ram : ram_slots(options)) {
    const TierCase what{
        .vram = slots_of(options.shape, std::ranges::min(options.vram)), .ram = ram, .miss = runtime::MissMode::move};
    const double ratio = print_prefill(options.shape, what, runner.prefill(what, options.rounds), compute, rates);
    worst = std::max(worst.value_or(0), ratio);
  }
  return worst;
}

void print_goal(const char* what, const std::optional<double>& worst, double goal) {
  if (worst) fmt::print("{}: the largest ratio of all cases is {:.3f} (wanted: at most {:.2f})\n", what, *worst, goal);
}

std::unique_ptr<kernels::Device> device_of(const TierBenchOptions& options) {
  if (options.is_cpu) return required(kernels::make_cpu_device({.threads = options.threads, .instruction_set = {}}));
  auto device = kernels::load_cuda_device(options.library, options.cuda);
  if (device) return std::move(*device);
  const bool no_gpu = device.error().kind == ErrorKind::not_found;
  fmt::print(stderr, "{}: bench_tiers measured nothing: {}\n", no_gpu ? "SKIPPED" : "FAILED", device.error().message);
  std::exit(no_gpu ? kNoGpu : 1);
}

void print_setting(const TierBenchOptions& options, const kernels::Device& device, const kernels::Device& host) {
  const ModelShape& shape = options.shape;
  if (options.is_cpu) fmt::print("NO GPU: the CPU plays one; no figure is a GPU's\n");
  fmt::print("{}; {}; precision {}{}\n", device.description(), host.description(), to_string(options.cuda.precision),
             options.quick ? "; QUICK: tiny sizes, no figure means anything" : "");
  fmt::print(
      "{}: {} layers of {} experts of {:.2f} MB, {:.1f} GB in all; top {}; routes: {}; {} tokens after {}, {} "
      "rounds; a prompt of {}\n",
      shape.name, shape.routes.layers, shape.routes.experts, 1e-6 * static_cast<double>(shape.expert_bytes()),
      1e-9 * static_cast<double>(shape.expert_bytes() * shape.experts()), shape.routes.top_k, options.profile->name,
      options.tokens, options.warm_tokens, options.rounds, options.prompt);
}

TierRates measure_rates(TierRunner& runner, const TierBenchOptions& options, const GeneratedExperts& experts) {
  TierRates rates{.link = runner.link_rate()};
  fmt::print("link: {:.2f} GB/s from pinned memory; between layers {:.1f} us of products\n", 1e-9 * rates.link,
             1e6 * runner.attention_seconds());
  if (options.disk.empty()) {
    if (std::ranges::any_of(options.ram, [](double share) { return share < 1; }))
      fmt::print("LEFT OUT: cases that read a disk: there is no --disk\n");
    return rates;
  }
  rates.disk = runner.disk_rate();
  fmt::print("disk: {:.2f} GB/s {}, {} experts are written\n", 1e-9 * rates.disk,
             experts.is_direct() ? "past the page cache" : "THROUGH THE PAGE CACHE (it has no direct reads)",
             experts.written_experts());
  return rates;
}

void measure(TierBenchOptions options) {
  const auto device = device_of(options);
  const auto host = required(kernels::make_cpu_device({.threads = options.threads, .instruction_set = {}}));
  options.shape.routes.layers = layers_that_fit(options, *device);
  print_setting(options, *device, *host);
  const bool has_disk = !options.disk.empty();
  GeneratedExperts experts(options.shape, has_disk ? options.disk : std::filesystem::temp_directory_path(),
                           has_disk ? options.disk_experts : 0);
  TierRunner runner(*device, *host, experts,
                    {.shape = options.shape,
                     .profile = options.profile,
                     .attention_seconds = 1e-6 * options.attention_us,
                     .warm_tokens = options.warm_tokens,
                     .tokens = options.tokens,
                     .rounds = options.rounds,
                     .prompt = options.prompt,
                     .forecast_right = options.forecast_right});
  const TierRates rates = measure_rates(runner, options, experts);
  std::optional<double> decode, prefill;
  if (options.wants("decode")) decode = measure_decode(runner, options, rates);
  if (options.wants("prefill")) prefill = measure_prefill(runner, options, rates);
  fmt::print("\npinned: {:.1f} GB in {:.1f} s\n", 1e-9 * static_cast<double>(runner.pinned().bytes()),
             runner.pinned().seconds());
  print_goal("decode", decode, kDecodeGoal);
  print_goal("prefill", prefill, kPrefillGoal);
}

}  // namespace
}  // namespace dspack::bench

int main(int argc, char** argv) {
  const auto options = dspack::bench::parse_tier_options(argc, argv);
  try {
    dspack::bench::measure(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "FAILED: bench_tiers: {}\n", error.what());
    return 1;
  }
  return 0;
}
