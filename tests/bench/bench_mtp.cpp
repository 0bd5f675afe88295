// Decoding with and without drafts, everything resident, beside what acceptance and the times of single passes predict.
//
//   bench_mtp DIR TOKEN,TOKEN,... [NEW TOKENS] [ROUNDS] [THREADS]
//
// Each round decodes once in each mode, in turn; medians over the rounds. T(n) is the main model's pass over n new
// tokens with logits, D the module's reading of one position with logits. A step with k drafts should take T(k+1) + k
// D, so
//   predicted ratio = tokens per pass * T(1) / (T(k+1) + k D).
// Seconds of the processor (all threads; the prompt's pass included) are printed beside, for machines that others use.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/generate/loaded_model.h"
#include "runtime/generate/session.h"
#include "runtime/model/mtp.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kMaxDrafts = 3;
constexpr int kRepeats = 60;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

template <class T>
T value_of(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "bench_mtp: {}\n", result.error().message);
  std::exit(1);
}

std::vector<uint32_t> parse_tokens(std::string_view text) {
  std::vector<uint32_t> tokens;
  for (const char* at = text.data(); at < text.data() + text.size(); ++at) {
    uint32_t token = 0;
    at = std::from_chars(at, text.data() + text.size(), token).ptr;
    tokens.push_back(token);
  }
  return tokens;
}

/// Seconds of single passes after the prompt, over tokens of the text that follows it.
struct PassTimes {
  std::vector<double> model;  // [n]: n + 1 tokens
  double module = 0;          // one position
};

PassTimes time_passes(LoadedModel& loaded, const std::vector<uint32_t>& text, size_t prompt) {
  const Model& model = loaded.model();
  const auto& module = dynamic_cast<const MtpModule&>(*loaded.mtp());
  const Engine engine = loaded.engine();
  Sequence sequence = value_of(model.make_sequence(Model::Drafting::mtp));
  const uint32_t vocab = model.config().vocab;
  std::vector<float> logits(size_t{vocab} * (kMaxDrafts + 1));
  std::vector<std::vector<double>> model_seconds(kMaxDrafts + 1);
  std::vector<double> module_seconds;
  const auto append = [&](size_t at, size_t count) {
    return value_of(
        model.forward({.sequence = sequence, .tokens = std::span(text).subspan(at, count)}, engine.scratch, {}));
  };
  const auto catch_up = [&](size_t at, size_t count) {
    return value_of(
        module.catch_up(sequence, engine.scratch, std::span(text).subspan(at, count), MtpHidden::post_norm, {}));
  };
  append(0, prompt);
  catch_up(1, prompt);
  for (int i = 0; i < kRepeats; ++i) {
    const size_t at = prompt + static_cast<size_t>(i) % (text.size() - prompt - kMaxDrafts - 1);
    if (sequence.length() > at) sequence.truncate(static_cast<uint32_t>(prompt));
    while (sequence.length() < at) {
      append(sequence.length(), 1);
      catch_up(sequence.length(), 1);
    }
    for (uint32_t n = kMaxDrafts + 1; n >= 1; --n) {
      const auto start = Clock::now();
      const HiddenStates states = append(at, n);
      engine.picker.logits(states.final, std::span(logits).first(size_t{n} * vocab));
      model_seconds[n - 1].push_back(seconds_since(start));
      if (n > 1) sequence.truncate(static_cast<uint32_t>(at));
    }
    const auto start = Clock::now();
    const kernels::Rows output = catch_up(at + 1, 1);
    module.logits(output, engine.scratch, std::span(logits).first(vocab));
    module_seconds.push_back(seconds_since(start));
  }
  PassTimes times;
  for (auto& seconds : model_seconds)
    times.model.push_back(median(std::move(seconds)));
  times.module = median(std::move(module_seconds));
  return times;
}

struct Mode {
  const char* name;
  std::optional<SpeculationOptions> speculation;
  std::vector<double> rates = {};      // tokens a second, by round
  std::vector<double> processor = {};  // seconds of the processor, prompt included, by round
  double tokens_per_pass = 0;
};

