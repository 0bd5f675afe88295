#include "format/cli/cache_verb.h"

#include <fmt/format.h>

#include <chrono>

#include "format/base/foreign_text.h"
#include "format/cli/environment.h"
#include "format/cli/output.h"
#include "format/json.h"

namespace dspack::format {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

struct CacheFlags {
  std::string cache;  // empty: the default
  std::string remove;
  std::string verify;
  bool yes = false;
  bool json = false;
};

Result<Path> chosen_root(const CacheFlags& flags) {
  if (!flags.cache.empty()) return Path(flags.cache);
  const Path folder = user_cache_folder();
  if (!folder.empty()) return folder / "dspack";
  return invalid("neither XDG_CACHE_HOME nor HOME names a folder; name that of the caches with --cache");
}

/// If `name` is an entry that is left alone, returns an error that says why.
Result<void> check_not_strange(const KeptNames& kept, const std::string& name) {
  for (const StrangeEntry& entry : kept.strange) {
    if (entry.name == name)
      return Error{ErrorKind::conflict, fmt::format("{}: left alone: {}", brief(name), brief(entry.reason))};
  }
  return {};
}

/// `bytes`: removed; 0: it was kept.
std::string removal_json(const KeptName& place, uint64_t bytes) {
  return canonical_json(
             {{"name", printable(place.name())}, {"folder", printable(place.folder)}, {"removed_bytes", bytes}}) +
         "\n";
}

Result<int> remove_place(const CacheFlags& flags, const Path& root, const KeptName& place) {
  const Path folder = root / place.folder;
  TRY(lock_kept_place(posix_file_system(), folder, LockKind::exclusive));  // fails before asking if it is in use
  TRY_ASSIGN(const uint64_t bytes, kept_disk_bytes(posix_file_system(), folder));
  const std::string what = fmt::format("{} ({})", brief(place.name()), human_bytes(bytes));
  if (!flags.yes && !can_ask())
    return invalid(fmt::format("--remove {} asks before it removes, and nobody is there; add --yes", what));
  if (!flags.yes && !ask_yes(fmt::format("remove {} from {}?", what, root.string()))) {
    if (flags.json)
      print_json(removal_json(place, 0));
    else
      print_line("nothing was removed");
    return 0;
  }
  TRY(remove_kept_place(posix_file_system(), folder));
  if (flags.json)
    print_json(removal_json(place, bytes));
  else
    print_line("removed " + what);
  return 0;
}

void print_check(const KeptName& place, const CacheCheck& check) {
  for (const std::string& finding : check.findings)
    print_line(finding);
  if (check.damaged > check.findings.size())
    print_line(fmt::format("and {} more", check.damaged - check.findings.size()));
  if (!check.unchecked.empty()) print_line("partial files were not checked: " + check.unchecked);
  if (check.is_good()) {
    print_line(fmt::format("{}: {} digests, {}: as they were when they came", brief(place.name()), check.digests,
                           human_bytes(check.bytes)));
    return;
  }
  print_line(
      fmt::format("{}: {} of {} digests differ; a run fetches again what it reads damaged, or remove it with "
                  "--remove",
                  brief(place.name()), check.damaged, check.digests));
}

Result<int> verify_place(const CacheFlags& flags, const Path& root, const KeptName& place, Process& process) {
  const Path folder = root / place.folder;
  TRY_ASSIGN(const auto lock, lock_kept_place(posix_file_system(), folder, LockKind::shared));
  TRY_ASSIGN(const CacheState state, read_kept_state(posix_file_system(), folder));
  TRY_ASSIGN(const CacheCheck check,
             check_kept(posix_file_system(), folder, state, process.progress(), process.stop()));
  if (flags.json)
    print_json(check_json(place, check) + "\n");
  else
    print_check(place, check);
  return check.is_good() ? 0 : 1;
}

Result<int> run_cache(const CacheFlags& flags, Process& process) {
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const Path root, chosen_root(flags));
  const std::string& name = flags.remove.empty() ? flags.verify : flags.remove;
  if (!name.empty()) {
    TRY_ASSIGN(const KeptNames names, list_kept_names(posix_file_system(), root, stop));
    TRY(check_not_strange(names, name));
    const auto chosen = choose_kept_place(names.ours, name);
    if (!chosen) return chosen.error().in(root.string());
    const KeptName& place = names.ours[*chosen];
    return flags.remove.empty() ? verify_place(flags, root, place, process) : remove_place(flags, root, place);
  }
  TRY_ASSIGN(const KeptPlaces kept, list_kept_places(posix_file_system(), root, stop));
  TRY_ASSIGN(const uint64_t free_bytes, posix_file_system().free_bytes(root));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  if (flags.json)
    print_json(kept_json(kept, root, free_bytes) + "\n");
  else
    print_out(kept_table(kept, root, free_bytes, std::chrono::nanoseconds(now).count()));
  return 0;
}

Result<std::string> some_name(std::string_view text) {
  if (text.empty()) return invalid("no name");
  return std::string(text);
}

