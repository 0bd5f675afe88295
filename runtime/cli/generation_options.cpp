#include "runtime/cli/generation_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>
#include <string_view>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/cli/loading.h"

namespace dspack::runtime {
namespace {

// "17:-2.5" or "17:-inf"; a later entry for the same token replaces the earlier one.
bool parse_bias(std::string_view text, std::map<uint32_t, double>& biases) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const char* const middle = text.data() + colon;
  const char* const end = text.data() + text.size();
  uint32_t token = 0;
  double value = 0;
  const auto [id_end, id_error] = std::from_chars(text.data(), middle, token);
  const auto [value_end, value_error] = std::from_chars(middle + 1, end, value);
  if (id_error != std::errc() || id_end != middle || value_error != std::errc() || value_end != end) return false;
  biases[token] = value;
  return true;
}

// Later drafts of a chain are hardly ever accepted; no published result gains from more than a handful.
constexpr uint32_t kMaxDrafts = 16;

Result<DraftOptions> parse_drafts(std::string_view text) {
  if (text == "off") return DraftOptions{};
  if (text == "auto") return DraftOptions{.is_on = true, .speculation = {}};
  const auto count = format::between(1U, kMaxDrafts)(text);
  if (count) return DraftOptions{.is_on = true, .speculation = {.drafts = *count}};
  return invalid(fmt::format("{} is none of off, auto and 1 to {}", quote(text), kMaxDrafts));
}

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

SamplerOptions SamplingFlags::over(SamplerOptions base) const {
  base.temperature = temperature.value_or(base.temperature);
  base.top_k = top_k.value_or(base.top_k);
  base.top_p = top_p.value_or(base.top_p);
  base.min_p = min_p.value_or(base.min_p);
  base.repetition_penalty = repetition_penalty.value_or(base.repetition_penalty);
  base.presence_penalty = presence_penalty.value_or(base.presence_penalty);
  base.frequency_penalty = frequency_penalty.value_or(base.frequency_penalty);
  base.logit_bias = logit_bias;
  base.seed = seed;
  return base;
}

void add_sampling_options(format::OptionTable& table, SamplingFlags& sampler) {
  table.heading("Sampling");
  table.add("--temperature,--temp", "T", sampler.temperature, format::between(0.0, 100.0),
            "Temperature; 0 always takes the likeliest token (default: 0; in a chat on a terminal what "
            "generation_config.json says, here and below)");
  table.add("--top-k", "K", sampler.top_k, format::any_number<uint32_t>(),
            "Choose among the K likeliest tokens (default: 0, all)");
  table.add("--top-p", "P", sampler.top_p, format::between(0.0, 1.0),
            "Choose among the likeliest tokens that make up P (default: 1)");
  table.add("--min-p", "P", sampler.min_p, format::between(0.0, 1.0),
            "Leave out tokens less likely than P times the likeliest (default: 0)");
  table.add("--repetition-penalty", "X", sampler.repetition_penalty, format::between(0.01, 100.0),
            "Make tokens of the prompt and answer less likely; 1 (default) does not, 1.1 is mild");
  table.add("--presence-penalty", "X", sampler.presence_penalty, format::between(-2.0, 2.0),
            "Subtract X from the logits of tokens that the answer holds (default: 0)");
  table.add("--frequency-penalty", "X", sampler.frequency_penalty, format::between(-2.0, 2.0),
            "The same, once for each time that the token occurs (default: 0)");
  const auto take_bias = [&sampler](const std::string& text) -> Result<void> {
    if (parse_bias(text, sampler.logit_bias)) return {};
    return invalid(fmt::format("{} is not ID:VALUE, as 17:-2.5 or 17:-inf", quote(text)));
  };
  table.each("--logit-bias", "ID:VALUE", take_bias,
             "Add VALUE to the logit of token ID; -inf excludes it. May be repeated");
  table.add("--seed", "S", sampler.seed, format::any_number<uint64_t>(), "Seed of the random choice (default: 0)");
}

void add_draft_options(format::OptionTable& table, DraftOptions& drafts) {
  const auto take = [&drafts](const std::string& text) -> Result<void> {
    TRY_ASSIGN(const DraftOptions parsed, parse_drafts(text));
    drafts.is_on = parsed.is_on;
    drafts.speculation.drafts = parsed.speculation.drafts;
    return {};
  };
  table.heading("Drafting");
  table.take("--mtp", "K|auto|off", take,
             "Draft K tokens with the model's MTP module or DSpark stages; auto: if it pays, one, or as many of a block "
             "as pay; off (default). Greedy text stays the same");
  table.dev("mtp-hidden", "post-norm|pre-norm", drafts.speculation.hidden,
            format::one_of<MtpHidden>({{"post-norm", MtpHidden::post_norm}, {"pre-norm", MtpHidden::pre_norm}}),
            "hidden state that the module reads (default: post-norm; DeepSeek-V4's reads its streams)");
}

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
