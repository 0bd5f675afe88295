#include "runtime/cli/generation_defaults.h"

#include <fmt/format.h>

#include <cmath>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/cli/loading.h"

namespace dspack::runtime {

namespace {

class Reader {
 public:
  Reader(const format::Json& json, std::vector<std::string>& ignored) : json_(json), ignored_(ignored) {}

  void read(const char* key, double least, double most, std::optional<double>& into) {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return;
    const double value = found->is_number() ? found->get<double>() : std::nan("");
    if (value >= least && value <= most) {
      into = value;
    } else {
      ignore(key, *found, fmt::format("no number from {} to {}", least, most));
    }
  }

  void read(const char* key, std::optional<uint32_t>& into) {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return;
    if (found->is_number_unsigned() && found->get<uint64_t>() <= UINT32_MAX) {
      into = static_cast<uint32_t>(found->get<uint64_t>());
    } else {
      ignore(key, *found, "no whole number");
    }
  }

  void ignore(const char* key, const format::Json& value, std::string_view why) {
    ignored_.push_back(fmt::format("generation_config.json: {} is ignored: {} is {}", key, quote(value.dump()), why));
  }

 private:
  const format::Json& json_;
  std::vector<std::string>& ignored_;
};

}  // namespace

Result<GenerationDefaults> parse_generation_defaults(std::string_view text) {
  TRY_ASSIGN(const format::Json json, format::parse_json_file(text, format::kSettingsDocument));
  if (!json.is_object()) return Error{ErrorKind::invalid, "it is no JSON object"};
  GenerationDefaults defaults;
  Reader reader(json, defaults.ignored);
  SamplingFlags& sampling = defaults.sampling;
  constexpr double kLeast = 0.01;
  reader.read("temperature", 0, 100, sampling.temperature);
  reader.read("top_p", kLeast, 1, sampling.top_p);
  reader.read("min_p", 0, 1, sampling.min_p);
  reader.read("repetition_penalty", kLeast, 100, sampling.repetition_penalty);
  reader.read("top_k", sampling.top_k);
  const auto sample = json.find("do_sample");
  const bool said = sample != json.end() && !sample->is_null();
  if (said && !sample->is_boolean()) reader.ignore("do_sample", *sample, "neither true nor false");
  // Without do_sample, a temperature is used (as in vLLM); do_sample alone means temperature 1, as in transformers.
  const bool draws = said && sample->is_boolean() ? sample->get<bool>() : sampling.temperature.has_value();
  if (!draws) sampling.temperature = 0;
  if (!sampling.temperature) sampling.temperature = 1;
  return defaults;
}

std::string describe(const SamplerOptions& options) {
  std::string text = options.temperature == 0 ? "greedy" : fmt::format("temperature {:g}", options.temperature);
  if (options.temperature != 0) {
    if (options.top_k != 0) text += fmt::format(", top-k {}", options.top_k);
    if (options.top_p != 1) text += fmt::format(", top-p {:g}", options.top_p);
    if (options.min_p != 0) text += fmt::format(", min-p {:g}", options.min_p);
  }
  if (options.repetition_penalty != 1) text += fmt::format(", repetition penalty {:g}", options.repetition_penalty);
  return text;
}

Result<SamplerOptions> choose_sampling(format::Repository& files, const SamplingFlags& flags,
                                       const std::stop_token& stop) {
  constexpr char kFile[] = "generation_config.json";
  const auto text = files.read_text(kFile, format::kSettingsDocument.bytes, stop);
  if (!text && text.error().kind != ErrorKind::not_found) return text.error();
  if (!text) return flags.over();
  const auto defaults = parse_generation_defaults(*text);
  if (!defaults) return defaults.error().in(kFile);
  for (const std::string& line : defaults->ignored)
    note(line);
  const SamplerOptions chosen = flags.over(defaults->sampling.over());
  note(fmt::format(
      "sampling: {}{}", describe(chosen),
      chosen.temperature == 0 ? "" : fmt::format(" ({}; --temp 0 is greedy)", flags.temperature ? "--temp" : kFile)));
  return chosen;
}

}  // namespace dspack::runtime
