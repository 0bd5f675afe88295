#include "runtime/validation/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "format/base/check.h"
#include "format/base/foreign_text.h"
#include "runtime/validation/module_names.h"

namespace dspack::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ratio(double error, double reference) {
  if (error == 0) return 0;
  return reference == 0 ? kInfinity : error / reference;
}

// logit - log_sum_exp(logits) is the logarithm of its probability.
double log_sum_exp(std::span<const double> logits) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits)
    sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

size_t likeliest(std::span<const double> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

using format::Json;

std::string number(double value) {
  if (value == 0) return "0";
  return std::isfinite(value) ? fmt::format("{:.2e}", value) : "-";
}

std::string relative(const std::optional<ErrorSums>& sums) {
  if (!sums) return "";
  if (sums->other_rows) return "other rows";
  return sums->not_a_number > 0 ? "NaN" : number(sums->relative());
}

std::string line(const ComparedModule& found, size_t width) {
  const auto of_output = [&](auto value) { return found.output ? number(value(*found.output)) : ""; };
  std::string text = fmt::format("{:<{}} {:>6} {:>10} {:>10} {:>10} {:>10}", brief(found.module), width, found.rows,
                                 relative(found.output), of_output([](const ErrorSums& sums) { return sums.nmse(); }),
                                 of_output([](const ErrorSums& sums) { return sums.largest; }), relative(found.input));
  if (found.output_departs() || found.input_departs()) text += "  <";
  if (found.tokens_routed_otherwise > 0)
    text += fmt::format(" {} tokens chose other experts", found.tokens_routed_otherwise);
  text.resize(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

// Locates the error of a module whose input already departs: inside the enclosing module, after the module that
// finished just before, which agrees.
std::string where(const ComparedModule& found, const ComparedModule* before) {
  std::string text;
  if (const std::string around = enclosing_module(found.module); !around.empty()) {
    text += fmt::format(" within {},", brief(around));
  }
  if (before != nullptr) text += fmt::format(" after {}, which agrees,", brief(before->module));
  return fmt::format("the error arises{} and before this", text);
}

std::string why(const ComparedModule& found, const ComparedModule* before) {
  if (!found.output_departs()) {
    return fmt::format("{}, by its input: relative error {}, tolerance {}; {}", brief(found.module),
                       relative(found.input), number(found.input_tolerance), where(found, before));
  }
  const std::string text = fmt::format("{}: relative error {}, tolerance {}; ", brief(found.module),
                                       relative(found.output), number(found.output_tolerance));
  if (!found.input) return text + "its input was not recorded";
  if (!found.input_departs()) return text + fmt::format("its input agrees ({})", relative(found.input));
  return text + fmt::format("its input departs as well ({}): {}", relative(found.input), where(found, before));
}

// Entries grouped by reason, each with the first few names.
std::string list(std::string_view title, const std::vector<NotCompared>& entries) {
  constexpr size_t kShown = 4;
  if (entries.empty()) return "";
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const NotCompared& entry : entries)
    by_reason[entry.reason].push_back(entry.name);
  std::string text = fmt::format("not compared, {}: {}\n", title, entries.size());
  for (const auto& [reason, names] : by_reason) {
    text += fmt::format("  {}:", brief(reason));
    for (size_t i = 0; i < std::min(kShown, names.size()); ++i)
      text += fmt::format("{} {}", i == 0 ? "" : ",", brief(names[i]));
    if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
    text += "\n";
  }
  return text;
}

Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const ErrorSums& sums, double tolerance) {
  return {{"relative_error", finite(sums.relative())},
          {"nmse", finite(sums.nmse())},
          {"max_abs", sums.largest},
          {"values", sums.values},
          {"not_a_number", sums.not_a_number},
          {"other_rows", sums.other_rows},
          {"tolerance", tolerance}};
}

Json to_json(const std::vector<NotCompared>& entries) {
  Json list = Json::array();
  for (const NotCompared& entry : entries)
    list.push_back({{"name", entry.name}, {"reason", entry.reason}, {"departs", entry.departs}});
  return list;
}

// The module in which the error arises, as far as the recording shows.
Json arises_within(const ComparedModule* first) {
  if (first == nullptr) return nullptr;
  return first->input_departs() ? enclosing_module(first->module) : first->module;
}

}  // namespace

void ErrorSums::add(std::span<const double> got, std::span<const double> wanted) {
  DSPACK_CHECK(got.size() == wanted.size(), "values beside another number of values");
  values += got.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i] && !std::isfinite(got[i])) continue;  // equal infinities
    if (!std::isfinite(got[i]) || !std::isfinite(wanted[i])) {
      not_a_number += std::isnan(got[i]) && std::isnan(wanted[i]) ? 0 : 1;
      continue;
    }
    const double difference = std::abs(got[i] - wanted[i]);
    error += difference;
    reference += std::abs(wanted[i]);
    error_squares += difference * difference;
    reference_squares += wanted[i] * wanted[i];
    largest = std::max(largest, difference);
  }
}

