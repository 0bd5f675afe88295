#include "format/source/hub_open.h"

#include <fmt/format.h>

#include "format/source/hub_commits.h"
#include "format/source/hub_repository.h"

namespace dspack::format {
namespace {

/// What the name means, and how that is known.
struct Meaning {
  HubCommit commit;
  std::optional<std::string> offline;  // why the Hub is not to be asked for anything
};

class Opening {
 public:
  Opening(const HubName& name, const RemoteOptions& options, FileSystem& files)
      : name_(name), asked_(fmt::format("{}@{}", name.repository, name.revision)), options_(options), files_(files) {
    door_ = {.endpoint = options.hub_endpoint, .token = options.hub_token};
    while (door_.endpoint.ends_with('/'))
      door_.endpoint.pop_back();
    client_ = std::make_unique<PatientClient>(options);
  }

  Result<std::unique_ptr<Repository>> open(const std::stop_token& stop) {
    if (!door_.endpoint.starts_with("https://") && !door_.endpoint.starts_with("http://")) {
      return Error{ErrorKind::invalid,
                   fmt::format("HF_ENDPOINT is {}, which is no address: it begins with https://", door_.endpoint)};
    }
    if (!options_.hub_token_note.empty() && !options_.hub_offline) note(options_.hub_token_note);
    TRY_ASSIGN(const Meaning meaning, find_meaning(stop));
    HubRepository::Parts parts{
        .door = door_,
        .origin = {.repository = meaning.commit.repository, .commit = meaning.commit.commit, .asked = asked_},
        .offline = meaning.offline,
        .snapshot = snapshot_of(meaning.commit),
        .client = std::move(client_)};
    tell(parts);
    return std::unique_ptr<Repository>(std::make_unique<HubRepository>(std::move(parts), files_));
  }

 private:
  [[nodiscard]] std::optional<HubSnapshot> snapshot_of(const HubCommit& commit) const {
    return HubSnapshot::find(options_.hub_cache, {commit.repository, commit.commit}, files_);
  }

  Result<Meaning> find_meaning(const std::stop_token& stop) {
    const std::optional<std::string> offline =
        options_.hub_offline ? std::optional<std::string>("HF_HUB_OFFLINE is set (unset it to fetch)") : std::nullopt;
    if (options_.hub_pinned && options_.hub_pinned->asked == asked_)
      return Meaning{{options_.hub_pinned->repository, options_.hub_pinned->commit}, offline};
    if (is_commit(name_.revision)) return Meaning{{name_.repository, name_.revision}, offline};
    if (offline) return remembered(*offline);
    auto resolved = resolve_revision(*client_, door_, name_, stop);
    if (!resolved) return unless_unreachable(resolved.error());
    note_rename(*resolved);
    if (const auto kept = remember_commit(options_.hub_commits, name_, *resolved, files_); !kept)
      note(fmt::format("{}: what {} means is not remembered: {}", options_.hub_commits.string(), asked_,
                       kept.error().message));
    return Meaning{*std::move(resolved), {}};
  }

  /// Ours first: it has been asked for with this program, and of a name that was new it knows the old one.
  [[nodiscard]] std::optional<HubCommit> memory() const {
    if (auto commit = remembered_commit(options_.hub_commits, name_, files_)) return commit;
    const auto commit = cached_commit(options_.hub_cache, name_, files_);
    return commit ? std::optional(HubCommit{name_.repository, *commit}) : std::nullopt;
  }

  [[nodiscard]] Result<Meaning> remembered(const std::string& why) const {
    if (auto commit = memory()) return Meaning{*std::move(commit), why};
    const std::string cache = cached_repository_folder(options_.hub_cache, name_.repository).string();
    return Error{ErrorKind::network,
                 fmt::format("{}: {}, and no cache here knows what it means ({}); fetch it first: hf download {} "
                             "--revision {}",
                             asked_, why, cache, name_.repository, name_.revision)};
  }

  /// Without a network, what was used before can be used again.
  [[nodiscard]] Result<Meaning> unless_unreachable(const Error& error) const {
    if (error.kind == ErrorKind::cancelled || client_->was_answered()) return error;
    auto commit = memory();
    if (!commit) return error;
    note(fmt::format("{}; going on with what is here, commit {} of {}, which the name meant last", error.message,
                     commit->commit, commit->repository));
    return Meaning{*std::move(commit), "the Hub cannot be reached"};
  }

  void note_rename(const HubCommit& resolved) const {
    if (resolved.repository == name_.repository) return;
    note(fmt::format("{} is called {} now; name it so from here on", name_.repository, resolved.repository));
  }

  void tell(const HubRepository::Parts& parts) const {
    if (!parts.snapshot) return;
    const HubSnapshot::Weights& weights = parts.snapshot->weights();
    std::string what = "read from the local snapshot";
    if (!weights.missing.empty() || weights.files == 0) {
      what = fmt::format("read from the local snapshot as far as it goes ({} of {} weight files)",
                         weights.files - weights.missing.size(), weights.files);
    }
    note(fmt::format("{} is commit {}, {} {}", asked_, parts.origin.commit, what, parts.snapshot->folder().string()));
  }

  void note(std::string_view text) const {
    if (options_.on_note) options_.on_note(text);
  }

  HubName name_;
  std::string asked_;
  const RemoteOptions& options_;
  FileSystem& files_;
  HubDoor door_;
  std::unique_ptr<PatientClient> client_;
};

}  // namespace

Result<std::unique_ptr<Repository>> open_hub_repository(const HubName& name, const RemoteOptions& options,
                                                        FileSystem& files, const std::stop_token& stop) {
  return Opening(name, options, files).open(stop);
}

}  // namespace dspack::format
