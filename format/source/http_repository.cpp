#include "format/source/http_repository.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "format/source/file_link.h"
#include "format/source/http_headers.h"
#include "format/source/patient_client.h"

namespace dspack::format {
namespace {

// Fetched when a file is opened: tells its size and version, and holds the header of nearly every released shard
// (DeepSeek-V3's are about 58 kB), so that a catalogue costs one request a shard.
constexpr uint64_t kProbeBytes = 64ULL * 1024;

// A renamed repository answers with one redirect within the Hub; more in a row are a loop.
constexpr unsigned kMaxRenames = 5;

constexpr uint64_t kNoProgress = 0;

/// Where the answer's Location leads is another host's business: a token stays with the address it is meant for.
std::string token_for(const std::string& url, const std::string& address, const std::string& token) {
  return same_host_url(address, url) ? token : std::string();
}

class HttpSource final : public ByteSource {
 public:
  HttpSource(PatientClient& client, std::string url, std::string token)
      : client_(client), link_(std::move(url)), token_(std::move(token)) {}

  Result<void> probe(const std::stop_token& stop) {
    const ByteSink keep = [this](std::span<const std::byte> bytes) -> Result<void> {
      head_.insert(head_.end(), bytes.begin(), bytes.end());
      return {};
    };
    const auto before = [this] { head_.clear(); };  // a repeated attempt starts at the beginning
    TRY_ASSIGN(const HttpResponse response, fetch(
                                                [] {
                                                  return ByteRange{0, kProbeBytes};
                                                },
                                                before, keep, kNoProgress, stop));
    if (!response.file_bytes)
      return Error{ErrorKind::corrupt, link_.address() + ": the server does not say how large the file is"};
    known_ = {*response.file_bytes, response.version};
    return {};
  }

  void know(const KnownFile& known) {
    known_ = known;
    must_fit_ = true;
  }

  uint64_t size_bytes() const override { return known_.size_bytes; }
  const std::string& version() const override { return known_.version; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    std::byte* next = into.data();
    const ByteSink copy = [&next](std::span<const std::byte> bytes) -> Result<void> {
      next = std::copy(bytes.begin(), bytes.end(), next);
      return {};
    };
    return stream({offset, offset + into.size()}, copy, stop);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    if (range.end > known_.size_bytes) {
      return Error{ErrorKind::corrupt, fmt::format("{}: bytes {}-{} were asked for, the file has {}", link_.address(),
                                                   range.begin, range.end, known_.size_bytes)};
    }
    uint64_t at = range.begin;
    if (at < head_.size() && at < range.end) {
      const auto known =
          std::span<const std::byte>(head_).subspan(at, std::min<uint64_t>(head_.size(), range.end) - at);
      TRY(sink(known));
      at += known.size();
    }
    if (at == range.end) return {};
    const ByteSink count = [&at, &sink](std::span<const std::byte> bytes) -> Result<void> {
      TRY(sink(bytes));
      at += bytes.size();
      return {};
    };
    TRY(fetch([&] { return ByteRange{at, range.end}; }, [] {}, count, at, stop));
    if (at == range.end) return {};
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: it became shorter while it was read; run the command again", link_.address())};
  }

 private:
  /// One range, from wherever the file's address leads. `before` each attempt.
  Result<HttpResponse> fetch(const std::function<ByteRange()>& range, const std::function<void()>& before,
                             const ByteSink& sink, const uint64_t& received, const std::stop_token& stop) {
    FileLink::Target target;
    const auto answered = [&](const HttpResponse& response) {
      if (std::exchange(target.resolves, false)) link_.resolved(response.effective_url);
    };
    const auto failed = [&] {
      if (std::exchange(target.resolves, false)) link_.failed();
    };
    const auto next = [&] {
      before();
      target = link_.target(stop);
      return HttpRequest{.url = target.url,
                         .range = range(),
                         .bearer_token = token_for(target.url, link_.address(), token_),
                         .expected_version = known_.version,
                         .expected_bytes = must_fit_ ? std::optional(known_.size_bytes) : std::nullopt,
                         .name = link_.address(),
                         .is_link = target.is_link};
    };
    auto outcome = client_.get({.next = next,
                                .sink = sink,
                                .received = received,
                                .on_head = answered,
                                .on_failure = failed,
                                .on_link_expired = [&] { link_.expired(target.url); }},
                               stop);
    if (outcome) answered(*outcome);  // an answer without a body had no other chance
    failed();
    return outcome;
  }

