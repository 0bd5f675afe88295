#include "format/hub/repository.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "format/hub/client.h"
#include "format/hub/listing.h"
#include "format/hub/snapshot.h"
#include "format/manifest.h"
#include "format/source/local_repository.h"

namespace dspack::format {
namespace {

class HubRepository final : public Repository {
 public:
  using Listing = std::optional<std::vector<ListedFile>>;
  struct Parts {
    HubOrigin origin;
    std::optional<std::string> offline;   // why the Hub is not asked; nullopt: it is
    std::optional<HubSnapshot> snapshot;  // the commit's, in the local cache
    std::unique_ptr<HubClient> hub;       // pinned to that commit
  };
  HubRepository(Parts parts, FileSystem& files)
      : parts_(std::move(parts)), hub_(*parts_.hub), commit_(parts_.origin.commit), files_(files) {}

  [[nodiscard]] RepositoryKind kind() const override { return RepositoryKind::hub; }
  [[nodiscard]] bool is_local() const override { return parts_.snapshot && parts_.snapshot->weights().are_whole(); }
  [[nodiscard]] std::optional<HubOrigin> hub_origin() const override { return parts_.origin; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string locate(std::string_view path) const override {
    const auto local = local_file(path);
    return local ? local->path.string() : without_password(hub_.file_url(commit_, path));
  }

  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override;
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                               std::stop_token stop) override;
  [[nodiscard]] Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override;
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override;
  [[nodiscard]] Result<Listing> list(std::stop_token stop) override;
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override;

 private:
  [[nodiscard]] std::optional<HubSnapshot::File> local_file(std::string_view path) const {
    return parts_.snapshot ? parts_.snapshot->file(path) : std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<HttpSource> http_source(std::string_view path);
  [[nodiscard]] Error not_here(std::string_view path) const;
  [[nodiscard]] Error with_hint(Error error) const;
  Result<Listing> list_snapshot(const std::stop_token& stop);
  Result<const Listing*> listing(const std::stop_token& stop);

  Parts parts_;
  HubClient& hub_;
  const std::string commit_;
  FileSystem& files_;
  std::mutex mutex_;
  std::optional<Listing> listing_;  // the Hub's listing, once requested; guarded by mutex_
};

std::string HubRepository::description() const {
  constexpr size_t kShortCommit = 12;
  const std::string& asked = parts_.origin.asked;
  if (asked == fmt::format("{}@{}", hub_.repository(), commit_)) return asked;
  return fmt::format("{} (commit {})", asked, commit_.substr(0, kShortCommit));
}

std::unique_ptr<HttpSource> HubRepository::http_source(std::string_view path) {
  return std::make_unique<HttpSource>(hub_.http(), hub_.file(commit_, path));
}

/// A file that the snapshot lacks is not_found only if the snapshot is known to be complete.
Error HubRepository::not_here(std::string_view path) const {
  const std::string remedy = fmt::format("fetch it first: hf download {} --revision {}", hub_.repository(), commit_);
  if (!parts_.snapshot) {
    return {ErrorKind::network, fmt::format("{}: {}, and the local cache has nothing of this commit; {}", locate(path),
                                            *parts_.offline, remedy)};
  }
  const std::string folder = parts_.snapshot->folder().string();
  const HubSnapshot::Weights& weights = parts_.snapshot->weights();
  if (weights.missing.empty()) {
    return {is_local() ? ErrorKind::not_found : ErrorKind::network,
            fmt::format("{}/{}: not in the local snapshot, and {}; {}", folder, path, *parts_.offline, remedy)};
  }
  return {ErrorKind::network,
          fmt::format("{}: this local snapshot lacks {} and, of {} weight files, {} ({} first), and {}; {}", folder,
                      path, weights.files, weights.missing.size(), weights.missing.front(), *parts_.offline, remedy)};
}

/// If all weights are local, an unreachable Hub need not stop the user.
Error HubRepository::with_hint(Error error) const {
  if (error.kind == ErrorKind::network && is_local() && !hub_.http().was_answered())
    error.message += "; HF_HUB_OFFLINE=1 uses the local cache without asking the Hub";
  return error;
}

Result<std::unique_ptr<ByteSource>> HubRepository::open(std::string_view path, std::stop_token stop) {
  if (const auto local = local_file(path))
    return open_local_source(files_, local->path, local->etag.empty() ? std::nullopt : std::optional(local->etag));
  if (parts_.offline) return not_here(path);
  auto source = http_source(path);
  if (const auto probed = source->probe(stop); !probed) return with_hint(probed.error());
  return std::unique_ptr<ByteSource>(std::move(source));
}

Result<std::unique_ptr<ByteSource>> HubRepository::open_known(std::string_view path, const KnownFile& known,
                                                              std::stop_token stop) {
  if (local_file(path) || parts_.offline) {
    // A local file has a version only if the cache names it by its digest.
    return Repository::open_known(path, {.size_bytes = known.size_bytes, .version = {}}, std::move(stop));
  }
  auto source = http_source(path);
  source->know(known);
  return std::unique_ptr<ByteSource>(std::move(source));
}

Result<std::unique_ptr<ReadFile>> HubRepository::open_file(std::string_view path, ReadMode mode) {
  const auto local = local_file(path);
  if (!local) return Repository::open_file(path, mode);
  return files_.open_read_as(local->path, mode);
}

Result<std::string> HubRepository::read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) {
  if (const auto local = local_file(path)) return format::read_text(files_, local->path, limit_bytes);
  if (parts_.offline) return not_here(path);
  auto text = hub_.read_text(commit_, path, limit_bytes, stop);
  if (!text) return with_hint(text.error());
  return text;
}

/// Requests the listing once.
Result<const HubRepository::Listing*> HubRepository::listing(const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  if (!listing_) {
    auto listed = list_tree(hub_, commit_, stop);
    if (!listed) return with_hint(listed.error());
    listing_ = *listed ? Listing(visible_files(**listed)) : std::nullopt;
  }
  return &*listing_;
}

Result<HubRepository::Listing> HubRepository::list_snapshot(const std::stop_token& stop) {
  if (!is_local()) return not_here(kManifestPath);
  const auto all = make_local_repository(parts_.snapshot->folder(), files_)->list(stop);
  if (!all) return all.error();
  std::vector<ListedFile> found;
  for (const ListedFile& file : **all) {
    if (const auto local = local_file(file.path))
      found.push_back({file.path, file.size_bytes, parse_digest(local->etag)});
  }
  return Listing(std::move(found));
}

Result<HubRepository::Listing> HubRepository::list(std::stop_token stop) {
  if (parts_.offline) return list_snapshot(stop);
  TRY_ASSIGN(const Listing* found, listing(stop));
  return *found;
}

Result<std::optional<DeclaredFile>> HubRepository::declared(std::string_view path, std::stop_token stop) {
  if (parts_.offline) {
    const auto local = local_file(path);
    if (!local) return not_here(path);
    const auto sha256 = parse_digest(local->etag);
    return sha256 ? std::optional(DeclaredFile{*sha256, std::nullopt}) : std::nullopt;
  }
  TRY_ASSIGN(const Listing* all, listing(stop));
  if (!*all) return hub_.declared(commit_, path, stop);
  const ListedFile* listed = find_listed(**all, path);
  if (listed == nullptr)
    return Error{ErrorKind::not_found, fmt::format("{}: the repository has no such file", locate(path))};
  return listed->sha256 ? std::optional(DeclaredFile{*listed->sha256, listed->size_bytes}) : std::nullopt;
}

/// The commit that the name stands for, and how that is known.
struct Meaning {
  HubCommit commit;
  std::optional<std::string> offline;  // why the Hub must not be asked for anything
};

class Opening {
 public:
  Opening(const HubName& name, const RemoteOptions& options, FileSystem& files)
      : name_(name), asked_(fmt::format("{}@{}", name.repository, name.revision)), options_(options), files_(files) {
    hub_ = std::make_unique<HubClient>(options, name.repository);
  }

