// A checkpoint's files where they lie: a local folder, an HTTP folder, a repository on the Hub.
// Threads: thread-safe. Lifetime: a ByteSource must not outlive its Repository.
// Errors: not_found, network, unsupported (a server without byte ranges), corrupt (wrong length, changed while
// reading).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/digest.h"
#include "format/file_system.h"

namespace dspack::format {

/// Called with consecutive pieces of a range; an error stops the transfer and is returned by it.
using ByteSink = std::function<Result<void>(std::span<const std::byte>)>;

/// What is known of a file before it is opened, from a manifest say.
struct KnownFile {
  uint64_t size_bytes = 0;
  std::string version;  // as ByteSource::version; empty: whatever the first answer has
};

/// One file, read by ranges.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;  // fixed since opening
  /// What identifies this state of the file: the ETag of a server, size and time of a local file. May be empty.
  [[nodiscard]] virtual const std::string& version() const = 0;
  /// Fills `into` from `offset`; never a short success.
  [[nodiscard]] virtual Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) = 0;
  /// Passes a range through `sink` in order, holding a bounded buffer only. Resumes by itself after a lost connection.
  [[nodiscard]] virtual Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) = 0;
};

/// What a place says a file's whole content is, without sending it.
struct DeclaredFile {
  Digest sha256;
  std::optional<uint64_t> size_bytes;
};

enum class RepositoryKind { local, http, hub };

class Repository {
 public:
  virtual ~Repository() = default;
  [[nodiscard]] virtual RepositoryKind kind() const = 0;
  /// For people: the folder or URL that was asked for, with the revision.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Path or URL of one of its files.
  [[nodiscard]] virtual std::string locate(std::string_view path) const = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) = 0;
  /// A file of a local folder, with a way of reading. Errors: those of FileSystem::open_read_as; unsupported where
  /// files are not local.
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode);
  /// The same for a file of which enough is known: a place across a network is not asked before the first read. Errors:
  /// also corrupt, there or when reading, if it has another size or version.
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                                       std::stop_token stop);
  /// A whole small file; larger than `limit_bytes`: budget.
  [[nodiscard]] virtual Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                                      std::stop_token stop) = 0;
  /// Paths of all files, sorted, where the place can list them; nullopt where it cannot (a plain HTTP folder).
  [[nodiscard]] virtual Result<std::optional<std::vector<std::string>>> list(std::stop_token stop) = 0;
  /// The SHA-256 that the place declares for a file: on the Hub that of an LFS file; one HEAD request, none of the
  /// file's bytes. nullopt: it declares none (a plain folder, a small file of the Hub).
  [[nodiscard]] virtual Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) = 0;
};

class RateLimit;

/// What was asked of remote places. Threads: thread-safe.
struct TransferCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> resolutions{0};  // of them: those that a place answered by naming another
  std::atomic<uint64_t> bytes{0};        // of bodies
  std::atomic<uint64_t> retries{0};      // requests made again
};

/// How to reach remote repositories; main fills it from the environment (HF_ENDPOINT, HF_TOKEN, HF_HOME ...).
struct RemoteOptions {
  std::string hub_endpoint = "https://huggingface.co";
  std::string hub_token;  // sent to the Hub's host only
  /// Per request, on failures that may pass, counted from the last byte that came. With pauses that grow to a minute
  /// the default outlasts some five minutes without a network.
  unsigned attempts = 12;
  std::string certificate_file;                // of authorities to trust; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;       // over all connections; nullptr: none
  std::shared_ptr<TransferCounters> counters;  // of all requests; nullptr: not counted
  /// Told about every pause of five seconds or more, since otherwise nothing is seen to happen. Thread-safe.
  std::function<void(std::string_view)> on_pause;
};

/// A place, as a user writes it: "org/name[@revision]", "hf://org/name[@revision]", "http(s)://...", or a local folder.
/// A local folder of that name wins over a repository on the Hub.
[[nodiscard]] Result<std::unique_ptr<Repository>> open_repository(std::string_view place, const RemoteOptions& options,
                                                                  FileSystem& files);

}  // namespace dspack::format
