#include "reshard/publish/send_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/base/size.h"
#include "format/http/answer.h"
#include "format/http/content_digest.h"
#include "format/http/headers.h"
#include "format/hub/name.h"
#include "format/hub/writer.h"
#include "format/json.h"
#include "format/manifest.h"
#include "reshard/publish/sealed_folder.h"

namespace dspack::reshard {
namespace {

using format::HttpRequest;
using format::HttpResponse;
using format::Json;
using format::LfsObject;
using format::UploadPart;

/// Sends a file's bytes to the Hub's large file storage, in one piece or in parts, as the storage asks.
/// Threads: thread-safe; a call sends one file. Memory: curl's buffers, independent of the file's size.
class LfsUpload {
 public:
  LfsUpload(const format::HubWriter& hub, std::string revision, const SealedFolder& sealed, format::FileSystem& files,
            format::Progress& progress)
      : hub_(hub), revision_(std::move(revision)), sealed_(sealed), files_(files), progress_(progress) {}

  /// `answer`: the Hub's answer to the batch request for this file; `file.size_bytes` > 0.
  [[nodiscard]] Result<void> send(const LocalFile& file, format::LfsObject answer, const std::stop_token& stop);

  /// Sent by this object; files that the storage already had are not counted.
  [[nodiscard]] uint64_t sent_files() const { return sent_files_; }
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Sending;
  enum class Outcome { stored, refused };  // refused: the links may have expired; the reason is in `Sending::refusal`
  [[nodiscard]] Result<Outcome> send_by(Sending& sending, const format::LfsObject& answer, const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> send_part(Sending& sending, const format::UploadPart& part,
                                          const std::vector<std::string>& headers, std::string& etag,
                                          const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> tell(Sending& sending, const std::string& href, std::string body,
                                     std::vector<std::string> headers, const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> refused(Sending& sending, const format::HttpResponse& answer,
                                        const std::string& name) const;

  const format::HubWriter& hub_;
  std::string revision_;
  const SealedFolder& sealed_;
  format::FileSystem& files_;
  format::Progress& progress_;
  std::atomic<uint64_t> sent_files_{0};
  std::atomic<uint64_t> sent_bytes_{0};
};

// Signed links live for minutes to hours. If the storage refuses a fresh one again and again, age is not the reason.
constexpr unsigned kMaxRenewals = 3;

constexpr unsigned kSilenceSeconds = 60;
// Joining the parts of a large object may take the storage a while.
constexpr unsigned kCompletionSilenceSeconds = 180;

constexpr uint64_t kMaxStorageAnswerBytes = 1 << 20;

/// Refusals that fresh links can fix: expired (401, 403; S3 also answers 400), an upload that the storage dropped (404,
/// 410, 409), bytes that arrived damaged (422).
bool is_mendable(long status) {
  constexpr std::array kStatuses{400L, 401L, 403L, 404L, 409L, 410L, 422L};
  return std::ranges::find(kStatuses, status) != kStatuses.end();
}

/// One file while it is sent.
struct LfsUpload::Sending {
  const LocalFile& file;
  std::unique_ptr<format::ReadFile> bytes;
  uint64_t told = 0;    // bytes reported to progress; bytes that are sent again are not reported again
  std::string refusal;  // reason of the last attempt's refusal
};

Result<void> LfsUpload::send(const LocalFile& file, LfsObject answer, const std::stop_token& stop) {
  TRY_ASSIGN(auto bytes, files_.open_read(sealed_.folder / file.path));
  if (bytes->size_bytes() != file.size_bytes)
    return Error{ErrorKind::corrupt, fmt::format("{}: changed while it was published", file.path)};
  Sending sending{.file = file, .bytes = std::move(bytes), .told = 0, .refusal = {}};
  const auto done = [&] {
    progress_.advanced(file.size_bytes - sending.told);
    progress_.item_done();
  };
  unsigned idle = 0;  // consecutive refusals without progress
  for (;;) {
    if (!answer.refusal.empty()) {
      const std::string words = format::refusal_text(format::without_secret(answer.refusal, hub_.hub().token()));
      return Error{ErrorKind::network, fmt::format("{}: the Hub refuses it ({})", file.path, words)};
    }
    if (!answer.upload) {
      done();
      return {};
    }
    const uint64_t told = sending.told;
    TRY_ASSIGN(const Outcome outcome, send_by(sending, answer, stop));
    if (outcome == Outcome::stored) break;
    idle = sending.told > told ? 0 : idle + 1;
    if (idle > kMaxRenewals) {
      return Error{ErrorKind::network, fmt::format("{}: refused again and again, with fresh links each time: {}",
                                                   file.path, sending.refusal)};
    }
    TRY_ASSIGN(const auto answers, hub_.batch(revision_, {{file.sha256, file.size_bytes}}, stop));
    answer = answers.front();
  }
  done();
  ++sent_files_;
  sent_bytes_ += file.size_bytes;
  return {};
}

Result<LfsUpload::Outcome> LfsUpload::send_by(Sending& sending, const LfsObject& answer, const std::stop_token& stop) {
  const LocalFile& file = sending.file;
  const auto way = format::upload_way(*answer.upload, file.size_bytes);
  if (!way) return way.error().in(file.path);
  Json parts = Json::array();
  for (const UploadPart& part : way->parts) {
    std::string etag;
    TRY_ASSIGN(const Outcome outcome, send_part(sending, part, way->headers, etag, stop));
    if (outcome == Outcome::refused) return outcome;
    if (way->multipart && etag.empty())
      return Error{ErrorKind::invalid,
                   fmt::format("{}: the storage took part {} without an ETag", file.path, parts.size() + 1)};
    parts.push_back({{"partNumber", parts.size() + 1}, {"etag", etag}});
  }
  if (way->multipart) {
    const Json whole = {{"oid", to_hex(file.sha256)}, {"parts", std::move(parts)}};
    TRY_ASSIGN(const Outcome outcome,
               tell(sending, answer.upload->href, format::canonical_json(whole),
                    {"Accept: application/vnd.git-lfs+json", "Content-Type: application/vnd.git-lfs+json"}, stop));
    // The completion may be refused because it was done before and its answer was lost; then verification succeeds.
    if (outcome == Outcome::refused && !answer.verify) return outcome;
  }
  if (!answer.verify) return Outcome::stored;
  const Json object = {{"oid", to_hex(file.sha256)}, {"size", file.size_bytes}};
  return tell(sending, answer.verify->href, object.dump(), {"Content-Type: application/json"}, stop);
}

Result<LfsUpload::Outcome> LfsUpload::send_part(Sending& sending, const UploadPart& part,
                                                const std::vector<std::string>& headers, std::string& etag,
                                                const std::stop_token& stop) {
  const std::string url = format::at_endpoint(part.url, hub_.hub().endpoint());
  const auto on_sent = [&](uint64_t sent) {
    const uint64_t at = part.range.begin + sent;
    if (at <= sending.told) return;
    progress_.advanced(at - sending.told);
    sending.told = at;
  };
  const HttpRequest request{.method = "PUT",
                            .url = url,
                            .name = fmt::format("{} to {}", sending.file.path, format::public_url(url)),
                            .hidden = hub_.hub().token(),
                            .headers = headers,
                            .slice = format::FileSlice{sending.bytes.get(), part.range, on_sent},
                            .any_status = true,
                            .answer_limit_bytes = kMaxStorageAnswerBytes,
                            .silence_seconds = kSilenceSeconds};
  TRY_ASSIGN(const HttpResponse answer, hub_.hub().http().send(request, stop));
  if (answer.good()) {
    etag = answer.etag;
    return Outcome::stored;
  }
  return refused(sending, answer, request.name);
}

/// Calls the Hub itself: to complete a multipart upload, or to verify an object.
Result<LfsUpload::Outcome> LfsUpload::tell(Sending& sending, const std::string& href, std::string body,
                                           std::vector<std::string> headers, const std::stop_token& stop) {
  const std::string url = format::at_endpoint(href, hub_.hub().endpoint());
  const HttpRequest request{.method = "POST",
                            .url = url,
                            .name = fmt::format("{} at {}", sending.file.path, format::public_url(url)),
                            .bearer_token = hub_.hub().token_for(url),
                            .hidden = hub_.hub().token(),
                            .headers = std::move(headers),
                            .body = std::move(body),
                            .any_status = true,
                            .answer_limit_bytes = kMaxStorageAnswerBytes,
                            .silence_seconds = kCompletionSilenceSeconds};
  TRY_ASSIGN(const HttpResponse answer, hub_.hub().http().send(request, stop));
  if (answer.good()) return Outcome::stored;
  return refused(sending, answer, request.name);
}

Result<LfsUpload::Outcome> LfsUpload::refused(Sending& sending, const HttpResponse& answer,
                                              const std::string& name) const {
  sending.refusal = fmt::format("{}: refused ({})", name, words_of(answer));
  if (is_mendable(answer.status)) return Outcome::refused;
  return Error{ErrorKind::network, sending.refusal};
}

// huggingface_hub's own limit for a commit. Files that the Hub does not want in its large file storage have a few
// megabytes at most.
constexpr uint64_t kMaxRegularBytes = 100ULL << 20;

std::string line(const char* key, Json value) {
  return format::canonical_json(Json{{"key", key}, {"value", std::move(value)}}) + "\n";
}

}  // namespace

Result<std::string> commit_body(const CommitHead& head, const PlannedCommit& commit, const SealedFolder& sealed,
                                format::FileSystem& files) {
  Json header = {{"summary", head.summary}, {"description", ""}};
  if (!head.parent.empty()) header["parentCommit"] = head.parent;
  std::string body = line("header", std::move(header));
  uint64_t regular_bytes = 0;
  for (const PendingFile& pending : commit.files) {
    const LocalFile& file = sealed.files[pending.file];
    if (pending.large) {
      body += line("lfsFile",
                   {{"path", file.path}, {"algo", "sha256"}, {"oid", to_hex(file.sha256)}, {"size", file.size_bytes}});
      continue;
    }
    regular_bytes += file.size_bytes;
    if (regular_bytes > kMaxRegularBytes) {
      return Error{
          ErrorKind::unsupported,
          fmt::format("{}: the Hub wants {} and more as regular files in one commit, {} is the limit; add "
                      "a line for them to the repository's .gitattributes (\"PATH filter=lfs diff=lfs merge=lfs "
                      "-text\")",
                      file.path, size_words(regular_bytes), size_words(kMaxRegularBytes))};
    }
    TRY_ASSIGN(const std::string content, format::read_text(files, sealed.folder / file.path, file.size_bytes));
    if (content.size() != file.size_bytes || format::sha256(content) != file.sha256)
      return Error{ErrorKind::corrupt, fmt::format("{}: changed while it was published", file.path)};
    // Built by hand: the content is most of the text and should not be copied through a JSON value.
    body += R"({"key":"file","value":{"content":")";
    body += format::base64(format::as_bytes(content));
    body += fmt::format(R"(","encoding":"base64","path":{}}}}}{})", format::canonical_json(file.path), "\n");
  }
  for (const std::string& path : commit.deleted)
    body += line("deletedFile", {{"path", path}});
  return body;
}

