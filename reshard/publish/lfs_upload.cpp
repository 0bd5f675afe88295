#include "reshard/publish/lfs_upload.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/hub/name.h"
#include "format/json.h"

namespace dspack::reshard {
namespace {

using format::HttpRequest;
using format::HttpResponse;
using format::Json;
using format::LfsObject;
using format::UploadPart;

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

}  // namespace

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

}  // namespace dspack::reshard