void add_cache_options(OptionTable& table, CacheFlags& flags) {
  table.explain(
      "Lists what is kept of models read over a network: name, size on disk, share of the model, last use, state.");
  table.add("--cache", "DIR", flags.cache,
            "The folder of all caches (default: $XDG_CACHE_HOME/dspack or ~/.cache/dspack)");
  table.flag("--json", flags.json, "The list, what was checked or what was removed as JSON");
  auto remove = table.add("--remove", "NAME", flags.remove, some_name, "Remove this one: its name, or a beginning");
  table.flag("--yes", flags.yes, "Remove without asking").needs(remove);
  table
      .add("--verify", "NAME", flags.verify, some_name,
           "Compare all bytes of this one with the digests that were written down when they came")
      .excludes(remove);
  table.footer(
      "What another process uses is not removed; nor is anything that is no cache: such folders are named.\n"
      "A run with --disk SIZE bounds the cache of its model; without, 5 % of the disk and 10 GB stay free.");
}

std::string counted(int64_t count, std::string_view unit) {
  return fmt::format("{} {}{} ago", count, unit, count == 1 ? "" : "s");
}

uint64_t total_disk(const KeptPlaces& kept) {
  uint64_t bytes = 0;
  for (const KeptPlace& place : kept.places)
    bytes += place.disk_bytes;
  return bytes;
}

}  // namespace

std::string age_words(int64_t seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  constexpr int64_t kMonth = 30 * kDay;
  constexpr int64_t kYear = 365 * kDay;
  if (seconds < kMinute) return "just now";
  if (seconds < kHour) return counted(seconds / kMinute, "minute");
  if (seconds < kDay) return counted(seconds / kHour, "hour");
  if (seconds < 2 * kMonth) return counted(seconds / kDay, "day");
  if (seconds < kYear) return counted(seconds / kMonth, "month");
  return counted(seconds / kYear, "year");
}

std::string share_words(const std::optional<KeptShare>& share) {
  if (!share || share->total_bytes == 0) return "-";
  const double percent = 100 * static_cast<double>(share->present_bytes) / static_cast<double>(share->total_bytes);
  if (share->present_bytes == share->total_bytes) return "100 %";
  if (percent > 0 && percent < 1) return "< 1 %";
  return fmt::format("{} %", static_cast<unsigned>(percent));
}

std::string kept_table(const KeptPlaces& kept, const Path& root, uint64_t free_bytes, int64_t now_ns) {
  std::string text;
  if (!kept.places.empty())
    text += fmt::format("{:>10}  {:>8}  {:<14}  {:<10}  {}\n", "ON DISK", "OF MODEL", "LAST USE", "STATE", "NAME");
  for (const KeptPlace& place : kept.places) {
    const std::string used = place.used_ns == 0 ? "-" : age_words((now_ns - place.used_ns) / kNanoseconds);
    text += fmt::format("{:>10}  {:>8}  {:<14}  {:<10}  {}\n", human_bytes(place.disk_bytes), share_words(place.share),
                        used, to_string(place.state), brief(place.name()));
    if (place.folder != place.name()) text += fmt::format("            {}\n", brief(place.folder));
    if (place.state == KeptState::unreadable) text += fmt::format("            {}\n", brief(place.reason));
  }
  for (const StrangeEntry& entry : kept.strange)
    text += fmt::format("left alone: {}: {}\n", brief(entry.name), brief(entry.reason));
  const std::string where = brief(root.string());
  if (kept.places.empty())
    return text + fmt::format("nothing is kept in {}; {} free\n", where, human_bytes(free_bytes));
  return text + fmt::format("{} of {} {} in {}; {} free\n", human_bytes(total_disk(kept)), kept.places.size(),
                            kept.places.size() == 1 ? "model" : "models", where, human_bytes(free_bytes));
}

std::string kept_json(const KeptPlaces& kept, const Path& root, uint64_t free_bytes) {
  Json json = {{"cache", printable(root.string())},
               {"disk_bytes", total_disk(kept)},
               {"free_bytes", free_bytes},
               {"models", Json::array()},
               {"left_alone", Json::array()}};
  for (const KeptPlace& place : kept.places) {
    Json entry = {{"name", printable(place.name())},
                  {"folder", printable(place.folder)},
                  {"state", to_string(place.state)},
                  {"disk_bytes", place.disk_bytes},
                  {"last_use", place.used_ns / kNanoseconds}};
    if (place.share) {
      entry["present_bytes"] = place.share->present_bytes;
      entry["model_bytes"] = place.share->total_bytes;
    }
    if (!place.reason.empty()) entry["reason"] = printable(place.reason);
    json["models"].push_back(std::move(entry));
  }
  for (const StrangeEntry& entry : kept.strange)
    json["left_alone"].push_back({{"name", printable(entry.name)}, {"reason", printable(entry.reason)}});
  return canonical_json(json);
}

std::string check_json(const KeptName& place, const CacheCheck& check) {
  Json json = {{"name", printable(place.name())}, {"folder", printable(place.folder)},
               {"digests", check.digests},        {"bytes", check.bytes},
               {"damaged", check.damaged},        {"findings", Json::array()}};
  for (const std::string& finding : check.findings)
    json["findings"].push_back(printable(finding));
  if (!check.unchecked.empty()) json["unchecked"] = printable(check.unchecked);
  return canonical_json(json);
}

Verb cache_verb() {
  return make_verb("cache", "List, remove or check what is kept of models read over a network", add_cache_options,
                   run_cache);
}

}  // namespace dspack::format