namespace {

using format::Attempted;
using format::HttpFailure;
using format::LfsRequest;

constexpr size_t kPreuploadFiles = 256;  // the Hub's limit
constexpr uint64_t kSampleBytes = 512;   // the Hub tells text from binary by these

/// Asks the Hub for each file whether it is large or travels in the commit itself.
Result<std::vector<PendingFile>> ask_modes(const SendJob& job, const std::string& revision,
                                           const std::vector<size_t>& wanted) {
  std::vector<PendingFile> pending(wanted.size());
  const uint64_t calls = (wanted.size() + kPreuploadFiles - 1) / kPreuploadFiles;
  const auto ask = [&](uint64_t call, const std::stop_token& stop) -> Result<void> {
    const size_t begin = call * kPreuploadFiles;
    const size_t end = std::min(wanted.size(), begin + kPreuploadFiles);
    std::vector<format::Sample> samples;
    for (size_t i = begin; i < end; ++i) {
      const LocalFile& file = job.sealed.files[wanted[i]];
      TRY_ASSIGN(const auto bytes, job.files.open_read(job.sealed.folder / file.path));
      format::Sample sample{file.path, file.size_bytes, std::string(std::min(kSampleBytes, bytes->size_bytes()), '\0')};
      TRY(bytes->read(0, std::as_writable_bytes(std::span(sample.first_bytes))));
      samples.push_back(std::move(sample));
    }
    TRY_ASSIGN(const std::vector<format::UploadMode> modes, job.hub.preupload(revision, samples, stop));
    for (size_t i = begin; i < end; ++i) {
      const LocalFile& file = job.sealed.files[wanted[i]];
      if (modes[i - begin].ignored) {
        return Error{ErrorKind::conflict,
                     fmt::format("{}: the repository's .gitignore keeps {} out; take that line out of it, or publish "
                                 "elsewhere",
                                 job.hub.hub().page(), file.path)};
      }
      // The storage cannot hold an empty object.
      pending[i] = {wanted[i], modes[i - begin].large && file.size_bytes > 0};
    }
    return {};
  };
  TRY(run_jobs(calls, job.jobs, ask, job.stop));
  return pending;
}

/// The large objects of a commit, without duplicates.
std::vector<const LocalFile*> objects_of(const PlannedCommit& commit, const SealedFolder& sealed) {
  std::map<format::Digest, const LocalFile*> objects;
  for (const PendingFile& pending : commit.files) {
    if (pending.large) objects.emplace(sealed.files[pending.file].sha256, &sealed.files[pending.file]);
  }
  std::vector<const LocalFile*> list;
  list.reserve(objects.size());
  for (const auto& [digest, file] : objects)
    list.push_back(file);
  std::ranges::sort(list, {}, &LocalFile::path);
  return list;
}

/// Makes the commits in order; during each, sends the files of the next.
class Sender {
 public:
  Sender(const SendJob& job, const Situation& situation, const std::vector<PlannedCommit>& commits, Sent& sent)
      : job_(job),
        situation_(situation),
        commits_(commits),
        upload_(job.hub, situation.revision, job.sealed, job.files, job.progress),
        head_(situation.head),
        sent_(sent) {}

