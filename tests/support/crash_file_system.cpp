#include "tests/support/crash_file_system.h"

#include <algorithm>

namespace dspack::test {

using format::Path;

namespace {

constexpr size_t kPageBytes = 4096;

Error nothing_there(const Path& path) {
  return {ErrorKind::not_found, path.string() + ": no such file or folder"};
}

size_t random_below(size_t end, std::mt19937& random) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

/// Bytes of the disk that a file takes; a page of zeros counts as a hole.
uint64_t allocated_bytes(std::string_view content) {
  uint64_t bytes = 0;
  for (size_t at = 0; at < content.size(); at += kPageBytes)
    bytes += content.substr(at, kPageBytes).find_first_not_of('\0') != std::string_view::npos ? kPageBytes : 0;
  return bytes;
}

}  // namespace

/// A write at an offset, or a new size.
struct CrashFileSystem::Change {
  uint64_t offset = 0;
  std::string bytes;
  std::optional<uint64_t> size;

  void apply_to(std::string& content) const {
    if (size) content.resize(*size, '\0');
    if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size(), '\0');
    content.replace(offset, bytes.size(), bytes);
  }
};

struct CrashFileSystem::Node {
  bool is_folder = false;
  int64_t modified_ns = 0;
  // Of a file:
  std::string content;
  std::string durable_content;
  std::vector<Change> unsynced;  // what turns durable_content into content
  // Of a folder:
  std::map<std::string, NodePtr> names;
  std::map<std::string, NodePtr> durable_names;

  void edit(Change change) {
    change.apply_to(content);
    unsynced.push_back(std::move(change));
  }
};

class CrashFileSystem::Reader final : public format::ReadFile {
 public:
  Reader(CrashFileSystem& files, NodePtr node, Path path)
      : files_(files), node_(std::move(node)), path_(std::move(path)), size_bytes_(node_->content.size()) {}
  uint64_t size_bytes() const override { return size_bytes_; }
  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    const std::lock_guard lock(files_.mutex_);
    if (node_->content.size() < offset + into.size())
      return Error{ErrorKind::corrupt, path_.string() + ": the file ends too early"};
    const auto bytes = format::as_bytes(node_->content).subspan(offset, into.size());
    std::copy(bytes.begin(), bytes.end(), into.begin());
    return {};
  }

 private:
  CrashFileSystem& files_;
  NodePtr node_;
  Path path_;
  uint64_t size_bytes_;
};

class CrashFileSystem::Writer final : public format::WriteFile {
 public:
  Writer(CrashFileSystem& files, NodePtr node) : files_(files), node_(std::move(node)) {}
  Result<void> write(uint64_t offset, std::span<const std::byte> from) override {
    const std::lock_guard lock(files_.mutex_);
    if (from.empty()) return {};
    node_->modified_ns = ++files_.clock_;
    node_->edit({offset, std::string(reinterpret_cast<const char*>(from.data()), from.size()), {}});
    return {};
  }
  Result<void> resize(uint64_t bytes) override {
    const std::lock_guard lock(files_.mutex_);
    node_->modified_ns = ++files_.clock_;
    node_->edit({0, {}, bytes});
    return {};
  }
  Result<void> sync() override {
    const std::lock_guard lock(files_.mutex_);
    node_->durable_content = node_->content;
    node_->unsynced.clear();
    return {};
  }

 private:
  CrashFileSystem& files_;
  NodePtr node_;
};

class CrashFileSystem::Lock final : public format::FileLock {
 public:
  Lock(CrashFileSystem& files, NodePtr node, format::LockKind kind) : files_(files), node_(std::move(node)) {
    ++files_.locked_.try_emplace(node_.get(), Held{kind, 0}).first->second.holders;
  }
  ~Lock() override {
    const std::lock_guard lock(files_.mutex_);
    const auto held = files_.locked_.find(node_.get());
    if (--held->second.holders == 0) files_.locked_.erase(held);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  CrashFileSystem& files_;
  NodePtr node_;
};

CrashFileSystem::CrashFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_folder = true;
}

CrashFileSystem::~CrashFileSystem() = default;

Result<CrashFileSystem::Place> CrashFileSystem::find(const Path& path) const {
  Place at{nullptr, "", root_};
  for (const Path& component : path.lexically_normal().relative_path()) {
    if (component.empty() || component == ".") continue;
    if (!at.node || !at.node->is_folder) return nothing_there(path);
    at = {at.node, component.string(), nullptr};
    if (const auto found = at.folder->names.find(at.name); found != at.folder->names.end()) at.node = found->second;
  }
  return at;
}

void CrashFileSystem::change(NameChange edits) {
  for (const Edit& edit : edits) {
    if (edit.node) edit.folder->names[edit.name] = edit.node;
    if (!edit.node) edit.folder->names.erase(edit.name);
  }
  unsynced_names_.push_back(std::move(edits));
}

