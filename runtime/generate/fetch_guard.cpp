#include "runtime/generate/fetch_guard.h"

#include <fmt/format.h>

#include "format/base/seconds.h"
#include "format/base/size.h"

namespace dspack::runtime {

namespace {

// Shorter reads end before a line about them is read.
constexpr uint64_t kWorthALine = 1'000'000'000;  // bytes
constexpr double kWorthASecondLook = 2;          // seconds

}  // namespace

std::string outlook_line(const FetchOutlook& outlook, uint64_t tokens, std::optional<double> rate) {
  const std::optional<double> seconds = rate ? std::optional(static_cast<double>(outlook.bytes) / *rate) : std::nullopt;
  if (outlook.bytes < kWorthALine && seconds.value_or(0) < kWorthASecondLook) return {};
  std::string line = fmt::format("reading about {} of experts for {} tokens", size_words(outlook.bytes), tokens);
  if (seconds) line += fmt::format(", {} at {}/s", duration_words(*seconds), size_words(static_cast<uint64_t>(*rate)));
  if (outlook.network_bytes > 0) {
    line += fmt::format("; {} over the network, then kept on disk", size_words(outlook.network_bytes));
  }
  return line;
}

Result<void> check_outlook(const FetchOutlook& outlook, uint64_t tokens, std::optional<uint64_t> most) {
  if (!most || outlook.bytes <= *most) return {};
  return Error{ErrorKind::budget,
               fmt::format("the {} tokens of the prompt are expected to read {} of experts, more than --max-fetch "
                           "allows ({}); shorten the prompt or allow more",
                           tokens, size_words(outlook.bytes), size_words(*most))};
}

Result<void> FetchGuard::begin_prompt(uint64_t tokens) {
  StreamedStore* const store = loaded_.experts().store();
  if (store == nullptr) return {};  // every expert is in memory
  const Model& model = loaded_.model();
  const FetchOutlook outlook = store->begin_prompt({.layers = {model.layer_map().begin(), model.layer_map().end()},
                                                    .top_k = model.config().top_k,
                                                    .tokens = tokens,
                                                    .chunk = model.max_rows()});
  TRY(check_outlook(outlook, tokens, store->max_fetch()));
  if (const std::string line = outlook_line(outlook, tokens, store->bytes_per_second()); !line.empty()) {
    say_(line);
  }
  return {};
}

}  // namespace dspack::runtime
