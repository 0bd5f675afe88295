#include "runtime/cli/remote_options.h"

#include <fmt/format.h>

#include <cstdio>

#include "format/base/size_text.h"
#include "format/cli/process.h"
#include "format/cli/terminal_progress.h"
#include "format/compressed/expanding_repository.h"
#include "runtime/storage/completed_place.h"

namespace dspack::runtime {

void add_remote_options(CLI::App& app, RemoteAccess& access) {
  app.add_option("--cache", access.cache_folder,
                 "For models across a network: keep here what was fetched, a folder for each place (default: "
                 "$XDG_CACHE_HOME/dspack or ~/.cache/dspack)")
      ->type_name("DIR");
  const auto take = [&access](const std::string& text) {
    const auto size = parse_size(text);
    if (!size) throw CLI::ValidationError("--disk", size.error().message);
    if (*size == 0) throw CLI::ValidationError("--disk", "0 is too little");
    access.storage.disk_bytes = *size;
  };
  app.add_option_function<std::string>(
         "--disk", take, "Most bytes that the cache of the place may have: 100GB, ... (default: no bound)")
      ->type_name("SIZE");
}

namespace {

/// Empty: there is none.
format::Path cache_root(const RemoteAccess& access) {
  if (!access.cache_folder.empty()) return access.cache_folder;
  const format::Path folder = format::user_cache_folder();
  return folder.empty() ? folder : folder / "dspack";
}

Result<std::unique_ptr<format::Repository>> open_one(const std::string& place, const RemoteAccess& access,
                                                     const std::stop_token& stop) {
  const auto progress = std::make_shared<format::TerminalProgress>(stderr, format::stderr_is_terminal());
  const auto counters = std::make_shared<format::TransferCounters>();
  format::RemoteOptions options = format::remote_options_from_environment();
  options.counters = counters;
  options.on_note = [shown = progress](std::string_view text) { shown->note(text); };
  const format::Path root = cache_root(access);
  if (!root.empty()) options.hub_commits = root / "hub-commits";
  TRY_ASSIGN(auto repository, format::open_repository(place, options, format::posix_file_system(), stop));
  if (repository->is_local()) return format::make_expanding_repository(std::move(repository));
  if (root.empty()) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: there is no folder for what is fetched: neither XDG_CACHE_HOME nor HOME names one; "
                             "set one of them, or name a folder with --cache",
                             place)};
  }
  TRY_ASSIGN(auto opened, RemotePlace::open({.origin = std::move(repository),
                                             .counters = counters,
                                             .progress = progress,
                                             .cache_root = root,
                                             .storage = access.storage},
                                            format::posix_file_system(), stop));
  return std::unique_ptr<format::Repository>(std::move(opened));
}

}  // namespace

void add_absent_option(CLI::App& app, RemoteAccess& access) {
  app.add_option("--absent-from", access.absent_from,
                 "DIR holds a part of a model (reshard --include ...): read what it lacks from here, a folder or an "
                 "address as DIR may be; the word origin: from the Hub, the very commit that it was made from. What is "
                 "fetched is kept (--cache)")
      ->type_name("PLACE")
      ->check(
          CLI::Validator([](std::string& place) { return std::string(place.empty() ? "no place is named" : ""); }, ""));
}

Result<std::unique_ptr<format::Repository>> open_place(const std::string& place, const RemoteAccess& access,
                                                       const std::stop_token& stop) {
  TRY_ASSIGN(auto repository, open_one(place, access, stop));
  if (access.absent_from.empty()) return repository;
  const auto opener = [&](const std::string& rest) { return open_one(rest, access, stop); };
  TRY_ASSIGN(auto completed, CompletedPlace::open(std::move(repository), access.absent_from, opener, stop));
  return std::unique_ptr<format::Repository>(std::move(completed));
}

}  // namespace dspack::runtime