Result<std::unique_ptr<format::ReadFile>> CrashFileSystem::open_read(const Path& path) {
  const std::lock_guard lock(mutex_);
  TRY_ASSIGN(const Place place, find(path));
  if (!place.node) return nothing_there(path);
  if (place.node->is_folder) return Error{ErrorKind::invalid, path.string() + ": is a folder, not a file"};
  return std::unique_ptr<format::ReadFile>(std::make_unique<Reader>(*this, place.node, path));
}

Result<std::unique_ptr<format::WriteFile>> CrashFileSystem::open_write(const Path& path, format::OpenMode mode) {
  const std::lock_guard lock(mutex_);
  TRY_ASSIGN(Place place, find(path));
  if (place.node && (mode == format::OpenMode::create || mode == format::OpenMode::create_private))
    return Error{ErrorKind::conflict, path.string() + ": exists already"};
  if (!place.node) {
    place.node = std::make_shared<Node>();
    change({{place.folder, place.name, place.node}});
  }
  if (place.node->is_folder) return Error{ErrorKind::io, path.string() + ": is a folder"};
  if (mode == format::OpenMode::truncate && !place.node->content.empty()) place.node->edit({0, {}, 0});
  return std::unique_ptr<format::WriteFile>(std::make_unique<Writer>(*this, place.node));
}

Result<std::optional<format::FileInfo>> CrashFileSystem::stat(const Path& path) {
  const std::lock_guard lock(mutex_);
  const auto place = find(path);
  if (!place || !place->node) return std::optional<format::FileInfo>();
  const Node& node = *place->node;
  return std::optional(format::FileInfo{.size_bytes = node.content.size(),
                                        .allocated_bytes = allocated_bytes(node.content),
                                        .is_directory = node.is_folder,
                                        .is_regular = !node.is_folder,
                                        .is_link = false,
                                        .modified_ns = node.modified_ns});
}

Result<std::vector<std::string>> CrashFileSystem::list(const Path& folder) {
  const std::lock_guard lock(mutex_);
  TRY_ASSIGN(const Place place, find(folder));
  if (!place.node) return nothing_there(folder);
  std::vector<std::string> names;
  for (const auto& [name, node] : place.node->names)
    names.push_back(name);
  return names;
}

Result<void> CrashFileSystem::make_folders(const Path& folder) {
  const std::lock_guard lock(mutex_);
  Path at;
  for (const Path& component : folder.lexically_normal()) {
    at /= component;
    TRY_ASSIGN(const Place place, find(at));
    if (place.node && !place.node->is_folder) return Error{ErrorKind::io, at.string() + ": is not a folder"};
    if (place.node) continue;
    const auto made = std::make_shared<Node>();
    made->is_folder = true;
    change({{place.folder, place.name, made}});
  }
  return {};
}

Result<void> CrashFileSystem::rename(const Path& from, const Path& to) {
  const std::lock_guard lock(mutex_);
  TRY_ASSIGN(const Place source, find(from));
  TRY_ASSIGN(const Place target, find(to));
  if (!source.node) return nothing_there(from);
  if (target.node == source.node) return {};
  if (target.node && target.node->is_folder) return Error{ErrorKind::io, to.string() + ": is a folder"};
  change({{source.folder, source.name, nullptr}, {target.folder, target.name, source.node}});
  return {};
}

void CrashFileSystem::remove_below(const Place& place) {
  const auto names = place.node->names;
  for (const auto& [name, node] : names)
    remove_below({place.node, name, node});
  change({{place.folder, place.name, nullptr}});
}

Result<void> CrashFileSystem::remove_file(const Path& path) {
  const std::lock_guard lock(mutex_);
  const auto place = find(path);
  if (!place || !place->node) return {};
  if (place->node->is_folder) return Error{ErrorKind::conflict, path.string() + ": is a folder"};
  change({{place->folder, place->name, nullptr}});
  return {};
}

Result<void> CrashFileSystem::remove_empty_folder(const Path& path) {
  const std::lock_guard lock(mutex_);
  const auto place = find(path);
  if (!place || !place->node || !place->node->names.empty()) return {};
  if (!place->node->is_folder) return Error{ErrorKind::io, path.string() + ": is no folder"};
  change({{place->folder, place->name, nullptr}});
  return {};
}

Result<void> CrashFileSystem::remove_tree(const Path& path) {
  const std::lock_guard lock(mutex_);
  const auto place = find(path);
  if (place && place->node) remove_below(*place);
  return {};
}

Result<void> CrashFileSystem::sync_folder(const Path& folder) {
  const std::lock_guard lock(mutex_);
  TRY_ASSIGN(const Place place, find(folder));
  if (!place.node) return nothing_there(folder);
  // A change takes with it every earlier one of each folder that it touches.
  std::set<const Node*> synced = {place.node.get()};
  std::vector<std::list<NameChange>::iterator> durable;
  for (auto it = unsynced_names_.end(); it != unsynced_names_.begin();) {
    --it;
    const auto touched = [&](const Edit& edit) { return synced.contains(edit.folder.get()); };
    if (!std::any_of(it->begin(), it->end(), touched)) continue;
    for (const Edit& edit : *it)
      synced.insert(edit.folder.get());
    durable.push_back(it);
  }
  std::reverse(durable.begin(), durable.end());
  for (const auto it : durable) {
    for (const Edit& edit : *it) {
      if (edit.node) edit.folder->durable_names[edit.name] = edit.node;
      if (!edit.node) edit.folder->durable_names.erase(edit.name);
    }
    unsynced_names_.erase(it);
  }
  return {};
}

