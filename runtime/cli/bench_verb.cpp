#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "kernels/cpu/cpu_peak.h"
#include "runtime/bench/bench.h"
#include "runtime/budget/core_share.h"
#include "runtime/budget/read_trial.h"
#include "runtime/budget/system_memory.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxTokens = 1U << 26U;
constexpr uint32_t kMaxRepetitions = 1000;
constexpr uint64_t kMaxBenchTextBytes = 1ULL << 30;
constexpr uint64_t kLeastPeakBytes = 16ULL << 20;
constexpr double kReadSeconds = 1;
constexpr uint32_t kRepeatedPositions = 512;

constexpr char kExamples[] = R"(Examples:
  dsrun bench ./ds-packed                       a prompt of 512 tokens, an answer of 128; five times each
  dsrun bench ./ds-packed -p 64,512,2048 -n 0   prompts alone
  dsrun bench ./ds-packed -p 0 -n 64 --depth 0,1024,8192 --precision bf16 \
      --device cpu
  dsrun bench ./ds-packed --ram 8GB --text book.txt -r 3 -o json > starved.json

pp512 reads 512 tokens at once, tg128 speaks 128 one after the other, @ d1024 after 1,024 others. Each test runs once
unmeasured (--no-warmup leaves that out), so experts that memory has room for are there already. The floor is what the
tokens need of memory, arithmetic and disk, over rates that are measured in the same run. Random tokens pick experts more
evenly than real text does: with a model larger than memory use --text.)";

/// Measures the CPU's limits, before the model takes memory. Empty if a GPU is requested.
Result<MachineLimits> measure_limits(const LoadOptions& load) {
  if (load.device.kind == DeviceKind::cuda) return MachineLimits{};
  TRY_ASSIGN(const SystemMemory memory, read_system_memory());
  kernels::PeakEffort effort;
  effort.bytes = std::clamp(memory.available_bytes / 8, kLeastPeakBytes, effort.bytes);
  TRY_ASSIGN(const kernels::CpuPeak peak, kernels::measure_cpu_peak({.threads = load.threads,
                                                                     .instruction_set = load.instruction_set,
                                                                     .precision = load.device.precision_on(false)},
                                                                    effort));
  return MachineLimits{.bytes = peak.bytes_per_second,
                       .operations = peak.operations_per_second,
                       .exact_operations = peak.exact_operations_per_second};
}

/// Measures the rate at which experts are read, if a test had to read any.
Result<double> measure_fetching(LoadedModel& loaded, const std::vector<BenchResult>& results,
                                const std::stop_token& stop) {
  const bool has_fetched = std::ranges::any_of(results, [](const BenchResult& r) { return r.work.fetched > 0; });
  const ModelConfig& config = loaded.model().config();
  if (!has_fetched || loaded.checkpoint().experts().empty()) return 0.0;
  TRY_ASSIGN(const auto device, kernels::make_cpu_device({}));
  TRY_ASSIGN(const ReadTimes reads, time_reads(*device, loaded.access().weights(), expert_shape(config),
                                               loaded.model().layer_map(), config.top_k, kReadSeconds, stop));
  return reads.rate();
}

/// The tokens of the tests: from the text file, or random.
Result<std::vector<uint32_t>> read_bench_text(LoadedModel& loaded, const BenchVerbOptions& options, uint64_t positions,
                                              const std::stop_token& stop) {
  if (options.text_file.empty()) return random_text(positions, loaded.model().config().vocab);
  TRY_ASSIGN(const std::string text,
             format::read_text(format::posix_file_system(), options.text_file, kMaxBenchTextBytes));
  TRY_ASSIGN(const TextModel model, load_text(loaded, {}, stop));
  TRY_ASSIGN(std::vector<uint32_t> tokens, model.encode_raw(text));
  if (tokens.size() >= positions) return tokens;
  return Error{ErrorKind::invalid, fmt::format("{}: its {} tokens are fewer than the {} that the longest test reads; "
                                               "take a longer text or shorter tests",
                                               options.text_file, tokens.size(), positions)};
}

uint64_t bytes_of(const format::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    if (!tensor.is_alias) bytes += tensor.range.size();
  }
  return bytes;
}

Result<std::vector<BenchResult>> run_cases(LoadedModel& loaded, const BenchVerbOptions& options,
                                           const std::vector<BenchCase>& cases, const std::stop_token& stop) {
  const uint64_t positions = std::ranges::max(cases, {}, &BenchCase::positions).positions();
  TRY_ASSIGN(std::vector<uint32_t> text, read_bench_text(loaded, options, positions, stop));
  TRY_ASSIGN(Session session, loaded.start_session());
  Bench bench(loaded, session,
              {.repetitions = options.repetitions,
               .warms_up = !options.no_warmup,
               .text = std::move(text),
               .computed_depth = options.repeats_depth ? kRepeatedPositions : 0});
  const uint64_t turns = options.repetitions + (options.no_warmup ? 0 : 1);
  uint64_t all = 0;
  for (const BenchCase& test : cases)
    all += turns * test.tokens;
  format::TerminalProgress progress;
  progress.started({.what = "benchmark", .total_items = all, .item = "tokens"});
  uint64_t before = 0;
  std::vector<BenchResult> results;
  for (const BenchCase& test : cases) {
    TRY_ASSIGN(BenchResult result,
               bench.run(
                   test, [&](uint64_t done) { progress.reached(before + done, test.name()); }, stop));
    results.push_back(std::move(result));
    before += turns * test.tokens;
  }
  progress.finished();
  return results;
}

