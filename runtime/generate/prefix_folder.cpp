#include "runtime/generate/prefix_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "format/base/size.h"
#include "format/cache/disk_room.h"

namespace dspack::runtime {

namespace {

constexpr std::string_view kBlockPrefix = "kv-";
constexpr std::string_view kBlockSuffix = ".safetensors";
constexpr char kLockFile[] = "dspack-prefix-cache.lock";
// One line per block; 16 MiB are 250,000 blocks: 16 million tokens.
constexpr char kUseFile[] = "dspack-prefix-cache.use";
constexpr uint64_t kMaxUseBytes = 16ULL << 20U;

std::string block_name(const format::Digest& id) {
  return fmt::format("{}{}{}", kBlockPrefix, to_hex(id), kBlockSuffix);
}

/// Nullopt: not a file of this cache.
std::optional<format::Digest> parse_block_name(std::string_view name) {
  if (!name.starts_with(kBlockPrefix) || !name.ends_with(kBlockSuffix) ||
      name.size() < kBlockPrefix.size() + kBlockSuffix.size())
    return {};
  const auto id =
      format::parse_digest(name.substr(kBlockPrefix.size(), name.size() - kBlockPrefix.size() - kBlockSuffix.size()));
  return id && block_name(*id) == name ? id : std::nullopt;
}

/// Whether a killed process left this file unfinished: it has exactly the name of a block's temporary.
bool is_unfinished(std::string_view name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with('.') || !name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  return parse_block_name(name.substr(1)).has_value();
}

/// Rows are used like the model's own, so no one else may be able to write to the folder.
Result<void> check_own(format::FileSystem& files, const format::Path& folder) {
  TRY_ASSIGN(const auto info, files.stat(folder));
  if (!info || !info->is_directory) return Error{ErrorKind::conflict, folder.string() + ": is no folder"};
  return format::check_writers(folder, info->writers);
}

}  // namespace

format::Digest block_id(const format::Digest& parent, std::span<const uint32_t> tokens) {
  format::Sha256 sha;
  sha.update(std::as_bytes(std::span(parent.bytes)));
  sha.update(std::as_bytes(tokens));
  return sha.finish();
}

Result<std::unique_ptr<PrefixFolder>> PrefixFolder::open(format::FileSystem& files, format::Path folder,
                                                         KvIdentity identity, std::optional<uint64_t> most_bytes,
                                                         Log log) {
  TRY(files.make_private_folders(folder));
  TRY(check_own(files, folder));
  std::unique_ptr<PrefixFolder> opened(
      new PrefixFolder(files, std::move(folder), std::move(identity), most_bytes, std::move(log)));
  auto lock = files.lock(opened->folder_ / kLockFile, format::LockKind::exclusive);
  if (!lock) {
    if (lock.error().kind != ErrorKind::conflict) return lock.error();
    return Error{ErrorKind::conflict, fmt::format("{}: another process uses this prefix cache; give this one a folder "
                                                  "of its own",
                                                  opened->folder_.string())};
  }
  opened->lock_ = *std::move(lock);
  if (!most_bytes) {
    const auto disk = files.disk_bytes(opened->folder_);
    opened->stay_free_bytes_ = format::usual_stay_free(disk ? disk->value_or(0) : 0);
  }
  TRY(opened->scan());
  opened->writer_ = std::thread([writes = opened.get()] { writes->work(); });
  return opened;
}

PrefixFolder::~PrefixFolder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

Result<PrefixFolder::Stored> PrefixFolder::read_stored(const std::string& name) const {
  TRY_ASSIGN(const auto file, files_.open_read_own(folder_ / name));
  TRY_ASSIGN(KvContents contents, read_kv_contents(*file, identity_));
  Stored stored{.id = *parse_block_name(name),
                .parent = contents.header.parent,
                .first = contents.header.first,
                .tokens = std::move(contents.tokens),
                .goes_on = contents.header.goes_on};
  if (block_id(stored.parent, stored.tokens) != stored.id) {
    return Error{ErrorKind::corrupt, "its tokens are not those that its name says"};
  }
  return stored;
}

Result<void> PrefixFolder::scan() {
  TRY_ASSIGN(const std::vector<std::string> names, files_.list(folder_));
  std::optional<Error> first;
  for (const std::string& name : names) {
    const auto id = parse_block_name(name);
    if (!id && !is_unfinished(name)) continue;
    TRY_ASSIGN(const auto info, files_.stat(folder_ / name));
    if (!info || !info->is_regular || info->is_link) continue;
    if (!id) {
      TRY(files_.remove_file(folder_ / name));
      continue;
    }
    bytes_ = saturating_add(bytes_, info->size_bytes);
    auto stored = read_stored(name);
    if (stored) {
      stored->modified_ns = info->modified_ns;
      stored_.push_back(*std::move(stored));
      continue;
    }
    if (!first) first = stored.error().in(name);
    foreign_.push_back({.name = name, .bytes = info->size_bytes, .modified_ns = info->modified_ns});
  }
  sort_by_use();
  std::ranges::sort(foreign_, std::ranges::greater{}, &Foreign::modified_ns);
  if (first) {
    log_({first->kind, fmt::format("{}: {} of {} saved prefixes are left out, such as {}", folder_.string(),
                                   foreign_.size(), foreign_.size() + stored_.size(), first->message)});
  }
  return {};
}

// A damaged list only makes eviction choose worse.
void PrefixFolder::sort_by_use() {
  const auto text = format::read_text(files_, folder_ / kUseFile, kMaxUseBytes);
  std::map<format::Digest, size_t> places;
  constexpr size_t kLine = 65;
  for (size_t at = 0; text && at + kLine <= text->size(); at += kLine)
    if (const auto id = format::parse_digest(std::string_view(*text).substr(at, kLine - 1))) places[*id] = at;
  const auto place_of = [&](const Stored& each) {
    const auto found = places.find(each.id);
    return std::pair(found == places.end() ? SIZE_MAX : found->second, each.modified_ns);
  };
  std::ranges::sort(stored_, {}, place_of);
}

void PrefixFolder::remember_use(std::span<const format::Digest> ids) {
  std::string text;
  for (const format::Digest& id : ids.last(std::min<size_t>(ids.size(), kMaxUseBytes / 65)))
    text += to_hex(id) + '\n';
  if (const auto done = format::write_sealed(files_, folder_ / kUseFile, text, format::Access::owner); !done)
    log_(done.error());
}

format::Path PrefixFolder::path_of(const format::Digest& id) const {
  return folder_ / block_name(id);
}

bool PrefixFolder::fits(uint64_t more_bytes) const {
  if (most_bytes_) return saturating_add(bytes_, more_bytes) <= *most_bytes_;
  uint64_t unwritten = 0;
  {
    const std::lock_guard lock(mutex_);
    unwritten = unwritten_bytes_;
  }
  const format::CacheSize size{.kept_bytes = bytes_, .more_bytes = saturating_add(more_bytes, unwritten)};
  return format::leave_disk_room(files_, folder_, stay_free_bytes_, size).has_value();
}

bool PrefixFolder::has_room(const KvExtent& extent) {
  const uint64_t bytes = kv_file_bytes(identity_, extent);
  while (!fits(bytes)) {
    if (foreign_.empty()) return false;
    const Foreign oldest = std::move(foreign_.back());
    foreign_.pop_back();
    bytes_ -= oldest.bytes;
    if (const auto removed = files_.remove_file(folder_ / oldest.name); !removed) log_(removed.error());
  }
  return true;
}

void PrefixFolder::write(const format::Digest& id, const format::Digest& parent, std::shared_ptr<const KvBlock> block) {
  bytes_ += kv_file_bytes(identity_, block->extent());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return unwritten_bytes_ <= kMaxUnwrittenBytes; });
  unwritten_bytes_ += block->rows.size();
  jobs_.push_back({.id = id, .parent = parent, .block = std::move(block)});
  changed_.notify_all();
}

