// A checkpoint's files, wherever they are: a local folder, an HTTP folder, a repository on the Hub.
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
#include "format/http/content_digest.h"
#include "format/http/transfer_watch.h"
#include "format/progress.h"

namespace dspack::format {

/// Piece size for reading local files: large enough for a disk's full speed, small enough to hold one per job.
inline constexpr uint64_t kReadBytes = 1 << 20;

/// Called with consecutive pieces of a range; an error stops the transfer, which returns it.
using ByteSink = std::function<Result<void>(std::span<const std::byte>)>;

/// A file's size and version as known before it is opened, from a manifest for example.
struct KnownFile {
  uint64_t size_bytes = 0;
  std::string version;  // as ByteSource::version; empty: that of the first answer
};

/// Checks that an opened file is still the known one. `place`: for the error, which is `corrupt`.
[[nodiscard]] Result<void> check_known(const KnownFile& known, uint64_t size_bytes, std::string_view version,
                                       std::string_view place);

/// One file, read by ranges.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;  // fixed since opening
  /// Identifies this state of the file: a server's ETag, or size and time of a local file. May be empty.
  [[nodiscard]] virtual const std::string& version() const = 0;
  /// The digest that the place declared for the whole content when the file was opened; nullopt: none.
  [[nodiscard]] virtual std::optional<ContentDigest> declared() const { return std::nullopt; }
  /// Fills `into` from `offset`; never a short success.
  [[nodiscard]] virtual Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) = 0;
  /// Passes a range through `sink` in order, with a bounded buffer. Resumes by itself after a lost connection.
  [[nodiscard]] virtual Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) = 0;
};

/// A file's whole content as a place declares it, without sending it.
struct DeclaredFile {
  Digest sha256;
  std::optional<uint64_t> size_bytes;
};

/// A file in a place's listing.
struct ListedFile {
  std::string path;
  uint64_t size_bytes = 0;
  std::optional<Digest> sha256 = std::nullopt;  // if the place declares it (an LFS file of the Hub)
};

/// A repository on the Hub: its name and the commit that every request is for.
struct HubOrigin {
  std::string repository;  // "org/name"; the present name, if it was renamed
  std::string commit;      // hexadecimal, as long as the Hub's ids are
  std::string asked;       // "org/name@revision", as the user asked for it
};

enum class RepositoryKind { local, http, hub };

class Repository {
 public:
  virtual ~Repository() = default;
  [[nodiscard]] virtual RepositoryKind kind() const = 0;
  /// Whether all its weights are on this machine's disks, whatever its kind: then open_file works.
  [[nodiscard]] virtual bool is_local() const { return kind() == RepositoryKind::local; }
  /// nullopt: not on the Hub.
  [[nodiscard]] virtual std::optional<HubOrigin> hub_origin() const { return std::nullopt; }
  /// For people: the folder or URL as given; for a repository on the Hub its name, revision and commit.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Path or URL of one of its files. Neither this nor the description contains an address's password.
  [[nodiscard]] virtual std::string locate(std::string_view path) const = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) = 0;
  /// Opens a file on a local disk in a given mode. Errors: those of FileSystem::open_read_as; unsupported if files are
  /// not local.
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode);
  /// As `open`, for a file whose size and version are known: a remote place is not asked before the first read. Errors:
  /// also corrupt, when opening or reading, if size or version differ.
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                                       std::stop_token stop);
  /// Reads a whole small file. Errors: also budget (larger than `limit_bytes`).
  [[nodiscard]] virtual Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                                      std::stop_token stop) = 0;
  /// All files except hidden ones, by path; nullopt if the place cannot list them (a plain HTTP folder).
  [[nodiscard]] virtual Result<std::optional<std::vector<ListedFile>>> list(std::stop_token stop) = 0;
  /// The SHA-256 that the place declares for a file, without any of its bytes: on the Hub for an LFS file. nullopt: it
  /// declares none (a plain folder, a small file of the Hub).
  [[nodiscard]] virtual Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) = 0;
};

class RateLimit;

/// Counts requests to remote places and watches what they wait for. Threads: thread-safe.
struct TransferCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> resolutions{0};  // those that were redirected
  std::atomic<uint64_t> bytes{0};        // received in bodies
  std::atomic<uint64_t> retries{0};      // repeated requests
  std::atomic<uint64_t> refusals{0};     // answers that ask for fewer requests: 429, 503
  TransferWatch watch;                   // what the transfers are waiting for now
};

/// The treatment of symbolic links in a local folder that lead out of it. Inside: they are refused as `invalid`, with
/// the link's name, since what is copied may be published, and a stranger's folder may contain a link to any file of
/// this user. Links of a snapshot in the Hub's cache into that cache's blobs count as inside.
enum class LinkRule { followed, inside };

/// How to reach remote repositories; main fills it from the environment (HF_ENDPOINT, HF_TOKEN, HF_HOME ...).
struct RemoteOptions {
  std::string hub_endpoint = "https://huggingface.co";
  std::string hub_token;         // sent only to the Hub's host
  std::string hub_token_note{};  // why the user's token is not sent; empty: it is, or there is none
  Path hub_cache;                // the Hub's local cache, whose snapshots are read and never written; empty: none
  Path hub_commits;              // records the commits of names, for use without the Hub; empty: not recorded
  bool hub_offline = false;      // make no requests to the Hub
  /// For resumed work: the name `asked` stands for this commit, whatever it means by now.
  std::optional<HubOrigin> hub_pinned;
  /// Attempts per request after temporary failures, counted since the last byte received. With pauses that grow to a
  /// minute the default outlasts some five minutes without a network.
  unsigned attempts = 12;
  /// Actual seconds per second of those pauses: less than 1 only in tests.
  double pause_second = 1;
  std::string certificate_file;                // trusted authorities; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;       // over all connections; nullptr: none
  std::shared_ptr<TransferCounters> counters;  // counts all requests; nullptr: not counted
  /// A connection without a byte for this long counts as lost.
  unsigned stall_seconds = 30;
  /// For a local folder. Code that copies its files sets `inside`.
  LinkRule local_links = LinkRule::followed;
  /// Called with what the user should know and is no error: every pause of five seconds or more, with its reason; use
  /// of a local snapshot; a new name. Thread-safe.
  std::function<void(NoteKind, std::string_view)> on_note;
};

/// Opens a place as a user writes it: "org/name[@revision]", "hf://org/name[@revision]", an address at huggingface.co
/// as a browser shows it (pasted_hub_name), "http(s)://...", or a local folder. A local folder takes precedence over a
/// repository on the Hub of the same name. Only for the Hub a request is made: which commit the revision stands for.
/// Errors: also those of hub/repository.h.
[[nodiscard]] Result<std::unique_ptr<Repository>> open_repository(std::string_view place, const RemoteOptions& options,
                                                                  FileSystem& files, const std::stop_token& stop = {});

}  // namespace dspack::format
