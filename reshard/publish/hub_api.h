// The calls of a Hub's HTTP API that publishing needs, for one repository.
// Threads: thread-safe. Lifetime: borrows the client. Errors: network (no way through, no right, not accepted),
// not_found, conflict (the branch has moved, a merge is not possible), invalid (an answer that breaks the protocol).
// What may be carried out twice without harm is repeated while its failure may pass; what may not returns the failure,
// and its caller looks whether it was carried out.
#pragma once

#include <variant>
#include <vector>

#include "format/source/patient_client.h"
#include "reshard/publish/hub_address.h"
#include "reshard/publish/hub_answers.h"

namespace dspack::reshard {

/// An outcome of a request that must not be repeated blindly. A failure that may pass: it may have been carried out.
template <class T>
using Attempted = std::variant<T, format::HttpFailure>;

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
  format::Digest oid;
  uint64_t size_bytes = 0;
};

class HubApi {
 public:
  HubApi(HubAddress address, format::PatientClient& client) : address_(std::move(address)), client_(client) {}
  [[nodiscard]] const HubAddress& address() const { return address_; }
  [[nodiscard]] format::PatientClient& client() const { return client_; }

  [[nodiscard]] Result<Presence> look(const std::string& revision, const std::stop_token& stop) const;
  /// Every file of a revision.
  [[nodiscard]] Result<RemoteTree> tree(const std::string& revision, const std::stop_token& stop) const;

  /// A whole file, from wherever the Hub keeps it. Longer than `limit_bytes`: budget.
  [[nodiscard]] Result<std::string> read_text(const std::string& revision, const std::string& path,
                                              uint64_t limit_bytes, const std::stop_token& stop) const;

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

  /// "HTTP 403: ..." with the server's own words.
  [[nodiscard]] std::string words_of(const format::HttpReply& reply) const;
  /// What a refusal means, with those words.
  [[nodiscard]] Error refused(const format::HttpReply& reply, const std::string& name) const;
  /// The error without token and queries.
  [[nodiscard]] Error cleaned(Error error) const;

 private:
  [[nodiscard]] format::HttpCall get(const std::string& url) const;
  [[nodiscard]] format::HttpCall post(const std::string& url, std::string body) const;
  [[nodiscard]] std::variant<format::HttpReply, format::HttpFailure> attempt(format::HttpCall call,
                                                                             const std::stop_token& stop) const;
  [[nodiscard]] Result<std::string> text_of(const format::HttpCall& call, const std::stop_token& stop) const;

  HubAddress address_;
  format::PatientClient& client_;
};

}  // namespace dspack::reshard
