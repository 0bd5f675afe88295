#include "format/source/http_repository.h"

#include <algorithm>
#include <atomic>
#include <random>

#include <fmt/format.h>

#include "format/source/backoff.h"
#include "format/source/http_client.h"

namespace dspack::format {
namespace {

// Fetched when a file is opened: tells its size and version, and holds the header of nearly every released shard
// (DeepSeek-V3's are about 58 kB), so that a catalogue costs one request a shard.
constexpr uint64_t kProbeBytes = 64ULL * 1024;

// The Hub's windows are five minutes long; a server that wants more is better left to the user.
constexpr double kMaxWaitSeconds = 310;

// A server that never answered is more likely a wrong address than a fault that passes.
constexpr unsigned kFirstContactAttempts = 5;

// Shorter pauses are not worth a line.
constexpr double kToldPauseSeconds = 5;

// A renamed repository answers with one redirect within the Hub; more in a row are a loop.
constexpr unsigned kMaxRenames = 5;

/// Repeats requests whose failure may pass.
class PatientClient {
 public:
  explicit PatientClient(const RemoteOptions& options)
      : client_({options.certificate_file, options.rate_limit}),
        attempts_(options.attempts),
        on_pause_(options.on_pause) {}

  /// `next` gives the request to make, anew for each attempt, so that a transfer goes on where it was cut. Attempts
  /// count from the last progress: `received` is what the sink has seen in all.
  [[nodiscard]] Result<HttpResponse> get(const std::function<HttpRequest()>& next, const ByteSink& sink,
                                         const uint64_t& received, const std::stop_token& stop) {
    uint64_t progress = received;
    for (unsigned failures = 1;; ++failures) {
      auto outcome = client_.get(next(), sink, stop);
      if (auto* response = std::get_if<HttpResponse>(&outcome)) {
        answered_ = true;
        return std::move(*response);
      }
      const auto& failure = std::get<HttpFailure>(outcome);
      if (received != progress) failures = 1;
      progress = received;
      TRY(judge(failure, failures));
      const double pause = std::max(backoff_seconds(failures, random_fraction()), failure.wait_seconds.value_or(0));
      if (on_pause_ && pause >= kToldPauseSeconds)
        on_pause_(fmt::format("{}; trying again in {:.0f} s", failure.error.message, pause));
      if (!wait_for(pause, stop)) return Error{ErrorKind::cancelled, "stopped on request"};
    }
  }

 private:
  /// An error: it is of no use to try again.
  [[nodiscard]] Result<void> judge(const HttpFailure& failure, unsigned failures) const {
    if (!failure.may_pass || (failure.no_such_host && !answered_)) return failure.error;
    const unsigned attempts = answered_ ? attempts_ : std::min(attempts_, kFirstContactAttempts);
    if (failures >= attempts)
      return Error{failure.error.kind, fmt::format("{}; gave up after {} attempts", failure.error.message, failures)};
    if (failure.wait_seconds.value_or(0) <= kMaxWaitSeconds) return {};
    return Error{failure.error.kind, fmt::format("{} and asks to wait {:.0f} s; run the command again then",
                                                 failure.error.message, *failure.wait_seconds)};
  }

  static double random_fraction() {
    thread_local std::minstd_rand generator{std::random_device{}()};
    return std::uniform_real_distribution<double>(0, 1)(generator);
  }

  HttpClient client_;
  unsigned attempts_;
  std::function<void(std::string_view)> on_pause_;
  std::atomic<bool> answered_{false};  // whether the server was ever reached
};

class HttpSource final : public ByteSource {
 public:
  HttpSource(PatientClient& client, std::string url, std::string token)
      : client_(client), url_(std::move(url)), token_(std::move(token)) {}

  Result<void> probe(const std::stop_token& stop) {
    const ByteSink keep = [this](std::span<const std::byte> bytes) -> Result<void> {
      head_.insert(head_.end(), bytes.begin(), bytes.end());
      return {};
    };
    const auto request = [this] {
      head_.clear();  // a repeated attempt starts at the beginning
      return HttpRequest{
          .url = url_, .range = ByteRange{0, kProbeBytes}, .bearer_token = token_, .expected_version = {}};
    };
    constexpr uint64_t kNoProgress = 0;
    TRY_ASSIGN(const HttpResponse response, client_.get(request, keep, kNoProgress, stop));
    if (!response.file_bytes)
      return Error{ErrorKind::corrupt, url_ + ": the server does not say how large the file is"};
    size_bytes_ = *response.file_bytes;
    version_ = response.version;
    return {};
  }

  uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& version() const override { return version_; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    std::byte* next = into.data();
    const ByteSink copy = [&next](std::span<const std::byte> bytes) -> Result<void> {
      next = std::copy(bytes.begin(), bytes.end(), next);
      return {};
    };
    return stream({offset, offset + into.size()}, copy, stop);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    if (range.end > size_bytes_) {
      return Error{ErrorKind::corrupt, fmt::format("{}: bytes {}-{} were asked for, the file has {}", url_, range.begin,
                                                   range.end, size_bytes_)};
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
    const auto request = [&] {
      return HttpRequest{
          .url = url_, .range = ByteRange{at, range.end}, .bearer_token = token_, .expected_version = version_};
    };
    TRY(client_.get(request, count, at, stop));
    if (at == range.end) return {};
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: it became shorter while it was read; run the command again", url_)};
  }

 private:
  PatientClient& client_;
  std::string url_;
  std::string token_;
  std::string version_;
  uint64_t size_bytes_ = 0;
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
    constexpr uint64_t kNoProgress = 0;
    TRY(client_.get(request, keep, kNoProgress, stop));
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
      constexpr uint64_t kNoProgress = 0;
      TRY_ASSIGN(const HttpResponse head, client_.get(request, nothing, kNoProgress, stop));
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
