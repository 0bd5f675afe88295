#include "format/http/http_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "format/base/foreign_text.h"

namespace dspack::format {
namespace {

// Fetched when a file is opened: gives its size and version, and covers the header of nearly every released shard
// (DeepSeek-V3's are about 58 kB), so that a catalogue costs one request per shard.
constexpr uint64_t kProbeBytes = 64ULL * 1024;

/// The token, if `url` is on the address's own host; a redirect to another host gets none.
std::string token_for(const std::string& url, const std::string& address, const std::string& token) {
  return same_host_url(address, url) ? token : std::string();
}

}  // namespace

FileLink::Target FileLink::target(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  (void)changed_.wait(lock, stop, [this] { return state_ != LinkState::asking; });
  if (state_ == LinkState::known) return {link_.empty() ? address_ : link_, !link_.empty(), false};
  state_ = LinkState::asking;
  return {address_, false, true};
}

void FileLink::resolved(const std::string& url) {
  const std::lock_guard lock(mutex_);
  link_ = url == address_ ? std::string() : url;
  state_ = LinkState::known;
  changed_.notify_all();
}

void FileLink::failed() {
  const std::lock_guard lock(mutex_);
  if (state_ == LinkState::asking) state_ = LinkState::unknown;
  changed_.notify_all();
}

void FileLink::expired(const std::string& url) {
  const std::lock_guard lock(mutex_);
  if (state_ != LinkState::known || link_ != url) return;  // another thread has replaced it
  link_.clear();
  state_ = LinkState::unknown;
}

Result<void> HttpSource::probe(const std::stop_token& stop) {
  constexpr uint64_t kNoProgress = 0;
  const auto first = [] { return ByteRange{0, kProbeBytes}; };
  // The Hub's own headers come with its redirect, not from the storage, which a later attempt may ask directly.
  HttpResponse address;
  const HeadSink resolved = [&address](const HttpResponse& head) { address = head; };
  TRY_ASSIGN(HttpResponse response, fetch(What::head, first, {}, kNoProgress, stop, resolved));
  if (!response.file_bytes)
    return Error{ErrorKind::corrupt, shown() + ": the server does not report the size of the file"};
  const bool is_linked = !file_.commit.empty() && !address.linked_etag.empty();
  if (is_linked && address.linked_bytes.value_or(*response.file_bytes) != *response.file_bytes) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: has {} bytes in the storage of the Hub, which lists {}; try again later", shown(),
                             *response.file_bytes, *address.linked_bytes)};
  }
  known_ = {*response.file_bytes, is_linked ? address.linked_etag : response.version};
  (is_linked ? linked_etag_ : etag_) = known_.version;
  is_known_ = true;
  declared_ = response.declared;
  head_ = std::move(response.body);
  if (!declared_ && response.has_part_md5) declared_ = ask_md5(response.effective_url, stop);
  return {};
}

/// Nothing depends on it: if it fails, no digest is declared.
std::optional<ContentDigest> HttpSource::ask_md5(const std::string& url, const std::stop_token& stop) {
  const HttpRequest request{.method = "HEAD",
                            .url = url,
                            .name = link_.address(),
                            .bearer_token = token_for(url, link_.address(), file_.token),
                            .expected_version = etag_};
  const auto head = client_.send(request, stop);
  const bool is_file = head && head->status == 200 && head->file_bytes.value_or(known_.size_bytes) == known_.size_bytes;
  return is_file ? head->declared : std::nullopt;
}

void HttpSource::know(const KnownFile& known) {
  known_ = known;
  is_known_ = true;
  const bool is_linked = !file_.commit.empty() && parse_digest(known.version).has_value();
  (is_linked ? linked_etag_ : etag_) = known.version;
}

Result<void> HttpSource::read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) {
  std::byte* next = into.data();
  const ByteSink copy = [&next](std::span<const std::byte> bytes) -> Result<void> {
    next = std::copy(bytes.begin(), bytes.end(), next);
    return {};
  };
  return stream({offset, offset + into.size()}, copy, stop);
}