  Result<std::unique_ptr<Repository>> open(const std::stop_token& stop) {
    if (!hub_->endpoint().starts_with("https://") && !hub_->endpoint().starts_with("http://")) {
      return Error{ErrorKind::invalid,
                   fmt::format("HF_ENDPOINT is {}, which is no address: it begins with https://", hub_->endpoint())};
    }
    if (!options_.hub_token_note.empty() && !options_.hub_offline) note(options_.hub_token_note);
    TRY_ASSIGN(const Meaning meaning, find_meaning(stop));
    hub_->pin(meaning.commit);
    HubRepository::Parts parts{
        .origin = {.repository = meaning.commit.repository, .commit = meaning.commit.commit, .asked = asked_},
        .offline = meaning.offline,
        .snapshot = snapshot_of(meaning.commit),
        .hub = std::move(hub_)};
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
    auto resolved = hub_->resolve(name_.revision, stop);
    if (!resolved) return unless_unreachable(resolved.error());
    note_rename(*resolved);
    if (const auto kept = remember_commit(options_.hub_commits, name_, *resolved, files_); !kept)
      note(fmt::format("{}: the commit of {} is not recorded: {}", options_.hub_commits.string(), asked_,
                       kept.error().message));
    return Meaning{*std::move(resolved), {}};
  }

  /// Our own record first: it was made by this program, and for a renamed repository it has the new name.
  [[nodiscard]] std::optional<HubCommit> memory() const {
    if (auto commit = remembered_commit(options_.hub_commits, name_, files_)) return commit;
    const auto commit = cached_commit(options_.hub_cache, name_, files_);
    return commit ? std::optional(HubCommit{name_.repository, *commit}) : std::nullopt;
  }

  [[nodiscard]] Result<Meaning> remembered(const std::string& why) const {
    if (auto commit = memory()) return Meaning{*std::move(commit), why};
    const std::string cache = options_.hub_cache.empty()
                                  ? "there is none: HOME is not set"
                                  : cached_repository_folder(options_.hub_cache, name_.repository).string();
    return Error{ErrorKind::network,
                 fmt::format("{}: {}, and no cache here knows what it means ({}); fetch it first: hf download {} "
                             "--revision {}",
                             asked_, why, cache, name_.repository, name_.revision)};
  }

  /// Without a network, the last known commit is used again.
  [[nodiscard]] Result<Meaning> unless_unreachable(const Error& error) const {
    if (error.kind == ErrorKind::cancelled || hub_->http().was_answered()) return error;
    auto commit = memory();
    if (!commit) return error;
    note(fmt::format("{}; continuing with the local copy of commit {} of {}, the last known meaning of the name",
                     error.message, commit->commit, commit->repository));
    return Meaning{*std::move(commit), "the Hub cannot be reached"};
  }

  void note_rename(const HubCommit& resolved) const {
    if (resolved.repository == name_.repository) return;
    note(fmt::format("{} is now called {}; use that name", name_.repository, resolved.repository));
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
    if (options_.on_note) options_.on_note(NoteKind::remark, text);
  }

  HubName name_;
  std::string asked_;
  const RemoteOptions& options_;
  FileSystem& files_;
  std::unique_ptr<HubClient> hub_;
};

}  // namespace

Result<std::unique_ptr<Repository>> open_hub_repository(const HubName& name, const RemoteOptions& options,
                                                        FileSystem& files, const std::stop_token& stop) {
  return Opening(name, options, files).open(stop);
}

}  // namespace dspack::format
