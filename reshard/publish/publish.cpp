#include "reshard/publish/publish.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "format/manifest.h"

namespace dspack::reshard {
namespace {

using format::Attempted;
using format::HttpFailure;
using format::HubWriter;
using format::PullRequest;

/// A snapshot to compare before and after a step: if they are equal, the step had no effect.
auto progress_of(const Situation& situation) {
  return std::tuple(situation.repository, situation.branch, situation.pull_request ? situation.pull_request->number : 0,
                    situation.pull_request ? situation.pull_request->status : "", situation.difference.to_send.size(),
                    situation.difference.extra.size(), situation.head);
}

Attempted<std::monostate> attempted(const Result<void>& done) {
  if (!done) return HttpFailure{done.error()};
  return std::monostate();
}

class Publication {
 public:
  explicit Publication(const PublishJob& job) : job_(job) {}

  Result<PublishOutcome> run(Situation situation) {
    outcome_.was_complete = situation.complete(job_.target);
    unsigned failures = 0;
    while (!situation.complete(job_.target)) {
      if (situation.pull_request) outcome_.pull_request = situation.pull_request->number;
      auto done = step(situation);
      if (auto* failure = std::get_if<HttpFailure>(&done)) {
        // A refused merge may have been made by someone else: look again before reporting the refusal.
        const bool merging = situation.pull_request && situation.difference.none();
        const bool last_look = !failure->may_pass && merging && failure->error.kind != ErrorKind::cancelled;
        if (last_look) {
          TRY_ASSIGN(situation, look());
          if (situation.on_branch) break;
        }
        if (!failure->may_pass) return failure->error;
        TRY(job_.hub.hub().http().pause(*failure, ++failures, job_.stop));
      }
      const auto before = progress_of(situation);
      TRY_ASSIGN(situation, look());
      if (progress_of(situation) != before) {
        failures = 0;
      } else if (std::holds_alternative<std::monostate>(done)) {
        // A listing may be out of date for a moment, but not for long.
        const HttpFailure idle{
            Error{ErrorKind::network,
                  fmt::format("{}: the Hub accepts what is sent, but does not list it (may this token read there?)",
                              job_.hub.hub().page())},
            true};
        TRY(job_.hub.hub().http().pause(idle, ++failures, job_.stop));
      }
    }
    if (situation.pull_request) outcome_.pull_request = situation.pull_request->number;
    outcome_.merged = outcome_.pull_request && situation.on_branch;
    return outcome_;
  }

 private:
  Result<Situation> look() {
    return find_situation(job_.hub, job_.target, job_.sealed, job_.files, job_.jobs, job_.stop);
  }

  /// Performs the next step.
  Attempted<std::monostate> step(const Situation& situation) {
    const HubWriter& hub = job_.hub;
    if (!situation.repository) {
      return attempted(hub.create_repository(
          job_.target.only_private ? HubWriter::Visibility::only_private : HubWriter::Visibility::as_usual, job_.stop));
    }
    if (!situation.branch) return attempted(hub.create_branch(job_.target.branch, job_.stop));
    if (situation.by_pull_request && !situation.pull_request) return open_pull_request();
    if (!situation.difference.none()) {
      const SendJob send{hub, job_.sealed, job_.files, job_.progress, job_.jobs, job_.stop};
      if (job_.transfer && !is_transferred_ && lacks_weights(situation)) {
        if (situation.tree.contains(format::kManifestPath)) return retire_manifest(send, situation, outcome_.sent);
        is_transferred_ = true;
        return attempted(job_.transfer(situation.revision));
      }
      return send_files(send, situation, outcome_.sent);
    }
    const PullRequest& pull = *situation.pull_request;
    if (pull.status == "draft") return hub.mark_ready(pull.number, job_.stop);
    return merge(pull);
  }

  Attempted<std::monostate> open_pull_request() {
    if (outcome_.pull_request) {  // do not open a second one while the listing is out of date
      return HttpFailure{
          Error{ErrorKind::network, fmt::format("{}: pull request {} is not listed (closed by somebody?)",
                                                job_.hub.hub().page(), *outcome_.pull_request)},
          true};
    }
    const std::string description = fmt::format(
        "Made by `reshard publish`. Its manifest has the SHA-256 {}.\n\nA draft until every file is there; merged as a "
        "whole, so that no reader meets a mixture.",
        to_hex(job_.sealed.manifest_sha256));
    auto opened = job_.hub.open_pull_request(pull_request_title(job_.sealed.manifest_sha256), description, job_.stop);
    if (auto* failure = std::get_if<HttpFailure>(&opened)) return std::move(*failure);
    outcome_.pull_request = std::get<uint64_t>(opened);
    return std::monostate();
  }

  Attempted<std::monostate> merge(const PullRequest& pull) {
    auto merged = job_.hub.merge(pull.number, job_.stop);
    auto* failure = std::get_if<HttpFailure>(&merged);
    if (failure != nullptr && failure->error.kind == ErrorKind::conflict) {
      failure->error.message += fmt::format(
          "; the branch {} has changed since pull request {} was opened: close that "
          "and run the same command again",
          job_.target.branch, pull.number);
    }
    return merged;
  }

  [[nodiscard]] bool lacks_weights(const Situation& situation) const {
    return std::ranges::any_of(situation.difference.to_send,
                               [&](size_t file) { return !is_sealing(job_.sealed.files[file].path); });
  }

  const PublishJob& job_;
  PublishOutcome outcome_;
  bool is_transferred_ = false;  // by job_.transfer
};

}  // namespace

PublishOutlook publish_outlook(const SealedFolder& sealed, const Situation& situation) {
  PublishOutlook outlook{.files = sealed.files.size(),
                         .bytes = sealed.total_bytes,
                         .files_to_send = situation.difference.to_send.size(),
                         .bytes_to_send = 0,
                         .files_to_delete = situation.difference.extra.size(),
                         .commits = 0};
  std::vector<PendingFile> pending;
  for (const size_t file : situation.difference.to_send) {
    outlook.bytes_to_send += sealed.files[file].size_bytes;
    pending.push_back({file, true});
  }
  outlook.commits =
      plan_commits(sealed.files, pending, situation.difference.extra, situation.tree.contains(format::kManifestPath))
          .size();
  return outlook;
}

Result<PublishOutcome> publish(const PublishJob& job, Situation situation) {
  return Publication(job).run(std::move(situation));
}

}  // namespace dspack::reshard