Result<uint64_t> CrashFileSystem::free_bytes(const Path&) {
  const std::lock_guard lock(mutex_);
  const uint64_t used = used_bytes(*root_);
  return used < capacity_bytes_ ? capacity_bytes_ - used : 0;
}

uint64_t CrashFileSystem::used_bytes(const Node& node) {
  uint64_t used = allocated_bytes(node.content);
  for (const auto& [name, child] : node.names)
    used += used_bytes(*child);
  return used;
}

Result<std::unique_ptr<format::FileLock>> CrashFileSystem::lock(const Path& path, format::LockKind kind) {
  TRY(open_write(path, format::OpenMode::keep));
  const std::lock_guard guard(mutex_);
  TRY_ASSIGN(const Place place, find(path));
  const auto held = locked_.find(place.node.get());
  if (held != locked_.end() &&
      (kind == format::LockKind::exclusive || held->second.kind == format::LockKind::exclusive))
    return Error{ErrorKind::conflict, path.string() + ": locked"};
  return std::unique_ptr<format::FileLock>(std::make_unique<Lock>(*this, place.node, kind));
}

std::string CrashFileSystem::surviving_bytes(const Node& file, Survival survival, std::mt19937& random) {
  if (survival == Survival::nothing) return file.durable_content;
  if (survival == Survival::everything || file.unsynced.empty()) return file.content;
  std::vector<std::string> versions = {file.durable_content};
  for (const Change& change : file.unsynced) {
    versions.push_back(versions.back());
    change.apply_to(versions.back());
  }
  const size_t chosen = random_below(versions.size(), random);
  if (survival == Survival::prefix) {
    if (chosen < file.unsynced.size() && !file.unsynced[chosen].bytes.empty()) {
      Change torn = file.unsynced[chosen];
      torn.bytes.resize(random_below(torn.bytes.size(), random));
      torn.apply_to(versions[chosen]);
    }
    return versions[chosen];
  }
  std::string found(versions[chosen].size(), '\0');
  for (size_t at = 0; at < found.size(); at += kPageBytes) {
    const std::string& page_of = versions[random_below(versions.size(), random)];
    if (at < page_of.size()) {
      const size_t bytes = std::min({kPageBytes, found.size() - at, page_of.size() - at});
      found.replace(at, bytes, page_of, at, bytes);
    }
  }
  return found;
}

CrashFileSystem::NodePtr CrashFileSystem::survivor(const NodePtr& node, Survival survival, std::mt19937& random) {
  auto found = std::make_shared<Node>();
  found->is_folder = node->is_folder;
  found->modified_ns = node->modified_ns;
  found->content = surviving_bytes(*node, survival, random);
  found->durable_content = found->content;
  for (const auto& [name, child] : node->durable_names)
    found->names[name] = survivor(child, survival, random);
  found->durable_names = found->names;
  return found;
}

std::unique_ptr<CrashFileSystem> CrashFileSystem::after_power_loss(Survival survival, uint64_t seed) const {
  const std::lock_guard lock(mutex_);
  std::mt19937 random(seed);
  // The names that survive are applied for the copy's sake and taken back afterwards.
  std::map<Node*, std::map<std::string, NodePtr>> before;
  std::set<const Node*> cut;  // folders of which no later change survives
  for (const NameChange& change : unsynced_names_) {
    const bool whole = survival == Survival::everything;
    const bool dropped = survival == Survival::nothing || (!whole && random_below(4, random) == 0);
    const bool lost = dropped || std::any_of(change.begin(), change.end(),
                                             [&](const Edit& edit) { return cut.contains(edit.folder.get()); });
    for (const Edit& edit : change) {
      if (lost) {
        cut.insert(edit.folder.get());
        continue;
      }
      before.try_emplace(edit.folder.get(), edit.folder->durable_names);
      if (edit.node) edit.folder->durable_names[edit.name] = edit.node;
      if (!edit.node) edit.folder->durable_names.erase(edit.name);
    }
  }
  auto found = std::make_unique<CrashFileSystem>();
  found->root_ = survivor(root_, survival, random);
  found->clock_ = clock_;
  found->capacity_bytes_ = capacity_bytes_;
  for (auto& [folder, names] : before)
    folder->durable_names = std::move(names);
  return found;
}

void CrashFileSystem::collect(const Node& folder, const std::string& prefix,
                              std::map<std::string, std::string>& files) {
  for (const auto& [name, node] : folder.names) {
    if (node->is_folder) collect(*node, prefix + name + "/", files);
    if (!node->is_folder) files[prefix + name] = node->content;
  }
}

std::map<std::string, std::string> CrashFileSystem::tree(const Path& folder) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> files;
  const auto place = find(folder);
  if (place && place->node) collect(*place->node, "", files);
  return files;
}

}  // namespace dspack::test