  Attempted<std::monostate> run() {
    announce();
    Result<void> done;
    for (size_t i = 0; done.has_value() && !commit_failure_ && i <= commits_.size(); ++i)
      done = step(i);
    sent_.files += upload_.sent_files();
    sent_.bytes += upload_.sent_bytes();
    job_.progress.finished();
    if (!done) return HttpFailure{done.error()};
    if (commit_failure_) return std::move(*commit_failure_);
    return std::monostate();
  }

 private:
  void announce() {
    uint64_t bytes = 0;
    uint64_t count = 0;
    for (const PlannedCommit& commit : commits_) {
      for (const LocalFile* file : objects_of(commit, job_.sealed)) {
        bytes += file->size_bytes;
        ++count;
      }
    }
    job_.progress.started("sending", bytes, count);
  }

  /// Sends the files of commit `number` (none after the last) and makes the commit before it.
  Result<void> step(size_t number) {
    std::vector<const LocalFile*> objects;
    std::vector<LfsObject> answers;
    if (number < commits_.size()) objects = objects_of(commits_[number], job_.sealed);
    if (!objects.empty()) {
      std::vector<LfsRequest> requests;
      requests.reserve(objects.size());
      for (const LocalFile* file : objects)
        requests.push_back({file->sha256, file->size_bytes});
      TRY_ASSIGN(answers, job_.hub.batch(situation_.revision, requests, job_.stop));
    }
    const uint64_t commits = number > 0 ? 1 : 0;
    const auto one = [&](uint64_t i, const std::stop_token& stop) -> Result<void> {
      if (i < commits) return commit(number - 1, stop);
      return upload_.send(*objects[i - commits], answers[i - commits], stop);
    };
    return run_jobs(commits + objects.size(), job_.jobs + static_cast<unsigned>(commits), one, job_.stop);
  }