std::vector<uint32_t> decode(LoadedModel& loaded, Mode& mode, const std::vector<uint32_t>& prompt, uint32_t count) {
  const auto drafting = mode.speculation ? Model::Drafting::mtp : Model::Drafting::none;
  Session session(loaded.engine(), value_of(loaded.model().make_sequence(drafting)), mode.speculation);
  Sampler sampler = value_of(Sampler::make({}));
  const std::clock_t start = std::clock();
  const Answer answer = value_of(session.generate(prompt, {.max_tokens = count, .end_tokens = loaded.eos_tokens()},
                                                  sampler, [](uint32_t) { return true; }, {}));
  mode.processor.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  const SessionTimes& times = session.times();
  mode.rates.push_back(static_cast<double>(times.decode_tokens) / times.decode_seconds);
  mode.tokens_per_pass = static_cast<double>(times.decode_tokens) / static_cast<double>(times.decode_passes);
  return answer.tokens;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    fmt::print(stderr, "usage: bench_mtp DIR TOKEN,TOKEN,... [NEW TOKENS] [ROUNDS] [THREADS]\n");
    return 2;
  }
  const auto number = [&](size_t i, int otherwise) {
    return arguments.size() > i ? std::stoi(arguments[i]) : otherwise;
  };
  const std::vector<uint32_t> prompt = parse_tokens(arguments[1]);
  const auto count = static_cast<uint32_t>(number(2, 64));
  LoadOptions options{.context = static_cast<uint32_t>(prompt.size()) + count + 16,
                      .threads = static_cast<unsigned>(number(4, 0)),
                      .instruction_set = {},
                      .speculation = SpeculationOptions{.drafts = 1}};
  CheckpointPlace place =
      make_folder_place(value_of(format::open_repository(arguments[0], {}, format::posix_file_system())));
  auto loaded = value_of(LoadedModel::load(std::make_unique<CheckpointAccess>(std::move(place)), options, {}));
  std::vector<Mode> modes = {{.name = "off", .speculation = std::nullopt},
                             {.name = "1", .speculation = SpeculationOptions{.drafts = 1}},
                             {.name = "2", .speculation = SpeculationOptions{.drafts = 2}},
                             {.name = "3", .speculation = SpeculationOptions{.drafts = 3}},
                             {.name = "auto", .speculation = SpeculationOptions{.drafts = std::nullopt}}};
  std::vector<uint32_t> text = prompt;
  const std::vector<uint32_t> answer = decode(*loaded, modes[0], prompt, count);
  text.insert(text.end(), answer.begin(), answer.end());
  for (Mode& mode : modes) {  // once, so that every expert that is used is resident
    decode(*loaded, mode, prompt, count);
    mode.rates.clear();
    mode.processor.clear();
  }
  for (int round = 0; round < number(3, 15); ++round)
    for (Mode& mode : modes)
      if (decode(*loaded, mode, prompt, count) != answer) {
        fmt::print(stderr, "bench_mtp: --mtp {} says something else\n", mode.name);
        return 1;
      }
  if (text.size() <= prompt.size() + kMaxDrafts + 1) {
    fmt::print(stderr, "bench_mtp: the answer is too short to measure\n");
    return 1;
  }
  const PassTimes times = time_passes(*loaded, text, prompt.size());
  fmt::print("{}; {} tokens follow {}\n", loaded->device().description(), answer.size(), prompt.size());
  for (uint32_t n = 0; n < times.model.size(); ++n)
    fmt::print("T({}) = {:.3f} ms, {:.2f} T(1)\n", n + 1, 1e3 * times.model[n], times.model[n] / times.model[0]);
  fmt::print("D = {:.3f} ms, {:.2f} T(1)\n", 1e3 * times.module, times.module / times.model[0]);
  const double plain = median(modes[0].rates);
  const double plain_processor = median(modes[0].processor);
  for (const Mode& mode : modes) {
    const double rate = median(mode.rates);
    fmt::print("--mtp {:4}: {:8.1f} tokens/s, {:.2f} tokens a pass, {:.2f} of off ({:.2f} by processor time)",
               mode.name, rate, mode.tokens_per_pass, rate / plain, plain_processor / median(mode.processor));
    if (mode.speculation && mode.speculation->drafts) {
      const uint32_t k = *mode.speculation->drafts;
      fmt::print("; predicted {:.2f}", mode.tokens_per_pass * times.model[0] / (times.model[k] + k * times.module));
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run({argv + 1, argv + argc});
}