  PatientClient& client_;
  FileLink link_;
  std::string token_;
  KnownFile known_;
  bool must_fit_ = false;        // size and version are somebody else's word, not this server's first answer
  std::vector<std::byte> head_;  // the first bytes, from the probe
};

/// The digest of an LFS object is its file's SHA-256; other files of the Hub have an ETag of another length.
std::optional<DeclaredFile> declaration(const HttpResponse& head) {
  const std::optional<Digest> sha256 = parse_digest(head.linked_etag.empty() ? head.version : head.linked_etag);
  if (!sha256) return std::nullopt;
  // The length of a redirect's own body is not that of the file.
  const bool is_file = head.status == 200;
  return DeclaredFile{*sha256, head.linked_bytes || !is_file ? head.linked_bytes : head.file_bytes};
}

class HttpRepository final : public Repository {
 public:
  HttpRepository(HttpFolder folder, const RemoteOptions& options) : folder_(std::move(folder)), client_(options) {}

  RepositoryKind kind() const override { return folder_.kind; }
  std::string description() const override { return folder_.description; }
  std::string locate(std::string_view path) const override { return folder_.base_url + "/" + url_path(path); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    auto source = std::make_unique<HttpSource>(client_, locate(path), folder_.token);
    TRY(source->probe(stop));
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token /*stop*/) override {
    auto source = std::make_unique<HttpSource>(client_, locate(path), folder_.token);
    source->know(known);
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    const std::string url = locate(path);
    std::string text;
    const ByteSink keep = [&](std::span<const std::byte> bytes) -> Result<void> {
      if (text.size() + bytes.size() > limit_bytes) {
        return Error{ErrorKind::budget,
                     fmt::format("{}: more than the {} bytes that such a file may have", url, limit_bytes)};
      }
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
    const auto request = [&] {
      text.clear();
      return HttpRequest{.url = url, .range = {}, .bearer_token = folder_.token, .expected_version = {}};
    };
    TRY(client_.get({.next = request, .sink = keep, .received = kNoProgress}, stop));
    return text;
  }

  Result<std::optional<std::vector<std::string>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<std::string>>();  // plain HTTP has no listing
  }

  Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override {
    if (folder_.kind != RepositoryKind::hub) return std::optional<DeclaredFile>();
    std::string url = locate(path);
    const ByteSink nothing = [](std::span<const std::byte>) { return Result<void>(); };
    const auto request = [&] {
      return HttpRequest{
          .url = url, .range = {}, .bearer_token = folder_.token, .expected_version = {}, .head_only = true};
    };
    for (unsigned renames = 0; renames <= kMaxRenames; ++renames) {
      TRY_ASSIGN(const HttpResponse head,
                 client_.get({.next = request, .sink = nothing, .received = kNoProgress}, stop));
      if (const auto found = declaration(head)) return std::optional(found);
      const std::optional<std::string> next = same_host_url(url, head.location);
      if (!next) return std::optional<DeclaredFile>();
      url = *next;
    }
    return Error{ErrorKind::network, fmt::format("{}: redirected more than {} times", url, kMaxRenames)};
  }

 private:
  HttpFolder folder_;
  PatientClient client_;
};

}  // namespace

std::unique_ptr<Repository> make_http_repository(HttpFolder folder, const RemoteOptions& options) {
  return std::make_unique<HttpRepository>(std::move(folder), options);
}

std::string url_path(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

}  // namespace dspack::format
