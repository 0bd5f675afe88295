#include "reshard/cli/network_options.h"

#include "format/base/size_text.h"
#include "format/cli/output.h"
#include "format/cli/process.h"
#include "format/http/pace.h"
#include "format/packing/grouping.h"

namespace dspack::reshard {
namespace {

// A job has at most two connections, a lent one's included, and three open files.
constexpr unsigned kMaxJobs = 128;

constexpr unsigned kMaxRetries = 1000;

}  // namespace

void add_network_options(CLI::App& verb, NetworkFlags& flags) {
  add_size(verb, "--limit-rate", flags.limit_rate, "Bytes per second over all connections: 20MB, 512KiB, ...");
  verb.add_option("--retries", flags.retries,
                  "Repetitions of a request that fails, counted anew whenever bytes have come; the pauses between them "
                  "grow to a minute")
      ->capture_default_str()
      ->check(CLI::Range(0U, kMaxRetries));
}

format::RemoteOptions remote_options(const NetworkFlags& flags, format::Progress& progress) {
  format::RemoteOptions options = format::remote_options_from_environment();
  options.attempts = flags.retries + 1;
  if (flags.limit_rate != 0) options.rate_limit = std::make_shared<format::RateLimit>(flags.limit_rate);
  options.counters = std::make_shared<format::TransferCounters>();
  options.on_note = [&progress](std::string_view text) { progress.note(text); };
  return options;
}

unsigned default_jobs(bool is_local) {
  constexpr unsigned kFiles = 4;
  constexpr unsigned kConnections = 16;  // a run begins with a few and takes more only where more bring more
  return is_local ? kFiles : kConnections;
}

CLI::Option* add_jobs(CLI::App& verb, unsigned& jobs, const std::string& what) {
  return verb.add_option("--jobs", jobs, what)->capture_default_str()->check(CLI::Range(1U, kMaxJobs));
}

CLI::Validator is_grouping() {
  const auto problem = [](std::string& text) {
    const auto grouping = format::parse_grouping(text);
    return grouping ? std::string() : grouping.error().message;
  };
  return {problem, "", "grouping"};
}

CLI::Option* add_size(CLI::App& verb, const std::string& name, uint64_t& bytes, const std::string& what) {
  const auto read = [&bytes, name](const std::string& text) {
    const auto size = parse_size(text);
    if (!size) throw CLI::ValidationError(name, size.error().message);
    if (*size == 0) throw CLI::ValidationError(name, "0 is too little");
    bytes = *size;
  };
  return verb.add_option_function<std::string>(name, read, what)->type_name("SIZE");
}

}  // namespace dspack::reshard
