#include "runtime/cli/places.h"

#include <fmt/format.h>

#include <cstdio>

#include "format/base/foreign_text.h"
#include "format/base/size.h"
#include "format/cache/disk_room.h"
#include "format/cli/environment.h"
#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "format/compressed/expanding_repository.h"
#include "format/json.h"
#include "format/source/replaced_text.h"

namespace dspack::runtime {

void add_folder(format::OptionTable& table, std::string& folder) {
  table.add("DIR", "", folder, "Folder of the model, or its address: http(s)://..., org/name[@revision], hf://...")
      .required();
}

void add_cache_options(format::OptionTable& table, RemoteAccess& access) {
  table.heading("Places");
  table.add("--cache", "DIR", access.cache_folder,
            "Of models read over a network: keep what was fetched here, a folder for each place (default: "
            "$XDG_CACHE_HOME/dspack or ~/.cache/dspack)");
  table.add("--disk", "SIZE", access.tier.disk_bytes, format::parse_some_size,
            "Upper bound on the cache of this place, such as 100GB: what was not used for longest makes room (default: "
            "it grows while 5 % of the disk and 10 GB stay free)");
  table.dev("pause", "SECONDS", access.pause_second, format::between(0.0, 1.0),
            "the length of a second of the pauses before a request is repeated, for tests (default: 1)");
}

void add_absent_option(format::OptionTable& table, RemoteAccess& access) {
  table.heading("Places");
  const auto take = [&access](const std::string& place) -> Result<void> {
    if (place.empty()) return invalid("no place is named");
    access.absent_from = place;
    return {};
  };
  table.take(
      "--absent-from", "PLACE", take,
      "If DIR holds a part of a model (reshard --include ...): read what it lacks from this folder or address; the "
      "word origin means the repository and commit on the Hub that DIR was made from. What is fetched is kept "
      "(--cache)");
}

void add_config_option(format::OptionTable& table, RemoteAccess& access) {
  table.heading("Places");
  table.add(
      "--config", "FILE", access.config_file,
      "Read this in place of DIR's config.json, where that says something that dsrun does not know and nobody can "
      "edit it there");
}

namespace {

/// Empty: no cache folder.
format::Path cache_root(const RemoteAccess& access) {
  if (!access.cache_folder.empty()) return access.cache_folder;
  const format::Path folder = format::user_cache_folder();
  return folder.empty() ? folder : folder / "dspack";
}

/// Bytes that must stay free on the caches' disk if no bound is set.
uint64_t stay_free(const format::Path& root) {
  const auto disk = format::posix_file_system().disk_bytes(root);
  return format::usual_stay_free(disk ? disk->value_or(0) : 0);
}

Result<CheckpointPlace> open_one(const std::string& place, const RemoteAccess& access, const std::stop_token& stop,
                                 const ProgressWatch& watch) {
  const auto progress = std::make_shared<format::TerminalProgress>();
  const std::shared_ptr<format::Progress> told = watch ? watch(progress) : progress;
  const auto counters = std::make_shared<format::TransferCounters>();
  format::RemoteOptions options = format::remote_options_from_environment();
  options.counters = counters;
  options.pause_second = access.pause_second;
  progress->follow(counters);
  options.on_note = [shown = progress](format::NoteKind kind, std::string_view text) { shown->note(kind, text); };
  const format::Path root = cache_root(access);
  DistantTierOptions tier = access.tier;
  bool is_first_use = false;  // the folder of all caches does not exist yet
  if (!root.empty()) {
    if (tier.disk_bytes == 0) tier.stay_free_bytes = stay_free(root);
    options.hub_commits = root / "hub-commits";
    const auto there = format::posix_file_system().stat(root);  // opening it reports its errors
    is_first_use = there && !*there;
  }
  progress->started(without_passwords("opening " + place), 0, 0);
  TRY_ASSIGN(auto repository, format::open_repository(place, options, format::posix_file_system(), stop));
  progress->finished();
  if (repository->is_local()) {
    CheckpointPlace folder = make_folder_place(format::make_expanding_repository(std::move(repository)));
    folder.progress = told;
    return folder;
  }
  if (root.empty()) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: there is no folder for what is fetched: neither XDG_CACHE_HOME nor HOME names one; "
                             "set one of them, or name a folder with --cache",
                             place)};
  }
  TRY_ASSIGN(
      CheckpointPlace distant,
      open_distant_place(
          {.origin = std::move(repository), .counters = counters, .progress = told, .cache_root = root, .tier = tier},
          format::posix_file_system(), stop));
  if (is_first_use && format::stderr_is_terminal()) {
    const std::string bound = tier.disk_bytes != 0
                                  ? fmt::format("at most {}", size_words(tier.disk_bytes))
                                  : fmt::format("while {} of the disk stay free", size_words(tier.stay_free_bytes));
    progress->note(
        fmt::format("what is fetched is kept in {}, {}: --disk SIZE sets the bound, \"dsrun cache\" lists it",
                    root.string(), bound));
  }
  return distant;
}

}  // namespace

Result<std::unique_ptr<CheckpointAccess>> open_place(const std::string& place, const RemoteAccess& access,
                                                     const std::stop_token& stop, const ProgressWatch& watch) {
  TRY_ASSIGN(CheckpointPlace opened, open_one(place, access, stop, watch));
  if (!access.config_file.empty()) {
    auto text = format::read_text(format::posix_file_system(), access.config_file, format::kConfigDocument.bytes);
    if (!text) return text.error().in("--config");
    opened.files = format::replace_text(std::move(opened.files), "config.json", std::move(text), access.config_file);
  }
  auto checkpoint = std::make_unique<CheckpointAccess>(std::move(opened));
  if (access.absent_from.empty()) return checkpoint;
  const auto opener = [&](const std::string& rest) { return open_one(rest, access, stop, watch); };
  TRY(checkpoint->complete_from(access.absent_from, opener, stop));
  return checkpoint;
}

}  // namespace dspack::runtime