Result<void> HttpSource::stream(ByteRange range, const ByteSink& sink, std::stop_token stop) {
  if (range.end > known_.size_bytes) {
    return Error{ErrorKind::corrupt, fmt::format("{}: bytes {}-{} were asked for, the file has {}", shown(),
                                                 range.begin, range.end, known_.size_bytes)};
  }
  uint64_t at = range.begin;
  if (at < head_.size() && at < range.end) {
    const auto known = as_bytes(head_).subspan(at, std::min<uint64_t>(head_.size(), range.end) - at);
    TRY(sink(known));
    at += known.size();
  }
  if (at == range.end) return {};
  const ByteSink count = [&at, &sink](std::span<const std::byte> bytes) -> Result<void> {
    TRY(sink(bytes));
    at += bytes.size();
    return {};
  };
  const auto rest = [&] { return ByteRange{at, range.end}; };
  TRY(fetch(What::payload, rest, count, at, stop));
  if (at == range.end) return {};
  return Error{ErrorKind::corrupt,
               fmt::format("{}: it became shorter while it was read; run the command again", shown())};
}

Result<HttpResponse> HttpSource::fetch(What what, const std::function<ByteRange()>& range, const ByteSink& sink,
                                       const uint64_t& received, const std::stop_token& stop,
                                       const HeadSink& resolved) {
  FileLink::Target target;
  const auto answered = [&](const HttpResponse& response) {
    if (!std::exchange(target.resolves, false)) return;
    link_.resolved(response.effective_url);
    if (resolved) resolved(response);
  };
  const auto failed = [&] {
    if (std::exchange(target.resolves, false)) link_.failed();
  };
  const auto next = [&] {
    target = link_.target(stop);
    return HttpRequest{.url = target.url,
                       .name = link_.address(),
                       .bearer_token = token_for(target.url, link_.address(), file_.token),
                       .range = range(),
                       .is_link = target.is_link,
                       .is_payload = what == What::payload,
                       .expected_version = etag_,
                       .expected_bytes = is_known_ ? std::optional(known_.size_bytes) : std::nullopt,
                       .expected_commit = file_.commit,
                       .expected_linked_etag = linked_etag_};
  };
  auto outcome = client_.send({.next = next,
                               .sink = sink,
                               .received = received,
                               .on_head = answered,
                               .on_failure = failed,
                               .on_link_expired = [&] { link_.expired(target.url); },
                               .explain = file_.explain},
                              stop);
  if (outcome) answered(*outcome);  // an answer without a body did not call on_head
  failed();
  return outcome;
}

namespace {

class HttpRepository final : public Repository {
 public:
  HttpRepository(std::string_view url, const RemoteOptions& options)
      : shown_(without_passwords(url)), base_url_(url), client_(options) {
    while (base_url_.ends_with('/'))
      base_url_.pop_back();
  }

  RepositoryKind kind() const override { return RepositoryKind::http; }
  std::string description() const override { return shown_; }
  std::string locate(std::string_view path) const override { return without_passwords(url_of(path)); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    auto source = std::make_unique<HttpSource>(client_, HttpFile{.url = url_of(path)});
    TRY(source->probe(stop));
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token /*stop*/) override {
    auto source = std::make_unique<HttpSource>(client_, HttpFile{.url = url_of(path)});
    source->know(known);
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    TRY_ASSIGN(HttpResponse answer, client_.send({.url = url_of(path), .answer_limit_bytes = limit_bytes}, stop));
    return std::move(answer.body);
  }

  Result<std::optional<std::vector<ListedFile>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<ListedFile>>();  // plain HTTP has no listing
  }

  Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/, std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  /// For requests only: a name and password in the address are sent to its host, and never shown.
  [[nodiscard]] std::string url_of(std::string_view path) const { return base_url_ + "/" + url_path(path); }

  std::string shown_;     // as the user wrote it, without a password
  std::string base_url_;  // with the password, without a trailing slash
  RetryingClient client_;
};

}  // namespace

std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options) {
  return std::make_unique<HttpRepository>(url, options);
}

}  // namespace dspack::format
