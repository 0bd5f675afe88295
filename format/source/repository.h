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
#include "format/http/content_digest.h"
#include "format/http/transfer_watch.h"
#include "format/progress.h"

namespace dspack::format {

/// What is read of a local file at a time: large enough for a disk's full speed, small enough to hold one per job.
inline constexpr uint64_t kReadBytes = 1 << 20;

/// Called with consecutive pieces of a range; an error stops the transfer and is returned by it.
using ByteSink = std::function<Result<void>(std::span<const std::byte>)>;

/// What is known of a file before it is opened, from a manifest say.
struct KnownFile {
  uint64_t size_bytes = 0;
  std::string version;  // as ByteSource::version; empty: whatever the first answer has
};

/// Whether a file that was opened is still the one that is known. `place`: for the error, which is `corrupt`.
[[nodiscard]] Result<void> check_known(const KnownFile& known, uint64_t size_bytes, std::string_view version,
                                       std::string_view place);

/// One file, read by ranges.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;  // fixed since opening
  /// What identifies this state of the file: the ETag of a server, size and time of a local file. May be empty.
  [[nodiscard]] virtual const std::string& version() const = 0;
  /// What the place said of the whole content when the file was opened; nullopt: nothing.
  [[nodiscard]] virtual std::optional<ContentDigest> declared() const { return std::nullopt; }
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

/// A file as a place lists it.
struct ListedFile {
  std::string path;
  uint64_t size_bytes = 0;
  std::optional<Digest> sha256 = std::nullopt;  // where the place declares it (an LFS file of the Hub)
};

/// Where a repository on the Hub stands: its name and the commit that every request goes to.
struct HubOrigin {
  std::string repository;  // "org/name", the present name of a renamed one
  std::string commit;      // hexadecimal, of whatever length the Hub's ids have
  std::string asked;       // "org/name@revision", as it was asked for
};

enum class RepositoryKind { local, http, hub };

class Repository {
 public:
  virtual ~Repository() = default;
  [[nodiscard]] virtual RepositoryKind kind() const = 0;
  /// Whether all its weights lie on this machine's disks, whatever kind of place it is: then open_file works.
  [[nodiscard]] virtual bool is_local() const { return kind() == RepositoryKind::local; }
  /// nullopt: not on the Hub.
  [[nodiscard]] virtual std::optional<HubOrigin> hub_origin() const { return std::nullopt; }
  /// For people: the folder or URL that was asked for; of a repository on the Hub its name, revision and commit.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Path or URL of one of its files; neither this nor the description has the password of an address.
  [[nodiscard]] virtual std::string locate(std::string_view path) const = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) = 0;
  /// A file on a local disk, with a way of reading. Errors: those of FileSystem::open_read_as; unsupported where files
  /// are not local.
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode);
  /// The same for a file of which enough is known: a place across a network is not asked before the first read. Errors:
  /// also corrupt, there or when reading, if it has another size or version.
  [[nodiscard]] virtual Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                                       std::stop_token stop);
  /// A whole small file; larger than `limit_bytes`: budget.
  [[nodiscard]] virtual Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                                      std::stop_token stop) = 0;
  /// All files but hidden ones, by path, where the place can list them; nullopt where it cannot (a plain HTTP folder).
  [[nodiscard]] virtual Result<std::optional<std::vector<ListedFile>>> list(std::stop_token stop) = 0;
  /// The SHA-256 that the place declares for a file, without any of its bytes: on the Hub that of an LFS file. nullopt:
  /// it declares none (a plain folder, a small file of the Hub).
  [[nodiscard]] virtual Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) = 0;
};

class RateLimit;

/// What was asked of remote places, and what is awaited of them. Threads: thread-safe.
struct TransferCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> resolutions{0};  // of them: those that a place answered by naming another
  std::atomic<uint64_t> bytes{0};        // of bodies
  std::atomic<uint64_t> retries{0};      // requests made again
  std::atomic<uint64_t> refusals{0};     // answers that ask for fewer requests: 429, 503
  TransferWatch watch;                   // what they wait for now
};

/// What becomes of symbolic links in a local folder that lead out of it. Inside: `invalid` with the link's name, since
/// what is copied may be published, and a stranger's folder can have a link to any file of this user. Links of a
/// snapshot in the Hub's cache into that cache's blobs count as inside.
enum class LinkRule { followed, inside };

/// How to reach remote repositories; main fills it from the environment (HF_ENDPOINT, HF_TOKEN, HF_HOME ...).
struct RemoteOptions {
  std::string hub_endpoint = "https://huggingface.co";
  std::string hub_token;         // sent to the Hub's host only
  std::string hub_token_note{};  // why the token that the user has is not sent; empty: it is, or there is none
  Path hub_cache;                // the Hub's local cache, whose snapshots are read and never written; empty: none
  Path hub_commits;  // a folder that remembers which commit a name meant, for when the Hub is not there; empty: none
  bool hub_offline = false;  // no request is made to the Hub
  /// For work that goes on: what is asked for as `asked` is this commit, whatever it may mean by now.
  std::optional<HubOrigin> hub_pinned;
  /// Per request, on failures that may pass, counted from the last byte that came. With pauses that grow to a minute
  /// the default outlasts some five minutes without a network.
  unsigned attempts = 12;
  /// The length of a second of those pauses, on the clock: less than 1 in tests alone.
  double pause_second = 1;
  std::string certificate_file;                // of authorities to trust; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;       // over all connections; nullptr: none
  std::shared_ptr<TransferCounters> counters;  // of all requests; nullptr: not counted
  /// No byte for so long: a connection counts as lost.
  unsigned stall_seconds = 30;
  /// Of a local folder. Whoever copies its files asks for `inside`.
  LinkRule local_links = LinkRule::followed;
  /// Told what the user should know and is no error: every pause of five seconds or more, with its reason; that a local
  /// snapshot is used; another name. Thread-safe.
  std::function<void(NoteKind, std::string_view)> on_note;
};

/// A place, as a user writes it: "org/name[@revision]", "hf://org/name[@revision]", an address at huggingface.co as a
/// browser shows it (pasted_hub_name), "http(s)://...", or a local folder.
/// A local folder of that name wins over a repository on the Hub. Only for the latter is anything asked: which commit
/// the revision means. Errors: also those of hub_repository.h.
[[nodiscard]] Result<std::unique_ptr<Repository>> open_repository(std::string_view place, const RemoteOptions& options,
                                                                  FileSystem& files, const std::stop_token& stop = {});

}  // namespace dspack::format