  Result<void> commit(size_t number, const std::stop_token& stop) {
    const PlannedCommit& planned = commits_[number];
    const std::string manifest = to_hex(job_.sealed.manifest_sha256).substr(0, 16);
    const CommitHead head{.summary = planned.seals && commits_.size() == 1
                                         ? fmt::format("Packed repository {}", manifest)
                                         : fmt::format("Packed repository {}: part {} of {}{}", manifest, number + 1,
                                                       commits_.size(), planned.seals ? ", seal" : ""),
                          .parent = head_};
    TRY_ASSIGN(std::string body, commit_body(head, planned, job_.sealed, job_.files));
    auto outcome = job_.hub.commit(situation_.revision, std::move(body), stop);
    if (auto* failure = std::get_if<HttpFailure>(&outcome)) {
      // The branch has moved: by someone else's commit, or by this one, whose answer was lost.
      if (failure->error.kind == ErrorKind::conflict) failure->may_pass = true;
      if (!failure->may_pass) return failure->error;
      commit_failure_ = std::move(*failure);  // resolved by looking again once the running uploads are done
      return {};
    }
    head_ = std::get<std::string>(outcome);
    ++sent_.commits;
    return {};
  }

  const SendJob& job_;
  const Situation& situation_;
  const std::vector<PlannedCommit>& commits_;
  LfsUpload upload_;
  std::string head_;  // the newest commit; written by one job at a time
  Sent& sent_;
  std::optional<HttpFailure> commit_failure_;  // a transient one
};

}  // namespace

Attempted<std::monostate> send_files(const SendJob& job, const Situation& situation, Sent& sent) {
  std::vector<size_t> wanted = situation.difference.to_send;
  const bool sealed = situation.tree.contains(format::kManifestPath);
  const auto manifest = static_cast<size_t>(
      std::ranges::find(job.sealed.files, format::kManifestPath, &LocalFile::path) - job.sealed.files.begin());
  // An unchanged manifest is deleted first and committed again last.
  if (sealed && std::ranges::find(wanted, manifest) == wanted.end()) wanted.push_back(manifest);
  const auto pending = ask_modes(job, situation.revision, wanted);
  if (!pending) return HttpFailure{pending.error()};
  const std::vector<PlannedCommit> commits =
      plan_commits(job.sealed.files, *pending, situation.difference.extra, sealed);
  return Sender(job, situation, commits, sent).run();
}

Attempted<std::monostate> retire_manifest(const SendJob& job, const Situation& situation, Sent& sent) {
  const std::vector<PlannedCommit> commits = {{.files = {}, .deleted = {format::kManifestPath}, .seals = false}};
  return Sender(job, situation, commits, sent).run();
}

}  // namespace dspack::reshard
