// Calls of the Hub that change a repository, and those that query what to change.
// Threads: thread-safe. Lifetime: borrows the HubClient. Errors: network (unreachable, no permission, not accepted),
// not_found, conflict (the branch has moved, a merge is not possible), invalid (an answer that breaks the protocol).
// Idempotent calls are retried after temporary failures; others return the failure, and the caller checks whether the
// call took effect.
#pragma once

#include <variant>
#include <vector>

#include "format/hub/answers.h"
#include "format/hub/client.h"
#include "format/hub/listing.h"

namespace dspack::format {

/// The outcome of a request that must not be repeated blindly: even after a temporary failure it may have been carried
/// out.
template <class T>
using Attempted = std::variant<T, HttpFailure>;

/// Which parts of a repository exist.
struct Presence {
  bool repository = false;  // it exists, and this token may see it
  bool revision = false;
  RepositoryInfo info;  // the revision's, or the repository's if there is no such revision
};

/// A file as preupload needs it.
struct Sample {
  std::string path;
  uint64_t size_bytes = 0;
  std::string first_bytes;  // 512 at most
};

struct LfsRequest {
  Digest oid;
  uint64_t size_bytes = 0;
};

class HubWriter {
 public:
  explicit HubWriter(const HubClient& hub) : hub_(hub) {}
  [[nodiscard]] const HubClient& hub() const { return hub_; }

  [[nodiscard]] Result<Presence> look(const std::string& revision, const std::stop_token& stop) const;
  /// Every file of a revision.
  [[nodiscard]] Result<HubTree> tree(const std::string& revision, const std::stop_token& stop) const;

  enum class Visibility { as_usual, only_private };
  /// Succeeds if the repository already exists.
  [[nodiscard]] Result<void> create_repository(Visibility visibility, const std::stop_token& stop) const;
  /// Succeeds if the branch already exists.
  [[nodiscard]] Result<void> create_branch(const std::string& branch, const std::stop_token& stop) const;

  /// Checks that the Hub accepts a card with this text (README.md): before anything is sent, since the card is sent
  /// last. A server that does not check cards accepts any.
  [[nodiscard]] Result<void> check_card(const std::string& text, const std::stop_token& stop) const;

  /// At most 256 files.
  [[nodiscard]] Result<std::vector<UploadMode>> preupload(const std::string& revision,
                                                          const std::vector<Sample>& samples,
                                                          const std::stop_token& stop) const;
  /// At most 100 objects.
  [[nodiscard]] Result<std::vector<LfsObject>> batch(const std::string& revision,
                                                     const std::vector<LfsRequest>& objects,
                                                     const std::stop_token& stop) const;
  /// `body`: lines of JSON. Returns the new commit's id.
  [[nodiscard]] Attempted<std::string> commit(const std::string& revision, std::string body,
                                              const std::stop_token& stop) const;

  /// The newest pull request that is not closed and has this title.
  [[nodiscard]] Result<std::optional<PullRequest>> find_pull_request(const std::string& title,
                                                                     const std::stop_token& stop) const;
  /// Opens a draft; returns its number.
  [[nodiscard]] Attempted<uint64_t> open_pull_request(const std::string& title, const std::string& description,
                                                      const std::stop_token& stop) const;
  /// Makes a draft ready for review.
  [[nodiscard]] Attempted<std::monostate> mark_ready(uint64_t number, const std::stop_token& stop) const;
  [[nodiscard]] Attempted<std::monostate> merge(uint64_t number, const std::stop_token& stop) const;

 private:
  [[nodiscard]] HttpRequest get(const std::string& url) const;
  [[nodiscard]] HttpRequest post(const std::string& url, std::string body) const;
  [[nodiscard]] Result<std::string> text_of(const HttpRequest& request, const std::stop_token& stop) const;
  /// One attempt, for requests that must not be made twice; an answer that is not good is a failure, too.
  [[nodiscard]] HttpOutcome attempt(HttpRequest request, const std::stop_token& stop) const;
  /// Explains an answer that is not good.
  [[nodiscard]] Error refused(const HttpResponse& answer, const std::string& name) const;
  /// The error without the token and queries, for messages that quote the Hub.
  [[nodiscard]] Error cleaned(Error error) const;

  const HubClient& hub_;
};

}  // namespace dspack::format