double ErrorSums::relative() const {
  return not_a_number > 0 || other_rows ? kInfinity : ratio(error, reference);
}

double ErrorSums::nmse() const {
  return not_a_number > 0 || other_rows ? kInfinity : ratio(error_squares, reference_squares);
}

void LogitAgreement::add(std::span<const double> logits, std::span<const double> wanted) {
  const double ours = log_sum_exp(logits);
  const double theirs = log_sum_exp(wanted);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = wanted[i] - theirs;
    if (log_p == -kInfinity) continue;  // 0 * log 0
    sum += std::exp(log_p) * (log_p - (logits[i] - ours));
  }
  sum = std::max(sum, 0.0);  // rounding can make the sum of equal rows negative
  ++rows;
  divergence += sum;
  largest_divergence = std::max(largest_divergence, sum);
  same_top += likeliest(logits) == likeliest(wanted) ? 1 : 0;
}

const ComparedModule* Comparison::first_departure() const {
  const auto by_output = std::ranges::find_if(modules, &ComparedModule::output_departs);
  if (by_output != modules.end()) return &*by_output;
  const auto by_input = std::ranges::find_if(modules, &ComparedModule::input_departs);
  return by_input == modules.end() ? nullptr : &*by_input;
}

bool Comparison::within_tolerance() const {
  return first_departure() == nullptr && std::ranges::none_of(only_in_reference, &NotCompared::departs);
}

double default_tolerance(Dtype dtype) {
  constexpr double kFull = 1e-4;
  constexpr double kHalf = 0.125;
  return dtype == Dtype::bf16 || dtype == Dtype::f16 ? kHalf : kFull;
}

std::string report_text(const Comparison& comparison) {
  size_t width = 6;
  for (const ComparedModule& found : comparison.modules)
    width = std::max(width, brief(found.module).size());
  std::string text = fmt::format("{:<{}} {:>6} {:>10} {:>10} {:>10} {:>10}\n", "module", width, "rows", "rel. error",
                                 "NMSE", "max abs", "its input");
  for (const ComparedModule& found : comparison.modules)
    text += line(found, width);
  text += "\n";
  if (const auto& logits = comparison.logits) {
    text += fmt::format("logits: KL divergence {} on average, {} at most (nats); top-1 agreement {} of {}\n",
                        number(logits->divergence / static_cast<double>(logits->rows)),
                        number(logits->largest_divergence), logits->same_top, logits->rows);
  }
  text += list("in the recording only", comparison.only_in_reference);
  text += list("computed here only", comparison.only_here);
  const ComparedModule* first = comparison.first_departure();
  if (first != nullptr) {
    const ComparedModule* before = first == comparison.modules.data() ? nullptr : first - 1;
    text += fmt::format("first to depart: {}\n", why(*first, before));
  } else if (!comparison.within_tolerance()) {
    text += "departs: other experts were chosen\n";
  } else {
    text += fmt::format("all {} modules agree\n", comparison.modules.size());
  }
  return text;
}

Json report_json(const Comparison& comparison) {
  Json modules = Json::array();
  for (const ComparedModule& found : comparison.modules) {
    Json entry = {{"module", found.module}, {"rows", found.rows}, {"departs", found.output_departs()}};
    if (found.input) entry["input"] = to_json(*found.input, found.input_tolerance);
    if (found.output) entry["output"] = to_json(*found.output, found.output_tolerance);
    if (found.tokens_routed_otherwise > 0) entry["tokens_routed_otherwise"] = found.tokens_routed_otherwise;
    modules.push_back(std::move(entry));
  }
  const ComparedModule* first = comparison.first_departure();
  Json json = {{"within_tolerance", comparison.within_tolerance()},
               {"first_departure", first == nullptr ? Json(nullptr) : Json(first->module)},
               {"arises_within", arises_within(first)},
               {"modules", std::move(modules)},
               {"only_in_recording", to_json(comparison.only_in_reference)},
               {"only_computed_here", to_json(comparison.only_here)}};
  if (const auto& logits = comparison.logits) {
    json["logits"] = {{"rows", logits->rows},
                      {"kl_mean", finite(logits->divergence / static_cast<double>(logits->rows))},
                      {"kl_max", finite(logits->largest_divergence)},
                      {"top1_agreement", logits->same_top}};
  }
  return json;
}

}  // namespace dspack::runtime
