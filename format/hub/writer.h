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

/// An outcome of a request that must not be repeated blindly. A failure that may pass: it may have been carried out.
template <class T>
using Attempted = std::variant<T, HttpFailure>;

/// What is there of a repository.
struct Presence {
  bool repository = false;  // and this token may see it
  bool revision = false;
  RepositoryInfo info;  // of the revision, or of the repository where there is no such revision
};

/// What preupload wants to know of a file.
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
  /// Succeeds where the repository exists already.
  [[nodiscard]] Result<void> create_repository(Visibility visibility, const std::stop_token& stop) const;
  /// Succeeds where the branch exists already.
  [[nodiscard]] Result<void> create_branch(const std::string& branch, const std::stop_token& stop) const;

  /// Whether the Hub will take a card with this text (README.md): asked before anything is sent, since the card comes
  /// last. A server that does not check cards takes any.
  [[nodiscard]] Result<void> check_card(const std::string& text, const std::stop_token& stop) const;

  /// At most 256 files.
  [[nodiscard]] Result<std::vector<UploadMode>> preupload(const std::string& revision,
                                                          const std::vector<Sample>& samples,
                                                          const std::stop_token& stop) const;
  /// At most 100 objects.
  [[nodiscard]] Result<std::vector<LfsObject>> batch(const std::string& revision,
                                                     const std::vector<LfsRequest>& objects,
                                                     const std::stop_token& stop) const;
  /// `body`: lines of JSON. The new commit's id.
  [[nodiscard]] Attempted<std::string> commit(const std::string& revision, std::string body,
                                              const std::stop_token& stop) const;

  /// The newest pull request that is not closed and has this title.
  [[nodiscard]] Result<std::optional<PullRequest>> find_pull_request(const std::string& title,
                                                                     const std::stop_token& stop) const;
  /// Opens a draft; its number.
  [[nodiscard]] Attempted<uint64_t> open_pull_request(const std::string& title, const std::string& description,
                                                      const std::stop_token& stop) const;
  /// Makes a draft ready for review.
  [[nodiscard]] Attempted<std::monostate> mark_ready(uint64_t number, const std::stop_token& stop) const;
  [[nodiscard]] Attempted<std::monostate> merge(uint64_t number, const std::stop_token& stop) const;

 private:
  [[nodiscard]] HttpRequest get(const std::string& url) const;
  [[nodiscard]] HttpRequest post(const std::string& url, std::string body) const;
  [[nodiscard]] Result<std::string> text_of(const HttpRequest& request, const std::stop_token& stop) const;
  /// For what must not be made twice; an answer that is not good is a failure, too.
  [[nodiscard]] HttpOutcome attempt(HttpRequest request, const std::stop_token& stop) const;
  /// What an answer that is not good means.
  [[nodiscard]] Error refused(const HttpResponse& answer, const std::string& name) const;
  /// The error without the token and queries, for texts that hold what the Hub has sent.
  [[nodiscard]] Error cleaned(Error error) const;

  const HubClient& hub_;
};

}  // namespace dspack::format