void PrefixFolder::remove(const format::Digest& id, const KvExtent& extent) {
  const uint64_t bytes = kv_file_bytes(identity_, extent);
  bytes_ -= std::min(bytes, bytes_);
  const std::lock_guard lock(mutex_);
  jobs_.push_back({.id = id, .parent = {}, .block = nullptr});
  changed_.notify_all();
}

Result<std::shared_ptr<const KvBlock>> PrefixFolder::read(const format::Digest& id) {
  {
    const std::lock_guard lock(mutex_);
    for (const Job& job : jobs_)
      if (job.id == id && job.block) return job.block;
  }
  const auto read = [&]() -> Result<KvFile> {
    TRY_ASSIGN(const auto file, files_.open_read_own(path_of(id)));
    TRY_ASSIGN(KvFile content, read_kv_file(*file, identity_));
    if (block_id(content.notes.parent, content.block.tokens) == id) return content;
    return Error{ErrorKind::corrupt, "its tokens are not those that its name says"};
  };
  auto content = read();
  if (!content) return content.error().in(block_name(id));
  return std::make_shared<const KvBlock>(std::move(content->block));
}

Result<void> PrefixFolder::run(const Job& job) {
  if (!job.block) return files_.remove_file(path_of(job.id));
  return write_kv_file(files_, path_of(job.id), *job.block, {.parent = job.parent, .text = {}}, identity_);
}

void PrefixFolder::work() {
  bool has_failed = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    lock.unlock();
    const auto done = guarded([&] { return run(job); });
    if (!done && !std::exchange(has_failed, true)) {
      log_({done.error().kind, fmt::format("a prefix is not kept on disk: {}", done.error().message)});
    }
    lock.lock();
    jobs_.pop_front();
    if (job.block) unwritten_bytes_ -= job.block->rows.size();
    changed_.notify_all();
  }
}

}  // namespace dspack::runtime
