#include "reshard/cli/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "format/cli/environment.h"
#include "format/compressed/expanding_repository.h"
#include "format/http/pace.h"

namespace dspack::reshard {
namespace {

// A job uses at most two connections, including a lent one, and three open files.
constexpr unsigned kMaxJobs = 128;
constexpr unsigned kMaxRetries = 1000;

constexpr uint64_t kSmallLink = 100'000'000 / 8;  // bytes per second
constexpr uint64_t kLargeLink = 1'000'000'000 / 8;

std::string duration(uint64_t bytes, uint64_t bytes_per_second) {
  const uint64_t seconds = bytes / bytes_per_second;
  if (seconds < 100) return fmt::format("{} s", std::max<uint64_t>(1, seconds));
  if (seconds < uint64_t{100} * 60) return fmt::format("{} min", seconds / 60);
  return fmt::format("{:.1f} h", static_cast<double>(seconds) / 3600);
}

}  // namespace

format::OptionTable::Option add_jobs(format::OptionTable& table, unsigned& jobs, const std::string& what) {
  table.heading("Network and jobs");
  auto option = table.add("--jobs", "N", jobs, format::between(1U, kMaxJobs), what);
  if (jobs != 0) option.shows_default(std::to_string(jobs));
  return option;
}

void add_network_options(format::OptionTable& table, NetworkFlags& flags) {
  table.heading("Network and jobs");
  table.add("--limit-rate", "SIZE", flags.limit_rate, format::parse_some_rate,
            "Bytes per second over all connections: 20MB, 512KiB, ...");
  table.dev("retries", "N", flags.retries, format::between(0U, kMaxRetries),
            "repetitions of a failed request, counted from zero whenever bytes arrive (default: 11); pauses grow to a "
            "minute");
  table.dev("pause", "SECONDS", flags.pause_second, format::between(0.0, 1.0),
            "the length of a second of those pauses, for tests (default: 1)");
}

std::string transfer_words(uint64_t bytes, uint64_t limit_rate, std::string_view what) {
  if (bytes == 0) return "less than a second";
  if (limit_rate != 0) {
    return fmt::format("{} at least, at --limit-rate {}/s", duration(bytes, limit_rate),
                       format::human_bytes(limit_rate));
  }
  return fmt::format("as your {} goes: {} at 100 Mbit/s, {} at 1 Gbit/s", what, duration(bytes, kSmallLink),
                     duration(bytes, kLargeLink));
}

Context make_context(format::Process& process, const NetworkFlags& flags) {
  format::RemoteOptions options = format::remote_options_from_environment();
  options.attempts = flags.retries + 1;
  options.pause_second = flags.pause_second;
  if (flags.limit_rate != 0) options.rate_limit = std::make_shared<format::RateLimit>(flags.limit_rate);
  options.counters = std::make_shared<format::TransferCounters>();
  format::TerminalProgress& progress = process.progress();
  progress.follow(options.counters);
  options.on_note = [&progress](format::NoteKind kind, std::string_view text) { progress.note(kind, text); };
  return {std::move(options), process.stop(), progress};
}

namespace {

Result<Opened> open_both(const std::string& place, unsigned jobs, const Context& context) {
  TRY_ASSIGN(auto repository, open_repository(place, context.remote, format::posix_file_system(), context.stop));
  repository = format::make_expanding_repository(std::move(repository));
  TRY_ASSIGN(auto checkpoint, format::Checkpoint::open(*repository, jobs, context.stop, &context.progress));
  return Opened{std::move(repository), std::move(checkpoint)};
}

}  // namespace

// Can take minutes over a network: it requests the index and the header of every shard.
Result<Opened> open_place(const std::string& place, unsigned jobs, const Context& context) {
  context.progress.started(without_passwords("opening " + place), 0, 0);
  auto opened = open_both(place, jobs, context);
  context.progress.finished();
  return opened;
}

Result<Opened> open_packed(const std::string& place, unsigned jobs, const Context& context) {
  TRY_ASSIGN(Opened opened, open_place(place, jobs, context));
  if (opened.checkpoint.manifest()) return opened;
  return Error{ErrorKind::invalid,
               fmt::format("{}: not a packed repository (it has no {})", place, format::kManifestPath)};
}

Result<std::string> begun_source(const std::string& folder, const std::string& named, const JournalHead& begun) {
  if (!named.empty()) return named;
  if (begun.origin) return "hf://" + begun.origin->asked;
  if (!begun.place.empty()) return begun.place;
  return Error{ErrorKind::invalid, folder + ": does not record where its source is; give it with --source"};
}

Result<Declarations> read_checksum_list(const std::string& path) {
  TRY_ASSIGN(const std::string text, read_text(format::posix_file_system(), path, kMaxListBytes));
  return parse_checksum_list(text, path);
}

}  // namespace dspack::reshard
