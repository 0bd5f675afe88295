#include "runtime/cli/generation_options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string_view>

#include "format/base/foreign_text.h"

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
constexpr uint32_t kMostDrafts = 16;

Result<DraftOptions> parse_drafts(std::string_view text) {
  if (text == "off") return DraftOptions{};
  if (text == "auto") return DraftOptions{.is_on = true, .speculation = {}};
  const auto count = format::between(1U, kMostDrafts)(text);
  if (count) return DraftOptions{.is_on = true, .speculation = {.drafts = *count}};
  return invalid(fmt::format("{} is none of off, auto and 1 to {}", quote(text), kMostDrafts));
}

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
             "Draft K tokens with the model's MTP module; auto: as many as pay; off (default). Greedy text stays the "
             "same");
  table.dev("mtp-hidden", "post-norm|pre-norm|auto", drafts.speculation.hidden,
            format::one_of<std::optional<MtpHidden>>(
                {{"post-norm", MtpHidden::post_norm}, {"pre-norm", MtpHidden::pre_norm}, {"auto", std::nullopt}}),
            "hidden state that the module reads: post-norm (default), pre-norm, or auto: what fits the text");
}

}  // namespace dspack::runtime