Result<int> run_bench(const BenchVerbOptions& options, format::Process& process) {
  const std::stop_token stop = process.stop();
  const std::vector<BenchCase> cases = bench_cases(options.prompts, options.answers, options.depths);
  const uint64_t positions = std::ranges::max(cases, {}, &BenchCase::positions).positions();
  LoadOptions load = options.load;
  if (!load.context) load.context = static_cast<uint32_t>(positions);
  TRY_ASSIGN(MachineLimits limits, measure_limits(load));
  TRY_ASSIGN(auto loaded, load_model(options.folder, load, stop));
  if (loaded->chosen().is_gpu()) limits = {};
  const CoreShare cores;
  TRY_ASSIGN(std::vector<BenchResult> results, run_cases(*loaded, options, cases, stop));
  const std::optional<double> core_share = cores.so_far();
  TRY_ASSIGN(limits.fetched, measure_fetching(*loaded, results, stop));
  const ExpertStoreStats stats = loaded->experts().stats();
  std::string drafting;
  if (loaded->mtp() != nullptr) {
    const auto& drafts = load.speculation->drafts;
    drafting = drafts ? std::to_string(*drafts) : "if it pays";
  }
  const BenchReport report{.model = options.folder,
                           .model_bytes = bytes_of(loaded->checkpoint()),
                           .device = std::string(loaded->device().description()),
                           .precision = loaded->chosen().precision(),
                           .context = loaded->model().context(),
                           .experts = loaded->checkpoint().experts().size(),
                           .slots = stats.slots,
                           .drafting = drafting,
                           .text = (options.text_file.empty() ? "random tokens" : options.text_file) +
                                   std::string(options.repeats_depth ? ", depths repeat their first 512" : ""),
                           .limits = limits,
                           .core_share = core_share,
                           .results = std::move(results)};
  if (options.as_json) {
    format::print_json(to_json(report).dump(2) + "\n");
  } else {
    format::print_out(to_markdown(report));
  }
  return 0;
}

Result<std::vector<uint32_t>> parse_counts(const std::vector<std::string>& words) {
  std::vector<uint32_t> counts;
  for (const std::string& word : words) {
    TRY_ASSIGN(const uint64_t count, format::parse_count(word, 0, kMaxTokens));
    counts.push_back(static_cast<uint32_t>(count));
  }
  return counts;
}

void add_counts(format::OptionTable& table, const std::string& name, std::vector<uint32_t>& into,
                const std::string& about) {
  table.words(
      name, "N,...",
      [&into](const std::vector<std::string>& words) -> Result<void> {
        TRY_ASSIGN(into, parse_counts(words));
        return {};
      },
      about, ',');
}

void add_bench_options(format::OptionTable& table, BenchVerbOptions& options) {
  table.explain("Measures how fast a model reads prompts and speaks, beside what the machine could do.");
  table.footer(kExamples);
  add_folder(table, options.folder);
  table.heading("Tests");
  add_counts(table, "-p,--n-prompt", options.prompts, "Tokens of a prompt; 0: none (default: 512)");
  add_counts(table, "-n,--n-gen", options.answers, "Tokens of an answer; 0: none (default: 128)");
  add_counts(table, "-d,--depth", options.depths, "Positions before them (default: 0)");
  table.flag("--repeat-depth", options.repeats_depth,
             "Compute 512 of these positions and repeat what the cache holds of them: deep contexts in seconds");
  table.add("-r,--repetitions", "N", options.repetitions, format::between(1U, kMaxRepetitions),
            "Times that each test is measured (default: 5)");
  table.flag("--no-warmup", options.no_warmup, "Do not run each test once before it is measured");
  table.add("--text", "FILE", options.text_file, "What is read (default: random tokens)");
  table.add("-o,--output", "md|json", options.as_json, format::one_of<bool>({{"md", false}, {"json", true}}),
            "Tables in Markdown (default), or JSON");
  add_draft_options(table, options.drafts);
  options.load.device.precision.reset();  // --precision auto
  add_model_options(table, options.load, "Positions that there is room for (default: what the longest test takes)");
  add_route_options(table, options.load);
}

}  // namespace

Result<void> BenchVerbOptions::complete() {
  load.speculation = drafts.chosen();
  const std::vector<BenchCase> cases = bench_cases(prompts, answers, depths);
  if (cases.empty()) return invalid("-p and -n leave no test; give one of them a number above 0");
  if (repeats_depth && load.speculation) {
    return invalid(
        "--repeat-depth and drafts: the MTP module needs positions that were computed; leave out one of them");
  }
  const uint64_t positions = std::ranges::max(cases, {}, &BenchCase::positions).positions();
  if (load.context && *load.context < positions) {
    return invalid(fmt::format("--ctx {}: the longest test takes {} positions", *load.context, positions));
  }
  return check_model_options(load);
}

format::Verb bench_verb() {
  return format::make_verb("bench", "Measure tokens per second, beside what the machine could do", add_bench_options,
                           run_bench);
}

}  // namespace dspack::runtime
